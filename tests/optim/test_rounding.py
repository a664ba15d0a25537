"""Steps below the precision of parameters: stochastic rounding, and the warning of lost ones."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import optim, tree
from genesis_fn.transforms.jitting import jit

N = 20000


def rounded(start: float, step: float, dtype: str, key: int = 0) -> np.ndarray:
    """N parameters after one step, as float64."""
    params = {"w": jnp.full(N, start, dtype)}
    tx = optim.stochastic_round(key)
    updates, _ = tx.update({"w": jnp.full(N, step, "float32")}, tx.init(params), params)
    return np.asarray(optim.apply_updates(params, updates)["w"]).astype(np.float64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize(
    "start, step", [(1.0, -1e-3), (1.0, 2e-3), (-3.0, 1e-4), (0.0, 3.3e-6), (0.5, 1.25), (0.0, 0.0)]
)
def test_the_expectation_is_the_exact_sum(dtype: str, start: float, step: float) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    exact = float(np.float32(start) + np.float32(step))
    got = rounded(start, step, dtype)
    every = np.arange(2 ** (8 * kind.itemsize), dtype=f"u{kind.itemsize}").view(kind)
    every = every.astype(np.float32)
    every = every[np.isfinite(every)].astype(np.float64)
    below, above = every[every <= exact].max(), every[every >= exact].min()
    assert set(np.unique(got)) <= {below, above}
    # Draws of two values: five standard errors.
    spread = np.sqrt(max((exact - below) * (above - exact), 0.0) / N)
    assert abs(got.mean() - exact) <= 5 * spread + 1e-7 * abs(exact)


def test_draws_follow_the_key_and_the_step() -> None:
    np.testing.assert_array_equal(
        rounded(1.0, 1e-3, "bfloat16", 1), rounded(1.0, 1e-3, "bfloat16", 1)
    )
    assert (rounded(1.0, 1e-3, "bfloat16", 1) != rounded(1.0, 1e-3, "bfloat16", 2)).mean() > 0.1


def test_beyond_the_greatest_number_and_nan() -> None:
    params = {"w": jnp.array([65504.0, 1.0, jnp.nan], "float16"), "frozen": None}
    tx = optim.stochastic_round()
    steps = {"w": jnp.array([1e9, jnp.nan, 1.0], "float32"), "frozen": None}
    updates, _ = tx.update(steps, tx.init(params), params)
    got = np.asarray(optim.apply_updates(params, updates)["w"])
    assert np.isinf(got[0]) and np.isnan(got[1:]).all()


@pytest.mark.parametrize("make", [optim.sgd, optim.adam, optim.adamw])
def test_small_steps_move_parameters_in_a_jitted_loop(make: object) -> None:
    tx = make(1e-4, stochastic_round=True)
    plain = make(1e-4)
    params = {"w": jnp.ones(512, "bfloat16"), "wide": jnp.ones(3)}
    gradients = tree.map(jnp.ones_like, params)

    def run(tx: optim.GradientTransformation) -> tuple:
        @jit
        def step(params: dict, state: tuple) -> tuple:
            updates, state = tx.update(gradients, state, params)
            return optim.apply_updates(params, updates), state

        now, state = params, tx.init(params)
        for _ in range(50):
            now, state = step(now, state)
        return now, len(step.traces)

    (moved, traces), (same, _) = run(tx), run(plain)
    assert traces == 1
    wanted = float(np.asarray(same["wide"])[0])
    assert float(np.asarray(same["w"]).astype(np.float32).mean()) == 1.0
    assert abs(float(np.asarray(moved["w"]).astype(np.float32).mean()) - wanted) < 1e-3
    # Parameters of full precision are not touched.
    np.testing.assert_array_equal(np.asarray(moved["wide"]), np.asarray(same["wide"]))


def test_lost_steps_are_told_of_once() -> None:
    def run(learning_rate: float, dtype: str) -> tuple:
        tx = optim.chain(optim.sgd(learning_rate), optim.warn_of_lost_steps())
        params = {"w": jnp.ones(64, dtype), "frozen": None}
        state = tx.init(params)

        @jit
        def step(params: dict, state: tuple) -> tuple:
            steps = {"w": jnp.ones(64, dtype), "frozen": None}
            updates, state = tx.update(steps, state, params)
            return optim.apply_updates(params, updates), state

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                params, state = step(params, state)
        found = [w for w in caught if w.category is optim.LostStepsWarning]
        return found, float(optim.describe(state)["lost_steps"])

    found, share = run(1e-4, "bfloat16")
    assert len(found) == 1 and share == 1.0
    message = str(found[0].message)
    assert len(message.splitlines()) <= 6 and "test_rounding.py:" in message
    assert "with_master" in message and "stochastic_round=True" in message
    assert run(1e-4, "float32") == ([], 0.0)
    assert run(0.1, "bfloat16") == ([], 0.0)
