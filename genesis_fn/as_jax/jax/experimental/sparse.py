"""Sparse matrices, which the library does not have."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_INSTEAD = "dense arrays, jax.ops.segment_sum, or x.at[index].add"

BCOO, BCSR, COO, CSC, CSR, JAXSparse = (
    stub(f"jax.experimental.sparse.{name}", _INSTEAD)
    for name in ("BCOO", "BCSR", "COO", "CSC", "CSR", "JAXSparse")
)
