"""Muon: momentum whose matrices are orthogonalized by a Newton-Schulz iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, DTypeLike, PyTree, tree
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, Number, OptState, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import abs_sq, safe_increment
from genesis_fn.optim.optimizers.adam_family import adamw
from genesis_fn.optim.optimizers.moments import first_moment
from genesis_fn.optim.transforms.combine import chain
from genesis_fn.optim.transforms.masking import MaskedNode, partition, per_parameter
from genesis_fn.optim.transforms.transform import (
    add_decayed_weights,
    moment,
    scale_by_learning_rate,
)
from genesis_fn.optim.tree_map_updates import init_moments, is_none, map_updates, zero_count

_STANDARD = (3.4445, -4.7750, 2.0315)
NS_COEFFS: dict[str, Sequence[Any]] = {
    "standard": _STANDARD,
    # One triple per iteration, as tuned for Dion (Ahn et al. 2025).
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}
Coefficients: TypeAlias = str | Sequence[float] | Sequence[Sequence[float]]
Preconditioning: TypeAlias = Literal["frobenius", "spectral", "aol", "schatten"]
# MuonDimensionNumbers, a (prefix) tree of them, or a function that gives one.
DimensionNumbers: TypeAlias = PyTree | Callable[..., PyTree]
_PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")


class MuonDimensionNumbers(NamedTuple):
    """The axes of a parameter that are its matrix's rows (reduced over) and columns (outputs).

    The others are batches. `nn.Linear` weights, [out, in], are MuonDimensionNumbers(1, 0).
    """

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class MuonState(NamedTuple):
    """Steps taken and the momentum."""

    count: Any
    mu: PyTree


def _axes(shape: tuple[int, ...], dims: MuonDimensionNumbers) -> tuple[tuple[int, ...], ...]:
    """Returns (batch axes, reduction axes, output axes) of a parameter."""
    rows, columns = (
        tuple(a % len(shape) for a in ((axes,) if isinstance(axes, int) else axes)) for axes in dims
    )
    if len(shape) < 2 or {*rows} & {*columns}:
        raise ShapeError(f"Muon: a parameter of shape {shape} is not a matrix with {dims}")
    batch = tuple(a for a in range(len(shape)) if a not in rows + columns)
    return batch, rows, columns


def _sizes(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[a] for a in axes)


def _transposed(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)


def _gram(x: Array) -> Array:
    return x @ jnp.conj(_transposed(x)) if jnp.iscomplexobj(x) else x @ _transposed(x)


def _coefficients(ns_coeffs: Coefficients, ns_steps: int) -> list[tuple[float, float, float]]:
    """Returns one triple per iteration."""
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in NS_COEFFS:
            raise ArgumentError(
                f"ns_coeffs is one of {list(NS_COEFFS)} or numbers, got {ns_coeffs!r}"
            )
        ns_coeffs = NS_COEFFS[ns_coeffs]
    table = np.asarray(ns_coeffs, np.float64)
    if table.ndim not in (1, 2) or table.shape[-1] != 3:
        raise ArgumentError(f"ns_coeffs must have shape (3,) or (n, 3), got {table.shape}")
    if table.ndim == 1:
        return [tuple(table.tolist())] * ns_steps
    if len(table) > ns_steps:
        raise ArgumentError(f"ns_coeffs has {len(table)} rows for ns_steps={ns_steps} iterations")
    return [tuple(row) for row in table.tolist()]


def _iterate(x: Array, gram: Array, coeffs: tuple[float, float, float]) -> Array:
    a, b, c = coeffs
    return a * x + (b * gram + c * (gram @ gram)) @ x


def _preconditioned(x: Array, preconditioning: str, eps: Number) -> tuple[Array, Array]:
    """Returns x scaled to singular values of at most about 1, and its Gram matrix."""
    if preconditioning == "frobenius":
        x = x / (jnp.sqrt(jnp.sum(abs_sq(x), axis=(-2, -1), keepdims=True)) + eps)
        return x, _gram(x)
    if preconditioning == "spectral":
        x = x / (jnp.linalg.norm(x, ord=2, axis=(-2, -1), keepdims=True) + eps)
        return x, _gram(x)
    gram = _gram(x)
    if preconditioning == "aol":
        s = 1.0 / jnp.sqrt(jnp.maximum(jnp.sum(jnp.abs(gram), axis=-1, keepdims=True), eps))
        return x * s, gram * s * _transposed(s)
    size = jnp.sqrt(jnp.sum(abs_sq(gram), axis=(-2, -1), keepdims=True))
    s = 1.0 / jnp.sqrt(jnp.maximum(size, eps))
    return x * s, gram * s**2


def orthogonalize_via_newton_schulz(
    x: Array,
    ns_coeffs: Coefficients = _STANDARD,
    ns_steps: int = 5,
    preconditioning: Preconditioning = "frobenius",
    eps: Number = 1e-8,
    dimension_numbers: MuonDimensionNumbers | None = None,
) -> Array:
    """Approximates the orthogonal factor of a matrix by a Newton-Schulz iteration.

        x <- a x + (b A + c A A) x,  A = x x^T (x x^H where x is complex)

    The tuned coefficients bring singular values near 1, not to 1.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; "dion":
    Ahn et al., 2025; "aol" and "schatten": Boissin et al., 2025.

    Args:
        x: floating or complex array: a matrix, or batches of them.
        ns_coeffs: the coefficients (a, b, c) of all iterations, a triple for each, or the name of a
            table: "standard" or "dion".
        ns_steps: number of iterations.
        preconditioning: what the matrix is divided by: its norm "frobenius" or "spectral"; "aol"
            rescales rows, "schatten" divides by the root of its Gram matrix's norm.
        eps: positive number added to the divisor.
        dimension_numbers: which axes are rows and columns; others are batches. None: x is a matrix.

    Returns:
        The orthogonalized array, of the shape and dtype of `x`.

    Raises:
        ArgumentError: a name is unknown, or the coefficients do not fit.
        ShapeError: `x` is no matrix, and `dimension_numbers` are not given or do not fit.

    >>> x = jnp.array([[3.0, 1.0], [0.0, 2.0]])
    >>> q = optim.orthogonalize_via_newton_schulz(x)
    >>> jnp.abs(q @ q.T).round(1)
    Array([[0.7, 0. ],
           [0. , 0.7]], dtype=float32)
    """
    if preconditioning not in _PRECONDITIONINGS:
        raise ArgumentError(
            f"preconditioning is one of {_PRECONDITIONINGS}, got {preconditioning!r}"
        )
    if dimension_numbers is None:
        if x.ndim != 2:
            raise ShapeError(f"a parameter of shape {x.shape} needs MuonDimensionNumbers")
        dimension_numbers = MuonDimensionNumbers()
    shape = x.shape
    batch, rows, columns = _axes(shape, dimension_numbers)
    order = batch + rows + columns
    counts = [math.prod(_sizes(shape, axes)) for axes in (batch, rows, columns)]
    x = jnp.transpose(x, order).reshape(counts)
    tall = counts[1] > counts[2]
    x = _transposed(x) if tall else x
    x, gram = _preconditioned(x, preconditioning, eps)
    for i, coeffs in enumerate(_coefficients(ns_coeffs, ns_steps)):
        x = _iterate(x, gram if i == 0 else _gram(x), coeffs)
    x = _transposed(x) if tall else x
    back = tuple(int(a) for a in np.argsort(order))
    return jnp.transpose(x.reshape(_sizes(shape, order)), back)


def _is_dims(x: Any) -> bool:
    return x is None or isinstance(x, (MuonDimensionNumbers, MaskedNode))


def _dims_of(spec: DimensionNumbers | None, params: Params) -> PyTree:
    """Returns MuonDimensionNumbers (or None) per leaf, for a specification that may be a prefix."""
    dims = per_parameter(spec, params)
    return tree.map(
        lambda d, sub: tree.map(lambda _: d, sub, is_leaf=is_none), dims, params, is_leaf=_is_dims
    )


def scale_by_shape(
    weight_dimension_numbers: DimensionNumbers | None = None, consistent_rms: Number | None = None
) -> base.GradientTransformation:
    """Scales updates of matrices by their shapes, so that learning rates carry over between widths.

        update = g sqrt(max(1, fan_out / fan_in)), or with `consistent_rms`
        g consistent_rms sqrt(max(fan_in, fan_out))

    Source: Bernstein & Newhouse, "Modular duality in deep learning", 2024; `consistent_rms`: Liu et
    al., "Muon is scalable for LLM training", 2025.

    Args:
        weight_dimension_numbers: the rows and columns of each parameter: MuonDimensionNumbers, a
            tree of them, or a function of the parameters that gives it; None: those of a matrix
            [in, out].
        consistent_rms: positive rms of the updates, 0.2 as for AdamW; None: the first formula.

    Returns:
        The transformation, without a state.

    >>> g, tx = jnp.ones((1, 4)), optim.scale_by_shape()
    >>> updates, state = tx.update(g, tx.init(g))
    >>> updates
    Array([[2., 2., 2., 2.]], dtype=float32)
    """

    def leaf(u: Array, dims: MuonDimensionNumbers | None) -> Array:
        _, rows, columns = _axes(u.shape, dims or MuonDimensionNumbers())
        fan_in, fan_out = (math.prod(_sizes(u.shape, axes)) for axes in (rows, columns))
        if consistent_rms is None:
            return math.sqrt(max(1, fan_out / max(fan_in, 1))) * u
        return math.sqrt(max(fan_in, fan_out)) * consistent_rms * u

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        dims = _dims_of(weight_dimension_numbers, updates)
        return map_updates(leaf, updates, extras=(dims,)), state

    return base.GradientTransformation(base.init_empty_state, update)


def scale_by_muon(
    ns_coeffs: Coefficients = _STANDARD,
    ns_steps: int = 5,
    beta: Number = 0.95,
    eps: Number = 1e-8,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> base.GradientTransformation:
    """Orthogonalizes the momentum of matrices, as Muon does.

        m <- beta m + (1 - beta) g,  update = orthogonal factor of m_hat

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.

    Args:
        ns_coeffs: the coefficients (a, b, c) of all iterations, a triple for each, or the name of a
            table: "standard" or "dion".
        ns_steps: number of iterations.
        beta: decay rate of the momentum, in [0, 1).
        eps: positive number added to the norm that matrices are divided by.
        mu_dtype: dtype of the momentum; None: the parameters', and at least float32.
        nesterov: whether the momentum is taken one step ahead.
        adaptive: whether steps are multiplied by their inner product with the momentum.
        preconditioning: what the matrix is divided by: its norm "frobenius" or "spectral"; "aol"
            rescales rows, "schatten" divides by the root of its Gram matrix's norm.
        weight_dimension_numbers: the rows and columns of each parameter: MuonDimensionNumbers, a
            tree of them, or a function of the parameters that gives it; None: those of a matrix
            [in, out].

    Returns:
        The transformation, whose states are MuonState(count, mu).

    Raises:
        ArgumentError: the coefficients are unknown or do not fit.

    >>> g, tx = jnp.array([[3.0, 1.0], [0.0, 2.0]]), optim.scale_by_muon()
    >>> updates, state = tx.update(g, tx.init(g))
    >>> jnp.abs(updates @ updates.T).round(1)
    Array([[0.7, 0. ],
           [0. , 0.7]], dtype=float32)
    """
    coeffs = _coefficients(ns_coeffs, ns_steps)

    def init(params: Params) -> MuonState:
        return MuonState(zero_count(), init_moments(params, dtype=mu_dtype))

    def update(
        updates: Updates, state: MuonState, params: Params | None = None
    ) -> tuple[Updates, MuonState]:
        count = safe_increment(state.count)
        first = first_moment(beta, count, nesterov)

        def leaf(g: Array, mu: Array, dims: MuonDimensionNumbers | None) -> tuple[Array, ...]:
            mu = moment(g, mu, beta)
            m = first(g, mu)
            o = orthogonalize_via_newton_schulz(m, coeffs, len(coeffs), preconditioning, eps, dims)
            return (jnp.sum(jnp.conj(m) * o) * o if adaptive else o), mu

        dims = _dims_of(weight_dimension_numbers, updates)
        updates, mu = map_updates(leaf, updates, state.mu, extras=(dims,))
        return updates, MuonState(count, mu)

    return base.GradientTransformation(init, update, state=MuonState)


def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Coefficients = _STANDARD,
    ns_steps: int = 5,
    beta: Number = 0.95,
    eps: Number = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Mask | None = None,
    mu_dtype: DTypeLike | None = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: Number = 0.9,
    adam_b2: Number = 0.999,
    adam_eps_root: Number = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: DimensionNumbers | None = None,
    consistent_rms: Number | None = None,
) -> base.GradientTransformationExtraArgs:
    """Muon for matrices, AdamW for the other parameters. `update` needs the parameters.

        update = -lr (o sqrt(max(1, fan_out / fan_in)) + weight_decay p),
        o = orthogonal factor of the momentum, by `orthogonalize_via_newton_schulz`

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.

    Args:
        learning_rate: positive number, or a schedule of the step.
        ns_coeffs: the coefficients (a, b, c) of all iterations, a triple for each, or the name of a
            table: "standard" or "dion".
        ns_steps: number of iterations.
        beta: decay rate of the momentum, in [0, 1).
        eps: positive number added to the norm that matrices are divided by, and AdamW's `eps`.
        weight_decay: number >= 0, or a schedule: the share of a matrix added to the update before
            the learning rate.
        weight_decay_mask: which parameters decay: a tree of bools, or a function that gives it, of
            the parameters or of (path, leaf); None: all.
        mu_dtype: dtype of momenta; None: the parameters', and at least float32.
        nesterov: whether momenta are taken one step ahead.
        adaptive: whether steps are multiplied by their inner product with the momentum.
        preconditioning: what the matrix is divided by: its norm "frobenius" or "spectral"; "aol"
            rescales rows, "schatten" divides by the root of its Gram matrix's norm.
        adam_b1, adam_b2: decay rates of AdamW's moments, in [0, 1).
        adam_eps_root: number >= 0 added inside AdamW's root.
        adam_weight_decay: number >= 0, or a schedule: AdamW's weight decay.
        adam_learning_rate: AdamW's learning rate, or a schedule of it; None: `learning_rate`.
        muon_weight_dimension_numbers: MuonDimensionNumbers, a tree of them with None for AdamW's
            parameters, or a function of the parameters that gives it; None: arrays of two
            dimensions are matrices [in, out]; `nn.Linear` weights, [out, in], need
            MuonDimensionNumbers(1, 0).
        consistent_rms: positive rms of the updates of matrices; None: the formula above.

    Returns:
        The transformation, whose states are PartitionState({"muon": ..., "adam": ...}).

    >>> params = {"weight": jnp.eye(2), "bias": jnp.zeros(2)}
    >>> tx = optim.muon(0.1, consistent_rms=0.2)
    >>> updates, state = tx.update(gf.tree.map(jnp.ones_like, params), tx.init(params), params)
    >>> updates["bias"].round(4)
    Array([-0.1474, -0.1474], dtype=float32)
    """
    spec = muon_weight_dimension_numbers

    def dims(params: Params) -> PyTree:
        if spec is not None:
            return _dims_of(spec, params)
        return tree.map(
            lambda p: MuonDimensionNumbers() if getattr(p, "ndim", 0) == 2 else None, params
        )

    def labels(params: Params) -> PyTree:
        _, treedef = tree.flatten(params, is_none)
        table: list[Any] = treedef.flatten_up_to(dims(params))
        return tree.unflatten(treedef, ["adam" if d is None else "muon" for d in table])

    of_matrices = chain(
        muon=scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=dims,
        ),
        shape=scale_by_shape(dims, consistent_rms),
        decay=add_decayed_weights(weight_decay, weight_decay_mask),
        schedule=scale_by_learning_rate(learning_rate),
    )
    of_others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov,
    )
    return partition({"muon": of_matrices, "adam": of_others}, labels)
