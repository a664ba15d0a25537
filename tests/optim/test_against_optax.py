"""Every optimizer against optax: 100 steps on the same random gradients."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import optax.contrib
import pytest

from genesis_fn import optim
from tests.optim.compare import gap
from tests.public.names import exported

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
LIMIT = {F64: 1e-9, F32: 1e-5}

# name, arguments; the same in both libraries.
OPTIMIZERS = [
    ("sgd", (0.1,), {}),
    ("sgd", (0.1,), {"momentum": 0.9}),
    ("sgd", (0.1,), {"momentum": 0.9, "nesterov": True}),
    ("adam", (1e-2,), {}),
    ("adam", (1e-2,), {"b1": 0.0, "b2": 0.95, "eps_root": 1e-6}),
    ("nadam", (1e-2,), {}),
    ("adamw", (1e-2,), {"weight_decay": 0.1}),
    ("nadamw", (1e-2,), {}),
    ("amsgrad", (1e-2,), {}),
    ("amsgrad", (1e-2,), {"bias_correction_mu": False, "bias_correction_nu": False}),
    ("adamax", (1e-2,), {}),
    ("adamaxw", (1e-2,), {}),
    ("adabelief", (1e-2,), {}),
    ("adabelief", (1e-2,), {"nesterov": True}),
    ("adadelta", (1.0,), {"weight_decay": 1e-3}),
    ("adagrad", (1e-1,), {}),
    ("adan", (1e-2,), {"weight_decay": 1e-2}),
    ("lion", (1e-3,), {}),
    ("fromage", (1e-2,), {}),
    ("lars", (10.0,), {"weight_decay": 1e-3}),
    ("lars", (10.0,), {"nesterov": True}),
    ("lamb", (1e-2,), {"weight_decay": 1e-2}),
    ("sign_sgd", (1e-2,), {}),
    ("signum", (1e-2,), {}),
    ("novograd", (1e-2,), {"weight_decay": 1e-2}),
    ("optimistic_gradient_descent", (1e-2,), {"alpha": 1.5, "beta": 0.5}),
    ("optimistic_adam_v2", (1e-2,), {}),
    ("radam", (1e-2,), {}),
    ("radam", (1e-2,), {"nesterov": True, "b2": 0.99}),
    ("rmsprop", (1e-2,), {}),
    ("rmsprop", (1e-2,), {"centered": True, "momentum": 0.9}),
    ("rmsprop", (1e-2,), {"bias_correction": True, "eps_in_sqrt": False, "initial_scale": 0.5}),
    ("yogi", (1e-2,), {}),
    ("rprop", (1e-2,), {}),
]


CHAINS = sorted({name for name, *_ in OPTIMIZERS})


def _id(case: tuple) -> str:
    return case[0] + "".join(f",{k}={v}" for k, v in case[2].items())


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("case", OPTIMIZERS, ids=_id)
def test_optimizer(case: tuple, dtype: np.dtype) -> None:
    name, args, kwargs = case
    limit = 1e-3 if name == "radam" and dtype == F32 else LIMIT[dtype]
    assert (
        gap(getattr(optim, name)(*args, **kwargs), getattr(optax, name)(*args, **kwargs), dtype)
        < limit
    )


def test_adabelief_decays_as_a_chain_does() -> None:
    def chain(lib: Any) -> Any:
        return lib.chain(
            lib.scale_by_belief(eps=1e-16, eps_root=1e-16),
            lib.add_decayed_weights(0.1),
            lib.scale_by_learning_rate(1e-2),
        )

    assert gap(optim.adabelief(1e-2, weight_decay=0.1), chain(optax), F64) < LIMIT[F64]


def test_optimistic_adam() -> None:
    with pytest.warns(DeprecationWarning):
        theirs = optax.optimistic_adam(1e-2, optimism=0.5)
    assert gap(optim.optimistic_adam(1e-2, optimism=0.5), theirs, F64) < 1e-9


# Random, or held by a test elsewhere.
ELSEWHERE = {
    "hutchinson_estimator_diag_hessian",
    "lbfgs",
    "noisy_sgd",
    "scale_by_lbfgs",
    "schedule_free",
    "schedule_free_eval_params",
}


def test_every_optimizer_of_optax_is_compared() -> None:
    chains = [getattr(optim, name) for name in [*CHAINS, "muon", "sm3"]]
    # What `adam` is made of is compared with it.
    made_of = [inspect.getsource(f) for f in chains if inspect.isfunction(f)]
    text = "\n".join([Path(__file__).read_text(encoding="utf-8"), *made_of])
    for name in sorted(exported("optim") - ELSEWHERE):
        f = getattr(optim, name)
        known = hasattr(optax, name) or hasattr(optax.contrib, name)
        if known and inspect.isfunction(f) and "optim.optimizers." in f.__module__:
            assert re.search(rf"\b{name}\b", text), f"give {name} a row here"


CONTRIB = [
    ("muon", (1e-2,), {}),
    ("muon", (1e-2,), {"nesterov": False, "adaptive": True, "weight_decay": 0.1}),
    ("muon", (1e-2,), {"preconditioning": "aol"}),
    ("muon", (1e-2,), {"preconditioning": "schatten", "consistent_rms": 0.2}),
    ("muon", (1e-2,), {"ns_coeffs": "dion"}),
    ("schedule_free_sgd", (0.1,), {"weight_decay": 1e-2}),
    ("schedule_free_adamw", (1e-2,), {"weight_decay": 1e-2}),
    ("prodigy", (), {}),
    ("prodigy", (0.5,), {"safeguard_warmup": True, "weight_decay": 1e-2}),
]


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("case", CONTRIB, ids=_id)
def test_contributed_optimizer(case: tuple, dtype: np.dtype) -> None:
    name, args, kwargs = case
    theirs = getattr(optax.contrib, name)(*args, **kwargs)
    # The average's rounding is relative to the parameters, which move little: float32 optax is
    # 2e-5 of the movement from its own float64 run.
    of = "parameters" if name == "schedule_free_adamw" and dtype == F32 else "movement"
    assert gap(getattr(optim, name)(*args, **kwargs), theirs, dtype, of=of) < LIMIT[dtype]


def test_muon_dimension_numbers() -> None:
    def dims(package):
        kind = package.MuonDimensionNumbers
        # The third leaf is a batch, along its last axis, of 3 x 4 matrices.
        return {"layer": {"w": kind(1, 0), "b": None}, "list": [kind((0,), (1,)), None]}

    mine = optim.muon(1e-2, muon_weight_dimension_numbers=dims(optim))
    theirs = optax.contrib.muon(1e-2, muon_weight_dimension_numbers=dims(optax.contrib))
    assert gap(mine, theirs, F64) < 1e-9


def test_muon_makes_nearly_orthogonal_updates() -> None:
    import genesis_fn.numpy as jnp

    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 20)).astype(np.float32))
    y = np.asarray(optim.orthogonalize_via_newton_schulz(x))
    values = np.linalg.svd(y, compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3


def _decay_in_float64(i, exponent=0.8):
    return 1.0 - (jax.numpy.asarray(i, jax.numpy.float64) + 1.0) ** (-exponent)


@pytest.mark.parametrize("least", [3, 128])
def test_factored_rms(least: int) -> None:
    # Optax computes the decay in float32 whatever the gradients' dtype; here it is given float64.
    mine = optim.chain(
        optim.scale_by_factored_rms(min_dim_size_to_factor=least), optim.scale(-0.01)
    )
    theirs = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=least, decay_rate_fn=_decay_in_float64),
        optax.scale(-0.01),
    )
    assert gap(mine, theirs, F64) < 1e-9


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"min_dim_size_to_factor": 3}, {"momentum": 0.9, "weight_decay_rate": 1e-3}],
    ids=str,
)
def test_adafactor(kwargs: dict) -> None:
    assert gap(optim.adafactor(1e-2, **kwargs), optax.adafactor(1e-2, **kwargs), F32) < 1e-5


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_sm3(dtype: np.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # Optax's does not take scalars.
    monkeypatch.setattr("tests.optim.compare.SHAPES", {"w": (6, 5), "b": (5,), "t": (2, 3, 4)})
    assert gap(optim.sm3(1e-2), optax.sm3(1e-2), dtype) < LIMIT[dtype]


@pytest.mark.parametrize("variant", ["sps", "sps+"])
def test_polyak_sgd(variant: str) -> None:
    def value(i: int) -> dict:
        return {"value": 0.5 * np.cos(i)}

    mine = optim.polyak_sgd(0.1, variant=variant)
    assert gap(mine, optax.polyak_sgd(0.1, variant=variant), F32, extra=value) < 1e-5


TRANSFORMS = {
    "clip": lambda o: o.clip(0.5),
    "clip_by_block_rms": lambda o: o.clip_by_block_rms(0.5),
    "clip_by_global_norm": lambda o: o.clip_by_global_norm(1.0),
    "adaptive_grad_clip": lambda o: o.adaptive_grad_clip(0.1),
    "centralize": lambda o: o.centralize(),
    "normalize_by_update_norm": lambda o: o.normalize_by_update_norm(2.0),
    "scale_by_param_block_norm": lambda o: o.scale_by_param_block_norm(),
    "scale_by_param_block_rms": lambda o: o.scale_by_param_block_rms(),
    "scale_by_trust_ratio": lambda o: o.scale_by_trust_ratio(0.1, 0.5, 1e-3),
    "scale_by_lion smooth": lambda o: o.scale_by_lion(mode="smooth", smooth_beta=2.0),
    "scale_by_lion refined": lambda o: o.scale_by_lion(mode="refined"),
    "scale_by_stddev": lambda o: o.scale_by_stddev(bias_correction=True, initial_scale=1.0),
    "ema": lambda o: o.ema(0.9),
    "apply_every": lambda o: o.apply_every(3),
    "keep_params_nonnegative": lambda o: o.chain(
        o.scale(0.1), o.keep_params_nonnegative(), o.scale(-1.0)
    ),
    "zero_nans": lambda o: o.zero_nans(),
    "flatten": lambda o: o.flatten(o.adam(0.1)),
    "MultiSteps": lambda o: o.MultiSteps(
        o.adam(0.1), 3, accumulator_dtype=np.float64 if o is optax else None
    ).gradient_transformation(),
    "MultiSteps sum": lambda o: o.MultiSteps(
        o.sgd(0.1), lambda step: 2 + step // 10, use_grad_mean=False,
        accumulator_dtype=np.float64 if o is optax else None,
    ).gradient_transformation(),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adam(0.1), 3),
    "conditionally_transform": lambda o: o.conditionally_transform(
        o.adam(0.1), lambda s: s % 3 == 0
    ),
    "conditionally_mask": lambda o: o.conditionally_mask(o.adam(0.1), lambda s: s % 3 == 0),
    "add_decayed_weights": lambda o: o.add_decayed_weights(0.1),
    "scale_by_distance_over_gradients": lambda o: o.scale_by_distance_over_gradients(
        0.1, param_dtype=np.float64
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "distance" in name:
        # Optax's sums have shape (1,), which scalars do not survive.
        monkeypatch.setattr("tests.optim.compare.SHAPES", {"w": (6, 5), "b": (5,)})
    with jax.enable_x64(True):
        theirs = optax.chain(TRANSFORMS[name](optax), optax.scale(-0.1))
    mine = optim.chain(TRANSFORMS[name](optim), optim.scale(-0.1))
    assert gap(mine, theirs, F64, steps=30) < 1e-9


def test_sam_and_lookahead_reduce_on_plateau() -> None:
    def sam(o, contrib):
        return contrib.sam(o.sgd(0.1), o.chain(contrib.normalize(), o.sgd(0.05)), sync_period=2)

    # Both adversarial and real steps, so that the parameters after an even number are compared.
    assert gap(sam(optim, optim), sam(optax, optax.contrib), F64, steps=20) < 1e-9

    def plateau(o, contrib):
        return o.chain(
            o.sgd(0.1), contrib.reduce_on_plateau(patience=2, cooldown=3, accumulation_size=2)
        )

    mine, theirs = plateau(optim, optim), plateau(optax, optax.contrib)
    # Falling, flat, and falling again: the scale drops during the middle part.
    losses = np.concatenate([np.linspace(3, 1, 20), np.ones(50), np.linspace(0.9, 0.1, 30)])
    assert gap(mine, theirs, F32, extra=lambda i: {"value": np.float32(losses[i])}) < 1e-5


def test_sophia_given_a_diagonal() -> None:
    def build(o, contrib):
        squares = o.stateless(lambda updates, params: jax.tree.map(lambda g: g * g, updates))
        return contrib.sophia(0.1, update_interval=3, hessian_diagonal_fn=squares)

    mine = optim.sophia(
        0.1,
        update_interval=3,
        hessian_diagonal_fn=optim.stateless(
            lambda updates, params: optim.tree.mul(updates, updates)
        ),
    )
    assert gap(mine, build(optax, optax.contrib), F64) < 1e-9
