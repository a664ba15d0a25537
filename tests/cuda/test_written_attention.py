"""Attention that is written out becomes the attention kernels, with the same numbers; what is no
attention of theirs stays as it is."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as xnp
import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax, nn
from genesis_fn.backends.cuda.lower.steps import keeps_fused
from genesis_fn.compiler import options
from genesis_fn.compiler.attention import rewrite
from genesis_fn.compiler.attention.axes import LogicalAxis, Split, Unmappable, reshaped
from genesis_fn.compiler.attention.masks import Band, band_of
from genesis_fn.compiler.attention.rewrite import fuse_attention
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.configuration import config
from genesis_fn.core.device import device, using_device
from genesis_fn.core.jaxpr import Jaxpr, check, e_jaxprs
from genesis_fn.transforms.staging.stage_trace import evaluate, stage

B, H, KV, T, D = 2, 4, 2, 40, 16
LOWEST = float(np.finfo(np.float32).min)
KEEPS = keeps_fused(H200)
BOTH = ["attention_forward", "attention_backward"]


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)
    return gnp.asarray(values).astype(dtype)


def operands(layout: str, dtype: str = "float32", heads: int = H) -> list[Any]:
    """Queries, keys and values in a layout of b, h, t and d."""
    size = {"b": B, "h": heads, "t": T, "d": D}
    return [normal(*[size[c] for c in layout], dtype=dtype, seed=i) for i in range(3)]


def programs(
    f: Callable[..., Any], args: list[Any], wanted: tuple[int, ...] | None = None
) -> tuple[Jaxpr, Jaxpr, list[Any]]:
    """(simplified program, the same after the pass, its inputs) of a function's value and, unless
    `wanted` is empty, its gradients by all floating arguments or those of these numbers."""
    if wanted is None:
        wanted = tuple([i for i, a in enumerate(args) if gnp.issubdtype(a.dtype, gnp.floating)])

    def loss(*xs):
        out = f(*xs)
        weights = gnp.sin(gnp.arange(out.size, dtype=gnp.float32)).reshape(out.shape)
        return gnp.sum(out.astype("float32") * weights), out

    both = g.value_and_grad(loss, argnums=wanted, has_aux=True) if wanted else loss
    staged, captured = stage(lambda *xs: g.tree.leaves(both(*xs)), [a.aval for a in args])
    before = simplify_jaxpr(staged, KEEPS)
    after = fuse_attention(before, KEEPS)
    check(after)
    return before, after, [*captured, *args]


def calls(jaxpr: Jaxpr) -> list[str]:
    """The attention functions that a program calls, inside of loops, too."""
    own = [e.params["op"].name for e in jaxpr.eqns if e.prim.name == "fused"]
    inner = [n for e in jaxpr.eqns if e.prim.name != "fused" for j in e_jaxprs(e) for n in calls(j)]
    return [n for n in own if n.startswith("attention")] + inner


def holds_scores(jaxpr: Jaxpr, heads: int = H, keys: int = T) -> bool:
    """Whether a float array of as many elements as the scores is computed."""
    return any(
        [
            o.aval.size >= B * heads * T * keys and gnp.issubdtype(o.aval.dtype, gnp.floating)
            for e in jaxpr.eqns
            for o in e.outs
        ]
    )


@pytest.fixture(autouse=True)
def small_biases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Biases with gradients are fused where scores are small, too; products have the precision that
    users get, where tests on a GPU have all of float32's."""
    monkeypatch.setattr(rewrite, "WORTH_A_BIAS", 0)
    with g.default_matmul_precision("default"):
        yield


def same_numbers(before: Jaxpr, after: Jaxpr, inputs: list[Any], tolerance: float) -> None:
    if os.environ.get("GENESIS_CUDA_DRIVER") == "cuda":  # products of float32 are TF32's there
        tolerance = max(tolerance, 1e-2)
    for x, y in zip(evaluate(before, *inputs), evaluate(after, *inputs), strict=True):
        x, y = [np.asarray(v.astype("float32")) for v in (x, y)]
        if x.ndim == 0:
            continue  # the sum of the output, which cancels
        scale = np.max(np.abs(x), initial=1e-3, where=~np.isnan(x))
        np.testing.assert_allclose(y / scale, x / scale, rtol=0, atol=tolerance)


def as_good_numbers(f: Callable[..., Any], args: list[Any], *ways: Jaxpr) -> None:
    """The second program is no further from float32 than the first, or both are close."""
    widened = [a.astype("float32") if gnp.issubdtype(a.dtype, gnp.floating) else a for a in args]
    exact, _, inputs = programs(f, widened)
    wanted = [np.asarray(x) for x in evaluate(exact, *inputs)]
    off = []
    for way in ways:
        captured = inputs[: len(inputs) - len(args)]
        found = [np.asarray(x.astype("float32")) for x in evaluate(way, *captured, *args)]
        off.append(
            [np.abs(x - y).max() / max(np.abs(x).max(), 1e-3) for x, y in zip(wanted, found)]
        )
    for written, fused, x in zip(*off, wanted):
        assert x.ndim == 0 or fused <= max(2 * written, 2e-2), off  # the loss is what cancels


def recognised(
    f: Callable[..., Any],
    args: list[Any],
    *,
    tolerance: float = 2e-5,
    wanted: tuple[int, ...] | None = None,
    expected: list[str] | None = None,
) -> Jaxpr:
    before, after, inputs = programs(f, args, wanted)
    assert calls(before) == []
    assert calls(after) == (BOTH if expected is None else expected)
    same_numbers(before, after, inputs, tolerance)
    return after


# ---- spellings ----


def causal() -> Any:
    return gnp.tril(gnp.ones((T, T), bool))


def compared() -> Any:
    return gnp.arange(T)[:, None] >= gnp.arange(T)[None]


def einsum_bhtd(q, k, v):
    s = gnp.where(causal(), gnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(D), -gnp.inf)
    return gnp.einsum("bhqk,bhkd->bhqd", nn.softmax(s, -1), v)


def matmul_bhtd(q, k, v):
    s = q @ gnp.swapaxes(k, -1, -2) * 0.25 + gnp.where(compared(), 0.0, -1e9)
    e = gnp.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


def scaled_queries(q, k, v):
    s = gnp.matmul(q * 0.3, gnp.swapaxes(k, -1, -2))
    return gnp.exp(s - nn.logsumexp(s, -1, keepdims=True)) @ v


def divided_afterwards(q, k, v):
    s = gnp.where(compared(), q @ gnp.swapaxes(k, -1, -2), LOWEST)
    e = gnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))
    return (e @ v) / e.sum(-1, keepdims=True)


def by_head(q, k, v):
    one = lambda q, k, v: nn.softmax(q @ k.T * 0.5) @ v
    return g.vmap(g.vmap(one))(q, k, v)


def of_log_softmax(q, k, v):
    return gnp.exp(nn.log_softmax(q @ gnp.swapaxes(k, 2, 3) * 0.25, -1)) @ v


def multiplied_mask(q, k, v):
    """As GPT-2's own program."""
    w = q @ gnp.swapaxes(k, 2, 3) / math.sqrt(D)
    b = (gnp.arange(T)[:, None] >= gnp.arange(T)).astype(w.dtype)
    return nn.softmax(w * b - 1e10 * (1 - b)) @ v


def slice_of_a_mask(q, k, v):
    mask = gnp.tril(gnp.ones((T + 8, T + 8)))[None, None, :T, :T]
    s = gnp.where(mask == 0, -gnp.inf, q @ gnp.swapaxes(k, 2, 3) * 0.25)
    return nn.softmax(s) @ v


def no_maximum(q, k, v):
    e = gnp.exp(q @ gnp.swapaxes(k, 2, 3) * 0.25)
    return (e / gnp.sum(e, -1, keepdims=True)) @ v


def as_flax(q, k, v, mask=None):
    q = q / gnp.sqrt(D).astype(q.dtype)
    w = gnp.einsum("...qhd,...khd->...hqk", q, k)
    w = gnp.where(compared() if mask is None else mask, w, gnp.finfo(w.dtype).min)
    return gnp.einsum("...hqk,...khd->...qhd", nn.softmax(w).astype(v.dtype), v)


def scores_in_float32(q, k, v):
    s = gnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=gnp.float32) * 0.25
    p = nn.softmax(gnp.where(causal(), s, -gnp.inf), -1).astype(v.dtype)
    return gnp.einsum("bhts,bshd->bthd", p, v)


def keys_first(q, k, v):
    s = gnp.einsum("bkhd,bqhd->bhkq", k, q) * 0.25
    s = gnp.where(gnp.triu(gnp.ones((T, T), bool)), s, -gnp.inf)
    return gnp.einsum("bhkq,bkhd->bqhd", nn.softmax(s, axis=-2), v)


def merged_batch(q, k, v):
    q, k, v = [x.transpose(0, 2, 1, 3).reshape(B * H, T, D) for x in (q, k, v)]
    s = (q @ k.transpose(0, 2, 1) / math.sqrt(D)).reshape(B, H, T, T)
    s = s + gnp.where(causal(), 0.0, -1e9)
    out = nn.softmax(s.reshape(B * H, T, T), -1) @ v
    return out.reshape(B, H, T, D).transpose(0, 2, 1, 3)


def windowed(q, k, v):
    apart = gnp.arange(T)[None] - gnp.arange(T)[:, None]
    s = gnp.einsum("bthd,bshd->bhts", q, k) * 0.25
    s = gnp.where((apart <= 0) & (apart > -7), s, LOWEST)
    return gnp.einsum("bhts,bshd->bthd", nn.softmax(s, -1), v)


def of_one_array(q, k, v):
    return as_flax(q, q, q) + 0.0 * (k + v)


OF_BHTD = [
    einsum_bhtd, matmul_bhtd, scaled_queries, divided_afterwards, by_head, of_log_softmax,
    multiplied_mask, slice_of_a_mask, no_maximum,
]  # fmt: skip
OF_BTHD = [
    as_flax, scores_in_float32, keys_first, merged_batch, windowed, of_one_array, g.jit(as_flax),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("f", OF_BHTD + OF_BTHD, ids=lambda f: f.__name__)
def test_spellings(f, dtype):
    args = operands("bhtd" if f in OF_BHTD else "bthd", dtype)
    if dtype == "float32":
        after = recognised(f, args)
    else:
        before, after, _ = programs(f, args)
        assert calls(after) == BOTH
        as_good_numbers(f, args, before, after)
    assert not holds_scores(after)


@pytest.mark.parametrize("f", [einsum_bhtd, divided_afterwards, by_head])
def test_without_gradient(f):
    after = recognised(f, operands("bhtd"), wanted=(), expected=["attention"])
    assert not holds_scores(after)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_some_gradients(wanted):
    recognised(as_flax, operands("bthd"), wanted=wanted)


def test_recomputed_in_the_backward_pass():
    after = recognised(g.checkpoint(as_flax), operands("bthd"), expected=["attention", *BOTH])
    assert not holds_scores(after)


def test_one_head_and_other_lengths():
    f = lambda q, k, v: nn.softmax(q @ k.T / 4.0) @ v
    recognised(f, [normal(T, D), normal(T + 24, D), normal(T + 24, 8)])


# ---- grouped heads ----


def grouped(q, k, v):
    q = q.reshape(B, T, KV, H // KV, D)
    s = gnp.where(causal(), gnp.einsum("btkgd,bskd->bkgts", q, k) * 0.25, LOWEST)
    return gnp.einsum("bkgts,bskd->btkgd", nn.softmax(s, -1), v).reshape(B, T, H * D)


def masked_by_head(q, k, v):
    """The scores are reshaped to heads for the mask."""
    s = gnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, KV, H // KV, D), k) * 0.25
    s = gnp.where(causal(), s.reshape(B, H, T, T), LOWEST)
    p = nn.softmax(s, -1).reshape(B, KV, H // KV, T, T)
    return gnp.einsum("bkgts,bskd->btkgd", p, v).reshape(B, T, H * D)


def repeated(q, k, v):
    k, v = [gnp.repeat(x, H // KV, axis=2) for x in (k, v)]
    return as_flax(q, k, v)


def broadcast_heads(q, k, v):
    q, k, v = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    wide = lambda x: gnp.broadcast_to(x[:, :, None], (B, KV, H // KV, T, D)).reshape(B, H, T, D)
    return nn.softmax(q @ gnp.swapaxes(wide(k), 2, 3) * 0.25) @ wide(v)


@pytest.mark.parametrize("f", [grouped, masked_by_head, repeated, broadcast_heads])
def test_heads_share_keys(f):
    args = [normal(B, T, n, D, seed=i) for i, n in enumerate((H, KV, KV))]
    after = recognised(f, args)
    assert not holds_scores(after)
    (forward, _) = [e for e in after.eqns if e.prim.name == "fused"]
    assert forward.ins[1].aval.shape == (B, T, KV, D)  # not repeated


# ---- masks and biases ----


def padding(lost: bool = False) -> Any:
    seen = np.random.default_rng(3).random((B, T)) < 0.7
    if lost:
        seen[0] = False
    return gnp.asarray(seen)


def selected(q, k, v, m, *, fill):
    s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    s = gnp.where(m[:, None, None, :] & compared(), s, fill)
    return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)


def added(q, k, v, m, *, fill):
    s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 + gnp.where(m, 0.0, fill)[:, None, None]
    return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)


def biased(q, k, v, b):
    s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 + b
    return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)


def biased_by_distance(q, k, v, table):
    apart = gnp.clip(gnp.arange(T)[None] - gnp.arange(T)[:, None] + 8, 0, 15)
    return biased(q, k, v, table[apart].transpose(2, 0, 1)[None])


def biased_and_causal(q, k, v, b):
    s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    s = gnp.where(causal(), s + b, -1e9)
    return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)


def with_an_empty_row(q, k, v):
    mask = gnp.tril(gnp.ones((T, T), bool), -1)
    return nn.softmax(gnp.where(mask, q @ gnp.swapaxes(k, 2, 3), -1e9)) @ v


def with_a_pattern(q, k, v):
    mask = (gnp.arange(T)[:, None] & 1) == (gnp.arange(T) & 1)
    return nn.softmax(gnp.where(mask, q @ gnp.swapaxes(k, 2, 3), -1e9)) @ v


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("fill", [-1e9, LOWEST, -math.inf])
def test_padding_is_a_mask(fill, lost):
    """Rows that see no key are as written: uniform for a finite number, else NaN."""
    f = functools.partial(selected, fill=fill)
    wanted = () if lost and fill == -math.inf else None
    after = recognised(f, [*operands("bthd"), padding(lost)], wanted=wanted,
                       expected=["attention"] if wanted == () else None)  # fmt: skip
    assert not holds_scores(after)
    static = dict(next(e for e in after.eqns if e.prim.name == "fused").params["static"])
    assert static["causal"] and static["has"][1]


@pytest.mark.parametrize("f", [with_an_empty_row, with_a_pattern])
def test_known_masks_that_are_no_band(f):
    after = recognised(f, operands("bhtd"))
    assert not holds_scores(after)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("fill", [-1e9, LOWEST, -math.inf, -1e4])
def test_added_padding(fill, lost):
    """Of -1e4 a lost query still has its scores, to 0.0005 as written."""
    f, args = functools.partial(added, fill=fill), [*operands("bthd"), padding(lost)]
    bound = 2e-3 if fill == -1e4 else 2e-5
    recognised(f, args, tolerance=bound, wanted=(), expected=["attention"])


def test_nan_of_hidden_rows_reaches_the_gradients():
    f = functools.partial(selected, fill=-math.inf)
    before, after, inputs = programs(f, [*operands("bthd"), padding(True)])
    assert calls(after) == BOTH
    for x, y in zip(evaluate(before, *inputs), evaluate(after, *inputs)):
        np.testing.assert_array_equal(np.isnan(np.asarray(x)), np.isnan(np.asarray(y)))


def biased_and_masked(q, k, v, b, m, *, fill):
    """A bias of which nothing is known, and keys that a mask and the order hide."""
    s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    s = gnp.where(m[:, None, None, :] & causal(), s + b, fill)
    return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)


def low_biases() -> dict[str, Any]:
    """Moderate ones; padding on the left, so that early queries see padded keys alone; one that
    hides all keys of a batch entry; one that leaves single queries nothing that the order does."""
    columns, rows = gnp.arange(T), gnp.arange(T)[:, None]
    lost = gnp.where(gnp.arange(B)[:, None, None, None] == 0, -1e9, 0.0)
    return {
        "moderate": normal(H, T, T, seed=7),
        "left padding": gnp.where(columns < 9, -1e9, 0.5),
        "a lost entry": lost + normal(B, 1, 1, T, seed=8),
        "lost queries": gnp.where((rows % 7 == 3) & (columns <= rows), -1e9, 0.0),
    }


@pytest.mark.parametrize("fill", [-1e9, LOWEST])
@pytest.mark.parametrize("bias", low_biases())
@pytest.mark.parametrize("f", [biased_and_causal, biased_and_masked], ids=lambda f: f.__name__)
def test_masks_are_a_part_of_an_unknown_bias(f, bias, fill):
    args = [*operands("bthd"), low_biases()[bias]]
    if f is biased_and_masked:
        f, args = functools.partial(f, fill=fill), [*args, padding(True)]
    recognised(f, args, wanted=(), expected=["attention"])


CORRECTED = [*BOTH, BOTH[1]]  # the last one in a branch, for queries that see no key


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("fill", [-1e9, LOWEST, -1e4])
def test_gradients_of_added_padding(fill, lost):
    """Queries without keys have their part of the gradient of keys, as written."""
    f, args = functools.partial(added, fill=fill), [*operands("bthd"), padding(lost)]
    recognised(f, args, tolerance=2e-3 if fill == -1e4 else 2e-5, expected=CORRECTED)


@pytest.mark.parametrize("lost", [False, True])
def test_gradients_of_added_padding_as_compiled(lost):
    """On the device, the branch with and without a query that sees no key."""
    f = functools.partial(added, fill=-1e9)
    gradients = g.grad(lambda *xs: gnp.sum(gnp.sin(f(*xs))), argnums=(0, 1, 2))
    args = [*[x[:, :, :2] for x in operands("bthd")], padding(lost)]
    with g.default_device(g.cpu()):
        wanted = gradients(*[g.device_put(x, g.cpu()) for x in args])
    found = g.jit(gradients)(*[g.device_put(x, g.cuda(0)) for x in args])
    for x, y in zip(found, wanted, strict=True):
        # In TF32; without the branch keys are off by 0.7.
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=1e-2)


def test_gradients_of_added_padding_in_16_bits():
    def f(q, k, v, m):
        s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        s = s.astype("float32") + gnp.where(m, 0.0, -1e9)[:, None, None]
        return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1).astype(v.dtype), v)

    args = [*operands("bthd", "bfloat16"), padding(True)]
    before, after, _ = programs(f, args)
    assert calls(after) == CORRECTED
    as_good_numbers(f, args, before, after)


@pytest.mark.parametrize("bias", low_biases())
@pytest.mark.parametrize("order", [False, True], ids=["all", "causal"])
def test_gradients_beside_a_bias_of_unknown_values(bias, order):
    def f(q, k, v, b):
        s = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 + b
        s = gnp.where(causal(), s, -math.inf) if order else s
        return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)

    recognised(f, [*operands("bthd"), low_biases()[bias]], wanted=(0, 1, 2), expected=CORRECTED)


def test_gradients_of_shared_keys_beside_added_padding():
    q, k, v = operands("bthd")

    def f(q, k, v, m):
        k, v = [gnp.repeat(x, H // KV, axis=2) for x in (k, v)]
        return added(q, k, v, m, fill=-1e9)

    after = recognised(f, [q, k[:, :, :KV], v[:, :, :KV], padding(True)], expected=CORRECTED)
    assert not holds_scores(after)


def test_masks_of_two_values_are_no_part_of_an_unknown_bias():
    def f(q, k, v, b, m):
        s = gnp.where(causal(), gnp.einsum("bqhd,bkhd->bhqk", q, k) + b, -1e9)
        s = gnp.where(m[:, None, None, :], s, -1e8)
        return gnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s, -1), v)

    args = [*operands("bthd"), normal(H, T, T, seed=7), padding(True)]
    before, after, _ = programs(f, args, ())
    assert after is before
    # What is hidden is not as written where biases are lower, and a score is not lost in it.
    f = functools.partial(biased_and_masked, fill=-3e4)
    before, after, _ = programs(f, args, ())
    assert after is before


@pytest.mark.parametrize("shape", [(1, 1, T, T), (H, T, T), (H, 1, T), (B, 1, 1, T), (B, H, T, T)])
def test_a_bias_has_its_gradient(shape):
    recognised(biased, [*operands("bthd"), normal(*shape, seed=7)])


def test_a_small_bias_with_a_gradient_stays_as_written(monkeypatch):
    monkeypatch.undo()
    before, after, _ = programs(biased, [*operands("bthd"), normal(H, T, T)])
    assert calls(before) == calls(after) == []


@pytest.mark.parametrize("f", [biased_by_distance, biased_and_causal])
def test_a_bias_of_parameters(f):
    bias = normal(16, H) if f is biased_by_distance else normal(H, T, T)
    recognised(f, [*operands("bthd"), bias])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_that_a_narrow_float_lacks(dtype):
    """-1e9 is minus infinity in float16, and the lowest float32 in bfloat16."""
    fill = -1e9 if dtype == "float16" else LOWEST
    f = functools.partial(selected, fill=fill)
    before, after, inputs = programs(f, [*operands("bthd", dtype), padding(True)], ())
    assert calls(after) == ["attention"]
    for x, y in zip(evaluate(before, *inputs), evaluate(after, *inputs)):
        x, y = [np.asarray(v.astype("float32")) for v in (x, y)]
        assert np.isnan(x).any()
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))


def test_a_bias_that_hides_keys_of_a_query():
    bias = np.zeros((T, T), np.float32)
    bias[3], bias[5], bias[6, 4:] = -1e9, -math.inf, LOWEST
    args = [*operands("bthd"), gnp.asarray(bias)]
    recognised(biased, args, wanted=(), expected=["attention"])


def test_bands():
    seen = lambda f: np.fromfunction(f, (9, 12), dtype=int)
    assert band_of(seen(lambda i, j: j <= i)) == Band(None, 0)
    assert band_of(seen(lambda i, j: (j <= i + 3) & (j >= i - 2))) == Band(2, 3)
    assert band_of(seen(lambda i, j: i + j >= 0)) == Band(None, None)
    assert band_of(seen(lambda i, j: j < i)) is None  # a row that sees nothing
    assert band_of(seen(lambda i, j: (j <= i) & ((i - j) % 2 == 0))) is None
    assert band_of(seen(lambda i, j: j <= 2 * i)) is None
    assert band_of(seen(lambda i, j: j <= np.minimum(i, 6))) is None


def test_reshapes_of_logical_axes():
    a, b = LogicalAxis("batch", 0, 0, 2), LogicalAxis("batch", 1, 0, 6)
    assert reshaped(((a,), (b,)), (12,)) == ((a, b),)
    assert reshaped(((a, b),), (2, 1, 6)) == ((a,), (), (b,))
    with pytest.raises(Split) as found:
        reshaped(((a, b),), (4, 3))
    assert found.value.axis == b and found.value.outer == 2
    with pytest.raises(Unmappable):
        reshaped(((b,), (a,)), (4, 3))


# ---- any spelling ----


def arranged(x: Any, labels: str, layout: str) -> Any:
    """An array of some axes of `layout`, to be combined with an array of all of them."""
    order = [c for c in layout if c in labels]
    x = gnp.transpose(x, [labels.index(c) for c in order])
    return x.reshape([x.shape[order.index(c)] if c in order else 1 for c in layout])


class Drawn:
    """A spelling of attention, drawn: layouts, the order of operations, mask and dtypes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        pick = lambda *options: options[rng.integers(len(options))]
        shuffled = lambda letters: "".join(rng.permutation(list(letters)))
        self.dtype = pick("float32", "bfloat16")
        self.group = pick(1, 1, 2)
        self.scale = pick("none", "queries", "keys", "multiplied", "divided")
        self.mask = pick(
            "none", "tril", "compared", "added", "multiplied", "window", "padding", "bias"
        )
        self.softmax = pick("function", "written", "stopped", "logsumexp", "afterwards")
        self.cast = pick(False, True)
        self.swapped = pick(False, True)
        self.q, self.k, self.v = shuffled("bhtd"), shuffled("bhsd"), shuffled("bhse")
        self.scores, self.out = shuffled("bhts"), shuffled("bhte")
        t = pick(32, 40)
        self.size = {
            "b": pick(1, 2),
            "h": pick(2, 4),
            "t": t,
            "s": pick(t, 48),
            "d": 16,
            "e": pick(8, 16),
        }
        if self.mask in ("tril", "window", "added", "multiplied"):
            self.size["s"] = t

    def __call__(self, q: Any, k: Any, v: Any, *extra: Any) -> Any:
        n = self.size
        if self.group > 1:
            k, v = [
                gnp.repeat(x, self.group, axis=l.index("h")) for x, l in ((k, self.k), (v, self.v))
            ]
        q, k = q * (0.3 if self.scale == "queries" else 1), k * (0.3 if self.scale == "keys" else 1)
        pair = [(q, self.q), (k, self.k)][:: -1 if self.swapped else 1]
        spec = f"{pair[0][1]},{pair[1][1]}->{self.scores}"
        s = gnp.einsum(spec, pair[0][0], pair[1][0])
        if self.cast:
            s = s.astype("float32")
        s = s * 0.3 if self.scale == "multiplied" else s / 4.0 if self.scale == "divided" else s
        rows, columns = gnp.arange(n["t"])[:, None], gnp.arange(n["s"])[None]
        place = lambda x, labels="ts": arranged(x, labels, self.scores)
        if self.mask == "tril":
            s = gnp.where(place(gnp.tril(gnp.ones((n["t"], n["s"]), bool))), s, -gnp.inf)
        elif self.mask == "compared":
            s = gnp.where(place(~(columns > rows)), s, -1e9)
        elif self.mask == "added":
            s = s + place(gnp.where(rows >= columns, 0.0, -1e9)).astype(s.dtype)
        elif self.mask == "multiplied":
            b = place((rows >= columns).astype(s.dtype))
            s = s * b - 1e10 * (1 - b)
        elif self.mask == "window":
            s = gnp.where(place((columns <= rows) & (columns > rows - 5)), s, -1e30)
        elif self.mask == "padding":
            s = gnp.where(place(extra[0], "bs"), s, -1e9)
        elif self.mask == "bias":
            s = s + place(extra[0], "hts").astype(s.dtype)
        axis = self.scores.index("s")
        over = None
        if self.softmax == "function":
            p = nn.softmax(s, axis)
        elif self.softmax == "logsumexp":
            p = gnp.exp(s - nn.logsumexp(s, axis, keepdims=True))
        else:
            top = s.max(axis, keepdims=True)
            p = gnp.exp(s - (top if self.softmax == "written" else lax.stop_gradient(top)))
            over = gnp.sum(p, axis, keepdims=True)
            if self.softmax != "afterwards":
                p, over = p / over, None
        out = gnp.einsum(f"{self.scores},{self.v}->{self.out}", p.astype(v.dtype), v)
        if over is not None:
            labels = self.scores.replace("s", "")
            out = out / arranged(gnp.squeeze(over, axis), labels, self.out).astype(out.dtype)
        return out

    def arguments(self) -> list[Any]:
        n = self.size
        of = lambda layout, few, seed: normal(
            *[n[c] // (self.group if few and c == "h" else 1) for c in layout],
            dtype=self.dtype, seed=seed,
        )  # fmt: skip
        args = [of(self.q, False, 0), of(self.k, True, 1), of(self.v, True, 2)]
        if self.mask == "padding":
            seen = np.random.default_rng(1).random((n["b"], n["s"])) < 0.7
            args.append(gnp.asarray(seen))
        elif self.mask == "bias":
            args.append(normal(n["h"], n["t"], n["s"]))
        return args


@pytest.mark.parametrize(
    "seed", [*range(10), *[pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40)]]
)
def test_drawn_spellings(seed):
    f = Drawn(seed)
    args = f.arguments()
    before, after, inputs = programs(f, args)
    assert calls(after) == BOTH, vars(f)
    if f.dtype == "float32":
        same_numbers(before, after, inputs, 5e-5)
    else:
        as_good_numbers(f, args, before, after)


# ---- what stays as it is ----


def returned_probabilities(q, k, v):
    p = nn.softmax(q @ gnp.swapaxes(k, 2, 3) * 0.25)
    return p @ v + p[..., :1]


def dropped(q, k, v):
    p = nn.softmax(q @ gnp.swapaxes(k, 2, 3) * 0.25)
    kept = g.random.bernoulli(g.random.key(0), 0.9, p.shape)
    return gnp.where(kept, p / 0.9, 0.0) @ v


def highest(q, k, v):
    s = gnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest") * 0.25
    return nn.softmax(s) @ v


def with_epsilon(q, k, v):
    e = gnp.exp(q @ gnp.swapaxes(k, 2, 3))
    return (e / (e.sum(-1, keepdims=True) + 1e-3)) @ v


def with_a_sink(q, k, v):
    e = gnp.exp(q @ gnp.swapaxes(k, 2, 3))
    return (e / (e.sum(-1, keepdims=True) + 1.0)) @ v


def over_queries(q, k, v):
    return nn.softmax(q @ gnp.swapaxes(k, 2, 3), -2) @ v


def over_heads(q, k, v):
    return nn.softmax(q @ gnp.swapaxes(k, 2, 3), 1) @ v


def of_transposed_probabilities(q, k, v):
    return gnp.swapaxes(nn.softmax(q @ gnp.swapaxes(k, 2, 3)), 2, 3) @ v


def weakly_masked(q, k, v):
    return nn.softmax(gnp.where(causal(), q @ gnp.swapaxes(k, 2, 3), -5.0)) @ v


def squared(q, k, v):
    p = nn.softmax(q @ gnp.swapaxes(k, 2, 3))
    return (p * p) @ v


def zero_for_empty_rows(q, k, v):
    seen = (gnp.abs(v[..., 0]) > 0.1)[:, :, None, :]
    p = nn.softmax(gnp.where(seen, q @ gnp.swapaxes(k, 2, 3), -1e9))
    return gnp.where(seen, p, 0.0) @ v


def by_learned_scale(q, k, v):
    return nn.softmax(q @ gnp.swapaxes(k, 2, 3) * gnp.mean(gnp.abs(v))) @ v


REFUSED = [
    returned_probabilities, dropped, highest, with_epsilon, with_a_sink, over_queries, over_heads,
    of_transposed_probabilities, weakly_masked, squared,
    zero_for_empty_rows, by_learned_scale,
]  # fmt: skip


@pytest.mark.parametrize("wanted", [(), None], ids=["value", "gradients"])
@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_refused(f, wanted):
    before, after, _ = programs(f, operands("bhtd"), wanted)
    assert after is before


def test_refused_under_exact_products():
    with config.override(matmul_precision="highest"):
        before, after, _ = programs(einsum_bhtd, operands("bhtd"))
    assert after is before


@pytest.mark.parametrize(
    ("t", "d", "dtype"), [(8, 16, "float32"), (T, 300, "float32"), (T, 16, "float64")]
)
def test_refused_sizes_and_dtypes(t, d, dtype):
    with g.enable_x64(dtype == "float64"):
        args = [normal(B, t, H, d, dtype=dtype, seed=i) for i in range(3)]
        before, after, _ = programs(lambda q, k, v: biased(q, k, v, 0.0), args)
    assert after is before


def transformed(f: Callable[..., Any], args: list[Any]) -> tuple[Jaxpr, Jaxpr]:
    staged, _ = stage(lambda *xs: g.tree.leaves(f(*xs)), [a.aval for a in args])
    before = simplify_jaxpr(staged, KEEPS)
    after = fuse_attention(before, KEEPS)
    check(after)
    same_numbers(before, after, args, 2e-5)
    return before, after


def test_forward_mode_and_second_derivatives_stay():
    gradient = g.grad(lambda *xs: gnp.sum(gnp.sin(einsum_bhtd(*xs))), argnums=(0, 1, 2))
    for f in (einsum_bhtd, gradient):
        before, after = transformed(lambda *xs, f=f: g.jvp(f, xs, xs), operands("bhtd"))
        assert after is before


def test_several_cotangents():
    def f(*xs):
        out, pull = g.vjp(einsum_bhtd, *xs)
        return out, pull(gnp.ones_like(out)), pull(gnp.sin(out))

    assert calls(transformed(f, operands("bhtd"))[1]) == [*BOTH, BOTH[1]]


def test_gradients_of_each_example():
    one = lambda *xs: gnp.sum(gnp.sin(einsum_bhtd(*[x[None] for x in xs])))
    f = g.vmap(g.grad(one, argnums=(0, 1, 2)))
    assert calls(transformed(f, operands("bhtd"))[1]) == BOTH


# ---- whole programs ----


def layer(p, x):
    heads = [
        y.reshape(*x.shape[:2], H, D).transpose(0, 2, 1, 3)
        for y in gnp.split(x @ p["qkv"].astype(x.dtype), 3, -1)
    ]
    s = (heads[0] @ gnp.swapaxes(heads[1], -1, -2)).astype("float32") / math.sqrt(D)
    p_ = nn.softmax(gnp.where(causal(), s, gnp.finfo(s.dtype).min), -1).astype(x.dtype)
    out = (p_ @ heads[2]).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + out @ p["out"].astype(x.dtype)
    return x + nn.gelu(x @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)


def parameters(layers: int) -> list[dict[str, Any]]:
    f = H * D
    shapes = {"qkv": (f, 3 * f), "out": (f, f), "up": (f, 4 * f), "down": (4 * f, f)}
    return [
        {name: normal(*shape, seed=i) * 0.1 for name, shape in shapes.items()}
        for i in range(layers)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_of_a_transformer(dtype):
    params = parameters(3)
    leaves, structure = g.tree.flatten(params)

    def f(x, *leaves):
        for p in g.tree.unflatten(structure, leaves):
            x = layer(p, x)
        return x

    args = [normal(B, T, H * D, dtype=dtype), *leaves]
    tolerance = 5e-5 if dtype == "float32" else 5e-2
    after = recognised(f, args, tolerance=tolerance, expected=[BOTH[0]] * 3 + [BOTH[1]] * 3)
    assert not any(
        [o.aval.shape[-2:] == (T, T) for e in after.eqns for o in e.outs if o.aval.ndim > 2]
    )


@pytest.mark.parametrize("remat", [False, True])
def test_layers_in_a_loop(remat):
    body = lambda x, p: (layer(p, x), None)
    stacked = g.tree.map(lambda *xs: gnp.stack(xs), *parameters(2))
    leaves, structure = g.tree.flatten(stacked)

    def f(x, *leaves):
        step = g.checkpoint(body) if remat else body
        return lax.scan(step, x, g.tree.unflatten(structure, leaves))[0]

    args = [normal(B, T, H * D), *leaves]
    expected = ["attention", *BOTH] if remat else ["attention"]
    recognised(f, args, wanted=None if remat else (), expected=expected, tolerance=5e-5)


def written(np_, softmax, q, k, v, bias):
    t = q.shape[2]
    s = np_.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1]) + bias
    s = np_.where(np_.tril(np_.ones((t, t), bool)), s, -np_.inf)
    return np_.einsum("bhqk,bhkd->bhqd", softmax(s, -1), v)


def test_can_be_switched_off():
    with using_device(device("cuda")), options.without("attention"):
        text = g.jit(einsum_bhtd).lower(*operands("bhtd")).compile().as_text()
    assert "attention" not in text[text.index("\nstep") :].replace("test_written_attention", "")


def test_runs_as_jax_does():
    values = [
        np.random.default_rng(i).normal(size=(1, 2, 48, 16)).astype(np.float32) for i in range(3)
    ]
    values.append(np.random.default_rng(3).normal(size=(2, 48, 48)).astype(np.float32))
    both = lambda tools, np_, softmax: tools.value_and_grad(
        lambda *xs: np_.sum(np_.sin(written(np_, softmax, *xs))), argnums=(0, 1, 2, 3)
    )
    with jax.default_matmul_precision("highest"):
        value, expected = jax.jit(both(jax, xnp, jax.nn.softmax))(*values)
    with using_device(device("cuda")):
        f = g.jit(both(g, gnp, nn.softmax))
        xs = [gnp.asarray(x) for x in values]
        found_value, found = f(*xs)
        text = f.lower(*xs).compile().as_text()
    steps = text[text.index("\nstep") :]
    assert all([name in steps for name in BOTH]) and "dot_general" not in steps
    np.testing.assert_allclose(float(found_value), float(value), rtol=2e-2)
    for x, y in zip(found, expected):
        x, y = np.asarray(x), np.asarray(y)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-2 * np.abs(y).max())
