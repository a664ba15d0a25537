"""Programs: staging, printing, checking, inlining, transforms of programs, ahead of any backend."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.array import Array, ArrayImpl, from_numpy
from genesis_fn.core.aval import aval
from genesis_fn.core.configuration import config
from genesis_fn.core.device import default_device
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, check, dead_code
from genesis_fn.core.primitive import PRIMITIVES, bind, ctx, install_array_methods, typeof
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.autodiff.linearize import jvp_jaxpr, linearize_jaxpr
from genesis_fn.transforms.autodiff.transpose import transpose_jaxpr
from genesis_fn.transforms.batching.batch import batch_jaxpr
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import (
    evaluate,
    inlined,
    share_captures,
    stage,
    stage_closed,
)
from tests.transforms.both import normal, ours

V, A = normal(4, seed=2), normal(3, 4)
F64 = np.dtype(np.float64)
VEC = aval((4,), F64)


def program(f=lambda x: [jnp.sin(x) * 2 + x], *avals) -> Jaxpr:
    return stage_closed(f, avals or [VEC], "f")


def test_recording_drops_dead_equations_and_keeps_lines():
    jaxpr, captured = stage(lambda x: [(jnp.cos(x), jnp.sin(x) * 2)[1]], [VEC], name="g")
    assert [e.prim.name for e in jaxpr.eqns] == ["sin", "mul"] and captured == []
    assert all("test_stage.py" in str(e.where) for e in jaxpr.eqns)
    assert jaxpr.in_avals == [VEC] and jaxpr.out_avals == [VEC] and not jaxpr.effect


def test_printing():
    text = str(program())
    assert text.splitlines()[0] == "{ a:f64[4] ->" and "= sin a" in text and "mul" in text
    assert "# " in text and "test_stage.py" in text and "return" in text
    loop = jit(lambda x: scan(lambda c, v: (c + v, c), 0.0, x)).trace(ours(V)).jaxpr
    assert "scan[" in str(loop) and str(loop).count("->") == 2
    assert repr(program().eqns[0]).startswith("b:f64[4] = sin") or "sin" in repr(program().eqns[0])
    many = program(lambda x: [sum([jnp.sin(x) for _ in range(40)], x)])
    assert "aa:f64[4]" in str(many)


def test_captures_come_first_and_once():
    w = ours(V)
    jaxpr, captured = stage(lambda x: [x * w + w, w], [VEC], labels=["x"])
    assert len(captured) == 1 and captured[0] is w
    assert jaxpr.labels == ["captured f64[4]", "x"] and len(jaxpr.invars) == 2
    np.testing.assert_allclose(np.asarray(evaluate(jaxpr, w, ours(V + 1))[0]), (V + 1) * V + V)
    with pytest.raises(errors.UnexpectedTracerError, match="captured"):
        stage_closed(lambda x: [x * w], [VEC])


def test_shared_captures():
    a, b = ours(V), ours(V + 1)
    staged = [stage(lambda x: [x * a], [VEC]), stage(lambda x: [x * b + a], [VEC])]
    programs, values = share_captures(staged)
    assert [v is x for v, x in zip(values, (a, b))] == [True, True]
    for p in programs:
        check(p)
        assert len(p.invars) == 3
    np.testing.assert_allclose(np.asarray(evaluate(programs[1], a, b, a)[0]), V * (V + 1) + V)


def test_numbers_as_outputs():
    jaxpr, _ = stage(lambda x: [2.0, x, 3, True], [VEC])
    assert [str(a) for a in jaxpr.out_avals] == ["f32[]", "f64[4]", "i32[]", "bool[]"]
    with pytest.raises(errors.TreeError, match="returned 'a'"):
        stage(lambda x: ["a"], [VEC])


def test_checker():
    sin, add = PRIMITIVES["sin"], PRIMITIVES["add"]
    x, y, z = Var(VEC), Var(VEC), Var(aval((3,), F64))
    assert check(Jaxpr([x], [Eqn(sin, [x], {}, [y])], [y]))
    bad = {
        "unbound operand": Jaxpr([x], [Eqn(sin, [z], {}, [y])], [y]),
        "should produce": Jaxpr([x], [Eqn(sin, [x], {}, [z])], [z]),
        "bound twice, again by": Jaxpr([x], [Eqn(sin, [x], {}, [x])], [x]),
        "bound twice among the inputs": Jaxpr([x, x], [], [x]),
        "unbound output": Jaxpr([x], [], [y]),
        "neither a Var nor a scalar": Jaxpr([x], [Eqn(add, [x, "a"], {}, [y])], [y]),
    }
    for message, jaxpr in bad.items():
        with pytest.raises(TypeError, match=message):
            check(jaxpr)
    with pytest.raises(errors.ShapeError):
        check(Jaxpr([x, z], [Eqn(add, [x, z], {}, [y])], [y]))


def test_equations_can_be_changed():
    (e, *_) = program().eqns
    other = e.replace(params={"k": 1}, backward=True)
    assert other.prim is e.prim and other.params == {"k": 1} and other.backward and not e.backward
    kept, live = dead_code(program().eqns, [])
    assert kept == [] and live == set()


def test_inlining():
    inner = jit(lambda x: jnp.sin(x) * 2)
    jaxpr = program(lambda x: [inner(inner(x)) + inner(x)])
    assert [e.prim.name for e in jaxpr.eqns].count("jit") == 3
    flat = check(inlined(jaxpr))
    assert [e.prim.name for e in flat.eqns] == ["sin", "mul"] * 3 + ["add"]
    assert inlined(flat) is flat
    for p in (jaxpr, flat):
        expected = 2 * np.sin(2 * np.sin(V)) + 2 * np.sin(V)
        np.testing.assert_allclose(np.asarray(evaluate(p, ours(V))[0]), expected)


def test_transforms_of_programs_are_remembered():
    jaxpr = program(lambda x, y: [jnp.sin(x) * y, y], VEC, VEC)
    args = ((True, False), (False, False))
    assert linearize_jaxpr(jaxpr, *args) is linearize_jaxpr(jaxpr, *args)
    forward, tangent, found, count = linearize_jaxpr(jaxpr, *args)
    check(forward), check(tangent)
    assert found == (True, False) and len(forward.outs) == 2 + count
    assert linearize_jaxpr(jaxpr, (True, False), (False, True))[2] == (True, True)
    ctx.safe_zero = True
    try:
        assert linearize_jaxpr(jaxpr, *args)[1] is not tangent
    finally:
        ctx.safe_zero = False
    both, found = jvp_jaxpr(jaxpr, (False, True), (True, True))
    assert found == (True, True) and len(check(both).outs) == 4
    rows, which = batch_jaxpr(jaxpr, 3, (True, False), (False, True))
    assert which == (True, True) and check(rows).out_avals[1].shape == (3, 4)
    back = transpose_jaxpr(tangent, (*[False] * count, True), (True,))
    assert check(back).out_avals == [VEC]


def test_types_are_checked_on_request():
    with config.override(check_types=True):
        grad(lambda x: (jnp.sin(x) ** 2).sum())(ours(V))


def test_avals_and_arrays():
    assert aval((2, 3), F64) is aval((2, 3), F64) and pickle.loads(pickle.dumps(VEC)) is VEC
    assert (VEC.ndim, VEC.size, VEC.nbytes) == (1, 4, 32)
    assert str(VEC.update(shape=(2,), dtype=np.dtype(np.int8))) == "i8[2]"
    assert type(aval((np.int64(2),), F64).shape[0]) is int
    x = ours(V)
    assert (x.size, x.itemsize, x.nbytes, x.ndim) == (4, 8, 32, 1)
    assert x.block_until_ready() is x and x.devices() == {x.device} and not x.is_deleted()
    assert repr(x.sig) == f"f64[4]@{default_device()}"
    assert pickle.loads(pickle.dumps(x.device)) is x.device
    assert pickle.loads(pickle.dumps(PRIMITIVES["sin"])) is PRIMITIVES["sin"]
    x.delete()
    assert x.is_deleted()
    with pytest.raises(errors.DonatedError, match="deleted at"):
        x + 1
    with pytest.raises(errors.DonatedError):
        jit(lambda y: y + x)(ours(V))
    x.aval.shape


def test_array_methods_can_be_installed(request: pytest.FixtureRequest):
    install_array_methods({"_test_twice": lambda self: self * 2})
    request.addfinalizer(lambda: delattr(Array, "_test_twice"))
    np.testing.assert_allclose(np.asarray(ours(V)._test_twice()), 2 * V)
    assert isinstance(jit(lambda x: x._test_twice())(ours(V)), ArrayImpl)
    install_array_methods({"_test_name": lambda self: "tracer"}, tracer_only=True)
    jit(lambda x: x if x._test_name() == "tracer" else None)(1.0)
    assert not hasattr(from_numpy(V), "_test_name")


def test_binding_scalars_and_no_operands():
    assert bind(PRIMITIVES["add"], ours(V), 1.0).shape == (4,)
    iota = bind(PRIMITIVES["iota"], dtype=np.dtype(np.int32), shape=(3,), dimension=0)
    assert typeof(iota).shape == (3,)
