"""custom_jvp and custom_vjp as programs for JAX use them: the same code on both libraries."""

import functools

import jax
import numpy as np
import pytest

import genesis_fn as gf

X = np.array([0.5, -1.0, 2.0], "float32")


def same(run):
    """Compare what `run(library)` gives on this library and on JAX."""
    ours, theirs = [jax.tree.leaves(run(L)) for L in (gf, jax)]
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert np.allclose(np.asarray(a), np.asarray(b), rtol=1e-5), (a, b)


def _zeros_told_apart(L):
    """A custom_jvp whose rule refuses that nothing is zero."""

    @L.custom_jvp
    def f(fixed, x):
        return fixed * x, x

    @functools.partial(f.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        (fixed, x), (a, b) = primals, tangents
        assert type(a) is L.custom_derivatives.SymbolicZero
        return f(fixed, x), (3 * fixed * b, b)

    return f


@pytest.mark.parametrize("around", [lambda L: lambda f: f, lambda L: L.jit, lambda L: L.vmap])
def test_a_jvp_rule_is_asked_for_the_zeros_there_are(around):
    one = lambda L, x: L.numpy.sum(_zeros_told_apart(L)(L.numpy.float32(2), x)[0])
    same(lambda L: around(L)(L.grad(lambda x: one(L, x)))(L.numpy.asarray(X)))
    same(lambda L: L.jit(lambda x: L.jvp(lambda y: one(L, y), (x,), (x,)))(X))


def test_a_vjp_rule_is_asked_for_the_zeros_there_are():
    def run(L):
        zero = L.custom_derivatives.SymbolicZero

        @L.custom_vjp
        def f(a, b):
            return a, b

        def fwd(a, b):
            assert not a.perturbed and b.perturbed
            return (a.value, b.value), None

        def bwd(_, cts):
            assert type(cts[0]) is zero and type(cts[1]) is not zero
            return cts[0], 5 * cts[1]

        f.defvjp(fwd, bwd, symbolic_zeros=True)
        g = lambda x: L.numpy.sum(f(L.numpy.float32(1), x)[1])
        return L.grad(g)(X), L.jit(L.grad(g))(X), L.jit(L.vmap(L.grad(g)))(X)

    same(run)


def test_a_tangent_that_a_rule_says_is_zero_stays_so():
    seen = []

    @gf.custom_jvp
    def f(x, y):
        return y

    @functools.partial(f.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        seen.append(type(tangents[1]))
        return primals[1], tangents[1]

    gf.jvp(gf.vmap(lambda x: f(x, f(x, 1.0))), (gf.numpy.ones(3),), (gf.numpy.ones(3),))
    assert set(seen) == {gf.custom_derivatives.SymbolicZero}


def _scaled(L, kind):
    f = getattr(L, kind)(lambda scale, x: scale[0] * x, nondiff_argnums=(0,))
    if kind == "custom_jvp":
        f.defjvp(lambda scale, p, t: (f(scale, *p), 7 * scale[0] * t[0]))
    else:
        f.defvjp(lambda scale, x: (f(scale, x), None), lambda scale, _, ct: (7 * scale[0] * ct,))
    return f


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
@pytest.mark.parametrize("scale", [[2.0], np.array([2.0], "float32"), (3,)], ids=str)
def test_static_arguments_may_be_lists_and_arrays(kind, scale):
    def run(L):
        f = _scaled(L, kind)
        g = L.grad(lambda x: L.numpy.sum(f(scale, x)))
        return g(X), L.jit(g)(X), L.vmap(L.grad(lambda x: f(scale, x)))(X)

    same(run)


def test_a_traced_static_argument():
    same(lambda L: L.vmap(lambda s: _scaled(L, "custom_jvp")((s,), 2.0))(X))
    same(lambda L: L.jit(L.grad(lambda x, s: _scaled(L, "custom_jvp")((s,), x)))(2.0, 3.0))
    same(lambda L: L.grad(lambda s: _scaled(L, "custom_jvp")((s,), 2.0))(3.0))  # no derivative
    for L in (gf, jax):
        with pytest.raises(L.errors.UnexpectedTracerError, match="custom_vjp"):
            L.jit(lambda s, x: _scaled(L, "custom_vjp")((s,), x))(2.0, 3.0)


def test_a_list_that_changes_is_another_static_argument():
    scale, f = [2.0], _scaled(gf, "custom_vjp")
    g = lambda: float(gf.jit(lambda x: f(scale, x))(1.0))
    assert g() == 2
    scale[0] = 5.0
    assert g() == 5


def test_the_backward_rule_may_close_over_what_is_mapped():
    def run(L):
        def outer(y):
            f = L.custom_vjp(lambda x: 2 * L.numpy.sin(x))
            f.defvjp(lambda x: (f(x), None), lambda _, ct: (2 * L.numpy.cos(y) * ct,))
            return L.grad(f)(1.0)

        return L.vmap(outer)(X), L.jit(L.vmap(outer))(X), L.vmap(L.jit(outer))(X)

    same(run)


def test_closing_over_what_is_differentiated_is_refused_as_by_jax():
    for L in (gf, jax):

        def outer(x):
            f = L.custom_jvp(lambda y: x + y)
            f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
            return f(1.0)

        with pytest.raises(L.errors.UnexpectedTracerError):
            L.grad(outer)(3.0)


def test_keyword_arguments_of_a_partial_function():
    def run(L):
        inner = functools.partial(lambda x, y, a: x + y * a, a=0.1)
        f = L.custom_jvp(inner)
        f.defjvp(lambda p, t: L.jvp(inner, p, t))
        return L.grad(f, (0, 1))(1.0, 2.0)

    same(run)


def test_a_rule_without_residuals_in_a_loop_that_swaps():
    def run(L):
        f = L.custom_vjp(lambda x, y: x + y)
        f.defvjp(lambda x, y: (f(x, y), None), lambda _, ct: (ct, 2 * ct))
        step = lambda c, _: ((f(*c), c[0]), None)
        return L.grad(lambda x: L.lax.scan(step, (x, 1.0), None, length=3)[0][0])(1.0)

    same(run)


@pytest.mark.parametrize("kind, rules", [("custom_jvp", "jvp"), ("custom_vjp", "vjp")])
def test_missing_rules_are_attribute_errors_too(kind, rules):
    for L in (gf, jax):
        with pytest.raises(AttributeError):
            getattr(L, kind)(lambda x: x)(1.0)
    with pytest.raises(AttributeError):
        gf.custom_batching.custom_vmap(lambda x: x)(1.0)


def test_rules_set_through_another_wrapper():
    def run(L):
        f = L.custom_vjp(L.custom_batching.custom_vmap(lambda x: L.numpy.sin(x)))
        f.def_vmap(lambda size, batched, x: (L.numpy.cos(x), True))
        f.defvjp(lambda x: (f(x), x), lambda x, ct: (3 * ct,))
        return L.vmap(f)(X), L.grad(f)(2.0)

    same(run)
    with pytest.raises(AttributeError, match="defjvp"):
        gf.custom_vjp(lambda x: x).defjvp


def test_a_zero_of_another_shape_is_refused():
    f = gf.custom_vjp(lambda x, y: (x, y))
    f.defvjp(
        lambda x, y: ((x.value, y.value), None), lambda _, g: (g[1], g[0]), symbolic_zeros=True
    )
    with pytest.raises(gf.errors.ShapeError, match="returned the zero of f32"):
        gf.grad(lambda x, y: f(x, y)[0].sum(), (0, 1))(gf.numpy.ones(1), gf.numpy.ones(2))
