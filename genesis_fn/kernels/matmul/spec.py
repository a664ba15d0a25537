"""Matrix products (`MatmulSpec`): operands, layouts, epilogue; and their tuning choices. No Triton.

Names: m rows, n columns, k (depth) the contracted axis; lhs [m, k] @ rhs [k, n] -> out [m, n].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from genesis_fn.kernels.language.element_types import FLOAT8, ITEMSIZE

FEW_ROWS = 64  # of products whose time is that of reading the right operand
PRECISIONS = ("default", "tf32", "tf32x3", "ieee")


@dataclass(frozen=True, slots=True)
class Hooks:
    """Generated lines put into a kernel, and the pointer arguments that they use.

    `epilogue` runs once per output tile (or part of one) on `acc` (and `acc1` if gated), before a
    residual or an accumulating output is added, and leaves the result in `acc`. In scope are `rm`
    [rows, 1] and `rn` [1, cols] (indices), `inside` (which elements exist), `b0`, `b1`, ... (batch
    indices). `lhs`, of products of a row or a few, makes the left operand instead of reading it:
    `a`, at `rk_row` of row `rm` of any shape; `setup` runs before it, once for each row. Every
    public name of `kernels.language` may be used; `inputs` and `outputs` are (name, element type)
    of the pointers.
    """

    epilogue: str = ""
    lhs: str = ""
    setup: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A further product lhs [m, k] @ rhs [k, n], of operands of its own, that is added in the same
    accumulator. Strides are (m, k) and (k, n); each operand has the same axis contiguous as the
    first product's."""

    k: int
    lhs_strides: tuple[int, int]
    rhs_strides: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MatmulSpec:
    """out[b, i, j] = sum over l of lhs[b, i, l] * rhs[b, l, j], b over `batch`.

    Dense operands are [*batch, m, k] and [*batch, k, n], or with the last two axes stored the other
    way round if `transposed`. Explicit strides (in elements: batch axes, then (m, k), (k, n) or
    (m, n)) describe any other view; a zero batch stride broadcasts. `hooks` are generated lines
    before and after. `gated`, for few rows: with a second right operand, whose product the
    epilogue finds in `acc1`. A `residual` of this type, in the output's layout, is added last.
    With `accumulate` the product is added to what the output holds. `segments` are more products
    that are added before the epilogue: for products without batch axes or gate. A `steady` right
    operand is written by nothing that may run when the product is started. A sum is `rounded` to
    this type before it is stored in a wider one.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()
    lhs_dtype: str = "bf16"
    rhs_dtype: str = "bf16"
    out_dtype: str = "bf16"
    lhs_transposed: bool = False
    rhs_transposed: bool = False
    lhs_strides: tuple[int, ...] | None = None
    rhs_strides: tuple[int, ...] | None = None
    out_strides: tuple[int, ...] | None = None
    precision: str = "default"
    hooks: Hooks = field(default_factory=Hooks)
    gated: bool = False
    residual: str | None = None
    accumulate: bool = False
    segments: tuple[Segment, ...] = ()
    steady: bool = False
    rounded: str | None = None

    def __post_init__(self) -> None:
        if self.gated and self.m > FEW_ROWS:
            raise ValueError(f"a product of {self.m} rows cannot be gated: {FEW_ROWS} are the most")
        if self.segments and (self.batch or self.gated):
            raise ValueError("a product with segments has no batch axes and no gate")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {PRECISIONS}, got {self.precision!r}")
        if self.rounded and self.accumulate:
            raise ValueError("a product that is added to the output is not rounded before")
        for name in ("lhs_dtype", "rhs_dtype", "out_dtype"):
            if getattr(self, name) not in ITEMSIZE:
                raise ValueError(f"{name} {getattr(self, name)!r} is not an element type")
        rank = len(self.batch) + 2
        for name in ("lhs_strides", "rhs_strides", "out_strides"):
            given = getattr(self, name)
            if given is not None and len(given) != rank:
                raise ValueError(f"{name} must have {rank} entries, got {given}")

    @property
    def batches(self) -> int:
        """The number of products."""
        return math.prod(self.batch)

    @property
    def depth(self) -> int:
        """The products that each output element sums, those of all segments counted."""
        return self.k + sum(part.k for part in self.segments)

    @property
    def products(self) -> tuple[MatmulSpec, ...]:
        """The plain products that are added."""
        first = replace(self, segments=())
        return (
            first,
            *(
                replace(first, k=part.k, lhs_strides=part.lhs_strides, rhs_strides=part.rhs_strides)
                for part in self.segments
            ),
        )

    @property
    def operand_dtype(self) -> str:
        """The type that both operands take part in: the wider float of the two, the output's if
        that has 64 bits, and for two types of integers one of 32 or 64 bits that wraps alike."""
        lhs, rhs, out = self.lhs_dtype, self.rhs_dtype, self.out_dtype
        real = [x.startswith(("fp", "bf")) for x in (lhs, rhs, out)]
        if ITEMSIZE[out] == 8 and len(set(real)) == 1:
            return out
        # Both 8-bit floats may differ: tensor cores multiply e4m3 by e5m2.
        if lhs == rhs or (lhs in FLOAT8 and rhs in FLOAT8):
            return lhs
        # Neither holds the other's values.
        if {lhs, rhs} == {"bf16", "fp16"}:
            return "fp32"
        floats = [x for x in (lhs, rhs) if x.startswith(("fp", "bf"))]
        if floats:
            return max(floats, key=ITEMSIZE.__getitem__)
        return "i64" if 8 in (ITEMSIZE[lhs], ITEMSIZE[rhs]) else "i32"

    @property
    def acc_dtype(self) -> str:
        """The accumulator's type: fp64 for fp64, fp32 for other floats, i32 or i64 for integers."""
        operand = self.operand_dtype
        if operand.startswith(("fp", "bf")):
            return "fp64" if operand == "fp64" else "fp32"
        return "i64" if ITEMSIZE[operand] == 8 else "i32"

    def strides(self, operand: str) -> tuple[int, ...]:
        """The strides of "lhs", "rhs" or "out": batch axes, then (m, k), (k, n) or (m, n)."""
        given = getattr(self, f"{operand}_strides")
        if given is not None:
            return given
        rows, cols = {"lhs": (self.m, self.k), "rhs": (self.k, self.n)}.get(
            operand, (self.m, self.n)
        )
        inner = (1, rows) if getattr(self, f"{operand}_transposed", False) else (cols, 1)
        steps, size = [], rows * cols
        for extent in reversed(self.batch):
            steps.append(size)
            size *= extent
        return (*reversed(steps), *inner)

    def extent(self, operand: str) -> int:
        """One more than the largest element offset that "lhs", "rhs" or "out" reaches."""
        inner = {"lhs": (self.m, self.k), "rhs": (self.k, self.n)}.get(operand, (self.m, self.n))
        steps = self.strides(operand)
        reach = sum((n - 1) * s for n, s in zip((*self.batch, *inner), steps, strict=True))
        return reach + 1

    def contiguous_axis(self, operand: str) -> int | None:
        """0 or 1: which of the operand's two inner axes has stride one; None if neither has."""
        first, second = self.strides(operand)[-2:]
        return 1 if second == 1 else 0 if first == 1 else None


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """The tuning choices of one product: tile [bm, bn], depth bk of a step, warps, stages, family.

    `family`: "tma" (persistent, host descriptors), "pointer", "gemv" (few rows, no tensor cores).
    `halves` stores a tile in two halves, which frees shared memory for one more stage,
    `epilogue_subtiles` in more, for epilogues that hold several tiles in registers; `swap` computes
    the transposed tile, for few rows; `split_k` > 1 sums partial products in a second
    launch, in a fixed order. Without `tensor_cores` products are multiplied and added one by one,
    as integers other than int8 need. `residents` programs of the "tma" family share a
    multiprocessor. `prepared` copies float32 operands first,
    with k contiguous, and for "tf32x3" cut into high and low parts. `early`, of a gemv whose right
    operand nothing around it writes: started while the kernel before it ends (if the launch's
    constant EARLY is set), it loads the right operand before it waits for that one. `slices` > 1,
    of the "pointer" family: each step's `bk` is cut in so many parts, each the work of some of the
    warps, whose sums are added in a fixed order when the loop has ended.
    """

    family: str
    bm: int
    bn: int
    bk: int
    warps: int = 4
    stages: int = 3
    split_k: int = 1
    halves: bool = False
    swap: bool = False
    flatten: bool = True
    tensor_cores: bool = True
    residents: int = 1
    prepared: bool = False
    early: bool = False
    slices: int = 1
    epilogue_subtiles: int | None = None

    @property
    def subtiles(self) -> int:
        """The number of column slices in which a tile is stored."""
        return self.epilogue_subtiles or (2 if self.halves else 1)
