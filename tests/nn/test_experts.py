"""Mixture of experts against transformers' blocks and a loop over tokens; routing at its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import (
    MixtralSparseMoeBlock,
    load_balancing_loss_func,
)
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import genesis_fn.numpy as jnp
from genesis_fn import grad, jit, jvp, nn, random, tree, vjp, vmap
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.lax import scan
from genesis_fn.test_util import check_grads
from genesis_fn.transforms import amp

F, H, E, K = 6, 5, 7, 3  # features, hidden, experts, experts of a token


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def array(seed: int, *shape: int) -> Any:
    return jnp.asarray(drawn(seed, *shape), jnp.float32)


# ---- transformers' blocks ----


def qwen3(normalize: bool) -> Any:
    config = Qwen3MoeConfig(
        hidden_size=F,
        moe_intermediate_size=H,
        num_experts=E,
        num_experts_per_tok=K,
        norm_topk_prob=normalize,
    )
    return nn.MoE(F, H, E, K, normalize=normalize), Qwen3MoeSparseMoeBlock(config)


def mixtral() -> Any:
    config = MixtralConfig(
        hidden_size=F, intermediate_size=H, num_local_experts=E, num_experts_per_tok=K
    )
    return nn.MoE(F, H, E, K), MixtralSparseMoeBlock(config)


def qwen2() -> Any:
    config = Qwen2MoeConfig(
        hidden_size=F,
        moe_intermediate_size=H,
        shared_expert_intermediate_size=4,
        num_experts=E,
        num_experts_per_tok=K,
    )
    layer = nn.MoE(F, H, E, K, shared_hidden=4, shared_gate=True, normalize=False)
    return layer, Qwen2MoeSparseMoeBlock(config)


BLOCKS = {
    "Qwen3-MoE": lambda: qwen3(True), "Qwen3-MoE, not normalized": lambda: qwen3(False),
    "Mixtral": mixtral, "Qwen2-MoE": qwen2,
}  # fmt: skip


def named(params: Any) -> dict[str, np.ndarray]:
    """Parameters under the names of transformers' blocks, in which gate and up are one array."""
    flat = {
        tree.keystr(path, simple=True, separator="."): np.array(x)
        for path, x in tree.leaves_with_path(params)
    }
    gate_up = [flat.pop(f"experts.{n}.weight") for n in ("gate_proj", "up_proj")]
    flat["experts.gate_up_proj"] = np.concatenate(gate_up, 1)
    flat["experts.down_proj"] = flat.pop("experts.down_proj.weight")
    return flat


@pytest.mark.parametrize("name", BLOCKS)
def test_transformers_blocks(name: str) -> None:
    layer, block = BLOCKS[name]()
    params = tree.map(lambda p: 2 * p, layer.init(random.key(3)))
    named_params = named(params)
    modules = dict(block.named_parameters())
    assert modules.keys() == named_params.keys()
    with torch.no_grad():
        for n, p in modules.items():
            p.copy_(torch.from_numpy(named_params[n]))
    x, ct = array(1, 2, 9, F), array(2, 2, 9, F)
    t = torch.from_numpy(np.array(x)).requires_grad_()
    expected = block.eval()(t)
    (expected * torch.from_numpy(np.array(ct))).sum().backward()
    for run in (layer, jit(layer)):
        y, pull = vjp(run, params, x)
        np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-6)
        d_params, dx = pull(ct)
        np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-4, atol=1e-5)
        for n, g in named(d_params).items():
            np.testing.assert_allclose(g, modules[n].grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=n)


def test_routing_of_deepseek_v3() -> None:
    """Sigmoid scores, of which a bias chooses and which alone weigh."""
    config = DeepseekV3Config(
        hidden_size=F, n_routed_experts=E, num_experts_per_tok=K, n_group=1, topk_group=1,
        routed_scaling_factor=1.0, norm_topk_prob=True,
    )  # fmt: skip
    router = DeepseekV3TopkRouter(config)
    x, w, bias = drawn(1, 40, F), drawn(2, E, F), 0.5 * drawn(3, E)
    with torch.no_grad():
        router.weight.copy_(torch.from_numpy(w))
        router.e_score_correction_bias.copy_(torch.from_numpy(bias))
        logits, weights, experts = router(torch.from_numpy(x).float())
    ours, chosen, probabilities = nn.top_k_routing(
        logits.numpy(), K, score="sigmoid", bias=bias.astype(np.float32)
    )
    # Theirs are not in order.
    places = np.argsort(np.asarray(chosen), -1)
    theirs = np.argsort(experts.numpy(), -1)
    np.testing.assert_array_equal(np.sort(np.asarray(chosen)), np.sort(experts.numpy()))
    np.testing.assert_allclose(
        np.take_along_axis(np.asarray(ours), places, -1),
        np.take_along_axis(weights.numpy(), theirs, -1),
        rtol=1e-5,
    )
    scores = torch.sigmoid(logits.double())
    np.testing.assert_allclose(
        probabilities, (scores / scores.sum(-1, keepdim=True)).numpy(), rtol=1e-5
    )
    plain = nn.top_k_routing(logits.numpy(), K, score="sigmoid", bias=None)[1]
    assert not np.array_equal(plain, chosen), "the bias chose nothing"


@pytest.mark.parametrize("masked", [False, True])
def test_load_balancing_loss_is_that_of_transformers(masked: bool) -> None:
    logits = drawn(1, 2, 20, E).astype(np.float32)
    mask = np.arange(20) < [[20], [7]] if masked else None
    t = torch.from_numpy(logits).requires_grad_()
    expected = load_balancing_loss_func(
        (t.reshape(-1, E),), E, K, None if mask is None else torch.from_numpy(mask.astype(int))
    )
    expected.backward()

    def loss(logits: Any) -> Any:
        _, experts, probabilities = nn.top_k_routing(logits, K)
        return nn.load_balancing_loss(probabilities, experts, E, mask)

    np.testing.assert_allclose(loss(jnp.asarray(logits)), expected.item(), rtol=1e-5)
    np.testing.assert_allclose(
        jit(grad(loss))(jnp.asarray(logits)), t.grad.numpy(), rtol=1e-4, atol=1e-7
    )


def test_router_z_loss() -> None:
    logits = drawn(1, 2, 20, E)
    mask = np.arange(20) < [[20], [7]]
    for where in (None, mask):
        t = torch.from_numpy(logits).requires_grad_()
        squares = torch.logsumexp(t, -1) ** 2
        expected = (squares if where is None else squares[torch.from_numpy(where)]).mean()
        expected.backward()
        f = lambda x, where=where: nn.router_z_loss(x, where)
        x = jnp.asarray(logits, jnp.float32)
        np.testing.assert_allclose(f(x), expected.item(), rtol=1e-5)
        np.testing.assert_allclose(grad(f)(x), t.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_losses_without_a_token_are_zero() -> None:
    nobody = np.zeros(4, bool)
    x = jnp.ones((4, E))
    _, experts, probabilities = nn.top_k_routing(x, K)
    assert float(nn.load_balancing_loss(probabilities, experts, E, nobody)) == 0
    assert float(nn.router_z_loss(x, nobody)) == 0


# ---- a loop over tokens, in float64 ----


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def by_token(x: Any, weights: Any, experts: Any, params: Any) -> np.ndarray:
    """`expert_mlp`, one token and expert after the other."""
    wide = lambda a: np.asarray(a).astype(np.float64)
    gate, up, down = [wide(params[n]["weight"]) for n in ("gate_proj", "up_proj", "down_proj")]
    x, weights, experts = wide(x), wide(weights), np.asarray(experts)
    y = np.zeros((len(x), down.shape[1]))
    for t in range(len(x)):
        for w, e in zip(weights[t], experts[t], strict=True):
            if 0 <= e < len(gate):
                y[t] += w * (down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])))
    return y


def experts_of(key: int, count: int = E) -> Any:
    params = nn.MoE(F, H, count, 1).init(random.key(key))["experts"]
    return tree.map(lambda p: 3 * p, params)


ROUTINGS = {
    "many tokens": np.random.default_rng(0).integers(0, E, (60, K)),
    "random": np.random.default_rng(0).integers(0, E, (11, K)),
    "all tokens on one expert": np.full((11, K), 4),
    "experts with no token": np.random.default_rng(0).integers(2, 4, (11, K)),
    "one expert for each token": np.random.default_rng(0).integers(0, E, (11, 1)),
    "every expert": np.stack([np.random.default_rng(i).permutation(E) for i in range(11)]),
    "one token": np.array([[5, 0, 2]]),
    "one row": np.array([[E - 1]]),
    "no expert": np.array([[0, -1, E], [3, E + 200, 1], [-300, E, 2**31 - 1]]),
    "no token": np.zeros((0, K), int),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_expert_mlp_is_a_loop_over_tokens(name: str) -> None:
    experts = jnp.asarray(ROUTINGS[name], jnp.int32)
    x, weights, params = array(1, len(experts), F), array(2, *experts.shape), experts_of(0)
    f = lambda x, w, p: nn.expert_mlp(x, w, experts, p)
    expected = by_token(x, weights, experts, params)
    for run in (f, jit(f)):
        np.testing.assert_allclose(run(x, weights, params), expected, rtol=1e-4, atol=1e-5)
    if len(experts):
        check_grads(f, (x, weights, params), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("count", [255, 256, 300])
def test_many_experts(count: int) -> None:
    """Experts are sorted as the narrowest integers that hold them, and one that stands for none."""
    experts = np.random.default_rng(1).integers(0, count + 1, (40, K))
    experts[0] = [0, count - 1, count]
    x, weights, params = array(1, 40, F), array(2, 40, K), experts_of(0, count)
    y = nn.expert_mlp(x, weights, jnp.asarray(experts, jnp.int32), params)
    np.testing.assert_allclose(y, by_token(x, weights, experts, params), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_no_token_is_dropped(dtype: Any) -> None:
    """Experts that are the identity give x times the sum of the weights, however they are chosen.

    silu(gate) * up is x where silu(gate) is 1.
    """
    x = jnp.abs(array(1, 500, F)) + 0.5
    one = 1.2784645427610738  # silu(1.2784645...) is 1
    eye = jnp.broadcast_to(jnp.eye(F), (E, F, F))
    params = {
        "gate_proj": {"weight": jnp.zeros((E, F, F))},
        "up_proj": {"weight": eye},
        "down_proj": {"weight": eye},
    }
    params, x = tree.map(lambda p: p.astype(dtype), (params, x))
    logits = 20 * array(2, 500, E) * jnp.arange(E)  # most tokens on few experts
    weights, experts, _ = nn.top_k_routing(logits, K, normalize=False)
    y = jit(lambda x: nn.expert_mlp(x, weights, experts, params, lambda g: nn.silu(g + one)))(x)
    assert y.dtype == dtype
    wide = np.asarray(x).astype(np.float64) * np.asarray(weights).sum(-1, keepdims=True)
    rtol = {jnp.float32: 1e-5, jnp.float16: 4e-3, jnp.bfloat16: 3e-2}[dtype]
    np.testing.assert_allclose(np.asarray(y).astype(np.float64), wide, rtol=rtol)


# ---- routing ----


def test_routing_by_definition() -> None:
    logits = drawn(1, 4, 5, E)
    s = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = np.argsort(-s, -1)[..., :K]
    picked = np.take_along_axis(s, order, -1)
    for normalize in (True, False):
        weights, experts, p = nn.top_k_routing(
            jnp.asarray(logits, jnp.float32), K, normalize=normalize
        )
        assert experts.dtype == jnp.int32 and weights.dtype == p.dtype == jnp.float32
        np.testing.assert_array_equal(experts, order)
        expected = picked / picked.sum(-1, keepdims=True) if normalize else picked
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        np.testing.assert_allclose(p, s, rtol=1e-5)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("k", [1, 2, E])
def test_derivatives_of_routing(score: Any, k: int) -> None:
    logits = array(1, 3, E)

    def f(logits: Any) -> Any:
        weights, _, p = nn.top_k_routing(logits, k, score=score, normalize=k > 1)
        return weights, p

    check_grads(f, (logits,), order=2, atol=2e-2, rtol=2e-2)


def test_the_earlier_of_equal_experts_comes_first() -> None:
    for logits in (jnp.zeros((2, E)), jnp.full((2, E), -jnp.inf).at[:, 0].set(0.0)):
        weights, experts, _ = nn.top_k_routing(logits, K)
        np.testing.assert_array_equal(experts, [[0, 1, 2]] * 2)
        np.testing.assert_allclose(weights.sum(-1), [1, 1], rtol=1e-6)


def test_scores_that_are_all_zero_give_no_nan() -> None:
    f = lambda x: nn.top_k_routing(x, K, score="sigmoid")[0]
    x = jnp.full((2, E), -300.0)
    np.testing.assert_array_equal(f(x), np.zeros((2, K)))
    np.testing.assert_array_equal(grad(lambda x: f(x).sum())(x), np.zeros((2, E)))


def test_routing_is_in_float32() -> None:
    logits = array(1, 50, E)
    low = logits.astype(jnp.bfloat16)
    weights, _, p = nn.top_k_routing(low, K)
    assert weights.dtype == p.dtype == jnp.float32
    np.testing.assert_array_equal(p, nn.top_k_routing(low.astype(jnp.float32), K)[2])
    # A bfloat16 layer routes by the logits before they are rounded.
    layer = nn.MoE(F, H, E, K, dtype=jnp.bfloat16)
    params, x = layer.init(random.key(0)), array(1, 50, F).astype(jnp.bfloat16)
    wide = tree.map(lambda p: p.astype(jnp.float32), params)
    _, state = layer(params, x, state=layer.init_state())
    exact = nn.MoE(F, H, E, K)
    _, expected = exact(wide, x.astype(jnp.float32), state=layer.init_state())
    np.testing.assert_array_equal(state["load"], expected["load"])
    for name in ("balance_loss", "z_loss"):
        np.testing.assert_allclose(state[name], expected[name], rtol=1e-5)


def test_what_routing_cannot_use_is_refused() -> None:
    x = jnp.ones((3, E))
    wrong: Any
    for wrong in (0, E + 1):
        with pytest.raises(ArgumentError, match=f"k is {wrong}, but is from 1 to the {E} experts"):
            nn.top_k_routing(x, wrong)
    wrong = "tanh"
    with pytest.raises(ArgumentError, match='score is \'tanh\', but is "softmax" or "sigmoid"'):
        nn.top_k_routing(x, 1, score=wrong)
    with pytest.raises(ShapeError, match=rf"bias is f32\[3\], but has to be \[{E}\]"):
        nn.top_k_routing(x, 1, bias=jnp.ones(3))
    weights, experts, p = nn.top_k_routing(x, K)
    with pytest.raises(ShapeError, match="where is bool"):
        nn.load_balancing_loss(p, experts, E, np.ones(4, bool))
    with pytest.raises(ShapeError, match=r"probabilities are f32\[3,7\] and experts i32\[3,3\]"):
        nn.load_balancing_loss(p, experts, E + 1)
    with pytest.raises(ShapeError, match=r"weights are f32\[3,2\]"):
        nn.expert_mlp(array(1, 3, F), weights[:, :2], experts, experts_of(0))
    with pytest.raises(ShapeError, match=r"x is f32\[2,6\] and experts i32\[3,3\]"):
        nn.expert_mlp(array(1, 2, F), weights, experts, experts_of(0))
    with pytest.raises(ShapeError, match=r"down_proj are f32\[7,5,6\], f32\[7,5,6\] and"):
        nn.expert_mlp(array(1, 3, F + 1), weights, experts, experts_of(0))


# ---- the layer ----


LAYER = nn.MoE(F, H, E, K, shared_hidden=4, shared_gate=True)


def test_nan_stays_in_its_row() -> None:
    params, x = LAYER.init(random.key(0)), array(1, 9, F)
    bad = x.at[4].set(jnp.nan)
    f = jit(LAYER)
    y, clean = np.asarray(f(params, bad)), np.asarray(f(params, x))
    assert np.isnan(y[4]).all()
    others = np.arange(9) != 4
    np.testing.assert_allclose(y[others], clean[others], rtol=1e-5, atol=1e-6)
    dx, clean = [grad(lambda x: jnp.sum(f(params, x) ** 2))(v) for v in (bad, x)]
    np.testing.assert_allclose(
        np.asarray(dx)[others], np.asarray(clean)[others], rtol=1e-4, atol=1e-6
    )


def test_nan_of_an_expert_stays_with_its_tokens() -> None:
    experts = jnp.asarray(ROUTINGS["random"], jnp.int32)
    x, weights, params = array(1, 11, F), array(2, 11, K), experts_of(0)
    up = params["up_proj"]["weight"].at[4].set(jnp.nan)
    bad = {**params, "up_proj": {"weight": up}}
    chosen = (ROUTINGS["random"] == 4).any(-1)
    assert chosen.any() and not chosen.all()
    for f in (nn.expert_mlp, jit(nn.expert_mlp)):
        y = np.asarray(f(x, weights, experts, bad))
        np.testing.assert_array_equal(np.isnan(y).all(-1), chosen)
        expected = np.asarray(f(x, weights, experts, params))
        np.testing.assert_allclose(y[~chosen], expected[~chosen], rtol=1e-5, atol=1e-6)


def test_the_router_learns_through_the_weights() -> None:
    params, x = LAYER.init(random.key(0)), array(1, 9, F)
    g = grad(lambda p: jnp.sum(LAYER(p, x) ** 2))(params)
    for path, v in tree.leaves_with_path(g):
        assert np.abs(np.asarray(v)).max() > 1e-4, tree.keystr(path)


def test_batches_and_transforms() -> None:
    params, x = LAYER.init(random.key(0)), array(1, 4, 3, F)
    y = LAYER(params, x)
    for run in (
        jit(LAYER),
        vmap(LAYER, (None, 0)),
        jit(vmap(vmap(LAYER, (None, 0)), (None, 0))),
        lambda p, x: jnp.stack([LAYER(p, row) for row in x]),
        lambda p, x: LAYER(p, x.reshape(12, F)).reshape(4, 3, F),
    ):
        np.testing.assert_allclose(run(params, x), y, rtol=1e-5, atol=1e-6)
    loss = lambda p, x: jnp.sum(LAYER(p, x) ** 2)
    one = grad(loss)(params, x)
    each = vmap(grad(loss), (None, 0))(params, x)
    for path, total in tree.leaves_with_path(one):
        part = dict(tree.leaves_with_path(each))[path]
        np.testing.assert_allclose(part.sum(0), total, rtol=1e-4, atol=1e-5)
    members = vmap(LAYER.init)(random.split(random.key(1), 2))
    ys = vmap(LAYER, (0, None))(members, x)
    for i in range(2):
        expected = LAYER(tree.map(lambda p, i=i: p[i], members), x)
        np.testing.assert_allclose(ys[i], expected, rtol=1e-5, atol=1e-6)


def test_derivatives_of_the_layer() -> None:
    params, x = LAYER.init(random.key(0)), array(1, 3, F)
    check_grads(LAYER, (params, x), order=1, atol=2e-2, rtol=2e-2)
    loss = lambda x: jnp.sum(jnp.sin(LAYER(params, x)))
    second = lambda x: jnp.sum(grad(loss)(x) ** 2)
    v, eps = array(2, 3, F), 1e-2
    expected = (float(second(x + eps * v)) - float(second(x - eps * v))) / (2 * eps)
    got = float(jnp.sum(jit(grad(second))(x) * v))
    assert abs(got - expected) < 2e-2 * max(1.0, abs(expected))
    _, forward = jvp(second, (x,), (v,))
    assert abs(float(forward) - got) < 1e-4 * max(1.0, abs(got))


def test_amp() -> None:
    """Products in bfloat16, the router in float32: it chooses the same experts."""
    layer = nn.MoE(16, 32, E, K, shared_hidden=8)
    params, x = layer.init(random.key(0)), array(1, 64, 16)
    f = lambda p, x: layer(p, x, state=layer.init_state())
    y, state = f(params, x)
    for run in (amp(f), jit(amp(f))):
        low, low_state = run(params, x)
        assert low.dtype == jnp.float32
        np.testing.assert_allclose(low, y, rtol=0.05, atol=0.02 * float(jnp.abs(y).max()))
        assert float(jnp.abs(low - y).max()) > 0, "the products were rounded"
        np.testing.assert_array_equal(low_state["load"], state["load"])
        np.testing.assert_allclose(low_state["z_loss"], state["z_loss"], rtol=1e-5)
    loss = lambda p, x: jnp.sum(f(p, x)[0] ** 2)
    exact, mixed = grad(loss)(params, x), jit(grad(amp(loss)))(params, x)
    for (path, a), b in zip(tree.leaves_with_path(exact), tree.leaves(mixed), strict=True):
        scale = float(jnp.abs(a).max())
        np.testing.assert_allclose(b, a, atol=0.05 * scale, err_msg=tree.keystr(path))


def test_state() -> None:
    params, x = LAYER.init(random.key(0)), array(1, 4, 5, F)
    state = LAYER.init_state()
    y, new = LAYER(params, x, state=state, train=True)
    np.testing.assert_allclose(y, LAYER(params, x), rtol=1e-6)
    assert tree.structure(new) == tree.structure(state)
    assert [v.dtype for v in tree.leaves(new)] == [v.dtype for v in tree.leaves(state)]
    logits = x @ params["gate"]["weight"].T
    _, experts, p = nn.top_k_routing(logits, K)
    np.testing.assert_array_equal(new["load"], np.bincount(np.ravel(experts), minlength=E))
    assert int(new["load"].sum()) == 20 * K
    np.testing.assert_allclose(
        new["balance_loss"], nn.load_balancing_loss(p, experts, E), rtol=1e-5
    )
    np.testing.assert_allclose(new["z_loss"], nn.router_z_loss(logits), rtol=1e-5)
    # What it returns is of this call alone.
    _, again = LAYER(params, x, state=new)
    np.testing.assert_array_equal(again["load"], new["load"])
    # So are its dtypes, whatever the input's: a carry of a loop keeps its own.
    for dtype in (jnp.bfloat16, jnp.float64):
        _, other = LAYER(params, x.astype(dtype), state=state)
        assert [v.dtype for v in tree.leaves(other)] == [v.dtype for v in tree.leaves(state)]
    # Padding does not count.
    mask = np.arange(5) < [[5], [2], [0], [1]]
    masked, counted = LAYER(params, x, state=state, where=mask)
    np.testing.assert_allclose(masked, y, rtol=1e-6)
    _, expected = LAYER(params, x[mask], state=state)
    for a, b in zip(tree.leaves(counted), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_containers_take_it_with_and_without_state() -> None:
    block = nn.Residual(nn.Sequential(nn.RMSNorm(F), LAYER))
    model = nn.Sequential(nn.Linear(F, F), block, nn.relu, nn.Linear(F, 2))
    params, state, x = model.init(random.key(0)), model.init_state(), array(1, 9, F)
    y = model(params, x)
    z, new = jit(lambda p, s, x: model(p, x, state=s, train=True))(params, state, x)
    np.testing.assert_allclose(z, y, rtol=1e-5, atol=1e-6)
    assert tree.structure(new) == tree.structure(state)
    assert new[0] is None and int(new[1][1]["load"].sum()) == 9 * K

    def loss(params: Any, state: Any) -> Any:
        y, state = model(params, x, state=state)
        return 0.0 * jnp.sum(y) + state[1][1]["balance_loss"] + state[1][1]["z_loss"], state

    g, _ = grad(loss, has_aux=True)(params, state)
    assert float(jnp.abs(g[1][1]["gate"]["weight"]).max()) > 1e-3
    assert float(jnp.abs(g[1][1]["experts"]["down_proj"]["weight"]).max()) == 0
    # As the carry of a loop.
    final, _ = scan(lambda s, x: (model(params, x, state=s)[1], None), state, jnp.stack([x, x]))
    np.testing.assert_array_equal(final[1][1]["load"], new[1][1]["load"])
    with_statistics = nn.Sequential(nn.BatchNorm(F), LAYER)
    with pytest.raises(ArgumentError, match="state= is missing"):
        with_statistics(with_statistics.init(random.key(0)), x)


def test_parameters() -> None:
    params = nn.MoE(40, 30, 5, 2, shared_hidden=8, shared_gate=True, dtype=jnp.bfloat16).init(
        random.key(0)
    )
    shapes = {
        tree.keystr(path, simple=True, separator="."): p.shape
        for path, p in tree.leaves_with_path(params)
    }
    assert shapes == {
        "gate.weight": (5, 40), "experts.gate_proj.weight": (5, 30, 40),
        "experts.up_proj.weight": (5, 30, 40), "experts.down_proj.weight": (5, 40, 30),
        "shared_expert.gate_proj.weight": (8, 40), "shared_expert.up_proj.weight": (8, 40),
        "shared_expert.down_proj.weight": (40, 8), "shared_expert_gate.weight": (1, 40),
    }  # fmt: skip
    assert {p.dtype.name for p in tree.leaves(params)} == {"bfloat16"}
    for name, fan_in in (("gate_proj", 40), ("down_proj", 30)):
        w = np.asarray(params["experts"][name]["weight"]).astype(np.float64)
        assert np.abs(w).max() <= 1.01 / np.sqrt(fan_in)
        assert abs(w.std() * np.sqrt(3 * fan_in) - 1) < 0.05
    assert nn.MoE(4, 8, 3, 2) == nn.MoE(4, 8, 3, 2) != nn.MoE(4, 8, 3, 1)
    assert hash(LAYER) == hash(LAYER) and "shared_hidden=4" in repr(LAYER)


def test_what_the_layer_cannot_use_is_refused() -> None:
    def refused(call: Any) -> str:
        with pytest.raises(ArgumentError) as error:
            call()
        return str(error.value)

    wrong: Any = "silu"
    assert "top_k is 4, but is from 1" in refused(lambda: nn.MoE(4, 8, 3, 4))
    assert "top_k is 0, but is from 1" in refused(lambda: nn.MoE(4, 8, 3, 0))
    assert "shared_hidden=" in refused(lambda: nn.MoE(4, 8, 3, 1, shared_gate=True))
    assert "activation=nn.silu" in refused(lambda: nn.MoE(4, 8, 3, 1, activation=wrong))
    wrong = 8.0
    assert "hidden is 8.0" in refused(lambda: nn.MoE(4, wrong, 3, 1))
    params, x = LAYER.init(random.key(0)), array(1, 3, F)
    assert "features=6" in refused(lambda: LAYER(params, jnp.ones((3, 5))))
    without = {k: v for k, v in params.items() if k != "experts"}
    text = refused(lambda: LAYER(without, x))
    assert "params['experts'] is wanted" in text and "layer.init(key)" in text
    other = nn.MoE(F, H + 1, E, K, shared_hidden=4, shared_gate=True).init(random.key(0))
    text = refused(lambda: LAYER(other, x))
    assert "params['experts']['gate_proj']['weight'] is f32[7,6,6], but has to be [7, 5, 6]" in text
    other = {**params, "shared_expert": {**params["shared_expert"], "up_proj": {}}}
    text = refused(lambda: nn.Sequential(LAYER)([other], x))
    assert "params[0]['shared_expert']['up_proj']['weight'] of shape [4, 6] is wanted" in text
    with pytest.raises(ShapeError, match=r"where is bool\[4\], but has to be \[3\]"):
        LAYER(params, x, state=LAYER.init_state(), where=np.ones(4, bool))
