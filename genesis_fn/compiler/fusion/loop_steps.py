"""Several iterations of a loop in one kernel, where computing again is cheaper than memory.

An iteration that reads neighbours, a stencil's, needs all of the one before it, but each element
only a few: a kernel may compute these itself. So it reads the carry once for two iterations or
more, in place of once for each.

The loop's body is repeated, and fused: whether what lies between the iterations is stored, is
decided as for all values (`recompute.py`). The number of iterations whose kernel takes the least
time for each is taken.
"""

from __future__ import annotations

import math

from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.recompute import work
from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.rewrites.overlays import overlays
from genesis_fn.compiler.rewrites.rotations import rotations
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Atom, Eqn, Jaxpr, Var
from genesis_fn.transforms.control_flow.scanning import scan_p

_MOST = 4  # iterations of one kernel
_START = 2e-6  # seconds between a kernel's start and its first results, beside others of a graph
_LOAD = 4  # a processor loads a quarter of the numbers that it adds in the same time
_LARGEST = 64  # equations of a body that is tried


def joined_iterations(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` in which loops whose body is one kernel run several iterations in each."""
    if not enabled("loop_steps") or not any([e.prim is scan_p for e in jaxpr.eqns]):
        return jaxpr
    eqns = [x for e in jaxpr.eqns for x in (_joined(e, target) if e.prim is scan_p else [e])]
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _joined(e: Eqn, target: Target) -> list[Eqn]:
    """The loop that several iterations of one are, and that of those that are left."""
    body, consts, length = e.params["jaxpr"], e.params["consts"], e.params["length"]
    if not _may_join(e):
        return [e]
    best, least, many = body, _seconds(body, target), 1
    for k in range(2, min(_MOST, length) + 1):
        several = _repeated(body, consts, k)
        seconds = _seconds(several, target)
        if seconds / k >= least:
            break
        best, least, many = several, seconds / k, k
    if many == 1:
        return [e]
    rounds, left = divmod(length, many)
    between = [Var(v.aval) for v in e.outs] if left else e.outs
    found = [e.replace(outs=between, params=e.params | {"jaxpr": best, "length": rounds})]
    if left:
        ins = [*e.ins[:consts], *between]
        found.append(e.replace(ins=ins, params=e.params | {"length": left}))
    return found


def _may_join(e: Eqn) -> bool:
    """Whether a loop reads and stacks no rows, and its body only computes elements and moves them.
    Narrow floats are rounded as they are stored, between iterations as well."""
    body, consts, carry = e.params["jaxpr"], e.params["consts"], e.params["carry"]
    if len(e.ins) > consts + carry or len(e.outs) > carry or not 0 < len(body.eqns) <= _LARGEST:
        return False
    values = [o for x in body.eqns for o in x.outs]
    if any([v.aval.dtype in dtypes.NARROW for v in values]):
        return False
    prepared = overlays(rotations(body))
    return all([kind_of(x) in ("map", "view") for x in prepared.eqns])


def _seconds(body: Jaxpr, target: Target) -> float:
    """About how long a body takes as one kernel; infinity if it takes several, or none."""
    groups = fuse_jaxpr(overlays(rotations(body)), target).groups
    kernel = groups[0].kernel if len(groups) == 1 else None
    if kernel is None:
        return math.inf
    loads = len([i for i in kernel.instrs if i.op == "load"])
    operations = work(kernel) + (_LOAD - 1) * loads * kernel.domain.size
    return _START + max(groups[0].traffic / target.bandwidth, operations / target.additions)


def _repeated(body: Jaxpr, consts: int, count: int) -> Jaxpr:
    """`count` iterations of a body as one."""
    fixed, carry = body.invars[:consts], body.invars[consts:]
    now: list[Atom] = list(carry)
    eqns = []
    for _ in range(count):
        at: dict[Atom, Atom] = dict(zip(body.invars, [*fixed, *now]))
        for e in body.eqns:
            outs = [Var(o.aval) for o in e.outs]
            eqns.append(e.replace(ins=[at.get(i, i) for i in e.ins], outs=outs))
            at.update(zip(e.outs, outs))
        now = [at.get(o, o) for o in body.outs]
    return simplify_jaxpr(Jaxpr(body.invars, eqns, now, (), body.name))
