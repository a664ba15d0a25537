"""linear_call, the names of custom_derivatives, and keyword arguments of functions with rules."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax import custom_derivatives as theirs

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import custom_derivatives as ours

BOTH = [(gf, jnp, ours), (jax, jax.numpy, theirs)]


@pytest.mark.parametrize("m, np_, rules", BOTH, ids=["ours", "theirs"])
def test_derivatives_use_the_transpose_that_was_given(m, np_, rules):
    def f(x, r=3.0):
        div, seven = lambda r, x: {"y": x["x"] / r}, lambda r, ct: {"x": 7.0 * ct["y"] + 0 * r}
        return rules.linear_call(div, seven, r, {"x": x})["y"]

    assert float(f(6.0)) == 2.0
    for transform in (lambda g: g, m.jit):
        assert float(transform(m.grad(f))(1.0)) == 7.0
        assert float(m.grad(transform(f))(1.0)) == 7.0
    out, tangent = m.jvp(f, (6.0,), (3.0,))
    assert (float(out), float(tangent)) == (2.0, 1.0)
    assert float(m.linear_transpose(f, 1.0)(2.0)[0]) == 14.0
    with pytest.raises((gf.errors.NotDifferentiableError, AssertionError, NotImplementedError)):
        m.grad(lambda r: f(1.0, r))(3.0)


def test_linear_calls_are_mapped_and_take_any_dtype():
    f = lambda r, x: ours.linear_call(lambda r, x: x * r, lambda r, ct: 2 * ct * r, r, x)
    xs, rs = jnp.arange(3.0), jnp.asarray([2.0, 3.0, 4.0])
    assert gf.vmap(gf.grad(f, argnums=1))(rs, xs).tolist() == [4.0, 6.0, 8.0]
    assert gf.jit(gf.vmap(f))(rs, xs).tolist() == [0.0, 3.0, 8.0]
    for dtype in ("float64", "bfloat16", "complex64"):
        x = jnp.ones(2, dtype=dtype)
        assert gf.vjp(functools.partial(f, x), x)[1](x)[0].dtype == x.dtype


def test_a_jvp_rule_may_call_one_on_tangents():
    @gf.custom_jvp
    def g(x):
        return x

    double = lambda t: ours.linear_call(lambda _, t: 2 * t, lambda _, ct: 2 * ct, (), t)
    g.defjvp(lambda primals, tangents: (primals[0], double(tangents[0])))
    assert float(gf.jvp(g, (1.0,), (1.0,))[1]) == 2.0
    assert float(gf.grad(g)(1.0)) == float(gf.jit(gf.grad(g))(1.0)) == 2.0


@pytest.mark.parametrize("m, np_, rules", BOTH, ids=["ours", "theirs"])
def test_zeros_are_told_apart(m, np_, rules):
    """Which arguments are differentiated, which cotangents and tangents are zero."""
    seen: list = []

    @m.custom_vjp
    def f(p, y):
        return p["a"] * y, p["b"] * y

    def fwd(p, y):
        seen.append((p["a"].perturbed, p["b"].perturbed, y.perturbed))
        p, y = rules.custom_vjp_primal_tree_values((p, y))
        return (p["a"] * y, p["b"] * y), (p, y)

    def bwd(saved, cts):
        p, y = saved
        zero = [type(ct) is rules.SymbolicZero for ct in cts]
        seen.append(zero)
        a, b = [rules.zero_from_primal(y) if z else ct * y for z, ct in zip(zero, cts)]
        return {"a": a, "b": b}, rules.zero_from_primal(y, symbolic_zeros=True)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    slope = m.grad(lambda a: f({"a": a, "b": np_.float32(1.0)}, np_.float32(3.0))[0])(2.0)
    assert float(slope) == 3.0 and seen == [(True, False, False), [False, True]]

    @m.custom_jvp
    def g(x, y):
        return x * y

    def rule(primals, tangents):
        seen.append([type(t) is rules.SymbolicZero for t in tangents])
        x, y = primals
        return x * y, tangents[0] * y

    g.defjvp(rule, symbolic_zeros=True)
    del seen[:]
    assert float(m.jvp(lambda x: g(x, 3.0), (2.0,), (1.0,))[1]) == 3.0
    assert float(m.grad(g)(2.0, 3.0)) == 3.0
    assert seen == [[False, True]] * 2
    with pytest.raises(TypeError):
        rules.custom_vjp_primal_tree_values([1.0])


@pytest.mark.parametrize("m, np_, rules", BOTH, ids=["ours", "theirs"])
def test_static_arguments_by_name(m, np_, rules):
    @functools.partial(m.custom_vjp, nondiff_argnames=("n",))
    def f(x, n):
        return x * n

    f.defvjp(lambda x, n: (f(x, n), None), lambda n, _, ct: (10 * n * ct,))
    assert float(m.grad(f)(2.0, 3)) == float(m.grad(lambda x: f(x, n=3))(2.0)) == 30.0

    @functools.partial(m.custom_jvp, nondiff_argnames=("n",))
    def g(x, n):
        return x * n

    g.defjvp(lambda n, primals, tangents: (g(*primals, n), 10 * n * tangents[0]))
    assert float(m.grad(g)(2.0, 3)) == float(m.grad(lambda x: g(x, n=3))(2.0)) == 30.0


@pytest.mark.parametrize("m, np_, rules", BOTH, ids=["ours", "theirs"])
def test_custom_vmap_takes_keywords(m, np_, rules):
    @m.custom_batching.custom_vmap
    def f(x, y=2.0):
        return x * y

    f.def_vmap(lambda size, batched, x, y: (100 * x * y, batched[0]))
    assert np.asarray(m.vmap(lambda x: f(x, y=3.0))(np_.ones(2))).tolist() == [300.0, 300.0]
    assert np.asarray(m.vmap(lambda x: f(y=x, x=x))(np_.ones(2))).tolist() == [100.0, 100.0]
    assert float(f(2.0, y=4.0)) == 8.0

    @m.custom_batching.custom_vmap
    def g(x, *, y):
        return x * y

    g.def_vmap(lambda size, batched, x: (x, batched[0]))
    with pytest.raises(TypeError):
        g(1.0, y=2.0)
