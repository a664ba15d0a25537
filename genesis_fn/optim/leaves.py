"""One pass over the leaves of gradients, optimizer state and parameters.

Every transformation is a function of one leaf, applied here. The conventions that all of them share
live in this file:

* Arithmetic is in float32 or wider: gradients, states and parameters of 16-bit and 8-bit floats are
  converted first, and updates stay wide until `apply_updates` rounds them once.
* A state leaf keeps its dtype from step to step.
* A gradient leaf that is None, or not floating, is frozen: its update is None and its state is
  passed through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DType, DTypeLike
from genesis_fn.core.errors import TreeError


def is_none(x: Any) -> bool:
    """Whether `x` is None: passed as `is_leaf` where frozen leaves count."""
    return x is None


def wide_dtype(d: DType) -> DType:
    """The dtype that optimizers compute in for values of dtype `d`: float32 or wider."""
    return dtypes.F32 if d.itemsize < 4 and dtypes.is_float(d) else d


def widest_float(params: Any) -> Any:
    """The widest real dtype among the floating leaves; float32 where there is none."""
    kinds = [as_array(p).dtype for p in tree.leaves(params)]
    kinds = [dtypes.real_of(k) for k in kinds if dtypes.is_inexact(k)]
    return max(kinds, key=lambda k: k.itemsize, default=dtypes.F32)


def is_inexact(x: Any) -> bool:
    """Whether an array is floating or complex."""
    return dtypes.is_inexact(x.dtype)


def widen(x: Any) -> Any:
    """An array in its `wide_dtype`; other arrays, and what is not an array, as they are."""
    kind = getattr(x, "dtype", None)
    if kind is None:
        return x
    wide = wide_dtype(kind)
    return x if wide == kind else x.astype(wide)


def as_gradient(g: Any) -> Any:
    """`g` as a wide array, or None where the leaf is frozen."""
    if g is None:
        return None
    g = as_array(g)
    return widen(g) if is_inexact(g) else None


def map_updates(
    f: Callable[..., Any], updates: Any, *states: Any, extras: Sequence[Any] = ()
) -> Any:
    """`f(gradient, *states, *extras)` at every leaf that is not frozen.

    Without states `f` returns the update, and so does this. With states it returns
    (update, *new states), and the result is (updates, *new state trees); each new state leaf has
    the dtype of the old one. Raises TreeError naming the path where trees differ.
    """
    gradients, treedef = tree.flatten(updates, is_none)
    names = ["the optimizer state"] * len(states) + ["the parameters"] * len(extras)
    others = [
        _aligned(treedef, updates, other, name)
        for other, name in zip((*states, *extras), names, strict=True)
    ]
    count = len(states)
    columns: list[list[Any]] = [[] for _ in range(count + 1)]
    for g, *rest in zip(gradients, *others, strict=True):
        g = as_gradient(g)
        old = rest[:count]
        if g is None:
            new: Sequence[Any] = (None, *old)
        elif count:
            u, *kept = f(g, *[_widened(x) for x in rest])
            new = (u, *[_kept(k, o) for k, o in zip(kept, old, strict=True)])
        else:
            new = (f(g, *[_widened(x) for x in rest]),)
        for column, x in zip(columns, new, strict=True):
            column.append(x)
    trees = tuple([tree.unflatten(treedef, column) for column in columns])
    return trees if states else trees[0]


def _widened(x: Any) -> Any:
    return widen(x) if hasattr(x, "dtype") else tree.map(widen, x)


def _kept(new: Any, old: Any) -> Any:
    """The new state leaf (or small tree of arrays) in the old one's dtype."""
    if hasattr(old, "dtype"):
        return new if new.dtype == old.dtype else new.astype(old.dtype)
    return tree.map(_kept, new, old)


def _aligned(treedef: tree.PyTreeDef, updates: Any, other: Any, name: str) -> list[Any]:
    try:
        return treedef.flatten_up_to(other)
    except (ValueError, TypeError) as error:
        difference = tree.first_difference(updates, other) or str(error)
        raise TreeError(
            f"{name} and the gradients differ in structure: {difference}\n"
            "  call init with the parameters whose gradients are given to update"
        ) from None


def init_leaves(f: Callable[[Any], Any], params: Any) -> Any:
    """`f` at every parameter that is floating; None at the others, which are frozen."""

    def at(p: Any) -> Any:
        if p is None:
            return None
        p = as_array(p)
        return f(p) if is_inexact(p) else None

    return tree.map(at, params, is_leaf=is_none)


def init_moments(params: Any, value: Any = 0.0, dtype: DTypeLike | None = None) -> Any:
    """Arrays of `value` shaped as the parameters, in `dtype` or float32 or wider."""
    kind = None if dtype is None else dtypes.dtype(dtype)
    return init_leaves(lambda p: jnp.full_like(p, value, dtype=kind or wide_dtype(p.dtype)), params)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """The tree `on_true` where the boolean scalar `pred` holds, else `on_false`, leaf by leaf.

    Leaves keep the dtypes of `on_false`.
    """

    def pick(b: Any, a: Any) -> Any:
        if a is b:
            return b
        a, b = as_array(a), as_array(b)
        return jnp.where(pred, a if a.dtype == b.dtype else a.astype(b.dtype), b)

    return tree.map(pick, on_false, on_true)


def zero_count() -> Any:
    """An int32 zero: where every step counter begins."""
    return jnp.zeros((), dtypes.I32)
