"""scipy.sparse.linalg: solutions of A x = b by iterations that only apply A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.flatten_util import ravel_pytree
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.scipy.sparse import arnoldi, iterations
from genesis_fn.scipy.sparse.iterations import Matvec
from genesis_fn.transforms.autodiff.derivatives import linear_transpose
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
from genesis_fn.transforms.staging.tracing import closure_convert, eval_shape


class SupportsMatmul(Protocol):
    """What multiplies vectors, `A @ x`, as sparse matrices of other libraries do."""

    def __matmul__(self, x: Any, /) -> Any:
        """The product with a vector."""
        ...


Operator: TypeAlias = ArrayLike | Callable[..., PyTree] | SupportsMatmul
# (A, b, x0, M) -> x on vectors.
Iteration = Callable[[Matvec, Array, Array, Matvec], Array]


def _function(A: Operator, name: str, role: str) -> Callable[..., Any]:
    """A or M as a function."""
    if callable(A):
        return A
    shape = getattr(A, "shape", None)
    if shape is not None and (len(shape) != 2 or shape[0] != shape[1]):
        raise errors.ShapeError(
            f"{name}: {role} is a square matrix or a function, got shape {tuple(shape)}\n"
            f"  at {where().describe()}"
        )
    if hasattr(A, "dtype"):
        matrix = as_array(A)
        return lambda x: np.matmul(matrix, x, precision="highest")
    if hasattr(A, "__matmul__"):
        return lambda x: A @ x  # pyright: ignore[reportOperatorIssue]
    raise errors.ArgumentError(
        f"{name}: {role} is a matrix or a function, got {type(A).__name__}\n"
        f"  at {where().describe()}"
    )


def _unmoved(x: PyTree) -> PyTree:
    return tree.map(
        lambda v: v if isinstance(v, int | float) else lax.stop_gradient(as_array(v)), x
    )


def _operands(b: PyTree, x0: PyTree, A: Operator, name: str) -> tuple[PyTree, PyTree]:
    """b and x0 as pytrees of floats of one structure, in the dtypes that x will have."""
    b = tree.map(lambda v: inexact_value(v, name), b)
    x0 = (
        tree.map(np.zeros_like, b) if x0 is None else tree.map(lambda v: inexact_value(v, name), x0)
    )
    if tree.structure(x0) != tree.structure(b):
        raise errors.TreeError(
            f"{name}: x0 has another structure than b: {tree.first_difference(b, x0)}"
        )
    leaves = tree.leaves(b)
    for v, u in zip(leaves, tree.leaves(x0)):
        if v.shape != u.shape:
            raise errors.ShapeError(
                f"{name}: x0 has {u.aval} where b has {v.aval}\n  at {where().describe()}"
            )
    if len({dtypes.is_complex(v.dtype) for v in leaves}) > 1:
        raise errors.DTypeError(
            f"{name}: b has real and complex leaves; convert them to one kind\n"
            f"  at {where().describe()}"
        )
    others = [] if callable(A) or not hasattr(A, "dtype") else [as_array(A)]
    wide = lambda v, u: np.result_type(v, u, *others)
    kinds = tree.map(wide, b, x0)
    cast = lambda v, d: v.astype(d)
    return tree.map(cast, b, kinds), tree.map(cast, x0, kinds)


def _check_image(f: Callable[..., Any], x: PyTree, name: str, role: str) -> None:
    """A and M map vectors to vectors of the same structure, shapes and dtypes."""
    image = eval_shape(f, x)
    if tree.structure(image) != tree.structure(x):
        raise errors.TreeError(
            f"{name}: {role} returned another structure than that of b: "
            f"{tree.first_difference(x, image)}\n  at {where().describe()}"
        )
    for got, want in zip(tree.leaves(image), tree.leaves(x)):
        if got.shape != want.shape or got.dtype != want.dtype:
            raise errors.ShapeError(
                f"{name}: {role} returned {got.dtype}{list(got.shape)} where b has {want.aval}\n"
                f"  at {where().describe()}"
            )


def _solve(
    name: str, A: Operator, b: PyTree, x0: PyTree, M: Operator | None,
    make: Callable[[Matvec, Array, int], Iteration],
) -> PyTree:  # fmt: skip
    """The solution by the iteration that `make(M, b, size of b)` returns, on b's leaves as one
    vector; derivatives by further solutions (`lax.custom_linear_solve`)."""
    b, x0 = _operands(b, x0, A, name)
    apply = _function(A, name, "A")
    _check_image(apply, b, name, "A")
    vector, unravel = ravel_pytree(b)
    start = _unmoved(ravel_pytree(x0)[0])

    def on_vectors(f: Callable[..., Any]) -> Matvec:
        return lambda v: ravel_pytree(f(unravel(v)))[0]

    precondition: Matvec = lambda v: v
    transposed = precondition
    if M is not None:
        function = _function(M, name, "M")
        _check_image(function, b, name, "M")
        # M moves no solution: what it closes over has no derivative here.
        linear, consts = closure_convert(on_vectors(function), vector)
        consts = _unmoved(consts)
        precondition = lambda v: linear(v, *consts)
        like = ShapeDtypeStruct(vector.shape, vector.dtype)
        transposed = lambda v: linear_transpose(precondition, like)(v)[0]

    size = vector.shape[0]

    def solve(matvec: Matvec, rhs: Array) -> Array:
        return make(precondition, rhs, size)(matvec, rhs, start, precondition)

    def transpose_solve(matvec: Matvec, rhs: Array) -> Array:
        return make(transposed, rhs, size)(matvec, rhs, np.zeros_like(rhs), transposed)

    x = lax.custom_linear_solve(on_vectors(apply), vector, solve, transpose_solve)
    return unravel(x)


def _steps(maxiter: ArrayLike | None, size: int) -> Array:
    return np.asarray(10 * size if maxiter is None else _unmoved(maxiter), "int32")


def _by_residual(
    iteration: Callable[..., Array], tol: ArrayLike, atol: ArrayLike, maxiter: ArrayLike | None
) -> Callable[[Matvec, Array, int], Iteration]:
    tol, atol = _unmoved(tol), _unmoved(atol)

    def make(M: Matvec, b: Array, size: int) -> Iteration:
        squared = iterations.norm_squared(b)
        limit = np.maximum(np.square(tol) * squared, np.square(atol)).astype(squared.dtype)
        steps = _steps(maxiter, size)
        return lambda matvec, rhs, x0, M: iteration(matvec, rhs, x0, M, limit, steps)

    return make


def cg(
    A: Operator,
    b: PyTree,
    x0: PyTree | None = None,
    *,
    tol: ArrayLike = 1e-5,
    atol: ArrayLike = 0.0,
    maxiter: ArrayLike | None = None,
    M: Operator | None = None,
) -> tuple[PyTree, None]:
    """Solve A x = b by conjugate gradients, for a symmetric (Hermitian) positive definite A.

        p' = z + (r' z' / r z) p,   x' = x + (r z / p A p) p,   z = M r,   r = b - A x

    Derivatives in `b` and in what A closes over are further solutions, by the implicit function
    theorem: they are as accurate as those are.

    Source: Hestenes and Stiefel (1952), "Methods of conjugate gradients for solving linear
    systems".

    Args:
        A: a matrix [n, n], or a linear function of pytrees like `b` to such.
        b: the right-hand side: an array, or a pytree of arrays.
        x0: where to start, like `b`; zeros by default. It has no derivative.
        tol: it stops at |b - A x| <= max(tol |b|, atol).
        atol: the absolute tolerance.
        maxiter: the most steps; 10 for each entry of `b` by default.
        M: a preconditioner, like A: a matrix or linear function near the inverse of A, symmetric
            positive definite, too. It has no derivative.

    Returns:
        (x, None): x is like `b`. It is what was found after `maxiter` steps, converged or not.

    Raises:
        TreeError: `x0`, or what A or M returns, has another structure than `b`.
        ShapeError: A is not square, or something has another shape or dtype than `b`.
        DTypeError: `b` has real and complex leaves.
        ArgumentError: A or M is neither a matrix nor a function.

    >>> from genesis_fn.scipy.sparse.linalg import cg
    >>> x, _ = cg(jnp.array([[4.0, 1.0], [1.0, 3.0]]), jnp.array([6.0, 7.0]))
    >>> x
    Array([1., 2.], dtype=float32)
    """
    make = _by_residual(iterations.conjugate_gradient, tol, atol, maxiter)
    return _solve("cg", A, b, x0, M, make), None


def bicgstab(
    A: Operator,
    b: PyTree,
    x0: PyTree | None = None,
    *,
    tol: ArrayLike = 1e-5,
    atol: ArrayLike = 0.0,
    maxiter: ArrayLike | None = None,
    M: Operator | None = None,
) -> tuple[PyTree, None]:
    """Solve A x = b by stabilized biconjugate gradients, for any square A.

    Two products with A and M each step, and memory for eight vectors. It stops where the method
    breaks down. Derivatives are further solutions, as `cg`'s.

    Source: van der Vorst (1992), "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for
    the solution of nonsymmetric linear systems".

    Args:
        A: a matrix [n, n], or a linear function of pytrees like `b` to such.
        b: the right-hand side: an array, or a pytree of arrays.
        x0: where to start, like `b`; zeros by default. It has no derivative.
        tol: it stops at |b - A x| <= max(tol |b|, atol).
        atol: the absolute tolerance.
        maxiter: the most steps; 10 for each entry of `b` by default.
        M: a preconditioner: a matrix or linear function near the inverse of A. It has no
            derivative.

    Returns:
        (x, None): x is like `b`. It is what was found when it stopped, converged or not.

    Raises:
        TreeError: `x0`, or what A or M returns, has another structure than `b`.
        ShapeError: A is not square, or something has another shape or dtype than `b`.
        DTypeError: `b` has real and complex leaves.
        ArgumentError: A or M is neither a matrix nor a function.

    >>> from genesis_fn.scipy.sparse.linalg import bicgstab
    >>> x, _ = bicgstab(jnp.array([[4.0, 1.0], [0.0, 3.0]]), jnp.array([6.0, 6.0]))
    >>> x
    Array([1., 2.], dtype=float32)
    """
    make = _by_residual(iterations.bicgstab, tol, atol, maxiter)
    return _solve("bicgstab", A, b, x0, M, make), None


_CYCLES = {"batched": arnoldi.batched, "incremental": arnoldi.incremental}


def gmres(
    A: Operator,
    b: PyTree,
    x0: PyTree | None = None,
    *,
    tol: ArrayLike = 1e-5,
    atol: ArrayLike = 0.0,
    restart: int = 20,
    maxiter: ArrayLike | None = None,
    M: Operator | None = None,
    solve_method: str = "batched",
) -> tuple[PyTree, Array]:
    """Solve A x = b by GMRES, for any square A: the least residual over a Krylov space.

    A cycle makes `restart` orthonormal vectors of the space of r, MAr, MAMAr, ... and moves x
    within it; cycles follow until the residual is small. Derivatives are further solutions, as
    `cg`'s.

    Source: Saad and Schultz (1986), "GMRES: a generalized minimal residual algorithm for solving
    nonsymmetric linear systems".

    Args:
        A: a matrix [n, n], or a linear function of pytrees like `b` to such.
        b: the right-hand side: an array, or a pytree of arrays.
        x0: where to start, like `b`; zeros by default. It has no derivative.
        tol: it stops at |M (b - A x)| <= max(tol |b|, atol).
        atol: the absolute tolerance.
        restart: steps of a cycle, and vectors that it keeps; at most the entries of `b`.
        maxiter: the most cycles; 10 for each entry of `b` by default.
        M: a preconditioner: a matrix or linear function near the inverse of A. It has no
            derivative.
        solve_method: "batched": all steps of a cycle, then one least squares problem, which is
            quick on GPUs. "incremental": a QR factorization is kept, so that a cycle ends as soon
            as its residual is within the tolerance.

    Returns:
        (x, info): x is like `b`; info is 0, or -1 if x has a NaN.

    Raises:
        TreeError: `x0`, or what A or M returns, has another structure than `b`.
        ShapeError: A is not square, or something has another shape or dtype than `b`.
        DTypeError: `b` has real and complex leaves.
        ArgumentError: another `solve_method`, `restart` is not positive, or A or M is neither a
            matrix nor a function.

    >>> from genesis_fn.scipy.sparse.linalg import gmres
    >>> x, info = gmres(jnp.array([[4.0, 1.0], [0.0, 3.0]]), jnp.array([6.0, 6.0]))
    >>> x
    Array([1., 2.], dtype=float32)
    """
    if solve_method not in _CYCLES:
        raise errors.ArgumentError(
            f"gmres: solve_method {solve_method!r} is none of {', '.join(_CYCLES)}\n"
            f"  at {where().describe()}"
        )
    if restart < 1:
        raise errors.ArgumentError(f"gmres: restart is positive, got {restart}")
    tol, atol = _unmoved(tol), _unmoved(atol)

    def make(M: Matvec, b: Array, size: int) -> Iteration:
        norm = np.sqrt(iterations.norm_squared(b))
        outer = np.maximum(tol * norm, atol).astype(norm.dtype)
        ratio = np.minimum(1.0, outer / np.where(norm > 0, norm, 1.0))
        inner = np.sqrt(iterations.norm_squared(M(b))) * ratio
        return lambda matvec, rhs, x0, M: arnoldi.gmres(
            matvec, rhs, x0, M, outer, inner, _steps(maxiter, size), min(restart, size),
            _CYCLES[solve_method],
        )  # fmt: skip

    x = _solve("gmres", A, b, x0, M, make)
    lost = [np.any(np.isnan(v)) for v in tree.leaves(x)]
    return x, np.where(np.any(np.asarray(lost)), -1, 0).astype("int32")
