"""GaLore: optimizers whose states are as small as low-rank projections of the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree, tree
from genesis_fn.errors import ArgumentError, ShapeError
from genesis_fn.extend import as_array
from genesis_fn.lax import cond
from genesis_fn.optim import base
from genesis_fn.optim.annotations import Mask, OptState, Params, ScalarOrSchedule, Updates
from genesis_fn.optim.numerics import safe_increment
from genesis_fn.optim.optimizers.moments import scale_by_adam
from genesis_fn.optim.state.state_access import ParamsPlaceholder
from genesis_fn.optim.transforms.combine import optimizer
from genesis_fn.optim.transforms.masking import MaskedNode, per_parameter
from genesis_fn.optim.transforms.transform import add_decayed_weights, scale_by_learning_rate
from genesis_fn.optim.tree_map_updates import (
    is_inexact,
    is_none,
    map_updates,
    wide_dtype,
    zero_count,
)

# GaLoreDimensionNumbers, a (prefix) tree of them, or a function that gives one.
DimensionNumbers: TypeAlias = PyTree | Callable[..., PyTree]


class GaLoreDimensionNumbers(NamedTuple):
    """The axes of a parameter that are its matrix's rows (reduced over) and columns (outputs)."""

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class GaLoreState(NamedTuple):
    """Steps taken, the base's state for the projected gradients, and the projections."""

    count: Any
    base_optimizer_state: OptState
    projector: PyTree


class _Matrix:
    """How an array of a shape is the matrix that dimension numbers say, and its projection."""

    def __init__(self, shape: tuple[int, ...], dims: GaLoreDimensionNumbers, rank: int) -> None:
        axes = [(a,) if isinstance(a, int) else tuple(a) for a in dims]
        rows, columns = (tuple(a % max(len(shape), 1) for a in group) for group in axes)
        self.order = rows + columns
        if len(shape) < 2 or sorted(self.order) != list(range(len(shape))):
            raise ShapeError(
                f"galore: a parameter of shape {shape} is not a matrix with {dims}\n"
                "  every axis is one of the rows or of the columns; give None for a parameter that "
                "is not to be projected"
            )
        self.rows, self.columns = (math.prod(shape[a] for a in g) for g in (rows, columns))
        self.transposed_shape = tuple(shape[a] for a in self.order)
        self.tall = self.rows >= self.columns
        self.rank = min(rank, self.rows, self.columns)

    def of(self, x: Array) -> Array:
        """Returns the matrix of an array."""
        return jnp.transpose(x, self.order).reshape((self.rows, self.columns))

    def array(self, matrix: Array) -> Array:
        """Returns the array of a matrix."""
        back = tuple(int(a) for a in np.argsort(self.order))
        return jnp.transpose(matrix.reshape(self.transposed_shape), back)

    def projector_shape(self) -> tuple[int, int]:
        """Returns the shape of the projection: of the longer side."""
        return max(self.rows, self.columns), self.rank

    def projected_shape(self) -> tuple[int, int]:
        """Returns the shape of what the base optimizer sees."""
        return (self.rank, self.columns) if self.tall else (self.rows, self.rank)

    def basis(self, matrix: Array) -> Array:
        """Returns the leading singular vectors of the longer side."""
        u, _, vh = jnp.linalg.svd(matrix, full_matrices=False)
        return u[:, : self.rank] if self.tall else jnp.conj(vh[: self.rank]).T

    def project(self, matrix: Array, basis: Array) -> Array:
        """Returns the matrix's coordinates in a basis."""
        return jnp.conj(basis).T @ matrix if self.tall else matrix @ basis

    def expand(self, low: Array, basis: Array) -> Array:
        """Returns the matrix of coordinates in a basis."""
        return basis @ low if self.tall else low @ jnp.conj(basis).T


def _is_dims(x: Any) -> bool:
    return x is None or isinstance(x, (GaLoreDimensionNumbers, MaskedNode))


def _dims_of(spec: DimensionNumbers | None, params: Params) -> PyTree:
    """Returns GaLoreDimensionNumbers per leaf, and None for leaves that are not projected."""
    if spec is None or isinstance(spec, GaLoreDimensionNumbers):
        fits = (lambda n: n == 2) if spec is None else (lambda n: n >= 2)
        dims = spec or GaLoreDimensionNumbers()
        return tree.map(
            lambda p: dims if fits(getattr(p, "ndim", 0)) else None, params, is_leaf=is_none
        )
    dims = per_parameter(spec, params)
    return tree.map(
        lambda d, sub: tree.map(lambda _: d, sub, is_leaf=is_none), dims, params, is_leaf=_is_dims
    )


def scale_by_galore(
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: base.GradientTransformation | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> base.GradientTransformation:
    """Applies an optimizer to projections of the matrices' gradients on their leading directions.

        P: the first `rank` singular vectors of g's longer side, every update_proj_gap steps anew,
        update = scale P u(P^T g) of tall matrices, or scale u(g P) P^T of wide ones,
        u the updates of the base optimizer, whose states are as small as its operands

    Source: Zhao et al., "GaLore: memory-efficient LLM training by gradient low-rank projection",
    2024.

    Args:
        rank: positive number of directions.
        update_proj_gap: positive number of steps between projections; states are kept through it.
        scale: factor of the updates of projected parameters.
        base_optimizer: transformation that needs no parameters; None: `scale_by_adam()`. It sees
            other parameters whole.
        weight_dimension_numbers: which axes are rows and columns: GaLoreDimensionNumbers, a tree of
            them with None for what is not projected, or a function of the parameters that gives it;
            None: arrays of two dimensions are matrices.

    Returns:
        The transformation, whose states are GaLoreState(count, base_optimizer_state, projector).

    Raises:
        ArgumentError: `rank` or `update_proj_gap` is no positive integer; or `update` is called
            with a base optimizer that needs the parameters.
        ShapeError: dimension numbers do not fit their parameter.

    >>> w, g = jnp.zeros((2, 2)), jnp.array([[3.0, 0.0], [0.0, 1.0]])
    >>> tx = optim.contrib.scale_by_galore(rank=1, base_optimizer=optim.scale(1.0))
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> jnp.abs(updates).round(4)
    Array([[3., 0.],
           [0., 0.]], dtype=float32)
    """
    numbers: dict[str, Any] = {"rank": rank, "update_proj_gap": update_proj_gap}
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ArgumentError(f"galore: {name} must be a positive integer, got {number!r}")
    inner = base.with_extra_args_support(base_optimizer or scale_by_adam())

    def init(params: Params) -> GaLoreState:
        if isinstance(params, ParamsPlaceholder):
            return GaLoreState(zero_count(), inner.init(params), params)

        def zeros(p: Any, dims: Any, projection: bool) -> Array | None:
            p = p if p is None else as_array(p)
            if p is None or not is_inexact(p):
                return p if not projection else None
            if not isinstance(dims, GaLoreDimensionNumbers):
                return jnp.zeros((0, 0), wide_dtype(p.dtype)) if projection else p
            matrix = _Matrix(p.shape, dims, rank)
            shape = matrix.projector_shape() if projection else matrix.projected_shape()
            return jnp.zeros(shape, wide_dtype(p.dtype) if projection else p.dtype)

        dims = _dims_of(weight_dimension_numbers, params)
        projectors, projected = (
            tree.map(lambda p, d: zeros(p, d, kind), params, dims, is_leaf=is_none)
            for kind in (True, False)
        )
        return GaLoreState(zero_count(), inner.init(projected), projectors)

    def update(
        updates: Updates, state: GaLoreState, params: Params | None = None
    ) -> tuple[Updates, GaLoreState]:
        renew = state.count % update_proj_gap == 0

        def project(g: Array, basis: Array, dims: Any) -> tuple[Array, Array]:
            if not isinstance(dims, GaLoreDimensionNumbers):
                return g, basis
            matrix = _Matrix(g.shape, dims, rank)
            x = matrix.of(g)
            basis = cond(renew, lambda: matrix.basis(x), lambda: basis)
            return matrix.project(x, basis), basis

        def expand(u: Array, basis: Array, g: Array, dims: Any) -> Array:
            if not isinstance(dims, GaLoreDimensionNumbers):
                return u
            matrix = _Matrix(g.shape, dims, rank)
            return scale * matrix.array(matrix.expand(u, basis))

        dims = _dims_of(weight_dimension_numbers, updates)
        low, projectors = map_updates(project, updates, state.projector, extras=(dims,))
        steps, kept = inner.update(low, state.base_optimizer_state)
        new = map_updates(expand, steps, extras=(projectors, updates, dims))
        return new, GaLoreState(safe_increment(state.count), kept, projectors)

    return base.GradientTransformation(init, update, state=GaLoreState)


def galore(
    learning_rate: ScalarOrSchedule,
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: base.GradientTransformation | None = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Mask | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> base.GradientTransformationExtraArgs:
    """GaLore: Adam in the leading directions of matrices' gradients, with little memory for states.

        P: the first `rank` singular vectors of g's longer side, every update_proj_gap steps anew,
        update = -lr (scale P u(P^T g) + weight_decay p) of tall matrices, with u(g P) P^T of wide,
        u the updates of the base optimizer

    Source: Zhao et al., "GaLore: memory-efficient LLM training by gradient low-rank projection",
    2024. `update` needs the parameters.

    Args:
        learning_rate: positive number, or a schedule of the step.
        rank: positive number of directions.
        update_proj_gap: positive number of steps between projections; states are kept through it.
        scale: factor of the updates of projected parameters.
        base_optimizer: transformation that needs no parameters; None: `scale_by_adam()`. It sees
            other parameters whole.
        weight_decay: number >= 0, or a schedule: the share of the parameter added to the update
            before the learning rate.
        mask: which parameters decay: a tree of bools, or a function that gives it, of the
            parameters or of (path, leaf); None: all.
        weight_dimension_numbers: which axes are rows and columns: GaLoreDimensionNumbers, a tree of
            them with None for what is not projected, or a function of the parameters that gives it;
            None: arrays of two dimensions are matrices.

    Returns:
        The transformation, whose states have the fields `galore`, `decay`, `schedule`.

    Raises:
        ArgumentError: `rank` or `update_proj_gap` is no positive integer; or `update` is called
            with a base optimizer that needs the parameters.
        ShapeError: dimension numbers do not fit their parameter.

    >>> w, g = jnp.zeros((2, 2)), jnp.array([[3.0, 0.0], [0.0, 1.0]])
    >>> tx = optim.contrib.galore(0.1, rank=1)
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates[0, 0].round(4), state.galore.projector.shape
    (Array(-0.1, dtype=float32), (2, 1))
    """
    return optimizer(
        "galore",
        galore=scale_by_galore(
            rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers
        ),
        decay=add_decayed_weights(weight_decay, mask),
        schedule=scale_by_learning_rate(learning_rate),
    )
