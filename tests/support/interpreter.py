"""Triton's interpreter without what it does again and again, for tests that run thousands of tiles.

What a kernel computes stays the same, but for the order in which a reduction by a function of its
own combines the elements of a line: neighbours in pairs, as a GPU does, and all lines at once.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """Make the interpreter of this process do so."""
    _list_builtins_once()
    _look_up_dtypes()
    interpreter.ReduceOps.generic_reduce = _reduce_in_pairs


def _list_builtins_once() -> None:
    """At every call of a device function it looks through all names of Triton's language for the
    built-in ones, to replace those that are not replaced yet."""
    places = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    names = {
        place: [n for n, member in inspect.getmembers(place) if tl.core.is_builtin(member)]
        for place in places
    }

    def patch(place: Any, builder: Any, scope: Any) -> None:
        for name in names[place]:
            member = getattr(place, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(place, name, member, builder, scope)

    interpreter._patch_builtin = patch


def _look_up_dtypes() -> None:
    """It makes its table of NumPy's types for every tensor."""
    found, make = {}, interpreter._get_np_dtype

    def dtype_of(kind: Any) -> np.dtype[Any]:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        if isinstance(scalar, tl.pointer_type):  # these have no hash
            return make(scalar)
        if scalar not in found:
            found[scalar] = make(scalar)
        return found[scalar]

    interpreter._get_np_dtype = dtype_of


def _reduce_in_pairs(self: interpreter.ReduceOps, given: tuple[tl.tensor, ...]) -> list[tl.tensor]:
    """`ReduceOps.generic_reduce`, which takes one element after the other."""
    kept = [1] * given[0].handle.data.ndim
    given, axis = self.unravel(given, self.axis)
    kinds = [x.dtype for x in given]
    parts = [x.handle.data for x in given]
    while (length := parts[0].shape[axis]) > 1:
        even, odd, last = (
            [x[(slice(None),) * axis + (which,)] for x in parts]
            for which in (
                slice(0, length - length % 2, 2),
                slice(1, length, 2),
                slice(length - length % 2, length),
            )
        )
        left, right = (list(map(self.to_tensor, side, kinds)) for side in (even, odd))
        made = self.combine_fn.fn(*left, *right)
        made = made if isinstance(made, (tuple, tl.tuple)) else (made,)
        values = [m.handle.data if isinstance(m, tl.tensor) else m for m in made]
        parts = [
            np.concatenate([np.broadcast_to(v, like.shape).astype(like.dtype), rest], axis)
            for v, like, rest in zip(values, even, last, strict=True)
        ]
    if not self.keep_dims:
        parts = [np.squeeze(x, axis) for x in parts]
    elif self.axis is None:
        parts = [x.reshape(kept) for x in parts]
    return [self.to_tensor(x, kind) for x, kind in zip(parts, kinds, strict=True)]
