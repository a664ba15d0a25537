"""Experts that devices divide, against the same on one device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, parallel, tree
from genesis_fn.core import errors
from genesis_fn.models import qwen
from tests.sharding.both import same

RNG = np.random.default_rng(0)
EXPERTS, CHOICES, FEATURES = 8, 3, 6


def normal(*shape: int) -> gf.Array:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def case(tokens: int) -> tuple[Any, ...]:
    """(tokens, logits by which the first experts have most of them, parameters)."""
    logits = normal(tokens, EXPERTS) + jnp.linspace(3, 0, EXPERTS)
    layer = nn.MoE(FEATURES, 8, experts=EXPERTS, top_k=CHOICES)
    return normal(tokens, FEATURES), logits, layer.init(gf.random.key(0))["experts"]


def mixture(mlp: Callable[..., gf.Array]) -> Callable[..., gf.Array]:
    def f(x: gf.Array, logits: gf.Array, params: Any) -> gf.Array:
        weights, experts, _ = nn.top_k_routing(logits, CHOICES)
        return (mlp(x, weights, experts, params) ** 2).sum()

    return f


MESHES: dict[str, tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]] = {
    "1": ((1,), ("e",), ()),
    "2": ((2,), ("e",), ()),
    "8": ((8,), ("e",), ()),
    "2 x 4": ((2, 4), ("data", "e"), ()),
    "2 x 4, divided before": ((2, 4), ("data", "e"), ("data",)),
}


def over(name: str, **options: Any) -> Callable[..., gf.Array]:
    shape, names, before = MESHES[name]
    options |= {"mesh": gf.make_mesh(shape, names), "axis": "e", "batch_axes": before}
    return functools.partial(parallel.expert_mlp, **options)


@pytest.mark.parametrize("tokens", [16, 13])
@pytest.mark.parametrize("name", MESHES)
def test_values_and_gradients(name: str, tokens: int):
    args = case(tokens)
    both = lambda f: gf.value_and_grad(mixture(f), (0, 1, 2))
    same(gf.jit(both(over(name)))(*args), both(nn.expert_mlp)(*args), 1e-5)


def test_second_derivatives_and_half_precision():
    args = case(16)

    def squares(f: Any) -> Any:
        inner = gf.grad(mixture(f), (0, 1, 2))
        return lambda *xs: sum((g**2).sum() for g in tree.leaves(inner(*xs)))

    second = lambda f: gf.grad(squares(f), (0, 1, 2))
    same(gf.jit(second(over("2 x 4")))(*args), second(nn.expert_mlp)(*args), 1e-5)
    half = tree.map(lambda x: x.astype(jnp.bfloat16), args)
    first = lambda f: gf.value_and_grad(mixture(f), (0, 1, 2))
    wide = lambda xs: tree.map(lambda x: x.astype(jnp.float32), xs)
    same(wide(gf.jit(first(over("2 x 4")))(*half)), wide(first(nn.expert_mlp)(*half)), 2e-2)


def test_tokens_beyond_the_capacity_are_dropped():
    """All tokens choose the first device's experts, which takes the first ones of each."""
    x, _, params = case(16)
    weights, experts = jnp.ones((16, 1)), jnp.zeros((16, 1), jnp.int32)
    expected = nn.expert_mlp(x, weights, experts, params)
    found = over("8", capacity_factor=4.0)(x, weights, experts, params)
    taken = np.arange(16) % 2 == 0  # one of two tokens of each device
    same(found, jnp.where(jnp.asarray(taken)[:, None], expected, 0), 1e-6)
    # None is dropped where there is room, and experts that do not exist add nothing.
    same(over("8", capacity_factor=8.0)(x, weights, experts, params), expected, 1e-6)
    nowhere = jnp.where(jnp.asarray(taken)[:, None], EXPERTS, -1)
    same(over("2")(x, weights, nowhere, params), jnp.zeros_like(x), 0)


def test_a_token_goes_to_a_device_once():
    """What is sent: of each device at most its tokens, not its choices."""
    args = case(16)
    text = str(gf.make_jaxpr(mixture(over("2")))(*args))
    sent = [line.split("=")[0].split(":")[1].split("{")[0] for line in text.splitlines()
            if "= all_to_all[" in line]  # fmt: skip
    assert [s.strip() for s in sent] == ["f32[2,1,8,6]", "f32[2,1,8,3]", "i32[2,1,8,3]"] + [
        "f32[2,1,8,6]"
    ]


def test_what_does_not_fit():
    x, _, params = case(16)
    weights, experts = jnp.ones((16, 2)), jnp.zeros((16, 2), jnp.int32)
    with pytest.raises(gf.errors.ShapeError, match="x is .16, 6., weights are .16, 1. and experts"):
        over("2")(x, weights[:, :1], experts, params)
    with pytest.raises(gf.errors.ArgumentError, match="capacity_factor is 0"):
        over("2", capacity_factor=0)(x, weights, experts, params)
    three = functools.partial(parallel.expert_mlp, mesh=gf.make_mesh((3,), ("e",)), axis="e")
    with pytest.raises(errors.ShardingError, match="which 'e' of 3 does not divide"):
        three(x, weights, experts, params)


# ---- models ----

CONFIG = qwen.QwenConfig(
    64, 32, 64, 2, 4, 2, 8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
    output_router_logits=True,
)  # fmt: skip
TOKENS = jnp.asarray(RNG.integers(0, 64, (4, 17)))

CASES: dict[str, tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...], Any]] = {
    "the batch's axis": ((4,), ("e",), (), gf.P("e")),
    "an axis of its own": ((2, 2), ("data", "e"), ("data",), gf.P(("data", "e"))),
    "tokens on all": ((2, 2), ("data", "e"), (), gf.P("data")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_small_qwen(name: str):
    shape, names, before, rows = CASES[name]
    mesh = gf.make_mesh(shape, names)
    params = qwen.init(gf.random.key(0), CONFIG)
    x, y = TOKENS[:, :-1], TOKENS[:, 1:]
    run = lambda p, x, y, **how: qwen.loss(p, x, y, CONFIG, **how)
    options = {"mesh": mesh, "axis": "e", "batch_axes": before}
    experts = functools.partial(parallel.expert_mlp, **options)
    of_parts = functools.partial(run, experts=experts, remat=bool(before))
    layouts = tree.map_with_path(
        lambda path, _: gf.NamedSharding(
            mesh, gf.P("e") if "experts" in tree.keystr(path) else gf.P()
        ),
        params,
    )
    args = gf.device_put(params, layouts), *gf.device_put((x, y), gf.NamedSharding(mesh, rows))
    found = gf.jit(gf.value_and_grad(of_parts))(*args)
    same(found, gf.value_and_grad(run)(params, x, y), 1e-5)
    gradient = found[1]["layers"][0]["mlp"]["experts"]["up_proj"]["weight"]
    assert gradient.sharding.spec == gf.P("e")


def test_with_divided_sequences_under_amp():
    mesh = gf.make_mesh((2, 2), ("c", "e"))
    params = qwen.init(gf.random.key(0), CONFIG)
    x, y = TOKENS[:, :-1], TOKENS[:, 1:]
    own = {
        "attention": functools.partial(parallel.context_attention, mesh=mesh, axis="c"),
        "experts": functools.partial(parallel.expert_mlp, mesh=mesh, axis="e", batch_axes=("c",)),
    }
    run = lambda how: gf.value_and_grad(lambda p: qwen.loss(p, x, y, CONFIG, **how))
    same(gf.jit(run(own))(params), run({})(params), 1e-5)
    low = lambda how: gf.value_and_grad(
        gf.amp(lambda p: qwen.loss(p, x, y, CONFIG, **how), "bfloat16")
    )
    same(gf.jit(low(own))(params), low({})(params), 1e-2)
