"""Float32 operands of a matrix product, copied so that Hopper's tensor cores read them best.

The copy has k contiguous and padded with zeros. For "tf32x3" it holds three parts side by side, so
that the product of the copies is the sum lo * hi + hi * lo + hi * hi over the parts of the operands
(Ootomo & Yokota 2022, "Recovering single precision accuracy from Tensor Cores"). Infinities and
NaNs are in the last term alone: in the others they would meet zeros.
"""

from __future__ import annotations

import math
from dataclasses import replace

import triton
import triton.language as tl

from genesis_fn.kernels.matmul.spec import MatmulSpec
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv

TILE = 64


@triton.jit
def prepare_kernel(
    x,
    y,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROW_STEP: tl.constexpr,
    DEPTH_STEP: tl.constexpr,
    RANK: tl.constexpr,
    BATCH: tl.constexpr,
    BATCH_STEPS: tl.constexpr,
    PARTS: tl.constexpr,
    LEFT: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    """y[batch, row, part, k] of x[batch, row, k]; a tile is read along x's contiguous axis."""
    # The batch index, from its last axis on.
    rest = tl.program_id(2)
    source = x
    for i in tl.static_range(RANK):
        # Not named: the compiler unrolls the loop into one scope, where a constant has one value.
        source += (rest % BATCH[RANK - 1 - i]).to(tl.int64) * BATCH_STEPS[RANK - 1 - i]
        rest = rest // BATCH[RANK - 1 - i]
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    depth = tl.program_id(1) * TILE + tl.arange(0, TILE)
    if WIDE:
        row = row.to(tl.int64)
    if DEPTH_STEP == 1:
        at = row[:, None] * ROW_STEP + depth[None, :]
        v = tl.load(source + at, (row < ROWS)[:, None] & (depth < DEPTH)[None, :], other=0.0)
    else:
        at = depth[:, None] * DEPTH_STEP + row[None, :] * ROW_STEP
        v = tl.load(source + at, (depth < DEPTH)[:, None] & (row < ROWS)[None, :], other=0.0)
        v = tl.trans(v)
    out = y + tl.program_id(2).to(tl.int64) * (ROWS * PARTS * PADDED)
    offset = row[:, None] * (PARTS * PADDED) + depth[None, :]
    inside = (row < ROWS)[:, None] & (depth < PADDED)[None, :]
    if PARTS == 1:
        tl.store(out + offset, v, inside)
    else:
        # What tf32 keeps, exactly, and the rest, rounded to what tf32 keeps.
        high = (v.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        finite = tl.abs(v) < float("inf")
        rest_bits = (v - high).to(tl.int32, bitcast=True)
        low = ((rest_bits + 4096) & -8192).to(tl.float32, bitcast=True)
        low = tl.where(finite, low, 0.0)
        shown = tl.where(finite, high, 0.0)
        # A NaN may hold all its bits where tf32 has none.
        high = tl.where(finite, high, v)
        tl.store(out + offset, low if LEFT else shown, inside)
        tl.store(out + offset + PADDED, shown if LEFT else low, inside)
        tl.store(out + offset + 2 * PADDED, high, inside)


def copies(spec: MatmulSpec, operand: str) -> bool:
    """Whether an operand ("lhs" or "rhs") is copied: always for "tf32x3", else if k is not its
    contiguous axis."""
    return spec.precision == "tf32x3" or spec.strides(operand)[-2:][operand == "lhs"] != 1


def prepared_spec(spec: MatmulSpec) -> MatmulSpec:
    """The product of the copies: of type "tf32", k contiguous in both, three times as deep for
    "tf32x3"."""
    fields: dict[str, object] = {"precision": "tf32"}
    for operand, rows in (("lhs", spec.m), ("rhs", spec.n)):
        if not copies(spec, operand):
            fields[f"{operand}_strides"] = spec.strides(operand)
            continue
        batch, steps = _kept(spec, operand)
        line = _depth(spec)
        size, strides = rows * line, [0] * len(spec.batch)
        for i in reversed(range(len(batch))):
            if steps[i]:
                strides[i] = size
                size *= batch[i]
        inner = (line, 1) if operand == "lhs" else (1, line)
        fields[f"{operand}_strides"] = (*strides, *inner)
    # If only one operand is copied, its padding is not contracted: the other one has none.
    both = copies(spec, "lhs") and copies(spec, "rhs")
    depth = _depth(spec) if both else spec.k
    return replace(spec, k=depth, lhs_transposed=False, rhs_transposed=False, **fields)


def _parts(spec: MatmulSpec) -> int:
    return 3 if spec.precision == "tf32x3" else 1


def _depth(spec: MatmulSpec) -> int:
    return _parts(spec) * _padded(spec)


def _padded(spec: MatmulSpec) -> int:
    # Whole tiles of k; rows start at multiples of 128 bytes.
    return cdiv(spec.k, 32) * 32


def _kept(spec: MatmulSpec, operand: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of the batch axes, 1 where the operand repeats, and their strides."""
    steps = spec.strides(operand)[:-2]
    return tuple(n if s else 1 for n, s in zip(spec.batch, steps, strict=True)), steps


def add_prepared(builder: PlanBuilder, spec: MatmulSpec, operand: str) -> BufferArg:
    """Append the copy of the operand, the plan's first or second input, and return it."""
    left = operand == "lhs"
    rows = spec.m if left else spec.n
    batch, steps = _kept(spec, operand)
    inner = spec.strides(operand)[-2:]
    row_step, depth_step = inner if left else inner[::-1]
    depth = _depth(spec)
    copy = builder.workspace(math.prod(batch) * rows * depth, "fp32")
    builder.launch(
        prepare_kernel,
        (cdiv(rows, TILE), cdiv(_padded(spec), TILE), math.prod(batch)),
        {"x": BufferArg(not left, "fp32"), "y": copy},
        {
            "ROWS": rows,
            "DEPTH": spec.k,
            "PADDED": _padded(spec),
            "ROW_STEP": row_step,
            "DEPTH_STEP": depth_step,
            "RANK": len(batch),
            "BATCH": batch,
            "BATCH_STEPS": steps,
            "PARTS": _parts(spec),
            "LEFT": left,
            "WIDE": max(spec.extent(operand), rows * depth + TILE * depth) > INT32_MAX,
            "TILE": TILE,
        },
        num_warps=8,
    )
    return copy
