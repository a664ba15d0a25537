"""BFGS with a memory of some steps instead of a matrix."""

from __future__ import annotations

from typing import NamedTuple

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array
from genesis_fn.scipy.optimize.line_search import ValueAndGrad, line_search


class LBFGSState(NamedTuple):
    """The point, value and gradient, the last steps and changes of gradients, the newest last with
    1 / (y s) of each (0 where there is none), and what was counted."""

    x: Array
    value: Array
    gradient: Array
    moves: Array
    turns: Array
    weights: Array
    scale: Array
    converged: Array
    status: Array
    steps: Array
    evaluations: Array


def _direction(s: LBFGSState) -> Array:
    """-H g by the two loops over the memory; a weight of 0 leaves a step out."""

    def newer_first(q: Array, memory: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        move, turn, weight = memory
        a = weight * np.vdot(move, q, precision="highest")
        return q - a * turn, a

    def older_first(q: Array, memory: tuple[Array, Array, Array, Array]) -> tuple[Array, None]:
        move, turn, weight, a = memory
        return q + (a - weight * np.vdot(turn, q, precision="highest")) * move, None

    memory = s.moves, s.turns, s.weights
    q, a = lax.scan(newer_first, -s.gradient, memory, reverse=True)
    return lax.scan(older_first, s.scale * q, (*memory, a))[0]


def minimize_lbfgs(
    fun: ValueAndGrad,
    x0: Array,
    maxiter: int | None = None,
    norm: float = np.inf,
    maxcor: int = 10,
    ftol: float = 2.220446049250313e-09,
    gtol: float = 1e-05,
    maxfun: int | None = None,
    maxgrad: int | None = None,
    maxls: int = 20,
) -> tuple[LBFGSState, Array]:
    """(the last state, its status): BFGS with the last `maxcor` steps for a matrix.

    Status: 0 converged, 1 for `maxiter` steps, 2 and 3 for `maxfun` and `maxgrad` evaluations, 4
    where a step went down by less than `ftol`, 5 where a line search failed.

    Source: Nocedal and Wright (1999), "Numerical Optimization", algorithms 7.4 and 7.5.
    """
    if maxiter is None and maxfun is None and maxgrad is None:
        maxiter = 200 * x0.shape[0]
    limit = lambda n: np.inf if n is None else n

    def small(gradient: Array) -> Array:
        return np.linalg.norm(gradient, ord=norm) < gtol

    def unfinished(s: LBFGSState) -> Array:
        return ~s.converged & (s.status == 0)

    def step(s: LBFGSState) -> LBFGSState:
        direction = _direction(s)
        found = line_search(fun, s.x, direction, s.value, s.gradient, np.ones_like(s.value), maxls)
        point = found.point
        moved, turned = point.step * direction, point.gradient - s.gradient
        curvature = np.vdot(turned, moved, precision="highest")
        known = curvature > 0
        weight = np.where(known, 1 / np.where(known, curvature, 1.0), 0.0)
        scale = np.where(known, curvature / np.vdot(turned, turned, precision="highest"), s.scale)
        status = np.where(s.value - point.value < ftol, 4, 0)
        status = np.where(s.evaluations >= limit(maxgrad), 3, status)
        status = np.where(s.evaluations >= limit(maxfun), 2, status)
        status = np.where(s.steps >= limit(maxiter), 1, status)
        status = np.where(found.status > 0, 5, status)
        converged = small(point.gradient)
        return LBFGSState(
            s.x + moved,
            point.value,
            point.gradient,
            np.concatenate([s.moves[1:], moved[None]]),
            np.concatenate([s.turns[1:], turned[None]]),
            np.concatenate([s.weights[1:], weight[None]]),
            scale,
            converged,
            np.where(converged, 0, status).astype("int32"),
            s.steps + 1,
            s.evaluations + found.evaluations,
        )

    value, gradient = fun(x0)
    zero, none = np.zeros((), "int32"), np.zeros((maxcor, x0.shape[0]), x0.dtype)
    weights = np.zeros(maxcor, x0.dtype)
    start = LBFGSState(
        x0, value, gradient, none, none, weights, np.ones((), x0.dtype), small(gradient), zero,
        zero, zero + 1,
    )  # fmt: skip
    end = lax.while_loop(unfinished, step, start)
    return end, end.status
