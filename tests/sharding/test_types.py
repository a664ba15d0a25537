"""What types say of values that vary: by every primitive, and through every program."""

from __future__ import annotations

import pickle

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Var, check, e_jaxprs, jaxprs_in
from genesis_fn.core.primitive import PRIMITIVES, typeof
from genesis_fn.transforms.sharding.varying import on_mesh
from genesis_fn.transforms.staging.stage_trace import stage
from tests.primitives.check import listed, to_array
from tests.primitives.table import ROWS
from tests.sharding.both import our_mesh

# Those whose results vary as all of their operands do, though they hold programs or functions.
AS_OPERANDS = {
    "shard_map",  # its results are whole arrays
    "if_active", "triton_call", "torch_call", "pure_callback",
}  # fmt: skip


def equations(jaxpr):
    for e in jaxpr.eqns:
        yield e
        for inner in e_jaxprs(e):
            yield from equations(inner)


def test_every_primitive_with_programs_says_what_they_take():
    with_programs = {
        name
        for name, p in PRIMITIVES.items()
        if p.program or p.plain or p.depends or p.guard or p.inline
    }
    assert {"scan", "while", "cond", "jit", "custom_call", "fused", "checkpoint"} <= with_programs
    without = {n for n in with_programs if PRIMITIVES[n].takes is None}
    assert without <= AS_OPERANDS, f"give {without - AS_OPERANDS} a rule `takes`"


@pytest.mark.parametrize("name", sorted(ROWS))
def test_results_vary_as_operands_do(name):
    mesh = our_mesh(4, 2)
    seen = 0
    for row in ROWS[name]:
        avals = [typeof(to_array(x)) for x in row.inputs]
        avals = [k.update(varying=frozenset("ab"[: 1 + i % 2])) for i, k in enumerate(avals)]
        with on_mesh(mesh):
            program, _ = stage(listed(row.f), avals)
        check(program)
        for e in equations(program):
            if any(jaxprs_in(e.params)) or e.prim.collective:
                continue
            ins = {i.aval.varying for i in e.ins if type(i) is Var}
            assert len(ins) <= 1, f"{e.prim}: operands that vary over {ins}"
            for out in e.outs:
                assert out.aval.varying == frozenset().union(*ins), f"{e.prim}: {out.aval}"
            seen += e.prim.name == name
    assert seen, "a row exercises its primitive"


def kinds(f, *specs):
    """The types of what `f` returns on parts of arrays."""
    found = []

    def part(*xs):
        found.extend(typeof(y).varying for y in gf.tree.leaves(f(*xs)))
        return 0.0

    mesh = our_mesh(4, 2)
    given = [jnp.ones((8, 8)) for _ in specs]
    gf.shard_map(part, mesh=mesh, in_specs=specs, out_specs=gf.P())(*given)
    return [set(v) for v in found]


def test_types_of_values():
    P = gf.P
    assert kinds(lambda x, y, z: (x, y, x[0] + y[0], z, x[0] * z), P("a"), P("b"), P()) == [
        {"a"}, {"b"}, {"a", "b"}, set(), {"a"}]  # fmt: skip
    assert kinds(lambda x: (lax.psum(x, "a"), lax.pmean(x, ("a", "b"))), P(("a", "b"))) == [
        {"b"}, set()]  # fmt: skip
    assert kinds(lambda x: (lax.all_gather(x, "a"), lax.all_gather_invariant(x, "a")), P("a")) == [
        {"a"}, set()]  # fmt: skip
    assert kinds(lambda x: (lax.axis_index("b"), lax.pcast(x, "b", to="varying")), P()) == [
        {"b"}, {"b"}]  # fmt: skip
    assert kinds(lambda x: lax.cond(lax.axis_index("a") > 0, jnp.sin, jnp.cos, x), P()) == [{"a"}]
    assert kinds(lambda x: lax.scan(lambda c, r: (c + lax.axis_index("b"), r), 0, x), P("a")) == [
        {"b"}, {"a"}]  # fmt: skip
    assert kinds(lambda x: gf.grad(lambda w: jnp.sum(w * x))(jnp.ones(8)), P("a")) == [set()]


def test_types_are_kept_in_pickles():
    kind = aval((2,), dtypes.F32).update(varying=frozenset("a"))
    assert pickle.loads(pickle.dumps(kind)) is kind and str(kind) == "f32[2]{V:a}"
