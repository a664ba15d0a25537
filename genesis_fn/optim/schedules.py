"""Schedules: functions from the number of steps taken to a value, such as a learning rate.

Any such function will do; these are the usual ones. The count is an integer scalar; values are
float32 (float64 where the count is given as float64).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import as_array
from genesis_fn.optim.annotations import Number, Schedule
from genesis_fn.optim.tree_map_updates import F32, F64


def _float(count: ArrayLike) -> Array:
    """The count as a floating scalar: float32 unless it is wider."""
    count = as_array(count)
    return count if count.dtype == F64 else count.astype(F32)


def constant_schedule(value: Number) -> Schedule:
    """`value` at every step."""
    return lambda count: value


def polynomial_schedule(
    init_value: Number,
    end_value: Number,
    power: Number,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """From `init_value` to `end_value` in `transition_steps` steps after `transition_begin`, as
    (1 - progress)**power; constant if `transition_steps` <= 0."""
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: ArrayLike) -> Array:
        left = 1 - jnp.clip(_float(count) - begin, 0, transition_steps) / transition_steps
        return (init_value - end_value) * (left if power == 1 else left**power) + end_value

    return schedule


def linear_schedule(
    init_value: Number, end_value: Number, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """A straight line from `init_value` to `end_value`, then constant."""
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: Number, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """`init_value` times the product of the scales whose boundary has been reached."""
    steps = sorted((boundaries_and_scales or {}).items())
    _check_scales("piecewise_constant_schedule", steps)

    def schedule(count: ArrayLike) -> Array:
        count = _float(count)
        value = init_value + jnp.zeros_like(count)
        for boundary, factor in steps:
            value = jnp.where(count < boundary, value, factor * value)
        return value

    return schedule


def _check_scales(name: str, steps: Sequence[tuple[int, float]]) -> None:
    for boundary, factor in steps:
        if factor < 0:
            raise ArgumentError(f"{name}: the scale at step {boundary} is negative: {factor}")


def step_schedule(init_value: Number, step_size: int, gamma: float = 0.1) -> Schedule:
    """init_value * gamma**(count // step_size)."""
    if step_size <= 0:
        raise ArgumentError(f"step_schedule: step_size must be positive, got {step_size}")
    return lambda count: init_value * gamma ** jnp.floor(_float(count) / step_size)


def exponential_schedule(init_value: Number, gamma: float) -> Schedule:
    """init_value * gamma**count."""
    return lambda count: init_value * gamma ** _float(count)


def exponential_decay(
    init_value: Number,
    transition_steps: int,
    decay_rate: Number,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Number | None = None,
) -> Schedule:
    """init_value * decay_rate**((count - transition_begin) / transition_steps), to `end_value`.

    With `staircase` the exponent is rounded down. Constant if `transition_steps` <= 0 or
    `decay_rate` is 0.
    """
    if transition_steps <= 0 or decay_rate == 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)
    limit = jnp.maximum if end_value is None or decay_rate < 1.0 else jnp.minimum

    def schedule(count: ArrayLike) -> Array:
        done = _float(count) - begin
        progress = done / transition_steps
        progress = jnp.floor(progress) if staircase else progress
        value = jnp.where(done <= 0, init_value, init_value * decay_rate**progress)
        return value if end_value is None else limit(value, end_value)

    return schedule


def cosine_decay_schedule(
    init_value: Number, decay_steps: int, alpha: Number = 0.0, exponent: Number = 1.0
) -> Schedule:
    """From `init_value` to `alpha * init_value` in `decay_steps` steps along a half cosine
    (Loshchilov & Hutter 2016), raised to `exponent`."""
    if not decay_steps > 0:
        raise ArgumentError(
            f"cosine_decay_schedule: decay_steps must be positive, got {decay_steps!r}"
        )

    def schedule(count: ArrayLike) -> Array:
        progress = jnp.minimum(_float(count), decay_steps) / decay_steps
        curve = 0.5 * (1 + jnp.cos(math.pi * progress))
        curve = curve if exponent == 1.0 else curve**exponent
        return init_value * ((1 - alpha) * curve + alpha)

    return schedule


def cosine_annealing_schedule(init_value: Number, period: int, end_value: Number = 0.0) -> Schedule:
    """A cosine between `init_value` and `end_value`, half a wave per `period`, going on forever."""
    if period <= 0:
        raise ArgumentError(f"cosine_annealing_schedule: period must be positive, got {period}")
    return lambda count: (
        end_value + (init_value - end_value) * 0.5 * (1 + jnp.cos(math.pi * _float(count) / period))
    )


def _linear(start: Number, end: Number, progress: Array) -> Array:
    return (end - start) * progress + start


def _cosine(start: Number, end: Number, progress: Array) -> Array:
    return end + (start - end) / 2.0 * (jnp.cos(math.pi * progress) + 1)


def piecewise_interpolate_schedule(
    interpolate_type: str,
    init_value: Number,
    boundaries_and_scales: Mapping[int, float] | None = None,
) -> Schedule:
    """`init_value` times the product of scales, going "linear" or "cosine" between boundaries."""
    curves = {"linear": _linear, "cosine": _cosine}
    if interpolate_type not in curves:
        raise ArgumentError(f'interpolate_type is "linear" or "cosine", got {interpolate_type!r}')
    curve = curves[interpolate_type]
    steps = sorted((boundaries_and_scales or {}).items())
    _check_scales("piecewise_interpolate_schedule", steps)
    bounds = [0, *[b for b, _ in steps]]
    values = list(itertools.accumulate([init_value, *[s for _, s in steps]], lambda a, b: a * b))

    def schedule(count: ArrayLike) -> Array:
        count = _float(count)
        result = values[-1] + jnp.zeros_like(count)
        for i in reversed(range(len(steps))):
            progress = (count - bounds[i]) / max(bounds[i + 1] - bounds[i], 1)
            part = curve(values[i], values[i + 1], progress)
            result = jnp.where(count < bounds[i + 1], part, result)
        return result

    return schedule


def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: Number,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Up to `peak_value`, down, and further down, in straight lines (Smith & Topin 2017)."""
    if transition_steps <= 0:
        raise ArgumentError(f"linear_onecycle_schedule: transition_steps is {transition_steps}")
    return piecewise_interpolate_schedule(
        "linear",
        peak_value / div_factor,
        {
            int(pct_start * transition_steps): div_factor,
            int(pct_final * transition_steps): 1.0 / div_factor,
            transition_steps: 1.0 / final_div_factor,
        },
    )


def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: Number,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Up to `peak_value` and down along cosines (Smith & Topin 2017)."""
    if transition_steps <= 0:
        raise ArgumentError(f"cosine_onecycle_schedule: transition_steps is {transition_steps}")
    return piecewise_interpolate_schedule(
        "cosine",
        peak_value / div_factor,
        {
            int(pct_start * transition_steps): div_factor,
            int(transition_steps): 1.0 / (div_factor * final_div_factor),
        },
    )


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """The first schedule until the first boundary, then the next, each counting from its start."""
    if len(schedules) != len(boundaries) + 1:
        raise ArgumentError(
            f"join_schedules: {len(schedules)} schedules need {len(schedules) - 1} boundaries, "
            f"got {len(boundaries)}"
        )

    def schedule(count: ArrayLike) -> Array:
        count = as_array(count)
        value: Any = schedules[0](count)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            value = jnp.where(count < boundary, value, later(count - boundary))
        return value

    return schedule


def warmup_constant_schedule(init_value: Number, peak_value: Number, warmup_steps: int) -> Schedule:
    """A line from `init_value` to `peak_value`, then constant."""
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: Number,
    peak_value: Number,
    warmup_steps: int,
    decay_steps: int,
    end_value: Number = 0.0,
    exponent: Number = 1.0,
) -> Schedule:
    """A line to `peak_value`, then a half cosine to `end_value`, `decay_steps` steps in all."""
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    fall = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([rise, fall], [warmup_steps])


def warmup_exponential_decay_schedule(
    init_value: Number,
    peak_value: Number,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: Number,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Number | None = None,
) -> Schedule:
    """A line to `peak_value`, then `exponential_decay`."""
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    fall = exponential_decay(
        peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value
    )
    return join_schedules([rise, fall], [warmup_steps])


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """Several `warmup_cosine_decay_schedule`s one after another (Loshchilov & Hutter 2016)."""
    parts = list(cosine_kwargs)
    ends = list(itertools.accumulate(p["decay_steps"] for p in parts))
    return join_schedules([warmup_cosine_decay_schedule(**p) for p in parts], ends[:-1])


def lambda_schedule(init_value: Number, *factors: Schedule) -> Schedule:
    """init_value times the product of functions of the step."""
    return lambda count: functools.reduce(lambda v, f: v * f(count), factors, init_value)
