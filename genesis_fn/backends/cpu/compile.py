"""A program as one straight-line Python function over torch operators.

The simplified program is written line by line. Values are dropped after their last use, and a line
writes its result over an operand that dies there, where the analysis here shows that nobody else
can see that memory: it follows which values share memory through views, and calls memory
written-over only if this program made it (or it was donated, which is checked again at each call).
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
    Names,
    Statement,
    many_of,
    statement_of,
    thin_shape,
)
from genesis_fn.backends.cpu.lower import FusedFunction, fused_function, lower_primitive
from genesis_fn.compiler.memory.sink import sink_equations
from genesis_fn.compiler.simplify.simplify import simplify
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
from genesis_fn.transforms.staging.cost import memory

# Values known without inputs are computed once and kept, up to this many bytes each.
_KEPT = 4 << 20
# Arrays of at most so many bytes are worked on several at a time.
_SMALL = 1 << 16


def tensor_function(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """The program as a function from torch tensors to a list of them."""
    return tensor_program(jaxpr).run


def tensor_program(
    jaxpr: Jaxpr, donated: tuple[bool, ...] = (), listed: bool = False
) -> TensorProgram:
    """The compiled program; `donated` marks inputs whose memory it may write over."""
    key = (tensor_program, donated, listed)
    found = jaxpr.cache.get(key)
    if found is None:
        simple = sink_equations(simplify(jaxpr, has_function))
        found = jaxpr.cache[key] = TensorProgram(simple, donated, listed=listed)
    return found


def function_of(e: Eqn) -> FusedFunction | None:
    """The torch function of the fused function that an equation calls, if one fits its operands."""
    if e.prim is not fused_p:
        return None
    avals = [i.aval if type(i) is Var else i for i in e.ins]
    return fused_function(e.params["op"], avals, e.params["static"])


def has_function(e: Eqn) -> bool:
    """Whether an equation is a fused function with a torch function for these operands."""
    return function_of(e) is not None


class TensorProgram:
    """A generated function and what is known of it.

    * `run(*tensors)` -> list of tensors; `listed` programs take one list of them.
    * `overwritten`: the donated inputs whose memory it writes over.
    * `owned[i]`: output i is memory that this call made or was given, and no other output shares
      it.
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
        writer = _Writer(jaxpr, donated, reuse, listed)
        self.jaxpr = jaxpr
        self.source, self.run = writer.write(writer.constants(jaxpr) if fold else jaxpr)
        self.overwritten, self.owned = tuple(sorted(writer.overwritten)), tuple(writer.owned)


# What must run when the program does, though it changes nothing.
_HOST = frozenset({pure_callback_p})
# What stays a number, or a smaller array, until someone needs all of it.
_LAZY = frozenset({broadcast_in_dim_p, full_p, barrier_p})


class _Writer:
    """Writes the function, keeping count of who lives in which memory.

    Memory is numbered. `homes[v]` are the memories that v may be in, `tenants[m]` the live values
    that may be in m, `free` those that may be written over once they have one tenant; `dense` holds
    values that fill their memory, each element once; `flat` those laid out in row-major order.
    """

    def __init__(self, jaxpr: Jaxpr, donated: Sequence[bool], reuse: bool, listed: bool) -> None:
        self.jaxpr, self.reuse = jaxpr, reuse
        self.names = Names()
        self.name: dict[Var, str] = {}
        self.thin: dict[Var, str] = {}  # values not made yet: what torch's broadcasting repeats
        self.homes: dict[Var, frozenset[int]] = {}
        self.tenants: dict[int, set[Var]] = {}
        self.free: set[int] = set()
        self.dense: set[Var] = set()
        self.flat: set[Var] = set()
        self.overwritten: set[int] = set()
        self.owned: list[bool] = []
        self.lines: list[str] = []
        self.equations: dict[int, Eqn] = {}
        self.given: dict[int, int] = {}  # memory -> donated input
        for position, v in enumerate(jaxpr.invars):
            self.name[v] = f"a{position}"
            memory = self._settle(v, frozenset())
            if position < len(donated) and donated[position]:
                self.given[memory] = position
                self.free.add(memory)
                self.dense.add(v)
                self.flat.add(v)
        self.given_as = ", ".join([self.name[v] for v in jaxpr.invars])
        if listed and jaxpr.invars:
            self.lines.append(f"{self.given_as}, = given")
        self.given_as = "given" if listed else self.given_as

    def _settle(self, v: Var, others: frozenset[int]) -> int:
        """Put `v` in new memory, and possibly in `others`."""
        memory = len(self.tenants)
        self.tenants[memory] = set()
        self._share(v, others | {memory})
        return memory

    def _share(self, v: Var, homes: frozenset[int]) -> None:
        self.homes[v] = homes
        for m in homes:
            self.tenants[m].add(v)

    # ---- writing ----

    def write(self, program: Jaxpr) -> tuple[str, Callable[..., Any]]:
        """(source, the function) of the program, or of what `constants` left of it."""
        program = _without_barriers(program)
        todo, outs = pattern_fusion.statements(program, self.names, _LAZY), program.outs
        last = _last_uses(todo, outs)
        ends: dict[int, list[Var]] = {}
        for v, n in last.items():
            ends.setdefault(n, []).append(v)
        results = set(outs)
        n = 0
        while n < len(todo):
            s, count = todo[n], 1
            if isinstance(s, Statement):
                count = self._alike(s, todo, n, last)
                if count > 1:
                    self._lines([t for t in todo[n : n + count] if isinstance(t, Statement)])
                else:
                    self._line(s, n, last)
            elif s.prim is broadcast_in_dim_p:
                self._broadcast(s)
            elif s.outs[0] in results:
                self._line(statement_of(s, self.names), n, last)
            else:
                self._number(s)
            for m in range(n, n + count):
                unread = [o for o in todo[m].outs if o not in last]
                self._leave([*ends.get(m, ()), *unread])
            n += count
        texts = [self._text(o) for o in outs]
        for o in outs:
            home = self.homes.get(o, frozenset())
            self.owned.append(
                o in self.dense
                and len(home) == 1
                and home <= self.free
                and self.tenants[next(iter(home))] == {o}
                and outs.count(o) == 1
            )
        self.lines.append(f"return [{', '.join(texts)}]")
        source = f"def run({self.given_as}):\n" + "".join([f" {line}\n" for line in self.lines])
        space = self.names.space
        space["EQUATIONS"] = self.equations
        exec(compile(source, f"<genesis {self.jaxpr.name or 'program'}>", "exec"), space)
        # Not among its own globals, so that the constants there are freed with it at once.
        return source, space.pop("run")

    def constants(self, jaxpr: Jaxpr) -> Jaxpr:
        """The program without what can be computed now; the values become global names."""
        fixed, known = [], set()
        for e in jaxpr.eqns:
            if (
                not e.prim.effect
                and e.prim not in _HOST
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
        for e in reversed(fixed):
            asked = [o for o in e.outs if o in needed]
            if asked and e.prim not in _LAZY and sum(o.aval.nbytes for o in asked) <= _KEPT:
                kept.extend(asked)
            elif asked:
                early.discard(e)
                needed.update(e.ins)
        if not kept:
            return jaxpr
        before = Jaxpr((), dead_code(fixed, kept)[0], kept, (), jaxpr.name)
        try:
            values = TensorProgram(before, fold=False).run()
        except Exception:  # whatever it is, the program itself will raise it, if it comes to that
            return jaxpr
        for v, x in zip(kept, values):
            self.name[v] = self.names.add(x, "c")
            self.homes[v] = frozenset()
        left = dead_code([e for e in jaxpr.eqns if e not in early], jaxpr.outs)[0]
        return Jaxpr(jaxpr.invars, left, jaxpr.outs, (), jaxpr.name)

    def _number(self, e: Eqn) -> None:
        """An array of one number stays a number until someone needs all of it."""
        o, p = e.outs[0], e.params
        make = lower_primitive(e.prim, (), {"value": p["value"], "shape": (), "dtype": p["dtype"]})
        self.thin[o] = self.names.add(make(), "k")
        self.homes[o] = frozenset()

    def _broadcast(self, e: Eqn) -> None:
        o, (x,) = e.outs[0], e.ins
        shape = thin_shape(e)
        if shape is None:
            self.thin[o] = self.thin.get(x) or self._text(x)
        else:
            self.thin[o] = self._new_name(o)
            self._emit(f"{self.thin[o]} = {self._text(x)}.reshape({shape})", e)
        self._share(o, self.homes[x])

    def _new_name(self, v: Var) -> str:
        self.name[v] = f"v{len(self.name)}"
        return self.name[v]

    def _emit(self, line: str, e: Eqn) -> None:
        self.lines.append(line)
        self.equations[len(self.lines) + 1] = e

    def _text(self, v: Var) -> str:
        if v in self.thin:
            return f"{self.thin[v]}.expand({v.aval.shape})"
        return self.name[v]

    def _line(self, s: Statement, n: int, last: dict[Var, int]) -> None:
        place = self._place(s, n, last) if self.reuse else None
        texts = [self._text(i) for i in s.ins]
        if s.spreads:
            # All but one of the operands may be smaller; one that is not sets the shape.
            small = [i in self.thin for i in s.ins]
            if all(small):
                small[0] = False
            texts = [self.thin[i] if t else x for i, t, x in zip(s.ins, small, texts)]
        source = (s.text if place is None else s.over[place]).format(*texts)
        self._settle_results(s, place)
        if not s.outs:
            self._emit(source, s.eqn)
            return
        left = ", ".join([self._new_name(o) for o in s.outs])
        self._emit(f"{left}{',' if s.eqn.prim.multi else ''} = {source}", s.eqn)

    def _alike(
        self, s: Statement, todo: Sequence[Statement | Eqn], n: int, last: dict[Var, int]
    ) -> int:
        """How many lines from `n` on torch can do in one call: the same operation on small arrays
        that do not depend on one another. 1 where it is not worth it."""
        if many_of(s.text) is None:
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
            if other.outs[0].aval.nbytes > _SMALL or not self.thin.keys().isdisjoint(other.ins):
                break
            if self.reuse and self._place(other, m, last, settle=False) is not None:
                break
            made.update(other.outs)
            count += 1
        return count if count >= 8 else 1

    def _lines(self, alike: Sequence[Statement]) -> None:
        """One line for several statements of the same form."""
        function, rest = many_of(alike[0].text)  # type: ignore[misc]
        arity = len(alike[0].ins)
        columns = [", ".join([self._text(s.ins[i]) for s in alike]) for i in range(arity)]
        inside = ", ".join([*(f"[{c}]" for c in columns), *rest])
        for s in alike:
            self._settle_results(s, None)
        left = ", ".join([self._new_name(o) for s in alike for o in s.outs])
        self._emit(f"{left} = {function}({inside})", alike[0].eqn)

    def _place(self, s: Statement, n: int, last: dict[Var, int], settle: bool = True) -> int | None:
        """The operand whose memory the result may take; with `settle`, it does."""
        for place in s.over:
            v = s.ins[place]
            homes = self.homes[v]
            if last.get(v) != n or v not in self.dense or len(homes) != 1 or v in self.thin:
                continue
            (memory,) = homes
            if memory not in self.free or self.tenants[memory] != {v}:
                continue
            if place in s.flat and v not in self.flat:
                continue
            if not s.elementwise and s.ins.count(v) > 1:
                continue
            if settle and memory in self.given:
                self.overwritten.add(self.given[memory])
            return place
        return None

    def _settle_results(self, s: Statement, place: int | None) -> None:
        whole = [i for i in s.ins if i not in self.thin]
        for o in s.outs:
            if place is not None:
                v = s.ins[place]
                self._share(o, self.homes[v])
                self.dense.add(o)
                if v in self.flat:
                    self.flat.add(o)
            elif s.memory == FRESH:
                self.free.add(self._settle(o, frozenset()))
                self.dense.add(o)
                if s.contiguous or (s.elementwise and whole and self.flat.issuperset(whole)):
                    self.flat.add(o)
            elif s.memory == VIEW:
                (x,) = s.ins
                self._share(o, self.homes[x])
                if s.dense and x in self.dense and x not in self.thin:
                    self.dense.add(o)
                    if s.eqn.prim is reshape_p and x in self.flat:
                        self.flat.add(o)
            else:
                shared = frozenset().union(*[self.homes[i] for i in s.ins])
                self._settle(o, shared)
        if s.memory not in (FRESH, VIEW) and len(s.outs) > 1:
            # The results may share memory with one another.
            every = frozenset().union(*[self.homes[o] for o in s.outs])
            for o in s.outs:
                self._share(o, every)

    def _leave(self, gone: Sequence[Var]) -> None:
        names = []
        for v in gone:
            for m in self.homes.get(v, ()):
                self.tenants[m].discard(v)
            name = self.name.get(v, "a")
            if name[0] == "v":
                names.append(name)
        if names:
            self.lines.append("del " + ", ".join(names))


def _without_barriers(jaxpr: Jaxpr) -> Jaxpr:
    """Lines run in order here, so that a barrier is only another name for its operands."""
    if not any(e.prim is barrier_p for e in jaxpr.eqns):
        return jaxpr
    env: dict[Var, Var] = {}
    eqns = []
    for e in jaxpr.eqns:
        ins = [env.get(i, i) if type(i) is Var else i for i in e.ins]
        if e.prim is barrier_p:
            env.update(zip(e.outs, ins))
        elif env:
            eqns.append(Eqn(e.prim, ins, e.params, e.outs, e.where, e.backward))
        else:
            eqns.append(e)
    outs = [env.get(o, o) for o in jaxpr.outs]
    return Jaxpr(jaxpr.invars, eqns, outs, (), jaxpr.name)


def _last_uses(todo: Sequence[Statement | Eqn], outs: Sequence[Var]) -> dict[Var, int]:
    """The last line that reads each value; values that are returned outlive all lines."""
    last: dict[Var, int] = dict.fromkeys(outs, len(todo))
    for n in range(len(todo) - 1, -1, -1):
        s = todo[n]
        # What a broadcast repeats is read wherever the broadcast is.
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
        """The tensor of `x`, or a copy of it if anybody else can see its memory.

        Views, NumPy and DLPack exports hold the storage or the tensor; memory that came in by them
        cannot be resized, nor can memory that NumPy has ever shown.
        """
        t = x.data
        # References: the Array's, the name here, and getrefcount's own argument.
        if sys.getrefcount(t) == 3 and t._use_count() == 1 and t.is_contiguous():
            storage = t.untyped_storage()
            if torch._C._storage_Use_Count(storage._cdata) == 2 and storage.resizable():
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
