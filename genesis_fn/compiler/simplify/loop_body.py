"""Bodies of scans as programs over whole arrays: the loop's counter is an input that says which
rows are read and where rows of results go.

Slices then fuse with what reads them, and the stores of rows with what computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from genesis_fn.compiler.loop_ir.kernel import SliceStore, loop_slice_p
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.primitives.elementwise import bitcast_p
from genesis_fn.primitives.shape import copy_p
from genesis_fn.transforms.control_flow.scanning import stacked


@dataclass(frozen=True, slots=True)
class LoopBody:
    """`jaxpr` takes [constants, carry, whole xs, counter] and returns [carry, rows of ys];
    `slice_stores` says where the rows go, `stacks` are the whole ys."""

    jaxpr: Jaxpr
    slice_stores: dict[Var, SliceStore]
    stacks: list[Var]


def _bits_of(v: Any, target: Target) -> Any:
    """`v`, or a variable of bytes where kernels lack its dtype, that of 8-bit floats: slicing and
    stacking only copy bits."""
    return Var(aval(v.aval.shape, dtypes.I8)) if target.lacks(v.aval.dtype) else v


def _as_bits(x: Any, y: Var, where: Any) -> Eqn:
    """The equation y = x, bit for bit, as the dtype of y."""
    return Eqn(bitcast_p, [x], {"dtype": y.aval.dtype}, (y,), where)


def loop_body(
    jaxpr: Jaxpr, consts: int, carry: int, length: int, reverse: bool, target: Target
) -> LoopBody:
    """The body of a scan with its slicing and stacking inside."""
    counter = Var(aval((), dtypes.I32))
    fixed, rows = jaxpr.invars[: consts + carry], jaxpr.invars[consts + carry :]
    where = jaxpr.eqns[0].where if jaxpr.eqns else None
    params = {"length": length, "reverse": reverse}
    wholes, eqns = [], []
    for v in rows:
        row = _bits_of(v, target)
        whole = Var(stacked(row.aval, length))
        eqns.append(Eqn(loop_slice_p, [whole, counter], params, (row,), where))
        if row is not v:
            eqns.append(_as_bits(row, v, where))
        wholes.append(whole)
    eqns += jaxpr.eqns
    outs, slice_stores, stacks = jaxpr.outs[:carry], {}, []
    for v in jaxpr.outs[carry:]:
        bits = _bits_of(v, target)
        if bits is not v:
            eqns.append(_as_bits(v, bits, where))
        # A copy of its own: the row may also be a carry, or come twice, and each needs its store.
        row, whole = Var(bits.aval), Var(stacked(bits.aval, length))
        eqns.append(Eqn(copy_p, [bits], {}, (row,), where))
        slice_stores[row] = SliceStore(whole, counter, length, reverse)
        stacks.append(whole)
        outs.append(row)
    program = Jaxpr([*fixed, *wholes, counter], eqns, outs, (), jaxpr.name)
    return LoopBody(program, slice_stores, stacks)
