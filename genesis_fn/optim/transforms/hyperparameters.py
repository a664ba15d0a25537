"""`inject_hyperparams`: an optimizer's numbers as arrays of its state; schedules with a state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from genesis_fn import Array, DTypeLike, dtypes
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import (
    Number,
    OptState,
    Params,
    Schedule,
    StatefulSchedule,
    Updates,
)
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.tree_map_updates import wide_dtype, widest_float, zero_count


class InjectHyperparamsState(NamedTuple):
    """Steps taken, the hyperparameters used, the schedules' states, the inner state."""

    count: Any
    hyperparams: dict[str, Any]
    hyperparams_states: dict[str, Any]
    inner_state: OptState


InjectStatefulHyperparamsState = InjectHyperparamsState


class WrappedScheduleState(NamedTuple):
    """Steps taken."""

    count: Any


class WrappedSchedule:
    """Wraps a function of the step as a schedule with a state of its own.

    Args:
        schedule_fn: schedule: function of the step, an int32 scalar.

    >>> schedule = optim.WrappedSchedule(lambda step: 0.5**step)
    >>> state = schedule.update(schedule.init())
    >>> schedule(state)
    Array(0.5, dtype=float32)
    """

    def __init__(self, schedule_fn: Schedule) -> None:
        self.schedule_fn = schedule_fn

    def init(self) -> WrappedScheduleState:
        """Returns the state before the first step."""
        return WrappedScheduleState(zero_count())

    def update(self, state: WrappedScheduleState, **extra: Any) -> WrappedScheduleState:
        """Returns the state of the next step."""
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra: Any) -> Number:
        return self.schedule_fn(state.count)


def inject_hyperparams(
    inner_factory: Callable[..., base.GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., base.GradientTransformationExtraArgs]:
    """Keeps an optimizer's numbers in the state, as `state.hyperparams["learning_rate"]`.

    They can be changed between steps without a new compilation (`optim.tree.set`). Schedules among
    the arguments are evaluated at every step.

    Args:
        inner_factory: function that returns a transformation, as `optim.adam`.
        static_args: names of arguments that stay constants, as bools and what is not a number do.
        hyperparam_dtype: dtype of the numbers; None: the parameters' widest, and at least float32.

    Returns:
        The function that takes the arguments of `inner_factory`.

    Raises:
        ArgumentError: `static_args` names no argument.

    >>> tx = optim.inject_hyperparams(optim.sgd)(learning_rate=0.1)
    >>> state = tx.init(jnp.zeros(2))
    >>> state.hyperparams["learning_rate"]
    Array(0.1, dtype=float32)
    """
    constant = {static_args} if isinstance(static_args, str) else {*static_args}
    signature = inspect.signature(inner_factory)
    unknown = constant - {*signature.parameters}
    if unknown:
        raise ArgumentError(
            f"inject_hyperparams: static_args {sorted(unknown)} are no parameters of "
            f"{getattr(inner_factory, '__name__', inner_factory)}, which has "
            f"{list(signature.parameters)}"
        )

    @functools.wraps(inner_factory)
    def wrapped(*args: Any, **kwargs: Any) -> base.GradientTransformationExtraArgs:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        schedules: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if name in constant or isinstance(value, bool):
                others[name] = value
            elif isinstance(value, StatefulSchedule):
                schedules[name] = value
            elif callable(value):
                schedules[name] = WrappedSchedule(value)  # pyright: ignore[reportArgumentType]
            elif isinstance(value, (int, float, np.ndarray, np.generic, Array)):
                numbers[name] = value
            else:
                others[name] = value

        def convert(x: Any, dtype: Any) -> Any:
            if isinstance(x, (float, np.floating)):
                return as_array(float(x), dtypes.dtype(dtype))
            x = as_array(x)
            return x.astype(dtype) if dtypes.is_float(x.dtype) else x

        def init(params: Params) -> InjectHyperparamsState:
            dtype = hyperparam_dtype
            if dtype is None:
                dtype = wide_dtype(widest_float(params))
            states = {k: s.init() for k, s in schedules.items()}
            values = {k: convert(v, dtype) for k, v in numbers.items()}
            values |= {k: convert(s(states[k]), dtype) for k, s in schedules.items()}
            inner = inner_factory(**others, **values)
            return InjectHyperparamsState(zero_count(), values, states, inner.init(params))

        def update(
            updates: Updates,
            state: InjectHyperparamsState,
            params: Params | None = None,
            **extra: Any,
        ) -> tuple[Updates, InjectHyperparamsState]:
            values = {k: as_array(v) for k, v in state.hyperparams.items()}
            states = dict(state.hyperparams_states)
            for k, s in schedules.items():
                values[k] = convert(s(states[k], **extra), state.hyperparams[k].dtype)
                states[k] = s.update(states[k], **extra)
            inner = base.with_extra_args_support(inner_factory(**others, **values))
            updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
            count = safe_increment(state.count)
            return updates, InjectHyperparamsState(count, values, states, inner_state)

        return base.GradientTransformationExtraArgs(init, update, state=InjectHyperparamsState)

    return wrapped


inject_stateful_hyperparams = inject_hyperparams
