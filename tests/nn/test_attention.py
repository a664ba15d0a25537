"""MultiHeadAttention against torch's functions; its cache against calls without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import genesis_fn.numpy as jnp
from genesis_fn import errors, grad, jit, nn, random, tree, vmap
from genesis_fn.errors import ArgumentError

CASES = {
    "plain": {},
    "causal": {"causal": True},
    "grouped": {"kv_heads": 2, "causal": True},
    "one key head, no bias": {"kv_heads": 1, "bias": False},
    "head_dim, output bias": {"head_dim": 10, "bias": False, "output_bias": True},
    "window": {"causal": True, "window": 2},
    "window to both sides": {"window": 1},
    "normed": {"qk_norm": True, "kv_heads": 2},
    "rotary": {"rotary": nn.RotaryEmbedding(8), "causal": True, "qk_norm": True},
    "interleaved": {"rotary": nn.RotaryEmbedding(8, interleaved=True, rotated=4)},
    "softcap": {"softcap": 2.0, "causal": True},
}


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_path(params):
    """{"q_proj.weight": array, ...}."""
    named = tree.leaves_with_path(params)
    return {tree.keystr(path, simple=True, separator="."): x for path, x in named}


def parameters(layer: nn.MultiHeadAttention):
    """Random parameters, norms and biases included, as ours and as torch's with gradients."""
    params = layer.init(random.key(0))
    rng = np.random.default_rng(7)
    params = tree.map(lambda p: p + 0.1 * rng.normal(size=p.shape).astype(np.float32), params)
    as_torch = {
        k: torch.from_numpy(np.array(v)).requires_grad_() for k, v in by_path(params).items()
    }
    return params, as_torch


def reference(layer, p, x, context=None, mask=None, bias=None):
    """The layer in torch, with parameters by dotted path."""
    source = x if context is None else context
    heads = layer.heads
    kv_heads = layer.kv_heads or heads
    d = layer.head_dim or layer.features // heads

    def project(name, x):
        return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))

    q = project("q_proj", x).unflatten(-1, (heads, d))
    k = project("k_proj", source).unflatten(-1, (kv_heads, d))
    v = project("v_proj", source).unflatten(-1, (kv_heads, d))
    if layer.qk_norm:
        q = F.rms_norm(q, (d,), p["q_norm.weight"], layer.eps)
        k = F.rms_norm(k, (d,), p["k_norm.weight"], layer.eps)
    if layer.rotary is not None:
        q, k = turned(q, layer.rotary), turned(k, layer.rotary)
    k, v = [y.repeat_interleave(heads // kv_heads, 2) for y in (k, v)]
    scores = torch.einsum("btnd,bsnd->bnts", q, k) / d**0.5
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if bias is not None:
        scores = scores + torch.from_numpy(bias)
    t, s = scores.shape[-2:]
    apart = torch.arange(s) - torch.arange(t)[:, None]
    seen = torch.ones(t, s, dtype=torch.bool)
    if layer.causal:
        seen &= apart <= 0
    if layer.window is not None:
        seen &= apart.abs() <= layer.window
    if mask is not None:
        seen = seen & torch.from_numpy(mask)
    scores = scores.masked_fill(~seen, float("-inf"))
    y = torch.einsum("bnts,bsnd->btnd", scores.softmax(-1), v)
    return project("o_proj", y.flatten(2))


def turned(x, rotary):
    """Rotary positions 0, 1, ... of [B, T, heads, d] as complex numbers."""
    size = rotary.rotated or rotary.head_dim
    part, rest = x[..., :size], x[..., size:]
    if rotary.interleaved:
        pairs = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous())
    else:
        pairs = torch.complex(part[..., : size // 2], part[..., size // 2 :])
    frequency = rotary.base ** (-torch.arange(0, size, 2) / size)
    angle = torch.arange(x.shape[1])[:, None, None] * frequency
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    if rotary.interleaved:
        out = torch.view_as_real(pairs).flatten(-2)
    else:
        out = torch.cat([pairs.real, pairs.imag], -1)
    return torch.cat([out, rest], -1)


def compare(layer, x, **options):
    """Values and gradients by the input, the context and all parameters, eager and jitted."""
    params, p = parameters(layer)
    context = options.pop("context", None)
    tx = torch.from_numpy(x).requires_grad_()
    tc = None if context is None else torch.from_numpy(context).requires_grad_()
    expected = reference(layer, p, tx, tc, **options)
    weights = drawn(9, *expected.shape)
    (expected * torch.from_numpy(weights)).sum().backward()

    def f(params, x, context):
        return layer(params, x, context=context, **options)

    given = (params, jnp.asarray(x), None if context is None else jnp.asarray(context))
    np.testing.assert_allclose(f(*given), expected.detach().numpy(), atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(jit(f)(*given), expected.detach().numpy(), atol=2e-5, rtol=1e-4)
    g = jit(grad(lambda *a: jnp.sum(f(*a) * weights), (0, 1, 2) if context is not None else (0, 1)))
    dp, dx, *dc = g(*given)
    np.testing.assert_allclose(dx, tx.grad.numpy(), atol=1e-4, rtol=1e-3)
    if tc is not None:
        np.testing.assert_allclose(dc[0], tc.grad.numpy(), atol=1e-4, rtol=1e-3)
    for name, value in by_path(dp).items():
        np.testing.assert_allclose(value, p[name].grad.numpy(), atol=2e-4, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str):
    compare(nn.MultiHeadAttention(32, 4, **CASES[name]), drawn(1, 2, 7, 32))


def test_mask_and_bias():
    mask = np.random.default_rng(2).random((2, 1, 7, 7)) < 0.6
    mask |= np.eye(7, dtype=bool)
    compare(nn.MultiHeadAttention(32, 4), drawn(1, 2, 7, 32), mask=mask, bias=drawn(3, 1, 4, 7, 7))
    compare(nn.MultiHeadAttention(32, 4, causal=True), drawn(1, 2, 7, 32), mask=mask)


def test_cross_attention():
    layer = nn.MultiHeadAttention(32, 4, kv_heads=2, context_features=12)
    compare(layer, drawn(1, 2, 5, 32), context=drawn(2, 2, 9, 12))


def test_against_torch_module():
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        module.in_proj_bias.normal_()
        module.out_proj.bias.normal_()
    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    named = {
        f"{n}_proj": {"weight": jnp.asarray(w.detach().numpy()), "bias": jnp.asarray(b.detach())}
        for n, w, b in zip("qkv", weights, biases)
    }
    out = module.out_proj
    named["o_proj"] = {
        "weight": jnp.asarray(out.weight.detach().numpy()),
        "bias": jnp.asarray(out.bias.detach().numpy()),
    }
    x = drawn(4, 2, 6, 32)
    expected, _ = module(*[torch.from_numpy(x)] * 3)
    layer = nn.MultiHeadAttention(32, 4)
    np.testing.assert_allclose(layer(named, x), expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].get("causal")])
def test_cache_in_pieces(name: str):
    """Any split of a sequence gives what the whole gives: a prompt, a chunk, single steps."""
    layer = nn.MultiHeadAttention(32, 4, **CASES[name])
    params, _ = parameters(layer)
    x = jnp.asarray(drawn(1, 2, 9, 32))
    expected = layer(params, x)
    step = jit(lambda p, x, s: layer(p, x, state=s))
    state, found = layer.init_state(batch=2, capacity=12), []
    for start, end in ((0, 4), (4, 8), (8, 9)):
        y, state = step(params, x[:, start:end], state)
        found.append(y)
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, atol=2e-5)
    assert state["lengths"].tolist() == [9, 9]


def test_ragged_cache():
    """Rows of several lengths: padding behind a prompt is overwritten, never attended to."""
    layer = nn.MultiHeadAttention(32, 4, kv_heads=2, causal=True, rotary=nn.RotaryEmbedding(8))
    params, _ = parameters(layer)
    x = drawn(1, 2, 8, 32)
    lengths = [5, 2]
    state = layer.init_state(batch=2, capacity=8)
    y, state = layer(params, x[:, :5], state=state, counts=jnp.array(lengths))
    for row, n in enumerate(lengths):
        whole = layer(params, x[row : row + 1, :n])
        np.testing.assert_allclose(y[row : row + 1, :n], whole, atol=2e-5)
    following = np.stack([x[0, 5:6], x[1, 2:3]])
    y, state = layer(params, following, state=state)
    assert state["lengths"].tolist() == [6, 3]
    for row, n in enumerate(lengths):
        whole = layer(params, x[row : row + 1, : n + 1])[:, -1]
        np.testing.assert_allclose(y[row : row + 1, 0], whole, atol=2e-5)


def test_window_within_a_cache_without_causality():
    layer = nn.MultiHeadAttention(32, 4, window=2)
    params, _ = parameters(layer)
    x = jnp.asarray(drawn(1, 1, 6, 32))
    y, _ = layer(params, x, state=layer.init_state(batch=1, capacity=10))
    np.testing.assert_allclose(y, layer(params, x), atol=2e-5)


def test_context_is_projected_once():
    layer = nn.MultiHeadAttention(32, 4, context_features=12)
    params, _ = parameters(layer)
    x, context = jnp.asarray(drawn(1, 2, 3, 32)), jnp.asarray(drawn(2, 2, 9, 12))
    expected = layer(params, x, context=context)
    state = layer.init_state(batch=2, capacity=9)
    first, state = layer(params, x[:, :2], state=state, context=context)
    second, same = layer(params, x[:, 2:], state=state)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), expected, atol=2e-5)
    assert same["lengths"].tolist() == [9, 9]
    # Rows of a context may be shorter.
    counted = layer(params, x, context=context, counts=jnp.array([9, 4]))
    alone = layer(params, x[1:], context=context[1:, :4])
    np.testing.assert_allclose(counted[1:], alone, atol=2e-5)


def test_cache_dtype_and_full_cache():
    layer = nn.MultiHeadAttention(32, 4, causal=True)
    params, _ = parameters(layer)
    x = jnp.asarray(drawn(1, 1, 4, 32))
    state = layer.init_state(batch=1, capacity=4, dtype=jnp.bfloat16)
    y, state = layer(params, x, state=state)
    assert state["k"].dtype == jnp.bfloat16 and y.dtype == jnp.float32
    np.testing.assert_allclose(y, layer(params, x), atol=5e-2)
    with pytest.raises(errors.AssertionFailed, match="positions fewer than the 1"):
        np.asarray(layer(params, x[:, :1], state=state)[0])


def test_in_containers():
    """A Sequential threads caches beside layers without state."""
    attention = nn.MultiHeadAttention(32, 4, causal=True, rotary=nn.RotaryEmbedding(8))
    block = nn.Residual(nn.Sequential(norm=nn.RMSNorm(32), attention=attention))
    model = nn.Sequential(block, block, nn.Linear(32, 5))
    params = model.init(random.key(0))
    x = jnp.asarray(drawn(1, 2, 6, 32))
    expected = model(params, x)
    state = model.init_state(batch=2, capacity=6)
    assert model.init_state() is None and state[2] is None
    first, state = model(params, x[:, :4], state=state)
    second, state = model(params, x[:, 4:], state=state)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), expected, atol=2e-5)
    assert state[1]["attention"]["lengths"].tolist() == [6, 6]


def test_dropout_of_probabilities():
    plain = nn.MultiHeadAttention(32, 4, kv_heads=2, causal=True, window=3, softcap=3.0)
    layer = nn.MultiHeadAttention(32, 4, 2, causal=True, window=3, softcap=3.0, dropout=0.5)
    params, _ = parameters(plain)
    x, bias = jnp.asarray(drawn(1, 2, 6, 32)), jnp.asarray(drawn(5, 1, 4, 6, 6))
    expected = plain(params, x, bias=bias)
    np.testing.assert_allclose(layer(params, x, bias=bias), expected, atol=2e-5)
    draw = jit(vmap(lambda key: layer(params, x, key=key, train=True, bias=bias)))
    outs = draw(random.split(random.key(3), 4000))
    assert float(jnp.std(outs[:, 0, 5, 0])) > 0.01
    np.testing.assert_allclose(jnp.mean(outs, 0), expected, atol=0.08)
    again = layer(params, x, key=random.key(1), train=True)
    np.testing.assert_array_equal(again, layer(params, x, key=random.key(1), train=True))
    with pytest.raises(ArgumentError, match="needs key="):
        layer(params, x, train=True)


def test_vmap_and_second_derivatives():
    layer = nn.MultiHeadAttention(8, 2, causal=True)
    params, _ = parameters(layer)
    x = jnp.asarray(drawn(1, 3, 2, 4, 8))
    np.testing.assert_allclose(
        vmap(lambda x: layer(params, x))(x), jnp.stack([layer(params, y) for y in x]), atol=1e-5
    )
    f = lambda x: jnp.sum(jnp.sin(layer(params, x)))
    v = jnp.asarray(drawn(2, 2, 4, 8))
    product = grad(lambda x: jnp.sum(grad(f)(x) * v))(x[0])
    step = 1e-3
    moved = (grad(f)(x[0] + step * v) - grad(f)(x[0] - step * v)) / (2 * step)
    np.testing.assert_allclose(product, moved, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: nn.MultiHeadAttention(32, 4, kv_heads=3), "kv_heads=3 has to divide heads=4"),
    (lambda: nn.MultiHeadAttention(30, 4), "heads=4 has to divide features=30"),
    (lambda: nn.MultiHeadAttention(32, 4, rotary=nn.RotaryEmbedding(6)), "8 elements, but rotary"),
    (lambda: nn.MultiHeadAttention(32, 4, context_features=8, causal=True), "cross-attention"),
    (lambda: nn.MultiHeadAttention(32, 4, window=-1), "window is -1"),
    (lambda: nn.MultiHeadAttention(32, 4, dropout=1.5), "rate is 1.5"),
    (lambda: nn.MultiHeadAttention(32, 4, window=1.5), "window is 1.5"),
    (lambda: nn.MultiHeadAttention(32, 4, kv_heads=1.0), "kv_heads is 1.0"),
    (lambda: nn.MultiHeadAttention(32, 4, head_dim=0), "heads have 0 elements"),
    (lambda: nn.MultiHeadAttention(32, 4, rotary="half"), "nn.RotaryEmbedding"),
    (lambda: nn.MultiHeadAttention(32, 4, output_bias=1), "output_bias is 1"),
    (lambda: nn.MultiHeadAttention(32, 4, softcap=-1.0), "softcap is -1.0"),
])  # fmt: skip
def test_refused_options(make, message: str):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("shape", [(0, 3, 32), (2, 0, 32)])
def test_no_rows_and_no_positions(shape):
    layer = nn.MultiHeadAttention(32, 4, causal=True, rotary=nn.RotaryEmbedding(8), dropout=0.1)
    params, x = layer.init(random.key(0)), jnp.ones(shape)
    assert layer(params, x).shape == shape
    assert layer(params, x, key=random.key(1), train=True).shape == shape
    y, state = layer(params, x, state=layer.init_state(batch=shape[0], capacity=4))
    assert y.shape == shape and np.all(np.asarray(state["lengths"]) == shape[1])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(("options", "message"), [
    ({"mask": np.ones((2, 5), bool)}, r"mask is .*broadcast to \[2, 4, 5, [58]\]"),
    ({"mask": np.ones((5, 1), np.float32)}, "mask is .*but is of booleans"),
    ({"bias": np.ones((3, 5, 1), np.float32)}, "bias is .*has to broadcast"),
    ({"positions": np.arange(4)}, r"positions are .*\[2, 5\] or \[5\]"),
    ({"counts": np.array([1, 2, 3])}, r"counts are .*integers \[2\]"),
    ({"counts": np.array([1.0, 2.0])}, r"counts are .*integers \[2\]"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_named(options, message: str, cached: bool, train: bool):
    layer = nn.MultiHeadAttention(32, 4, causal=True, rotary=nn.RotaryEmbedding(8), dropout=0.1)
    params, x = layer.init(random.key(0)), jnp.ones((2, 5, 32))
    state = layer.init_state(batch=2, capacity=8) if cached else None
    with pytest.raises(ArgumentError, match=message):
        layer(params, x, state=state, train=train, key=random.key(1), **options)


def test_refused_arguments():
    layer = nn.MultiHeadAttention(32, 4)
    params = layer.init(random.key(0))
    x = jnp.ones((2, 3, 32))
    for call, message in (
        (lambda: layer(params, x[0]), r"\[batch, T, 32\]"),
        (lambda: layer(params, x[..., :5]), r"\[..., 32\]"),
        (lambda: layer(params, x, context=x), "context= is for cross-attention"),
        (lambda: layer(params, x, positions=jnp.arange(3)), "layer with rotary="),
        (lambda: layer(params, x, state=nn.MultiHeadAttention(32, 2).init_state(
            batch=2, capacity=4)), r"state\['k'\] is .*has to be \[2, 4, 4, 8\]"),
        (lambda: layer({}, x), r"params\['q_proj'\] is wanted"),
        (lambda: layer(params, x, state={"k": 1}), "cache of keys and values"),
        (lambda: layer(params, x, state=layer.init_state(batch=1, capacity=4)), "a batch of 2"),
        (lambda: layer(params, x, state=layer.init_state(batch=2, capacity=2)), "fewer than the 3"),
        (lambda: nn.MultiHeadAttention(32, 4, context_features=8)(
            nn.MultiHeadAttention(32, 4, context_features=8).init(random.key(0)), x),
         "context= is missing"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            call()


def test_operands_whose_last_dimension_is_not_the_innermost():
    """A transposed view is taken for what it is, forwards and backwards."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 8)).astype("f4")
    heads = lambda x: jnp.reshape(x, (1, 4, 2, 4))
    f = lambda x, y: nn.dot_product_attention(heads(x), heads(y), heads(x))
    both = lambda x, y: (f(x, y), grad(lambda x, y: jnp.sum(f(x, y) ** 2), (0, 1))(x, y))
    view = jnp.array(np.ascontiguousarray(x.T)).T
    for got, wanted in zip(
        tree.leaves(both(view, jnp.array(y))), tree.leaves(both(jnp.array(x), jnp.array(y)))
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
