"""Compiles a program to one straight-line Python function over torch tensors.

`emit.py` writes each equation as a line, `pattern_fusion.py` some groups of equations as one. This
module orders the lines, drops values after their last use, and reuses memory: a line writes its
result into the memory of an operand that dies there, if an alias analysis shows that nothing else
can see that memory. It follows which values share storage through views; storage may be written
only if this program allocated it, or if it was donated, which each call checks again (`own`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.backends.cpu import pattern_fusion
from genesis_fn.backends.cpu.emit import (
    FRESH,
    VIEW,
    Namespace,
    Statement,
    broadcast_shape,
    foreach_of,
    statement_of,
)
from genesis_fn.backends.cpu.lower import FusedFunction, fused_function, lower_primitive
from genesis_fn.backends.cpu.lowerings.collectives import MEETINGS
from genesis_fn.compiler.memory.sink import sink_equations
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import sig
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import equation_of
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, dead_code, e_jaxprs
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import barrier_p, broadcast_in_dim_p, reshape_p
from genesis_fn.transforms.custom.callback import pure_callback_p
from genesis_fn.transforms.custom.fused_functions import fused_p
from genesis_fn.transforms.staging.cost_analysis import memory

# Values that depend on no input are computed once and kept, up to this many bytes each.
_KEPT = 4 << 20
# Operations on arrays of at most so many bytes are batched by torch's `_foreach_` functions: their
# cost is the call.
_SMALL = 1 << 16


def tensor_function(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """The program as a function from torch tensors to a list of them."""
    return tensor_program(jaxpr).run


def tensor_program(
    jaxpr: Jaxpr, donated: tuple[bool, ...] = (), listed: bool = False
) -> TensorProgram:
    """The compiled program, cached on `jaxpr`. It may overwrite the inputs marked in `donated`;
    `listed`: `run` takes one list of inputs."""
    key = (tensor_program, donated, listed)
    found = jaxpr.cache.get(key)
    if found is None:
        simple = sink_equations(simplify_jaxpr(jaxpr, has_function))
        found = jaxpr.cache[key] = TensorProgram(simple, donated, listed=listed)
    return found


def function_of(e: Eqn) -> FusedFunction | None:
    """The torch function of the fused function that an equation calls, if it has one that supports
    the operands."""
    if e.prim is not fused_p:
        return None
    avals = [i.aval if type(i) is Var else i for i in e.ins]
    return fused_function(e.params["op"], avals, e.params["static"])


def has_function(e: Eqn) -> bool:
    """Whether an equation is a fused function with a torch function for these operands."""
    return function_of(e) is not None


class TensorProgram:
    """A generated function, and what is known of the memory it uses.

    * `run(*tensors)` -> list of tensors; `listed` programs take one list of them.
    * `overwritten`: the donated inputs whose memory it writes to.
    * `owned[i]`: output i fills memory that this call allocated or that was donated to it, and
      shares it with no other output.
    """

    __slots__ = ("run", "overwritten", "owned", "source", "jaxpr")

    def __init__(
        self,
        jaxpr: Jaxpr,
        donated: Sequence[bool] = (),
        *,
        reuse: bool = True,
        fold: bool = True,
        listed: bool = False,
    ) -> None:
        writer = _ProgramWriter(jaxpr, donated, reuse, listed)
        self.jaxpr = jaxpr
        self.source, self.run = writer.write(writer.constants(jaxpr) if fold else jaxpr)
        self.overwritten, self.owned = tuple(sorted(writer.overwritten)), tuple(writer.owned)


# Never computed ahead: users expect a callback to run when the program does, and processes meet in
# the order of their programs, not of their compilations.
_LATER = frozenset({pure_callback_p}) | MEETINGS
# Left unexpanded, as a number or a smaller array, until an operation needs all elements.
_LAZY = frozenset({broadcast_in_dim_p, full_p, barrier_p})


class _ProgramWriter:
    """Writes the function. Its state is an alias analysis; storages are numbered.

    * `storages[v]`: the storages that v may be in.
    * `values_in[m]`: the live values that may be in storage m.
    * `writable`: storages that may be overwritten once a single live value is in them.
    * `dense`: values that fill their storage, each element once; `row_major`: those laid out in
      row-major order.
    * `unexpanded[v]`: the text of the smaller tensor that v repeats, where v itself is not made.
    * `donated[m]`: the donated input that is in storage m.
    """

    def __init__(self, jaxpr: Jaxpr, donated: Sequence[bool], reuse: bool, listed: bool) -> None:
        self.jaxpr, self.reuse = jaxpr, reuse
        self.names = Namespace()
        self.name: dict[Var, str] = {}
        self.unexpanded: dict[Var, str] = {}
        self.storages: dict[Var, frozenset[int]] = {}
        self.values_in: dict[int, set[Var]] = {}
        self.writable: set[int] = set()
        self.dense: set[Var] = set()
        self.row_major: set[Var] = set()
        self.overwritten: set[int] = set()
        self.owned: list[bool] = []
        self.lines: list[str] = []
        self.equations: dict[int, Eqn] = {}
        self.donated: dict[int, int] = {}
        for position, v in enumerate(jaxpr.invars):
            self.name[v] = f"a{position}"
            storage = self._new_storage(v, frozenset())
            if position < len(donated) and donated[position]:
                self.donated[storage] = position
                self.writable.add(storage)
                self.dense.add(v)
                self.row_major.add(v)
        self.parameters = ", ".join([self.name[v] for v in jaxpr.invars])
        if listed and jaxpr.invars:
            self.lines.append(f"{self.parameters}, = given")
        self.parameters = "given" if listed else self.parameters

    def _new_storage(self, v: Var, others: frozenset[int]) -> int:
        """Note that `v` is in a new storage, or in one of `others`; the number of the new one."""
        storage = len(self.values_in)
        self.values_in[storage] = set()
        self._alias(v, others | {storage})
        return storage

    def _alias(self, v: Var, storages: frozenset[int]) -> None:
        self.storages[v] = storages
        for m in storages:
            self.values_in[m].add(v)

    # ---- writing ----

    def write(self, program: Jaxpr) -> tuple[str, Callable[..., Any]]:
        """Write `program`, which `constants` returned: (source, function)."""
        program = _without_barriers(program)
        todo, outs = pattern_fusion.statements(program, self.names, _LAZY), program.outs
        last = _last_uses(todo, outs)
        ends: dict[int, list[Var]] = {}
        for v, n in last.items():
            ends.setdefault(n, []).append(v)
        results = set(outs)
        n = 0
        # Values are dropped right after the statement that reads them last, so that the allocator
        # can use their memory for the next one.
        while n < len(todo):
            s, count = todo[n], 1
            if isinstance(s, Statement):
                count = self._foreach_run(s, todo, n, last)
                if count > 1:
                    self._write_foreach(
                        [t for t in todo[n : n + count] if isinstance(t, Statement)]
                    )
                else:
                    self._write_statement(s, n, last)
            elif s.prim is broadcast_in_dim_p:
                self._broadcast(s)
            elif s.outs[0] in results:
                self._write_statement(statement_of(s, self.names), n, last)
            else:
                self._scalar(s)
            for m in range(n, n + count):
                unread = [o for o in todo[m].outs if o not in last]
                self._release([*ends.get(m, ()), *unread])
            n += count
        texts = [self._text(o) for o in outs]
        for o in outs:
            storage = self.storages.get(o, frozenset())
            self.owned.append(
                o in self.dense
                and len(storage) == 1
                and storage <= self.writable
                and self.values_in[next(iter(storage))] == {o}
                and outs.count(o) == 1
            )
        self.lines.append(f"return [{', '.join(texts)}]")
        source = f"def run({self.parameters}):\n" + "".join([f" {line}\n" for line in self.lines])
        space = self.names.space
        space["EQUATIONS"] = self.equations
        exec(compile(source, f"<genesis {self.jaxpr.name or 'program'}>", "exec"), space)
        # A function among its own globals is a reference cycle: its constants would live until the
        # garbage collector runs.
        return source, space.pop("run")

    def constants(self, jaxpr: Jaxpr) -> Jaxpr:
        """Compute what depends on no input; the program without that. The values become globals of
        the function."""
        fixed, known = [], set()
        for e in jaxpr.eqns:
            if (
                not e.prim.effect
                and e.prim not in _LATER
                and not any(e_jaxprs(e))
                and all([type(i) is not Var or i in known for i in e.ins])
            ):
                fixed.append(e)
                known.update(e.outs)
        if all([e.prim is full_p for e in fixed]):
            return jaxpr
        early = set(fixed)
        needed = set(jaxpr.outs)
        for e in jaxpr.eqns:
            if e not in early:
                needed.update(e.ins)
        kept: list[Var] = []
        # From the end: a value that is too large to keep is computed by the program, which then
        # needs its operands.
        for e in reversed(fixed):
            asked = [o for o in e.outs if o in needed]
            if asked and e.prim not in _LAZY and sum(o.aval.nbytes for o in asked) <= _KEPT:
                kept.extend(asked)
            elif asked:
                early.discard(e)
                needed.update(e.ins)
        if not kept:
            return jaxpr
        # Folded by the same compiler, without folding.
        before = Jaxpr((), dead_code(fixed, kept)[0], kept, (), jaxpr.name)
        try:
            values = TensorProgram(before, fold=False).run()
        except Exception:  # the program raises it itself when it gets there
            return jaxpr
        for v, x in zip(kept, values):
            self.name[v] = self.names.add(x, "c")
            self.storages[v] = frozenset()
        left = dead_code([e for e in jaxpr.eqns if e not in early], jaxpr.outs)[0]
        return Jaxpr(jaxpr.invars, left, jaxpr.outs, (), jaxpr.name)

    def _scalar(self, e: Eqn) -> None:
        """Keep an array that repeats one number unexpanded, as a 0-d tensor."""
        o, p = e.outs[0], e.params
        make = lower_primitive(e.prim, (), {"value": p["value"], "shape": (), "dtype": p["dtype"]})
        self.unexpanded[o] = self.names.add(make(), "k")
        self.storages[o] = frozenset()

    def _broadcast(self, e: Eqn) -> None:
        o, (x,) = e.outs[0], e.ins
        shape = broadcast_shape(e)
        if shape is None:
            self.unexpanded[o] = self.unexpanded.get(x) or self._text(x)
        else:
            self.unexpanded[o] = self._new_name(o)
            self._emit(f"{self.unexpanded[o]} = {self._text(x)}.reshape({shape})", e)
        self._alias(o, self.storages[x])

    def _new_name(self, v: Var) -> str:
        self.name[v] = f"v{len(self.name)}"
        return self.name[v]

    def _emit(self, line: str, e: Eqn) -> None:
        self.lines.append(line)
        self.equations[len(self.lines) + 1] = e

    def _text(self, v: Var) -> str:
        if v in self.unexpanded:
            return f"{self.unexpanded[v]}.expand({v.aval.shape})"
        return self.name[v]

    def _write_statement(self, s: Statement, n: int, last: dict[Var, int]) -> None:
        operand = self._overwritable(s, n, last) if self.reuse else None
        texts = [self._text(i) for i in s.ins]
        if s.broadcasts:
            # torch broadcasts unexpanded operands, if one operand has the full shape.
            small = [i in self.unexpanded for i in s.ins]
            if all(small):
                small[0] = False
            texts = [self.unexpanded[i] if t else x for i, t, x in zip(s.ins, small, texts)]
        source = (s.text if operand is None else s.in_place[operand]).format(*texts)
        self._track_results(s, operand)
        if not s.outs:
            self._emit(source, s.eqn)
            return
        left = ", ".join([self._new_name(o) for o in s.outs])
        self._emit(f"{left}{',' if s.eqn.prim.multi else ''} = {source}", s.eqn)

    def _foreach_run(
        self, s: Statement, todo: Sequence[Statement | Eqn], n: int, last: dict[Var, int]
    ) -> int:
        """How many statements from `n` on are one operation on small, independent arrays, which a
        single `_foreach_` call computes; 1 if they are too few for that."""
        if foreach_of(s.text) is None:
            return 1
        made: set[Var] = set()
        count = 0
        for m in range(n, len(todo)):
            other = todo[m]
            if (
                type(other) is not Statement
                or other.text != s.text
                or not made.isdisjoint(other.ins)
            ):
                break
            if other.outs[0].aval.nbytes > _SMALL or not self.unexpanded.keys().isdisjoint(
                other.ins
            ):
                break
            if self.reuse and self._overwritable(other, m, last, commit=False) is not None:
                break
            made.update(other.outs)
            count += 1
        return count if count >= 8 else 1

    def _write_foreach(self, alike: Sequence[Statement]) -> None:
        """Write several statements of the same form as one `_foreach_` call."""
        found = foreach_of(alike[0].text)
        assert found is not None  # `_foreach_run` counted such statements
        function, rest = found
        arity = len(alike[0].ins)
        columns = [", ".join([self._text(s.ins[i]) for s in alike]) for i in range(arity)]
        inside = ", ".join([*(f"[{c}]" for c in columns), *rest])
        for s in alike:
            self._track_results(s, None)
        left = ", ".join([self._new_name(o) for s in alike for o in s.outs])
        self._emit(f"{left} = {function}({inside})", alike[0].eqn)

    def _overwritable(
        self, s: Statement, n: int, last: dict[Var, int], commit: bool = True
    ) -> int | None:
        """The operand whose memory the result may take; with `commit`, it does."""
        for operand in s.in_place:
            v = s.ins[operand]
            storages = self.storages[v]
            # It must die here and be alone in memory that this program may write.
            if (
                last.get(v) != n
                or v not in self.dense
                or len(storages) != 1
                or v in self.unexpanded
            ):
                continue
            (storage,) = storages
            if storage not in self.writable or self.values_in[storage] != {v}:
                continue
            # The in-place text views the operand as a matrix, which other layouts do not allow.
            if operand in s.row_major_operands and v not in self.row_major:
                continue
            # It would be read again, through the other operand, after it has changed.
            if not s.elementwise and s.ins.count(v) > 1:
                continue
            if commit and storage in self.donated:
                self.overwritten.add(self.donated[storage])
            return operand
        return None

    def _track_results(self, s: Statement, operand: int | None) -> None:
        whole = [i for i in s.ins if i not in self.unexpanded]
        for o in s.outs:
            if operand is not None:
                v = s.ins[operand]
                self._alias(o, self.storages[v])
                self.dense.add(o)
                if v in self.row_major:
                    self.row_major.add(o)
            elif s.memory == FRESH:
                self.writable.add(self._new_storage(o, frozenset()))
                self.dense.add(o)
                if s.contiguous or (s.elementwise and whole and self.row_major.issuperset(whole)):
                    self.row_major.add(o)
            elif s.memory == VIEW:
                (x,) = s.ins
                self._alias(o, self.storages[x])
                if s.dense and x in self.dense and x not in self.unexpanded:
                    self.dense.add(o)
                    if s.eqn.prim is reshape_p and x in self.row_major:
                        self.row_major.add(o)
            else:
                shared = frozenset().union(*[self.storages[i] for i in s.ins])
                self._new_storage(o, shared)
        if s.memory not in (FRESH, VIEW) and len(s.outs) > 1:
            # The results may alias one another.
            every = frozenset().union(*[self.storages[o] for o in s.outs])
            for o in s.outs:
                self._alias(o, every)

    def _release(self, gone: Sequence[Var]) -> None:
        names = []
        for v in gone:
            for m in self.storages.get(v, ()):
                self.values_in[m].discard(v)
            name = self.name.get(v, "a")
            if name[0] == "v":
                names.append(name)
        if names:
            self.lines.append("del " + ", ".join(names))


def _without_barriers(jaxpr: Jaxpr) -> Jaxpr:
    """The program without barriers: lines run in order here, so a barrier only renames values."""
    if not any(e.prim is barrier_p for e in jaxpr.eqns):
        return jaxpr
    env: dict[Var, Var] = {}
    eqns = []
    for e in jaxpr.eqns:
        ins = [env.get(i, i) if type(i) is Var else i for i in e.ins]
        if e.prim is barrier_p:
            env.update(zip(e.outs, ins))
        elif env:
            eqns.append(e.replace(ins=ins))
        else:
            eqns.append(e)
    outs = [env.get(o, o) for o in jaxpr.outs]
    return Jaxpr(jaxpr.invars, eqns, outs, (), jaxpr.name)


def _last_uses(todo: Sequence[Statement | Eqn], outs: Sequence[Var]) -> dict[Var, int]:
    """The last statement that reads each value; `len(todo)` for values that are returned."""
    last: dict[Var, int] = dict.fromkeys(outs, len(todo))
    for n in range(len(todo) - 1, -1, -1):
        s = todo[n]
        # A broadcast is written where it is read, so its operand lives as long as it does.
        end = last.get(s.outs[0], n) if type(s) is Eqn and s.ins else n
        for i in s.ins:
            if type(i) is Var and last.get(i, -1) < end:
                last[i] = end
    return last


# ---- executables ----


class CpuExecutable(Executable):
    """A compiled program on the CPU; storage is a torch tensor."""

    __slots__ = ("run", "sigs", "jaxpr", "program", "overwritten", "unused_donations")

    def __init__(self, jaxpr: Jaxpr, device: Device, donated: Sequence[bool] = ()) -> None:
        self.jaxpr = jaxpr
        self.program = tensor_program(jaxpr, tuple(map(bool, donated)), listed=True)
        self.run, self.overwritten = self.program.run, self.program.overwritten
        self.sigs = [sig(a, device) for a in jaxpr.out_avals]
        self.unused_donations = unused_donations(jaxpr, donated)

    def __call__(self, *args: ArrayImpl) -> list[ArrayImpl]:
        taken = self.overwritten
        tensors = [self.own(a) if i in taken else a.data for i, a in enumerate(args)]
        try:
            outs = self.run(tensors)
        except Exception as error:
            raise self.explained(error) from error.__cause__
        return [ArrayImpl(y, s) for y, s in zip(outs, self.sigs)]

    def own(self, x: ArrayImpl) -> torch.Tensor:
        """The tensor of `x`, or a copy of it if anything else can see its memory.

        Views, and NumPy and DLPack exports, hold references to the storage or the tensor. Storage
        that was imported, or that NumPy has ever exported, is not resizable.
        """
        t = x.data
        # References: the Array's, the name here, and getrefcount's own argument.
        if sys.getrefcount(t) == 3 and t._use_count() == 1 and t.is_contiguous():
            storage = t.untyped_storage()
            uses = torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore[reportPrivateUsage]
            if uses == 2 and storage.resizable():
                return t
        return t.clone(memory_format=torch.contiguous_format)

    def explained(self, error: Exception) -> Exception:
        """`error` from `run`, with the user's line of the equation that raised it, and the name of
        the input that an index does not fit."""
        e = equation_of(error)
        if e is None:
            return error
        if isinstance(error, errors.IndexOutOfRange):
            error = error.naming(self.jaxpr.label_of(e.ins[0]))
        return errors.at_line(error, e.where)

    def as_text(self) -> str:
        """The generated source."""
        return self.program.source

    def memory_analysis(self) -> dict[str, int]:
        """What the program needs, by the order of its equations."""
        return memory(self.jaxpr)


def unused_donations(jaxpr: Jaxpr, donated: Sequence[bool]) -> list[tuple[int, str]]:
    """Donated inputs for which no output of the same type is left, and why."""
    room: dict[Any, int] = {}
    for a in jaxpr.out_avals:
        room[a] = room.get(a, 0) + 1
    found = []
    for i, (v, d) in enumerate(zip(jaxpr.invars, donated)):
        if d and not room.get(v.aval):
            found.append((i, f"no output is left of its type {v.aval}"))
        elif d:
            room[v.aval] -= 1
    return found
