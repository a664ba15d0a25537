"""scan against JAX, and what it promises beyond: cast carries, hoisted residuals, messages."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import Jaxpr, check
from genesis_fn.core.primitive import typeof
from genesis_fn.transforms.autodiff.derivatives import grad, linearize, vjp
from genesis_fn.transforms.autodiff.linearize import linearize_flat
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import stage
from tests.transforms.both import agree, agree_under, normal, ours, values

X, W, V = normal(5, 3), normal(3, 3, seed=1) * 0.5, normal(3, seed=2)


def rnn(m, c, w, xs, **options):
    def step(h, x):
        h = m.np.tanh(w @ h + x)
        return h, (h * x, x.sum())

    return m.scan(step, c, xs, **options)


def test_recurrence_under_every_stack():
    agree_under(lambda m, c, w, xs: rnn(m, c, w, xs), V, W, X)


def test_reverse_under_transforms():
    stacks = ("value", "jvp", "grad", "forward over reverse", "vmap(grad)")
    agree_under(
        lambda m, c, xs: rnn(m, c, m.np.eye(3) * 0.5, xs, reverse=True), V, X, stacks=stacks
    )


PROGRAMS = {
    "no xs": lambda m, c: m.scan(lambda h, _: (m.np.sin(h), h), c, None, length=4),
    "no carry": lambda m, c: m.scan(lambda _, x: (None, x * x), None, c),
    "no y": lambda m, c: m.scan(lambda h, x: (h * x, None), c[0], c),
    "unrolled": lambda m, c: m.scan(lambda h, x: (h * 0.5 + x, h), c[0], c, unroll=2),
    "fully unrolled": lambda m, c: m.scan(lambda h, x: (h * 0.5 + x, h), c[0], c, unroll=True),
    "unrolled backwards": lambda m, c: m.scan(
        lambda h, x: (h * 0.5 + x, h * 3), c[0], c, unroll=True, reverse=True
    ),
    "one step": lambda m, c: m.scan(lambda h, x: (h * x, h), c[0], c[:1]),
    "no steps": lambda m, c: m.scan(lambda h, x: (h * x, (h, x)), c[0], c[:0]),
    "no steps, unrolled": lambda m, c: m.scan(
        lambda h, x: (h * x, (h, x)), c[0], c[:0], unroll=True
    ),
    "no steps without xs": lambda m, c: m.scan(lambda h, _: (h * 2, h), c, None, length=0),
    "counter": lambda m, c: m.scan(
        lambda h, x: ((h[0] + 1, h[1] * x + h[0]), h[0] * x), (0, c[0]), c
    )[0][1],
    "constant carry": lambda m, c: m.scan(lambda h, x: (h, h * x), c[0], c),
    "carry used once": lambda m, c: m.scan(lambda h, x: (x, h * x), c[0], c),
    "closure": lambda m, c: m.scan(lambda h, x: (h * c.sum(), x * c), c[0] * 0.1, c),
    "nested": lambda m, c: m.scan(
        lambda h, x: m.scan(lambda g, y: (m.np.sin(g) * x + y, g), h, c), c[0], c
    ),
    "pytree": lambda m, c: m.scan(
        lambda h, x: ({"a": h["b"] * x, "b": h["a"]}, {"y": [h["a"], x]}), {"a": c[0], "b": c[1]}, c
    ),
    "gather inside": lambda m, c: m.scan(lambda i, x: (i + 1, c[i] * x), 0, c)[1],
    "inside jit": lambda m, c: m.jit(
        lambda d: m.scan(m.jit(lambda h, x: (m.np.cos(h) * x, h)), d[0], d)
    )(c),
    "checkpointed": lambda m, c: m.scan(
        m.checkpoint(lambda h, x: (m.np.tanh(h * x) + x, m.np.sin(h))), c[0], c
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    stacks = ("value", "jvp", "jit(grad)", "reverse over reverse", "vmap(grad)")
    agree_under(PROGRAMS[name], X, stacks=stacks)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)])
def test_batched_operands(axes):
    def program(m, c, w, xs):
        xs = [x if a is None else m.np.stack([x, 2 * x]) for x, a in zip((c, w, xs), axes)]
        f = lambda *args: rnn(m, *args)
        g = lambda *args: sum(y.sum() for y in m.tree.leaves(rnn(m, *args)))
        return m.vmap(f, axes)(*xs), m.vmap(m.grad(g, (0, 1, 2)), axes)(*xs)

    agree(program, V, W, X)


def test_weak_init_takes_the_dtype_of_the_body():
    for init in (0, 0.0, 1):
        agree(lambda m, x, init=init: m.scan(lambda h, v: (h + v.sum(), h), init, x), X)
    carry, ys = scan(lambda h, x: (h + x, h), 0.0, ours(X[:, 0].astype(np.float16)))
    assert carry.dtype == np.float16 and ys.dtype == np.float16


def test_cast_carry():
    xs = ours(X)
    init = jnp.zeros(3, "float32")
    with pytest.raises(TypeError, match='carry="cast"'):
        scan(lambda h, x: (h + x, h), init, xs)
    carry, ys = scan(lambda h, x: (h + x, h), init, xs, carry="cast")
    assert carry.dtype == np.float32
    np.testing.assert_allclose(np.asarray(carry), X.sum(0), rtol=1e-5)
    g = grad(lambda v: scan(lambda h, x: (h + x * x, None), init, v, carry="cast")[0].sum())(xs)
    np.testing.assert_allclose(np.asarray(g), 2 * X, rtol=1e-6)


def _scans(jaxpr: Jaxpr) -> list:
    return [e for e in jaxpr.eqns if e.prim.name == "scan"]


def _stacked_bytes(f, *args):
    """The bytes of what the forward scan stacks, beyond the outputs of `f`."""

    def both(*xs):
        outs, nonzero, jaxpr, residuals = linearize_flat(f, xs, [True] * len(xs))
        return [*outs, *residuals]

    jaxpr, _ = stage(both, [typeof(x) for x in args])
    check(jaxpr)
    (loop,) = [e for e in _scans(jaxpr)]
    carry = loop.params["carry"]
    return [o.aval for o in loop.outs[carry:]], loop


def test_loop_invariant_residuals_are_not_stacked():
    w, c, xs = ours(W), ours(V), ours(X)
    f = lambda c, w, xs: [scan(lambda h, x: (jnp.exp(w) @ h + jnp.sin(x), None), c, xs)[0]]
    stacked, loop = _stacked_bytes(f, c, w, xs)
    assert [a for a in stacked if a.shape == (5, 3, 3)] == [], "exp(w) depends on constants only"
    assert [a.shape for a in stacked] == [(5, 3)], "only the carry is needed of every step"


def test_residuals_that_are_inputs_are_not_stacked():
    f = lambda c, xs: [scan(lambda h, x: (h * x, None), c, xs)[0]]
    stacked, _ = _stacked_bytes(f, ours(V), ours(X))
    assert [a.shape for a in stacked] == [(5, 3)], "the xs are there already; the carry is stacked"


def test_forward_mode_stacks_nothing():
    def f(c, t, xs):
        from genesis_fn.transforms.autodiff.derivatives import jvp

        return jvp(lambda h: scan(lambda g, x: (jnp.sin(g) * x, None), h, xs)[0], (c,), (t,))

    jaxpr = jit(f).trace(ours(V), ours(V), ours(X)).jaxpr
    (loop,) = _scans(jaxpr)
    assert [o.aval.shape for o in loop.outs] == [(3,), (3,)]


def test_staged_programs_pass_the_checker():
    def f(c, w, xs):
        out, pull = vjp(lambda *a: rnn_sum(*a), c, w, xs)
        return out, pull(jnp.ones_like(out))

    def rnn_sum(c, w, xs):
        h, ys = scan(lambda h, x: (jnp.tanh(w @ h + x), h), c, xs)
        return h.sum() + ys.sum()

    check(jit(f).trace(ours(V), ours(W), ours(X)).jaxpr)
    with config.override(check_types=True):
        values(linearize(rnn_sum, ours(V), ours(W), ours(X))[1](ours(V), ours(W), ours(X)))


def test_bfloat16_constants_accumulate_wide():
    """The cotangent of a constant is summed over 512 steps in float32."""
    w = jnp.ones((), "bfloat16")
    xs = jnp.full((512,), 1 / 256, "bfloat16")
    g = grad(lambda v: scan(lambda h, x: (h, v * x), 0.0, xs)[1].astype("float32").sum())(w)
    assert abs(float(g) - 2.0) < 0.02


def test_disable_jit_runs_python():
    seen = []
    with config.override(disable_jit=True):
        carry, ys = scan(lambda h, x: (seen.append(float(x)) or h + x, h), 0.0, ours(V))
        scan(lambda h, x: (h + x, h), 0.0, ours(V), reverse=True)
        assert scan(lambda h, x: (h, x), 0.0, ours(V[:0]))[1].shape == (0,)
    assert seen == list(V)
    np.testing.assert_allclose(float(carry), V.sum())


@pytest.mark.parametrize("call, kind, match", [
    (lambda: scan(lambda h, x: h, 0.0, ours(V)), errors.TreeError, r"must return \(carry, y\)"),
    (lambda: scan(lambda h, x: ({"b": h["a"]}, x), {"a": ours(V)}, ours(V)), errors.TreeError,
     "another structure: .*missing"),
    (lambda: scan(lambda h, x: (h[:2], x), ours(V), ours(V)), TypeError,
     r"goes in as f64\[3\] and comes out of <lambda> as f64\[2\]"),
    (lambda: scan(lambda h, x: (h, x), 0.0, ours(np.array(1.0))), ValueError, "leading axis"),
    (lambda: scan(lambda h, x: (h, x), 0.0, (ours(V), ours(X))), ValueError,
     r"xs\[1\] has length 5, expected 3"),
    (lambda: scan(lambda h, x: (h, x), 0.0, ours(V), length=4), ValueError, "expected 4"),
    (lambda: scan(lambda h, x: (h, x), 0.0), ValueError, "pass xs or length="),
])  # fmt: skip
def test_refusals(call, kind, match):
    with pytest.raises(kind, match=match) as error:
        call()
    assert len(str(error.value).splitlines()) <= 6


def test_carry_message_names_leaf_line_and_cast():
    with pytest.raises(TypeError) as error:
        scan(lambda h, x: ({"m": h["m"] + x.astype("float64")}, x), {"m": jnp.zeros(3)}, ours(X))
    text = str(error.value)
    assert "carry['m']" in text and "f32[3]" in text and "f64[3]" in text
    assert "test_scan.py" in text and ".astype('float64')" in text
