"""Plans of kernel launches: the contract between hand-written kernels, generated ones and drivers.

A kernel family exposes *planners*: functions from a spec (shapes, dtypes, static options) and a
target to a `Plan`, which is pure data. A backend gives the plan memory and hands its launches to a
driver: the CUDA driver compiles and launches them (or records them into a graph), the interpreting
driver runs the same Triton functions on host memory. Nothing here imports Triton.

A step may also be a call of a library (`kernels/routines.py`), which drivers know how to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from genesis_fn.kernels.routines import Routine


@dataclass(frozen=True, slots=True)
class BufferArg:
    """A pointer argument: buffer number `index` of the plan, seen `offset` bytes from its start.

    Buffers are numbered inputs first, then outputs, then workspaces. `dtype` names the Triton
    element type the pointer is passed as ("fp32", "bf16", "fp16", "fp8e4nv", "fp8e5", "i1", "i8",
    "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp64").
    """

    index: int
    dtype: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A host TMA descriptor argument over a row-major view of a buffer.

    `shape` and `strides` count elements (the last stride is 1; the others times the item size are
    multiples of 16 bytes); `block` is the tile that one load or store moves.
    """

    buffer: BufferArg
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A run-time number: `dtype` is "i32", "i64" or "fp32"."""

    value: int | float
    dtype: str = "i32"


Argument: TypeAlias = BufferArg | Descriptor | Scalar


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `kernel` is a `triton.jit` function, `arguments` its run-time parameters
    by name (in signature order), `constants` its constexpr parameters by name.

    With `programmatic` the kernel may be started before the preceding one has ended (programmatic
    dependent launch). It waits for that one's end before it touches memory; a kernel whose source
    has no wait gets one at its beginning.
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: Mapping[str, Argument]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    programmatic: bool = False
    max_registers: int | None = None  # per thread, so that more programs share a multiprocessor
    shared: int = 0  # bytes of shared memory that the stages of a product take, at most
    tiles: int = 0  # that the programs of a persistent kernel walk
    cooperative: bool = False  # programs wait for each other: all of them must run at once

    @property
    def options(self) -> dict[str, Any]:
        """The options of Triton's compiler."""
        options: dict[str, Any] = {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            # Said, since the defaults of Triton 3.6 and 3.9 differ.
            "enable_fp_fusion": True,
        }
        if self.programmatic:
            options["launch_pdl"] = True
        if self.cooperative:
            options["launch_cooperative_grid"] = True
        if self.max_registers is not None:
            options["maxnreg"] = self.max_registers
        return options

    def in_rounds(self) -> Launch:
        """A launch of a persistent kernel for a device of which another kernel takes some
        processors; of other kernels, which have a program for each tile, this one.

        A program of such a kernel keeps its processor for the whole launch, so that the other
        kernel waits for its end, or its own programs on processors that are taken begin when all
        others have ended. Here programs walk no more than `CHUNK` tiles, about a twelfth of those
        that a processor has, and `PROGRAMS` of them at a time the next tiles, as processors become
        free.
        """
        if self.tiles <= self.grid[0]:
            return self
        programs = self.constants["PROGRAMS"]
        chunk = max(1, self.tiles // (12 * programs))
        rounds, rest = divmod(self.tiles, programs * chunk)
        grid = (rounds * programs + min(rest, programs), 1, 1)
        return replace(self, grid=grid, constants={**self.constants, "CHUNK": chunk})


@dataclass(frozen=True, slots=True)
class Memset:
    """A step that sets a whole buffer to zero bytes (a memset node of the graph)."""

    buffer: int


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A step that calls a library: `buffers` are the arguments that `routine` names, its scratch
    memory last."""

    routine: Routine
    buffers: tuple[BufferArg, ...]


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory of `bytes` bytes, alive from the first step of its plan to the last."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that compute `outputs` from `inputs`, in order, and the scratch they need.

    `inputs` and `outputs` count buffers; every buffer is dense, row-major and 16-byte aligned.
    """

    inputs: int
    outputs: int
    steps: tuple[Launch | Memset | LibraryCall, ...]
    workspaces: tuple[Workspace, ...] = ()
