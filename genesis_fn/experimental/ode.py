"""Ordinary differential equations, solved with adaptive steps and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.experimental import dormand_prince as rk
from genesis_fn.flatten_util import ravel_pytree
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.transforms.autodiff.derivatives import jvp, vjp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.custom.derivative_rules import custom_vjp
from genesis_fn.transforms.staging.tracing import closure_convert, eval_shape

# (y, t, *args) -> dy/dt, on vectors.
Dynamics = Callable[..., Array]


class _Tolerances:
    """What is static of a solution: errors that are tolerated, and limits of steps."""

    def __init__(self, rtol: float, atol: float, mxstep: float, hmax: float) -> None:
        self.rtol, self.atol, self.mxstep, self.hmax = rtol, atol, mxstep, hmax


def _solved(f: rk.Slope, limits: _Tolerances, y0: Array, times: Array) -> Array:
    """y at all times, [T, n]: NaN from where the steps became too many, or too short, on."""
    rtol, atol = limits.rtol, limits.atol
    eps = rk.resolution(times.dtype)

    def between(carry: Any, target: Array) -> tuple[Any, Array]:
        def short(state: Any) -> Array:
            count, _, _, t, dt, _, _ = state
            advances = dt > eps * np.abs(t)
            return (t < target) & advances & (count < limits.mxstep)

        def step(state: Any) -> Any:
            count, y, slope, t, dt, before, polynomial = state
            new = rk.step(f, y, slope, t, dt)
            ratio = rk.error_ratio(new.error, y, new.y, rtol, atol)
            length = np.minimum(rk.next_step(dt, ratio), limits.hmax).astype(dt.dtype)
            good = ratio <= 1
            kept = (y, slope, t, before, polynomial)
            moved = (new.y, new.slope, t + dt, t, new.polynomial)
            y, slope, t, before, polynomial = [np.where(good, a, b) for a, b in zip(moved, kept)]
            return count + 1, y, slope, t, length, before, polynomial

        _, *carry = lax.while_loop(short, step, (np.zeros((), "int32"), *carry))
        _, _, t, _, before, polynomial = carry
        whole = np.where(t > before, t - before, 1.0)
        y = rk.polynomial_at(polynomial, (target - before) / whole)
        return tuple(carry), np.where(t >= target, y, np.nan).astype(y.dtype)

    start = times[0]
    slope = f(y0, start)
    dt = rk.first_step(f, y0, slope, start, rtol, atol)
    dt = np.minimum(dt, limits.hmax).astype(times.dtype)
    carry = (y0, slope, start, dt, start, rk.constant(y0))
    _, ys = lax.scan(between, carry, times[1:])
    return np.concatenate([y0[None], ys])


def _solution(
    f: Dynamics, limits: _Tolerances, y0: Array, times: Array, theta: Array, order: int = 2
) -> Array:
    """`_solved` for dy/dt = f(y, t, theta), with derivatives in all three vectors up to `order`:
    rules are recorded along with a program, so that they cannot have rules without an end."""

    def primal(y0: Array, times: Array, theta: Array) -> Array:
        return _solved(lambda y, t: f(y, t, theta), limits, y0, times)

    if order == 0:
        return primal(y0, times, theta)
    solve = custom_vjp(primal)
    n, kind = y0.shape[0], y0.dtype

    def slopes_along(ys: Array, times: Array, theta: Array) -> Array:
        return vmap(lambda y, t: f(y, t, theta))(ys, times)

    def forward(y0: Array, times: Array, theta: Array) -> Any:
        ys = solve(y0, times, theta)
        return ys, (ys, times, theta)

    def backward(saved: Any, cts: Array) -> tuple[Array, Array, Array]:
        """The adjoint a = dL/dy along with y and the gradient in theta, from each time to the one
        before: backward in t, so that it is forward in s = -t."""
        ys, times, theta = saved
        joint = np.result_type(kind, theta.dtype) if theta.shape[0] else kind

        def adjoint(state: Array, s: Array, theta: Array) -> Array:
            y, a = _as(state[:n], kind), _as(state[n : 2 * n], kind)
            slope, pull = vjp(lambda y, theta: f(y, -s, theta), y, theta)
            return np.concatenate([-slope, *pull(a)]).astype(joint)

        def back(carry: Any, at: Any) -> tuple[Any, None]:
            a, gradient = carry
            y, t, earlier, ct = at
            state = np.concatenate([y, a, gradient]).astype(joint)
            span = np.stack([-t, -earlier])
            end = _solution(adjoint, limits, state, span, theta, order - 1)[1]
            return (_as(end[n : 2 * n], kind) + ct, _as(end[2 * n :], theta.dtype)), None

        steps = ys[1:], times[1:], times[:-1], cts[:-1]
        (a, gradient), _ = lax.scan(back, (cts[-1], np.zeros_like(theta)), steps, reverse=True)
        # A time moves y along its slope; a later start leaves out what would be integrated there.
        slopes = slopes_along(ys, times, theta)
        moved = np.real(np.sum(cts * slopes, -1))
        first = -np.real(np.sum((a - cts[0]) * slopes[0]))
        return a, np.concatenate([first[None], moved[1:]]).astype(times.dtype), gradient

    def tangents(primals: Any, moves: Any) -> tuple[Array, Array]:
        """y along with how far it moves, but for what moves because its times do."""
        (y0, times, theta), (dy0, dtimes, dtheta) = primals, moves

        def both(state: Array, t: Array, thetas: Array) -> Array:
            theta, dtheta = np.split(thetas, 2)
            primals, moves = (state[:n], theta), (state[n:], dtheta)
            return np.concatenate(jvp(lambda y, theta: f(y, t, theta), primals, moves))

        ys = solve(y0, times, theta)
        moving = slopes_along(ys, times, theta) * dtimes[:, None].astype(kind)
        state = np.concatenate([y0, dy0 - moving[0]])
        thetas = np.concatenate([theta, dtheta])
        found = _solution(both, limits, state, times, thetas, order - 1)
        return ys, found[:, n:] + moving

    solve.defvjp(forward, backward)
    solve.def_jvp(tangents)
    return solve(y0, times, theta)


def _as(x: Array, dtype: dtypes.DType) -> Array:
    """`x` in a dtype, which may be real where `x` is complex."""
    return x.astype(dtype) if dtypes.is_complex(dtype) else np.real(x).astype(dtype)


def odeint(
    func: Callable[..., PyTree],
    y0: PyTree,
    t: ArrayLike,
    *args: PyTree,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: float = onp.inf,
    hmax: float = onp.inf,
) -> PyTree:
    """The solution of dy/dt = func(y, t, *args) at given times, for equations that are not stiff.

    Steps have order 5, and errors that a method of order 4 estimates choose their lengths; between
    them, a polynomial of degree 4 gives the values. Reverse mode solves the adjoint equation

        da/dt = -a df/dy,   dL/dargs = int a df/dargs dt

    backward in time, along with y anew from each of the times: its memory does not grow with the
    steps. Forward mode solves the equation of the tangents along with y. Reverse mode may be within
    derivatives of one further order, forward mode of any.

    Source: Dormand and Prince (1980), "A family of embedded Runge-Kutta formulae"; Shampine (1986),
    "Some practical Runge-Kutta formulas"; Chen, Rubanova, Bettencourt and Duvenaud (2018), "Neural
    ordinary differential equations", for the adjoint.

    Args:
        func: (y, t, *args) -> dy/dt, like y.
        y0: y at t[0], an array or a pytree of arrays.
        t: times, [T], increasing floats.
        args: further arguments of `func`, pytrees of arrays. They have derivatives, as have floats
            that `func` closes over.
        rtol: the relative error that a step may have.
        atol: the absolute error that a step may have.
        mxstep: the most steps from one time to the next.
        hmax: the greatest length of a step.

    Returns:
        y at all times, like `y0` with a first axis T. It is NaN from where `mxstep` was not enough,
        or steps became too short to go on. Floats narrower than float32 are computed in that.

    Raises:
        DTypeError: the times are not floats.
        ShapeError: they are no vector, or `func` returns other shapes than y's.
        ArgumentError: they do not increase.
        TreeError: `func` returns another structure than y's.

    >>> from genesis_fn.experimental.ode import odeint
    >>> odeint(lambda y, t, rate: -rate * y, 1.0, jnp.array([0.0, 1.0, 2.0]), 0.5)
    Array([1., 0.60653, 0.36788], dtype=float32)
    """
    times = _times(t)
    y0 = tree.map(lambda v: inexact_value(v, "odeint"), y0)
    args = tree.map(as_array, args)
    _check_slope(eval_shape(func, y0, times[0], *args), y0)
    wide = tree.map(lambda v: v.astype("float32") if v.dtype.itemsize < 4 else v, y0)
    vector, unravel = ravel_pytree(wide)
    as_given = lambda v: tree.map(lambda x, like: x.astype(like.dtype), unravel(v), y0)
    # What has derivatives is one vector; the rest stays as it is.
    converted, captured = closure_convert(func, y0, times[0], *args)
    leaves, structure = tree.flatten((args, captured))
    moving = [i for i, x in enumerate(leaves) if dtypes.is_inexact(x.dtype)]
    theta, parts = ravel_pytree([leaves[i] for i in moving])

    def dynamics(y: Array, t: Array, theta: Array) -> Array:
        given = list(leaves)
        for i, x in zip(moving, parts(theta)):
            given[i] = x
        args, captured = tree.unflatten(structure, given)
        slope = converted(as_given(y), t, *args, *captured)
        return ravel_pytree(slope)[0].astype(vector.dtype)

    limits = _Tolerances(rtol, atol, mxstep, hmax)
    return vmap(as_given)(_solution(dynamics, limits, vector, times, theta))


def _times(t: ArrayLike) -> Array:
    times = as_array(t)
    if not dtypes.is_float(times.dtype):
        raise errors.DTypeError(f"odeint: times are floats, got {times.aval}")
    if times.ndim != 1 or times.shape[0] == 0:
        raise errors.ShapeError(f"odeint: times are a vector, got {times.aval}")
    # Traced times cannot be looked at.
    known = onp.asarray(times) if type(times) is ArrayImpl else onp.arange(2)
    if not (known[1:] > known[:-1]).all():
        raise errors.ArgumentError(
            f"odeint: the times do not increase\n  at {where().describe()}\n"
            "  solve backward in time as dy/ds = -func(y, -s), s = -t"
        )
    return times if times.dtype.itemsize >= 4 else times.astype("float32")


def _check_slope(slope: PyTree, y: PyTree) -> None:
    if tree.structure(slope) != tree.structure(y):
        raise errors.TreeError(
            f"odeint: func returned another structure than y's: {tree.first_difference(y, slope)}"
        )
    for got, want in zip(tree.leaves(slope), tree.leaves(y)):
        if got.shape != want.shape:
            raise errors.ShapeError(
                f"odeint: func returned {got.dtype}{list(got.shape)} where y has {want.aval}\n"
                f"  at {where().describe()}"
            )
        if dtypes.is_complex(got.dtype) and not dtypes.is_complex(want.dtype):
            raise errors.DTypeError(
                f"odeint: func returned {got.dtype} where y has {want.aval}; start with a complex "
                f"y0\n  at {where().describe()}"
            )
