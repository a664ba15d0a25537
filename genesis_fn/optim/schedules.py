"""Schedules: functions from the number of steps taken to a value, such as a learning rate.

Any such function will do; these are the usual ones. The count is an integer scalar; values are
float32, or float64 for a count in float64.
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
from genesis_fn.optim.annotations import (
    Number,
    Schedule as Schedule,
    StatefulSchedule as StatefulSchedule,
)
from genesis_fn.optim.transforms.hyperparameters import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    WrappedSchedule as WrappedSchedule,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)
from genesis_fn.optim.tree_map_updates import F32, F64


def _float(count: ArrayLike) -> Array:
    """Returns the count as a floating scalar: float32 unless it is float64."""
    count = as_array(count)
    return count if count.dtype == F64 else count.astype(F32)


def constant_schedule(value: Number) -> Schedule:
    """The same value at every step.

        value

    Args:
        value: number or scalar array.

    Returns:
        The schedule: step -> `value` itself.

    >>> optim.schedules.constant_schedule(0.1)(100)
    0.1
    """
    return lambda count: value


def polynomial_schedule(
    init_value: Number,
    end_value: Number,
    power: Number,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """A power of the steps that are left, from `init_value` to `end_value`, then constant.

        (init_value - end_value) (1 - t)**power + end_value,
        with t = (step - transition_begin) / transition_steps limited to [0, 1]

    Args:
        init_value: value at step 0.
        end_value: value from step `transition_begin + transition_steps` on.
        power: positive exponent; 1 is a line.
        transition_steps: number of steps between the two values; <= 0 stays at `init_value`.
        transition_begin: step before which the value stays `init_value`; negative is 0.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    >>> lr = optim.schedules.polynomial_schedule(1.0, 0.0, power=2, transition_steps=10)
    >>> [float(lr(step)) for step in (0, 5, 20)]
    [1.0, 0.25, 0.0]
    """
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
    """A straight line from `init_value` to `end_value`, then constant.

        init_value + (end_value - init_value) t,
        with t = (step - transition_begin) / transition_steps limited to [0, 1]

    Args:
        init_value: value at step 0.
        end_value: value from step `transition_begin + transition_steps` on.
        transition_steps: number of steps between the two values; <= 0 stays at `init_value`.
        transition_begin: step before which the value stays `init_value`; negative is 0.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    >>> lr = optim.schedules.linear_schedule(1.0, 0.0, transition_steps=10)
    >>> [float(lr(step)) for step in (0, 5, 20)]
    [1.0, 0.5, 0.0]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(
    init_value: Number, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """A staircase: the value is multiplied by a factor at each boundary.

        init_value * product of the scales whose boundary <= step

    Args:
        init_value: value at step 0.
        boundaries_and_scales: {step: factor >= 0}; None is constant.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: a factor is negative.

    >>> lr = optim.schedules.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.5})
    >>> [float(lr(step)) for step in (9, 10, 20)]
    [1.0, 0.5, 0.25]
    """
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
    """A staircase of equal stairs.

        init_value * gamma**floor(step / step_size)

    Args:
        init_value: value at step 0.
        step_size: positive number of steps on each stair.
        gamma: factor from stair to stair.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: `step_size` is not positive.

    >>> lr = optim.schedules.step_schedule(1.0, step_size=10, gamma=0.5)
    >>> [float(lr(step)) for step in (9, 10, 20)]
    [1.0, 0.5, 0.25]
    """
    if step_size <= 0:
        raise ArgumentError(f"step_schedule: step_size must be positive, got {step_size}")
    return lambda count: init_value * gamma ** jnp.floor_divide(_float(count), step_size)


def exponential_schedule(init_value: Number, gamma: float) -> Schedule:
    """An exponential decay.

        init_value * gamma**step

    Args:
        init_value: value at step 0.
        gamma: positive factor from step to step.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    >>> lr = optim.schedules.exponential_schedule(1.0, gamma=0.5)
    >>> [float(lr(step)) for step in (0, 1, 2)]
    [1.0, 0.5, 0.25]
    """
    return lambda count: init_value * gamma ** _float(count)


def exponential_decay(
    init_value: Number,
    transition_steps: int,
    decay_rate: Number,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Number | None = None,
) -> Schedule:
    """Exponential decay by `decay_rate` in every `transition_steps` steps, to `end_value`.

        init_value * decay_rate**((step - transition_begin) / transition_steps)

    Args:
        init_value: value at step 0.
        transition_steps: steps in which the value is multiplied by `decay_rate`; <= 0 is constant.
        decay_rate: factor, not negative; 0 is constant; above 1 the value grows.
        transition_begin: step before which the value stays `init_value`; negative is 0.
        staircase: whether the exponent is rounded down.
        end_value: lower bound of the value for `decay_rate` < 1, else upper bound; None: no bound.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    >>> lr = optim.schedules.exponential_decay(1.0, transition_steps=10, decay_rate=0.5)
    >>> [float(lr(step)) for step in (0, 10, 20)]
    [1.0, 0.5, 0.25]
    """
    if transition_steps <= 0 or decay_rate == 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)
    limit = jnp.maximum if end_value is None or decay_rate < 1.0 else jnp.minimum

    def schedule(count: ArrayLike) -> Array:
        done = _float(count) - begin
        whole = jnp.floor_divide if staircase else jnp.divide
        progress = whole(done, transition_steps)
        value = jnp.where(done <= 0, init_value, init_value * decay_rate**progress)
        return value if end_value is None else limit(value, end_value)

    return schedule


def cosine_decay_schedule(
    init_value: Number, decay_steps: int, alpha: Number = 0.0, exponent: Number = 1.0
) -> Schedule:
    """Half a cosine from `init_value` to `alpha * init_value`, then constant.

        init_value ((1 - alpha) (0.5 (1 + cos(pi t)))**exponent + alpha),
        with t = min(step, decay_steps) / decay_steps

    Source: Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", 2016.

    Args:
        init_value: value at step 0.
        decay_steps: positive number of steps of the half cosine.
        alpha: least value, as a fraction of `init_value`.
        exponent: power of the cosine curve.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: `decay_steps` is not positive.

    >>> lr = optim.schedules.cosine_decay_schedule(1.0, decay_steps=10)
    >>> [round(float(lr(step)), 4) for step in (0, 5, 10)]
    [1.0, 0.5, 0.0]
    """
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
    """A cosine between `init_value` and `end_value` that goes on forever.

        end_value + 0.5 (init_value - end_value) (1 + cos(pi step / period))

    Args:
        init_value: value at step 0.
        period: positive number of steps from `init_value` to `end_value`: half a wave.
        end_value: the other extreme.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: `period` is not positive.

    >>> lr = optim.schedules.cosine_annealing_schedule(1.0, period=10)
    >>> [round(float(lr(step)), 4) for step in (0, 5, 10, 20)]
    [1.0, 0.5, 0.0, 1.0]
    """
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
    """Lines or half cosines between values at boundaries, then constant.

        a + (b - a) t for "linear",  b + (a - b) (1 + cos(pi t)) / 2 for "cosine",
        between boundaries of values a and b, t the share of the steps between them that is done

    The value at a boundary is `init_value` times the product of the scales up to it; step 0 is the
    first boundary.
    Args:
        interpolate_type: "linear" or "cosine".
        init_value: value at step 0.
        boundaries_and_scales: {step: factor >= 0}; None is constant.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: a factor is negative, or `interpolate_type` unknown.

    >>> lr = optim.schedules.piecewise_interpolate_schedule("linear", 1.0, {10: 2.0, 20: 0.5})
    >>> [float(lr(step)) for step in (0, 5, 10, 15, 20)]
    [1.0, 1.5, 2.0, 1.5, 1.0]
    """
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
    """One cycle of three lines: up to `peak_value`, back down, and further down at the end.

        peak_value / div_factor -> peak_value -> peak_value / div_factor -> that / final_div_factor
        at the steps 0, floor(pct_start n), floor(pct_final n), n = transition_steps
    Source: Smith & Topin, "Super-convergence: very fast training using large learning rates", 2017.

    Args:
        transition_steps: positive number of steps of the whole cycle.
        peak_value: largest value.
        pct_start: fraction of the steps at which the peak is reached.
        pct_final: fraction of the steps at which the last descent begins.
        div_factor: peak over initial value.
        final_div_factor: initial over final value.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: `transition_steps` is not positive.

    >>> lr = optim.schedules.linear_onecycle_schedule(100, 1.0)
    >>> [round(float(lr(step)), 4) for step in (0, 30, 85, 100)]
    [0.04, 1.0, 0.04, 0.0]
    """
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
    """One cycle of two half cosines: up to `peak_value`, and down to a small value.

        peak_value / div_factor -> peak_value -> peak_value / (div_factor final_div_factor)
        at the steps 0, floor(pct_start n), n = transition_steps
    Source: Smith & Topin, "Super-convergence: very fast training using large learning rates", 2017.

    Args:
        transition_steps: positive number of steps of the whole cycle.
        peak_value: largest value.
        pct_start: fraction of the steps at which the peak is reached.
        div_factor: peak over initial value.
        final_div_factor: initial over final value.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: `transition_steps` is not positive.

    >>> lr = optim.schedules.cosine_onecycle_schedule(100, 1.0)
    >>> [round(float(lr(step)), 4) for step in (0, 30, 65)]
    [0.04, 1.0, 0.5]
    """
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
    """Schedules one after another, each of which counts steps from its own start.

        schedules[i](step - boundaries[i - 1]),  i the number of boundaries <= step;
        schedules[0](step) for i = 0
    Args:
        schedules: n schedules.
        boundaries: n - 1 increasing steps: where the next schedule takes over.

    Returns:
        The schedule: step, an integer scalar -> value of the schedule in charge.

    Raises:
        ArgumentError: the numbers of schedules and boundaries do not fit, or boundaries decrease.

    >>> warmup = optim.schedules.linear_schedule(0.0, 1.0, transition_steps=10)
    >>> lr = optim.schedules.join_schedules([warmup, optim.schedules.constant_schedule(0.5)], [10])
    >>> [float(lr(step)) for step in (0, 5, 10)]
    [0.0, 0.5, 0.5]
    """
    if len(schedules) != len(boundaries) + 1:
        raise ArgumentError(
            f"join_schedules: {len(schedules)} schedules need {len(schedules) - 1} boundaries, "
            f"got {len(boundaries)}"
        )
    steps: list[Any] = [*boundaries]  # traced ones are not compared
    if all(isinstance(step, (int, float)) for step in steps) and steps != sorted(steps):
        raise ArgumentError(f"join_schedules: boundaries must not decrease, got {steps}")

    def schedule(count: ArrayLike) -> Array:
        count = as_array(count)
        value: Any = schedules[0](count)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            value = jnp.where(count < boundary, value, later(count - boundary))
        return value

    return schedule


def warmup_constant_schedule(init_value: Number, peak_value: Number, warmup_steps: int) -> Schedule:
    """A line from `init_value` to `peak_value`, then constant.

        init_value + (peak_value - init_value) min(step / warmup_steps, 1)
    Args:
        init_value: value at step 0.
        peak_value: value from step `warmup_steps` on.
        warmup_steps: number of steps of the line; <= 0 stays at `init_value`.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    >>> lr = optim.schedules.warmup_constant_schedule(0.0, 1.0, warmup_steps=10)
    >>> [float(lr(step)) for step in (0, 5, 20)]
    [0.0, 0.5, 1.0]
    """
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: Number,
    peak_value: Number,
    warmup_steps: int,
    decay_steps: int,
    end_value: Number = 0.0,
    exponent: Number = 1.0,
) -> Schedule:
    """A line to `peak_value`, then half a cosine to `end_value`: the usual one for transformers.

        init_value + (peak_value - init_value) step / warmup_steps, and from `warmup_steps` on
        end_value + (peak_value - end_value) (0.5 (1 + cos(pi t)))**exponent,
        with t = (step - warmup_steps) / (decay_steps - warmup_steps) limited to 1
    Source: Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", 2016, with
    the warm-up of Goyal et al., "Accurate, large minibatch SGD", 2017.

    Args:
        init_value: value at step 0.
        peak_value: value after `warmup_steps` steps.
        warmup_steps: number of steps of the line, >= 0.
        decay_steps: steps of the whole schedule, warm-up included; more than `warmup_steps`.
        end_value: value from step `decay_steps` on; 0 where `peak_value` is 0.
        exponent: power of the cosine curve.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: `decay_steps` is not more than `warmup_steps`.

    >>> lr = optim.schedules.warmup_cosine_decay_schedule(0.0, 1.0, 10, 110)
    >>> [round(float(lr(step)), 4) for step in (0, 5, 10, 60, 110)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
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
    """A line to `peak_value`, then an exponential decay.

        peak_value * decay_rate**((step - warmup_steps - transition_begin) / transition_steps)

    Args:
        init_value: value at step 0.
        peak_value: value after `warmup_steps` steps.
        warmup_steps: number of steps of the line, >= 0.
        transition_steps: steps in which the value is multiplied by `decay_rate`; <= 0 is constant.
        decay_rate: factor, not negative; 0 is constant.
        transition_begin: steps after the warm-up before which the value stays `peak_value`.
        staircase: whether the exponent is rounded down.
        end_value: lower bound of the value for `decay_rate` < 1, else upper bound; None: no bound.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    >>> lr = optim.schedules.warmup_exponential_decay_schedule(0.0, 1.0, 10, 10, 0.5)
    >>> [float(lr(step)) for step in (0, 5, 10, 20)]
    [0.0, 0.5, 1.0, 0.5]
    """
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    fall = exponential_decay(
        peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value
    )
    return join_schedules([rise, fall], [warmup_steps])


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """Warm restarts: several `warmup_cosine_decay_schedule`s one after another.

        the schedule of cycle i at (step - the sum of the `decay_steps` of the cycles before it)
    Source: Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", 2016.

    Args:
        cosine_kwargs: for each cycle the arguments of `warmup_cosine_decay_schedule`, a dict; its
            `decay_steps` are the cycle's length.

    Returns:
        The schedule: step, an integer scalar -> value, a float32 scalar.

    Raises:
        ArgumentError: there is no cycle, or the `decay_steps` of one are not more than its
            `warmup_steps`.

    >>> cycle = {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 10, "decay_steps": 20}
    >>> lr = optim.schedules.sgdr_schedule([cycle, {**cycle, "peak_value": 0.5}])
    >>> [float(lr(step)) for step in (0, 10, 20, 30)]
    [0.0, 1.0, 0.0, 0.5]
    """
    cycles = list(cosine_kwargs)
    ends = list(itertools.accumulate(p["decay_steps"] for p in cycles))
    return join_schedules([warmup_cosine_decay_schedule(**p) for p in cycles], ends[:-1])


def lambda_schedule(init_value: Number, *factors: Schedule) -> Schedule:
    """A value times functions of the step.

        init_value * factor_1(step) * factor_2(step) * ...

    Args:
        init_value: number or scalar array.
        *factors: functions of the step, an integer scalar, that give a number or a scalar array.

    Returns:
        The schedule: step -> the product.

    >>> lr = optim.schedules.lambda_schedule(0.1, lambda step: 0.5**step)
    >>> [lr(step) for step in (0, 1, 2)]
    [0.1, 0.05, 0.025]
    """
    return lambda count: functools.reduce(lambda v, f: v * f(count), factors, init_value)
