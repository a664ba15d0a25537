"""Loss scaling and policies: JMP's semantics, and what it gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.amp.loss_scale import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
    all_finite,
    scaled_value_and_grad,
    select_tree,
)
from genesis_fn.amp.policy import Policy, cast_to_full, cast_to_half, get_policy, half_dtype
from genesis_fn.core import tree
from genesis_fn.transforms.jitting import jit

VALUES = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.asarray([4.0], dtype=jnp.float16)}
YES, NO = jnp.asarray(True), jnp.asarray(False)


@pytest.mark.parametrize(
    "scale", [NoOpLossScale(), StaticLossScale(256.0), DynamicLossScale(256.0)]
)
def test_scale_and_unscale(scale: Any) -> None:
    factor = float(np.asarray(scale.loss_scale))
    scaled = scale.scale(VALUES)
    assert scaled["a"].tolist() == [factor, 2 * factor] and scaled["b"].tolist() == [4 * factor]
    back = scale.unscale(scaled)
    assert back["a"].tolist() == [1.0, 2.0] and back["b"].tolist() == [4.0]
    assert scale.scale({"n": jnp.asarray(3)})["n"].tolist() == 3


def test_16_bit_gradients_are_unscaled_in_float32() -> None:
    scale = StaticLossScale(2.0**15)
    tiny = jnp.asarray([2.0**-10], dtype=jnp.float16)
    back = scale.unscale(tiny)
    assert back.dtype == np.float32 and float(back[0]) == 2.0**-25


def test_dynamic_scale_grows_after_a_period() -> None:
    scale = DynamicLossScale(8.0, period=3, factor=4)
    seen = []
    for _ in range(7):
        scale = scale.adjust(YES)
        seen.append((float(scale.loss_scale), int(scale.counter)))
    assert seen == [(8, 1), (8, 2), (32, 0), (32, 1), (32, 2), (128, 0), (128, 1)]


def test_dynamic_scale_shrinks_and_resets_the_counter() -> None:
    scale = DynamicLossScale(8.0, counter=2, period=10, min_loss_scale=3.0)
    scale = scale.adjust(NO)
    assert (float(scale.loss_scale), int(scale.counter)) == (4.0, 0)
    scale = scale.adjust(NO).adjust(NO)
    assert float(scale.loss_scale) == 3.0


def test_dynamic_scale_does_not_grow_to_infinity() -> None:
    top = float(np.finfo(np.float32).max)
    assert float(DynamicLossScale(top, period=1).adjust(YES).loss_scale) == np.float32(top)


def test_all_fields_survive_tree_map() -> None:
    scale = DynamicLossScale(8.0, counter=5, period=7, factor=3, min_loss_scale=4.0)
    again = tree.map(lambda x: x, scale)
    assert float(again.min_loss_scale) == 4.0 and int(again.counter) == 5
    assert (again.period, again.factor) == (7, 3)
    assert len(tree.leaves(scale)) == 3 and len(tree.leaves(StaticLossScale(2.0))) == 1
    assert tree.paths(scale) == [".loss_scale", ".counter", ".min_loss_scale"]


def test_a_new_scale_does_not_retrace() -> None:
    traces = []

    @jit
    def f(scale: Any, x: Any) -> Any:
        traces.append(1)
        return scale.scale(x), scale.adjust(all_finite(x))

    for kind in (StaticLossScale, DynamicLossScale):
        traces.clear()
        x = jnp.ones(2)
        for value in (2.0, 4.0):
            scaled, after = f(kind(value), x)
            assert scaled.tolist() == [value, value]
            assert type(after) is kind
        f(after, x)
        assert len(traces) == 1


def test_all_finite() -> None:
    assert bool(all_finite(VALUES)) and bool(all_finite({})) and bool(all_finite({"n": 3}))
    for bad in (np.nan, np.inf, -np.inf):
        found = all_finite({**VALUES, "c": jnp.asarray([1.0, bad])})
        assert not bool(found) and found.dtype == np.bool_ and found.shape == ()


def test_select_tree() -> None:
    other = tree.map(jnp.zeros_like, VALUES)
    assert select_tree(YES, VALUES, other)["a"].tolist() == [1.0, 2.0]
    assert select_tree(NO, VALUES, other)["b"].tolist() == [0.0]
    with pytest.raises(ValueError, match="select_tree takes a boolean scalar"):
        select_tree(jnp.ones(2), VALUES, other)
    with pytest.raises(ValueError, match="'a'"):
        select_tree(YES, VALUES, {"b": VALUES["b"]})
    with pytest.raises(ValueError, match="adjust takes a boolean scalar"):
        DynamicLossScale(2.0).adjust(jnp.ones(2))
    with pytest.raises(ValueError, match="period must be positive"):
        DynamicLossScale(2.0, period=0)


def test_overflow_skips_the_step_and_training_recovers() -> None:
    params = {"w": jnp.asarray([2.0, -1.0], dtype=jnp.float32)}
    tx = optim.adam(0.1)

    def loss_fn(params: Any) -> Any:
        # The chain is float16 in between, so that a large scale overflows.
        w = params["w"].astype(jnp.float16)
        return jnp.sum(w * w).astype(jnp.float32)

    @jit
    def step(params: Any, state: Any, scale: Any) -> tuple:
        loss, grads, finite = scaled_value_and_grad(loss_fn)(scale, params)
        updates, new_state = tx.update(grads, state, params)
        new_params = optim.apply_updates(params, updates)
        params, state = select_tree(finite, (new_params, new_state), (params, state))
        return params, state, scale.adjust(finite), loss, finite

    state, scale = tx.init(params), DynamicLossScale(2.0**17, period=50)
    params1, state1, scale1, loss, finite = step(params, state, scale)
    assert not bool(finite) and float(loss) == 5.0
    assert params1["w"].tolist() == params["w"].tolist() and int(state1.adam.count) == 0
    assert float(scale1.loss_scale) == 2.0**16
    for _ in range(120):
        params1, state1, scale1, loss, finite = step(params1, state1, scale1)
    assert float(loss) < 0.05 and float(scale1.loss_scale) >= 1.0


def test_scaled_gradients_equal_plain_ones() -> None:
    def f(x: Any, y: Any) -> tuple:
        return jnp.sum(x * x * y), {"y": y}

    x, y = jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 5.0])
    (value, aux), grads, finite = scaled_value_and_grad(f, (0, 1), has_aux=True)(
        StaticLossScale(1024.0), x, y
    )
    assert float(value) == 23.0 and aux["y"].tolist() == [3.0, 5.0] and bool(finite)
    assert grads[0].tolist() == [6.0, 20.0] and grads[1].tolist() == [1.0, 4.0]


# ---- policies ----


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("p=f32,c=bf16,o=f32", ("float32", "bfloat16", "float32")),
        ("params=float32,compute=float16,output=float32", ("float32", "float16", "float32")),
        ("params=float32, compute=half, output=full", ("float32", "bfloat16", "float32")),
        ("c=f16", ("float32", "float16", "float16")),
        ("p=bf16", ("bfloat16", "bfloat16", "bfloat16")),
        ("float16", ("float16", "float16", "float16")),
        ("half", ("bfloat16", "bfloat16", "bfloat16")),
    ],
)
def test_get_policy(text: str, want: tuple) -> None:
    policy = get_policy(text)
    got = (policy.param_dtype, policy.compute_dtype, policy.output_dtype)
    assert tuple(d.name for d in got) == want
    assert get_policy(str(policy)) == policy and hash(get_policy(str(policy))) == hash(policy)


def test_policy_casts_floats_only() -> None:
    policy = Policy(jnp.float32, jnp.bfloat16, jnp.float16)
    values = {"w": jnp.ones(2), "n": jnp.asarray([1, 2]), "np": np.ones(2), "py": 1.5, "s": "text"}
    cast = policy.cast_to_compute(values)
    assert cast["w"].dtype == jnp.bfloat16 and cast["n"].dtype == np.int32
    assert cast["np"].dtype == jnp.bfloat16 and cast["py"] == 1.5 and cast["s"] == "text"
    assert policy.cast_to_param(cast)["w"].dtype == np.float32
    assert policy.cast_to_output(cast)["w"].dtype == np.float16
    assert policy.with_output_dtype(jnp.float32).cast_to_output(cast)["w"].dtype == np.float32
    assert cast_to_half(values)["w"].dtype == half_dtype() == jnp.bfloat16
    assert cast_to_full(cast)["w"].dtype == np.float32


@pytest.mark.parametrize("text", ["x=f32", "p=f32,p=f16", "p=", "p=f32,", "float31"])
def test_policy_errors(text: str) -> None:
    with pytest.raises(ValueError, match="not understood|not a data type"):
        get_policy(text)
