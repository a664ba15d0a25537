"""The text of a kernel's instructions, loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from genesis_fn.backends.cuda.codegen.loops import Loops, Pointee, Store, dtype_of, is_wide
from genesis_fn.backends.cuda.codegen.tiling import Form
from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr, Guard
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.expressions import (
    expression,
    literal,
    loaded,
    register,
    rounded,
    stored,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A pointer to `target`, a value in memory or a `Part`, that is read or `written`."""

    target: Pointee
    written: bool

    @property
    def kind(self) -> str:
        """The Triton name of the elements' type."""
        return NAMES[dtype_of(self.target)]


class Text:
    """The lines of one kernel while they are written.

    `value[n]` is the text of instruction n: a literal, or a name, `letter` and n, that a line has
    defined. `masks` are the conditions under which loop variables are in bounds; where the kernel
    works on tiles, `p` is the expression `tiled` in `i` and `j`.
    """

    def __init__(self, loops: Loops, form: Form, letter: str = "v", depth: int = 1) -> None:
        self.loops, self.form, self.letter, self.depth = loops, form, letter, depth
        self.partial = form.partial
        self.lines: list[str] = []
        self.parameters: dict[str, Parameter] = {}
        self.value: dict[int, str] = {}
        self.masks: dict[str, str] = {}
        self.tiled: Expr | None = None
        self._names: dict[tuple[Pointee, bool], str] = {}

    def line(self, text: str) -> None:
        """A line at the present depth of indentation."""
        self.lines.append("    " * self.depth + text)

    def bounded(self, name: str, size: int, exact: bool) -> None:
        """Give a loop variable of `size` values a mask unless all that it takes are in bounds."""
        if not exact:
            self.masks[name] = f"{name}_in"
            self.line(f"{name}_in = {name} < {size}")

    def pointer(self, target: Pointee, written: bool) -> str:
        """The parameter for a buffer."""
        key = target, written
        if key not in self._names:
            name = self._names[key] = f"b{len(self._names)}"
            self.parameters[name] = Parameter(target, written)
        return self._names[key]

    def emit(self, n: int) -> None:
        """The line of instruction n; none where what it needs is known in another kernel only."""
        i = self.loops.instrs[n]
        if self.partial and i.level:
            return
        text = _MAKERS[i.op](self, i)
        if i.op == "const":
            self.value[n] = text
            return
        self.value[n] = f"{self.letter}{n}"
        self.line(f"{self.value[n]} = {text}")

    def store(self, store: Store) -> None:
        """The line of a store."""
        target, offset, n = store
        names = offset.names
        pointer, address = self.pointer(target, True), self.address(offset, names)
        if self.form.kind == "tiled":
            address += "" if "p" in names else " + i * 0"
        elif names.isdisjoint("p" if self.form.kind == "flat" else "pr"):
            address += " + p * 0"
            names = names | {"p"}
        self.put(pointer, address, stored(self.value[n], dtype_of(target)), self.mask(names))

    def put(self, pointer: str, address: str, value: str, mask: str = "") -> None:
        """The line of a store of this text."""
        condition = f", {mask}" if mask else ""
        self.line(f"tl.store({pointer} + ({address}), {value}{condition})")

    def get(
        self, target: Pointee, offset: Expr, names: Collection[str], guards: Collection[Guard]
    ) -> str:
        """The text of a load, as it lies in memory, whose values vary along all of `names`."""
        pointer, mask = self.pointer(target, False), self.mask(names, guards)
        zero = "0.0" if dtypes.is_float(dtype_of(target)) else "0"
        condition = f", {mask}, other={zero}" if mask else ""
        return f"tl.load({pointer} + ({self.address(offset, names)}){condition})"

    # Addresses and conditions.

    def address(self, offset: Expr, names: Collection[str]) -> str:
        """The text of an element offset that varies along all of `names`."""
        offset = self.untiled(offset)
        text = offset.text("_wide" if is_wide(offset) else "")
        missing = [x for x in self._variables(names) if x not in offset.names]
        return text + "".join([f" + {x} * 0" for x in missing if x in ("p", "q", "r", "i", "j")])

    def mask(self, names: Collection[str], guards: Collection[Guard] = ()) -> str:
        """Whether the loop variables `names` are in bounds and `guards` hold; "" if always."""
        parts = [self.masks[x] for x in self._variables(names) if x in self.masks]
        parts += sorted([self.condition(g) for g in guards])
        return " & ".join(parts)

    def condition(self, g: Guard) -> str:
        """Whether a guard holds."""
        return f"({Guard(self.untiled(g.expr), g.lo, g.hi).text() or 'True'})"

    def wide_names(self, p: bool = True, r: bool = True) -> None:
        """64-bit versions of the variables that offsets need so: of `r`, and with `p` of the
        others."""
        offsets = [i.meta[1] for i in self.loops.instrs if i.op == "load"]
        used: set[str] = set()
        for e in [*offsets, *[e for _, e, _ in self.loops.stores]]:
            e = self.untiled(e)
            if is_wide(e):
                used |= e.names
        for name in sorted(used):
            if r if name == "r" else p:
                self.line(f"{name}_wide = {name}.to(tl.int64)")

    def _variables(self, names: Collection[str]) -> list[str]:
        if self.tiled is None:
            return sorted(names)
        return sorted({*names} - {"p"} | ({"i", "j"} if "p" in names else set()))

    def untiled(self, e: Expr) -> Expr:
        """`e` in `i` and `j` where the kernel works on tiles."""
        return ix.substitute(e, "p", self.tiled) if self.tiled is not None else e


# ---- instructions ----


def _load(t: Text, i: Instr) -> str:
    target, offset, guards = i.meta
    return loaded(t.get(target, offset, i.names, guards), dtype_of(target))


def _index(t: Text, i: Instr) -> str:
    e = t.untiled(i.meta)
    if not e.names:
        return literal(e.const, i.dtype)
    return rounded(f"({e.text()}).to({register(i.dtype)})", i.dtype)


def _const(t: Text, i: Instr) -> str:
    return rounded(literal(i.meta.value, i.dtype), i.dtype)


def _where(t: Text, i: Instr) -> str:
    a, b = [t.value[x] for x in i.args]
    guards = " & ".join(sorted([t.condition(g) for g in i.meta]))
    return f"tl.where({guards}, {a}, {b})"


def _round(t: Text, i: Instr) -> str:
    return rounded(t.value[i.args[0]], i.dtype)


def _map(t: Text, i: Instr) -> str:
    instrs = t.loops.instrs
    operands = [aval((), instrs[a].dtype) if type(a) is int else a.value for a in i.args]
    names = [t.value[a] if type(a) is int else "" for a in i.args]
    return expression(i.meta[0], names, operands, dict(i.meta[1]), i.near)


def _join(t: Text, i: Instr) -> str:
    a, b = [t.value[x] for x in i.args]
    combine = i.meta[0].combine
    return f"({a} + {b})" if combine == "add" else f"{combine}({a}, {b})"


_MAKERS: dict[str, Callable[[Text, Instr], str]] = {
    "load": _load, "index": _index, "const": _const, "where": _where, "round": _round, "map": _map,
    "join": _join,
}  # fmt: skip
