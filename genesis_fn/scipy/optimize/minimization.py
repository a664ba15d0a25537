"""scipy.optimize.minimize: one function for all methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.scipy.optimize.bfgs import minimize_bfgs
from genesis_fn.scipy.optimize.lbfgs import minimize_lbfgs
from genesis_fn.scipy.optimize.line_search import ValueAndGrad
from genesis_fn.transforms.autodiff.derivatives import value_and_grad


class OptimizeResults(NamedTuple):
    """What `minimize` found.

    `x` is the last point, `fun` and `jac` the value and the gradient there, `hess_inv` BFGS's
    inverse Hessian, None of others; `success` whether it converged, and `status` why it stopped;
    `nfev`, `njev` and `nit` are the evaluations of the function and its gradient, and the steps.
    """

    x: Array
    success: Array
    status: Array
    fun: Array
    jac: Array
    hess_inv: Array | None
    nfev: Array
    njev: Array
    nit: Array


METHODS: dict[str, Callable[..., Any]] = {
    "bfgs": minimize_bfgs,
    "l-bfgs": minimize_lbfgs,
    "l-bfgs-experimental-do-not-rely-on-this": minimize_lbfgs,
}


def minimize(
    fun: Callable[..., ArrayLike],
    x0: ArrayLike,
    args: tuple[Any, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """A local minimum of a function of a vector, by its gradients.

    It compiles and batches. It has no reverse-mode derivative: differentiate the condition that
    holds at the minimum, by `lax.custom_root`, instead.

    Source: Nocedal and Wright (1999), "Numerical Optimization", algorithms 6.1, 7.5 and 3.5.

    Args:
        fun: (x, *args) -> a real number, differentiable in x [n].
        x0: where to start, [n].
        args: further arguments of `fun`.
        method: "BFGS", or "L-BFGS" (JAX's "l-bfgs-experimental-do-not-rely-on-this"), which keeps
            no matrix and takes complex numbers, too.
        tol: sets the options "gtol" and, of L-BFGS, "ftol".
        options: of the method. Of both, "maxiter" (200 n), "norm" (the order of the gradient's
            norm, infinity) and "gtol" (1e-5: converged where that norm is below it). BFGS:
            "line_search_maxiter" (10). L-BFGS: "maxcor" (10 steps remembered), "ftol" (2.2e-9:
            stops where a step went down by less), "maxfun", "maxgrad" (the most evaluations) and
            "maxls" (20).

    Returns:
        OptimizeResults. `status` 0 is converged and 1 for `maxiter` steps. BFGS: 3 where the line
        search's bracket shrank to nothing, 5 where it found none. L-BFGS: 2 and 3 for `maxfun` and
        `maxgrad`, 4 for `ftol`, 5 for a line search.

    Raises:
        ArgumentError: another method or option, or `args` is no tuple.
        ShapeError: `x0` is no vector, or `fun` returns no number.
        DTypeError: `x0` is complex, and the method does not take that, or `fun` returns no real
            number.

    >>> from genesis_fn.scipy.optimize import minimize
    >>> found = minimize(lambda x, a: jnp.sum((x - a) ** 2), jnp.zeros(2), (3.0,), method="BFGS")
    >>> found.x, found.success
    (Array([3., 3.], dtype=float32), Array(True, dtype=bool))
    """
    if not isinstance(args, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise errors.ArgumentError(
            f"minimize: args is a tuple, got {type(args).__name__}\n  at {where().describe()}"
        )
    name = method.lower()
    if name not in METHODS:
        raise errors.ArgumentError(
            f"minimize: method {method!r} is none of 'BFGS', 'L-BFGS'\n  at {where().describe()}"
        )
    known = [*inspect.signature(METHODS[name]).parameters][2:]
    given = {**({} if tol is None else {"gtol": tol, "ftol": tol}), **(options or {})}
    if unknown := [n for n in options or {} if n not in known]:
        raise errors.ArgumentError(
            f"minimize: {method} has no option {unknown[0]!r}; there are {', '.join(known)}\n"
            f"  at {where().describe()}"
        )
    x = inexact_value(x0, "minimize")
    if x.ndim != 1:
        raise errors.ShapeError(
            f"minimize: x0 is a vector, got {x.aval}\n  at {where().describe()}\n"
            "  make one of a pytree by flatten_util.ravel_pytree"
        )
    given = {n: v for n, v in given.items() if n in known}
    bfgs = METHODS[name] is minimize_bfgs
    if not dtypes.is_complex(x.dtype):
        end, status = METHODS[name](_objective(fun, args), x, **given)
        gradient, at = end.gradient, end.x
    else:
        if bfgs:
            raise errors.DTypeError(
                f"minimize: BFGS takes real numbers, got {x.aval}\n  at {where().describe()}\n"
                "  use L-BFGS"
            )
        # Over the real and the imaginary parts.
        n = x.shape[0]
        joined = lambda v: lax.complex(v[:n], v[n:])
        objective = _objective(lambda v, *rest: fun(joined(v), *rest), args)
        parts = np.concatenate([np.real(x), np.imag(x)])
        end, status = METHODS[name](objective, parts, **given)
        at, gradient = joined(end.x), np.conj(joined(end.gradient))
    return OptimizeResults(
        x=at,
        success=end.converged,
        status=status,
        fun=end.value,
        jac=gradient,
        hess_inv=end.inverse_hessian if bfgs else None,
        nfev=end.evaluations,
        njev=end.evaluations,
        nit=end.steps,
    )


def _objective(fun: Callable[..., Any], args: tuple[Any, ...]) -> ValueAndGrad:
    """x -> (value, gradient), the value of the dtype of x."""

    def value(x: Array) -> Array:
        y = np.asarray(fun(x, *args))
        if y.ndim != 0:
            raise errors.ShapeError(
                f"minimize: fun returns a number, got {y.aval}\n  at {where().describe()}"
            )
        if dtypes.is_complex(y.dtype):
            raise errors.DTypeError(
                f"minimize: fun returns a real number, got {y.aval}\n  at {where().describe()}"
            )
        return y.astype(x.dtype)

    return value_and_grad(value)
