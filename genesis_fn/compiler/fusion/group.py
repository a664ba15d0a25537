"""The steps of a program, as fusion merges them."""

from __future__ import annotations

from genesis_fn.compiler.fusion.gemv_fusion import FusedMatmul
from genesis_fn.compiler.fusion.sum_fusion import FusedSum
from genesis_fn.compiler.loop_ir.domains import IterationDomain
from genesis_fn.compiler.loop_ir.kernel import KernelIR
from genesis_fn.core.jaxpr import Eqn, Var


class FusionGroup:
    """A step: a generated kernel over an iteration domain, or one opaque equation (`eqn`), which as
    a matrix product may have a fused prologue and epilogue (`matmul`), and as a sum by segment may
    compute what it adds (`sum`).

    `roots` are the values that it computes, `writes` those of them that go to memory, `reads` the
    buffers that it reads with the bytes of each. `lo` and `hi` are the positions of the first and
    last equation that it was made from. `columns` are the roots of a row-and-column domain that
    have one value for each column.
    """

    __slots__ = (
        "eqn",
        "roots",
        "domain",
        "kernel",
        "lo",
        "hi",
        "reads",
        "writes",
        "matmul",
        "sum",
        "columns",
    )

    def __init__(
        self,
        roots: list[Var],
        domain: IterationDomain | None,
        kernel: KernelIR | None,
        eqn: Eqn | None,
        reads: dict[Var, int],
        lo: int,
        hi: int,
        matmul: FusedMatmul | None = None,
        columns: frozenset[Var] = frozenset(),
        sum: FusedSum | None = None,
    ) -> None:
        self.roots, self.domain, self.kernel, self.eqn = roots, domain, kernel, eqn
        self.matmul, self.columns, self.sum = matmul, columns, sum
        self.reads, self.lo, self.hi = reads, lo, hi
        self.writes: list[Var] = list(roots)

    @property
    def traffic(self) -> int:
        """Bytes read and written."""
        return sum(self.reads.values()) + sum([v.aval.nbytes for v in self.writes])

    @property
    def operations(self) -> int:
        """An estimate of the floating-point operations."""
        if self.kernel is None or self.domain is None:
            return 0
        total = 0
        for i in self.kernel.instrs:
            # Once for each value of the loop variables that an instruction depends on.
            if i.op in ("map", "reduce"):
                rows = self.domain.kept if "p" in i.names else 1
                inner = self.domain.reduced if "r" in i.names or i.op == "reduce" else 1
                total += rows * inner
        return total
