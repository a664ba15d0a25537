"""Emits the Triton text of a kernel's instructions, loads and stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from genesis_fn.backends.cuda.codegen.loops import (
    SITES,
    ErrorWord,
    Loops,
    Pointee,
    Store,
    dtype_of,
    is_wide,
    map_text,
)
from genesis_fn.backends.cuda.codegen.pairs import find_pairs
from genesis_fn.backends.cuda.codegen.tiling import Tiling
from genesis_fn.compiler.loop_ir.choices import Choice, ChosenLoad, Element, Option, find_choices
from genesis_fn.compiler.loop_ir.kernel import Instr
from genesis_fn.compiler.loop_ir.lookups import is_start
from genesis_fn.compiler.options import enabled
from genesis_fn.core import dtypes
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Atom, Expr, IndexGuard
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.expressions import literal, loaded, register, rounded, stored


@dataclass(frozen=True, slots=True)
class Parameter:
    """A pointer parameter to `target`. A target that is both read and `written` has two."""

    target: Pointee
    written: bool

    @property
    def kind(self) -> str:
        """The Triton name of the elements' type."""
        return NAMES[dtype_of(self.target)]


_MANY_LOADS = 16  # of a kernel whose indices share what they have in common
_VECTOR = 16  # bytes that a thread moves at once
_LEAST_REPEATS = 4  # of an element, that are worth a tile of its own


class KernelWriter:
    """Writes the lines of one kernel.

    * `value[n]`: the text of instruction n: a literal, or a name that a line has defined.
    * `masks`: the conditions under which loop variables are in bounds; none where all values are.
    * `sizes`: how many values the variables that have had masks have in bounds.
    * `tiled`: the expression of `p` in `i` and `j`, in a kernel that works on tiles.
    * `pairs`: the accesses of two neighbours.
    * `inlined`: it stands in another kernel, which has tiles and values of its own.
    * `chosen`, `replaced`: choices that are loads at a chosen offset, and what they replace.

    Loop variables: `p` counts rows, `r` elements of a row, `q` the rows that are loaded ahead.
    """

    def __init__(
        self, loops: Loops, tiling: Tiling, letter: str = "v", depth: int = 1, inlined: bool = False
    ) -> None:
        self.loops, self.tiling, self.letter, self.depth = loops, tiling, letter, depth
        self.partial = tiling.partial
        self.lines: list[str] = []
        self.parameters: dict[str, Parameter] = {}
        self.value: dict[int, str] = {}
        self.masks: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.tiled: Expr | None = None
        self.pairs = find_pairs(loops, tiling)
        self.chosen: Mapping[int, ChosenLoad] = {}
        self.replaced: frozenset[int] = frozenset()
        if not inlined:
            self.chosen, self.replaced = find_choices(loops.instrs, loops.stores)
        self.inlined = inlined
        self._names: dict[tuple[Pointee, bool], str] = {}
        # Where all lines are in one scope, in which no variable changes.
        whole = tiling.kind in ("flat", "row") and not inlined
        self._shares = whole and len(loops.of("load")) >= _MANY_LOADS
        self._shared: dict[str, str] = {}

    def line(self, text: str) -> None:
        """Append a line at the current indentation."""
        self.lines.append("    " * self.depth + text)

    def bounded(self, name: str, size: int, exact: bool) -> None:
        """Define the mask of a loop variable of `size` values, unless `exact`: it never exceeds
        them."""
        if not exact:
            self.masks[name] = f"{name}_in"
            self.sizes[name] = size
            self.line(f"{name}_in = {name} < {size}")

    def pointer(self, target: Pointee, written: bool) -> str:
        """The parameter for a buffer."""
        # Named in order of appearance, so that equal structures give equal texts.
        key = target, written
        if key not in self._names:
            name = self._names[key] = f"b{len(self._names)}"
            self.parameters[name] = Parameter(target, written)
        return self._names[key]

    def emit(self, n: int) -> None:
        """Write instruction n. The first kernel of a split reduction skips instructions that need
        a complete reduction (`level` above 0)."""
        i = self.loops.instrs[n]
        if self.partial and i.level:
            return
        if n in self.pairs.loads:
            self._load_pair(n)
            return
        if n in self.replaced:
            return
        if n in self.chosen:
            self.value[n] = f"{self.letter}{n}"
            self.line(f"{self.value[n]} = {self._chosen(self.chosen[n])}")
            return
        text = _MAKERS[i.op](self, i)
        # Constants stand where they are used: the compiler folds them into instructions.
        if i.op == "const":
            self.value[n] = text
            return
        self.value[n] = f"{self.letter}{n}"
        self.line(f"{self.value[n]} = {text}")

    def _load_pair(self, n: int) -> None:
        """Write the load of two neighbours, unless the first of them has."""
        if n in self.value:
            return
        first, second = sorted((n, self.pairs.loads[n]), key=self._offset)
        target, offset, _ = self.loops.instrs[first].meta
        for k in (first, second):
            self.value[k] = f"{self.letter}{k}"
        names, along = self.loops.instrs[first].names, self.pairs.along(target, offset)
        mask = self._pair_mask(along, names)
        condition = f", {mask}, other={_zero(target)}" if mask else ""
        address = self._pair_address(offset, along, names)
        access = f"tl.load({self.pointer(target, False)} + ({address}){condition})"
        both = self.pairs.parted(access, along, names)
        self.line(f"{self.value[first]}, {self.value[second]} = {both}")

    def _chosen(self, load: ChosenLoad) -> str:
        """The text of a load at a chosen offset."""
        mask = self.mask(load.names, load.choice.guards)
        condition = f", {mask}, other={_zero(load.target)}" if mask else ""
        pointer = self.pointer(load.target, False)
        access = f"tl.load({pointer} + ({self._chosen_address(load.choice)}){condition})"
        return loaded(access, dtype_of(load.target))

    def _chosen_address(self, option: Option) -> str:
        """The text of the offset that is chosen. What offsets have in common stands behind the
        choice, and that of two axes, as at a corner, is the sum of each axis's: many loads share
        these, and Triton has fewer instructions to go through for each load."""
        if type(option) is Element:
            return self.address(option.offset, option.offset.names)
        assert type(option) is Choice
        (condition,) = [self.condition(g) for g in option.conditions]
        first, second = option.first, option.second
        if type(first) is Element and type(second) is Element:
            pairs = second.offset.terms
            common = {a: k for a, k in first.offset.terms.items() if pairs.get(a) == k}
            shared = Expr(common, first.offset.const)
            own = [ix.add(e.offset, ix.scale(shared, -1)) for e in (first, second)]
            text = self._selected(condition, own[0], own[1])
            return f"{text} + {self.address(shared, shared.names)}"
        step = _step(first, second)
        if step is not None:
            return f"{self._chosen_address(second)} + {self._selected(condition, step, ix.ZERO)}"
        one, other = map(self._chosen_address, (first, second))
        return f"tl.where({condition}, {one}, {other})"

    def _selected(self, condition: str, first: Expr, second: Expr) -> str:
        """The text of an offset that is `first` where the condition holds, else `second`."""
        one, other = [self.address(e, e.names) for e in (first, second)]
        return self._once(f"tl.where({condition}, {one}, {other})")

    def _offset(self, n: int) -> int:
        return self.loops.instrs[n].meta[1].const

    def _pair_address(self, offset: Expr, along: str, names: Collection[str]) -> str:
        return self.pairs.address(offset, along, {*self._variables(names)} - {along})

    def _pair_mask(self, along: str, names: Collection[str]) -> str:
        if self.pairs.flat:
            return f"p2 < {self.loops.rows}" if "p" in self.masks else ""
        parts = [self.masks[x] for x in self._variables(names) if x in self.masks and x != along]
        if along in self.masks:
            parts.append(f"({along}2 < {2 * self.pairs.size(along)})")
        return " & ".join(parts)

    def stores(self, stores: Sequence[Store]) -> None:
        """Write stores, two of neighbours as one."""
        pairs = [(a, b) for a, b in self.pairs.stores if a in stores and b in stores]
        paired = [store for pair in pairs for store in pair]
        for store in stores:
            if store not in paired:
                self.store(store)
        for (target, offset, n), (_, _, m) in pairs:
            along, instrs = self.pairs.along(target, offset), self.loops.instrs
            names = offset.names | instrs[n].names | instrs[m].names
            left, right = self._spread(n, names), self._spread(m, names)
            address = self._pair_address(offset, along, names)
            value = self.pairs.joined(left, right, along, names)
            self.put(self.pointer(target, True), address, value, self._pair_mask(along, names))

    def _spread(self, n: int, names: frozenset[str]) -> str:
        """The text of a value with the axes of all `names`."""
        if self.loops.instrs[n].names >= names & {"p", "r"}:
            return self.value[n]
        return f"tl.broadcast_to({self.value[n]}, {self.pairs.shape(names)})"

    def store(self, store: Store) -> None:
        """Write a store."""
        target, offset, n = store
        names = offset.names
        pointer, address = self.pointer(target, True), self.address(offset, names)
        # Pointer and value of a store must have one shape: an address that does not vary along an
        # axis of the tile gets that axis by `+ p * 0`.
        if self.tiling.kind == "tiled":
            address += "" if "p" in names else " + i * 0"
        elif names.isdisjoint("p" if self.tiling.kind == "flat" else "pr"):
            address += " + p * 0"
            names = names | {"p"}
        mask = self._access_mask(target, offset, names)
        self.put(pointer, address, stored(self.value[n], dtype_of(target)), mask)

    def put(self, pointer: str, address: str, value: str, mask: str = "") -> None:
        """Write a store of `value` at an address."""
        condition = f", {mask}" if mask else ""
        self.line(f"tl.store({pointer} + ({address}), {value}{condition})")

    def get(
        self, target: Pointee, offset: Expr, names: Collection[str], guards: Collection[IndexGuard]
    ) -> str:
        """The text of a load, in the dtype of memory, whose shape has the axes of all `names`."""
        pointer = self.pointer(target, False)
        mask = self._access_mask(target, offset, names, guards)
        # Without `other`, masked elements would be undefined.
        condition = f", {mask}, other={_zero(target)}" if mask else ""
        return f"tl.load({pointer} + ({self.address(offset, names)}){condition})"

    # Addresses and masks.

    def address(self, offset: Expr, names: Collection[str]) -> str:
        """The text of an element offset whose shape has the axes of all `names`."""
        offset = self.untiled(offset)
        # An offset beyond 32 bits is computed from 64-bit copies of its variables: a cast of the
        # result would come after the overflow.
        text = offset.text("_wide" if is_wide(offset) else "", self._runs)
        missing = [x for x in self._variables(names) if x not in offset.names]
        return text + "".join([f" + {x} * 0" for x in missing if x in ("p", "q", "r", "i", "j")])

    def _runs(self, atom: Atom, text: str) -> str:
        """The text of an atom. A remainder that goes around, as (j + 4095) % 4096, runs along its
        axis up to the end: unless told, Triton takes its elements for scattered ones, and reads
        them with the threads of a warp across the rows. One step of relaxation took 62 us so, and
        takes 50; two in one kernel 182 and 68 (4096 x 4096, H200)."""
        kind, operand, _ = atom.key
        if kind != "mod" or len(operand.terms) != 1 or not operand.const:
            return self._once(text)
        ((inner, k),) = operand.terms.items()
        size = self.tiling.chunk
        # What divides a number of elements that follow each other divides where they go around,
        # too: an access of that many never crosses it.
        if k != 1 or inner.key[0] != "var" or inner.key[1] not in ("j", "r"):
            return self._once(text)
        if self.tiling.block == 1 or size == 1:
            return self._once(text)
        return self._once(f"tl.max_contiguous({text}, [1, {size}])")

    def _once(self, text: str) -> str:
        """The text of a part of an index; in kernels of many loads the name of a line that computes
        it once for all."""
        if not self._shares:
            return text
        if text not in self._shared:
            self._shared[text] = name = f"{self.letter}_at{len(self._shared)}"
            self.line(f"{name} = {text}")
        return self._shared[text]

    def mask(self, names: Collection[str], guards: Collection[IndexGuard] = ()) -> str:
        """The mask: the loop variables `names` are in bounds and `guards` hold; "" if always."""
        parts = [self.masks[x] for x in self._variables(names) if x in self.masks]
        parts += sorted([self.condition(g) for g in guards])
        return " & ".join(parts)

    def _access_mask(
        self,
        target: Pointee,
        offset: Expr,
        names: Collection[str],
        guards: Collection[IndexGuard] = (),
    ) -> str:
        """The mask of an access, which may reach into the gaps between rows."""
        before, self.masks = self.masks, self.masks | self._into_gaps(target, offset)
        text = self.mask(names, guards)
        self.masks = before
        return text

    def _into_gaps(self, target: Pointee, offset: Expr) -> dict[str, str]:
        """The bound, by its variable, of an access of rows that end within 16 bytes but begin at
        multiples of them, as those of `pitched_p` do: whole vectors, the last of which reaches into
        the gap behind the row. A bound within it would have each element be an access of its own.

        What is read there is not used. It is written by no other store: kernels write all elements
        of an array but those of such gaps.
        """
        lanes = max(1, _VECTOR // dtype_of(target).itemsize)
        for name, size in self.sizes.items() if self.tiled is None else ():
            extra = -size % lanes
            own = [(a, k) for a, k in offset.terms.items() if name in a.names]
            if not extra or name not in self.masks or type(target) is not Var or len(own) != 1:
                continue
            ((atom, k),) = own
            rest = [n for a, n in offset.terms.items() if a is not atom] + [offset.const]
            if atom.key[0] == "var" and k == 1 and not any([n % lanes for n in rest]):
                if offset.hi + extra < target.aval.size and len(rest) > 1:
                    return {name: f"({name} < {size + extra})"}
        return {}

    def condition(self, g: IndexGuard) -> str:
        """The text of a guard."""
        guard = IndexGuard(self.untiled(g.expr), g.lo, g.hi)
        return f"({guard.text(lambda _, text: self._once(text)) or 'True'})"

    def wide_names(self, p: bool = True, r: bool = True) -> None:
        """Define 64-bit copies of the loop variables in offsets beyond 32 bits: of `r` if `r`, of
        the others if `p`."""
        offsets = [i.meta[1] for i in self.loops.instrs if i.op == "load"]
        used: set[str] = set()
        for e in [*offsets, *[e for _, e, _ in self.loops.stores]]:
            e = self.untiled(e)
            if is_wide(e):
                used |= {x for x in e.names if not is_start(x)}
        for name in sorted(used):
            if r if name == "r" else p:
                self.line(f"{name}_wide = {name}.to(tl.int64)")

    def _variables(self, names: Collection[str]) -> list[str]:
        if self.tiled is None:
            return sorted(names)
        return sorted({*names} - {"p"} | ({"i", "j"} if "p" in names else set()))

    def untiled(self, e: Expr) -> Expr:
        """`e` with `p` replaced by its expression in `i` and `j`, in a kernel of tiles."""
        return ix.substitute(e, "p", self.tiled) if self.tiled is not None else e


def _step(first: Option, second: Option) -> Expr | None:
    """How far the elements of one choice are from those of another under the same conditions; None
    if that is not the same for both."""
    if type(first) is not Choice or type(second) is not Choice:
        return None
    pairs = [(first.first, second.first), (first.second, second.second)]
    elements = [e for pair in pairs for e in pair if type(e) is Element]
    if len(elements) < 4 or first.conditions != second.conditions:
        return None
    a, b, c, d = [e.offset for e in elements]
    step, other = [ix.add(x, ix.scale(y, -1)) for x, y in ((a, b), (c, d))]
    return step if step == other else None


def _zero(target: Pointee) -> str:
    return "0.0" if dtypes.is_float(dtype_of(target)) else "0"


# ---- instructions ----


def _load(t: KernelWriter, i: Instr) -> str:
    target, offset, guards = i.meta
    count = _repeats(t, i)
    if count < _LEAST_REPEATS:
        return loaded(t.get(target, offset, i.names, guards), dtype_of(target))
    # One load for all neighbours along a row that read the same, as the channels of a group read
    # its mean: a thread would load it for each.
    chunk, few, name = t.tiling.chunk, t.tiling.chunk // count, f"r_{count}"
    first = f"start // {count} + " if t.tiling.kind == "looped" else ""
    t.line(f"{name} = {first}tl.arange(0, {few})[None, :]")
    offset = ix.substitute(offset, "r", ix.scale(ix.var(name, t.loops.depth // count), count))
    before, t.masks = t.masks, {k: v for k, v in t.masks.items() if k != "r"}
    if "r" in before:
        t.masks[name] = f"({name} < {t.loops.depth // count})"
    text = loaded(t.get(target, offset, i.names - {"r"} | {name}, guards), dtype_of(target))
    t.masks = before
    rows = t.tiling.block if "p" in i.names else 1
    spread = f"tl.broadcast_to(({text})[:, :, None], ({rows}, {few}, {count}))"
    return f"tl.reshape({spread}, ({rows}, {chunk}))"


def _repeats(t: KernelWriter, i: Instr) -> int:
    """How many neighbours along a row, a power of two of them, a load reads one element for."""
    _, offset, guards = i.meta
    if t.inlined or not enabled("repeats") or "r" not in i.names or is_wide(offset) or i.args:
        return 1
    if any(["r" in g.expr.names for g in guards]):
        return 1
    count = math.gcd(repeats(offset, "r"), t.tiling.chunk, t.loops.depth)
    return count & -count


def repeats(e: Expr, name: str) -> int:
    """A number of neighbouring values of a variable for which an expression is the same; 0 if it is
    for all."""
    count = 0
    for atom in e.terms:
        kind, operand, c = atom.key
        if name in atom.names:
            whole = kind == "div" and _is_variable(operand)
            count = math.gcd(count, 1 if kind == "var" else c if whole else repeats(operand, name))
    return count


def _is_variable(e: Expr) -> bool:
    return not e.const and [(a.key[0], k) for a, k in e.terms.items()] == [("var", 1)]


def _index(t: KernelWriter, i: Instr) -> str:
    e = t.untiled(i.meta)
    if not e.names:
        return literal(e.const, i.dtype)
    return rounded(f"({e.text()}).to({register(i.dtype)})", i.dtype)


def _const(t: KernelWriter, i: Instr) -> str:
    return rounded(literal(i.meta.value, i.dtype), i.dtype)


def _where(t: KernelWriter, i: Instr) -> str:
    a, b = [t.value[x] for x in i.args[:2]]
    guards = " & ".join(sorted([t.condition(g) for g in i.meta]))
    return f"tl.where({guards}, {a}, {b})"


def _round(t: KernelWriter, i: Instr) -> str:
    return rounded(t.value[i.args[0]], i.dtype)


def _start(t: KernelWriter, i: Instr) -> str:
    name, count, check, _ = i.meta
    of = t.loops.instrs[i.args[0]]
    kind = "tl.int64" if of.dtype.itemsize == 8 or of.dtype == dtypes.U32 else "tl.int32"
    text = f"({t.value[i.args[0]]}).to({kind})"
    if of.op == "const" or (of.op == "index" and not of.names):
        text = f"tl.full((), {t.value[i.args[0]]}, {kind})"
    t.line(f"{name}_found = {text}")
    if check is not None:
        _flag(t, i, f"{name}_found", count, t.loops.sites[check[0]] + min(check[1], SITES - 1))
    t.line(f"{name} = tl.minimum(tl.maximum({name}_found, 0), {count - 1})")
    t.line(f"{name}_wide = {name}.to(tl.int64)")
    return name


def _flag(t: KernelWriter, i: Instr, index: str, count: int, site: int) -> None:
    """Raise the error word where `index` is out of bounds."""
    bad, mask = f"({index} < 0) | ({index} >= {count})", t.mask(i.names, i.meta[-1])
    bad = f"({bad}) & {mask}" if mask else bad
    tiling = t.tiling
    rows, columns = tiling.block if "p" in i.names else 1, tiling.chunk if "r" in i.names else 1
    if t.tiled is not None:
        columns = tiling.chunk if "p" in i.names else 1
    shape = (rows,) if tiling.kind == "flat" else (rows, columns)
    flat = [
        f"tl.reshape(tl.broadcast_to({x}, {shape}), ({math.prod(shape)},))" for x in (bad, index)
    ]
    t.line(f"flag_error({t.pointer(ErrorWord(), True)}, {flat[0]}, {flat[1]}, {site})")


def _map(t: KernelWriter, i: Instr) -> str:
    return map_text(t.loops.instrs, i, [t.value[a] if type(a) is int else "" for a in i.args])


def _combine(t: KernelWriter, i: Instr) -> str:
    a, b = [t.value[x] for x in i.args]
    combine = i.meta[0].combine
    return f"({a} + {b})" if combine == "add" else f"{combine}({a}, {b})"


# The text of an instruction, by its operation.
_MAKERS: dict[str, Callable[[KernelWriter, Instr], str]] = {
    "load": _load, "index": _index, "const": _const, "where": _where, "round": _round, "map": _map,
    "combine": _combine, "start": _start,
}  # fmt: skip
