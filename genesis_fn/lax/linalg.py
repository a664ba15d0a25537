"""lax.linalg: matrix decompositions and triangular solves."""

from genesis_fn.lax.operands import on_arrays as _on_arrays
from genesis_fn.primitives import linalg as _linalg

cholesky = _on_arrays(_linalg.cholesky)
eigh = _on_arrays(_linalg.eigh)
lu = _on_arrays(_linalg.lu)
qr = _on_arrays(_linalg.qr)
svd = _on_arrays(_linalg.svd)
triangular_solve = _on_arrays(_linalg.triangular_solve, 2)
