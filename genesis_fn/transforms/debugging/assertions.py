"""assert_: a condition on traced values that is checked while the program runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import Primitive, bind, typeof
from genesis_fn.core.types.annotations import ArrayLike, PyTree
from genesis_fn.primitives.factories import move_batch, no_tangent
from genesis_fn.transforms.custom.callback import (
    Formatted,
    HostFunction,
    check_format,
    split_arrays,
)


def failure(
    values: Sequence[np.ndarray], function: HostFunction, line: str, lead: int
) -> errors.AssertionFailed | None:
    """Return the error for a condition (the first value) that is false somewhere, or None.

    The first `lead` dimensions of every value are batches of vmap: the message is about the first
    example that failed.
    """
    pred = values[0]
    if pred.all():
        return None
    at = tuple(np.argwhere(~pred)[0])
    text = function.called([v[at[:lead]] for v in values[1:]])
    message: Any = function.f
    return message.error(first_failure(text, at, lead, pred.shape, line))


def first_failure(
    text: str, at: Sequence[Any], lead: int, shape: tuple[int, ...], line: str
) -> str:
    """The message `text` with where a condition of this shape is false first: at element `at`, of
    which the first `lead` positions say the example."""
    example, element = at[:lead], at[lead:]
    if element:
        text += f" (first at element {tuple(map(int, element))} of {shape[lead:]})"
    if example:
        text += f" (example {tuple(map(int, example))} of the batch)"
    return f"{text}\n  at {line}"


def _shape(pred: Aval, *avals: Any, **_: Any) -> list[Aval]:
    return []


def _batch(size: int, xs: Sequence[Any], dims: Sequence[Any], *, lead: int, **params: Any) -> Any:
    bind(assert_p, *[move_batch(x, d, 0, size) for x, d in zip(xs, dims)], lead=lead + 1, **params)
    return [], []


assert_p = Primitive("assert", _shape, multi=True, effect=True, batch=_batch)
assert_p.linearize = no_tangent(assert_p)


def assert_(
    pred: ArrayLike, message: str = "assertion failed", *args: PyTree, **kwargs: PyTree
) -> None:
    """Raise AssertionFailed with the caller's line if `pred` is not all true when the program runs.

    In a `cond` or `while_loop` under `vmap` only the examples that are active there count.

    Args:
        pred: boolean array or bool.
        message: format string with a field for each of the further arguments.
        *args, **kwargs: pytrees that the message's fields name.

    Raises:
        TypeError: `pred` is not boolean.
        ValueError: fields of `message` and arguments do not fit each other.

    >>> gf.debug.assert_(jnp.array(True), "least: {m}", m=jnp.array(3))
    >>> gf.debug.assert_(jnp.array([1, -1]) > 0, "not positive")
    Traceback (most recent call last):
        ...
    genesis_fn.core.errors.AssertionFailed: not positive (first at element (1,) of (2,))
    ...
    """
    pred = as_array(pred)
    if typeof(pred).dtype != dtypes.BOOL:
        raise TypeError(
            f"assert_ takes a boolean condition, got {typeof(pred)}\n  at {where().describe()}"
        )
    check_format(message, args, kwargs, "debug.assert_(x > 0, 'x = {x}', x=x)")
    arrays, fixed, in_tree = split_arrays(args, kwargs)
    function = HostFunction(Formatted(message), in_tree, fixed, None)
    bind(assert_p, pred, *arrays, function=function, line=where().describe(), lead=0)
