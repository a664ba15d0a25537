"""States that a jitted step takes over and returns: one launch, no work for each leaf."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import TrainState
from genesis_fn.backends.cuda.run.donated_state import DonatedState
from genesis_fn.core import errors
from genesis_fn.core.device import using_device
from genesis_fn.core.train_state import Memory

COUNT = 5


@pytest.fixture(autouse=True)
def place():
    with using_device(programs.PLACE):
        yield


def start() -> TrainState:
    params = {f"w{i}": gnp.full((4, 3), float(i), "float32") for i in range(COUNT)}
    return TrainState(params=params, m=g.tree.map(gnp.zeros_like, params), count=gnp.array(0))


def step(state, x):
    m = {k: 0.5 * v + x for k, v in state.m.items()}
    params = {k: v - 0.1 * m[k] for k, v in state.params.items()}
    return state.replace(params=params, m=m, count=state.count + 1), gnp.sum(x)


def expected(steps: int) -> dict[str, np.ndarray]:
    params = {f"w{i}": np.full((4, 3), float(i), np.float32) for i in range(COUNT)}
    m = 0.0
    for _ in range(steps):
        m = np.float32(0.5 * m + 1)
        params = {k: v - np.float32(0.1) * m for k, v in params.items()}
    return params


def check(state: TrainState, steps: int) -> None:
    assert int(state.count) == steps
    for k, v in expected(steps).items():
        np.testing.assert_allclose(np.asarray(state.params[k]), v, rtol=1e-5)


@pytest.fixture
def fast(monkeypatch) -> list[bool]:
    """Whether each call that carried a state had nothing to do for its leaves."""
    calls: list[bool] = []
    run = DonatedState.run

    def counted(self, state, others):
        memory, results = run(self, state, others)
        if type(state) is Memory:
            calls.append(memory is state)
        return memory, results

    monkeypatch.setattr(DonatedState, "run", counted)
    g.clear_caches()  # a program of a test before holds the method that it found
    return calls


def test_steps_hand_the_memory_on(fast) -> None:
    f = g.jit(step, donate_argnums=0)
    state, x = start(), gnp.ones((3,))
    addresses = [a.data.address for a in g.tree.leaves(state)]
    for _ in range(6):
        old, (state, total) = state, f(state, x)
        assert float(total) == 3.0
        with pytest.raises(errors.DonatedError, match="donated to step"):
            np.asarray(old.params["w1"])
    assert fast == [True] * 5, "the first call has leaves"
    assert type(state._memory) is Memory
    check(state, 6)
    assert [a.data.address for a in g.tree.leaves(state)] == addresses


def test_states_that_were_looked_at(fast) -> None:
    f = g.jit(step, donate_argnames="state")
    state, x = start(), gnp.ones((3,))
    for i in range(5):
        state, _ = f(state, x)
        if i % 2:
            check(state, i + 1)
            kept = state.params["w2"]
    with pytest.raises(errors.DonatedError, match="w2"):
        np.asarray(kept)
    check(state, 5)


def test_a_view_that_somebody_holds_is_not_overwritten() -> None:
    f = g.jit(step, donate_argnums=0)
    state, x = start(), gnp.ones((3,))
    for _ in range(3):
        state, _ = f(state, x)
    view = g.jit(lambda w: w.reshape(12))(state.params["w1"])
    values = np.array(view)
    state, _ = f(state, x)
    np.testing.assert_array_equal(np.asarray(view), values)
    check(state, 4)
    state, _ = f(state, x)
    check(state, 5)


def test_two_states_and_other_inputs(fast) -> None:
    f = g.jit(step, donate_argnums=0)
    a, b = start(), start()
    for _ in range(4):
        x = gnp.ones((3,))  # its memory moves, its values do not
        a, _ = f(a, x)
        b, total = f(b, np.ones(3, np.float32))
        assert float(total) == 3.0
    check(a, 4)
    check(b, 4)


def test_a_large_result_is_the_callers_own(fast) -> None:
    f = g.jit(lambda s, x: (s.replace(w=s.w + 1), x * gnp.sum(s.w)), donate_argnums=0)
    state, x = TrainState(w=gnp.zeros((3,))), gnp.ones((600, 600))
    results = []
    for _ in range(6):
        state, y = f(state, x)
        results.append(y)
    assert [float(y[5, 5]) for y in results] == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def test_states_that_change_shape_or_are_used_twice_are_refused() -> None:
    f = g.jit(step, donate_argnums=0)
    state, x = start(), gnp.ones((3,))
    for _ in range(3):
        state, _ = f(state, x)
    f(state, x)
    with pytest.raises(
        errors.DonatedError, match=r"a state was donated to step .*test_train_state"
    ):
        f(state, x)
    other = TrainState(params=start().params, m=start().m, count=gnp.array(0.0))
    other, _ = f(other, x)
    assert float(other.count) == 1.0 and other.count.dtype == np.float32


def test_a_step_that_swaps_parts() -> None:
    f = g.jit(lambda s: s.replace(a=s.b, b=s.a + 1), donate_argnums=0)
    s = TrainState(a=gnp.zeros(3), b=gnp.ones(3))
    for _ in range(4):
        s = f(s)
    np.testing.assert_array_equal(np.asarray(s.a), [2, 2, 2])
    np.testing.assert_array_equal(np.asarray(s.b), [3, 3, 3])
