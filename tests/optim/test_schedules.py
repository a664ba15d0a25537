"""Schedules against optax's over many steps, in float64 and float32."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import optim

CASES = [
    ("constant_schedule", (0.3,), {}),
    ("linear_schedule", (0.1, 1.0, 40), {"transition_begin": 7}),
    ("linear_schedule", (0.1, 1.0, 0), {}),
    ("polynomial_schedule", (1.0, 0.1, 2.5, 50), {"transition_begin": 5}),
    ("piecewise_constant_schedule", (1.0, {10: 0.5, 40: 0.2}), {}),
    ("piecewise_interpolate_schedule", ("linear", 1.0, {10: 0.5, 40: 3.0}), {}),
    ("piecewise_interpolate_schedule", ("cosine", 1.0, {10: 0.5, 40: 3.0}), {}),
    ("exponential_decay", (1.0, 10, 0.9), {}),
    ("exponential_decay", (1.0, 10, 0.5), {"staircase": True, "transition_begin": 3}),
    ("exponential_decay", (1.0, 10, 0.5), {"end_value": 0.1}),
    ("exponential_decay", (1.0, 10, 1.5), {"end_value": 5.0}),
    ("cosine_decay_schedule", (1.0, 60), {"alpha": 0.1}),
    ("cosine_decay_schedule", (1.0, 60), {"exponent": 2.0}),
    ("warmup_constant_schedule", (0.0, 1.0, 10), {}),
    ("warmup_cosine_decay_schedule", (0.0, 1.0, 10, 80, 0.05), {}),
    ("warmup_exponential_decay_schedule", (0.0, 1.0, 10, 20, 0.7), {"end_value": 0.1}),
    ("linear_onecycle_schedule", (90, 1.0), {}),
    ("cosine_onecycle_schedule", (90, 1.0), {}),
    (
        "sgdr_schedule",
        (
            [
                {"init_value": 0.0, "peak_value": p, "warmup_steps": 5, "decay_steps": 30}
                for p in (1.0, 0.5, 0.25)
            ],
        ),
        {},
    ),
]


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-9), (np.float32, 1e-6)])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]} {c[2] or ''}")
def test_schedule(case: tuple, dtype: type, limit: float) -> None:
    name, args, kwargs = case
    steps = np.arange(100)
    mine = getattr(optim, name)(*args, **kwargs)
    got = np.array([float(np.asarray(mine(jnp.asarray(s, dtype=dtype)))) for s in steps])
    with jax.enable_x64(True):
        theirs = getattr(optax, name)(*args, **kwargs)
        want = np.array([float(theirs(jax.numpy.asarray(s))) for s in steps])
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit * np.abs(want).max())


def test_counts_may_be_python_ints_and_int32() -> None:
    schedule = optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 80)
    for step in (0, 3, 10, 50, 100):
        by_int, by_array = schedule(step), schedule(jnp.asarray(step))
        assert by_array.dtype == np.float32
        assert float(by_int) == float(by_array)


@pytest.mark.parametrize("step", [0, 9, 10, 25, 99])
def test_pytorch_style_schedules(step: int) -> None:
    count = jnp.asarray(step, dtype=np.float64)
    assert float(optim.step_schedule(0.5, 10, 0.1)(count)) == pytest.approx(
        0.5 * 0.1 ** (step // 10)
    )
    assert float(optim.exponential_schedule(0.5, 0.97)(count)) == pytest.approx(0.5 * 0.97**step)
    annealed = 0.1 + 0.4 * (1 + np.cos(np.pi * step / 20)) / 2
    assert float(optim.cosine_annealing_schedule(0.5, 20, 0.1)(count)) == pytest.approx(annealed)
    product = optim.lambda_schedule(0.5, lambda s: 1 / (1 + s), lambda s: s + 2)
    assert float(product(count)) == pytest.approx(0.5 * (step + 2) / (1 + step))


def test_errors() -> None:
    with pytest.raises(ValueError, match="decay_steps must be positive"):
        optim.cosine_decay_schedule(1.0, 0)
    with pytest.raises(ValueError, match="scale at step 3 is negative"):
        optim.piecewise_constant_schedule(1.0, {3: -1.0})
    with pytest.raises(ValueError, match='"linear" or "cosine"'):
        optim.piecewise_interpolate_schedule("cubic", 1.0)
    with pytest.raises(ValueError, match="2 schedules need 1 boundaries, got 2"):
        optim.join_schedules([optim.constant_schedule(1.0)] * 2, [3, 5])
    with pytest.raises(ValueError, match="step_size must be positive"):
        optim.step_schedule(1.0, 0)
    with pytest.raises(ValueError, match="transition_steps is 0"):
        optim.cosine_onecycle_schedule(0, 1.0)
