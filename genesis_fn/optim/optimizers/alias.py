"""Optimizers: chains of transformations under the names by which they are known.

Formulas of updates write g for the gradient, p for the parameter, lr for `learning_rate`, t for
the step from 1, and m_hat for a moving mean m divided by 1 - b**t.

States are named tuples with one field per transformation: `state.adam.mu`,
`state.schedule.learning_rate`; a field that only one of them has can be read directly, as
`state.learning_rate`.
"""

from __future__ import annotations

from genesis_fn import DTypeLike, Key, dtypes
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, ScalarOrSchedule
from genesis_fn.optim.base import GradientTransformationExtraArgs
from genesis_fn.optim.optimizers.adaptive import (
    scale_by_adadelta,
    scale_by_optimistic_gradient,
    scale_by_rms,
    scale_by_rprop,
    scale_by_rss,
    scale_by_stddev,
)
from genesis_fn.optim.optimizers.factored import scale_by_factored_rms, scale_by_sm3
from genesis_fn.optim.optimizers.moments import scale_by_lion
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
    """Stochastic gradient descent, with momentum if it is given.

        m <- g + momentum m,  update = -lr m, or -lr (g + momentum m) with Nesterov

    Source: Polyak, "Some methods of speeding up the convergence of iteration methods", 1964;
    Nesterov momentum as in Sutskever et al., "On the importance of initialization and momentum",
    2013.

    Args:
        learning_rate: positive number, or a schedule of the step.
        momentum: decay rate of the sum of gradients, in [0, 1); None: no momentum.
        nesterov: whether the momentum is taken one step ahead.
        accumulator_dtype: dtype of the momentum; None: the parameters', and at least float32.
        stochastic_round: True, a seed or a key: parameters of 16 bits or fewer are rounded at
            random, see `optim.stochastic_round`.

    Returns:
        The transformation, whose states have the fields `momentum`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.sgd(0.1, momentum=0.9)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    step, last = scale_by_learning_rate(learning_rate), last_rounding(stochastic_round)
    if momentum is None:
        return optimizer("sgd", momentum=base.identity(), schedule=step, **last)
    kept = transform.trace(momentum, nesterov, accumulator_dtype)
    return optimizer("sgd", momentum=kept, schedule=step, **last)


def last_rounding(option: bool | int | Key | None) -> dict[str, base.GradientTransformation]:
    """Returns the last transformation of a chain with `stochastic_round=`, by name."""
    if option is False or option is None:
        return {}
    return {"rounding": rounding.stochastic_round(0 if option is True else option)}


def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: Number = 0.9,
    eps: Number = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adadelta: steps in units of past steps.

        update = -lr g sqrt(x + eps) / sqrt(v + eps),
        with v and x the moving means of g**2 and of (g sqrt(x + eps) / sqrt(v + eps))**2

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012. `update` needs the
    parameters.

    Args:
        learning_rate: positive number, or a schedule of the step; None neither scales nor negates.
        rho: decay rate of the moving means, in [0, 1).
        eps: positive number added inside the roots.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient.
        weight_decay_mask: which parameters decay: a tree of bools, or a function that gives it, of
            the parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `decay`, `adadelta`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adadelta(1.0)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0032,  0.0032], dtype=float32)
    """
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
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: Number = 1e-30,
    factored: bool = True,
    weight_decay_mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adafactor: Adam in little memory: second moments of matrices are a row times a column.

        v <- d v + (1 - d) (g**2 + eps), d = 1 - (t - decay_offset)**-decay_rate;  u = g / sqrt(v);
        u <- u / max(1, rms(u) / clipping_threshold);
        update = -(lr max(rms(p), 1e-3) u + weight_decay_rate p)

    Source: Shazeer & Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.
    `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step; None: 1.
        min_dim_size_to_factor: least size of the second largest dimension of a factored array.
        decay_rate: exponent of the second moment's decay, in (0, 1].
        decay_offset: step from which the decay counts, for fine-tuning.
        multiply_by_parameter_scale: whether updates are in units of the parameter's rms.
        clipping_threshold: largest rms of an update, before the learning rate; None: no limit.
        momentum: decay rate of a moving mean of updates, in [0, 1); None: no momentum.
        dtype_momentum: dtype of that mean.
        weight_decay_rate: number >= 0, or a schedule, that the learning rate does not multiply;
            None: no decay.
        eps: positive number added to squared gradients.
        factored: whether second moments are factored; otherwise they are as large as parameters.
        weight_decay_mask: which parameters decay: a tree of bools, or a function that gives it, of
            the parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have a field for each part that is used, as `factored`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adafactor(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1581,  0.1581], dtype=float32)
    """
    transforms: dict[str, base.GradientTransformation] = {
        "factored": scale_by_factored_rms(
            factored, decay_rate, decay_offset, min_dim_size_to_factor, eps
        )
    }
    if clipping_threshold is not None:
        transforms["clip"] = clip_by_block_rms(clipping_threshold)
    if learning_rate is not None:
        transforms["schedule"] = scale_by_learning_rate(learning_rate, flip_sign=False)
    if multiply_by_parameter_scale:
        transforms["parameter_scale"] = transform.scale_by_param_block_rms()
    if momentum is not None:
        transforms["momentum"] = transform.ema(
            momentum, debias=False, accumulator_dtype=dtype_momentum
        )
    if weight_decay_rate is not None:
        transforms["decay"] = add_decayed_weights(weight_decay_rate, weight_decay_mask)
    return optimizer("adafactor", **transforms, sign=transform.scale(-1))


def adagrad(
    learning_rate: ScalarOrSchedule, initial_accumulator_value: Number = 0.1, eps: Number = 1e-7
) -> GradientTransformationExtraArgs:
    """Adagrad: gradients over the root of the sum of all their squares.

        s <- s + |g|**2,  update = -lr g / sqrt(s + eps); 0 while s is 0

    Source: Duchi et al., "Adaptive subgradient methods for online learning", 2011.

    Args:
        learning_rate: positive number, or a schedule of the step.
        initial_accumulator_value: s before the first step, >= 0.
        eps: positive number added inside the root.

    Returns:
        The transformation, whose states have the fields `adagrad`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adagrad(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0845,  0.0994], dtype=float32)
    """
    return optimizer(
        "adagrad",
        adagrad=scale_by_rss(initial_accumulator_value, eps),
        schedule=scale_by_learning_rate(learning_rate),
    )


def lion(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.99,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Lion: the sign of momentum: equal steps of all elements. `update` needs the parameters.

        update = -lr (sign(b1 m + (1 - b1) g) + weight_decay p),  m <- b2 m + (1 - b2) g

    Source: Chen et al., "Symbolic discovery of optimization algorithms", 2023.

    Args:
        learning_rate: positive number, or a schedule of the step; 3 to 10 times less than for
            AdamW.
        b1: share of the momentum in the step, in [0, 1).
        b2: decay rate of the momentum, in [0, 1).
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `lion`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.lion(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1001,  0.1002], dtype=float32)
    """
    return optimizer(
        "lion",
        lion=scale_by_lion(b1, b2, mu_dtype),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


def fromage(
    learning_rate: ScalarOrSchedule, min_norm: Number = 1e-6
) -> GradientTransformationExtraArgs:
    """Fromage: steps of a fixed size relative to each array's norm. `update` needs the parameters.

        p <- (p - lr g |p| / |g|) / sqrt(1 + lr**2)

    Source: Bernstein et al., "On the distance between two neural networks", 2020.

    Args:
        learning_rate: positive number, or a schedule of the step.
        min_norm: least value that norms are taken to have, >= 0.

    Returns:
        The transformation, whose states have the fields `trust`, `schedule`, `decay`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.fromage(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0415,  0.2294], dtype=float32)
    """

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
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Mask | None = True,
    trust_coefficient: Number = 0.001,
    eps: Number = 0.0,
    trust_ratio_mask: Mask | None = True,
    momentum: Number = 0.9,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """LARS: SGD with a rate for each array, for large batches. `update` needs the parameters.

        u = g + weight_decay p,  m <- -lr trust_coefficient |p| / (|u| + eps) u + momentum m,
        update = m

    Source: You et al., "Large batch training of convolutional networks", 2017.

    Args:
        learning_rate: positive number, or a schedule of the step.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the gradient.
        weight_decay_mask, trust_ratio_mask: which parameters decay, and which have their own rate:
            a tree of bools, or a function that gives it, of the parameters or of (path, leaf).
        trust_coefficient: positive factor of the ratio of norms.
        eps: number >= 0 added to the norm of the update.
        momentum: decay rate of the sum of updates, in [0, 1).
        nesterov: whether the momentum is taken one step ahead.

    Returns:
        The transformation, whose states have the fields `decay`, `trust`, `schedule`, `momentum`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.lars(0.1, trust_coefficient=1.0)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0368,  0.2206], dtype=float32)
    """
    trust = transform.scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps)
    return optimizer(
        "lars",
        decay=add_decayed_weights(weight_decay, weight_decay_mask),
        trust=masked(trust, trust_ratio_mask),
        schedule=scale_by_learning_rate(learning_rate),
        momentum=transform.trace(momentum, nesterov),
    )


def noisy_sgd(
    learning_rate: ScalarOrSchedule,
    eta: Number = 0.01,
    gamma: Number = 0.55,
    key: Key | int | None = None,
    *,
    seed: Key | int | None = None,
) -> GradientTransformationExtraArgs:
    """SGD on gradients with Gaussian noise that fades.

        update = -lr (g + n),  n normal with variance eta / t**gamma at step t = 1, 2, ...

    Source: Neelakantan et al., "Adding gradient noise improves learning for very deep networks",
    2015.

    Args:
        learning_rate: positive number, or a schedule of the step.
        eta: variance of the noise at the first step, >= 0.
        gamma: exponent with which the variance fades, >= 0.
        key: random key or seed of the noise; None: 0.
        seed: another name for it.

    Returns:
        The transformation, whose states have the fields `noise`, `schedule`.

    Raises:
        ArgumentError: both `key` and `seed` are given.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.noisy_sgd(0.1, eta=0.0)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    return optimizer(
        "noisy_sgd",
        noise=add_noise(eta, gamma, key, seed=seed),
        schedule=scale_by_learning_rate(learning_rate),
    )


def sign_sgd(learning_rate: ScalarOrSchedule) -> GradientTransformationExtraArgs:
    """SGD with the signs of gradients, which are cheap to communicate.

        update = -lr sign(g)

    Source: Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018.

    Args:
        learning_rate: positive number, or a schedule of the step.

    Returns:
        The transformation, whose states have the fields `sign`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.sign_sgd(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    return optimizer(
        "sign_sgd", sign=transform.scale_by_sign(), schedule=scale_by_learning_rate(learning_rate)
    )


def signum(
    learning_rate: ScalarOrSchedule, beta: Number = 0.9, accumulator_dtype: DTypeLike | None = None
) -> GradientTransformationExtraArgs:
    """SGD with the signs of the gradients' moving mean.

        m <- beta m + (1 - beta) g,  update = -lr sign(m)

    Source: Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018.

    Args:
        learning_rate: positive number, or a schedule of the step.
        beta: decay rate of the mean, in [0, 1).
        accumulator_dtype: dtype of the mean; None: the parameters', and at least float32.

    Returns:
        The transformation, whose states have the fields `momentum`, `sign`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.signum(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    return optimizer(
        "signum",
        momentum=transform.ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        sign=transform.scale_by_sign(),
        schedule=scale_by_learning_rate(learning_rate),
    )


def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule, alpha: Number = 1.0, beta: Number = 1.0
) -> GradientTransformationExtraArgs:
    """Gradient descent that extrapolates from the last two gradients, for games and saddle points.

        update = -lr ((alpha + beta) g - beta previous g); at first the previous g is g

    Source: Mokhtari et al., "A unified analysis of extra-gradient and optimistic gradient methods",
    2020.

    Args:
        learning_rate: positive number, or a schedule of the step.
        alpha: weight of the gradient, positive.
        beta: weight of its change, >= 0.

    Returns:
        The transformation, whose states have the fields `optimistic`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.optimistic_gradient_descent(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    return optimizer(
        "optimistic_gradient_descent",
        optimistic=scale_by_optimistic_gradient(alpha, beta),
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
    """RMSProp: gradients over the root of their moving mean square, with momentum if it is given.

        v <- decay v + (1 - decay) |g|**2,  u = -lr g / sqrt(v + eps),
        m <- u + momentum m,  update = m

    Source: Hinton, "Neural networks for machine learning", lecture 6, 2012; `centered`: Graves,
    "Generating sequences with recurrent neural networks", 2013.

    Args:
        learning_rate: positive number, or a schedule of the step.
        decay: decay rate of the mean, in [0, 1).
        eps: positive number added to the denominator.
        initial_scale: v before the first step, >= 0.
        eps_in_sqrt: whether `eps` is added inside the root.
        centered: whether the variance v - (mean of g)**2 takes the place of v.
        momentum: decay rate of the sum of updates, in [0, 1); None: no momentum.
        nesterov: whether the momentum is taken one step ahead.
        bias_correction: whether means are divided by 1 - decay**t.

    Returns:
        The transformation, whose states have the fields `rms`, `schedule`, `momentum`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.rmsprop(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.3162,  0.3162], dtype=float32)
    """
    rescale = scale_by_stddev if centered else scale_by_rms
    return optimizer(
        "rmsprop",
        rms=rescale(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        schedule=scale_by_learning_rate(learning_rate),
        momentum=base.identity() if momentum is None else transform.trace(momentum, nesterov),
    )


def sm3(learning_rate: ScalarOrSchedule, momentum: Number = 0.9) -> GradientTransformationExtraArgs:
    """SM3: Adagrad with one accumulator per row and column, for large embeddings.

        v = |g|**2 + min over dimensions of their accumulators,  u = g / sqrt(v + 1e-8),
        accumulator of a dimension <- max of v over the others,
        m <- momentum m + (1 - momentum) u,  update = -lr m

    Source: Anil et al., "Memory-efficient adaptive optimization", 2019.

    Args:
        learning_rate: positive number, or a schedule of the step.
        momentum: decay rate of the mean of updates, in [0, 1).

    Returns:
        The transformation, whose states have the fields `sm3`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.sm3(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.01,  0.01], dtype=float32)
    """
    return optimizer(
        "sm3", sm3=scale_by_sm3(momentum), schedule=scale_by_learning_rate(learning_rate)
    )


def rprop(
    learning_rate: Number,
    eta_minus: Number = 0.5,
    eta_plus: Number = 1.2,
    min_step_size: Number = 1e-6,
    max_step_size: Number = 50.0,
) -> GradientTransformationExtraArgs:
    """Rprop: steps by the gradient's sign, of a size that adapts to its changes; for full batches.

        step <- step * eta_plus where the sign of g stays, step * eta_minus where it changes,
        update = -step sign(g), 0 where it changes

    As in optax, an update is returned one call after its gradient.

    Source: Riedmiller & Braun, "A direct adaptive method for faster backpropagation learning",
    1993.

    Args:
        learning_rate: first step, positive.
        eta_minus: factor of a step whose sign changes, in (0, 1).
        eta_plus: factor of a step whose sign stays, above 1.
        min_step_size, max_step_size: limits of a step, positive, in units of the parameters.

    Returns:
        The transformation, whose states have the fields `rprop`, `sign`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.rprop(0.1)
    >>> _, state = tx.update(g, tx.init(w), w)
    >>> updates, state = tx.update(g, state, w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
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
    """SGD with Polyak's step size, from the loss: `update(grads, state, params, value=loss)`.

        update = -u min((value - f_min) / (|u|**2 + eps), max_lr),  u = scaling g

    Source: Loizou et al., "Stochastic Polyak step-size for SGD", 2021.

    Args:
        max_learning_rate: largest step size, positive.
        scaling: positive number, or a schedule of the step, that multiplies gradients.
        f_min: least value of the loss.
        eps: number >= 0 added to the squared norm.
        variant: "sps", or "sps+", where a loss below `f_min` gives no step (Garrigos et al. 2023).

    Returns:
        The transformation, whose states have the fields `sgd`, `polyak`.

    Raises:
        ArgumentError: `variant` is neither.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.polyak_sgd()
    >>> updates, state = tx.update(g, tx.init(w), w, value=2.0)
    >>> updates.round(4)
    Array([-0.1081,  0.6486], dtype=float32)
    """
    return optimizer(
        "polyak_sgd",
        sgd=sgd(scaling),
        polyak=transform.scale_by_polyak(f_min, max_learning_rate, eps, variant),
    )
