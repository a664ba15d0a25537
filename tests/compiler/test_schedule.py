"""late: equations move down to their first use, and programs mean the same."""

from __future__ import annotations

import pytest

from genesis_fn.compiler.memory.sink import sink_equations
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Jaxpr, Var, check
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.reductions.reduce import reduce_sum
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.custom.callback import io_callback
from genesis_fn.transforms.staging.stage_trace import stage
from tests.cpu.programs import random_program

X = aval((100,), dtypes.F32)


def peak(jaxpr: Jaxpr) -> int:
    """The most bytes of intermediate values that live at once."""
    last = {i: n for n, e in enumerate(jaxpr.eqns) for i in e.ins if type(i) is Var}
    live, most = 0, 0
    for n, e in enumerate(jaxpr.eqns):
        live += sum(o.aval.nbytes for o in e.outs)
        most = max(most, live)
        gone = {*e.outs, *(i for i in e.ins if type(i) is Var)} - set(jaxpr.invars)
        live -= sum(v.aval.nbytes for v in gone if last.get(v, n) <= n and v not in jaxpr.outs)
    return most


def test_values_for_the_backward_pass_are_made_when_they_are_needed():
    def f(x):
        for _ in range(12):
            x = ops.tanh(ops.sin(x))
        return reduce_sum(x, (0,))

    jaxpr = simplify_jaxpr(stage(lambda x: [grad(f)(x)], [X])[0])
    moved = sink_equations(jaxpr)
    check(moved)
    assert sorted(map(id, moved.eqns)) == sorted(map(id, jaxpr.eqns))
    assert peak(moved) < 0.75 * peak(jaxpr)


def test_a_small_result_of_large_operands_stays():
    def f(x):
        y = ops.exp(x)
        total = reduce_sum(y, (0,))
        z = ops.sin(ops.sin(x))
        return [ops.mul(reduce_sum(z, (0,)), total)]

    jaxpr = simplify_jaxpr(stage(f, [X])[0])
    names = [e.prim.name for e in sink_equations(jaxpr).eqns]
    assert names.index("reduce_sum") < names.index("sin")


def test_effects_stay_in_order():
    def f(x):
        y = ops.exp(x)
        io_callback(lambda v: None, None, x)
        z = ops.add(y, 1.0)
        io_callback(lambda v: None, None, z)
        return [y]

    jaxpr = stage(f, [X])[0]
    before = [e for e in jaxpr.eqns if e.prim.effect]
    assert [e for e in sink_equations(jaxpr).eqns if e.prim.effect] == before


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_stay_valid_and_no_larger(seed):
    jaxpr = simplify_jaxpr(random_program(seed))
    moved = sink_equations(jaxpr)
    check(moved)
    assert set(map(id, moved.eqns)) == set(map(id, jaxpr.eqns))
    assert peak(moved) <= 1.15 * peak(jaxpr)
