"""Building plans: launches and workspaces, tiles of row kernels, plans inside of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import (
    Argument,
    BufferArg,
    Descriptor,
    Launch,
    LibraryCall,
    Memset,
    Plan,
    Scalar,
    Workspace,
)
from genesis_fn.kernels.routines import Routine

INT32_MAX = 2**31 - 1  # beyond it kernels compute offsets in 64 bits (their constant WIDE)


def cdiv(a: int, b: int) -> int:
    """The smallest integer not below a / b."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major array."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def accumulator(dtype: str) -> str:
    """The element type in which `dtype` values are summed: fp64 for fp64, fp32 otherwise."""
    return "fp64" if dtype == "fp64" else "fp32"


def raw_dtype(dtype: str) -> str:
    """The signed integer type as wide as `dtype`, for kernels that only move bits."""
    return f"i{8 * ITEMSIZE[dtype]}"


Tile: TypeAlias = tuple[int, int, int]
"""(rows, padded columns, warps) of a program that holds whole rows in registers."""


def fits_registers(columns: int, dtype: str, most: int = 16384) -> bool:
    """Whether a program holds a row: of `most` elements, a quarter of them for fp64."""
    return columns <= (most // 4 if dtype == "fp64" else most)


def row_tile(columns: int, dtype: str) -> Tile:
    """The tile of rows of `columns` elements.

    It has about 4096 elements (at least one row), sixteen a thread, or 32 of longer rows, so
    that more programs share a multiprocessor; half of all for fp64.
    """
    # Registers decide: a thread has 255 of 32 bits at most, for the row and what is computed from
    # it.
    elements, per_thread = (2048, 8) if dtype == "fp64" else (4096, 16)
    padded = next_power_of_two(columns)
    if padded > elements:
        per_thread *= 2
    rows = max(1, elements // padded)
    warps = min(16, max(1, rows * padded // (32 * per_thread)))
    return rows, padded, warps


class PlanBuilder:
    """Collects the launches and workspaces of one plan; buffers are numbered as `Plan` says."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.steps: list[Launch | Memset | LibraryCall] = []
        self.workspaces: list[Workspace] = []

    def workspace(self, elements: int, dtype: str) -> BufferArg:
        """A new scratch buffer of `elements` elements."""
        self.workspaces.append(Workspace(max(16, elements * ITEMSIZE[dtype])))
        return BufferArg(self.inputs + self.outputs + len(self.workspaces) - 1, dtype)

    def clear(self, buffer: BufferArg) -> None:
        """Zero a whole buffer."""
        if buffer.offset:
            raise ValueError(f"buffer {buffer.index} can only be cleared whole, not from an offset")
        self.steps.append(Memset(buffer.index))

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: Mapping[str, Argument],
        constants: Mapping[str, Any],
        *,
        num_warps: int = 4,
        num_stages: int = 2,
    ) -> None:
        """Append one kernel launch; missing grid axes are 1, an empty grid launches nothing."""
        x, y, z = (*grid, 1, 1)[:3]
        if 0 in (x, y, z):
            return
        self.steps.append(
            Launch(kernel, (x, y, z), dict(arguments), dict(constants), num_warps, num_stages)
        )

    def call(self, routine: Routine, buffers: Sequence[BufferArg], scratch: int) -> None:
        """Append a call of a library, with `scratch` bytes of memory for it."""
        self.steps.append(LibraryCall(routine, (*buffers, self.workspace(scratch, "u8"))))

    def include(self, plan: Plan, buffers: Sequence[BufferArg]) -> None:
        """Append the steps of `plan`, whose inputs and outputs become `buffers` of this one."""
        if len(buffers) != plan.inputs + plan.outputs:
            raise ValueError(
                f"a plan of {plan.inputs} inputs and {plan.outputs} outputs was given "
                f"{len(buffers)} buffers"
            )
        # The plan's workspaces follow those of this one; its buffers get new numbers throughout.
        base = self.inputs + self.outputs + len(self.workspaces)
        scratch = [BufferArg(base + i, "i8") for i in range(len(plan.workspaces))]
        self.workspaces.extend(plan.workspaces)
        table = [*buffers, *scratch]
        for step in plan.steps:
            if isinstance(step, Memset):
                self.clear(table[step.buffer])
            elif isinstance(step, LibraryCall):
                moved = tuple([_renumbered(b, table) for b in step.buffers])
                self.steps.append(replace(step, buffers=moved))
            else:
                arguments = {k: _renumber(v, table) for k, v in step.arguments.items()}
                self.steps.append(replace(step, arguments=arguments))

    def build(self) -> Plan:
        """The finished plan."""
        return Plan(self.inputs, self.outputs, tuple(self.steps), tuple(self.workspaces))


def add_row_kernel(
    builder: PlanBuilder,
    kernels: tuple[Any, Any],
    shape: tuple[int, int],
    arguments: Mapping[str, Argument],
    constants: Mapping[str, Any],
    tile: Tile | None,
    blocks: Mapping[str, Any],
    warps: int = 8,
) -> None:
    """Append a kernel over the rows of a matrix: the first of `kernels` for a `tile` of whole rows;
    without one the second, with a program of `warps` for each row, which it reads in `blocks`.

    `shape` is (rows, elements from one row to the next).
    """
    rows, stride = shape
    if tile is None:
        builder.launch(kernels[1], (rows,), arguments, {**constants, **blocks}, num_warps=warps)
        return
    row_block, column_block, warps = tile
    sizes = {"ROW_BLOCK": row_block, "COLUMN_BLOCK": column_block}
    builder.launch(
        kernels[0],
        (cdiv(rows, row_block),),
        {**arguments, "rows": Scalar(rows)},
        {**constants, **sizes, "WIDE": rows * stride > INT32_MAX},
        num_warps=warps,
    )


def _renumbered(buffer: BufferArg, table: Sequence[BufferArg]) -> BufferArg:
    target = table[buffer.index]
    return BufferArg(target.index, buffer.dtype, target.offset + buffer.offset)


def _renumber(argument: Argument, table: Sequence[BufferArg]) -> Argument:
    if isinstance(argument, BufferArg):
        return _renumbered(argument, table)
    if isinstance(argument, Descriptor):
        return replace(argument, buffer=_renumbered(argument.buffer, table))
    return argument
