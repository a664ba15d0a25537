"""Takes out of what a scan carries that which its counter decides.

A number to which each step adds a constant is known in each step: it becomes a slice of an array
that counts, and kernels compute it where they need it. What is written at such numbers is no carry
either (`written`), nor what steps only add to (`scattered`); a scan that carries nothing runs at
once (`at_once`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import loop_slice_p
from genesis_fn.compiler.loop_ir.known_places import by_index, is_exact, known_place
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.compiler.scans.at_once import at_once
from genesis_fn.compiler.scans.parts import ScanBody, ScanChanges
from genesis_fn.compiler.scans.scattered import scattered
from genesis_fn.compiler.scans.written import Progression, written
from genesis_fn.compiler.simplify.rewriter import has_effect
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.elementwise import add, mul
from genesis_fn.primitives.factories import full_p
from genesis_fn.primitives.shape import copy_p, iota_p
from genesis_fn.transforms.control_flow.conditionals import cond_p
from genesis_fn.transforms.control_flow.loops import while_p
from genesis_fn.transforms.control_flow.scanning import scan_p


def counted_scans(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` whose scans carry no number that counts their steps, and no array that they only
    write part by part, or add to."""
    if not enabled("counters"):
        return jaxpr
    known: dict[Var, Eqn] = {}
    eqns: list[Eqn] = []
    for e in jaxpr.eqns:
        if e.prim in _LOOPS:
            e = _with_counted_bodies(e)
        for x in _remade(e, known):
            if by_index(x, known) and is_exact(x):
                known.update(dict.fromkeys(x.outs, x))
            eqns.append(x)
    same = len(eqns) == len(jaxpr.eqns) and all([a is b for a, b in zip(eqns, jaxpr.eqns)])
    return jaxpr if same else Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _remade(e: Eqn, known: Mapping[Var, Eqn]) -> list[Eqn]:
    """What stands for an equation: of a scan, equations that do without what need not be carried,
    and without the scan where nothing is left to carry."""
    found = _counted(e, known) if e.prim is scan_p else [e]
    eqns = []
    for x in found:
        eqns += (at_once(x) if x.prim is scan_p else None) or [x]
    return eqns


_LOOPS = (scan_p, while_p, cond_p)  # whose bodies may have scans


def _with_counted_bodies(e: Eqn) -> Eqn:
    params = {}
    for name, value in e.params.items():
        bodies = value if type(value) is tuple else (value,)
        if not bodies or type(bodies[0]) is not Jaxpr:
            continue
        made = tuple([counted_scans(body) for body in bodies])
        if any([a is not b for a, b in zip(made, bodies)]):
            params[name] = made if type(value) is tuple else made[0]
    return e.replace(params={**e.params, **params}) if params else e


class _Scan:
    """A scan and what is known in its body: `counters` are the arrays that count, by the value of
    the body that is a slice of each."""

    def __init__(self, e: Eqn, known: Mapping[Var, Eqn]) -> None:
        self.e, self.body, self.changes = e, ScanBody(e), ScanChanges()
        self.reverse = e.params["reverse"]
        self.counters: dict[Var, Var] = {}
        self._counter = Var(aval((), dtypes.I32))
        self._found: dict[Var, Progression | None] = {}
        self.producer: dict[Var, Eqn] = {**known, **self.body.producer}
        for v, x in self.body.consts.items():
            self.producer[v] = Eqn(copy_p, [x], {}, (v,))
        for v, x in self.body.xs.items():
            self._slice(v, x)

    def _slice(self, v: Var, x: Any) -> None:
        where = {"length": self.body.length, "reverse": False}
        self.producer[v] = Eqn(loop_slice_p, [x, self._counter], where, (v,))

    def count(self, v: Var, first: int, step: int) -> None:
        """Have the value of the body `v` be `first` in the first step that runs, and `step` more in
        each one after it."""
        last = self.body.length - 1
        numbers = (
            Progression(first + step * last, -step) if self.reverse else Progression(first, step)
        )
        begin = len(self.changes.ahead)
        self.counters[v] = self._numbers(self.changes.ahead, numbers, v)
        for e in self.changes.ahead[begin:]:
            self.producer.update(dict.fromkeys(e.outs, e))
        self._slice(v, self.counters[v])

    def _numbers(self, eqns: list[Eqn], numbers: Progression, like: Var) -> Var:
        """Numbers of all steps, as a stack of values such as `like`."""
        make, kind = functools.partial(appended, eqns, self.e), like.aval.dtype
        shape = (self.body.length, *like.aval.shape)
        made = make(iota_p, dtype=kind, shape=shape, dimension=0)
        made = make(mul.prim, made, numbers.step) if numbers.step != 1 else made
        return make(add.prim, made, numbers.first) if numbers.first else made

    def give_numbers(self, numbers: Progression, result: Var, like: Var) -> None:
        """Give numbers of all steps as a result of the scan."""
        self._numbers(self.changes.behind, numbers, like)
        self.changes.give(result)

    def progression(self, v: Any) -> Progression | None:
        """The numbers that an integer of the body is, in the order of stacks; None if they are no
        such numbers."""
        if type(v) is int:
            return Progression(v, 0)
        if type(v) is not Var or v.aval.size != 1 or not dtypes.is_integer(v.aval.dtype):
            return None
        if v not in self._found:
            self._found[v] = self._progression(v)
        return self._found[v]

    def _progression(self, v: Var) -> Progression | None:
        found = known_place(self.producer, v, (ix.ZERO,) * v.aval.ndim)
        if found is None or any([atom.key[0] != "var" for atom in found.terms]):
            return None
        # The only variable is the row: slices are not turned round here.
        return Progression(found.const, sum(found.terms.values()))


def _counted(e: Eqn, known: Mapping[Var, Eqn]) -> list[Eqn]:
    scan = _Scan(e, known)
    body, changes, p = scan.body, scan.changes, e.params
    if not body.length:
        return [e]
    consts, count = p["consts"], p["carry"]
    carry = [
        (e.ins[consts + k], body.jaxpr.invars[consts + k], body.jaxpr.outs[k], e.outs[k])
        for k in range(count)
    ]
    kept = [c for c in carry if not _counts(scan, known, *c)]
    for y, whole in zip(body.jaxpr.outs[count:], e.outs[count:]):
        numbers = scan.progression(y) if type(y) is Var else None
        if numbers is None:
            changes.ys.append((y, whole))
        else:
            scan.give_numbers(numbers, whole, y)
            changes.changed = True
    changes.carry += [
        c
        for c in kept
        if not written(body, changes, scan.progression, c) and not scattered(body, changes, c)
    ]
    if not changes.changed:
        return [e]
    changes.xs += [(made, v) for v, made in scan.counters.items()]
    ahead, made, behind = changes.applied(body)
    return [*ahead, made, *behind] if made.outs or has_effect(made) else behind


def _counts(
    scan: _Scan, known: Mapping[Var, Eqn], init: Any, v: Var, out: Any, result: Var
) -> bool:
    """Take a carry out of the scan to which each step adds a constant."""
    source = known.get(init) if type(init) is Var else None
    if source is not None and source.prim is full_p and not init.aval.shape:
        init = source.params["value"]
    e = scan.body.produced(out)
    if type(init) is not int or not dtypes.is_integer(v.aval.dtype) or v.aval.shape:
        return False
    if e is None or e.prim is not add.prim:
        return False
    steps = [i for i in e.ins if i is not v]
    if len(steps) != 1 or type(steps[0]) is not int:
        return False
    last = init + steps[0] * scan.body.length
    limits = dtypes.iinfo(v.aval.dtype)
    if not all([limits.min <= n <= limits.max for n in (init, steps[0], last)]):
        return False
    scan.count(v, init, steps[0])
    full = {"value": last, "shape": (), "dtype": v.aval.dtype}
    scan.changes.behind.append(Eqn(full_p, [], full, (result,), scan.e.where))
    scan.changes.changed = True
    return True
