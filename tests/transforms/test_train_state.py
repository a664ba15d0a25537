"""TrainState: named pytrees as one frozen value."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import TrainState
from genesis_fn.io import checkpoint


def state() -> TrainState:
    params = {"b": gnp.arange(3.0), "a": [gnp.ones((2, 2)), gnp.zeros(2)]}
    return TrainState(params=params, opt={"m": g.tree.map(lambda x: x * 0.5, params)}, step=0)


def same(a, b) -> None:
    leaves, structure = g.tree.flatten(a)
    others, other = g.tree.flatten(b)
    assert structure == other
    for x, y in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_parts_come_back_as_they_were() -> None:
    s = state()
    same(s.params, {"b": gnp.arange(3.0), "a": [gnp.ones((2, 2)), gnp.zeros(2)]})
    assert s.step == 0 and list(s.as_dict()) == ["params", "opt", "step"]
    same(s.replace(step=3).as_dict(), s.as_dict() | {"step": 3})
    assert repr(s) == "<TrainState params: 3 leaves, opt: 3 leaves, step: 1 leaves>"


def test_it_is_frozen_and_names_what_it_has() -> None:
    s = state()
    with pytest.raises(AttributeError, match=r"use state.replace\(step=...\)"):
        s.step = 1
    with pytest.raises(AttributeError, match="frozen"):
        del s.step
    with pytest.raises(AttributeError, match="no part 'parms'; its parts are params, opt, step"):
        _ = s.parms
    with pytest.raises(TypeError, match="no part 'x'"):
        s.replace(x=1)
    with pytest.raises(TypeError, match="by name"):
        TrainState()
    with pytest.raises(TypeError, match="cannot be named 'replace'"):
        TrainState(replace=1)
    with pytest.raises(TypeError, match="as_dict"):
        list(s)


def test_it_is_a_pytree() -> None:
    s = state()
    doubled = g.tree.map(lambda x: x * 2, s)
    assert type(doubled) is TrainState
    same(doubled.params, g.tree.map(lambda x: x * 2, s.params))
    ways = [path for path, _ in g.tree.leaves_with_path(s)]
    paths = list(map(g.tree.keystr, ways))
    assert paths[:2] == [".params['a'][0]", ".params['a'][1]"] and paths[-1] == ".step"
    plain = [
        g.tree.keystr(path, simple=True, separator=".") for path, _ in g.tree.leaves_with_path(s)
    ]
    assert plain[:3] == ["params.a.0", "params.a.1", "params.b"] and plain[-1] == "step"
    assert copy.copy(s) is s
    same(pickle.loads(pickle.dumps(s)), s)


def test_checkpoints_hold_it(tmp_path) -> None:
    s = state().replace(step=gnp.array(4))
    checkpoint.save(tmp_path, 4, s)
    restored, step, _ = checkpoint.restore(tmp_path, g.tree.map(lambda x: x * 0, s))
    assert step == 4 and type(restored) is TrainState
    same(restored, s)


def test_transforms_take_it() -> None:
    s = state().replace(step=gnp.array(1.0))
    gradient = g.grad(lambda s: gnp.sum(s.params["b"] ** 2) * s.step)(s)
    assert type(gradient) is TrainState
    np.testing.assert_allclose(np.asarray(gradient.params["b"]), [0, 2, 4])
    np.testing.assert_allclose(float(gradient.step), 5)


def test_jit_returns_it() -> None:
    f = g.jit(lambda s, x: (s.replace(step=s.step + 1), gnp.sum(s.params["b"]) * x))
    s = state()
    for i in range(3):
        s, y = f(s, 2.0)
        assert int(s.step) == i + 1 and float(y) == 6.0
    same(s.params, state().params)


def test_many_results_leave_the_collector_as_it_was() -> None:
    f = g.jit(lambda x: [x + i for i in range(70)])
    x = gnp.arange(3.0)
    for collects in (True, False, True):
        gc.enable() if collects else gc.disable()
        for _ in range(2):
            assert float(f(x)[69][2]) == 71.0
            assert gc.isenabled() is collects
