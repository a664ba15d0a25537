"""Linear cross-entropy with weights, bias and masks against torch's of the layer's logits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, grad, jit, jvp, nn, value_and_grad, vmap

SHAPE, FEATURES, CLASSES = (2, 6), 5, 9
OPTIONS = {
    "bias": (False, True),
    "class_weight": (False, True),
    "row_weight": (False, True),
    "where": (False, True),
    "ignore_index": (None, -100),
    "label_smoothing": (0.0, 0.1),
    "softcap": (0.0, 2.0),
    "z_loss": (0.0, 1e-2),
}
FLOATS = ("x", "weight", "bias", "class_weight", "row_weight")


def drawn(given: dict[str, Any], kind: str = "float64") -> dict[str, np.ndarray]:
    """Operands of every option that is given, by name."""
    rng = np.random.default_rng(3)
    made = {
        "x": rng.normal(size=(*SHAPE, FEATURES)),
        "weight": rng.normal(size=(CLASSES, FEATURES)),
        "bias": rng.normal(size=CLASSES),
        "class_weight": rng.random(CLASSES) * 2,
        "row_weight": rng.random(SHAPE) + 0.1,
        "where": rng.random(SHAPE) < 0.7,
    }
    labels = rng.integers(0, CLASSES, SHAPE)
    if given["ignore_index"] is not None:
        labels[0, :3] = given["ignore_index"]
    kept = {n: v for n, v in made.items() if given.get(n, True)}
    return {n: v.astype(kind) if n in FLOATS else v for n, v in kept.items()} | {"labels": labels}


def expected(operands: dict[str, Any], given: dict[str, Any], reduction: str) -> torch.Tensor:
    """The loss by torch's functions; without softcap, z_loss and weights of rows its own."""
    arrays = {n: v for n, v in operands.items() if v is not None}
    logits = F.linear(arrays["x"], arrays["weight"], arrays.get("bias"))
    if given["softcap"]:
        logits = given["softcap"] * torch.tanh(logits / given["softcap"])
    labels, counts = arrays["labels"], torch.ones(SHAPE, dtype=torch.bool)
    if given["ignore_index"] is not None:
        counts &= labels != given["ignore_index"]
    if "where" in arrays:
        counts &= arrays["where"]
    w, smoothing = arrays.get("class_weight"), given["label_smoothing"]
    w = torch.ones(CLASSES, dtype=logits.dtype) if w is None else w
    labels = torch.where(counts, labels, 0)
    log_p = torch.log_softmax(logits, -1)
    loss = -(1 - smoothing) * w[labels] * log_p.gather(-1, labels[..., None])[..., 0]
    loss = loss - smoothing / CLASSES * (w * log_p).sum(-1)
    torch.testing.assert_close(loss.flatten(), F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), w.detach(), label_smoothing=smoothing,
        reduction="none"))  # fmt: skip
    loss = loss + given["z_loss"] * w[labels] * torch.logsumexp(logits, -1) ** 2
    row = torch.where(counts, arrays.get("row_weight", torch.ones(())), torch.zeros(()))
    loss = loss * row
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / (row * w[labels]).sum()


def close(got: Any, want: Any, tolerance: float = 1e-9) -> None:
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


def choices() -> Iterator[dict[str, Any]]:
    """Every combination of the options."""
    for values in itertools.product(*OPTIONS.values()):
        yield dict(zip(OPTIONS, values))


def static(given: dict[str, Any]) -> dict[str, Any]:
    return {n: given[n] for n in ("ignore_index", "label_smoothing", "softcap", "z_loss")}


def check(given: dict[str, Any], reduction: str, compiled: bool, kind: str = "float64",
          tolerance: float = 1e-9) -> None:  # fmt: skip
    """Values, and derivatives by every floating operand, are torch's."""
    operands = drawn(given, kind)
    floats = [n for n in FLOATS if n in operands]
    tensors: dict[str, Any] = {n: torch.from_numpy(v).double() if n in floats else
                               torch.from_numpy(v) for n, v in operands.items()}  # fmt: skip
    for n in floats:
        tensors[n].requires_grad_()
    want = expected(tensors, given, reduction)
    pull = np.random.default_rng(4).normal(size=tuple(want.shape))
    wanted = torch.autograd.grad((want * torch.from_numpy(np.asarray(pull))).sum(),
                                 [tensors[n] for n in floats])  # fmt: skip
    arrays = {n: jnp.asarray(v, v.dtype) for n, v in operands.items()}
    rest = {n: v for n, v in arrays.items() if n not in floats}

    def loss(*xs: Any) -> Any:
        named = dict(zip(floats, xs)) | rest
        x, weight, labels = (named.pop(n) for n in ("x", "weight", "labels"))
        value = nn.linear_cross_entropy(
            x, weight, labels, **named, **static(given), reduction=reduction
        )
        return jnp.sum(value * pull.astype(value.dtype)), value

    run = value_and_grad(loss, tuple(range(len(floats))), has_aux=True)
    (_, value), slopes = (jit(run) if compiled else run)(*[arrays[n] for n in floats])
    close(value, want.detach(), tolerance)
    for g, w in zip(slopes, wanted, strict=True):
        close(g, w, tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_combination_of_options(reduction: str) -> None:
    for i, given in enumerate(choices()):
        check(given, reduction, compiled=i % 16 == 0)


def test_agrees_with_the_loss_of_logits() -> None:
    operands = {n: jnp.asarray(v, v.dtype) for n, v in drawn({"ignore_index": -100}).items()}
    x, weight, labels = (operands.pop(n) for n in ("x", "weight", "labels"))
    del operands["row_weight"]
    options = {"ignore_index": -100, "label_smoothing": 0.2, "where": operands["where"]}
    for reduction in ("mean", "sum", "none"):
        got = nn.linear_cross_entropy(
            x, weight, labels, bias=operands["bias"], class_weight=operands["class_weight"],
            reduction=reduction, **options,
        )  # fmt: skip
        want = nn.cross_entropy(
            x @ weight.T + operands["bias"], labels, weight=operands["class_weight"],
            reduction=reduction, **options,
        )  # fmt: skip
        close(got, want)


ALL = dict(bias=True, class_weight=True, row_weight=True, where=True, ignore_index=-100,
           label_smoothing=0.1, softcap=2.0, z_loss=1e-2)  # fmt: skip


def call(operands: dict[str, Any], **options: Any) -> Any:
    named = dict(operands)
    x, weight, labels = (named.pop(n) for n in ("x", "weight", "labels"))
    return nn.linear_cross_entropy(x, weight, labels, **named, **{**static(ALL), **options})


def test_transforms_and_dtypes() -> None:
    operands = {n: jnp.asarray(v, v.dtype) for n, v in drawn(ALL).items()}
    for reduction in ("mean", "none"):
        f = lambda x, r=reduction: call({**operands, "x": x}, reduction=r)
        x, step = operands["x"], operands["x"][::-1]
        want = (f(x + 1e-6 * step) - f(x - 1e-6 * step)) / 2e-6
        close(jvp(f, (x,), (step,))[1], want, 1e-7)
        close(vmap(f)(jnp.stack([x, 2 * x]))[1], f(2 * x))
        slope = lambda x, f=f: grad(lambda x: jnp.sum(f(x) * 1.5))(x)
        close(vmap(slope)(jnp.stack([x, 2 * x]))[1], slope(2 * x))
        second = (slope(x + 1e-6 * step) - slope(x - 1e-6 * step)) / 2e-6
        close(jvp(slope, (x,), (step,))[1], second, 1e-6)
    for kind, tolerance in (("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 5e-3)):
        given = {n: v.astype(kind) if n in FLOATS else v for n, v in operands.items()}
        for reduction in ("mean", "none"):
            got = call(given, reduction=reduction)
            assert got.dtype == "float32"
            close(got, call(operands, reduction=reduction), tolerance)
    by_row = vmap(lambda x, y, r: nn.linear_cross_entropy(x, operands["weight"], y, row_weight=r))
    labels = jnp.where(operands["labels"] < 0, 0, operands["labels"])
    row = operands["row_weight"]
    one = nn.linear_cross_entropy(
        operands["x"][1], operands["weight"], labels[1], row_weight=row[1]
    )
    close(by_row(operands["x"], labels, row)[1], one)


def test_amp_keeps_weights_of_rows_and_classes() -> None:
    """Sums of weights are those of the divisor: no weight is rounded to 16 bits."""
    x, weight = jnp.zeros((3, 4)), jnp.zeros((5, 4))  # every loss is log(5)
    labels, row = jnp.array([0, 1, 2]), jnp.array([1.001, 0.7003, 1e-9])
    by_class = jnp.array([1.003, 0.3337, 2.0, 1.0, 0.1])
    for smoothing in (0.0, 0.1):

        def loss(x: Any, w: Any, smoothing: float = smoothing) -> Any:
            return nn.linear_cross_entropy(
                x, w, labels, row_weight=row, class_weight=by_class, label_smoothing=smoothing
            )

        want = loss(x.astype("float64"), weight.astype("float64"))
        for run in (lambda f: f, jit):
            f = run(gf.amp(loss, "float16"))
            close(f(x, weight), want, 1e-6)
            assert np.isfinite(np.asarray(grad(f)(x, weight))).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_that_do_not_count_may_hold_anything(reduction: str) -> None:
    operands = {n: jnp.asarray(v, v.dtype) for n, v in drawn(ALL).items()}
    where, labels = operands["where"], operands["labels"]
    counts = np.asarray(where & (labels != -100))
    wild = {
        **operands,
        "labels": jnp.where(where, labels, 77),
        "row_weight": jnp.where(where, operands["row_weight"], jnp.nan),
    }
    close(call(wild, reduction=reduction), call(operands, reduction=reduction))
    for options in ({}, {"label_smoothing": 0.0}):
        f = lambda x, r, options=options: jnp.sum(
            call({**wild, "x": x, "row_weight": r}, reduction=reduction, **options)
        )
        dx, dr = grad(f, (0, 1))(operands["x"], wild["row_weight"])
        assert not np.asarray(dx)[~counts].any() and not np.asarray(dr)[~counts].any()
        assert np.isfinite(np.asarray(dx)).all() and np.isfinite(np.asarray(dr)).all()
    nothing = {**operands, "where": jnp.zeros(SHAPE, bool)}
    assert not np.asarray(call(nothing, reduction=reduction)).any()
    slope = grad(lambda x: jnp.sum(call({**nothing, "x": x}, reduction=reduction)))(operands["x"])
    assert not np.asarray(slope).any()


def test_a_mask_hides_no_wrong_label() -> None:
    x, weight = jnp.ones((3, 2)), jnp.ones((4, 2))
    for bad in (-(2**31), -1, 4):
        labels = jnp.array([0, bad, 9])
        for options in ({}, {"row_weight": jnp.ones(3)}, {"class_weight": jnp.ones(4)}):
            for reduction in ("mean", "none"):
                with pytest.raises(errors.IndexOutOfRange, match="out of range"):
                    nn.linear_cross_entropy(
                        x, weight, labels, where=jnp.array([True, True, False]),
                        reduction=reduction, **options,
                    ).tolist()  # fmt: skip


def test_extreme_and_excluding_biases() -> None:
    x, weight, labels = jnp.ones((3, 2)), jnp.zeros((4, 2)), jnp.array([0, 1, 1])
    for low in (-jnp.inf, -1e4):
        bias = jnp.array([1e4, 1e4, low, low])
        for options in ({}, {"class_weight": jnp.array([1.0, 2.0, 0.0, 0.0])}):
            f = lambda x, w, b, o=options: nn.linear_cross_entropy(x, w, labels, bias=b, **o)
            value, slopes = value_and_grad(f, (0, 1, 2))(x, weight, bias)
            close(value, np.log(2), 1e-3)  # a unit in the last place of log-sum-exp, 1e4
            assert all(np.isfinite(np.asarray(g)).all() for g in slopes)
    smooth = nn.linear_cross_entropy(
        x, weight, labels, bias=jnp.array([0.0, 0.0, -jnp.inf, -jnp.inf]), label_smoothing=0.2,
        class_weight=jnp.array([1.0, 2.0, 0.0, 0.0]),
    )  # fmt: skip
    close(smooth, np.log(2) * (0.8 * 5 + 0.2 * 9 / 4) / 5, 1e-6)


@pytest.mark.parametrize("name", ["z_loss", "softcap", "label_smoothing"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_ignored_rows_of_nan_and_an_excluded_first_class(kind: str, name: str) -> None:
    """As of the rows that count, and of the classes that are not excluded."""
    options = {name: 0.1}
    draw = np.random.default_rng(4)
    x, weight, bias = (draw.normal(size=s) for s in ((5, 3), (6, 3), (6,)))
    labels, kept = np.array([2, -100, 5, -100, 1]), [0, 2, 4]
    args = [jnp.asarray(v, kind) for v in (x[kept], weight, bias)]
    want = nn.linear_cross_entropy(args[0], args[1], labels[kept], bias=args[2], **options)
    x[1] = np.nan
    ignored = functools.partial(nn.linear_cross_entropy, ignore_index=-100, **options)
    for run in (lambda f: f, jit):
        f = lambda x: ignored(x, args[1], jnp.asarray(labels), bias=args[2])
        value, slope = run(value_and_grad(f))(jnp.asarray(x, kind))
        close(value, want, 1e-6)
        assert np.isfinite(np.asarray(slope)).all() and not np.asarray(slope)[[1, 3]].any()
    if name != "z_loss":
        return  # the others give every class a finite share
    without = nn.linear_cross_entropy(
        args[0], args[1][1:], labels[kept] - 1, bias=args[2][1:], **options
    )
    x[1], bias[0] = 0, -np.inf
    f = lambda b: ignored(jnp.asarray(x, kind), args[1], jnp.asarray(labels), bias=b)
    value, slope = value_and_grad(f)(jnp.asarray(bias, kind))
    close(value, without, 1e-6)
    assert np.isfinite(np.asarray(slope)).all()


X, W, Y = jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.array([0, 1])
REFUSED = {
    "bias": ({"bias": jnp.ones(3)}, errors.ShapeError, "bias .*one for each class"),
    "class": ({"class_weight": jnp.ones((2, 4))}, errors.ShapeError, "class_weight .*each class"),
    "row": ({"row_weight": jnp.ones((2, 1))}, errors.ShapeError, "row_weight .*each row"),
    "integers": ({"row_weight": Y}, errors.DTypeError, "row_weight is floating"),
    "mask": ({"where": Y}, errors.DTypeError, "where=mask > 0"),
    "mask shape": ({"where": jnp.ones(3, bool)}, errors.ShapeError, "does not broadcast"),
    "mask of more": ({"where": jnp.ones((3, 2), bool)}, errors.ShapeError, "does not broadcast"),
    "smoothing": ({"label_smoothing": -0.1}, ValueError, "label_smoothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, kind, match = REFUSED[name]
    with pytest.raises(kind, match=match):
        nn.linear_cross_entropy(X, W, Y, **options)


def test_rows_of_nothing() -> None:
    x, weight, none = jnp.ones((0, 3)), jnp.ones((4, 3)), jnp.zeros((0,), jnp.int32)
    options = {"bias": jnp.ones(4), "class_weight": jnp.ones(4), "row_weight": jnp.ones(0)}
    for smoothing in (0.0, 0.1):
        f = lambda **o: nn.linear_cross_entropy(x, weight, none, **options, **o)
        assert f(reduction="none", label_smoothing=smoothing).shape == (0,)
        assert float(f(label_smoothing=smoothing)) == 0
