"""The buffers of a program, by number, and what is known of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from genesis_fn.backends.cuda.codegen import KernelCache
from genesis_fn.compiler.target import Target
from genesis_fn.core.jaxpr import Eqn


@dataclass(slots=True)
class StepSummary:
    """What reports say of one step: its name, its traffic in bytes, its operations, the source of
    its kernels and the user's lines. `depth` counts the loops and branches around it."""

    name: str
    traffic: int
    operations: int
    sources: list[str]
    lines: list[str]
    depth: int = 0


@dataclass(slots=True)
class BufferTable:
    """The buffers of a whole program, by number.

    * `bytes[b]`: the size of buffer b.
    * `parent[b] = (a, offset)`: b is part of buffer a. Buffers without a parent are bound to
      addresses by the executable: inputs, outputs, the arena, the error word, pointer tables.
    * `sites`: the equations that check something, in the order of their sites in the error word.
    * `pointers`: tables of addresses that multi-tensor kernels read; rows of buffer numbers.
    * `read_only`: inputs that no step writes, so that kernels may load them before they wait for
      the kernel ahead of them.
    * `generated`: generated kernels by what they compute.
    """

    target: Target
    bytes: list[int] = field(default_factory=list)
    parent: dict[int, tuple[int, int]] = field(default_factory=dict)
    sites: list[Eqn] = field(default_factory=list)
    error_word: int | None = None
    pointers: dict[int, list[list[int]]] = field(default_factory=dict)
    summaries: list[StepSummary] = field(default_factory=list)
    read_only: set[int] = field(default_factory=set)
    generated: KernelCache = field(default_factory=dict)

    def new(self, size: int) -> int:
        """A buffer of `size` bytes."""
        self.bytes.append(size)
        return len(self.bytes) - 1

    def view(self, of: int, offset: int, size: int) -> int:
        """The buffer that is a part of another one."""
        if offset == 0 and size == self.bytes[of]:
            return of
        b = self.new(size)
        self.parent[b] = of, offset
        return b

    def root(self, b: int) -> int:
        """The buffer that holds the memory of `b`."""
        while b in self.parent:
            b = self.parent[b][0]
        return b
