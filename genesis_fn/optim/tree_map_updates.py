"""One pass over the leaves of gradients, optimizer state and parameters.

Every transformation is a function of one leaf, applied by `map_updates`. All of them share these
conventions:

* Arithmetic is in float32 or wider: gradients, states and parameters of 16-bit and 8-bit floats are
  converted first, and updates stay wide until `apply_updates` rounds them once.
* A state leaf keeps its dtype from step to step.
* A gradient leaf that is None is frozen: its update is None and its state is passed through.
* A parameter that is not floating has no state, and is frozen too where its gradient is integers,
  as `grad(..., allow_int=True)` gives them. Integers as gradients of floats are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, PyTree, dtypes, tree
from genesis_fn.dtypes import DType
from genesis_fn.errors import ArgumentError, ShapeError, TreeError
from genesis_fn.extend import as_array, first_difference, real_of, typeof
from genesis_fn.optim.annotations import Number, Params, Updates

BOOL, I32 = dtypes.dtype("bool"), dtypes.dtype("int32")
F32, F64 = dtypes.dtype("float32"), dtypes.dtype("float64")


def is_none(x: Any) -> bool:
    """Whether `x` is None; as `is_leaf` it keeps frozen leaves in the tree."""
    return x is None


def wide_dtype(d: DType) -> DType:
    """Returns the dtype that optimizers compute in for values of dtype `d`: float32 or wider."""
    return F32 if d.itemsize < 4 and dtypes.is_float(d) else d


def widest_float(params: Params) -> DType:
    """Returns the widest real dtype among the floating leaves; float32 where there is none."""
    floats = [as_array(p).dtype for p in tree.leaves(params)]
    floats = [real_of(d) for d in floats if dtypes.is_inexact(d)]
    return max(floats, key=lambda d: d.itemsize, default=F32)


def is_inexact(x: Array) -> bool:
    """Whether an array is floating or complex."""
    return dtypes.is_inexact(x.dtype)


@overload
def widen(x: Array) -> Array: ...
@overload
def widen(x: Any) -> Any: ...
def widen(x: Any) -> Any:
    """Converts an array or float to its `wide_dtype`; other arrays and what is no number pass."""
    x = as_array(x) if isinstance(x, (float, complex)) else x
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return x
    wide = wide_dtype(dtype)
    return x if wide == dtype else x.astype(wide)


def as_gradient(g: ArrayLike | None) -> Array | None:
    """Converts a gradient to a wide array; None, for a frozen leaf, passes."""
    if g is None:
        return None
    g = as_array(g)
    return widen(g) if is_inexact(g) else g.astype(F32)


def map_updates(
    f: Callable[..., Any],
    updates: Updates,
    *states: PyTree,
    extras: Sequence[PyTree] = (),
    stateless_leaves: bool = False,
) -> PyTree:
    """Applies `f(gradient, *states, *extras)` to every leaf that is not frozen.

    Without states `f` returns the update. With states it returns (update, *new states), and the
    result is (updates, *new state trees); state leaves keep their shapes and dtypes.

    Args:
        f: function of the wide arrays of one leaf.
        updates: tree of gradients.
        *states: trees of states that `f` renews.
        extras: trees that `f` reads, as the parameters.
        stateless_leaves: whether `f` takes gradients of leaves that have no state.

    Raises:
        TreeError: the structures differ; the message names the paths.
        ShapeError: shapes differ at a leaf; the message names it.
        ArgumentError: a leaf without a state has a gradient, unless `stateless_leaves`.
    """
    gradients, treedef = tree.flatten(updates, is_none)
    names = ["the state"] * len(states) + ["the parameters"] * len(extras)
    others = [
        _aligned(treedef, updates, other, name)
        for other, name in zip((*states, *extras), names, strict=True)
    ]
    count = len(states)
    columns: list[list[Any]] = [[] for _ in range(count + 1)]
    for i, (g, *rest) in enumerate(zip(gradients, *others, strict=True)):
        old = rest[:count]
        g = None if _is_frozen(g, old, rest[count:]) else as_gradient(g)
        if g is None:
            new: Sequence[Any] = (None, *old)
        elif count and not stateless_leaves and all(x is None for x in old):
            raise ArgumentError(
                f"the gradient of params{tree.paths(updates, is_none)[i]} is {g.aval}, but the "
                "state has nothing for it: at init that parameter was None or not floating\n"
                "  give None for its gradient, or call init with the floating parameter"
            )
        else:
            try:
                results = f(g, *[_widened(x) for x in rest])
                u, *kept = results if count else (results,)
                new = (u, *[_kept(k, o) for k, o in zip(kept, old, strict=True)])
            except ShapeError as error:
                text = _shapes(tree.paths(updates, is_none)[i], g, old, rest[count:])
                raise (error if text is None else ShapeError(text)) from None
        for column, x in zip(columns, new, strict=True):
            column.append(x)
    trees = tuple([tree.unflatten(treedef, column) for column in columns])
    return trees if states else trees[0]


def _is_frozen(g: Any, states: Sequence[Any], params: Sequence[Any]) -> bool:
    """Whether a leaf has no gradient, or an integer one because its parameter is not floating."""
    if g is None or is_inexact(as_array(g)):
        return g is None
    of_integers = any(hasattr(p, "dtype") and not is_inexact(p) for p in params)
    return of_integers or (len(states) > 0 and all(x is None for x in states))


def _widened(x: Any) -> Any:
    return widen(x) if hasattr(x, "dtype") else tree.map(widen, x)


def _kept(new: Any, old: Any) -> Any:
    """Converts the new state leaf (or small tree of arrays) to the dtype of the old one."""
    if hasattr(old, "dtype"):
        if new.shape != old.shape:
            raise ShapeError(f"a state leaf of shape {old.shape} became one of {new.shape}")
        return new if new.dtype == old.dtype else new.astype(old.dtype)
    return tree.map(_kept, new, old)


def _shapes(path: str, g: Any, states: Sequence[Any], extras: Sequence[Any]) -> str | None:
    """Describes the shapes that differ at one leaf; None if its arrays have one shape."""
    params = [p for p in extras if hasattr(p, "aval")]
    others = [("the parameter", p) for p in params] or [("the state", s) for s in states]
    unlike = [(name, x) for name, x in others if getattr(x, "shape", g.shape) != g.shape]
    if not unlike:
        return None
    name, x = max(unlike, key=lambda pair: jnp.size(pair[1]))
    return (
        f"the gradient at {path or 'the top'} is {g.aval}, but {name} is {typeof(x)} there\n"
        "  a gradient has its parameter's shape: call init and update with one set of parameters"
    )


def _aligned(treedef: tree.PyTreeDef, updates: Updates, other: PyTree, name: str) -> list[Any]:
    try:
        return treedef.flatten_up_to(other)
    except (ValueError, TypeError) as error:
        text = difference("the gradients", updates, name, other) or str(error)
        raise TreeError(
            f"{text}\n  call init with the parameters whose gradients are given to update"
        ) from None


def difference(name: str, t: PyTree, other_name: str, other: PyTree) -> str | None:
    """Describes how tree `t` differs in structure from tree `other`; None if it does not."""
    mismatch = first_difference(other, t)
    if mismatch is None:
        return None
    have, want = tree.paths(t, is_none), tree.paths(other, is_none)
    # A state may hold several arrays where the gradients have a leaf.
    extra = [p for p in have if not any(w.startswith(p) for w in want)]
    lacking = [w for w in want if not any(w.startswith(p) for p in have)]
    # Paths that begin alike have unlike nodes at one path, which `mismatch` names.
    unlike = any(a.startswith(b) or b.startswith(a) for a in extra for b in lacking)
    if unlike or ": expected" in mismatch:
        return f"{name} and {other_name} differ in structure: {mismatch}"
    words = [
        f"{text} {_several(paths)} that {other_name} {verb}"
        for text, paths, verb in (
            (f"{name} lack", lacking, "have" if other_name.endswith("s") else "has"),
            (f"{name} have", extra, "lack" if other_name.endswith("s") else "lacks"),
        )
        if paths
    ]
    return "; ".join(words) or f"{name} and {other_name} differ in structure: {mismatch}"


def _several(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def init_leaves(f: Callable[[Array], PyTree], params: Params) -> PyTree:
    """Applies `f` to every floating parameter; None for the others, which are frozen."""

    def at(p: Any) -> Any:
        if p is None:
            return None
        p = as_array(p)
        return f(p) if is_inexact(p) else None

    return tree.map(at, params, is_leaf=is_none)


def init_moments(params: Params, value: Number = 0.0, dtype: DTypeLike | None = None) -> PyTree:
    """Returns arrays of `value` shaped as the parameters, in `dtype`, or in float32 or wider."""
    fixed = None if dtype is None else dtypes.dtype(dtype)
    return init_leaves(
        lambda p: jnp.full_like(p, value, dtype=fixed or wide_dtype(p.dtype)), params
    )


def select(pred: Array | bool, on_true: PyTree, on_false: PyTree) -> PyTree:
    """Selects the tree `on_true` if the boolean scalar `pred` holds, else `on_false`.

    Leaves keep the dtypes of `on_false`.
    """

    def pick(b: Any, a: Any) -> Any:
        if a is b:
            return b
        a, b = as_array(a), as_array(b)
        return jnp.where(pred, a if a.dtype == b.dtype else a.astype(b.dtype), b)

    return tree.map(pick, on_false, on_true)


def zero_count() -> Array:
    """Returns an int32 zero, the start of every step counter."""
    return jnp.zeros((), I32)
