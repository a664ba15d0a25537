"""io_callback, debug.print and effects_barrier: the order of effects, as JAX documents it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax


def program(m, seen: list) -> Callable:
    """Effects in calls, loops and branches."""
    np_, struct = m.numpy, m.ShapeDtypeStruct((), np.int32)

    def log(x, ordered=True):
        note = lambda v: (seen.append(int(v)), np.int32(v + 1))[1]
        return m.experimental_io(note, struct, x, ordered=ordered)

    def f(x):
        x = log(x)
        x, _ = m.lax.scan(lambda c, _: (log(c), None), x, None, length=3)
        x = m.lax.while_loop(lambda v: v < 7, lambda v: log(v), x)
        x = m.lax.cond(x > 5, lambda v: log(v * 10), lambda v: v, x)
        return m.lax.fori_loop(0, 2, lambda i, v: log(v), x) + np_.int32(0)

    return f


class Ours:
    numpy, lax, ShapeDtypeStruct = jnp, lax, gf.ShapeDtypeStruct
    experimental_io = staticmethod(gf.io_callback)


class Theirs:
    numpy, lax, ShapeDtypeStruct = jax.numpy, jax.lax, jax.ShapeDtypeStruct
    experimental_io = staticmethod(jax.experimental.io_callback)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_ordered_callbacks_run_in_the_order_of_the_program(compiled: bool):
    mine, want = [], []
    f, g = program(Ours, mine), program(Theirs, want)
    out = (gf.jit(f) if compiled else f)(jnp.asarray(1))
    gf.effects_barrier()
    expected = jax.jit(g)(1)
    jax.effects_barrier()
    assert mine == want and int(out) == int(expected)


def test_vmap_calls_an_unordered_one_for_each_example_and_refuses_an_ordered_one():
    seen: list[int] = []
    call = lambda ordered: (
        lambda x: gf.io_callback(lambda v: seen.append(int(v)), None, x, ordered=ordered)
    )
    gf.jit(gf.vmap(call(False)))(jnp.arange(3))
    gf.effects_barrier()
    assert sorted(seen) == [0, 1, 2]
    with pytest.raises(ValueError, match="vmap of an ordered io_callback"):
        gf.vmap(call(True))(jnp.arange(3))
    with pytest.raises(ValueError):
        note = lambda x: jax.experimental.io_callback(lambda v: None, None, x, ordered=True)
        jax.vmap(note)(jax.numpy.arange(3))


def test_grad_is_refused_by_name():
    def host_square(v):
        return np.float32(v * v)

    f = lambda x: gf.io_callback(host_square, gf.ShapeDtypeStruct((), "float32"), x)
    for run in (gf.grad(f), gf.jit(gf.grad(f)), lambda x: gf.jvp(f, (x,), (1.0,))):
        with pytest.raises(gf.errors.NotDifferentiableError, match="io_callback of host_square"):
            run(2.0)


def test_prints_are_in_order(capsys):
    def f(x):
        def body(i, v):
            gf.debug.print("step {}", i, ordered=True)
            return v + i

        gf.debug.print("start {x}", x=x, ordered=True)
        return lax.fori_loop(0, 3, body, x)

    gf.jit(f)(1)
    gf.effects_barrier()
    lines = ["start 1", "step 0", "step 1", "step 2"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_failed_assertion_is_raised_by_the_barrier_at_the_latest():
    f = gf.jit(lambda x: gf.debug.assert_(x > 0, "not positive"))
    with pytest.raises(gf.errors.AssertionFailed, match="not positive"):
        f(-1.0)
        gf.effects_barrier()
