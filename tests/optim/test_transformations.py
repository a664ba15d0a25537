"""States, dtypes, structure, jit; chains, masks, wrappers, descriptions and errors."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.core import tree
from genesis_fn.core.errors import TreeError
from genesis_fn.optim.optimizers import alias
from genesis_fn.transforms.autodiff.derivatives import grad, value_and_grad
from genesis_fn.transforms.jitting import jit
from tests.public.names import exported

ALL = {
    name: make
    for name, make in {
        "adabelief": lambda: optim.adabelief(0.1),
        "adadelta": lambda: optim.adadelta(30.0, weight_decay=1e-3),
        "adafactor": lambda: optim.adafactor(0.3, min_dim_size_to_factor=2, momentum=0.5),
        "adagrad": lambda: optim.adagrad(1.0),
        "adam": lambda: optim.adam(0.1),
        "adamax": lambda: optim.adamax(0.1),
        "adamaxw": lambda: optim.adamaxw(0.1),
        "adamw": lambda: optim.adamw(0.1),
        "adan": lambda: optim.adan(0.1),
        "amsgrad": lambda: optim.amsgrad(0.1),
        "fromage": lambda: optim.fromage(0.02),
        "lamb": lambda: optim.lamb(0.02),
        "lars": lambda: optim.lars(3.0),
        "lion": lambda: optim.lion(optim.exponential_decay(0.1, 10, 0.8)),
        "muon": lambda: optim.muon(optim.exponential_decay(0.1, 10, 0.8)),
        "nadam": lambda: optim.nadam(0.1),
        "nadamw": lambda: optim.nadamw(0.1),
        "novograd": lambda: optim.novograd(0.05),
        "optimistic_adam_v2": lambda: optim.optimistic_adam_v2(0.03),
        "optimistic_gradient_descent": lambda: optim.optimistic_gradient_descent(0.1),
        "prodigy": lambda: optim.prodigy(estim_lr0=1e-2),
        "radam": lambda: optim.radam(0.1),
        "rmsprop": lambda: optim.rmsprop(0.03, centered=True, momentum=0.5),
        "rprop": lambda: optim.rprop(0.05),
        "schedule_free_adamw": lambda: optim.schedule_free_adamw(0.2, warmup_steps=5),
        "schedule_free_sgd": lambda: optim.schedule_free_sgd(0.3),
        "sgd": lambda: optim.sgd(0.1, momentum=0.9, nesterov=True),
        "sign_sgd": lambda: optim.sign_sgd(optim.exponential_decay(0.1, 10, 0.8)),
        "signum": lambda: optim.signum(optim.exponential_decay(0.1, 10, 0.8)),
        "sm3": lambda: optim.sm3(0.5),
        "yogi": lambda: optim.yogi(0.3),
    }.items()
}


def _params(dtype: Any = jnp.float32) -> dict:
    return {
        "w": jnp.asarray([[1.0, -2.0], [0.5, 3.0]], dtype=dtype),
        "b": jnp.asarray([2.0, -1.0], dtype=dtype),
    }


def _loss(params: Any) -> Any:
    w, b = params["w"].astype(jnp.float32), params["b"].astype(jnp.float32)
    return jnp.sum((w - 0.25) ** 2) + jnp.sum((b + 0.5) ** 2)


def _specs(t: Any) -> list:
    return [(path, x.shape, x.dtype) for path, x in zip(tree.paths(t), tree.leaves(t), strict=True)]


@pytest.mark.parametrize("name", ALL)
def test_converges_on_a_quadratic(name: str) -> None:
    tx = ALL[name]()
    params = _params()
    state = tx.init(params)
    structure, specs = tree.structure(state), _specs(state)

    @jit
    def step(params: Any, state: Any) -> tuple:
        grads = grad(_loss)(params)
        updates, state = tx.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    start = float(_loss(params))
    for _ in range(150):
        params, state = step(params, state)
    assert tree.structure(state) == structure and _specs(state) == specs
    final = optim.schedule_free_eval_params(state, params) if hasattr(state, "z") else params
    assert float(_loss(final)) < 0.05 * start


@pytest.mark.parametrize("name", ALL)
def test_jit_equals_eager_and_bfloat16_states_are_float32(name: str) -> None:
    tx = ALL[name]()
    params = _params(jnp.bfloat16)
    grads = tree.map(lambda p: 0.5 * p, params)
    state = tx.init(params)
    for path, x in zip(tree.paths(state), tree.leaves(state), strict=True):
        if "params0" not in path:
            assert x.dtype in (np.float32, np.int32, np.bool_), path
    specs = _specs(state)
    jitted = jit(tx.update)
    eager_state = jit_state = state
    for _ in range(3):
        a, eager_state = tx.update(grads, eager_state, params)
        b, jit_state = jitted(grads, jit_state, params)
        assert _specs(a) == _specs(b)
        for x, y in zip(tree.leaves((a, eager_state)), tree.leaves((b, jit_state)), strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=1e-7)
    assert _specs(eager_state) == _specs(jit_state) == specs
    new = optim.apply_updates(params, a)
    assert [x.dtype for x in tree.leaves(new)] == [x.dtype for x in tree.leaves(params)]


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "adafactor", "lion"])
def test_integer_and_missing_leaves_are_frozen(name: str) -> None:
    tx = ALL[name]()
    params = {**_params(), "step": jnp.asarray([1, 2]), "nothing": None}
    state = tx.init(params)
    grads = grad(lambda p: _loss(p), nonfloat="none")(params)
    assert grads["step"] is None
    updates, state = jit(tx.update)(grads, state, params)
    assert updates["step"] is None
    new = optim.apply_updates(params, updates)
    assert new["step"].tolist() == [1, 2] and new["nothing"] is None
    assert float(_loss(new)) < float(_loss(params))
    shapes = {x.shape for p, x in zip(tree.paths(state), tree.leaves(state), strict=True)}
    assert all("step']" not in p for p in tree.paths(state)) and shapes
    # A float leaf without a gradient keeps its parameter and its state.
    frozen, _ = tx.update({**grads, "w": None}, state, params)
    assert frozen["w"] is None


def test_second_update_does_not_retrace() -> None:
    tx, traces = optim.adamw(optim.linear_schedule(0.1, 0.0, 10)), []

    @jit
    def step(params: Any, state: Any) -> tuple:
        traces.append(1)
        updates, state = tx.update(params, state, params)
        return optim.apply_updates(params, updates), state

    params = _params()
    state = tx.init(params)
    for _ in range(4):
        params, state = step(params, state)
    assert len(traces) == 1


def test_optimization_can_be_differentiated() -> None:
    def after(lr: Any) -> Any:
        tx, params = optim.adam(lr, eps_root=1e-8), _params()
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(grad(_loss)(params), state, params)
            params = optim.apply_updates(params, updates)
        return _loss(params)

    h = 1e-2
    slope = float(grad(after)(jnp.asarray(0.1)))
    numeric = (float(after(jnp.asarray(0.1 + h))) - float(after(jnp.asarray(0.1 - h)))) / (2 * h)
    assert slope == pytest.approx(numeric, rel=1e-2)


# ---- chains ----


def test_chain_is_its_parts_in_order() -> None:
    params = _params()
    grads = grad(_loss)(params)
    parts = [optim.clip_by_global_norm(1.0), optim.scale_by_adam(), optim.scale(-0.1)]
    tx = optim.chain(*parts)
    got, state = tx.update(grads, tx.init(params), params)
    want = grads
    for part, s in zip(parts, tx.init(params), strict=True):
        want, _ = part.update(want, s, params)
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert type(state) is tuple and len(state) == 3


def test_named_chain_state() -> None:
    params = _params()
    tx = optim.chain(clip=optim.clip_by_global_norm(1.0), adam=optim.adamw(0.1))
    state = tx.init(params)
    assert state._fields == ("clip", "adam")
    assert state.adam.adam.mu["w"].shape == (2, 2)
    # A field of one inner state is read from the whole.
    assert state.mu is state.adam.adam.mu
    assert float(state.learning_rate) == np.float32(0.1)
    with pytest.raises(AttributeError, match="no 'missing' in the optimizer state.*clip, adam"):
        _ = state.missing
    twice = optim.chain(a=optim.ema(0.5), b=optim.ema(0.5)).init(params)
    with pytest.raises(AttributeError, match="'ema' is found 2 times.*state.a.ema, state.b.ema"):
        _ = twice.ema
    assert tree.paths(state)[0] == ".clip.global_norm"
    again = pickle.loads(pickle.dumps(state))
    assert type(again) is type(state) and tree.structure(again) == tree.structure(state)
    assert type(copy.copy(state)) is type(state)
    same = optim.chain(clip=optim.identity(), adam=optim.identity())
    assert type(same.init(params)) is type(state)
    dicts = optim.named_chain(("clip", optim.clip(1.0)), ("adam", optim.scale_by_adam()))
    assert list(dicts.init(params)) == ["clip", "adam"]
    _, after = jit(dicts.update)(params, dicts.init(params), params)
    assert int(after["adam"].count) == 1


def test_chain_errors() -> None:
    with pytest.raises(TypeError, match="name all of the transformations or none"):
        optim.chain(optim.identity(), adam=optim.adam(0.1))
    with pytest.raises(TypeError, match="1 is a float, not a transformation"):
        optim.chain(optim.identity(), 0.1)
    with pytest.raises(ValueError, match="names must differ"):
        optim.named_chain(("a", optim.identity()), ("a", optim.identity()))
    tx = optim.chain(optim.identity(), optim.scale(1.0))
    with pytest.raises(ValueError, match="a tuple of 1; this chain needs .EmptyState, EmptyState"):
        tx.update(_params(), (optim.EmptyState(),))


def test_structure_errors_name_the_path() -> None:
    params = _params()
    tx = optim.adam(0.1)
    state = tx.init(params)
    with pytest.raises(TreeError, match=r"the gradients lack \['b'\] that the state has"):
        tx.update({"w": params["w"]}, state, params)
    with pytest.raises(TreeError, match="'extra'"):
        tx.update({**params, "extra": params["w"]}, state, params)
    decay = optim.add_decayed_weights(0.1)
    with pytest.raises(ValueError, match="add_decayed_weights needs the current parameters"):
        decay.update(params, decay.init(params))
    with pytest.raises(TreeError, match=r"the gradients have \['b'\] that the parameters lack"):
        decay.update(params, decay.init(params), {"w": params["w"]})


# ---- masks ----

MASKS = {
    "path predicate": lambda path, leaf: path.endswith(".weight"),
    "function of parameters": lambda params: tree.map(lambda p: p.ndim > 1, params),
    "tree": {"layers": [{"weight": True, "bias": False}] * 2, "head": {"weight": True}},
}


def _model() -> dict:
    layer = {"weight": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    return {"layers": [layer, layer], "head": {"weight": jnp.ones((2, 2))}}


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind: str) -> None:
    params = _model()
    tx = optim.masked(optim.adam(0.1), MASKS[kind])
    state = tx.init(params)
    moments = tree.paths(state.inner_state.adam.mu)
    assert moments == ["['head']['weight']"] + [f"['layers'][{i}]['weight']" for i in (0, 1)]
    updates, _ = jit(tx.update)(params, state, params)
    assert float(updates["layers"][0]["bias"][0]) == 1.0
    assert float(updates["layers"][0]["weight"][0, 0]) == pytest.approx(-0.1, rel=1e-4)
    decayed = optim.adamw(0.1, weight_decay=0.5, mask=MASKS[kind])
    zero = tree.map(jnp.zeros_like, params)
    updates, _ = decayed.update(zero, decayed.init(params), params)
    assert float(updates["layers"][1]["bias"][0]) == 0.0
    assert float(updates["head"]["weight"][0, 0]) == pytest.approx(-0.05)


def test_prefix_masks_and_frozen_leaves_without_state() -> None:
    params = _model()
    tx = optim.masked(optim.adam(0.1), {"layers": False, "head": True})
    assert tree.paths(tx.init(params).inner_state.adam.mu) == ["['head']['weight']"]
    frozen = optim.freeze({"layers": [True, False], "head": False})
    updates, _ = frozen.update(params, frozen.init(params))
    assert float(updates["layers"][0]["weight"][0, 0]) == 0.0
    assert float(updates["layers"][1]["weight"][0, 0]) == 1.0
    chosen = optim.selective_transform(optim.sgd(1.0), freeze_mask=lambda path, _: "bias" in path)
    updates, _ = chosen.update(params, chosen.init(params), params)
    assert float(updates["layers"][0]["bias"][0]) == 0.0
    assert float(updates["layers"][0]["weight"][0, 0]) == -1.0


def test_partition() -> None:
    params = _model()
    tx = optim.partition(
        {"fast": optim.adam(0.1), "slow": optim.sgd(0.01), "none": optim.set_to_zero()},
        lambda path, leaf: (
            "fast" if path.startswith("head") else "none" if "bias" in path else "slow"
        ),
    )
    state = tx.init(params)
    assert tree.paths(state.inner_states["fast"].inner_state.adam.mu) == ["['head']['weight']"]
    updates, state = jit(tx.update)(params, state, params)
    assert float(updates["head"]["weight"][0, 0]) == pytest.approx(-0.1, rel=1e-4)
    assert float(updates["layers"][0]["weight"][0, 0]) == pytest.approx(-0.01)
    assert float(updates["layers"][0]["bias"][0]) == 0.0
    lrs = {k: float(v) for k, v in tx.describe(state).items() if k.startswith("lr")}
    assert sorted(lrs.values()) == pytest.approx([0.01, 0.1])
    assert any("inner_states.fast" in k for k in lrs)


def test_mask_errors() -> None:
    params = _model()
    with pytest.raises(TypeError, match=r"a mask holds bools.*\['head'\]"):
        optim.masked(optim.identity(), {"layers": True, "head": jnp.ones(2)}).init(params)
    with pytest.raises(TreeError, match="not a prefix"):
        optim.masked(optim.identity(), {"layers": True}).init(params)
    with pytest.raises(ValueError, match=r"\['head'\] is labelled 'x'.*\['a'\]"):
        optim.partition({"a": optim.identity()}, {"layers": "a", "head": "x"}).init(params)


# ---- wrappers ----


def test_multi_steps_equals_one_large_batch() -> None:
    params = _params()
    rng = np.random.default_rng(0)
    small = [tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params) for _ in range(4)]
    tx = optim.MultiSteps(optim.adam(0.1), every_k_schedule=4)
    state = tx.init(params)
    update = jit(tx.update)
    for i, g in enumerate(small):
        updates, state = update(g, state, params)
        assert bool(tx.has_updated(state)) == (i == 3)
        assert (float(optim.global_norm(updates)) > 0) == (i == 3)
    mean = tree.map(lambda *gs: sum(gs) / 4, *small)
    plain = optim.adam(0.1)
    want, _ = plain.update(mean, plain.init(params), params)
    for a, b in zip(tree.leaves(updates), tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


def test_multi_steps_skips() -> None:
    params = _params()
    tx = optim.MultiSteps(optim.sgd(1.0), 2, should_skip_update_fn=optim.skip_not_finite)
    state = tx.init(params)
    good = tree.map(jnp.ones_like, params)
    bad = {**good, "b": jnp.asarray([jnp.nan, 1.0])}
    update = jit(tx.update)
    _, state = update(good, state, params)
    updates, state = update(bad, state, params)
    assert int(state.mini_step) == 1 and int(state.skip_state["num_not_finite"]) == 1
    assert float(optim.global_norm(updates)) == 0
    updates, state = update(good, state, params)
    assert int(state.gradient_step) == 1 and float(updates["w"][0, 0]) == -1.0
    skip, kept = optim.skip_large_updates(good, 0, params, max_squared_norm=5.0)
    assert bool(skip) and float(kept["norm_squared"]) == 6.0


def test_apply_if_finite() -> None:
    params = _params()
    tx = optim.apply_if_finite(optim.adam(0.1), max_consecutive_errors=2)
    state = tx.init(params)
    good = tree.map(jnp.ones_like, params)
    bad = {**good, "b": jnp.asarray([jnp.inf, 1.0])}
    update = jit(tx.update)
    _, state = update(good, state, params)
    before = state.inner_state
    for i in range(2):
        updates, state = update(bad, state, params)
        assert float(optim.global_norm(updates)) == 0 and int(state.notfinite_count) == i + 1
        for a, b in zip(tree.leaves(state.inner_state), tree.leaves(before), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    updates, state = update(bad, state, params)
    assert not np.isfinite(np.asarray(updates["b"])).all() and int(state.total_notfinite) == 3


def test_master_parameters_move_where_bfloat16_ones_do_not() -> None:
    params = {"w": jnp.ones(4, dtype=jnp.bfloat16), "f": jnp.ones(3)}
    grads = tree.map(jnp.ones_like, params)

    def run(tx: Any) -> Any:
        p, state = params, tx.init(params)
        update = jit(tx.update)
        for _ in range(100):
            updates, state = update(grads, state, p)
            p = optim.apply_updates(p, updates)
        return p, state

    stuck, _ = run(optim.adam(6e-4))
    assert float(stuck["w"][0]) == 1.0
    moved, state = run(optim.with_master(optim.adam(6e-4)))
    assert moved["w"].dtype == jnp.bfloat16
    assert float(state.master["w"][0]) == pytest.approx(0.94, abs=1e-4)
    assert float(moved["w"][0]) == float(state.master["w"].astype(jnp.bfloat16)[0])
    assert state.master["f"] is None
    np.testing.assert_allclose(np.asarray(moved["f"]), np.asarray(stuck["f"]))


def test_lookahead() -> None:
    params = optim.LookaheadParams.init_synced(_params())
    tx = optim.lookahead(optim.sgd(0.1), sync_period=3, slow_step_size=0.5)
    state = tx.init(params)
    ones = tree.map(jnp.ones_like, params.fast)
    for _ in range(3):
        updates, state = jit(tx.update)(ones, state, params)
        params = optim.apply_updates(params, updates)
    start = _params()["w"]
    np.testing.assert_allclose(np.asarray(params.slow["w"]), np.asarray(start - 0.15), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(params.fast["w"]), np.asarray(start - 0.15), rtol=1e-6)
    with pytest.raises(TypeError, match="LookaheadParams"):
        tx.update(ones, state, ones)


def test_inject_hyperparams() -> None:
    params = _params()
    grads = tree.map(jnp.ones_like, params)
    tx = optim.inject_hyperparams(optim.sgd)(learning_rate=0.1)
    state = tx.init(params)
    update = jit(tx.update)
    updates, state = update(grads, state, params)
    assert float(updates["b"][0]) == pytest.approx(-0.1)
    state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    updates, state = update(grads, state, params)
    assert float(updates["b"][0]) == pytest.approx(-0.5)
    assert float(tx.describe(state)["lr"]) == 0.5
    scheduled = optim.inject_hyperparams(optim.adamw, static_args=("eps",))(
        learning_rate=optim.linear_schedule(1.0, 0.0, 4), b1=0.9, weight_decay=0.0
    )
    state = scheduled.init(params)
    assert "eps" not in state.hyperparams and float(state.hyperparams["learning_rate"]) == 1.0
    for _ in range(3):
        _, state = jit(scheduled.update)(grads, state, params)
    assert float(state.hyperparams["learning_rate"]) == 0.5
    with pytest.raises(ValueError, match="'nothing'"):
        optim.inject_hyperparams(optim.sgd, static_args="nothing")


def test_noise() -> None:
    params = {"w": jnp.zeros((100, 100))}
    tx = optim.noisy_sgd(1.0, eta=0.04, gamma=0.0, key=7)
    state = tx.init(params)
    first, state = jit(tx.update)(params, state, params)
    second, _ = tx.update(params, state, params)
    assert np.std(np.asarray(first["w"])) == pytest.approx(0.2, rel=0.05)
    assert abs(np.corrcoef(np.ravel(first["w"]), np.ravel(second["w"]))[0, 1]) < 0.05
    with pytest.raises(ValueError, match="key or seed, not both"):
        optim.add_noise(0.1, 0.5, key=1, seed=1)


# ---- reading states ----


def test_describe() -> None:
    params = _params()
    grads = grad(_loss)(params)
    tx = optim.chain(
        clip=optim.clip_by_global_norm(1.0),
        adam=optim.adamw(optim.linear_schedule(1.0, 0.0, 10)),
        seen=optim.snapshot("update_norm", optim.global_norm),
    )
    state = tx.init(params)
    for _ in range(3):
        updates, state = jit(tx.update)(grads, state, params)
    found = tx.describe(state)
    assert int(found["step"]) == 3
    assert float(found["lr"]) == pytest.approx(0.8)
    assert float(found["grad_norm"]) == pytest.approx(float(optim.global_norm(grads)), rel=1e-6)
    assert float(found["update_norm"]) == pytest.approx(float(optim.global_norm(updates)), rel=1e-6)
    assert "update_norm" in optim.describe(optim.adam(0.1).init(params), updates)


def test_monitor() -> None:
    params = _params()
    tx = optim.monitor(
        {"norm": optim.global_norm, "mean": optim.measure_with_ema(optim.global_norm, 0.5)}
    )
    state = tx.init(params)
    structure = tree.structure(state)
    _, state = jit(tx.update)(params, state, params)
    assert tree.structure(state) == structure
    assert float(state.measurements["norm"]) == pytest.approx(float(optim.global_norm(params)))
    assert float(tx.describe(state)["mean"]) == pytest.approx(float(optim.global_norm(params)))


def test_tree_get_set_map_params() -> None:
    params = _params()
    tx = optim.chain(optim.adamw(0.1), optim.inject_hyperparams(optim.sgd)(0.5))
    state = tx.init(params)
    assert optim.tree.get(state, "mu")["w"].shape == (2, 2)
    assert optim.tree.get(state, "ScaleByAdamState").count.shape == ()
    assert optim.tree.get(state, "absent", "default") == "default"
    with pytest.raises(KeyError, match="found"):
        optim.tree.get(state, "count")
    adam_count = optim.tree.get(state, "count", filtering=lambda path, _: "Adam" in str(path))
    assert int(adam_count) == 0
    new = optim.tree.set(
        state, lambda path, _: "hyperparams" in str(path), learning_rate=jnp.asarray(2.0)
    )
    assert float(new[1].hyperparams["learning_rate"]) == 2.0
    assert tree.structure(new) == tree.structure(state)
    with pytest.raises(KeyError, match="nothing called 'rate'"):
        optim.tree.set(state, rate=1.0)
    doubled = optim.tree.map_params(tx, lambda m, p: m + 2 * p, state, params)
    np.testing.assert_array_equal(np.asarray(doubled[0].adam.nu["b"]), np.asarray(2 * params["b"]))
    assert int(doubled[0].adam.count) == 0
    masked = optim.masked(optim.adam(0.1), {"w": True, "b": False})
    assert (
        optim.tree.map_params(masked, lambda m: m + 1, masked.init(params)).inner_state.adam.mu[
            "w"
        ][0, 0]
        == 1
    )


def test_tree_arithmetic() -> None:
    a = {"x": jnp.asarray([3.0, -4.0]), "y": None}
    t = optim.tree
    assert float(t.norm(a)) == 5.0 and float(t.norm(a, squared=True)) == 25.0
    assert float(t.norm(a, 1)) == 7.0 and float(t.norm(a, jnp.inf)) == 4.0
    assert float(t.sum(a)) == -1.0 and float(t.max(a)) == 3.0 and float(t.min(a)) == -4.0
    assert float(t.vdot(a, a)) == 25.0 and t.size(a) == 2
    assert t.add(a, a, a)["x"].tolist() == [9.0, -12.0] and t.add(a, a)["y"] is None
    assert t.sub(a, a)["x"].tolist() == [0.0, 0.0] and t.mul(a, a)["x"].tolist() == [9.0, 16.0]
    assert t.div(a, a)["x"].tolist() == [1.0, 1.0] and t.scale(2, a)["x"].tolist() == [6.0, -8.0]
    assert t.add_scale(a, 0.5, a)["x"].tolist() == [4.5, -6.0]
    assert t.clip(a, -1, 1)["x"].tolist() == [1.0, -1.0]
    assert t.where(jnp.asarray(False), a, t.zeros_like(a))["x"].tolist() == [0.0, 0.0]
    assert t.full_like(a, 2.0)["x"].tolist() == t.scale(2.0, t.ones_like(a))["x"].tolist()
    assert t.cast(a, jnp.bfloat16)["x"].dtype == jnp.bfloat16 and t.cast(a, None) is a
    assert t.cast_like(t.cast(a, jnp.bfloat16), a)["x"].dtype == np.float32
    mixed = {"h": jnp.ones(2, dtype=jnp.bfloat16), "f": jnp.ones(2)}
    assert t.dtype(mixed, "highest") == np.float32 and t.dtype(mixed, "lowest") == jnp.bfloat16
    assert t.dtype(mixed, "promote") == np.float32
    with pytest.raises(TypeError, match=r"\['h'\] is bfloat16"):
        t.dtype(mixed)
    assert bool(t.allclose(a, a)) and t.batch_shape(a, (3,))["x"].shape == (3, 2)
    moment = t.update_moment(a, t.zeros_like(a), 0.9, 1)
    np.testing.assert_allclose(
        np.asarray(t.bias_correction(moment, 0.9, 1)["x"]), [3.0, -4.0], rtol=1e-6
    )
    z = {"z": jnp.asarray([3.0 + 4.0j])}
    assert float(t.norm(z)) == 5.0 and t.real(z)["z"].tolist() == [3.0]
    assert t.conj(z)["z"].tolist() == [3.0 - 4.0j]
    squared = t.update_moment_per_elem_norm(z, t.zeros_like(t.real(z)), 0.0, 2)
    assert squared["z"].tolist() == [25.0]
    assert t.update_infinity_moment(a, t.zeros_like(a), 0.9, 0.5)["x"].tolist() == [3.5, 4.5]


# ---- numerics and parameters ----


def test_counters_saturate() -> None:
    top = np.iinfo(np.int32).max
    assert int(optim.safe_increment(jnp.asarray(top, dtype=np.int32))) == top
    assert int(optim.safe_increment(jnp.asarray(3))) == 4
    params = _params()
    tx = optim.adam(0.1)
    state = optim.tree.set(tx.init(params), count=jnp.asarray(top, dtype=np.int32))
    updates, state = tx.update(params, state)
    assert int(state.adam.count) == top and np.isfinite(np.asarray(updates["w"])).all()
    with pytest.raises(TypeError, match="integer or float"):
        optim.safe_increment(jnp.asarray(True))


def test_safe_norms_have_finite_derivatives() -> None:
    zero = jnp.zeros(3)
    assert float(optim.safe_norm(zero, 0.1)) == np.float32(0.1)
    for f in (lambda x: optim.safe_norm(x, 0.0), lambda x: optim.safe_root_mean_squares(x, 0.1)):
        value, slope = value_and_grad(f)(zero)
        assert np.isfinite(np.asarray(slope)).all() and float(value) >= 0
    x = jnp.asarray([[3.0, 4.0], [0.0, 0.0]])
    assert optim.safe_norm(x, 1.0, axis=1).tolist() == [5.0, 1.0]
    assert optim.safe_norm(x, 1.0, axis=1, keepdims=True).shape == (2, 1)


def test_averages_of_parameters() -> None:
    old = {"w": jnp.zeros(2, dtype=jnp.bfloat16), "n": jnp.asarray(1)}
    new = {"w": jnp.ones(2, dtype=jnp.bfloat16), "n": jnp.asarray(5)}
    average = optim.incremental_update(new, old, 0.25)
    assert average["w"].tolist() == [0.25, 0.25] and average["w"].dtype == jnp.bfloat16
    assert int(average["n"]) == 5
    assert int(optim.periodic_update(new, old, jnp.asarray(4), 2)["n"]) == 5
    assert int(optim.periodic_update(new, old, jnp.asarray(3), 2)["n"]) == 1


def test_complex_parameters() -> None:
    params = {"z": jnp.asarray([1.0 + 2.0j, -3.0 + 0.5j])}
    tx = optim.adam(0.1)
    state = tx.init(params)
    assert state.mu["z"].dtype == np.complex64 and state.nu["z"].dtype == np.float32
    updates, state = tx.update(params, state)
    want = -0.1 * np.asarray(params["z"]) / np.abs(np.asarray(params["z"]))
    np.testing.assert_allclose(np.asarray(updates["z"]), want, rtol=1e-4)


def test_per_example_clipping() -> None:
    rng = np.random.default_rng(0)
    grads = {
        "w": jnp.asarray(rng.normal(size=(4, 3, 2))),
        "b": jnp.asarray(rng.normal(size=(4, 2))),
    }
    total, clipped = optim.per_example_global_norm_clip(grads, 2.0)
    flat = np.concatenate([np.asarray(grads[k]).reshape(4, -1) for k in ("b", "w")], axis=1)
    norms = np.linalg.norm(flat, axis=1)
    want = (flat * np.minimum(1, 2.0 / norms)[:, None]).sum(0)
    got = np.concatenate([np.asarray(total[k]).ravel() for k in ("b", "w")])
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert int(clipped) == (norms > 2.0).sum()
    by_layer, counts = optim.per_example_layer_norm_clip(grads, 2.0, uniform=False)
    w = np.asarray(grads["w"]).reshape(4, -1)
    limit = 2.0 * (6 / 8) ** 0.5
    want = (w * np.minimum(1, limit / np.linalg.norm(w, axis=1))[:, None]).sum(0)
    np.testing.assert_allclose(np.asarray(by_layer["w"]).ravel(), want, rtol=1e-5)
    assert int(counts["w"]) == (np.linalg.norm(w, axis=1) > limit).sum()
    with pytest.raises(ValueError, match="leading batch dimension"):
        optim.per_example_global_norm_clip({"a": jnp.ones(3), "b": jnp.ones(4)}, 1.0)


def test_argument_errors() -> None:
    for call, match in [
        (lambda: optim.scale_by_lion(mode="x"), "mode is one of"),
        (lambda: optim.scale_by_polyak(variant="x"), '"sps" or "sps\\+"'),
        (lambda: optim.reduce_on_plateau(factor=2.0), "factor must be in"),
        (lambda: optim.reduce_on_plateau(rtol=0.0), "one of them positive"),
        (lambda: optim.lookahead(optim.sgd(0.1), 0, 0.5), "sync_period must be positive"),
        (lambda: optim.sam(optim.sgd(0.1), optim.sgd(0.1), 0), "sync_period must be positive"),
        (lambda: optim.MultiSteps(optim.sgd(0.1), 0), "every_k_schedule must be positive"),
        (lambda: optim.optimistic_adam(lambda c: 0.1), "optimistic_adam_v2"),
        (lambda: optim.scale_by_muon("x"), "ns_coeffs is one of"),
        (lambda: optim.scale_by_muon((1.0, 2.0)), r"shape \(3,\) or \(n, 3\)"),
        (lambda: optim.global_norm({"a": jnp.ones(2)}, 3), "ord is None, 1, 2 or inf"),
        (lambda: optim.orthogonalize_via_newton_schulz(jnp.ones((2, 2, 2))), "MuonDim"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()


def test_sophia() -> None:
    params = _params()
    tx = optim.sophia(0.1, gamma=20.0, update_interval=3)
    state = tx.init(params)

    @jit
    def step(params: Any, state: Any) -> tuple:
        updates, state = tx.update(grad(_loss)(params), state, params, obj_fn=_loss)
        return optim.apply_updates(params, updates), state

    for i in range(60):
        params, state = step(params, state)
        if i == 0:
            # The Hessian is 2 I, which one sample finds exactly.
            nu = np.asarray(state.sophia.nu["w"])
            np.testing.assert_allclose(nu, 0.01 * 2.0, rtol=1e-4)
    assert float(_loss(params)) < 1.0
    assert int(state.sophia.count) == 60
    with pytest.raises(ValueError, match="obj_fn"):
        tx.update(params, state, params)


def test_sam_opaque_mode() -> None:
    tx = optim.sam(
        optim.sgd(0.1), optim.chain(optim.normalize(), optim.sgd(0.05)), opaque_mode=True
    )
    params = _params()
    state = tx.init(params)
    start = float(_loss(params))
    for _ in range(10):
        updates, state = tx.update(
            grad(_loss)(params), state, params, grad_fn=lambda p, i: grad(_loss)(p)
        )
        params = optim.apply_updates(params, updates)
    assert float(_loss(params)) < 0.1 * start
    with pytest.raises(ValueError, match="grad_fn"):
        tx.update(params, state, params)


def test_every_optimizer_is_tried_here() -> None:
    """`ALL` has each function of `optimizers/alias.py` whose updates follow from the gradients."""
    for name, f in inspect.getmembers(alias, inspect.isfunction):
        if f.__module__ == alias.__name__ and name in exported("optim") - {
            "noisy_sgd",
            "polyak_sgd",
        }:
            assert name in ALL, f"give {name} a row in ALL"


def test_classes_of_states_are_public() -> None:
    """Users write them into checkpoints' structures and annotations."""
    folder = Path(inspect.getfile(optim)).parent
    for path in sorted([*folder.glob("transforms/*.py"), *folder.glob("optimizers/*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("State"):
                private = node.name.startswith("_")
                assert private or hasattr(optim, node.name), f"{path.name}: export {node.name}"


def test_a_chain_names_the_states_that_it_needs() -> None:
    def scale_by_own():
        return optim.GradientTransformation(lambda p: {"mean": p}, lambda u, s, p=None: (u, s))

    tx = optim.chain(scale_by_own(), optim.scale(2.0))
    with pytest.raises(ValueError, match="needs .what init of test_a_chain.* returns, EmptyState"):
        tx.update(jnp.ones(2), None, jnp.ones(2))
