"""Reduced losses and their derivatives against torch's and NumPy's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, grad, jit, nn, optim, random, value_and_grad, vmap

TORCH_REDUCTIONS = ("mean", "sum", "none")


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def t(x: Any) -> Any:
    return torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x


def j(x: Any) -> Any:
    return jnp.asarray(x, x.dtype) if isinstance(x, np.ndarray) else x


def compare(
    ours: Callable, theirs: Callable, args: tuple, kind: Any = np.float64, tolerance: float = 1e-9
) -> None:
    """Values and derivatives by every floating argument are torch's, eagerly and compiled."""
    args = tuple(x.astype(kind) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
                 for x in args)  # fmt: skip
    places = tuple(i for i, x in enumerate(args) if isinstance(x, np.ndarray) and
                   x.dtype.kind == "f")  # fmt: skip
    tensors = [t(x) for x in args]
    for i in places:
        tensors[i].requires_grad_()
    want = theirs(*tensors)
    pull = rng().normal(size=tuple(want.shape)).astype(kind)
    # What has no derivative in torch has none to compare with.
    wanted = torch.autograd.grad(
        (want * t(np.asarray(pull))).sum(), [tensors[i] for i in places], allow_unused=True
    )
    compared = [i for i, g in zip(places, wanted) if g is not None]
    wanted = [g for g in wanted if g is not None]
    assert wanted
    arrays = [j(x) for x in args]
    got = ours(*arrays)
    assert got.shape == tuple(want.shape) and got.dtype == kind
    near(got, want.detach().numpy(), tolerance)
    scalar = lambda *xs: jnp.sum(ours(*xs) * pull)
    for run in (lambda f: f, jit):
        for g, w in zip(run(grad(scalar, tuple(compared)))(*arrays), wanted, strict=True):
            assert g.dtype == kind
            near(g, w.numpy(), tolerance)
    # A batch of copies, of which the second is scaled.
    first = compared[0]
    both = jnp.stack([arrays[first], arrays[first] * 0.9])
    one = lambda x: ours(*arrays[:first], x, *arrays[first + 1 :])
    mapped = vmap(one)(both)
    near(mapped[0], got, tolerance)
    near(mapped[1], one(both[1]), tolerance)


def near(got: Any, want: Any, tolerance: float = 1e-9) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


# ---- elementwise ----

X, Y = rng().normal(size=(2, 4, 3, 5)) * 2
UNIT = rng().random((2, 4, 3, 5)) * 0.98 + 0.01
COUNTS = rng().integers(0, 6, (4, 3, 5)).astype(np.float64)


def torch_binary(x: Any, y: Any, w: Any, p: Any, reduction: str = "mean") -> Any:
    """torch's own, and its formula, which has derivatives by the weights, too."""
    loss = -w * (p * y * F.logsigmoid(x) + (1 - y) * F.logsigmoid(-x))
    loss = loss if reduction == "none" else getattr(loss, reduction)()
    own = F.binary_cross_entropy_with_logits(
        x, y, weight=w.detach(), pos_weight=p.detach(), reduction=reduction
    )
    torch.testing.assert_close(loss, own)
    return loss


ELEMENTWISE = {
    "l1_loss": (nn.l1_loss, F.l1_loss, (X, Y), {}),
    "mse_loss": (nn.mse_loss, F.mse_loss, (X, Y), {}),
    "huber_loss": (nn.huber_loss, F.huber_loss, (X, Y), {"delta": 0.7}),
    "smooth_l1_loss": (nn.smooth_l1_loss, F.smooth_l1_loss, (X, Y), {"beta": 1.7}),
    "smooth_l1_loss 0": (nn.smooth_l1_loss, F.smooth_l1_loss, (X, Y), {"beta": 0.0}),
    "bce": (nn.binary_cross_entropy, F.binary_cross_entropy, tuple(UNIT), {}),
    "bce weight": (
        lambda p, y, w, **k: nn.binary_cross_entropy(p, y, weight=w, **k),
        lambda p, y, w, **k: F.binary_cross_entropy(p, y, weight=w.detach(), **k),
        (*UNIT, X[0, 0]), {},
    ),
    "logits": (
        nn.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, (X, UNIT[0]), {},
    ),
    "logits weights": (
        lambda x, y, w, p, **k: nn.binary_cross_entropy_with_logits(
            x, y, weight=w, pos_weight=p, **k),
        lambda x, y, w, p, **k: torch_binary(x, y, w, p, **k),
        (X, UNIT[0], UNIT[1, :, :1], UNIT[1, 0, 0] * 5), {},
    ),
    "kl_div": (nn.kl_div, F.kl_div, (log_softmax(X), UNIT[0]), {}),
    "kl_div log": (nn.kl_div, F.kl_div, (log_softmax(X), log_softmax(Y)), {"log_target": True}),
    "poisson": (nn.poisson_nll_loss, F.poisson_nll_loss, (X, COUNTS), {}),
    "poisson full": (
        lambda x, y, **k: nn.poisson_nll_loss(x, y, log_input=False, full=True, eps=1e-3, **k),
        lambda x, y, **k: F.poisson_nll_loss(
            x, y.detach(), log_input=False, full=True, eps=1e-3, **k),
        (UNIT[0] * 3, COUNTS), {},
    ),
    "gaussian": (nn.gaussian_nll_loss, F.gaussian_nll_loss, (X, Y, UNIT[0]), {"eps": 0.3}),
    "gaussian rows": (
        nn.gaussian_nll_loss, F.gaussian_nll_loss, (X, Y, UNIT[0, :, :, :1]), {"full": True},
    ),
    "ranking": (
        nn.margin_ranking_loss, F.margin_ranking_loss, (X, Y, np.sign(Y - 0.3)), {"margin": 0.4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reduction", TORCH_REDUCTIONS)
@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_elementwise(name: str, reduction: str) -> None:
    ours, theirs, args, options = ELEMENTWISE[name]
    compare(
        lambda *xs: ours(*xs, **options, reduction=reduction),
        lambda *xs: theirs(*xs, **options, reduction=reduction),
        args,
    )


@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_of_a_batch(log_target: bool) -> None:
    targets = log_softmax(Y) if log_target else np.exp(log_softmax(Y))
    compare(
        lambda x, y: nn.kl_div(x, y, reduction="batchmean", log_target=log_target),
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=log_target),
        (log_softmax(X), targets),
    )
    with pytest.raises(errors.ShapeError, match="batchmean"):
        nn.kl_div(jnp.float32(-1.0), jnp.float32(0.5), reduction="batchmean")


def test_kl_div_of_impossible_classes() -> None:
    log_q = jnp.array([[-jnp.inf, 0.0], [-0.5, -1.0]])
    p = jnp.array([[0.0, 1.0], [0.0, 1.0]])
    assert nn.kl_div(log_q, p, reduction="none").tolist() == [[0, 0], [0, 1]]
    slope = grad(lambda q: nn.kl_div(q, p, reduction="sum"))(log_q)
    assert slope.tolist() == [[0, -1], [0, -1]]
    log_p = jnp.log(p)
    assert nn.kl_div(log_q, log_p, log_target=True, reduction="none").tolist() == [[0, 0], [0, 1]]
    both = grad(lambda q, p: nn.kl_div(q, p, log_target=True, reduction="sum"), (0, 1))
    assert all(np.isfinite(np.asarray(g)).all() for g in both(log_q, log_p))


def test_binary_cross_entropy_of_certain_predictions() -> None:
    p, y = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])
    tensor = t(p).requires_grad_()
    want = F.binary_cross_entropy(tensor, t(y), reduction="none")
    near(nn.binary_cross_entropy(j(p), j(y), reduction="none"), want.detach())
    (slope,) = torch.autograd.grad(want.sum(), tensor)
    got = grad(lambda p: nn.binary_cross_entropy(p, j(y), reduction="sum"))(j(p))
    near(got[:2], slope[:2], 1e-8)  # torch's 1e-12 is one of float32
    # At the right answer torch's is 0; here it is the one-sided derivative.
    assert got[2:].tolist() == [1, -1]


@pytest.mark.parametrize("pos_weight", [None, 2.0])
def test_infinite_logits_of_binary_decisions(pos_weight: float | None) -> None:
    x, y = jnp.array([-np.inf, np.inf, 0.0]), jnp.array([0.0, 1.0, 1.0])
    f = lambda x: nn.binary_cross_entropy_with_logits(
        x, y, pos_weight=pos_weight, reduction="none")  # fmt: skip
    near(f(x), np.array([0, 0, (pos_weight or 1) * math.log(2)], np.float32), 1e-6)
    assert grad(lambda x: f(x).sum())(x).tolist() == [0, 0, -0.5 * (pos_weight or 1)]


def test_extreme_logits() -> None:
    x, y = np.array([1e4, -1e4, 1e4, -1e4]), np.array([1.0, 0.0, 0.0, 1.0])
    for kind in (np.float32, np.float64):
        value, slope = value_and_grad(
            lambda x: nn.binary_cross_entropy_with_logits(x, y, pos_weight=2.0, reduction="sum")
        )(j(x.astype(kind)))
        assert float(value) == 3e4 and slope.tolist() == [0, 0, 1, -2]
        rows = np.array([[1e4, 0, -np.inf], [-1e4, -np.inf, 1e4]], kind)
        value, slope = value_and_grad(lambda x: nn.cross_entropy(x, jnp.array([1, 0])))(j(rows))
        assert float(value) == 1.5e4
        near(slope, np.array([[0.5, -0.5, 0], [-0.5, 0, 0.5]]), 1e-6)
        # An excluded class that the target excludes, too, costs nothing.
        p = np.array([[0.25, 0.75, 0], [0.5, 0, 0.5]], kind)
        value, slope = value_and_grad(lambda x, p: nn.cross_entropy(x, p))(j(rows), j(p))
        near(value, (0.75e4 + 1e4) / 2, 1e-6)
        assert np.isfinite(np.asarray(slope)).all()
        # Smoothing gives it some of the target, as in torch: that loss is infinite.
        assert float(nn.cross_entropy(j(rows), jnp.array([0, 2]), label_smoothing=0.1)) == np.inf
        weight = jnp.array([1.0, 1.0, 0.0], kind)
        smooth = nn.cross_entropy(j(rows[:1]), jnp.array([0]), label_smoothing=0.1, weight=weight)
        near(smooth, 0.1 * 1e4 / 3, 1e-6)


# ---- cross-entropy ----


def torch_cross_entropy(x: Any, y: Any, w: Any, ignore_index: int | None, **options: Any) -> Any:
    axes = (0, x.ndim - 1, *range(1, x.ndim - 1))
    y = y if y.ndim < x.ndim else y.permute(axes)
    ignore = {} if ignore_index is None else {"ignore_index": ignore_index}
    w = None if w is None else w.detach()
    return F.cross_entropy(x.permute(axes), y, weight=w, **ignore, **options)


CROSS = list(itertools.product((False, True), (None, -100, 2), (0.0, 0.2), TORCH_REDUCTIONS))


@pytest.mark.parametrize(("weighted", "ignore_index", "smoothing", "reduction"), CROSS)
def test_cross_entropy_of_classes(
    weighted: bool, ignore_index: int | None, smoothing: float, reduction: str
) -> None:
    x, w = X * 2, UNIT[0, 0, 0] * 3 if weighted else None
    y = rng().integers(0, 5, (4, 3))
    if ignore_index is not None:
        y[1, :2], y[3, 2] = ignore_index, ignore_index
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
    args = (x, y) if w is None else (x, y, w)
    compare(
        lambda x, y, w=None: nn.cross_entropy(x, y, weight=w, ignore_index=ignore_index, **options),
        lambda x, y, w=None: torch_cross_entropy(x, y, w, ignore_index, **options),
        args,
    )
    if smoothing:
        return
    compare(
        lambda x, y, w=None: nn.nll_loss(
            nn.log_softmax(x), y, weight=w, ignore_index=ignore_index, reduction=reduction
        ),
        lambda x, y, w=None: torch_cross_entropy(x, y, w, ignore_index, **options),
        args,
    )


@pytest.mark.parametrize("reduction", TORCH_REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_probabilities(weighted: bool, smoothing: float, reduction: str) -> None:
    w = UNIT[0, 0, 0] * 3 if weighted else None
    y = np.exp(log_softmax(Y))
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
    # torch's own mean of probabilities [batch, classes, d] is by batch * d, as ours by rows.
    compare(
        lambda x, y: nn.cross_entropy(x, y, weight=j(w), **options),
        lambda x, y: torch_cross_entropy(x, y, t(w), None, **options),
        (X, y),
    )


def test_cross_entropy_along_an_axis() -> None:
    y, p = rng().integers(0, 3, (4, 5)), np.exp(log_softmax(Y))
    w = UNIT[0, 0, :, 0]
    compare(
        lambda x, y, w: nn.cross_entropy(x, y, axis=1, weight=w, label_smoothing=0.1),
        lambda x, y, w: F.cross_entropy(x, y, weight=w.detach(), label_smoothing=0.1),
        (X, y, w),
    )
    compare(lambda x, p: nn.cross_entropy(x, p, axis=1), lambda x, p: F.cross_entropy(x, p), (X, p))
    compare(
        lambda x, y: nn.nll_loss(x, y, axis=-2), lambda x, y: F.nll_loss(x, y), (log_softmax(X), y)
    )


def test_derivative_by_class_weights() -> None:
    """torch has none: the mean is a quotient of sums that are linear in the weights."""
    x, y, w = j(X[:, 0]), jnp.asarray(rng().integers(0, 5, 4)), UNIT[0, 0, 0]
    f = lambda w: float(nn.cross_entropy(x, y, weight=j(w), label_smoothing=0.1))
    step = np.eye(5) * 1e-6
    want = [(f(w + s) - f(w - s)) / 2e-6 for s in step]
    got = grad(lambda w: nn.cross_entropy(x, y, weight=w, label_smoothing=0.1))(j(w))
    near(got, np.array(want), 1e-6)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_other_dtypes(kind: str) -> None:
    tolerance = 1e-5 if kind == "float32" else 3e-2
    y = jnp.asarray(rng().integers(0, 5, (4, 3)))
    for options in ({}, {"label_smoothing": 0.1}, {"weight": jnp.asarray(UNIT[0, 0, 0])}):
        got = nn.cross_entropy(jnp.asarray(X, kind), y, **options)
        want = nn.cross_entropy(jnp.asarray(X), y, **options)
        assert got.dtype == kind
        near(got.astype("float64"), want, tolerance)
    for name, (ours, _, args, options) in ELEMENTWISE.items():
        got = ours(*[jnp.asarray(x, kind) for x in args], **options)
        assert got.dtype == kind, name
        near(got.astype("float64"), ours(*map(j, args), **options), tolerance)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sums_of_16_bit_numbers(kind: str) -> None:
    """What the inputs and the result can hold, no sum on the way overflows."""
    draw = np.random.default_rng(3)
    logits = jnp.asarray(20 * draw.normal(size=(9000, 4)), kind)
    labels, weight = jnp.asarray(draw.integers(0, 4, 9000)), jnp.array([1.0, 3.0, 2.0, 0.5])
    vectors = [jnp.asarray(x, kind) for x in 100 * draw.normal(size=(3, 6, 32))]
    for loss, args in [
        (lambda x: nn.cross_entropy(x, labels, weight=weight, where=labels > 0), [logits]),
        (lambda x: nn.nll_loss(x, labels, weight=weight, ignore_index=2), [logits]),
        (lambda x: nn.kl_div(x, jnp.abs(x), reduction="batchmean"), [logits]),
        (lambda x, y: nn.cosine_embedding_loss(x, y, jnp.array([1, 1, -1] * 2)), vectors[:2]),
        (lambda x, y, z: nn.triplet_margin_loss(x, y, z, margin=500.0), vectors),
        (lambda x, y: nn.info_nce(x, y, symmetric=True), vectors[:2]),
        (nn.info_nce, vectors),
    ]:
        value, slope = value_and_grad(loss)(*args)
        want, wanted = value_and_grad(loss)(*[x.astype("float32") for x in args])
        assert value.dtype == slope.dtype == kind
        near(value.astype("float32"), want, 1e-2)
        unit = float(jnp.abs(wanted).max())
        near(slope.astype("float32") / unit, wanted / unit, 3e-2)


def test_amp_computes_losses_in_float32() -> None:
    """A loss under `amp` is that of its operands, which a 16-bit product would round."""
    x, y = X.astype(np.float32), rng().integers(0, 5, (4, 3))
    z = Y.astype(np.float32)
    cases: dict[str, Callable] = {
        "classes": lambda x: nn.cross_entropy(x, y, label_smoothing=0.1),
        "errors": lambda x: nn.mse_loss(x, z),
        "pairs": lambda x: nn.info_nce(x[:, 0], x[:, 1], reduction="none"),
        "cosine": lambda x: nn.cosine_embedding_loss(x, z, jnp.ones((4, 3))),
        "ctc": lambda x: nn.ctc_loss(
            nn.log_softmax(x), jnp.full((3, 2), 1), jnp.full(3, 4), jnp.full(3, 2)),
    }  # fmt: skip
    for name, f in cases.items():
        for run in (lambda f: f, jit):
            got = run(gf.amp(f, "bfloat16"))(jnp.asarray(x))
            np.testing.assert_allclose(got, f(jnp.asarray(x)), rtol=1e-6, err_msg=name)


# ---- vectors ----

VECTORS = {
    "cosine": (
        lambda a, b, y, **k: nn.cosine_embedding_loss(a, b, y, margin=0.1, **k),
        lambda a, b, y, **k: F.cosine_embedding_loss(a, b, y, margin=0.1, **k),
        (X[:, 0], Y[:, 0], np.array([1, -1, -1, 1])),
    ),
    "triplet": (nn.triplet_margin_loss, F.triplet_margin_loss, (X, Y, UNIT[0])),
    "triplet swap": (
        lambda *xs, **k: nn.triplet_margin_loss(*xs, swap=True, margin=3.0, **k),
        lambda *xs, **k: F.triplet_margin_loss(*xs, swap=True, margin=3.0, **k),
        (X, Y, UNIT[0]),
    ),
    **{
        f"triplet {p}": (
            lambda *xs, p=p, **k: nn.triplet_margin_loss(*xs, p=p, eps=1e-3, **k),
            lambda *xs, p=p, **k: F.triplet_margin_loss(*xs, p=p, eps=1e-3, **k),
            (X, Y, UNIT[0]),
        )
        for p in (1.0, 3.0, 2.5, math.inf)
    },
}


@pytest.mark.parametrize("reduction", TORCH_REDUCTIONS)
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str, reduction: str) -> None:
    ours, theirs, args = VECTORS[name]
    compare(
        lambda *xs: ours(*xs, reduction=reduction),
        lambda *xs: theirs(*xs, reduction=reduction),
        args,
    )


def test_vectors_along_another_axis() -> None:
    a, b, c = X[0], Y[0], UNIT[0, 0]
    near(
        nn.triplet_margin_loss(j(a), j(b), j(c), axis=0),
        F.triplet_margin_loss(t(a.T.copy()), t(b.T.copy()), t(c.T.copy())),
    )
    y = np.array([1, -1, -1, 1, 1])
    near(
        nn.cosine_embedding_loss(j(a), j(b), j(y), axis=0),
        F.cosine_embedding_loss(t(a.T.copy()), t(b.T.copy()), t(y)),
    )


def test_equal_and_zero_vectors() -> None:
    """Derivatives of distances and cosines at 0 are finite, as torch's."""
    zero = np.zeros((2, 3))
    for eps in (0.0, 1e-6):
        compare(
            lambda a, b, c, eps=eps: nn.triplet_margin_loss(a, b, c, eps=eps),
            lambda a, b, c, eps=eps: F.triplet_margin_loss(a, b, c, eps=eps),
            (zero, zero, zero + 1),
        )
    loss = lambda a, b: nn.cosine_embedding_loss(a, b, jnp.array([1, 2]), reduction="none")
    assert loss(j(zero), j(zero + 1)).tolist() == [1, 0]
    slopes = grad(lambda a, b: loss(a, b).sum(), (0, 1))(j(zero), j(zero + 1))
    assert all(np.isfinite(np.asarray(g)).all() for g in slopes)
    compare(nn.margin_ranking_loss, F.margin_ranking_loss, (zero, zero, zero + 1))  # a tie


def info_nce(q: Any, k: Any, n: Any = None, temperature: float = 0.1, normalize: bool = True,
             symmetric: bool = False, reduction: str = "mean") -> Any:  # fmt: skip
    unit = (lambda x: F.normalize(x, dim=-1)) if normalize else lambda x: x
    q, k = unit(q), unit(k)
    rows = torch.arange(len(q))
    if n is not None:
        own, rest = (q * k).sum(-1, keepdim=True), (q[:, None] * unit(n)).sum(-1)
        return F.cross_entropy(
            torch.cat([own, rest], 1) / temperature, 0 * rows, reduction=reduction
        )
    scores = q @ k.T / temperature
    loss = F.cross_entropy(scores, rows, reduction=reduction)
    if symmetric:
        loss = (loss + F.cross_entropy(scores.T, rows, reduction=reduction)) / 2
    return loss


@pytest.mark.parametrize("reduction", TORCH_REDUCTIONS)
@pytest.mark.parametrize("normalize", [True, False])
def test_info_nce(normalize: bool, reduction: str) -> None:
    q, k, n = X[:, 0], Y[:, 0], UNIT[0, :, 1]
    for args, options in (
        ((q, k), {"temperature": 0.5}),
        ((q, k), {"symmetric": True}),
        ((q, k, n), {}),
        ((q, k, Y[:, 1:]), {"temperature": 0.7}),
    ):
        given = {**options, "normalize": normalize, "reduction": reduction}
        compare(
            lambda *xs, given=given: nn.info_nce(*xs, **given),
            lambda *xs, given=given: info_nce(*xs, **given),
            args,
        )


def test_info_nce_leaves_out_what_does_not_count() -> None:
    q, k = X[:, 0].copy(), Y[:, 0].copy()
    mask = np.array([True, False, True, True])
    for symmetric in (False, True):
        want = nn.info_nce(j(q[mask]), j(k[mask]), symmetric=symmetric)
        bad = [np.where(mask[:, None], x, np.nan) for x in (q, k)]
        f = lambda q, k, s=symmetric: nn.info_nce(q, k, where=jnp.asarray(mask), symmetric=s)
        value, slopes = value_and_grad(f, (0, 1))(*map(j, bad))
        near(value, want)
        for g in slopes:
            assert np.isfinite(np.asarray(g)).all() and not np.asarray(g)[1].any()
    own = np.where(mask[:, None, None], Y[:, 1:], np.nan)
    f = lambda q, n: nn.info_nce(q, j(k), n, where=jnp.asarray(mask))
    value, slopes = value_and_grad(f, (0, 1))(j(q), j(own))
    near(value, nn.info_nce(j(q[mask]), j(k[mask]), j(Y[mask, 1:])))
    assert all(np.isfinite(np.asarray(g)).all() for g in slopes)


def test_temperature_is_learned() -> None:
    f = lambda s: nn.info_nce(j(X[:, 0]), j(Y[:, 0]), temperature=s)
    step = (float(f(jnp.asarray(0.5 + 1e-5, "float64"))) -
            float(f(jnp.asarray(0.5 - 1e-5, "float64")))) / 2e-5  # fmt: skip
    near(grad(f)(jnp.asarray(0.5, "float64")), step, 1e-5)


# ---- CTC ----


@pytest.mark.parametrize("reduction", TORCH_REDUCTIONS)
@pytest.mark.parametrize("blank", [0, 2, 5])
def test_ctc_loss(blank: int, reduction: str) -> None:
    draw = np.random.default_rng(blank)
    x = draw.normal(size=(9, 5, 6))
    classes = np.array([c for c in range(6) if c != blank])
    targets = classes[draw.integers(0, 5, (5, 4))]
    targets[0] = classes[[1, 1, 2, 2]]  # blanks between equal ones
    frames, labels = np.array([9, 9, 7, 4, 5]), np.array([4, 3, 1, 2, 0])
    compare(
        lambda x, y, n, m: nn.ctc_loss(
            nn.log_softmax(x), y, n, m, blank=blank, reduction=reduction),
        lambda x, y, n, m: F.ctc_loss(
            F.log_softmax(x, -1), y, n, m, blank=blank, reduction=reduction),
        (x, targets, frames, labels),
        tolerance=1e-8,
    )  # fmt: skip


def test_ctc_loss_by_log_probabilities_that_do_not_sum_to_1() -> None:
    x, targets = rng().normal(size=(4, 2, 3)), np.array([[1, 2], [1, 1]])
    lengths = np.array([4, 3]), np.array([2, 1])
    f = lambda x: nn.ctc_loss(x, targets, *lengths, reduction="sum")
    near(f(j(x)), F.ctc_loss(t(x), t(targets), *map(t, lengths), reduction="sum"))
    way = rng().normal(size=x.shape)
    slope = (float(f(j(x + 1e-6 * way))) - float(f(j(x - 1e-6 * way)))) / 2e-6
    near(jnp.sum(grad(f)(j(x)) * way), slope, 1e-6)


def test_ctc_loss_without_any_alignment() -> None:
    log_p = log_softmax(rng().normal(size=(3, 3, 4)))
    targets, labels = np.array([[1, 1], [1, 2], [3, 2]]), np.array([2, 2, 2])
    frames = np.array([2, 2, 1])  # the first needs a blank between, the last has one frame
    for zero in (False, True):
        want = F.ctc_loss(t(log_p), t(targets), t(frames), t(labels), reduction="none",
                          zero_infinity=zero)  # fmt: skip
        got = nn.ctc_loss(j(log_p), targets, frames, labels, reduction="none", zero_infinity=zero)
        near(got, want)
    slope = grad(
        lambda x: nn.ctc_loss(x, targets, frames, labels, zero_infinity=True, reduction="sum")
    )(j(log_p))
    assert np.isfinite(np.asarray(slope)).all() and not np.asarray(slope)[:, [0, 2]].any()
    assert np.asarray(slope)[:2, 1].any()


def test_ctc_loss_of_excluded_classes_and_of_padding() -> None:
    """Classes of probability 0, and NaN in frames that are not read."""
    log_p = log_softmax(rng().normal(size=(4, 2, 4)))
    log_p[:, 0, 3] = -np.inf
    log_p[1, 0, 0] = -np.inf
    targets, frames, labels = np.array([[1, 2], [1, 3]]), np.array([4, 2]), np.array([2, 1])
    want = F.ctc_loss(t(log_p), t(targets), t(frames), t(labels), reduction="none")
    assert np.isfinite(want.numpy()).all()
    log_p[2:, 1] = np.nan
    f = lambda x: nn.ctc_loss(x, targets, frames, labels, reduction="none")
    near(f(j(log_p)), want, 1e-8)
    slope = np.asarray(grad(lambda x: f(x).sum())(j(log_p)))
    assert np.isfinite(slope).all() and not slope[2:, 1].any() and not slope[:, 0, 3].any()
    # NaN that is read is no lack of an alignment.
    broken = log_p.copy()
    broken[0, 0, 1] = np.nan
    for zero in (False, True):
        got = nn.ctc_loss(j(broken), targets, frames, labels, zero_infinity=zero, reduction="none")
        assert np.isnan(float(got[0])) and np.isfinite(float(got[1]))
    never = log_p.copy()
    never[:, 1, 1] = -np.inf  # the target's only label
    assert nn.ctc_loss(j(never), targets, frames, labels, reduction="none")[1] == np.inf


def test_ctc_loss_of_other_dtypes_and_errors() -> None:
    log_p = log_softmax(rng().normal(size=(4, 2, 4))).astype(np.float32)
    args = np.array([[1, 2], [1, 3]]), np.array([4, 3]), np.array([2, 1])
    want = nn.ctc_loss(j(log_p), *args)
    for kind in ("float16", "bfloat16"):
        got = nn.ctc_loss(jnp.asarray(log_p, kind), *args)
        assert got.dtype == kind
        near(got.astype("float32"), want, 3e-2)
    run = lambda i, bad: nn.ctc_loss(j(log_p), *args[:i], bad, *args[i + 1 :])
    with pytest.raises(errors.IndexOutOfRange, match="out of range"):
        run(0, np.array([[1, 4], [1, 3]])).tolist()
    assert run(0, np.array([[1, 2], [1, 4]])) == want  # beyond the target's length
    for i in (1, 2):
        with pytest.raises(errors.IndexOutOfRange, match="out of range"):
            run(i, np.array([5, 1])).tolist()
        with pytest.raises(errors.ShapeError, match=r"has to be \[2\]"):
            run(i, np.array([1]))
        with pytest.raises(errors.DTypeError, match="lengths takes integer"):
            run(i, np.array([1.0, 2.0]))
    with pytest.raises(errors.ShapeError, match="swapaxes"):
        run(0, np.array([1, 2]))
    with pytest.raises(errors.ArgumentError, match="blank 4 is none of 4"):
        nn.ctc_loss(j(log_p), *args, blank=4)
    with pytest.raises(errors.DTypeError, match="floats"):
        nn.ctc_loss(jnp.zeros((4, 2, 4), int), *args)


# ---- masks, and reductions of nothing ----

MASK = rng().random((4, 3, 5)) < 0.6
ROWS = np.array([[True, False, True], [False, True, True], [True] * 3, [False] * 3])
LABELS = rng().integers(0, 5, (4, 3))
SIGNS = np.where(LABELS > 2, 1, -1)

MASKED = {
    **{name: (f, args, options, MASK) for name, (f, _, args, options) in ELEMENTWISE.items()},
    "cross_entropy": (lambda x, **k: nn.cross_entropy(x, LABELS, **k), (X,), {}, ROWS),
    "cross_entropy weight": (
        lambda x, w, **k: nn.cross_entropy(x, LABELS, weight=w, label_smoothing=0.1, **k),
        (X, UNIT[0, 0, 0]), {}, ROWS,
    ),
    "probabilities": (nn.cross_entropy, (X, np.exp(log_softmax(Y))), {}, ROWS),
    "nll": (lambda x, **k: nn.nll_loss(x, LABELS, **k), (X,), {}, ROWS),
    "nll weight": (
        lambda x, w, **k: nn.nll_loss(x, LABELS, weight=w, **k), (X, UNIT[0, 0, 0]), {}, ROWS),
    "cosine": (lambda a, b, **k: nn.cosine_embedding_loss(a, b, SIGNS, **k), (X, Y), {}, ROWS),
    "triplet": (nn.triplet_margin_loss, (X, Y, UNIT[0]), {"swap": True}, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str) -> None:
    """`where` takes a mean of what counts; the rest may be NaN, and has the derivative 0."""
    f, args, options, mask = MASKED[name]
    arrays = [j(x) for x in args]
    each = f(*arrays, **options, reduction="none")
    got = f(*arrays, **options, reduction="none", where=mask)
    near(got, np.where(mask, np.asarray(each), 0))
    near(f(*arrays, **options, reduction="sum", where=mask), np.asarray(got).sum())
    wide = mask if mask is MASK else mask[..., None]
    values = tuple(i for i, x in enumerate(args) if x.shape == X.shape)
    bad = [j(np.where(wide, x, np.nan)) if i in values else j(x) for i, x in enumerate(args)]
    loss = lambda *xs: f(*xs, **options, where=jnp.asarray(mask))
    value, slopes = jit(value_and_grad(loss, values))(*bad)
    near(value, loss(*arrays))
    if "weight" not in name:
        near(value, np.asarray(each)[mask].mean())
    for g, w in zip(slopes, grad(loss, values)(*arrays), strict=True):
        near(g, w)
        assert not np.where(wide, 0, np.asarray(g)).any()
    # A mean over nothing is NaN, and no step comes of it.
    nothing = jnp.zeros(mask.shape, bool)
    value, slopes = value_and_grad(lambda *xs: f(*xs, **options, where=nothing), values)(*bad)
    assert np.isnan(float(value)) and not any(np.asarray(g).any() for g in slopes)
    for reduction, want in (("sum", 0), ("none", np.zeros(mask.shape))):
        near(f(*bad, **options, where=nothing, reduction=reduction), np.asarray(want, float))


def test_masks_and_ignored_labels_together() -> None:
    labels = np.where(LABELS == 2, -1, LABELS)
    keep = ROWS & (LABELS != 2)
    weight = UNIT[0, 0, 0]
    for options in ({}, {"weight": j(weight)}, {"weight": j(weight), "label_smoothing": 0.2}):
        got = nn.cross_entropy(j(X), labels, ignore_index=-1, where=ROWS, **options)
        near(got, nn.cross_entropy(j(X[keep]), labels[keep], **options))
    ignored = jnp.full((4, 3), -1)
    for f in (nn.cross_entropy, nn.nll_loss):
        value, slope = value_and_grad(lambda x, f=f: f(x, ignored, ignore_index=-1))(j(X))
        assert np.isnan(float(value)) and not np.asarray(slope).any()
    want = F.cross_entropy(t(X[0]), torch.full((3,), -1), ignore_index=-1)
    assert np.isnan(float(want))


def test_batches_of_nothing() -> None:
    none, rows = jnp.zeros((0,)), jnp.zeros((0, 3))
    assert (
        np.isnan(float(nn.mse_loss(none, none))) and nn.mse_loss(none, none, reduction="sum") == 0
    )
    empty = jnp.zeros((0,), jnp.int32)
    assert np.isnan(float(nn.cross_entropy(rows, empty)))
    assert nn.cross_entropy(rows, empty, reduction="none").shape == (0,)
    assert np.isnan(float(nn.info_nce(rows, rows)))


# ---- errors ----

A, B = jnp.ones((4, 3)), jnp.ones((4, 3))
REFUSED = {
    "pairs": (lambda: nn.mse_loss(jnp.ones((4, 1)), jnp.ones(4)), errors.ShapeError, "pairs"),
    "pairs l1": (lambda: nn.l1_loss(A, jnp.ones(3)), errors.ShapeError, "l1_loss: .*differ"),
    "pairs bce": (
        lambda: nn.binary_cross_entropy_with_logits(jnp.ones((4, 1)), jnp.ones(4)),
        errors.ShapeError, "differ in shape"),
    "integers": (lambda: nn.mse_loss(jnp.ones(4, int), jnp.ones(4)), errors.DTypeError, "floats"),
    "reduction": (lambda: nn.mse_loss(A, B, reduction="max"), errors.ArgumentError,
                  '"mean", "sum" or "none", not \'max\''),
    "batchmean": (lambda: nn.kl_div(A, B, reduction="all"), errors.ArgumentError, "batchmean"),
    "mask": (lambda: nn.mse_loss(A, B, where=B), errors.DTypeError, "where=mask > 0"),
    "mask shape": (lambda: nn.mse_loss(A, B, where=jnp.ones((2, 4, 3), bool)), errors.ShapeError,
                   "where .*does not broadcast to"),
    "rows": (lambda: nn.cross_entropy(A, jnp.zeros(4, int), where=jnp.ones((4, 3), bool)),
             errors.ShapeError, "where"),
    "labels": (lambda: nn.cross_entropy(A, jnp.zeros((4, 1), int)), errors.ShapeError,
               "one class number per row"),
    "bools": (lambda: nn.cross_entropy(A, jnp.zeros(4, bool)), errors.DTypeError, "integer labels"),
    "probabilities": (lambda: nn.cross_entropy(A, jnp.ones(3)), errors.ShapeError, "differ"),
    "ignored probabilities": (lambda: nn.cross_entropy(A, B, ignore_index=1), errors.ArgumentError,
                              "where= masks rows"),
    "smoothing": (lambda: nn.cross_entropy(A, B, label_smoothing=1.5), errors.ArgumentError,
                  "label_smoothing is in"),
    "weight": (lambda: nn.cross_entropy(A, jnp.zeros(4, int), weight=jnp.ones(4)),
               errors.ShapeError, "one for each class"),
    "pos_weight": (lambda: nn.binary_cross_entropy_with_logits(A, B, pos_weight=jnp.ones(4)),
                   errors.ShapeError, "pos_weight"),
    "bce weight": (lambda: nn.binary_cross_entropy(A, B, weight=jnp.ones((2, 4, 3))),
                   errors.ShapeError, "weight"),
    "no class": (lambda: nn.cross_entropy(A, jnp.array([0, 1, 2, -100])).tolist(),
                 errors.IndexOutOfRange, "-100 is out of range for 3"),
    "no class nll": (lambda: nn.nll_loss(A, jnp.array([0, 1, 2, -1])).tolist(),
                     errors.IndexOutOfRange, "-1 out of range"),
    "axis": (lambda: nn.cross_entropy(jnp.ones(()), jnp.zeros((), int)), errors.ShapeError,
             "no axis of classes"),
    "delta": (lambda: nn.huber_loss(A, B, delta=0.0), errors.ArgumentError, "delta"),
    "beta": (lambda: nn.smooth_l1_loss(A, B, beta=-1.0), errors.ArgumentError, "beta"),
    "variance": (lambda: nn.gaussian_nll_loss(A, B, jnp.ones(3)), errors.ShapeError, "variances"),
    "eps": (lambda: nn.gaussian_nll_loss(A, B, A, eps=0.0), errors.ArgumentError, "eps"),
    "cosine targets": (lambda: nn.cosine_embedding_loss(A, B, jnp.ones((4, 1))), errors.ShapeError,
                       "one per pair"),
    "triplets": (lambda: nn.triplet_margin_loss(A, B, jnp.ones((1, 3))), errors.ShapeError,
                 "anchors .*and negatives"),
    "degree": (lambda: nn.triplet_margin_loss(A, B, A, p=0.0), errors.ArgumentError, "p has"),
    "ranking": (lambda: nn.margin_ranking_loss(A, B, jnp.ones(3)), errors.ShapeError, "targets"),
    "temperature": (lambda: nn.info_nce(A, B, temperature=0.0), errors.ArgumentError, "positive"),
    "symmetric": (lambda: nn.info_nce(A, B, A, symmetric=True), errors.ArgumentError, "negatives"),
    "negatives": (lambda: nn.info_nce(A, B, jnp.ones((2, 5, 3))), errors.ShapeError, "negatives"),
    "queries": (lambda: nn.info_nce(jnp.ones(3), jnp.ones(3)), errors.ShapeError, "queries"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, kind, match = REFUSED[name]
    with pytest.raises(kind, match=match):
        call()


def test_a_model_learns_by_them() -> None:
    """A training step takes a loss with options like any function."""
    layer = nn.Linear(5, 3)
    x, y = jnp.asarray(X[:, 0].astype(np.float32)), jnp.asarray([0, 1, 2, -100])

    @jit
    def loss(params: Any) -> Any:
        return nn.cross_entropy(
            layer(params, x), y, ignore_index=-100, weight=jnp.array([1.0, 2.0, 0.5])
        )

    tx, params = optim.sgd(0.5), layer.init(random.key(0))
    state, start = tx.init(params), loss(params)
    for _ in range(20):
        updates, state = tx.update(grad(loss)(params), state, params)
        params = optim.apply_updates(params, updates)
    assert float(loss(params)) < 0.3 * float(start)
