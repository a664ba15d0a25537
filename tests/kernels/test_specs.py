"""What the specifications of hand-written kernels refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from genesis_fn.compiler.target import H200, OF_ARCHITECTURE, Target
from genesis_fn.kernels.attention.decode import decode_plan
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.indexing.concat import Concatenate
from genesis_fn.kernels.indexing.scatter import GatherRows, ScatterRows
from genesis_fn.kernels.matmul.matmul import plan_matmul
from genesis_fn.kernels.matmul.spec import Hooks, MatmulConfig, MatmulSpec, Segment
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.kernels.random import RandomBits
from genesis_fn.kernels.rows.cross_entropy import CrossEntropy
from genesis_fn.kernels.rows.linear_cross_entropy import LinearCrossEntropy
from genesis_fn.kernels.rows.norm import Norm
from genesis_fn.kernels.rows.scan import Scan
from genesis_fn.kernels.rows.softmax import Softmax
from genesis_fn.kernels.sort.sort import Sort

ATTENTION = AttentionSpec(1, 2, 1, 4, 4, 8)
LOSSES = CrossEntropy(4, 8, "fp32")
HOPPER, AMPERE = H200, OF_ARCHITECTURE[80]


SEGMENT = Segment(4, (4, 1), (4, 1))


def planned(family: str, target: Target, m: int = 16, **types: Any) -> Any:
    config = MatmulConfig(family, 16, 16, 16)
    return plan_matmul(MatmulSpec(m, 16, 16, **types), target, config)


CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Softmax(2, 3, "fp32", "hardmax"), "kind is one of"),
    (lambda: Softmax(2, 0, "fp32"), "at least one column"),
    (lambda: Norm(2, 0, "fp32", 1e-6, "fp32"), "at least one column"),
    (lambda: Scan(1, 2, 3, "fp32", "sub"), "a scan's operation is one of"),
    (lambda: Scan(1, 2, 3, "i32", "logaddexp"), "needs a floating type, not i32"),
    (lambda: GatherRows(2, 3, 4, "fp32", mode="wrap"), "'clip' or 'fill', not 'wrap'"),
    (lambda: GatherRows(0, 3, 4, "fp32"), "an array without rows"),
    (lambda: ScatterRows(2, 3, 4, "fp32", "sub"), "a scatter's operation is one of"),
    (lambda: ScatterRows(2, 3, 4, "fp32", base="ones"), "a scatter's base is one of"),
    (lambda: ScatterRows(2, 3, 4, "fp32", mode="fill"), "'clip' or 'drop', not 'fill'"),
    (lambda: ScatterRows(2**31, 3, 4, "fp32"), "is longer than 2^31 - 2"),
    (lambda: ScatterRows(2, 3, 2**30 + 1, "fp32"), "of 1073741825 updates has more than"),
    (lambda: Sort(2, 3, ("fp32",), 2), "1 operands cannot have 2 keys"),
    (lambda: Sort(2, 2**31, ("fp32",)), "is longer than 2^31 - 1"),
    (lambda: Concatenate((), 0, "fp32"), "at least one array"),
    (lambda: Concatenate(((2, 3),), 2, "fp32"), "axis 2 is not an axis of 2 dimensions"),
    (lambda: Concatenate(((2, 3), (3, 4)), 0, "fp32"), "differ in more than axis 0"),
    (lambda: RandomBits(1, 2, 24), "random bits come in widths"),
    (lambda: LinearCrossEntropy(LOSSES, 4, "max"), "reduction is one of"),
    (lambda: LinearCrossEntropy(LOSSES, 4, "none"), "weights of rows"),
    (lambda: LinearCrossEntropy(LOSSES, 4, row_weights=True), "weights of rows"),
    (lambda: LinearCrossEntropy(replace(LOSSES, rows=0), 4), "at least one row"),
    (lambda: CrossEntropy(4, 0, "fp32"), "at least one class"),
    (lambda: PlanBuilder(1, 1).clear(BufferArg(0, "fp32", 4)), "can only be cleared whole"),
    (lambda: replace(ATTENTION, batch=0), "every size must be at least 1"),
    (lambda: replace(ATTENTION, kv_heads=3), "not a multiple of 3 key/value heads"),
    (lambda: replace(ATTENTION, head_dim=512), "head dimensions 512 and 512 exceed 256"),
    (lambda: replace(ATTENTION, dtype="fp64"), "dtypes must be among"),
    (lambda: replace(ATTENTION, precision="exact"), "unknown float32 precision"),
    (lambda: decode_plan(replace(ATTENTION, q_len=200), H200), "use the general plan"),
    (lambda: MatmulSpec(65, 4, 4, gated=True), "a product of 65 rows cannot be gated"),
    (
        lambda: planned("tma", HOPPER, hooks=Hooks(lhs="a = 0")),
        "only a gemv makes its left operand",
    ),
    (lambda: MatmulSpec(4, 4, 4, precision="exact"), "precision must be one of"),
    (lambda: MatmulSpec(4, 4, 4, lhs_dtype="bf8"), "is not an element type"),
    (lambda: MatmulSpec(4, 4, 4, lhs_strides=(1,)), "lhs_strides must have 2 entries"),
    (lambda: MatmulSpec(4, 4, 4, batch=(2,), segments=(SEGMENT,)), "has no batch axes and no gate"),
    (lambda: planned("pointer", AMPERE, lhs_dtype="fp8e5"), "float8 needs compute capability 8.9"),
    (lambda: planned("pointer", HOPPER, lhs_dtype="i32", rhs_dtype="i32"), "tensor cores cannot"),
    (lambda: planned("tma", AMPERE), "cannot be read through descriptors on sm_80"),
    (lambda: planned("wgmma", HOPPER), "family must be 'tma', 'pointer' or 'gemv'"),
    (
        lambda: planned("gemv", HOPPER, m=64, hooks=Hooks(lhs="a = rk_row")),
        "a gemv that makes its left operand holds 16 rows, not 64",
    ),
]


@pytest.mark.parametrize("make, message", CASES, ids=[c[1] for c in CASES])
def test_refusal(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError) as found:
        make()
    assert message in str(found.value)
