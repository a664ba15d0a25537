"""Optimizers: chains of transformations under the names by which they are known.

Arguments that many share: `learning_rate` is a number or a schedule; `b1`, `b2` are the decay rates
of the first and second moments; `eps` is added to a denominator, `eps_root` inside its root;
`mu_dtype` is the dtype of the first moment (float32 or wider without it); `weight_decay` is
multiplied by the learning rate, and `mask` says which parameters decay (see `masking.py`);
`stochastic_round` (True, a seed or a key) rounds 16-bit parameters at random (see `rounding.py`).

States are named tuples with one field per part: `state.adam.mu`, `state.schedule.learning_rate`; a
field that only one part has can be read directly, as `state.learning_rate`.
"""

from __future__ import annotations

import functools

from genesis_fn import DTypeLike, Key, dtypes
from genesis_fn.errors import ArgumentError
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, ScalarOrSchedule
from genesis_fn.optim.base import GradientTransformationExtraArgs
from genesis_fn.optim.optimizers.adaptive import (
    scale_by_adadelta,
    scale_by_adam,
    scale_by_adamax,
    scale_by_adan,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_lion,
    scale_by_novograd,
    scale_by_optimistic_gradient,
    scale_by_radam,
    scale_by_rms,
    scale_by_rprop,
    scale_by_rss,
    scale_by_stddev,
    scale_by_yogi,
)
from genesis_fn.optim.optimizers.factored import scale_by_factored_rms, scale_by_sm3
from genesis_fn.optim.transforms import rounding, transform
from genesis_fn.optim.transforms.clipping import clip_by_block_rms
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.masking import masked
from genesis_fn.optim.transforms.noise import add_noise
from genesis_fn.optim.transforms.transform import add_decayed_weights, scale_by_learning_rate


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: Number | None = None,
    nesterov: bool = False,
    accumulator_dtype: DTypeLike | None = None,
    *,
    stochastic_round: bool | int | Key = False,
) -> GradientTransformationExtraArgs:
    """Stochastic gradient descent, with (Nesterov) momentum if it is given."""
    step, last = scale_by_learning_rate(learning_rate), _rounding(stochastic_round)
    if momentum is None:
        return optimizer("sgd", momentum=base.identity(), schedule=step, **last)
    kept = transform.trace(momentum, nesterov, accumulator_dtype)
    return optimizer("sgd", momentum=kept, schedule=step, **last)


def _rounding(chosen: bool | int | Key | None) -> dict[str, base.GradientTransformation]:
    """The last part of a chain with `stochastic_round=`: True, or a seed or key."""
    if chosen is False or chosen is None:
        return {}
    return {"rounding": rounding.stochastic_round(0 if chosen is True else chosen)}


def adam(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = False,
    stochastic_round: bool | int | Key = False,
) -> GradientTransformationExtraArgs:
    """Adam (Kingma & Ba 2014)."""
    return optimizer(
        "adam",
        adam=scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        schedule=scale_by_learning_rate(learning_rate),
        **_rounding(stochastic_round),
    )


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: Number = 1e-4,
    mask: Mask | None = None,
    *,
    nesterov: bool = False,
    stochastic_round: bool | int | Key = False,
) -> GradientTransformationExtraArgs:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2017)."""
    return optimizer(
        "adamw",
        adam=scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
        **_rounding(stochastic_round),
    )


nadam = functools.partial(adam, nesterov=True)
nadam.__doc__ = """Adam with Nesterov momentum (Dozat 2016)."""
nadamw = functools.partial(adamw, nesterov=True)
nadamw.__doc__ = """AdamW with Nesterov momentum."""


def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> GradientTransformationExtraArgs:
    """Adam dividing by the largest second moment so far (Reddi et al. 2018)."""
    return optimizer(
        "amsgrad",
        amsgrad=scale_by_amsgrad(
            b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu
        ),
        schedule=scale_by_learning_rate(learning_rate),
    )


def adamax(
    learning_rate: ScalarOrSchedule, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-8
) -> GradientTransformationExtraArgs:
    """Adam with the infinity norm (Kingma & Ba 2014)."""
    return optimizer(
        "adamax",
        adamax=scale_by_adamax(b1, b2, eps),
        schedule=scale_by_learning_rate(learning_rate),
    )


def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    weight_decay: Number = 1e-4,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adamax with decoupled weight decay."""
    return optimizer(
        "adamaxw",
        adamax=scale_by_adamax(b1, b2, eps),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-16,
    eps_root: Number = 1e-16,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Adam dividing by the surprise |g - mu| (Zhuang et al. 2020)."""
    return optimizer(
        "adabelief",
        belief=scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov),
        schedule=scale_by_learning_rate(learning_rate),
    )


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: Number = 0.9,
    eps: Number = 1e-6,
    weight_decay: Number = 0.0,
    weight_decay_mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adadelta (Zeiler 2012)."""
    return optimizer(
        "adadelta",
        decay=add_decayed_weights(weight_decay, weight_decay_mask),
        adadelta=scale_by_adadelta(rho, eps),
        schedule=scale_by_learning_rate(learning_rate),
    )


def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: Number = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: Number | None = 1.0,
    momentum: Number | None = None,
    dtype_momentum: DTypeLike = dtypes.float32,
    weight_decay_rate: Number | None = None,
    eps: Number = 1e-30,
    factored: bool = True,
    weight_decay_mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adafactor: second moments as row times column (Shazeer & Stern 2018)."""
    parts: dict[str, base.GradientTransformation] = {
        "factored": scale_by_factored_rms(
            factored, decay_rate, decay_offset, min_dim_size_to_factor, eps
        )
    }
    if clipping_threshold is not None:
        parts["clip"] = clip_by_block_rms(clipping_threshold)
    if learning_rate is not None:
        parts["schedule"] = scale_by_learning_rate(learning_rate, flip_sign=False)
    if multiply_by_parameter_scale:
        parts["parameter_scale"] = transform.scale_by_param_block_rms()
    if momentum is not None:
        parts["momentum"] = transform.ema(momentum, debias=False, accumulator_dtype=dtype_momentum)
    if weight_decay_rate is not None:
        parts["decay"] = add_decayed_weights(weight_decay_rate, weight_decay_mask)
    return optimizer("adafactor", **parts, sign=transform.scale(-1))


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: Number = 0.1, eps: Number = 1e-7
) -> GradientTransformationExtraArgs:
    """Adagrad (Duchi et al. 2011)."""
    return optimizer(
        "adagrad",
        adagrad=scale_by_rss(initial_accumulator_value, eps),
        schedule=scale_by_learning_rate(learning_rate),
    )


def adan(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.98,
    b2: Number = 0.92,
    b3: Number = 0.99,
    eps: Number = 1e-8,
    eps_root: Number = 1e-8,
    weight_decay: Number = 0.0,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adaptive Nesterov momentum (Xie et al. 2022)."""
    return optimizer(
        "adan",
        adan=scale_by_adan(b1, b2, b3, eps, eps_root),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


def lion(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.99,
    mu_dtype: DTypeLike | None = None,
    weight_decay: Number = 1e-3,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Lion: the sign of an interpolated momentum (Chen et al. 2023)."""
    return optimizer(
        "lion",
        lion=scale_by_lion(b1, b2, mu_dtype),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


def fromage(
    learning_rate: ScalarOrSchedule, min_norm: Number = 1e-6
) -> GradientTransformationExtraArgs:
    """Fromage: steps of a fixed size relative to each layer (Bernstein et al. 2020)."""

    def shrink(lr: Number) -> Number:
        return 1 / (1 + lr**2) ** 0.5

    if callable(learning_rate):
        step: ScalarOrSchedule = lambda count: shrink(learning_rate(count)) * learning_rate(count)
        decay: ScalarOrSchedule = lambda count: shrink(learning_rate(count)) - 1
    else:
        step, decay = learning_rate * shrink(learning_rate), shrink(learning_rate) - 1
    return optimizer(
        "fromage",
        trust=transform.scale_by_trust_ratio(min_norm),
        schedule=scale_by_learning_rate(step),
        decay=add_decayed_weights(decay),
    )


def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: Number = 0.0,
    weight_decay_mask: Mask | None = True,
    trust_coefficient: Number = 0.001,
    eps: Number = 0.0,
    trust_ratio_mask: Mask | None = True,
    momentum: Number = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Layer-wise adaptive rate scaling for large batches (You et al. 2017)."""
    trust = transform.scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps)
    return optimizer(
        "lars",
        decay=add_decayed_weights(weight_decay, weight_decay_mask),
        trust=masked(trust, trust_ratio_mask),
        schedule=scale_by_learning_rate(learning_rate),
        momentum=transform.trace(momentum, nesterov),
    )


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-6,
    eps_root: Number = 0.0,
    weight_decay: Number = 0.0,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adam with layer-wise trust ratios for large batches (You et al. 2019)."""
    return optimizer(
        "lamb",
        adam=scale_by_adam(b1, b2, eps, eps_root),
        decay=add_decayed_weights(weight_decay, mask),
        trust=transform.scale_by_trust_ratio(),
        schedule=scale_by_learning_rate(learning_rate),
    )


def noisy_sgd(
    learning_rate: ScalarOrSchedule,
    eta: Number = 0.01,
    gamma: Number = 0.55,
    key: Key | int | None = None,
    *,
    seed: Key | int | None = None,
) -> GradientTransformationExtraArgs:
    """SGD with Gaussian noise of variance eta / step**gamma (Neelakantan et al. 2014).

    `key` (or `seed`) is a random key or a seed, 0 without one.
    """
    return optimizer(
        "noisy_sgd",
        noise=add_noise(eta, gamma, key, seed=seed),
        schedule=scale_by_learning_rate(learning_rate),
    )


def sign_sgd(learning_rate: ScalarOrSchedule) -> GradientTransformationExtraArgs:
    """The gradient's sign (Bernstein et al. 2018)."""
    return optimizer(
        "sign_sgd", sign=transform.scale_by_sign(), schedule=scale_by_learning_rate(learning_rate)
    )


def signum(
    learning_rate: ScalarOrSchedule, beta: Number = 0.9, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformationExtraArgs:
    """The momentum's sign (Bernstein et al. 2018)."""
    return optimizer(
        "signum",
        momentum=transform.ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        sign=transform.scale_by_sign(),
        schedule=scale_by_learning_rate(learning_rate),
    )


def novograd(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.25,
    eps: Number = 1e-6,
    eps_root: Number = 0.0,
    weight_decay: Number = 0.0,
) -> GradientTransformationExtraArgs:
    """Adam with one second moment per layer (Ginsburg et al. 2019)."""
    return optimizer(
        "novograd",
        novograd=scale_by_novograd(b1, b2, eps, eps_root, weight_decay),
        schedule=scale_by_learning_rate(learning_rate),
    )


def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule, alpha: Number = 1.0, beta: Number = 1.0
) -> GradientTransformationExtraArgs:
    """Gradient descent that extrapolates from the last gradient (Mokhtari et al. 2020)."""
    return optimizer(
        "optimistic_gradient_descent",
        optimistic=scale_by_optimistic_gradient(alpha, beta),
        schedule=scale_by_learning_rate(learning_rate),
    )


def optimistic_adam(
    learning_rate: Number,
    optimism: Number | None = None,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Adam that extrapolates by `optimism`, the learning rate by default (Daskalakis et al. 2017).

    For learning-rate schedules there is `optimistic_adam_v2`.
    """
    if callable(learning_rate):
        raise ArgumentError("optimistic_adam takes a number; for schedules use optimistic_adam_v2")
    return optimizer(
        "optimistic_adam",
        adam=scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        optimistic=scale_by_optimistic_gradient(
            learning_rate, learning_rate if optimism is None else optimism
        ),
        schedule=scale_by_learning_rate(1.0),
    )


def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: Number = 1.0,
    beta: Number = 1.0,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    nesterov: bool = True,
) -> GradientTransformationExtraArgs:
    """Adam that extrapolates its updates (Daskalakis et al. 2017)."""
    return optimizer(
        "optimistic_adam_v2",
        adam=scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        optimistic=scale_by_optimistic_gradient(alpha, beta),
        schedule=scale_by_learning_rate(learning_rate),
    )


def radam(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Adam with rectified variance (Liu et al. 2019)."""
    return optimizer(
        "radam",
        radam=scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov),
        schedule=scale_by_learning_rate(learning_rate),
    )


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: Number = 0.9,
    eps: Number = 1e-8,
    initial_scale: Number = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Number | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformationExtraArgs:
    """RMSProp (Hinton 2012); `centered` divides by the standard deviation (Graves 2013)."""
    rescale = scale_by_stddev if centered else scale_by_rms
    return optimizer(
        "rmsprop",
        rms=rescale(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        schedule=scale_by_learning_rate(learning_rate),
        momentum=base.identity() if momentum is None else transform.trace(momentum, nesterov),
    )


def sm3(learning_rate: ScalarOrSchedule, momentum: Number = 0.9) -> GradientTransformationExtraArgs:
    """SM3: Adagrad with one accumulator per row and column (Anil et al. 2019)."""
    return optimizer(
        "sm3", sm3=scale_by_sm3(momentum), schedule=scale_by_learning_rate(learning_rate)
    )


def yogi(
    learning_rate: ScalarOrSchedule, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-3
) -> GradientTransformationExtraArgs:
    """Adam whose second moment changes slowly (Zaheer et al. 2018)."""
    return optimizer(
        "yogi", yogi=scale_by_yogi(b1, b2, eps), schedule=scale_by_learning_rate(learning_rate)
    )


def rprop(
    learning_rate: Number,
    eta_minus: Number = 0.5,
    eta_plus: Number = 1.2,
    min_step_size: Number = 1e-6,
    max_step_size: Number = 50.0,
) -> GradientTransformationExtraArgs:
    """Resilient propagation, for full batches (Riedmiller & Braun 1993)."""
    return optimizer(
        "rprop",
        rprop=scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size),
        sign=transform.scale(-1.0),
    )


def polyak_sgd(
    max_learning_rate: Number = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: Number = 0.0,
    eps: Number = 0.0,
    variant: str = "sps",
) -> GradientTransformationExtraArgs:
    """SGD with Polyak's step; `update` takes the loss as `value=` (Loizou et al. 2021)."""
    return optimizer(
        "polyak_sgd",
        sgd=sgd(scaling),
        polyak=transform.scale_by_polyak(f_min, max_learning_rate, eps, variant),
    )
