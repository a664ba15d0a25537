"""Adam and its relatives: the chains of `alias.py` that step along an adapted mean of gradients.

Formulas are written as in `alias.py`.
"""

from __future__ import annotations

from genesis_fn import DTypeLike, Key
from genesis_fn.errors import ArgumentError
from genesis_fn.optim.annotations import Mask, Number, ScalarOrSchedule
from genesis_fn.optim.base import GradientTransformationExtraArgs
from genesis_fn.optim.optimizers.adaptive import scale_by_optimistic_gradient
from genesis_fn.optim.optimizers.alias import last_rounding
from genesis_fn.optim.optimizers.moments import (
    scale_by_adam,
    scale_by_adamax,
    scale_by_adan,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_novograd,
    scale_by_radam,
    scale_by_yogi,
)
from genesis_fn.optim.transforms import transform
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.transform import add_decayed_weights, scale_by_learning_rate


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
    """Adam: the gradient's moving mean over the root of its moving mean square.

        m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) |g|**2,
        update = -lr m_hat / (sqrt(v_hat + eps_root) + eps),
        with m_hat = m / (1 - b1**t) and v_hat = v / (1 - b2**t) at step t = 1, 2, ...

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", 2014; `nesterov`: Dozat,
    "Incorporating Nesterov momentum into Adam", 2016.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: whether the first moment is taken one step ahead.
        stochastic_round: True, a seed or a key: parameters of 16 bits or fewer are rounded at
            random, see `optim.stochastic_round`.

    Returns:
        The transformation, whose states have the fields `adam`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adam(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    return optimizer(
        "adam",
        adam=scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        schedule=scale_by_learning_rate(learning_rate),
        **last_rounding(stochastic_round),
    )


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Mask | None = None,
    *,
    nesterov: bool = False,
    stochastic_round: bool | int | Key = False,
) -> GradientTransformationExtraArgs:
    """Adam with weight decay apart from the gradient. `update` needs the parameters.

        update = -lr (m_hat / (sqrt(v_hat + eps_root) + eps) + weight_decay p), as in `adam`

    Source: Loshchilov & Hutter, "Decoupled weight decay regularization", 2017.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.
        nesterov: whether the first moment is taken one step ahead.
        stochastic_round: True, a seed or a key: parameters of 16 bits or fewer are rounded at
            random, see `optim.stochastic_round`.

    Returns:
        The transformation, whose states have the fields `adam`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adamw(0.1, weight_decay=0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.11,  0.12], dtype=float32)
    """
    return optimizer(
        "adamw",
        adam=scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
        **last_rounding(stochastic_round),
    )


def nadam(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    stochastic_round: bool | int | Key = False,
) -> GradientTransformationExtraArgs:
    """Adam with Nesterov momentum: the first moment is taken one step ahead.

        update = -lr m_hat / (sqrt(v_hat + eps_root) + eps),
        with m_hat = b1 m / (1 - b1**(t + 1)) + (1 - b1) g / (1 - b1**t), m and v_hat as in `adam`

    Source: Dozat, "Incorporating Nesterov momentum into Adam", 2016.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: False gives `adam`.
        stochastic_round: True, a seed or a key: parameters of 16 bits or fewer are rounded at
            random, see `optim.stochastic_round`.

    Returns:
        The transformation, whose states are those of `adam`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.nadam(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1474,  0.1474], dtype=float32)
    """
    return adam(
        learning_rate,
        b1,
        b2,
        eps,
        eps_root,
        mu_dtype,
        nesterov=nesterov,
        stochastic_round=stochastic_round,
    )


def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: DTypeLike | None = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Mask | None = None,
    *,
    nesterov: bool = True,
    stochastic_round: bool | int | Key = False,
) -> GradientTransformationExtraArgs:
    """AdamW with Nesterov momentum. `update` needs the parameters.

        update = -lr (m_hat / (sqrt(v_hat + eps_root) + eps) + weight_decay p),
        with m_hat = b1 m / (1 - b1**(t + 1)) + (1 - b1) g / (1 - b1**t), m and v_hat as in `adam`

    Source: Dozat, "Incorporating Nesterov momentum into Adam", 2016.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.
        nesterov: False gives `adamw`.
        stochastic_round: True, a seed or a key: parameters of 16 bits or fewer are rounded at
            random, see `optim.stochastic_round`.

    Returns:
        The transformation, whose states are those of `adamw`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.nadamw(0.1, weight_decay=0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1574,  0.1674], dtype=float32)
    """
    return adamw(
        learning_rate,
        b1,
        b2,
        eps,
        eps_root,
        mu_dtype,
        weight_decay,
        mask,
        nesterov=nesterov,
        stochastic_round=stochastic_round,
    )


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
    """Adam dividing by the largest second moment so far, which makes steps shrink.

        v_max <- max(v_max, v_hat),  update = -lr m_hat / (sqrt(v_max + eps_root) + eps)

    Source: Reddi et al., "On the convergence of Adam and beyond", 2018.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        bias_correction_mu, bias_correction_nu: whether the moment is divided by 1 - b**t.

    Returns:
        The transformation, whose states have the fields `amsgrad`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.amsgrad(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
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
    """Adam with the infinity norm of past gradients for their root mean square.

        u <- max(b2 u, |g| + eps),  update = -lr m_hat / u

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", 2014, section 7.1.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first moment and of the largest gradient, in [0, 1).
        eps: positive number added to |g|.

    Returns:
        The transformation, whose states have the fields `adamax`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adamax(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
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
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adamax with decoupled weight decay. `update` needs the parameters.

        u <- max(b2 u, |g| + eps),  update = -lr (m_hat / u + weight_decay p)

    Source: Kingma & Ba 2014, section 7.1; Loshchilov & Hutter, "Decoupled weight decay", 2017.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first moment and of the largest gradient, in [0, 1).
        eps: positive number added to |g|.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `adamax`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adamaxw(0.1, weight_decay=0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.11,  0.12], dtype=float32)
    """
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
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: Mask | None = None,
    *,
    nesterov: bool = False,
) -> GradientTransformationExtraArgs:
    """Adam dividing by the gradient's deviation from its moving mean, instead of its size.

        v <- b2 v + (1 - b2) |g - m|**2 + eps_root,
        update = -lr (m_hat / (sqrt(v_hat) + eps) + weight_decay p)

    Source: Zhuang et al., "AdaBelief optimizer: adapting stepsizes by the belief in observed
    gradients", 2020.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: positive number added to the second moment at every step.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate; None for none.
        weight_decay_mask: which parameters decay: a tree of bools, or a function that gives it, of
            (path, leaf) or of the parameters. None: all.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states have a field for each part that is used, as `belief`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adabelief(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1111,  0.1111], dtype=float32)
    """
    decay = {}
    if weight_decay is not None:
        decay["decay"] = add_decayed_weights(weight_decay, weight_decay_mask)
    return optimizer(
        "adabelief",
        belief=scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov),
        **decay,
        schedule=scale_by_learning_rate(learning_rate),
    )


def adan(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.98,
    b2: Number = 0.92,
    b3: Number = 0.99,
    eps: Number = 1e-8,
    eps_root: Number = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """Adan: Nesterov momentum from gradients and their changes. `update` needs the parameters.

        d = g - previous g, 0 at the first step;
        m, v, n: moving means of g, d and |g + (1 - b2) d|**2;
        update = -lr ((m_hat + (1 - b2) v_hat) / (sqrt(n_hat + eps_root) + eps)
                                 + weight_decay p)

    Source: Xie et al., "Adan: adaptive Nesterov momentum algorithm", 2022.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2, b3: decay rates of m, v and n, in [0, 1); 1 - b in the paper.
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `adan`, `decay`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.adan(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1,  0.1], dtype=float32)
    """
    return optimizer(
        "adan",
        adan=scale_by_adan(b1, b2, b3, eps, eps_root),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )


def lamb(
    learning_rate: ScalarOrSchedule,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-6,
    eps_root: Number = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
) -> GradientTransformationExtraArgs:
    """LAMB: Adam with a rate for each array, for large batches. `update` needs the parameters.

        u = m_hat / (sqrt(v_hat + eps_root) + eps) + weight_decay p,
        update = -lr u |p| / |u|

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes",
    2019.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.

    Returns:
        The transformation, whose states have the fields `adam`, `decay`, `trust`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.lamb(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1581,  0.1581], dtype=float32)
    """
    return optimizer(
        "lamb",
        adam=scale_by_adam(b1, b2, eps, eps_root),
        decay=add_decayed_weights(weight_decay, mask),
        trust=transform.scale_by_trust_ratio(),
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
    """NovoGrad: Adam with one second moment for each array. `update` needs the parameters.

        v <- b2 v + (1 - b2) |g|**2 (|g|**2 at first),
        m <- b1 m + g / (sqrt(v + eps_root) + eps) + weight_decay p,  update = -lr m

    Source: Ginsburg et al., "Stochastic gradient methods with layer-wise adaptive moments", 2019.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        weight_decay: number >= 0: the share of the parameter added to the normalized gradient.

    Returns:
        The transformation, whose states have the fields `novograd`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.novograd(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0164,  0.0986], dtype=float32)
    """
    return optimizer(
        "novograd",
        novograd=scale_by_novograd(b1, b2, eps, eps_root, weight_decay),
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
    """Adam that extrapolates from its last two updates, for games.

        update = -((lr + optimism) u - optimism previous u),  u that of Adam

    Source: Daskalakis et al., "Training GANs with optimism", 2017. `optimistic_adam_v2` takes
    schedules.

    Args:
        learning_rate: positive number.
        optimism: weight of the change of u, >= 0; None: `learning_rate`.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states have the fields `adam`, `optimistic`, `schedule`.

    Raises:
        ArgumentError: `learning_rate` is a schedule.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.optimistic_adam(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1474,  0.1474], dtype=float32)
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
    """Adam that extrapolates from its last two updates, for games.

        update = -lr ((alpha + beta) u - beta previous u),  u that of Adam

    Source: Daskalakis et al., "Training GANs with optimism", 2017.

    Args:
        learning_rate: positive number, or a schedule of the step.
        alpha: weight of u, positive.
        beta: weight of its change, >= 0.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        mu_dtype: dtype of the first moment; None: the parameters', and at least float32.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states have the fields `adam`, `optimistic`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.optimistic_adam_v2(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.1474,  0.1474], dtype=float32)
    """
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
    """Adam without adaptive steps while the variance of its second moment is too large: no warm-up.

        update = -lr r m_hat / (sqrt(v_hat + eps_root) + eps) if rho >= threshold else -lr m_hat,
        with rho = rho_inf - 2 t b2**t / (1 - b2**t), rho_inf = 2 / (1 - b2) - 1,
        r**2 = (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)

    Source: Liu et al., "On the variance of the adaptive learning rate and beyond", 2019.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.
        eps_root: number >= 0 added inside the root; positive where updates are differentiated.
        threshold: least rho, the length of the moving mean in steps, for adaptive steps; at least
            4.
        nesterov: whether the first moment is taken one step ahead.

    Returns:
        The transformation, whose states have the fields `radam`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.radam(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.05,  0.3 ], dtype=float32)
    """
    return optimizer(
        "radam",
        radam=scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov),
        schedule=scale_by_learning_rate(learning_rate),
    )


def yogi(
    learning_rate: ScalarOrSchedule, b1: Number = 0.9, b2: Number = 0.999, eps: Number = 1e-3
) -> GradientTransformationExtraArgs:
    """Adam whose second moment changes additively, so that it cannot fall fast.

        v <- v - (1 - b2) sign(v - |g|**2) |g|**2,  update = -lr m_hat / (sqrt(v_hat) + eps)

    Source: Zaheer et al., "Adaptive methods for nonconvex optimization", 2018.

    Args:
        learning_rate: positive number, or a schedule of the step.
        b1, b2: decay rates of the first and second moments, in [0, 1).
        eps: positive number added to the denominator.

    Returns:
        The transformation, whose states have the fields `yogi`, `schedule`.

    >>> w, g = jnp.array([1.0, -2.0]), jnp.array([0.5, -3.0])
    >>> tx = optim.yogi(0.1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates.round(4)
    Array([-0.0996,  0.1   ], dtype=float32)
    """
    return optimizer(
        "yogi", yogi=scale_by_yogi(b1, b2, eps), schedule=scale_by_learning_rate(learning_rate)
    )
