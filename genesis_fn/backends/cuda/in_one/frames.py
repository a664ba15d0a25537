"""How the values of a few operations lie in the array that they are about, their *frame*.

The frame is what is reduced, or the result where nothing is. A value is *full*, one number for each
element of the frame; or *kept*, one for each place of the axes that reductions keep: a mean, or
what is computed of means alone. A kept value that is repeated along the other axes is full again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import Elementwise, Reduce
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.kernels.plan_builder import dense
from genesis_fn.primitives.shape import broadcast_in_dim_p, iota_p, reshape_p


@dataclass(frozen=True, slots=True)
class Reading:
    """An input, read with these strides over the axes of a value that repeats it. Without an
    operand it is the numbers 0, 1, ... of dtype `counts`: each is the offset that it is read at."""

    operand: int | None
    strides: tuple[int, ...]
    counts: DType | None = None


@dataclass(slots=True)
class Frame:
    """`shape` and the `axes` that are reduced; what each value of the program is: a reading of an
    input, a full one (`full`), or a kept one, whose own axes are those of the frame in `kept`
    (None: an axis of length 1). `repeated` are full values that repeat a kept one, and `same` kept
    ones that are another in another shape. `computed` are the equations that compute something."""

    shape: tuple[int, ...]
    axes: frozenset[int]
    readings: dict[Var, Reading] = field(default_factory=dict)
    full: set[Var] = field(default_factory=set)
    kept: dict[Var, tuple[int | None, ...]] = field(default_factory=dict)
    repeated: dict[Var, Var] = field(default_factory=dict)
    same: dict[Var, Var] = field(default_factory=dict)
    computed: list[Eqn] = field(default_factory=list)

    @property
    def kept_axes(self) -> list[int]:
        """The axes that are not reduced."""
        return [d for d in range(len(self.shape)) if d not in self.axes]

    def spans(self, v: Var) -> bool:
        """Whether a value has a number for each element of the frame."""
        if v in self.readings:
            return v.aval.shape == self.shape
        return v in self.full or v in self.repeated

    def add(self, e: Eqn) -> bool:
        """Take in one equation; False if it does not fit."""
        if e.prim.multi or e.prim.effect:
            return False
        if e.prim is reshape_p:
            return self._reshape(e.ins[0], e.outs[0])
        if e.prim is iota_p:
            strides = [int(d == e.params["dimension"]) for d in range(len(e.params["shape"]))]
            self.readings[e.outs[0]] = Reading(None, tuple(strides), e.params["dtype"])
            return True
        if e.prim is broadcast_in_dim_p:
            return self._broadcast(e.ins[0], e.outs[0], e.params["dims"])
        self.computed.append(e)
        if type(e.prim.lowering) is Reduce:
            return self._reduce(e, e.prim.lowering)
        return type(e.prim.lowering) is Elementwise and self._elementwise(e)

    def _reshape(self, x: Var, y: Var) -> bool:
        """Only axes of length 1 may come and go."""
        old, new = x.aval.shape, y.aval.shape
        if [n for n in old if n != 1] != [n for n in new if n != 1]:
            return False
        if x in self.readings:
            of = self.readings[x]
            steps = iter([s for s, n in zip(of.strides, old) if n != 1])
            strides = tuple([0 if n == 1 else next(steps) for n in new])
            self.readings[y] = replace(of, strides=strides)
        elif x in self.kept:
            axes = iter([d for d, n in zip(self.kept[x], old) if n != 1])
            self.kept[y] = tuple([None if n == 1 else next(axes) for n in new])
            self.same[y] = self.same.get(x, x)
        else:
            return False
        return True

    def _broadcast(self, x: Var, y: Var, dims: Sequence[int]) -> bool:
        lengths = x.aval.shape
        if x in self.readings:
            of, strides = self.readings[x], [0] * len(y.aval.shape)
            for d, s, n in zip(dims, of.strides, lengths):
                strides[d] = s if n != 1 else 0
            self.readings[y] = replace(of, strides=tuple(strides))
            return True
        fits = x in self.kept and y.aval.shape == self.shape
        if not fits or any(n != 1 and at != d for at, d, n in zip(self.kept[x], dims, lengths)):
            return False
        self.repeated[y] = self.same.get(x, x)
        return True

    def _reduce(self, e: Eqn, how: Reduce) -> bool:
        if how.position or frozenset(e.params["axes"]) != self.axes or not self.spans(e.ins[0]):
            return False
        self.kept[e.outs[0]] = tuple(self.kept_axes)
        return True

    def _elementwise(self, e: Eqn) -> bool:
        arrays = [x for x in e.ins if type(x) is Var]
        (out,) = e.outs
        if arrays and all([x in self.kept for x in arrays]):
            self.kept[out] = self.kept[arrays[0]]
            return len({self.kept[x] for x in arrays}) == 1
        self.full.add(out)
        return bool(arrays) and all(map(self.spans, arrays)) and out.aval.shape == self.shape


def framed(program: Jaxpr) -> Frame | None:
    """The frame of a program of elementwise operations and of reductions over the same axes, with
    one result; None if it is anything else."""
    reductions = [e for e in program.eqns if type(e.prim.lowering) is Reduce]
    if len(program.outs) != 1 or not all([e.params.get("axes") for e in reductions]):
        return None
    about: Aval = reductions[0].ins[0].aval if reductions else program.outs[0].aval
    axes: Any = reductions[0].params["axes"] if reductions else ()
    found = Frame(about.shape, frozenset(axes))
    for i, v in enumerate(program.invars):
        found.readings[v] = Reading(i, dense(v.aval.shape))
    if not all(map(found.add, program.eqns)):
        return None
    (out,) = program.outs
    return found if out in found.full or out in found.kept else None
