"""lax.linalg: matrix decompositions, solves of structured systems, products of reflections."""

from genesis_fn.lax.linalg.decompositions import (
    EighImplementation as EighImplementation,
    EigImplementation as EigImplementation,
    SvdAlgorithm as SvdAlgorithm,
    cholesky as cholesky,
    eig as eig,
    eigh as eigh,
    lu as lu,
    qr as qr,
    svd as svd,
)
from genesis_fn.lax.linalg.polar import qdwh as qdwh
from genesis_fn.lax.linalg.reflections import (
    hessenberg as hessenberg,
    householder_product as householder_product,
    ormqr as ormqr,
    tridiagonal as tridiagonal,
)
from genesis_fn.lax.linalg.schur_form import schur as schur
from genesis_fn.lax.linalg.solves import (
    triangular_solve as triangular_solve,
    tridiagonal_solve as tridiagonal_solve,
)
from genesis_fn.lax.linalg.updates import (
    cholesky_update as cholesky_update,
    lu_pivots_to_permutation as lu_pivots_to_permutation,
    symmetric_product as symmetric_product,
)
