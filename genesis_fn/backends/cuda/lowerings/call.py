"""What a lowering rule takes (`Call`) and returns (`Plan`, `Views`, `HostCall`, ...)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from genesis_fn.backends.cuda import libraries
from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.driver.communication import Communication
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration.config import Numerics
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.primitives.indexing.constants import ConstantNumbers

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class HostCall:
    """The CPU backend runs the primitive, between copies of its operands and results.

    Callbacks, users' functions of tensors and primitives of the CPU run so, and what libraries
    compute where there are none.
    """

    prim: Primitive
    avals: tuple[Any, ...]
    params: dict[str, Any]

    def function(self) -> Callable[..., list[Any]]:
        """From CPU tensors (and the Python scalars in their places) to a list of CPU tensors."""
        from genesis_fn.backends.cpu.lower import lower_primitive

        run = lower_primitive(self.prim, list(self.avals), self.params)
        return run if self.prim.multi else lambda *xs: [run(*xs)]


def runs_on_host(prim: Primitive) -> bool:
    """Whether the CPU backend has a lowering for the primitive."""
    # Registers the CPU's lowerings.
    import genesis_fn.backends.cpu  # noqa: F401 # pyright: ignore[reportUnusedImport]
    from genesis_fn.backends.cpu.lower import has_lowering

    return has_lowering(prim)


@dataclass(frozen=True)
class Views:
    """Each result is memory of an array operand: (operand number, first byte)."""

    sources: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Exchange:
    """The processes of this one's group, which is one of `groups`, exchange the contents of their
    operands and get their results."""

    groups: tuple[tuple[int, ...], ...]
    communication: Communication


@dataclass(frozen=True)
class Constant:
    """The result is an int32 that this process knows, and others know another one."""

    value: int


@dataclass(frozen=True)
class Contents:
    """The result is in memory that holds it before the program runs, and is never written to."""

    numbers: ConstantNumbers


Lowered: TypeAlias = Plan | HostCall | Views | Exchange | Constant | Contents


@dataclass(frozen=True)
class Call:
    """One equation: a primitive, its operands' avals (or scalars), its parameters, and the GPU that
    it is planned for. `site` numbers it among those that check something; `numerics` says how
    exactly it is computed.

    `in_place`: the memory of the result holds the first operand already.
    """

    prim: Primitive
    avals: tuple[Any, ...]
    params: dict[str, Any]
    target: Target
    site: int = 1
    in_place: bool = field(default=False, kw_only=True)
    numerics: Numerics = field(kw_only=True)
    operands: tuple[Aval, ...] = field(init=False)
    outs: tuple[Aval, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = self.prim.abstract(self.avals, self.params)
        outs = tuple(found) if self.prim.multi else (found,)
        operands = tuple([a for a in self.avals if type(a) is Aval])
        object.__setattr__(self, "outs", outs)
        object.__setattr__(self, "operands", operands)

    @property
    def out(self) -> Aval:
        """The aval of the only result."""
        return self.outs[0]

    def number(self, position: int) -> int:
        """The buffer number of operand `position`, an array."""
        return sum([type(a) is Aval for a in self.avals[:position]])

    def read(self, position: int, raw: bool = False) -> BufferArg:
        """The buffer of operand `position`; `raw` as integers of its width."""
        return buffer(self.number(position), self.avals[position], raw)

    def write(self, number: int = 0, raw: bool = False) -> BufferArg:
        """The buffer of result `number`."""
        return buffer(len(self.operands) + number, self.outs[number], raw)

    def host(self) -> HostCall:
        """The equation, left to the host."""
        return HostCall(self.prim, self.avals, self.params)


def buffer(number: int, kind: Aval, raw: bool = False) -> BufferArg:
    """Buffer `number` as a pointer to elements of `kind`, or to integers of their width."""
    return BufferArg(number, f"i{8 * kind.dtype.itemsize}" if raw else NAMES[kind.dtype])


RULES: dict[Primitive | type, Callable[[Call], Lowered | None]] = {}


def lowers(*of: Primitive | type, **given: object) -> Callable[[F], F]:
    """Decorator: the function lowers these primitives, or those with this kind of `lowering` which
    have no rule of their own, with `given` as further arguments."""

    def register(rule: F) -> F:
        RULES.update(dict.fromkeys(of, functools.partial(rule, **given) if given else rule))
        return rule

    return register


def checks(lowered: Lowered | None, outs: Sequence[Aval]) -> bool:
    """Whether a plan for these results takes the error word as one more output."""
    return type(lowered) is Plan and lowered.outputs > len(outs)


LIBRARY_RULES: set[Callable[[Call], Lowered | None]] = set()
"""Rules of primitives that libraries compute."""


def lowers_by_library(prim: Primitive) -> Callable[[Callable[[Call], Lowered]], object]:
    """Decorator: the function lowers a primitive on operands that have elements; where there are no
    libraries the host computes."""

    def register(rule: Callable[[Call], Lowered]) -> object:
        def lower(call: Call) -> Lowered:
            if not all([a.size for a in call.operands]):
                return _of_no_elements(call)
            return rule(call) if libraries.usable(call.target) else call.host()

        RULES[prim] = lower
        LIBRARY_RULES.add(lower)
        return rule

    return register


def _of_no_elements(call: Call) -> Lowered:
    """Results for a matrix without rows or columns that have elements all the same: the vectors of
    a QR or singular value decomposition are the identity, and rows that LU permutes stay."""
    builder = PlanBuilder(len(call.operands), len(call.outs))
    for number, out in enumerate(call.outs):
        if not out.size:
            continue
        columns = out.shape[-1]
        if dtypes.is_integer(out.dtype):
            kind, value, parts = out.dtype, f"i % {columns}", 1
        else:
            kind, parts = dtypes.real_of(out.dtype), 1 + dtypes.is_complex(out.dtype)
            at = f"(i // {parts})"
            value = (
                f"({at} % {columns} == {at} // {columns} % {out.shape[-2]}) & (i % {parts} == 0)"
            )
        lines = [f"tl.store(y + i, ({value}).to({MEMORY[kind]}), inside)"]
        buffers = {"y": BufferArg(len(call.operands) + number, NAMES[kind])}
        add_elements(builder, "of_no_elements", buffers, parts * out.size, lines)
    return builder.build()
