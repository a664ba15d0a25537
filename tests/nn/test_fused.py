"""Fused operations: reference, torch lowering and JAX agree, with every option and transform."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as xnp
import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn.backends.cpu import lower
from genesis_fn.core import errors
from genesis_fn.lax.fused import attention as attention_module, cross_entropy, norms, softmax
from genesis_fn.lax.fused.attention import dot_product_attention
from genesis_fn.lax.fused.cross_entropy import cross_entropy_last, linear_cross_entropy
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, value_and_grad, vjp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.custom import fused_functions as fused_module
from genesis_fn.transforms.custom.fused_functions import FUSED
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp

RNG = np.random.default_rng(0)


def array(*shape, scale=1.0):
    return (RNG.normal(size=shape) * scale).astype(np.float32)


def close(ours, theirs, rtol=2e-5, atol=2e-6):
    np.testing.assert_allclose(
        np.asarray(ours).astype(np.float64),
        np.asarray(theirs).astype(np.float64),
        rtol=rtol,
        atol=atol,
    )


@pytest.fixture(params=["torch", "reference"])
def lowering(request, monkeypatch):
    """Run a test with the backend's kernels, and with the references alone."""

    forget = fused_module.fused_p.eager_cache.clear
    if request.param == "reference":
        monkeypatch.setattr(lower, "FUSED", {})
        for op in FUSED.values():
            monkeypatch.setattr(op, "programs", {})
        forget()
    yield request.param
    forget()


# ---- rows ----

ROWS = {
    "softmax": (softmax.softmax_last, lambda x: jax.nn.softmax(x)),
    "log_softmax": (softmax.log_softmax_last, lambda x: jax.nn.log_softmax(x)),
    "logsumexp": (softmax.logsumexp_last, lambda x: jax.nn.logsumexp(x, -1)),
    "rms_norm": (
        lambda x: norms.rms_norm(x, jnp.linspace(0.5, 1.5, 9).astype(x.dtype), eps=1e-6),
        lambda x: (
            x * jax.lax.rsqrt(xnp.mean(x * x, -1, keepdims=True) + 1e-6)
            * xnp.linspace(0.5, 1.5, 9)
        ),
    ),
    "layer_norm": (
        lambda x: norms.layer_norm(
            x, jnp.linspace(0.5, 1.5, 9).astype(x.dtype), jnp.linspace(-1, 1, 9).astype(x.dtype),
            eps=1e-5,
        ),
        lambda x: (
            (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
            * xnp.linspace(0.5, 1.5, 9) + xnp.linspace(-1, 1, 9)
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows(name, lowering):
    f, g = ROWS[name]
    x = array(4, 5, 9, scale=3)
    a, b = jnp.asarray(x), xnp.asarray(x)
    weights = array(*np.shape(g(b)))
    close(f(a), g(b))
    ours, theirs = lambda x: jnp.sum(f(x) * weights), lambda x: xnp.sum(g(x) * weights)
    close(grad(ours)(a), jax.grad(theirs)(b))
    close(jit(grad(ours))(a), jax.grad(theirs)(b))
    twice = grad(lambda x: jnp.sum(grad(lambda x: jnp.sum(f(x) ** 2))(x) ** 2))
    expected = jax.grad(lambda x: xnp.sum(jax.grad(lambda x: xnp.sum(g(x) ** 2))(x) ** 2))(b)
    close(twice(a), expected, 2e-3, 2e-3 * float(np.abs(expected).max()))
    t = array(4, 5, 9)
    close(jvp(f, (a,), (jnp.asarray(t),))[1], jax.jvp(g, (b,), (xnp.asarray(t),))[1], 1e-4, 1e-5)
    close(vmap(f)(a), g(b))
    close(
        vmap(vmap(grad(lambda x: jnp.sum(f(x) ** 2))))(a),
        jax.grad(lambda x: xnp.sum(g(x) ** 2))(b),
        1e-4,
        1e-4,
    )
    half = f(jnp.asarray(x, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    close(half, g(xnp.asarray(xnp.asarray(x, xnp.bfloat16), xnp.float32)), 1e-2, 2e-2)
    gh = grad(lambda x: jnp.sum(f(x).astype(jnp.float32) * weights))(jnp.asarray(x, jnp.bfloat16))
    assert gh.dtype == jnp.bfloat16
    close(gh, jax.grad(theirs)(b), 4e-2, 4e-2)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norm_weights_and_batched_weights(name, lowering):
    op = getattr(norms, name)
    x, w, b = array(3, 6, 9), array(3, 9), array(3, 9)
    rest = (w,) if name == "rms_norm" else (w, b)

    def reference(x, *rest):
        x = x - (x.mean(-1, keepdims=True) if name == "layer_norm" else 0)
        y = x * jax.lax.rsqrt(xnp.mean(x * x, -1, keepdims=True) + 1e-5) * rest[0]
        return y + rest[1] if len(rest) > 1 else y

    ours = lambda *xs: jnp.sum(jnp.sin(op(*xs, eps=1e-5)))
    theirs = lambda *xs: xnp.sum(xnp.sin(reference(*xs)))
    one = [r[0] for r in rest]
    every = tuple(range(1 + len(rest)))
    got = grad(ours, every)(jnp.asarray(x), *map(jnp.asarray, one))
    for g, e in zip(got, jax.grad(theirs, every)(x, *one)):
        close(g, e, 1e-4, 1e-5)
    # A weight for each member of a batch: the kernel's shared weight is not enough.
    got = vmap(grad(ours, every))(jnp.asarray(x), *map(jnp.asarray, rest))
    for g, e in zip(got, jax.vmap(jax.grad(theirs, every))(x, *rest)):
        close(g, e, 1e-4, 1e-5)


def test_norms_of_integer_weights_and_of_no_features():
    x, w = array(3, 5), RNG.integers(1, 4, 5).astype(np.int32)
    for norm, rest in ((norms.rms_norm, ()), (norms.layer_norm, (w,))):
        f = lambda x, *w: (norm(x, *w, eps=1e-5) ** 2).sum()
        got = grad(f)(x, jnp.asarray(w), *map(jnp.asarray, rest))
        floats = [jnp.asarray(v.astype(np.float32)) for v in (w, *rest)]
        close(got, grad(f)(x, *floats), 1e-4, 1e-5)
        empty, ones = jnp.ones((3, 0)), [jnp.ones((0,)) for _ in (w, *rest)]
        assert norm(empty, *ones, eps=1e-5).shape == (3, 0)
        assert grad(f)(empty, *ones).shape == (3, 0)


# ---- attention ----


def qkv(b=2, t=6, s=6, n=4, kv=2, h=8):
    return array(b, t, n, h), array(b, s, kv, h), array(b, s, kv, h)


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3, "is_causal": True},
    "window": {"local_window_size": (2, 1)},
    "causal-window": {"local_window_size": 3, "is_causal": True},
    "mask": {"mask": RNG.random((2, 4, 6, 6)) > 0.3},
    "mask-broadcast": {"mask": RNG.random((1, 1, 6, 6)) > 0.3, "is_causal": True},
    "bias": {"bias": array(2, 4, 6, 6)},
    "bias-heads": {"bias": array(1, 4, 6, 6), "mask": RNG.random((2, 1, 1, 6)) > 0.2},
    "key-lengths": {"key_value_seq_lengths": np.array([5, 2])},
    "causal-key-lengths": {"key_value_seq_lengths": np.array([4, 6]), "is_causal": True},
    "lengths": {
        "query_seq_lengths": np.array([3, 6]), "key_value_seq_lengths": np.array([5, 2]),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_attention(name, lowering):
    options = OPTIONS[name]
    xs = qkv()
    if "mask" in options:  # JAX divides by zero in rows that see nothing
        options = {**options, "mask": options["mask"] | np.eye(6, dtype=bool)}
    ours = lambda *xs: dot_product_attention(*xs, **options)
    theirs = lambda *xs: jax.nn.dot_product_attention(
        *xs, **{k: xnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    )
    weights = array(2, 6, 4, 8)
    a, b = [jnp.asarray(x) for x in xs], [xnp.asarray(x) for x in xs]
    close(ours(*a), theirs(*b), 1e-4, 1e-5)
    f, g = lambda *x: jnp.sum(ours(*x) * weights), lambda *x: xnp.sum(theirs(*x) * weights)
    for x, y in zip(jit(grad(f, (0, 1, 2)))(*a), jax.grad(g, (0, 1, 2))(*b)):
        close(x, y, 1e-4, 2e-5)
    if "bias" in options:
        db = grad(lambda z: jnp.sum(dot_product_attention(*a, **{**options, "bias": z}) * weights))(
            jnp.asarray(options["bias"])
        )
        eb = jax.grad(
            lambda z: xnp.sum(jax.nn.dot_product_attention(*b, **{**options, "bias": z}) * weights)
        )(xnp.asarray(options["bias"]))
        close(db, eb, 1e-4, 2e-5)


IDS = np.array([[1, 1, 2, 2, 2, 0], [3, 1, 1, 3, 3, 3]])
SEGMENTS = {
    "own": (IDS, IDS, {}),
    "causal": (IDS, IDS, {"is_causal": True}),
    "window": (IDS, IDS, {"local_window_size": (2, 1), "key_value_seq_lengths": np.array([6, 4])}),
    "masked": (IDS, IDS, {"mask": RNG.random((2, 4, 6, 6)) > 0.3, "bias": array(2, 1, 6, 6)}),
    "keys": (IDS[:, :3], np.maximum(IDS, 1), {}),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_attention_inside_segments_is_jax_s_under_a_mask(name, lowering):
    own, theirs, options = SEGMENTS[name]
    xs = qkv(t=own.shape[1])
    alike = (own[:, :, None] == theirs[:, None, :])[:, None]
    if "mask" in options:
        options = {**options, "mask": options["mask"] | np.eye(6, dtype=bool)}
        alike = alike & options["mask"]
    ids = jnp.asarray(own) if own is theirs else (jnp.asarray(own), jnp.asarray(theirs))
    ours = lambda *xs: dot_product_attention(
        *xs, **{k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in options.items()},
        segment_ids=ids, return_residual=True,
    )  # fmt: skip
    given = {**options, "mask": alike}
    wanted = lambda *xs: jax.nn.dot_product_attention(
        *xs, **{k: xnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in given.items()},
        return_residual=True,
    )  # fmt: skip
    a, b = [jnp.asarray(x) for x in xs], [xnp.asarray(x) for x in xs]
    weights = array(2, own.shape[1], 4, 8)
    for x, y in zip(jit(ours)(*a), wanted(*b), strict=True):
        close(x, y, 1e-4, 1e-5)
    f, g = lambda *x: jnp.sum(ours(*x)[0] * weights), lambda *x: xnp.sum(wanted(*x)[0] * weights)
    for x, y in zip(jit(grad(f, (0, 1, 2)))(*a), jax.grad(g, (0, 1, 2))(*b)):
        close(x, y, 1e-4, 2e-5)


def test_attention_inside_segments_under_vmap_and_without_a_batch(lowering):
    q, k, v = map(jnp.asarray, qkv())
    ids = jnp.asarray(IDS)
    wanted = dot_product_attention(q, k, v, segment_ids=ids)
    attend = lambda q, k, v, ids: dot_product_attention(q, k, v, segment_ids=ids)
    close(vmap(attend)(q, k, v, ids), wanted, 1e-6, 1e-6)
    close(attend(q[0], k[0], v[0], ids[0]), wanted[0], 1e-6, 1e-6)
    batches = [jnp.stack([x, x[::-1]]) for x in (q, k, v)]
    shared = vmap(attend, (0, 0, 0, None))(*batches, ids)
    close(shared[1], attend(q[::-1], k[::-1], v[::-1], ids), 1e-6, 1e-6)
    each = vmap(attend, (0, 0, 0, 1))(*batches, jnp.stack([ids, ids[::-1]], 1))
    close(each[1], wanted[::-1], 1e-6, 1e-6)
    tangent = jvp(lambda q: attend(q, k, v, ids), (q,), (q,))[1]
    step = 1e-3
    near = [attend(q * (1 + s), k, v, ids) for s in (step, -step)]
    close(tangent, (near[0] - near[1]) / (2 * step), 1e-2, 1e-3)


def test_attention_says_what_segments_are():
    q, k, v = map(jnp.asarray, qkv(s=7))
    ids, keys = jnp.zeros((2, 6), int), jnp.zeros((2, 7), int)
    with pytest.raises(errors.ShapeError, match="of 6 queries do not say those of 7 keys"):
        dot_product_attention(q, k, v, segment_ids=ids)
    with pytest.raises(errors.ShapeError, match=r"of keys must be \[2, 7\]"):
        dot_product_attention(q, k, v, segment_ids=(ids, ids))
    with pytest.raises(errors.ShapeError, match="3 are given"):
        dot_product_attention(q, k, v, segment_ids=(ids, keys, keys))
    with pytest.raises(errors.DTypeError, match="of queries must be integers of at most 32 bits"):
        dot_product_attention(q, k, v, segment_ids=(ids.astype(float), keys))
    assert dot_product_attention(q, k, v, segment_ids=(ids, keys)).shape == q.shape


def naive_attention(q, k, v, softcap=0.0, causal=False):
    repeat = q.shape[2] // k.shape[2]
    k, v = xnp.repeat(k, repeat, 2), xnp.repeat(v, repeat, 2)
    logits = xnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
    if softcap:
        logits = softcap * xnp.tanh(logits / softcap)
    if causal:
        logits = xnp.where(np.tril(np.ones(logits.shape[-2:], bool)), logits, -1e30)
    return xnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits), v)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("kv", [1, 2, 4])
def test_attention_softcap_groups_and_second_order(kv, softcap, lowering):
    xs = qkv(kv=kv)
    a, b = [jnp.asarray(x) for x in xs], [xnp.asarray(x) for x in xs]
    ours = lambda *x: dot_product_attention(*x, softcap=softcap, is_causal=True)
    theirs = lambda *x: naive_attention(*x, softcap=softcap, causal=True)
    close(ours(*a), theirs(*b), 1e-4, 1e-5)
    f, g = lambda *x: jnp.sum(ours(*x) ** 2), lambda *x: xnp.sum(theirs(*x) ** 2)
    for x, y in zip(grad(f, (0, 1, 2))(*a), jax.grad(g, (0, 1, 2))(*b)):
        close(x, y, 1e-4, 2e-5)
    if kv == 2:
        twice = grad(lambda *x: sum(jnp.sum(d**2) for d in grad(f, (0, 1, 2))(*x)), (0, 1, 2))
        expected = jax.grad(
            lambda *x: sum(xnp.sum(d**2) for d in jax.grad(g, (0, 1, 2))(*x)), (0, 1, 2)
        )
        for x, y in zip(twice(*a), expected(*b)):
            close(x, y, 1e-3, 1e-4 * float(np.abs(y).max()) + 1e-5)
        ts = [array(*x.shape) for x in xs]
        close(
            jvp(ours, tuple(a), tuple(map(jnp.asarray, ts)))[1],
            jax.jvp(theirs, tuple(b), tuple(ts))[1],
            1e-4,
            1e-5,
        )


@pytest.mark.parametrize("kind", ["plain", "segments", "softcap"])
def test_attention_gradients_of_some_of_the_keys(kind, lowering):
    """Of out and lse over all keys, the backward pass of a part of them gives that part's terms."""
    (q, k, v), ct = map(jnp.asarray, qkv(t=6, s=10)), array(2, 6, 4, 8)
    extras, theirs = (), ()
    if kind == "segments":  # the rows of id 0 see keys of the second part only, those of 2 none
        own = jnp.asarray(np.arange(12).reshape(2, 6) % 3, jnp.int32)
        keys = jnp.asarray([[1] * 5 + [0, 1] * 2 + [0]] * 2, jnp.int32)
        extras, theirs = (own, keys), (own, keys)
    static = {"scale": 0.5, "causal": False, "window": None, "has": (False,) * 5}
    static |= {"softcap": 1.5 if kind == "softcap" else 0.0}
    static |= {"has": (False, False, False, bool(extras), bool(extras))}
    forward, backward = FUSED["attention_forward"], FUSED["attention_backward"]
    _, (*_, out, lse) = forward.apply((q, k, v, *extras), static)
    options = {"needs": (True, True, True), **static}
    every = backward.apply(((q, k, v, *extras, out, lse), ct), options)
    found = []
    for some in (slice(0, 5), slice(5, 10)):
        extras = (theirs[0], theirs[1][:, some]) if theirs else ()
        residuals = (q, k[:, some], v[:, some], *extras, out, lse)
        found.append(backward.apply((residuals, ct), options))
    dq = found[0][0] + found[1][0]
    close(dq, every[0], 1e-4, 1e-5)
    for i in (1, 2):
        parts = jnp.concatenate([found[0][i], found[1][i]], 1)
        if i == 2 and kind == "segments":
            # A query without visible keys takes the mean of all values, of as many as there are.
            lost = np.asarray(own)[..., None, None] == 2
            share = np.where(lost, np.asarray(ct), 0).reshape(2, 6, 2, 2, 8).sum((1, 3))[:, None]
            parts = parts - share * (1 / 5 - 1 / 10)
        close(parts, every[i], 1e-4, 1e-5)


def test_attention_under_vmap(lowering):
    q, k, v = qkv(b=3)
    mask = RNG.random((3, 2, 1, 6, 6)) > 0.3
    q2, k2, v2 = [np.stack([x, x[::-1] * 0.5]) for x in (q, k, v)]
    ours = vmap(lambda *x: dot_product_attention(*x, is_causal=True))(
        *map(jnp.asarray, (q2, k2, v2))
    )
    for i in range(2):
        close(ours[i], naive_attention(q2[i], k2[i], v2[i], causal=True), 1e-4, 1e-5)
    # Shared keys, and a mask with one batch entry per member.
    ours = vmap(
        lambda q, m: dot_product_attention(q, jnp.asarray(k), jnp.asarray(v), mask=m), (0, 1)
    )(jnp.asarray(q2), jnp.asarray(mask))
    for i in range(2):
        expected = dot_product_attention(
            *map(jnp.asarray, (q2[i], k, v)), mask=jnp.asarray(mask[:, i])
        )
        close(ours[i], expected, 1e-4, 1e-5)
    three = vmap(lambda *x: dot_product_attention(*x))(*map(jnp.asarray, (q, k, v)))
    close(three, naive_attention(q, k, v), 1e-4, 1e-5)


def test_attention_rows_that_see_nothing_and_half_precision(lowering):
    q, k, v = map(jnp.asarray, qkv())
    mask = jnp.zeros((2, 1, 6, 6), bool)
    out, back = vjp(lambda *x: dot_product_attention(*x, mask=mask), q, k, v)
    repeated = np.repeat(np.asarray(v).mean(1, keepdims=True), 2, 2)
    close(out, np.broadcast_to(repeated, out.shape), 1e-4, 1e-5)
    assert all(np.isfinite(np.asarray(g)).all() for g in back(jnp.ones_like(out)))
    half = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    y = dot_product_attention(*half, is_causal=True)
    assert y.dtype == jnp.bfloat16
    close(y, naive_attention(*map(np.asarray, (q, k, v)), causal=True), 5e-2, 5e-2)
    dq = grad(lambda q: jnp.sum(dot_product_attention(q, *half[1:]).astype(jnp.float32) ** 2))(
        half[0]
    )
    assert dq.dtype == jnp.bfloat16
    low = np.asarray(amp(lambda *x: dot_product_attention(*x), "bfloat16")(q, k, v))
    np.testing.assert_array_equal(low, np.asarray(jnp.asarray(low, jnp.bfloat16)).astype("float32"))


def test_attention_errors():
    q, k, v = map(jnp.asarray, qkv())
    with pytest.raises(errors.ShapeError, match="K dividing N"):
        dot_product_attention(q, k[:, :, :1].repeat(3, 2), v[:, :, :1].repeat(3, 2))
    with pytest.raises(errors.ShapeError, match="does not broadcast"):
        dot_product_attention(q, k, v, bias=jnp.zeros((3, 6)))
    with pytest.raises(errors.DTypeError, match="boolean"):
        dot_product_attention(q, k, v, mask=jnp.zeros((6, 6)))
    with pytest.raises(errors.DTypeError, match="one float dtype"):
        dot_product_attention(q, k.astype(jnp.float16), v)
    assert attention_module.MASKED < -1e38


# ---- cross-entropy ----


def test_cross_entropy(lowering):
    logits, labels = array(4, 5, 7, scale=3), RNG.integers(0, 7, (4, 5))
    a, b = jnp.asarray(logits), torch.from_numpy(logits).requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        b.reshape(-1, 7), torch.from_numpy(labels).reshape(-1), reduction="none"
    ).reshape(4, 5)
    close(cross_entropy_last(a, jnp.asarray(labels)), expected.detach(), 1e-5, 1e-5)
    weights = array(4, 5)
    (expected * torch.from_numpy(weights)).sum().backward()
    f = lambda x: jnp.sum(cross_entropy_last(x, jnp.asarray(labels)) * weights)
    close(grad(f)(a), b.grad, 1e-4, 1e-6)
    close(vmap(lambda x, y: cross_entropy_last(x, y))(a, jnp.asarray(labels)), expected.detach())
    hot = jax.nn.one_hot(labels, 7)
    g = lambda x: -xnp.sum((jax.nn.log_softmax(x) * hot).sum(-1) * weights)
    twice = grad(lambda x: jnp.sum(grad(f)(x) ** 2))(a)
    close(twice, jax.grad(lambda x: xnp.sum(jax.grad(g)(x) ** 2))(xnp.asarray(logits)), 1e-3, 1e-5)


CROSS = [
    dict(zip(("ignore_index", "label_smoothing", "z_loss", "softcap", "reduction"), values))
    for values in itertools.product(
        (None, -100), (0.0, 0.1), (0.0, 1e-2), (0.0, 4.0), ("mean", "sum", "none")
    )
]


def reference_loss(x, w, labels, ignore_index, label_smoothing, z_loss, softcap, reduction):
    logits = x @ w.T
    if softcap:
        logits = softcap * xnp.tanh(logits / softcap)
    lse = jax.nn.logsumexp(logits, -1)
    classes = w.shape[0]
    target = jax.nn.one_hot(labels, classes) * (1 - label_smoothing) + label_smoothing / classes
    loss = lse - (target * logits).sum(-1) + z_loss * lse**2
    counts = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    loss = xnp.where(counts, loss, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / max(counts.sum(), 1)


def check_linear_cross_entropy(options):
    x, w, labels = array(2, 6, 5), array(9, 5), RNG.integers(0, 9, (2, 6))
    if options["ignore_index"] is not None:
        labels[0, :3] = -100
    weights = array(2, 6) if options["reduction"] == "none" else np.float32(1.7)
    ours = lambda x, w: jnp.sum(
        linear_cross_entropy(x, w, jnp.asarray(labels), **options) * weights
    )
    theirs = lambda x, w: xnp.sum(reference_loss(x, w, labels, **options) * weights)
    value, grads = jit(value_and_grad(ours, (0, 1)))(jnp.asarray(x), jnp.asarray(w))
    close(value, theirs(x, w), 1e-4, 1e-5)
    for g, e in zip(grads, jax.grad(theirs, (0, 1))(x, w)):
        close(g, e, 1e-4, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy(reduction, lowering):
    for options in CROSS:
        if options["reduction"] == reduction:
            check_linear_cross_entropy(options)


def test_linear_cross_entropy_more(lowering):
    x, w, labels = array(2, 6, 5), array(9, 5), RNG.integers(0, 9, (2, 6))
    f = lambda x, w: linear_cross_entropy(x, w, jnp.asarray(labels), z_loss=0.1)
    plain = dict(ignore_index=None, label_smoothing=0.0, z_loss=0.1, softcap=0.0, reduction="mean")
    g = lambda x, w: reference_loss(x, w, labels, **plain)
    twice = lambda grad, f, sum: grad(lambda x, w: sum(grad(f)(x, w) ** 2), (0, 1))
    got = twice(grad, f, jnp.sum)(jnp.asarray(x), jnp.asarray(w))
    for a, b in zip(got, twice(jax.grad, g, xnp.sum)(x, w)):
        close(a, b, 1e-3, 1e-5)
    t = array(9, 5)
    close(
        jvp(lambda w: f(jnp.asarray(x), w), (jnp.asarray(w),), (jnp.asarray(t),))[1],
        jax.jvp(lambda w: g(x, w), (xnp.asarray(w),), (t,))[1],
        1e-4,
        1e-6,
    )
    each = vmap(lambda x, y: linear_cross_entropy(x, jnp.asarray(w), y))(
        jnp.asarray(x), jnp.asarray(labels)
    )
    none = {**plain, "z_loss": 0.0}
    close(each, [reference_loss(x[i], w, labels[i], **none) for i in range(2)], 1e-5, 1e-5)
    half = linear_cross_entropy(
        jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16), jnp.asarray(labels)
    )
    assert half.dtype == jnp.float32
    close(half, reference_loss(x, w, labels, **none), 3e-2, 3e-2)
    everything_ignored = linear_cross_entropy(
        jnp.asarray(x), jnp.asarray(w), jnp.full((2, 6), 3), ignore_index=3
    )
    assert float(everything_ignored) == 0


def test_cross_entropy_errors():
    x, w = jnp.ones((2, 3)), jnp.ones((4, 3))
    for bad in (4, -1):
        with pytest.raises(errors.IndexOutOfRange, match="4 classes"):
            np.asarray(linear_cross_entropy(x, w, jnp.array([0, bad])))
        with pytest.raises(errors.IndexOutOfRange, match="3 classes"):
            np.asarray(cross_entropy_last(x, jnp.array([0, bad])))
    with pytest.raises(ValueError, match="reduction"):
        linear_cross_entropy(x, w, jnp.array([0, 1]), reduction="max")
    with pytest.raises(errors.ShapeError, match="does not fit weight"):
        linear_cross_entropy(x, jnp.ones((4, 2)), jnp.array([0, 1]))
    with pytest.raises(errors.ShapeError, match="labels"):
        linear_cross_entropy(x, w, jnp.array([0]))
    assert cross_entropy.__doc__


@pytest.mark.parametrize("kind", ["float8_e5m2", "bfloat16", "float16", "float32", "float64"])
def test_no_loss_takes_a_label_that_is_no_class(kind, lowering):
    x, w = jnp.ones((2, 3), kind), jnp.ones((4, 3), kind)
    total = lambda **options: lambda x, y: linear_cross_entropy(x, w, y, **options).sum()
    losses = {
        "logits": (3, lambda x, y: cross_entropy_last(x, y).sum()),
        "mean": (4, total()),
        "none": (4, total(reduction="none")),
        "ignoring": (4, total(reduction="sum", ignore_index=-100)),
    }
    for name, (classes, loss) in losses.items():
        ways = {
            "eager": loss,
            "jit": jit(loss),
            "grad": grad(loss),
            "jit of grad": jit(grad(loss)),
            "jvp": lambda x, y: jvp(lambda x: loss(x, y), (x,), (x,))[1],
            "vmap": lambda x, y: vmap(loss)(x[None], y[None]),
        }
        for way, run in ways.items():
            for bad in (classes, -1, 77):
                with pytest.raises(errors.IndexOutOfRange, match=f"{bad} .*out of range"):
                    np.asarray(run(x, jnp.array([0, bad])))
                    pytest.fail(f"{name}, {way}: label {bad} of {classes} classes")
            assert np.isfinite(np.asarray(run(x, jnp.array([0, classes - 1]))).astype(float)).all()


def test_labels_of_narrow_integers_name_any_class(lowering):
    x = array(5, 300, scale=3)
    labels = RNG.integers(0, 256, 5)
    want = jax.nn.logsumexp(x, -1) - x[np.arange(5), labels]
    for kind in ("uint8", "int16", "uint32", "int64"):
        close(cross_entropy_last(jnp.asarray(x), jnp.asarray(labels.astype(kind))), want, 1e-5)
        half = cross_entropy_last(jnp.asarray(x, jnp.bfloat16), jnp.asarray(labels.astype(kind)))
        close(half, want, 2e-2, 5e-2)
    w = np.eye(300, dtype=np.float32)
    for kind in ("uint8", "uint16", "uint32", "int64"):
        y = jnp.asarray(np.where(labels == labels[0], 255, labels).astype(kind))
        got = linear_cross_entropy(x, w, y, reduction="sum", ignore_index=-1)
        close(got, linear_cross_entropy(x, w, y.astype("int32"), reduction="sum"), 1e-5)
    for bad in (jnp.ones((5,)), jnp.ones((5,), bool)):
        with pytest.raises(errors.DTypeError, match="linear_cross_entropy takes integer labels"):
            linear_cross_entropy(x, w, bad)


def test_losses_of_nothing():
    x, w, none = jnp.ones((0, 3)), jnp.ones((4, 3)), jnp.zeros((0,), jnp.int32)
    assert linear_cross_entropy(x, w, none, reduction="none").shape == (0,)
    assert float(linear_cross_entropy(x, w, none, reduction="sum")) == 0
    assert float(linear_cross_entropy(x, w, none)) == 0  # as of rows that are all ignored


INTEGER_OPERANDS = {
    "softmax": lambda x: softmax.softmax_last(x),
    "log_softmax": lambda x: softmax.log_softmax_last(x),
    "logsumexp": lambda x: softmax.logsumexp_last(x),
    "rms_norm": lambda x: norms.rms_norm(x, jnp.ones((5,)), eps=1e-6),
    "rms_norm weight": lambda x: norms.rms_norm(jnp.linspace(0, 1, 5), x[0], eps=1e-6),
    "layer_norm": lambda x: norms.layer_norm(x, jnp.ones((5,)), jnp.ones((5,)), eps=1e-6),
    "layer_norm weight": lambda x: norms.layer_norm(jnp.linspace(0, 1, 5), x[0], x[1], eps=1e-6),
    "cross_entropy": lambda x: cross_entropy_last(x, jnp.array([0, 4, 2])),
    "linear_cross_entropy": lambda x: linear_cross_entropy(x, x, jnp.array([0, 1, 2])),
}


@pytest.mark.parametrize("name", INTEGER_OPERANDS)
@pytest.mark.parametrize("kind", ["bool", "uint8", "int32"])
def test_integer_operands_are_those_of_the_reference(name, kind, monkeypatch):
    """torch's functions are for floating operands: of others the reference decides."""
    f, x = INTEGER_OPERANDS[name], jnp.asarray(RNG.integers(0, 2, (3, 5)).astype(kind))

    def outcome():
        fused_module.fused_p.eager_cache.clear()
        try:
            return np.asarray(f(x))
        except errors.GenesisError as error:
            return str(error)

    got = outcome()
    monkeypatch.setattr(lower, "FUSED", {})
    want = outcome()
    fused_module.fused_p.eager_cache.clear()
    np.testing.assert_equal(got, want)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_residual(masked):
    draw = np.random.default_rng(11)
    q, k, v = [draw.normal(size=s).astype("f4") for s in ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8))]
    options: dict = {"is_causal": True, "return_residual": True}
    if masked:
        options["mask"] = draw.random((2, 1, 5, 7)) < 0.7
    ours = dot_product_attention(
        *map(jnp.asarray, (q, k, v)),
        **{n: jnp.asarray(x) if n == "mask" else x for n, x in options.items()},
    )
    theirs = jax.nn.dot_product_attention(q, k, v, **options)
    for x, y in zip(ours, theirs, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="implementation 'flash'"):
        dot_product_attention(*map(jnp.asarray, (q, k, v)), implementation="flash")


@pytest.mark.parametrize("norm, count", [(norms.rms_norm, 1), (norms.layer_norm, 2)])
def test_norms_say_what_they_take(norm, count: int):
    vectors = [jnp.ones(3)] * count
    for x in (jnp.ones((2, 3), "int8"), jnp.ones((2, 3), bool), jnp.ones((2, 3), "complex64")):
        with pytest.raises(errors.DTypeError, match=f"{norm.__name__} takes floats"):
            norm(x, *vectors, eps=1e-6)
    for vector in (jnp.ones(1), jnp.ones(4), jnp.ones((1, 3)), jnp.ones(())):
        with pytest.raises(errors.ShapeError, match="no vector along the last axis"):
            norm(jnp.ones((2, 3)), *[vector] * count, eps=1e-6)
    with pytest.raises(errors.ShapeError, match="no vector along the last axis"):
        norm(1.0, *[jnp.ones(())] * count, eps=1e-6)
    with pytest.raises(errors.DTypeError, match="takes real vectors"):
        norm(jnp.ones((2, 3)), *[jnp.ones(3, "complex64")] * count, eps=1e-6)
    by_name = dict(zip(("weight", "bias"), vectors))
    assert norm(x=np.ones((2, 3), np.float32), **by_name, eps=1e-6).shape == (2, 3)


def test_cross_entropy_of_a_number_is_refused():
    with pytest.raises(errors.ShapeError, match="does not fit weight"):
        linear_cross_entropy(jnp.array(1.0), jnp.zeros((4, 3)), jnp.array(0))


def test_attention_of_columns():
    """Operands whose last dimension is not the one that is contiguous in memory, as a transposed
    array has it, and their gradients."""
    columns = jnp.asarray(np.random.default_rng(0).normal(size=(8, 12)), jnp.float32).T
    rows = jnp.asarray(np.asarray(columns).copy())

    def f(x):
        q = x.reshape(1, 12, 2, 4)
        return jnp.sum(dot_product_attention(q, q, q) ** 2)

    for x in (columns, jnp.copy(columns)):
        for g in (value_and_grad(f), jit(value_and_grad(f))):
            for mine, whole in zip(g(x), value_and_grad(f)(rows)):
                np.testing.assert_allclose(mine, whole, 1e-5, 1e-5)
