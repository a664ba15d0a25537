"""custom_jvp, custom_vjp and custom_gradient against JAX, and what they accept beyond it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import errors
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, vjp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.derivative_rules import custom_gradient, custom_jvp, custom_vjp
from genesis_fn.transforms.jitting import jit
from tests.transforms.both import REVERSE, STACKS, agree, agree_under, normal, ours

A, V = normal(3, 4), normal(4, seed=2)


def with_jvp(m):
    @m.custom_jvp
    def f(x, y):
        return {"a": m.np.sin(x) * y, "b": x.sum()}

    @f.defjvp
    def rule(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        # Not the true derivative, so that the test sees that the rule is used.
        out = f(x, y)
        return out, {"a": 3.0 * m.np.cos(x) * tx * y + out["a"] * ty, "b": (tx * x).sum()}

    return f


def with_vjp(m):
    @m.custom_vjp
    def f(x, y):
        return m.np.sin(x) * y, x.sum()

    def fwd(x, y):
        return f(x, y), (m.np.cos(x), y)

    def bwd(res, cts):
        cos, y = res
        ct, total = cts
        return 3.0 * ct * cos * y + total, ct * cos

    f.defvjp(fwd, bwd)
    return f


def test_jvp_rules():
    agree_under(lambda m, x, y: with_jvp(m)(x, y), V, V + 1)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("kind", ["jit", "scan", "cond", "checkpoint"])
def test_a_rule_differentiates_a_whole_program(kind: str, jitted: bool) -> None:
    """`jvp` of a program computes values and tangents in one, which reverse mode has to part."""

    def program(m, x):
        if kind == "jit":
            return m.jit(lambda v: v * m.np.sin(v))(x)
        if kind == "scan":
            return m.scan(lambda c, a: (c * a + m.np.sin(c), c * a), x[0], x)[1]
        if kind == "cond":
            return m.cond(x[0] > 0, m.np.sin, m.np.cos, x)
        return m.checkpoint(lambda v: v * m.np.cos(v))(x)

    def f(m, x):
        h = m.custom_jvp(lambda v: program(m, v))
        rule = lambda primals, tangents: m.jvp(lambda v: program(m, v), primals, tangents)
        h.defjvp(m.jit(rule) if jitted else rule)
        return m.np.sin(h(x))

    # JAX has no transpose of a rule whose branches it turned into a select.
    agree_under(f, V, stacks=[k for k in STACKS if (kind, k) != ("cond", "grad(vmap)")])


def test_vjp_rules():
    agree_under(lambda m, x, y: with_vjp(m)(x, y), V, V + 1, stacks=REVERSE)


def test_inside_scan_cond_checkpoint():
    f = lambda m, x: m.scan(lambda h, v: (with_vjp(m)(h, v)[0], h), x[0], x)
    agree_under(f, A, stacks=("jit(grad)", "vmap(grad)"))
    g = lambda m, x: m.checkpoint(lambda v: with_jvp(m)(v, v)["a"])(x)
    agree_under(g, V, stacks=("grad", "reverse over reverse"))
    h = lambda m, x: m.cond(x[0] > 0, lambda: with_jvp(m)(x, x)["a"], lambda: x * 2)
    agree_under(h, V, stacks=("grad", "vmap(grad)"))


def test_defjvps():
    def program(m, x, y):
        f = m.custom_jvp(lambda a, b: a * b)
        f.defjvps(lambda t, out, a, b: 2 * t * b, None)
        return f(x, y)

    agree_under(program, V, V + 1, stacks=("jvp", "grad"))


def test_nondiff_and_static_arguments():
    def program(m, x):
        f = m.custom_vjp(lambda n, name, v: v**n, nondiff_argnums=(0, 1))
        f.defvjp(lambda n, name, v: (v**n, v), lambda n, name, v, ct: (ct * n * v * len(name),))
        g = m.custom_jvp(lambda v, n: v**n, nondiff_argnums=(1,))
        g.defjvp(lambda n, primals, tangents: (g(primals[0], n), tangents[0] * n))
        return f(2, "ab", x) + g(x, 3)

    agree_under(program, V, stacks=("grad", "jit(grad)", "vmap(grad)"))
    f = custom_vjp(lambda v, name: v * 2, nondiff_argnames=("name",))
    f.defvjp(lambda v, name: (v * 2, None), lambda name, res, ct: (ct * len(name),))
    np.testing.assert_allclose(
        np.asarray(grad(lambda v: f(v, name="abc").sum())(ours(V))), V * 0 + 3
    )
    g = custom_vjp(lambda v, activation: v * 2)  # hashable values are static by themselves
    g.defvjp(lambda v, activation: (v * 2, None), lambda activation, res, ct: (ct * 7,))
    np.testing.assert_allclose(np.asarray(grad(lambda v: g(v, "relu").sum())(ours(V))), V * 0 + 7)


def test_fwd_may_call_the_function_itself():
    f = custom_vjp(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * f(x) * 2,))
    np.testing.assert_allclose(np.asarray(grad(lambda x: f(x).sum())(ours(V))), 2 * np.sin(V))
    second = grad(lambda y: grad(lambda x: f(x).sum())(y).sum())(ours(V))
    np.testing.assert_allclose(np.asarray(second), 4 * np.sin(V))


def test_none_cotangents():
    f = custom_vjp(lambda x, n, d: x * n + d["a"])
    f.defvjp(lambda x, n, d: (f(x, n, d), n), lambda n, ct: (ct * 5, None, {"a": None}))
    gx, gd = grad(lambda x, d: f(x, 3, d).sum(), (0, 1))(ours(V), {"a": ours(V)})
    np.testing.assert_allclose(np.asarray(gx), V * 0 + 5)
    assert not np.asarray(gd["a"]).any()


def test_closures_over_traced_values():
    def program(m, x, s):
        def outer(k):
            if m.custom_vjp.__module__.startswith("jax"):
                return x * k * 3
            f = custom_vjp(lambda v: v * k)
            f.defvjp(lambda v: (v * k, None), lambda _, ct: (ct * k,))
            return f(x) * 3

        return m.jit(outer)(s), m.vmap(outer)(m.np.stack([s, s * 2]))

    agree(program, V, np.array(2.0))

    def differentiated(k):
        f = custom_vjp(lambda v: v * k)
        f.defvjp(lambda v: (v * k, None), lambda _, ct: (ct * k,))
        return f(ours(V)).sum()

    grad(lambda k: differentiated(1.0) * k)(2.0)
    with pytest.raises(errors.NotDifferentiableError, match="closes over a value"):
        grad(lambda k: grad(lambda v: _closed(k)(v))(1.0))(2.0)


def _closed(k):
    f = custom_jvp(lambda v: v * k)
    f.defjvp(lambda primals, tangents: (f(primals[0]), tangents[0] * k))
    return f


def test_outputs_of_which_some_differ_between_examples():
    """The derivative by an argument that examples share is the sum of theirs. (JAX counts the
    cotangent of an output that they share once for each.)"""
    index = lambda: lax.axis_index("i")
    f = custom_vjp(lambda v: (v * 2, v * index()))
    f.defvjp(lambda v: (f(v), None), lambda _, ct: (3 * ct[0] + 5 * ct[1] * index(),))

    def total(g):
        return lambda v: sum(o.sum() for o in vmap(lambda k: g(v), axis_name="i")(jnp.arange(3.0)))

    for by_shared in (grad(total(f)), grad(total(jit(f))), jit(grad(total(f)))):
        assert float(by_shared(2.0)) == 3 * 3 + 5 * (0 + 1 + 2)


def test_a_rule_that_alone_closes_over_what_is_batched():
    def scaled(k):
        f = custom_vjp(lambda x: x * 2)
        f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * k,))
        return f

    shared = lambda x: vmap(lambda k: scaled(k)(x))(ours(V)).sum()
    with pytest.raises(errors.NotDifferentiableError, match="bwd rule of <lambda> closes over"):
        grad(shared)(ours(V)[0])
    own = lambda x: vmap(lambda k, y: scaled(k)(y))(ours(V), x).sum()
    np.testing.assert_allclose(np.asarray(grad(own)(ours(V))), V)


def test_forward_mode_of_a_vjp_rule():
    f = custom_vjp(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    with pytest.raises(errors.NotDifferentiableError, match="define a forward rule too"):
        jvp(f, (ours(V),), (ours(V),))

    @f.def_jvp
    def rule(primals, tangents):
        return jnp.sin(primals[0]), tangents[0] * jnp.cos(primals[0])

    np.testing.assert_allclose(np.asarray(jvp(f, (ours(V),), (ours(V),))[1]), V * np.cos(V))
    over = jvp(grad(lambda x: f(x).sum()), (ours(V),), (ours(V),))[1]
    np.testing.assert_allclose(np.asarray(over), -V * np.sin(V))
    batched = vmap(lambda x: jvp(f, (x,), (x,))[1])(ours(A))
    np.testing.assert_allclose(np.asarray(batched), A * np.cos(A))


def test_decorators_keywords_and_methods():
    @custom_vjp
    def f(x, scale=2.0):
        """Doc."""
        return x * scale

    @f.def_fwd
    def fwd(x, scale):
        return x * scale, scale

    @f.def_bwd
    def bwd(scale, ct):
        return ct * scale * 10, None

    assert f.__name__ == "f" and f.__doc__ == "Doc."
    np.testing.assert_allclose(
        np.asarray(grad(lambda x: f(x, scale=3.0).sum())(ours(V))), V * 0 + 30
    )
    np.testing.assert_allclose(np.asarray(grad(lambda x: f(x).sum())(ours(V))), V * 0 + 20)

    class Layer:
        @custom_jvp
        def g(self, x):
            return x * 2

        g.defjvp(lambda self, primals, tangents: (primals[0] * 2, tangents[0] * 5))

    layer = Layer()
    np.testing.assert_allclose(np.asarray(grad(lambda x: layer.g(x).sum())(ours(V))), V * 0 + 5)


def test_custom_gradient():
    def program(m, x):
        @m.custom_gradient
        def f(v):
            return m.np.sin(v), lambda ct: (ct * v * 2,)

        return f(x)

    agree_under(program, V, stacks=("value", "grad", "jit(grad)", "vmap(grad)"))
    f = custom_gradient(lambda v: (v * 1.0, lambda ct: ct * 7))
    assert float(grad(f)(1.0)) == 7.0


def test_programs_of_rules_are_kept():
    traced = []

    @custom_vjp
    def f(x):
        traced.append(1)
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 2,))
    step = lambda x: grad(lambda v: f(v).sum())(x)
    step(ours(V))
    count = len(traced)
    step(ours(V))
    jit(step)(ours(V))
    assert len(traced) == count


def test_gradient_through_a_rule_in_a_scan_of_integers():
    f = custom_jvp(lambda x, n: x * n)
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * primals[1] * 2))
    g = grad(lambda x: scan(lambda h, n: (f(h, n), None), x, jnp.arange(1, 4))[0])(1.0)
    assert float(g) == 48.0


def _vjp(fwd, bwd):
    f = custom_vjp(lambda x, y: x * y)
    f.defvjp(fwd, bwd)
    return lambda: vjp(f, ours(V), ours(V))


def _recorded(fwd, bwd):
    f = custom_vjp(lambda x, y: x * y)
    f.defvjp(fwd, bwd)
    return lambda: jit(f)(ours(V), ours(V))


def _jvp(rule):
    f = custom_jvp(lambda x: x * 2)
    f.defjvp(rule)
    return lambda: vjp(f, ours(V))


_ok = lambda x, y: (x * y, None)


@pytest.mark.parametrize("call, kind, match", [
    (lambda: custom_jvp(jnp.sin)(1.0), errors.NotDifferentiableError, "no rule was given"),
    (lambda: custom_vjp(jnp.sin)(1.0), errors.NotDifferentiableError, "no rules were given"),
    (_vjp(lambda x, y: x * y, print), errors.TreeError, r"must return \(output, residuals\)"),
    (_recorded(lambda x, y: (x[:2], None), lambda res, ct: (ct, ct)), errors.TreeError,
     r"fwd rule .* returned \[f64\[2\]\]"),
    (_vjp(_ok, lambda res, ct: ct), errors.TreeError, "tuple of 2 cotangents"),
    (_vjp(_ok, lambda res, ct: (ct,)), errors.TreeError, "tuple of 2 cotangents"),
    (_vjp(_ok, lambda res, ct: (ct, ct[:2])), errors.ShapeError, r"f64\[2\] for argument 'y'"),
    (_vjp(_ok, lambda res, ct: (ct, {"a": ct, "b": ct})), errors.TreeError, "argument 'y'"),
    (_jvp(lambda p, t: t[0]), errors.TreeError, r"must return \(output, tangent\)"),
    (_jvp(lambda p, t: (p[0], (t[0],))), errors.TreeError, "structures"),
    (_jvp(lambda p, t: (p[0], t[0][:2])), errors.ShapeError, r"f64\[2\] where f64\[4\]"),
    (_jvp(lambda p, t: (t[0], t[0])), errors.NotDifferentiableError, "primal output from tangents"),
    (lambda: custom_vjp(jnp.sin, nondiff_argnames=("k",)), ValueError, "no argument 'k'"),
])  # fmt: skip
def test_refusals(call, kind, match):
    with pytest.raises(kind, match=match) as error:
        out = call()
        if isinstance(out, tuple):
            out[1](ours(V))
    assert len(str(error.value).splitlines()) <= 6


def test_unhashable_static_argument():
    f = custom_vjp(lambda x, options: x)
    f.defvjp(lambda x, options: (x, None), lambda options, res, ct: (ct,))
    with pytest.raises(TypeError, match="argument 1 of <lambda> is .*neither arrays nor hashable"):
        grad(lambda x: f(x, [{"a": "text"}]).sum())(ours(V))


def test_a_rule_that_another_thread_is_recording_counts_too():
    inside, outside = threading.Event(), threading.Event()

    @custom_jvp
    def f(x):
        return x * 2

    @f.defjvp
    def rule(primals, tangents):
        if threading.current_thread() is first:
            inside.set()
            outside.wait(20)
        return f(*primals), 7 * tangents[0]

    slopes = {}

    def work(name):
        slopes[name] = float(grad(jit(lambda x: f(x) + len(name)))(jnp.ones(())))

    first = threading.Thread(target=work, args=("first",))
    first.start()
    assert inside.wait(20)
    work("other")
    outside.set()
    first.join()
    assert slopes == {"first": 7, "other": 7}


def test_negative_nondiff_argnums_count_from_the_end():
    def made(transform):
        return transform(lambda x, n: x * [1, 2][n], nondiff_argnums=(-1,))

    forward, reverse = made(custom_jvp), made(custom_vjp)
    forward.defjvp(lambda n, primals, tangents: (primals[0], tangents[0] * [1, 2][n]))
    reverse.defvjp(lambda x, n: (x, None), lambda n, _, ct: (ct * [1, 2][n],))
    assert grad(lambda x: forward(x, 1))(3.0) == 2
    assert grad(lambda x: reverse(x, 1))(3.0) == 2
