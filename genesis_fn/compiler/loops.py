"""Bodies of counted loops as programs over whole arrays: the loop's counter says which slices
are read and where results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.kernel import Placement
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import PRIMITIVES
from genesis_fn.transforms.scan import stacked


class LoopSlice:
    """x[counter], or x[length - 1 - counter]: an operation of the compiler's own programs."""

    name = "loop_slice"
    multi = effect = collective = False
    triton = None

    def __repr__(self) -> str:
        return self.name


_LOOP_SLICE: Any = LoopSlice()


@dataclass(frozen=True, slots=True)
class LoopBody:
    """`jaxpr` takes [constants, carry, whole xs, counter] and returns [carry, rows of ys];
    `placed` says where the rows go, `stacks` are the whole ys."""

    jaxpr: Jaxpr
    placed: dict[Var, Placement]
    stacks: list[Var]


def loop_body(jaxpr: Jaxpr, consts: int, carry: int, length: int, reverse: bool) -> LoopBody:
    """The body of a scan, which slices and stacks by itself."""
    counter = Var(aval((), dtypes.I32))
    fixed, rows = jaxpr.invars[: consts + carry], jaxpr.invars[consts + carry :]
    wholes = [Var(stacked(v.aval, length)) for v in rows]
    where: Sequence[Any] = [e.where for e in jaxpr.eqns[:1]] or [None]
    params = {"length": length, "reverse": reverse}
    eqns = [Eqn(_LOOP_SLICE, [x, counter], params, (v,), where[0]) for x, v in zip(wholes, rows)]
    eqns += jaxpr.eqns
    outs, placed, stacks = jaxpr.outs[:carry], {}, []
    for v in jaxpr.outs[carry:]:
        row, whole = Var(v.aval), Var(stacked(v.aval, length))
        eqns.append(Eqn(PRIMITIVES["copy"], [v], {}, (row,), where[0]))
        placed[row] = Placement(whole, counter, length, reverse)
        stacks.append(whole)
        outs.append(row)
    program = Jaxpr([*fixed, *wholes, counter], eqns, outs, (), jaxpr.name)
    return LoopBody(program, placed, stacks)


__all__ = ["LoopBody", "loop_body"]
