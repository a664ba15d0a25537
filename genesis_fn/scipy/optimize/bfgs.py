"""The method of Broyden, Fletcher, Goldfarb and Shanno."""

from __future__ import annotations

from typing import NamedTuple

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core.types.annotations import Array
from genesis_fn.scipy.optimize.line_search import ValueAndGrad, line_search


class BFGSState(NamedTuple):
    """The point, value and gradient, the approximate inverse Hessian, and what was counted."""

    x: Array
    value: Array
    gradient: Array
    inverse_hessian: Array
    before: Array  # the value before the last step
    converged: Array
    search_status: Array
    steps: Array
    evaluations: Array


def minimize_bfgs(
    fun: ValueAndGrad,
    x0: Array,
    maxiter: int | None = None,
    norm: float = np.inf,
    gtol: float = 1e-5,
    line_search_maxiter: int = 10,
) -> tuple[BFGSState, Array]:
    """(the last state, its status): steps -H g along which a line search goes, with

        H' = (I - r s y^T) H (I - r y s^T) + r s s^T,   r = 1 / (y s)

    where s is what x moved by, and y what g did. Status: 0 converged, 1 for `maxiter` steps, 2 and
    the line search's where that failed.

    Source: Nocedal and Wright (1999), "Numerical Optimization", algorithm 6.1.
    """
    most = 200 * x0.shape[0] if maxiter is None else maxiter
    identity = np.eye(x0.shape[0], dtype=x0.dtype)

    def small(gradient: Array) -> Array:
        return np.linalg.norm(gradient, ord=norm) < gtol

    def unfinished(s: BFGSState) -> Array:
        return ~s.converged & (s.search_status == 0) & (s.steps < most)

    def step(s: BFGSState) -> BFGSState:
        direction = -np.matmul(s.inverse_hessian, s.gradient, precision="highest")
        slope = np.vdot(s.gradient, direction, precision="highest")
        # As far as the last step went down, if the slope stays what it is.
        guess = 1.01 * 2 * (s.value - s.before) / slope
        first = np.where((guess > 0) & (guess < 1), guess, 1.0)
        found = line_search(fun, s.x, direction, s.value, s.gradient, first, line_search_maxiter)
        moved = found.point.step * direction
        turned = found.point.gradient - s.gradient
        along = np.vdot(turned, moved, precision="highest")
        r = 1 / along
        # Of functions much steeper or flatter than the identity is, the first H has their size
        # (6.20): in a sum with the identity the digits of theirs would be lost.
        size = along / np.vdot(turned, turned, precision="highest")
        far = (s.steps == 0) & (((size > 0) & (size < 1e-3)) | (size > 1e3))
        before = np.where(far, size, 1.0) * s.inverse_hessian
        left = identity - r * np.outer(moved, turned)
        product = np.matmul(np.matmul(left, before, precision="highest"), left.T,
                            precision="highest")  # fmt: skip
        updated = product + r * np.outer(moved, moved)
        return BFGSState(
            s.x + moved,
            found.point.value,
            found.point.gradient,
            np.where(np.isfinite(r), updated, s.inverse_hessian),
            s.value,
            small(found.point.gradient),
            found.status,
            s.steps + 1,
            s.evaluations + found.evaluations,
        )

    value, gradient = fun(x0)
    zero = np.zeros((), "int32")
    before = value + np.linalg.norm(gradient) / 2
    start = BFGSState(x0, value, gradient, identity, before, small(gradient), zero, zero, zero + 1)
    end = lax.while_loop(unfinished, step, start)
    failed = np.where(end.search_status > 0, 2 + end.search_status, 1)
    return end, np.where(end.converged, 0, failed).astype("int32")
