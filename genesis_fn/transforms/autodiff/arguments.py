"""The arguments by which a derivative is taken: `argnums`, and their floating-point leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import dtypes, tree
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import typeof
from genesis_fn.transforms.autodiff.linearize import differentiable
from genesis_fn.transforms.staging.api_util import labels_of, name_of


def selected_positions(
    argnums: int | Sequence[int], args: tuple[Any, ...], f: Callable[..., Any]
) -> tuple[int, ...]:
    """The positions that `argnums` names, counted from the front. Raises TypeError for one that the
    call of `f` with `args` does not have."""
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    count = len(args)
    for a in chosen:
        if not -count <= a < count:
            raise TypeError(
                f"argnums={argnums} names an argument that the call of {name_of(f)} with {count} "
                f"positional arguments does not have\n  at {where().describe()}"
            )
    return tuple([a % count for a in chosen])


def on_arguments(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[int, ...], Callable[..., Any], tuple[Any, ...]]:
    """(positions, function of these arguments alone, their values) of a call of `fun`."""
    chosen = selected_positions(argnums, args, fun)

    def f(*values: Any) -> Any:
        full_args = list(args)
        for i, v in zip(chosen, values):
            full_args[i] = v
        return fun(*full_args, **kwargs)

    functools.update_wrapper(f, fun)
    return chosen, f, tuple([args[i] for i in chosen])


def without_tuple(picked: tuple[Any, ...], argnums: int | Sequence[int]) -> Any:
    """The only one of the values where `argnums` is an int, else all of them."""
    return picked[0] if isinstance(argnums, int) else picked


def argument_labels(
    fun: Callable[..., Any], args: tuple[Any, ...], chosen: Sequence[int]
) -> list[str]:
    """What messages call the leaves of the arguments by which a derivative is taken."""
    labels, kept, at = labels_of(fun, args), {}, 0
    for i, a in enumerate(args):
        kept[i] = labels[at : at + len(tree.leaves(a))]
        at += len(kept[i])
    return [label for i in chosen for label in kept[i]]


def differentiable_leaves(
    leaves: Sequence[Any],
    label: Callable[[int], str],
    nonfloat: str,
    holomorphic: bool,
    what: str = "grad",
) -> list[bool]:
    """Which leaves have derivatives. Raises TypeError for a leaf that the transform `what` does not
    take."""
    remedy = {
        "grad": 'pass nonfloat="none" to get None for it, allow_int=True for zeros, or keep it out',
        "jacrev": "pass allow_int=True to get zeros for it, or keep it out",
    }.get(what, "keep it out")
    mask = [differentiable(x) for x in leaves]
    for i, (x, m) in enumerate(zip(leaves, mask)):
        aval = typeof(x)
        if not m and nonfloat == "raise":
            raise TypeError(
                f"{what} needs floating-point inputs, but {label(i)} is {aval}\n"
                f"  at {where().describe()}\n  {remedy} of the differentiated arguments"
            )
        if m and holomorphic and not dtypes.is_complex(aval.dtype):
            raise TypeError(
                f"{what} with holomorphic=True needs complex inputs, but {label(i)} is {aval}\n"
                f"  at {where().describe()}\n  make it complex, as by .astype('complex64')"
            )
        if m and what == "jacfwd" and dtypes.is_complex(aval.dtype) and not holomorphic:
            raise TypeError(
                f"jacfwd of a complex input needs holomorphic=True; {label(i)} is {aval}\n"
                f"  at {where().describe()}\n"
                "  use jacrev, or differentiate its real and imaginary parts"
            )
    return mask
