"""Solutions of equations, differentiated by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.core import tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import zeros
from genesis_fn.transforms.autodiff.derivatives import jvp, linear_transpose, linearize, vjp
from genesis_fn.transforms.custom.derivative_rules import custom_jvp, custom_vjp
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
from genesis_fn.transforms.staging.tracing import closure_convert


def _negative(x: Any) -> Any:
    return tree.map(ops.neg, x)


def _difference(x: Any, y: Any) -> Any:
    return tree.map(ops.sub, x, y)


def _no_change(x: Any) -> Any:
    return tree.map(lambda v: zeros(typeof(as_array(v))), x)


def _transposed(matvec: Callable[..., Any], like: Any) -> Callable[..., Any]:
    shapes = tree.map(lambda v: ShapeDtypeStruct(typeof(v).shape, typeof(v).dtype), like)
    return lambda ct: linear_transpose(matvec, shapes)(ct)[0]


def custom_linear_solve(
    matvec: Callable[..., Any],
    b: PyTree,
    solve: Callable[..., Any],
    transpose_solve: Callable[..., Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> PyTree:
    """x with matvec(x) = b, found by `solve(matvec, b)`, differentiable in b and in what the linear
    function `matvec` closes over.

    Reverse mode solves the transposed system by `transpose_solve` (by `solve` if `symmetric`). With
    `has_aux` the solvers return (x, aux), and so does this.
    """
    b = tree.map(as_array, b)
    linear, consts = closure_convert(matvec, b)
    back = solve if symmetric else transpose_solve

    def action(values: Any, x: Any) -> Any:
        return linear(x, *values)

    def transposed(values: Any, x: Any) -> Any:
        return _transposed(lambda v: linear(v, *values), b)(x)

    def solution(values: Any, rhs: Any) -> Any:
        return solve(lambda x: action(values, x), rhs)

    if back is None:
        forward = custom_jvp(solution)
        forward.defjvp(_tangent(forward, action, has_aux))
        return forward(consts, b)
    forward = custom_vjp(solution)
    backward = custom_vjp(lambda values, rhs: back(lambda x: transposed(values, x), rhs))
    for f, g, act in ((forward, backward, action), (backward, forward, transposed)):
        f.defvjp(_kept(f, has_aux), _cotangents(g, act, has_aux))
        f.def_jvp(_tangent(f, act, has_aux))
    return forward(consts, b)


def _first(out: Any, has_aux: bool) -> Any:
    return out[0] if has_aux else out


def _tangent(
    f: Callable[..., Any], action: Callable[..., Any], has_aux: bool
) -> Callable[..., Any]:
    """A x = b, so A dx = db - dA x."""

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        (values, rhs), (dvalues, drhs) = primals, tangents
        out = f(values, rhs)
        x = _first(out, has_aux)
        _, moved = jvp(lambda c: action(c, x), (values,), (dvalues,))
        dx = _first(f(values, _difference(drhs, moved)), has_aux)
        return (out, (dx, _no_change(out[1]))) if has_aux else (out, dx)

    return rule


def _kept(f: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    def rule(values: Any, rhs: Any) -> Any:
        out = f(values, rhs)
        return out, (values, _first(out, has_aux))

    return rule


def _cotangents(
    g: Callable[..., Any], action: Callable[..., Any], has_aux: bool
) -> Callable[..., Any]:
    """`g` solves the transposed system: ct_b = u, and ct_A = -u x^T through the action of A."""

    def rule(saved: Any, ct: Any) -> Any:
        values, x = saved
        u = _first(g(values, _first(ct, has_aux)), has_aux)
        _, pull = vjp(lambda c: action(c, x), values)
        return pull(_negative(u))[0], u

    return rule


def custom_root(
    f: Callable[..., Any],
    initial_guess: PyTree,
    solve: Callable[..., Any],
    tangent_solve: Callable[..., Any],
    has_aux: bool = False,
) -> PyTree:
    """x with f(x) = 0, found by `solve(f, initial_guess)`, differentiable in what f closes over.

    The derivative solves the linearized equation by `tangent_solve(linear function, y)`, which must
    be linear in y; reverse mode transposes it. With `has_aux`, `solve` returns (x, aux).
    """
    guess = tree.map(lambda v: ops.stop_gradient(as_array(v)), initial_guess)
    function, consts = closure_convert(f, guess)

    @custom_jvp
    def root(values: Any, start: Any) -> Any:
        return solve(lambda x: function(x, *values), start)

    @root.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        (values, start), (dvalues, _) = primals, tangents
        out = root(values, start)
        x = out[0] if has_aux else out
        _, moved = jvp(lambda c: function(x, *c), (values,), (dvalues,))
        _, slope = linearize(lambda v: function(v, *values), x)
        dx = tangent_solve(slope, _negative(moved))
        return (out, (dx, _no_change(out[1]))) if has_aux else (out, dx)

    return root(consts, guess)
