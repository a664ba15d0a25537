"""Optimizers, losses and states beside optax's: defects once found, with their relatives."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import optax.contrib
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.core import tree
from genesis_fn.optim import losses


def _ours(t: Any) -> Any:
    return tree.map(lambda x: jnp.asarray(x, dtype=x.dtype), t)


def _theirs(t: Any) -> Any:
    return jax.tree.map(jax.numpy.asarray, t)


# ---- losses: derivatives by every argument ----


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _labels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Probabilities along the last axis, the first of them 0."""
    p = rng.uniform(0.1, 1.0, shape).astype(np.float32)
    p[..., 0] = 0
    return p / p.sum(-1, keepdims=True)


def _signs(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.sign(_normal(rng, *shape))


def _pair(rng: np.random.Generator) -> tuple:
    return _normal(rng, 3, 4), _normal(rng, 3, 4)


def _classes(rng: np.random.Generator) -> tuple:
    return _normal(rng, 3, 4), rng.integers(0, 4, 3)


def _soft(rng: np.random.Generator) -> tuple:
    return _normal(rng, 3, 4), _labels(rng, 3, 4)


WHERE = np.array([[True, True, False, True]] * 3)
# name -> (arguments, keyword arguments); derivatives are by every float among them.
LOSSES: dict[str, list[tuple[Callable, dict]]] = {
    "squared_error": [(_pair, {})],
    "l2_loss": [(_pair, {})],
    "huber_loss": [(_pair, {}), (_pair, {"delta": np.float32(0.5)})],
    "log_cosh": [(_pair, {})],
    "cosine_similarity": [(_pair, {}), (_pair, {"where": WHERE})],
    "cosine_distance": [(_pair, {"epsilon": 1e-3})],
    "softmax_cross_entropy": [
        (_soft, {}),
        (lambda r: (_normal(r, 3, 4), _labels(r, 4)), {}),
        (lambda r: (_normal(r, 4), _labels(r, 3, 4)), {}),
    ],
    "safe_softmax_cross_entropy": [
        (_soft, {}),
        (lambda r: (_normal(r, 4), _labels(r, 3, 4)), {}),
    ],
    "softmax_cross_entropy_with_integer_labels": [(_classes, {})],
    "sigmoid_binary_cross_entropy": [(_soft, {})],
    "sigmoid_focal_loss": [
        (lambda r: (_normal(r, 3, 4), r.uniform(0.1, 0.9, (3, 4)).astype(np.float32)), kw)
        for kw in ({}, {"alpha": np.float32(0.3), "gamma": np.float32(1.5)})
    ],
    "hinge_loss": [(lambda r: (_normal(r, 3, 4), _signs(r, 3, 4)), {})],
    "perceptron_loss": [(lambda r: (_normal(r, 3, 4), _signs(r, 3, 4)), {})],
    "multiclass_hinge_loss": [(_classes, {})],
    "multiclass_perceptron_loss": [(_classes, {})],
    "multiclass_sparsemax_loss": [(_classes, {})],
    "sparsemax_loss": [(lambda r: (_normal(r, 6), r.integers(0, 2, 6)), {})],
    "poly_loss_cross_entropy": [(_soft, {}), (_soft, {"epsilon": np.float32(0.5)})],
    "kl_divergence": [
        (lambda r: (_normal(r, 3, 4), r.uniform(0.1, 1, (3, 4)).astype(np.float32)), {})
    ],
    "kl_divergence_with_log_targets": [(_pair, {}), (_pair, {"where": WHERE})],
    "generalized_kl_divergence": [
        (lambda r: (_normal(r, 3, 4), r.uniform(0.1, 1, (3, 4)).astype(np.float32)), {})
    ],
    "smooth_labels": [(lambda r: (_labels(r, 3, 4), np.float32(0.1)), {})],
    "ntxent": [(lambda r: (_normal(r, 4, 3), np.array([0, 0, 1, 1])), {})],
    "triplet_margin_loss": [(lambda r: (*_pair(r), _normal(r, 3, 4)), {})],
    "ranking_softmax_loss": [(_soft, {}), (_soft, {"weights": np.float32(0.5)})],
    "dice_loss": [(_soft, {}), (_soft, {"alpha": 0.3, "beta": 0.7})],
    "binary_dice_loss": [(_soft, {})],
    "multiclass_generalized_dice_loss": [(_soft, {})],
    "ctc_loss": [
        (lambda r: (_normal(r, 2, 5, 4), np.zeros((2, 5), np.int32), np.array([[1, 2], [3, 3]]),
                    np.zeros((2, 2), np.int32)), {}),
    ],
}  # fmt: skip
# Aliases and what takes functions; ctc_loss is the first result of the last.
OTHERS = {"convex_kl_divergence", "make_fenchel_young_loss", "ctc_loss_with_forward_probs"}


@pytest.mark.parametrize("name", LOSSES)
def test_a10_derivatives_of_losses_by_every_argument(name: str) -> None:
    rng = np.random.default_rng(len(name))
    f, g = getattr(losses, name), getattr(optax.losses, name)
    for make, options in LOSSES[name]:
        args = make(rng)
        names = [*inspect.signature(g).parameters][: len(args)]
        given = {**dict(zip(names, args, strict=True)), **options}
        floats = {k: v for k, v in given.items() if np.asarray(v).dtype == np.float32}
        rest = {k: v for k, v in given.items() if k not in floats}
        value, want = jax.jit(jax.value_and_grad(lambda d, g=g, r=rest: g(**d, **r).sum()))(floats)
        mine, got = gf.value_and_grad(lambda d, f=f, r=rest: f(**d, **r).sum())(_ours(floats))
        np.testing.assert_allclose(float(mine), float(value), rtol=1e-5, atol=1e-5)
        for k in floats:
            np.testing.assert_allclose(
                np.asarray(got[k]), np.asarray(want[k]), rtol=1e-4, atol=1e-5, err_msg=k
            )


def test_a10_every_loss_is_compared() -> None:
    public = {n for n in dir(losses) if hasattr(optax.losses, n) and n[0] != "_"}
    assert {n for n in public if callable(getattr(losses, n))} == {*LOSSES} | OTHERS


def test_a10_zero_labels_where_the_logit_is_minus_infinity() -> None:
    logits, labels = np.array([0.0, -np.inf, 1.0], np.float32), np.array([0.5, 0, 0.5], np.float32)
    f = losses.safe_softmax_cross_entropy
    by_logits, by_labels = gf.grad(lambda a, b: f(a, b), (0, 1))(*_ours((logits, labels)))
    want, by_theirs = jax.grad(optax.losses.safe_softmax_cross_entropy, (0, 1))(logits, labels)
    np.testing.assert_allclose(np.asarray(by_logits), np.asarray(want), rtol=1e-5)
    assert np.isinf(by_theirs[1]) and float(by_labels[1]) == np.finfo(np.float32).max
    np.testing.assert_allclose(np.asarray(by_labels)[::2], by_theirs[::2], rtol=1e-5)
    # optax's slope is NaN where a target is 0; it is -inf, and finite here.
    slope = gf.grad(lambda p: losses.kl_divergence(jnp.zeros(2), p))(jnp.asarray([0.0, 1.0]))
    assert float(slope[0]) == np.finfo(np.float32).min and float(slope[1]) == 1.0


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_a10_focal_loss_by_hard_labels(alpha: float | None) -> None:
    """By finite differences: optax leaves out the term whose weight is 0."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=8), np.array([0.0, 1.0] * 4)

    def reference(y: np.ndarray) -> float:
        p = 1 / (1 + np.exp(-x))
        miss = (1 - y) * p + y * (1 - p)
        loss = (-y * np.log(p) - (1 - y) * np.log(1 - p)) * miss**2
        return float(np.sum(loss if alpha is None else (alpha * y + (1 - alpha) * (1 - y)) * loss))

    h = 1e-6
    want = [(reference(y + h * e) - reference(y - h * e)) / (2 * h) for e in np.eye(8)]
    f = losses.sigmoid_focal_loss
    got = gf.grad(lambda y: f(jnp.asarray(x, "float32"), y, alpha=alpha).sum())(
        jnp.asarray(y, "float32")
    )
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)
    far = gf.grad(lambda x, y: f(x, y).sum(), (0, 1))(
        jnp.asarray([200.0, -200.0]), jnp.asarray([1.0, 0.0])
    )
    assert np.isfinite(np.asarray(far)).all()


# ---- muon ----


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
@pytest.mark.parametrize("kind", ["frobenius", "spectral", "aol", "schatten"])
def test_a19_muon_of_complex_matrices(kind: str, shape: tuple) -> None:
    rng = np.random.default_rng(1)
    z = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    got = np.asarray(
        optim.orthogonalize_via_newton_schulz(jnp.asarray(z), ns_steps=8, preconditioning=kind)
    )
    values = np.linalg.svd(got, compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3
    if kind != "aol":  # which scales rows before
        # The singular vectors are those of z: conj(u).T @ got @ v is diagonal.
        u, _, vh = np.linalg.svd(z.astype(np.complex128), full_matrices=False)
        inner = u.conj().T @ got @ vh.conj().T
        assert np.abs(inner - np.diag(np.diag(inner))).max() < 1e-3
        assert np.abs(np.diag(inner).imag).max() < 1e-3
    if kind != "schatten":  # optax has no conjugate there, and NaN
        coefficients = jax.numpy.array([3.4445, -4.7750, 2.0315])
        want = optax.contrib._muon.orthogonalize_via_newton_schulz(
            jax.numpy.asarray(z), coefficients, 8, kind
        )
        np.testing.assert_allclose(got, np.asarray(want), atol=2e-3)


def test_a19_muon_steps_on_complex_parameters() -> None:
    rng = np.random.default_rng(2)
    p, g = (
        {"z": (rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))).astype(np.complex64)}
        for _ in range(2)
    )
    mine, other = optim.muon(0.1, adaptive=True), optax.contrib.muon(0.1, adaptive=True)
    a, _ = mine.update(_ours(g), mine.init(_ours(p)), _ours(p))
    b, _ = other.update(_theirs(g), other.init(_theirs(p)), _theirs(p))
    np.testing.assert_allclose(np.asarray(a["z"]), np.asarray(b["z"]), rtol=1e-3, atol=1e-4)


# ---- transformations beside optax's ----


def _transformations(lib: Any) -> dict[str, Any]:
    more = optax.contrib if lib is optax else lib
    plain = (
        "identity set_to_zero scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad "
        "scale_by_belief scale_by_yogi scale_by_radam scale_by_novograd scale_by_lion "
        "scale_by_adadelta scale_by_rms scale_by_stddev scale_by_rss scale_by_sign zero_nans "
        "scale_by_factored_rms scale_by_trust_ratio scale_by_param_block_norm centralize "
        "scale_by_param_block_rms normalize_by_update_norm scale_by_optimistic_gradient"
    )
    of_one = (
        "scale clip clip_by_block_rms clip_by_global_norm adaptive_grad_clip trace ema apply_every "
        "add_decayed_weights scale_by_learning_rate scale_by_rprop"
    )
    rates = (
        "sgd adam adamw nadam nadamw amsgrad adamax adamaxw adabelief adadelta adagrad adan lion "
        "fromage lars lamb sign_sgd signum novograd optimistic_gradient_descent optimistic_adam_v2 "
        "radam rmsprop yogi rprop adafactor"
    )
    return {
        **{name: getattr(lib, name)() for name in plain.split()},
        **{name: getattr(lib, name)(2 if "every" in name else 0.5) for name in of_one.split()},
        **{name: getattr(lib, name)(0.1) for name in rates.split()},
        "schedule": lib.scale_by_schedule(lambda count: 0.1 * (count + 1)),
        "apply_if_finite": lib.apply_if_finite(lib.sgd(0.1), 3),
        "multi_steps": lib.MultiSteps(lib.sgd(0.1), 2),
        "inject": lib.inject_hyperparams(lib.sgd)(0.1),
        "inject_clip": lib.inject_hyperparams(lib.clip_by_global_norm)(1.0),
        "prodigy": more.prodigy(0.1),
        "schedule_free": more.schedule_free_sgd(0.1),
    }


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    OURS, THEIRS = _transformations(optim), _transformations(optax)
# Where optax needs what it does not use, or does otherwise on purpose.
LOW = {"bfloat16": 2e-2, "float16": 4e-3}


def _params(rng: np.random.Generator, dtype: Any) -> Any:
    shapes = {"w": (3, 4), "b": (4,), "s": (1,)}
    return {k: np.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}


def _run(tx: Any, params: Any, grads: list[Any], apply: Callable | None) -> Any:
    """The updates of every step."""
    state, out = tx.init(params), []
    for g in grads:
        updates, state = tx.update(g, state, params)
        params = params if apply is None else apply(params, updates)
        out.append(updates)
    return out


@pytest.mark.parametrize("name", OURS)
def test_b34_o1_transformations_as_optax_has_them(name: str) -> None:
    """Leaves of None, 0-d leaves and empty ones; states and parameters that are not used."""
    rng = np.random.default_rng(7)
    p, g = _params(rng, np.float32), _params(rng, np.float32)
    for t in (p, g):
        t["none"], t["zero"] = None, np.zeros((0, 4), np.float32)
        if name not in ("centralize", "adafactor", "scale_by_factored_rms"):
            t["s"] = t["s"].reshape(())
    a = _run(OURS[name], _ours(p), [_ours(g)] * 2, None)
    b = _run(THEIRS[name], _theirs(p), [_theirs(g)] * 2, None)
    for x, y in zip(tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-6)
        assert x.shape == y.shape
    tx, other = OURS[name], THEIRS[name]
    for mine, theirs in (
        (lambda: tx.update(_ours(g), None, _ours(p)), lambda: other.update(g, None, p)),
        (lambda: tx.update(_ours(g), tx.init(_ours(p))), lambda: other.update(g, other.init(p))),
        (lambda: tx.update((), tx.init(())), lambda: other.update((), other.init(()))),
        (lambda: tx.update({}, tx.init({}), {}), lambda: other.update({}, other.init({}), {})),
    ):
        try:
            want = theirs()[0]
        except Exception:  # what optax refuses, in whatever way, is ours to decide
            continue
        for x, y in zip(tree.leaves(mine()[0]), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_b34_o2_arguments_have_optax_names(name: str) -> None:
    tx = OURS[name]
    for f, g in ((tx.init, optax.TransformInitFn), (tx.update, optax.TransformUpdateFn)):
        want = [*inspect.signature(g.__call__).parameters][1:]
        got = inspect.signature(f).parameters
        assert [*got][: len(want)] == want, name
    params = {"w": jnp.ones((2, 2))}
    state = tx.init(params=params)
    by_name, _ = tx.update(updates=params, state=state, params=params)
    by_place, _ = tx.update(params, state, params)
    for x, y in zip(tree.leaves(by_name), tree.leaves(by_place), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    new = optim.apply_updates(params=params, updates=by_name)
    assert new["w"].shape == (2, 2)


def test_b34_o3_noise_has_a_default_key_and_a_seed() -> None:
    params = {"w": jnp.zeros(64)}

    def noise(tx: Any) -> list:
        return tx.update(params, tx.init(params), params)[0]["w"].tolist()

    assert noise(optim.noisy_sgd(1.0)) == noise(optim.noisy_sgd(1.0, seed=0))
    assert noise(optim.add_noise(0.1, 0.5, seed=3)) == noise(optim.add_noise(0.1, 0.5, key=3))
    assert noise(optim.add_noise(0.1, 0.5, key=gf.random.key(3))) == noise(
        optim.add_noise(0.1, 0.5, np.int32(3))
    )
    assert noise(optim.add_noise(0.1, 0.5)) != noise(optim.add_noise(0.1, 0.5, 1))
    with pytest.raises(ValueError, match="not both"):
        optim.add_noise(0.1, 0.5, 1, seed=1)


@pytest.mark.parametrize("name", ["sgd", "adam", "lion", "adagrad", "adamw"])
def test_b34_o4_integer_gradients_are_numbers(name: str) -> None:
    tx, other = getattr(optim, name)(0.5), getattr(optax, name)(0.5)
    p, g = {"w": np.array([0.5, 1.0, 2.0], np.float32)}, {"w": np.array([1, -2, 0])}
    got, _ = tx.update({"w": jnp.asarray(g["w"])}, tx.init(_ours(p)), _ours(p))
    want, _ = other.update(g, other.init(p), p)
    assert got["w"].dtype == np.float32
    np.testing.assert_allclose(np.asarray(got["w"]), np.asarray(want["w"]), rtol=1e-5)


def test_b34_o4_integer_parameters_and_gradients() -> None:
    p = {"n": np.array([5, 6])}
    g = {"n": np.array([1, -2])}
    tx, other = optim.sgd(1.0), optax.sgd(1.0)
    got, _ = tx.update(_ours(g), tx.init(_ours(p)))
    want, _ = other.update(g, other.init(p))
    np.testing.assert_array_equal(np.asarray(got["n"]), np.asarray(want["n"]))
    new = optim.apply_updates(_ours(p), got)
    np.testing.assert_array_equal(np.asarray(new["n"]), optax.apply_updates(p, want)["n"])
    # The zeros that integers have for gradients leave them alone, in every optimizer.
    params = {"w": jnp.ones(2), "n": jnp.arange(2)}
    grads = gf.grad(lambda p: jnp.sum(p["w"] * p["n"]), allow_int=True)(params)
    for name, tx in OURS.items():
        if name in ("identity", "set_to_zero", "apply_every"):
            continue
        updates, _ = tx.update(grads, tx.init(params), params)
        assert optim.apply_updates(params, updates)["n"].tolist() == [0, 1], name


def test_b34_o5_masks_of_known_boolean_arrays() -> None:
    p = {"w": np.ones(3, np.float32), "b": np.ones(2, np.float32)}
    for mask in (np.array(True), {"w": np.array(True), "b": np.bool_(False)}):
        tx, other = optim.freeze(mask), optax.freeze(mask)
        got, _ = tx.update(_ours(p), tx.init(_ours(p)), _ours(p))
        want, _ = other.update(p, other.init(p), p)
        for k in p:
            np.testing.assert_array_equal(np.asarray(got[k]), np.asarray(want[k]))
    tx = optim.masked(optim.sgd(1.0), {"w": jnp.asarray(True), "b": jnp.asarray(False)})
    got, _ = gf.jit(tx.update)(_ours(p), tx.init(_ours(p)), _ours(p))
    assert got["w"].tolist() == [-1.0] * 3 and got["b"].tolist() == [1.0] * 2


def test_b34_o6_injected_hyperparameters_under_jit() -> None:
    p = {"w": np.array([3.0, -4.0], np.float32), "b": np.array([12.0], np.float32)}
    for name, args in (
        ("clip_by_global_norm", (lambda lib: lib.linear_schedule(2.0, 1.0, 4),)),
        ("clip_by_global_norm", (lambda lib: 2.0,)),
        ("sgd", (lambda lib: lib.cosine_decay_schedule(1.0, 10),)),
    ):
        tx, other = (
            lib.inject_hyperparams(getattr(lib, name))(*[a(lib) for a in args])
            for lib in (optim, optax)
        )
        state, theirs = gf.jit(tx.init)(_ours(p)), jax.jit(other.init)(p)
        for _ in range(3):
            got, state = gf.jit(tx.update)(_ours(p), state, _ours(p))
            want, theirs = jax.jit(other.update)(p, theirs, p)
            for k in p:
                np.testing.assert_allclose(np.asarray(got[k]), np.asarray(want[k]), rtol=1e-5)
    for order, want in ((1, 19.0), (2, 13.0), (np.inf, 12.0)):
        tx = optim.inject_hyperparams(optim.clip_by_global_norm)(1.0, ord=order)
        got, _ = gf.jit(tx.update)(_ours(p), tx.init(_ours(p)))
        np.testing.assert_allclose(np.asarray(got["b"]), [12.0 / want], rtol=1e-5)
        traced = gf.jit(lambda ord: optim.global_norm(_ours(p), ord, squared=True))
        assert float(traced(order)) == pytest.approx(want**2)
    assert np.isnan(float(gf.jit(lambda ord: optim.global_norm(_ours(p), ord))(3)))


def test_b34_o7_an_injected_hyperparameter_is_found_once() -> None:
    p = {"w": jnp.ones(2)}
    tx = optim.inject_hyperparams(optim.sgd)(learning_rate=lambda count: 1 / (count + 1))
    state = tx.init(p)

    @gf.jit
    def rate(state: Any) -> Any:
        return optim.tree.get(
            state, "learning_rate", filtering=lambda _, value: isinstance(value, gf.Array)
        )

    for i in range(3):
        _, state = tx.update(p, state)
        assert float(rate(state)) == pytest.approx(1 / (i + 1))
    assert (
        float(optim.tree.get(optim.inject_hyperparams(optim.adam)(0.5).init(p), "learning_rate"))
        == 0.5
    )
    twice = optim.chain(
        optim.inject_hyperparams(optim.sgd)(0.1), optim.inject_hyperparams(optim.sgd)(0.2)
    )
    found = optim.tree.get_all_with_path(twice.init(p), "learning_rate")
    assert [float(v) for _, v in found] == pytest.approx([0.1, 0.2])
    # An injection inside of another one is another hyperparameter.
    nested = optim.inject_hyperparams(
        lambda learning_rate: optim.chain(
            optim.scale(learning_rate), optim.inject_hyperparams(optim.sgd)(0.3)
        )
    )(0.2)
    assert len(optim.tree.get_all_with_path(nested.init(p), "learning_rate")) == 2


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "complex64", "float32"])
def test_b34_updates_in_the_dtypes_of_parameters(kind: str) -> None:
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    rng = np.random.default_rng(5)
    p, g = ({"w": np.asarray(rng.normal(size=(3, 4)), dtype)} for _ in range(2))
    for name in ("sgd", "adam", "adamw", "lamb", "lion", "rmsprop", "adagrad", "nadam", "lars"):
        other = getattr(optax, name)(0.1)
        want, _ = other.update(_theirs(g), other.init(_theirs(p)), _theirs(p))
        tx = optim.with_update_dtype(getattr(optim, name)(0.1), update_dtype="param")
        got, state = gf.jit(tx.update)(_ours(g), tx.init(_ours(p)), _ours(p))
        assert got["w"].dtype == want["w"].dtype == dtype, name
        np.testing.assert_allclose(
            np.asarray(got["w"]).astype(np.complex64),
            np.asarray(want["w"]).astype(np.complex64),
            rtol=LOW.get(kind, 1e-4),
            atol=LOW.get(kind, 1e-4) * 0.1,
            err_msg=name,
        )
        assert gf.tree.structure(state) == gf.tree.structure(getattr(optim, name)(0.1).init(p))
    # Without it updates are float32 or wider; without parameters they follow the gradients.
    wide, _ = optim.sgd(0.1).update(_ours(g), optim.sgd(0.1).init(_ours(p)))
    assert wide["w"].dtype == (np.complex64 if kind == "complex64" else np.float32)
    tx = optim.with_update_dtype(optim.sgd(0.1))
    assert tx.update(_ours(g), tx.init(_ours(p)))[0]["w"].dtype == dtype
    fixed = optim.with_update_dtype(optim.sgd(0.1), jnp.float16)
    if kind != "complex64":
        assert fixed.update(_ours(g), fixed.init(_ours(p)))[0]["w"].dtype == np.float16
    frozen, _ = tx.update({"w": None}, tx.init(_ours(p)), _ours(p))
    assert frozen["w"] is None


def test_b34_dtype_none_of_samplers_and_initializers_is_the_default() -> None:
    key = gf.random.key(0)
    for i, (name, args) in enumerate(
        [
            ("normal", ((2,),)),
            ("uniform", ((2,),)),
            ("gamma", (1.0,)),
            ("randint", ((2,), 0, 5)),
            ("bits", ((2,),)),
            ("rademacher", ((2,),)),
            ("poisson", (1.0,)),
            ("ball", (2,)),
        ]
    ):
        got = getattr(gf.random, name)(gf.random.fold_in(key, i), *args, dtype=None)
        want = getattr(jax.random, name)(jax.random.key(0), *args, dtype=None)
        assert got.dtype == want.dtype, name
    for i, name in enumerate(("normal", "uniform", "glorot_normal", "orthogonal", "constant")):
        args = (1,) if name == "constant" else ()
        init = getattr(gf.nn.initializers, name)(*args, dtype=None)
        assert init(gf.random.fold_in(key, 100 + i), (2, 2), None).dtype == np.float32, name
