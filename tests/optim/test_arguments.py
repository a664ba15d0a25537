"""Optimizers made of what they cannot use are refused by name: their results were wrong."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim

W, G = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    return str(error.value)


def stepped(tx: Any, **extra: Any) -> Any:
    return tx.update(G, tx.init(W), W, **extra)[0]


@pytest.mark.parametrize("name", ["nadam", "nadamw"])
def test_nadam_is_a_function_with_the_parameters_of_optax(name: str) -> None:
    ours, theirs = getattr(optim, name), getattr(optax, name)
    assert inspect.isfunction(ours)
    have, want = (inspect.signature(f).parameters for f in (ours, theirs))
    for key, parameter in want.items():
        assert (have[key].kind, have[key].default) == (parameter.kind, parameter.default)
    for nesterov in (True, False):
        with jax.enable_x64(True):  # in float32 optax's 1 - b2**t cancels
            w, g = (jax.numpy.asarray(np.asarray(x, np.float64)) for x in (W, G))
            tx = theirs(0.1, nesterov=nesterov)
            expected = np.asarray(tx.update(g, tx.init(w), w)[0])
        got = stepped(ours(0.1, nesterov=nesterov))
        np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_the_count_of_a_state_is_the_number_of_steps() -> None:
    """It was the method of tuples."""
    tx = optim.sgd(0.1)
    assert tx.update(G, tx.init(W), W)[1].count == 1
    with pytest.raises(AttributeError, match=r"state\.adam\.count, state\.schedule\.count"):
        _ = optim.adam(0.1).init(W).count
    with pytest.raises(AttributeError, match="no 'count' in the optimizer state"):
        _ = optim.chain(clip=optim.clip(1.0)).init(W).count
    named = optim.chain(count=tx).init(W)
    assert named.count is named[0]
    text = refused(lambda: optim.scale_by_learning_rate(lambda step: 0.1).update(G, (1, 2)))
    assert "needs ScaleByLearningRateState" in text


def test_a_constant_rate_refuses_the_state_of_another() -> None:
    for state in (optim.adam(0.1).init(W), (1, 2, 3), 5):
        assert "ScaleByLearningRateState" in refused(
            lambda: optim.scale_by_learning_rate(0.1).update(G, state)
        )


def test_what_is_no_transformation() -> None:
    wrong: Any
    for wrong in (optim.sgd, {"w": True}, 0.1, None):
        for wrap in (
            lambda tx: optim.masked(tx, {"w": True}),
            lambda tx: optim.partition({"a": tx}, "a"),
            lambda tx: optim.apply_if_finite(tx, 3),
            optim.with_master,
            lambda tx: optim.MultiSteps(tx, 2),
        ):
            assert "is no transformation" in refused(lambda: wrap(wrong))
    pair: Any = optim.sgd(0.1)  # itself a pair, of functions
    assert "takes pairs (name, transformation)" in refused(lambda: optim.named_chain(pair))


@pytest.mark.parametrize("make, words", [
    (lambda: optim.MultiSteps(optim.sgd(0.1), 0), "every_k_schedule"),
    (lambda: optim.MultiSteps(optim.sgd(0.1), np.int64(0)), "every_k_schedule"),
    (lambda: optim.MultiSteps(optim.sgd(0.1), 0.5), "every_k_schedule"),
    (lambda: optim.MultiSteps(optim.sgd(0.1), 2.5), "every_k_schedule"),
    (lambda: optim.apply_every(0), "apply_every: k must be positive"),
    (lambda: optim.periodic_update(W, W, jnp.array(3), 0), "update_period must be positive"),
    (lambda: optim.scale_by_sophia(update_interval=0), "update_interval must be positive"),
    (lambda: optim.clip(-1.0), "max_delta must not be negative"),
    (lambda: optim.clip_by_global_norm(-1.0), "max_norm must not be negative"),
    (lambda: optim.add_noise(-1.0, 0.5), "eta must not be negative"),
    (lambda: optim.reduce_on_plateau(patience=0), "patience must be positive"),
    (lambda: optim.reduce_on_plateau(accumulation_size=0), "accumulation_size must be positive"),
    (lambda: optim.reduce_on_plateau(cooldown=-1), "cooldown must not be negative"),
    (lambda: optim.reduce_on_plateau(min_scale=-1.0), "min_scale must not be negative"),
    (lambda: optim.schedule_free_sgd(0.1, b1=0.0), "b1 must be in (0, 1]"),
    (lambda: optim.join_schedules([lambda i: i] * 3, [20, 10]), "boundaries must not decrease"),
    (lambda: stepped(optim.adam(0.1, b1=1.0)), "a decay rate lies in [0, 1), got 1.0"),
    (lambda: stepped(optim.adam(0.1, b2=1.5)), "a decay rate lies in [0, 1), got 1.5"),
    (lambda: stepped(optim.ema(1.0)), "a decay rate lies in [0, 1), got 1.0"),
])  # fmt: skip
def test_numbers_out_of_range(make: Callable[[], Any], words: str) -> None:
    assert words in refused(make)


def test_injected_numbers_are_not_checked() -> None:
    tx = optim.inject_hyperparams(optim.clip_by_global_norm)(max_norm=1.0)
    assert gf.jit(tx.update)(G, tx.init(W))[0].shape == W.shape


def test_no_warm_up_of_zero_steps() -> None:
    """The learning rate stayed 0."""
    for make in (optim.schedule_free_sgd, optim.schedule_free_adamw):
        np.testing.assert_array_equal(stepped(make(0.1, warmup_steps=0)), stepped(make(0.1)))


def test_errors_name_the_public_function() -> None:
    always = lambda step: True
    for make in (optim.conditionally_mask, optim.conditionally_transform):
        tx = make(optim.sgd(0.1), always)
        assert f"this {make.__name__} needs" in refused(lambda: tx.update(G, (1, 2), W))


def test_sam_ignores_arguments_of_other_transformations() -> None:
    for opaque in (False, True):
        tx = optim.sam(optim.sgd(0.1), optim.sgd(0.05), opaque_mode=opaque)
        extra = {"grad_fn": lambda params, i: G}
        want = stepped(tx, **extra)
        np.testing.assert_array_equal(stepped(tx, value=1.0, **extra), want)


def test_hessian_diagonals_of_numpy_parameters() -> None:
    """Signs were float64, where the arrays of a program are float32."""
    w, tx = np.array([1.0, -2.0]), optim.hutchinson_estimator_diag_hessian()
    diagonal, _ = tx.update(w, tx.init(w), w, obj_fn=lambda w: jnp.sum(w**4))
    np.testing.assert_allclose(diagonal, [12.0, 48.0])


def test_no_warning_of_lost_steps_under_vmap() -> None:
    """`vmap` runs both branches of a condition."""
    tx = optim.warn_of_lost_steps()
    state = tx.init(W)
    with warnings.catch_warnings():
        warnings.simplefilter("error", optim.LostStepsWarning)
        gf.vmap(lambda g: tx.update(g, state, W)[0])(jnp.stack([G, G]))
    tiny = jnp.full(2, 1e-12)
    with pytest.warns(optim.LostStepsWarning):
        gf.vmap(lambda g: tx.update(g, state, W)[0])(jnp.stack([G, tiny])).block_until_ready()
