"""Losses and their gradients against optax's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import optax.losses
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.core.errors import ArgumentError, DTypeError, ShapeError
from genesis_fn.transforms.autodiff.derivatives import grad, value_and_grad

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 6, 5))
Y = RNG.normal(size=(4, 6, 5))
P = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
Q = np.exp(Y) / np.exp(Y).sum(-1, keepdims=True)
CLASSES = RNG.integers(0, 5, size=(4, 6))
MASK = RNG.random((4, 6, 5)) < 0.7
MASK[0, 0], MASK[0, 1], MASK[1, 1, :] = True, False, True
SIGNS = np.where(RNG.random((4, 6, 5)) < 0.5, -1.0, 1.0)
BITS = (RNG.random((4, 6, 5)) < 0.5).astype(float)

# name, first argument (differentiated), others, keywords.
CASES = [
    ("squared_error", X, (Y,), {}),
    ("l2_loss", X, (Y,), {}),
    ("l2_loss", X, (), {}),
    ("huber_loss", X, (Y,), {"delta": 0.7}),
    ("log_cosh", X, (Y,), {}),
    ("cosine_similarity", X, (Y,), {}),
    ("cosine_similarity", X, (Y,), {"axis": 1, "epsilon": 1e-3}),
    ("cosine_distance", X, (Y,), {"where": MASK, "epsilon": 1e-3}),
    ("softmax_cross_entropy", X, (Q,), {}),
    ("softmax_cross_entropy", X, (Q,), {"axis": 1}),
    ("softmax_cross_entropy_with_integer_labels", X, (CLASSES,), {}),
    ("softmax_cross_entropy_with_integer_labels", X, (CLASSES[:, :5] % 5,), {"axis": 1}),
    ("softmax_cross_entropy_with_integer_labels", X, (np.arange(6) * 3,), {"axis": (0, 2)}),
    ("safe_softmax_cross_entropy", X, (BITS,), {}),
    ("sigmoid_binary_cross_entropy", 3 * X, (BITS,), {}),
    ("sigmoid_focal_loss", 3 * X, (BITS,), {}),
    ("sigmoid_focal_loss", X, (Q,), {"alpha": 0.3, "gamma": 1.5}),
    ("hinge_loss", X, (SIGNS,), {}),
    ("perceptron_loss", X, (SIGNS,), {}),
    ("multiclass_hinge_loss", X[0], (CLASSES[0],), {}),
    ("multiclass_perceptron_loss", X[0], (CLASSES[0],), {}),
    ("sparsemax_loss", 2 * X, (BITS.astype(bool),), {}),
    ("multiclass_sparsemax_loss", X[0], (CLASSES[0],), {}),
    ("poly_loss_cross_entropy", X, (Q,), {"epsilon": 1.5}),
    ("poly_loss_cross_entropy", X, (Q,), {"axis": 0}),
    ("kl_divergence", np.log(P), (Q * (Q > 0.1),), {}),
    ("kl_divergence", np.log(P), (Q,), {"where": MASK, "axis": 1}),
    ("kl_divergence_with_log_targets", np.log(P), (np.log(Q),), {}),
    ("generalized_kl_divergence", np.log(P), (2 * Q,), {}),
    ("smooth_labels", Q, (0.1,), {}),
    ("ntxent", X[0], (np.array([0, 1, 0, 2, 1, 0]),), {"temperature": 0.5}),
    ("triplet_margin_loss", X, (Y, Q), {"norm_degree": 2, "margin": 0.3}),
    ("dice_loss", X, (np.eye(5)[CLASSES],), {}),
    ("dice_loss", X, (Q,), {"alpha": 0.3, "beta": 0.7, "smooth": 0.1, "reduction": "none"}),
    (
        "dice_loss",
        P,
        (BITS,),
        {
            "apply_softmax": False,
            "reduction": "sum",
            "class_weights": P[0, 0],
            "ignore_background": True,
        },
    ),
    ("dice_loss", X, (BITS,), {"axis": (0, 1)}),
    ("dice_loss", X[..., :1], (BITS[..., 0],), {}),
    ("dice_loss", X[..., 0], (BITS[..., :1],), {}),
    ("binary_dice_loss", X, (BITS,), {"smooth": 0.5}),
    ("binary_dice_loss", X[..., :1], (BITS[..., :1],), {}),
    ("multiclass_generalized_dice_loss", X, (np.eye(5)[CLASSES],), {}),
    ("multiclass_generalized_dice_loss", X, (np.eye(5)[CLASSES],), {"ignore_background": True}),
    ("ranking_softmax_loss", X[0], (BITS[0],), {}),
    ("ranking_softmax_loss", X[0], (BITS[0],), {"where": MASK[1], "weights": P[0]}),
]


def _mine(values: Any) -> Any:
    return [_array(v) for v in values]


def _array(v: Any) -> Any:
    if not isinstance(v, np.ndarray):
        return v
    return jnp.asarray(v, dtype=np.int32 if v.dtype.kind == "i" else v.dtype)


def _both(name: str, x: Any, rest: tuple, kwargs: dict) -> tuple[list, list]:
    """([value, gradient] here, the same of optax), for float64 inputs."""
    f = getattr(optim, name)
    weights: list[Any] = []

    def scalar(total: Callable, loss: Callable) -> Callable:
        return lambda x: total(loss(x) * weights[0])

    mine_kw = {k: _array(v) for k, v in kwargs.items()}
    value = f(_array(x), *_mine(rest), **mine_kw)
    weights.append(_array(np.asarray(RNG.normal(size=value.shape))))
    slope = grad(scalar(jnp.sum, lambda x: f(x, *_mine(rest), **mine_kw)))(_array(x))
    with jax.enable_x64(True):
        g = getattr(optax.losses, name)
        other = g(x, *rest, **kwargs)
        weights[0] = np.asarray(weights[0])
        other_slope = jax.grad(scalar(jax.numpy.sum, lambda x: g(x, *rest, **kwargs)))(x)
        return [np.asarray(value), np.asarray(slope)], [np.asarray(other), np.asarray(other_slope)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]} {sorted(c[3])}")
def test_loss(case: tuple) -> None:
    for got, want in zip(*_both(*case), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


def test_masked_cross_entropy() -> None:
    labels = np.where(MASK.any(-1), MASK.argmax(-1), 0)
    mine = optim.softmax_cross_entropy_with_integer_labels(
        _array(X), _array(labels), where=_array(MASK)
    )
    with jax.enable_x64(True):
        other = optax.softmax_cross_entropy_with_integer_labels(X, labels, where=MASK)
    np.testing.assert_allclose(np.asarray(mine), other, rtol=1e-9)
    assert float(mine[0, 1]) == 0.0
    some = MASK.any(-1)
    mine = optim.softmax_cross_entropy(_array(X), _array(Q), where=_array(MASK))
    with jax.enable_x64(True):
        other = optax.softmax_cross_entropy(X, Q, where=MASK)
    np.testing.assert_allclose(np.asarray(mine)[some], np.asarray(other)[some], rtol=1e-9)


def test_masked_gradients_are_finite() -> None:
    def loss(x):
        ce = optim.softmax_cross_entropy(x, _array(Q), where=_array(MASK & MASK.any(-1)[..., None]))
        labels = _array(np.where(MASK.any(-1), MASK.argmax(-1), 0))
        rows = optim.softmax_cross_entropy_with_integer_labels(x, labels, where=_array(MASK))
        return jnp.sum(jnp.where(_array(MASK.any(-1)), ce, 0.0)) + jnp.sum(rows)

    assert np.isfinite(np.asarray(grad(loss)(_array(X)))).all()


def test_safe_softmax_takes_infinite_logits() -> None:
    x = jnp.asarray([[1.0, -jnp.inf, 2.0]])
    y = jnp.asarray([[0.5, 0.0, 0.5]])
    assert np.isfinite(np.asarray(optim.safe_softmax_cross_entropy(x, y))).all()


def test_fenchel_young() -> None:
    loss = optim.losses.make_fenchel_young_loss(lambda s: jnp.log(jnp.sum(jnp.exp(s))))
    want = np.asarray(optim.softmax_cross_entropy(_array(X), _array(Q)))
    np.testing.assert_allclose(np.asarray(loss(_array(X), _array(Q))), want, rtol=1e-12)


def test_ctc() -> None:
    b, t, k, n = 3, 9, 6, 4
    logits = RNG.normal(size=(b, t, k))
    labels = np.array([[1, 2, 2, 3], [4, 4, 1, 0], [5, 1, 0, 0]])
    label_paddings = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]], float)
    logit_paddings = np.array([[0] * 9, [0] * 8 + [1], [0] * 6 + [1] * 3], float)
    args = (logit_paddings, labels, label_paddings)

    def total(x):
        return jnp.sum(optim.ctc_loss(x, *_mine(args)))

    mine = optim.losses.ctc_loss_with_forward_probs(_array(logits), *_mine(args))
    slope = grad(total)(_array(logits))
    with jax.enable_x64(True):
        other = optax.losses.ctc_loss_with_forward_probs(logits, *args)
        want = jax.grad(lambda x: optax.ctc_loss(x, *args).sum())(logits)
    for a, c in zip(mine, other, strict=True):
        np.testing.assert_allclose(np.asarray(a), c, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(slope), want, atol=1e-10)
    assert n == labels.shape[1]


def _dropped(x: np.ndarray, fill: float) -> np.ndarray:
    """`x` with one class more, of the value `fill`, between its last two."""
    return np.insert(x, x.shape[-1] - 1, fill, axis=-1)


EXCLUDED = [
    ("softmax_cross_entropy", X, Q, {}, 0),
    ("safe_softmax_cross_entropy", X, Q, {}, 0),
    ("softmax_cross_entropy_with_integer_labels", X, CLASSES % 4, {}, None),
    ("poly_loss_cross_entropy", X, Q, {}, 0),
    ("ranking_softmax_loss", X, BITS, {"reduce_fn": None}, 0),
    ("kl_divergence", np.log(P), Q, {}, 0),
    ("generalized_kl_divergence", np.log(P), Q, {}, 0),
    ("kl_divergence_with_log_targets", np.log(P), np.log(Q), {}, -np.inf),
    ("multiclass_hinge_loss", X[0], CLASSES[0] % 4, {}, None),
    ("multiclass_perceptron_loss", X[0], CLASSES[0] % 4, {}, None),
    ("multiclass_sparsemax_loss", X[0], CLASSES[0] % 4, {}, None),
]


@pytest.mark.parametrize("case", EXCLUDED, ids=[case[0] for case in EXCLUDED])
def test_a_logit_of_minus_infinity_excludes_its_class(case: tuple) -> None:
    """The loss and its derivatives are optax's without that class."""
    name, x, target, options, none = case
    mine = lambda x, y: getattr(optim.losses, name)(x, y, **options)
    theirs = lambda x, y: getattr(optax.losses, name)(x, y, **options)
    wider = (_dropped(x, -np.inf), target if none is None else _dropped(target, none))
    got = mine(*map(_array, wider))
    slope = grad(lambda x: jnp.sum(mine(x, _array(wider[1]))))(_array(wider[0]))
    with jax.enable_x64(True):
        want = theirs(jax.numpy.asarray(x), jax.numpy.asarray(target))
        wanted = jax.grad(lambda x: theirs(x, target).sum())(x)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.asarray(slope), _dropped(np.asarray(wanted), 0), atol=1e-9)


def test_infinite_logits_of_binary_decisions() -> None:
    x, y = jnp.array([-np.inf, np.inf, -np.inf, 0.5]), jnp.array([0.0, 1.0, 1.0, 1.0])
    for loss in (optim.losses.sigmoid_binary_cross_entropy, optim.losses.sigmoid_focal_loss,
                 lambda x, y: optim.losses.sigmoid_focal_loss(x, y, gamma=0.0, alpha=0.3),
                 lambda x, y: optim.losses.sparsemax_loss(x, y)):  # fmt: skip
        got, slope = loss(x, y), grad(lambda x: jnp.sum(loss(x, y)))(x)
        assert got[:3].tolist() == [0, 0, np.inf] and slope[:2].tolist() == [0, 0]
        assert got[3] == loss(x[3:], y[3:])[0] and np.isfinite(float(slope[3]))


def test_ctc_of_excluded_classes() -> None:
    """-inf everywhere for a class is the loss without it; in single frames it is torch's."""
    draw = np.random.default_rng(5)
    logits, labels = draw.normal(size=(3, 7, 4)), np.array([[1, 2], [3, 3], [2, 0]])
    args = np.zeros((3, 7)), labels, np.array([[0.0, 0], [0, 0], [0, 1]])
    wider = _dropped(logits, -np.inf)  # of the classes 0 ... 3, the last is now 4
    moved = np.where(labels == 3, 4, labels)
    value, slope = value_and_grad(
        lambda x: jnp.sum(optim.ctc_loss(x, *_mine((args[0], moved, args[2]))))
    )(_array(wider))
    with jax.enable_x64(True):
        want, wanted = jax.value_and_grad(lambda x: optax.ctc_loss(x, *args).sum())(logits)
    np.testing.assert_allclose(float(value), want, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(slope), _dropped(np.asarray(wanted), 0), atol=1e-9)

    logits[:, 2, 1:] = -np.inf  # a frame of the blank
    logits[0, 5, 0] = -np.inf
    log_p = torch.log_softmax(torch.from_numpy(logits), -1).swapaxes(0, 1)
    lengths = torch.tensor([7, 7, 7]), torch.tensor([2, 2, 1])
    want = torch.nn.functional.ctc_loss(log_p, torch.from_numpy(labels), *lengths, reduction="none")
    got = optim.ctc_loss(_array(logits), *_mine(args))
    np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-9)
    # Labels without any alignment: as high as `log_epsilon`, and no NaN in any derivative.
    logits[1, :, 3] = -np.inf
    value, slope = value_and_grad(lambda x: jnp.sum(optim.ctc_loss(x, *_mine(args))))(
        _array(logits)
    )
    assert 1e5 < float(value) < 3e5 and np.isfinite(np.asarray(slope)).all()


def test_ctc_of_padding_and_16_bit_logits() -> None:
    draw = np.random.default_rng(6)
    logits, labels = draw.normal(size=(2, 6, 4)), np.array([[1, 2], [3, -1]])
    paddings = np.array([[0.0] * 6, [0.0] * 4 + [1.0] * 2]), np.array([[0.0, 0.0], [0.0, 1.0]])
    f = lambda x, y=labels: optim.ctc_loss(x, *_mine((paddings[0], y, paddings[1])))
    want, slope = f(_array(logits)), grad(lambda x: jnp.sum(f(x)))(_array(logits))
    logits[1, 4:] = np.nan
    np.testing.assert_array_equal(np.asarray(f(_array(logits))), np.asarray(want))
    got = grad(lambda x: jnp.sum(f(x)))(_array(logits))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(slope))
    for kind in ("float16", "bfloat16"):
        low = f(jnp.asarray(logits, kind))
        assert low.dtype == jnp.float32
        np.testing.assert_allclose(np.asarray(low), np.asarray(want), rtol=2e-2)
    with pytest.raises(IndexError):
        np.asarray(f(_array(logits), np.array([[1, 4], [3, 0]])))
    with pytest.raises(ArgumentError, match="blank_id 4 is none of 4"):
        optim.ctc_loss(_array(logits), *_mine((paddings[0], labels, paddings[1])), blank_id=4)


def test_losses_keep_the_logits_dtype() -> None:
    for dtype in (jnp.bfloat16, jnp.float32):
        x = jnp.asarray(X, dtype=dtype)
        labels = _array(CLASSES)
        assert optim.softmax_cross_entropy_with_integer_labels(x, labels).dtype == dtype
        assert optim.sigmoid_binary_cross_entropy(x, _array(BITS)).dtype == dtype
        assert optim.huber_loss(x, x).dtype == dtype


def test_every_loss_of_optax_is_there() -> None:
    names = [n for n, f in vars(optax.losses).items() if callable(f) and not n.startswith("_")]
    assert len(names) > 20 and not [n for n in names if not hasattr(optim.losses, n)]


def test_dice_of_many_pixels_in_float16() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 300, 300, 2)), "float16")
    hot = jnp.ones((1, 300, 300, 2), "float16").at[..., 0].set(0)
    for loss in (optim.losses.dice_loss, optim.losses.multiclass_generalized_dice_loss):
        value, want = loss(x, hot), loss(x.astype("float32"), hot)
        assert value.dtype == jnp.float16
        np.testing.assert_allclose(float(value.sum()), float(want.sum()), rtol=2e-3)


def test_errors() -> None:
    x = _array(X)
    with pytest.raises(DTypeError, match="squared_error takes floats"):
        optim.squared_error(jnp.arange(3), jnp.arange(3))
    with pytest.raises(ShapeError, match="l2_loss|squared_error"):
        optim.l2_loss(x, x[0])
    with pytest.raises(DTypeError, match="integer labels"):
        optim.softmax_cross_entropy_with_integer_labels(x, x[..., 0])
    with pytest.raises(ShapeError, match=r"labels of shape \(4, 6\)"):
        optim.softmax_cross_entropy_with_integer_labels(x, _array(CLASSES)[0])
    with pytest.raises(ShapeError, match="ctc_loss"):
        optim.ctc_loss(x, x[..., 0], _array(CLASSES), x)
    with pytest.raises(IndexError):
        np.asarray(optim.softmax_cross_entropy_with_integer_labels(x[0, :2], jnp.asarray([0, 9])))
    for name in ("hinge", "perceptron", "sparsemax"):
        with pytest.raises(IndexError):
            np.asarray(
                getattr(optim.losses, f"multiclass_{name}_loss")(x[0, :2], jnp.array([0, -1]))
            )
