"""Functions of scalars or small arrays made to broadcast: `vectorize`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.types.annotations import Array
from genesis_fn.lax.creation import asarray
from genesis_fn.lax.promotion import broadcast, broadcast_shapes, check_ranks
from genesis_fn.primitives.shape import reshape
from genesis_fn.transforms.batching.mapped_axes import vmap

_CORE = re.compile(r"\(([^()]*)\)")


def vectorize(
    pyfunc: Callable[..., Any],
    *,
    excluded: Collection[Any] = frozenset(),
    signature: str | None = None,
) -> Callable[..., Any]:
    """`pyfunc` mapped over the broadcast leading axes of its positional arguments.

    `signature`, such as "(n,m),(m)->(n)", names the trailing axes that `pyfunc` itself takes;
    without it, `pyfunc` takes scalars. `excluded` names arguments that are passed on as they are.
    """

    for name in excluded:
        if not isinstance(name, (int, str)):
            raise errors.ArgumentError(
                f"vectorize: excluded holds positions and names of arguments, got {name!r}"
            )
        if isinstance(name, int) and name < 0:
            raise errors.ArgumentError(f"vectorize: excluded positions count from 0, got {name}")

    @functools.wraps(pyfunc)
    def call(*args: Any, **kwargs: Any) -> Any:
        mapped = [i for i, a in enumerate(args) if i not in excluded and a is not None]
        inputs, outputs = _parsed(signature, len(mapped))
        arrays = [asarray(args[i]) for i in mapped]
        sizes: dict[str, int] = {}
        for i, (names, x) in enumerate(zip(inputs, arrays)):
            if x.ndim < len(names):
                raise errors.ShapeError(f"vectorize: {x.aval} lacks the axes ({','.join(names)})")
            _matched(names, x.aval.shape[x.ndim - len(names) :], sizes, f"argument {i}")
        loops = [x.aval.shape[: x.ndim - len(names)] for names, x in zip(inputs, arrays)]
        loop = broadcast_shapes(*loops) if loops else ()
        check_ranks("vectorize", loops)

        def core(*values: Any) -> Any:
            full = list(args)
            for i, v in zip(mapped, values):
                full[i] = v
            out = pyfunc(*full, **kwargs)
            if outputs is not None:
                outs = out if isinstance(out, tuple) else (out,)
                if len(outs) != len(outputs):
                    raise TypeError(
                        f"vectorize: {signature!r} has {len(outputs)} results, and the function "
                        f"gave {len(outs)}"
                    )
                for names, y in zip(outputs, outs):
                    y = asarray(y)
                    if y.ndim != len(names):
                        raise errors.ShapeError(
                            f"vectorize: the result {y.aval} lacks the axes ({','.join(names)})"
                        )
                    _matched(names, y.aval.shape, sizes, "the result")
            return tree.map(asarray, out)

        f: Callable[..., Any] = core
        # Axes along which an argument has length 1 are not mapped for it: nothing is repeated.
        for depth in range(1, len(loop) + 1):
            axes = tuple(
                [0 if len(own) >= depth and own[-depth] == loop[-depth] else None for own in loops]
            )
            arrays = [
                _without(x, len(own) - depth) if len(own) >= depth and a is None else x
                for x, own, a in zip(arrays, loops, axes)
            ]
            if not any(a == 0 for a in axes):
                axes = (0,) * len(axes)
                arrays = [broadcast(x, (1, *x.aval.shape)) for x in arrays]
            f = vmap(f, in_axes=axes)
        return f(*arrays)

    return call


def _without(x: Any, axis: int) -> Array:
    shape = x.aval.shape
    return reshape(x, (*shape[:axis], *shape[axis + 1 :]))


def _parsed(signature: str | None, count: int) -> tuple[list[tuple[str, ...]], Any]:
    if signature is None:
        return [()] * count, None
    left, arrow, right = signature.replace(" ", "").partition("->")
    if not arrow:
        raise ValueError(f'vectorize: the signature {signature!r} needs the form "(n),(m)->(k)"')
    sides = [
        [tuple([n for n in names.split(",") if n]) for names in _CORE.findall(side)]
        for side in (left, right)
    ]
    if len(sides[0]) != count:
        raise errors.ArgumentError(
            f"vectorize: {signature!r} takes {len(sides[0])} arguments besides None, got {count}"
        )
    return sides[0], sides[1]


def _matched(names: Sequence[str], shape: Sequence[int], sizes: dict[str, int], what: str) -> None:
    for name, n in zip(names, shape):
        expected = int(name) if name.isdigit() else sizes.setdefault(name, n)
        if expected != n:
            raise errors.ShapeError(
                f"vectorize: axis {name!r} has length {n} in {what}, and {expected} elsewhere"
            )
