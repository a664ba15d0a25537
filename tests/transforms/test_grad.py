"""Derivatives of functions of pytrees against JAX: values, orders, modes, options, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.array import from_numpy
from genesis_fn.transforms.autodiff.derivatives import (
    VJP,
    fwd_and_bwd,
    grad,
    jvp,
    linear_transpose,
    linearize,
    value_and_grad,
    vjp,
)
from genesis_fn.transforms.autodiff.jacobians import hessian, jacfwd, jacrev
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit
from tests.transforms.both import OURS, agree, agree_under, normal, ours, values

A, B, V = normal(3, 4), normal(4, 3, seed=1), normal(4, seed=2)

PROGRAMS = {
    "mlp": (lambda m, w, x: m.np.tanh(w @ x).sum() * 2, A, V),
    "broadcast": (lambda m, x, y: x * y[:, None] - m.np.exp(-x) / (1 + y[:, None] ** 2), B, V),
    "fan": (lambda m, x: sum([x * k for k in (1.0, 2.0, x, x * x)], x), V),
    "reuse": (lambda m, x: (y := m.np.sin(x)) * y + y, V),
    "constant": (lambda m, x: m.np.ones(3, x.dtype) * 2, V),
    "partly constant": (lambda m, x, y: [m.np.floor(x), x * 2, m.np.ones(2, x.dtype)], V, V + 1),
    "scalar": (lambda m, x: m.np.sin(x) * x**3, np.array(0.7)),
    "empty": (lambda m, x: (m.np.sin(x), x.sum()), np.zeros((0, 3))),
    "integer inside": (lambda m, x: x * m.np.arange(4) + m.np.argmax(x), V),
    "mixed outputs": (lambda m, x, y: {"a": x @ y, "b": (x.T, m.np.max(y, 0))}, A, B),
    "indexing": (lambda m, x: x[1] * x[:, 1:].sum() + x[::2, ::-1].prod(), A),
    "where": (lambda m, x: m.np.where(x > 0, m.np.sqrt(m.np.abs(x) + 1), x * x), A),
    "stopped": (lambda m, x: m.stop_gradient(m.np.sin(x)) * x, V),
    "identity": (lambda m, x: x, V),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_agree_with_jax(name):
    program, *args = PROGRAMS[name]
    stacks = {"name": None}
    if name in ("constant", "partly constant", "mixed outputs", "empty"):
        agree_under(program, *args)
    else:
        stacks = (
            "value",
            "jvp",
            "grad",
            "forward over reverse",
            "reverse over reverse",
            "vmap(grad)",
        )
        agree_under(program, *args, stacks=stacks)


def test_high_orders():
    def nth(m, x):
        f = lambda t: m.np.sin(t) * m.np.exp(t * 0.5)
        found = [f(x)]
        for _ in range(5):
            f = m.grad(f)
            found.append(f(x))
        return found

    agree(nth, np.array(0.3))


def test_forward_high_orders():
    def nth(m, x):
        def d(f):
            return lambda t: m.jvp(f, (t,), (m.np.ones_like(t),))[1]

        f = lambda t: m.np.tanh(t * t)
        return d(d(d(f)))(x), d(m.grad(d(f)))(x), m.grad(d(m.grad(f)))(x)

    agree(nth, np.array(0.3))


@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (0, 2), [2, 1]])
def test_argnums(argnums):
    f = lambda m: lambda x, y, z: (x["a"] * y).sum() * z[0] + m.np.sin(x["b"]) * z[1]
    args = ({"a": V, "b": np.array(0.5)}, V + 1, (np.array(2.0), np.array(0.1)))
    agree(lambda m, *xs: m.grad(f(m), argnums)(*xs), *args)
    agree(lambda m, *xs: m.value_and_grad(f(m), argnums)(*xs), *args)


def test_jacobians_and_hessian():
    f = lambda m: lambda x, y: {"s": m.np.sin(x) @ y, "t": x.sum() * y[0]}
    for argnums in (0, 1, (0, 1)):
        agree(lambda m, *xs: m.jacfwd(f(m), argnums)(*xs), A, B)
        agree(lambda m, *xs: m.jacrev(f(m), argnums)(*xs), A, B)
    g = lambda m: lambda x, y: m.np.sum(m.np.tanh(x) * y**2)
    for argnums in (0, (0, 1)):
        agree(lambda m, *xs: m.hessian(g(m), argnums)(*xs), V, V + 1)
    agree(lambda m, x: m.hessian(lambda p: p["a"] @ p["b"])(x), {"a": V, "b": V})
    agree(lambda m, x: m.vmap(m.hessian(lambda v: m.np.sum(v**3)))(x), A)
    agree(lambda m, x: m.jacfwd(lambda v: (v * v, v.sum()), has_aux=True)(x), V)
    agree(lambda m, x: m.jacrev(lambda v: (v * v, v.sum()), has_aux=True)(x), V)
    agree(lambda m, x: m.jacrev(lambda v: m.np.zeros(2, v.dtype))(x), V)
    agree(lambda m, x: m.jacfwd(lambda v: m.np.zeros(2, v.dtype))(x), V)


def test_jacrev_allow_int():
    out = jacrev(lambda n, x: x * n, argnums=(0, 1), allow_int=True)(3, ours(V))
    np.testing.assert_allclose(np.asarray(out[1]), np.diag(V * 0 + 3))
    assert np.asarray(out[0]).shape == (4,) and not np.asarray(out[0]).any()


def test_has_aux_keeps_anything():
    def f(x):
        return (x * x).sum(), {"n": x * 2, "name": "layer", "count": 3, "none": None}

    (value, aux), g = value_and_grad(f, has_aux=True)(ours(V))
    assert aux["name"] == "layer" and aux["none"] is None and int(aux["count"]) == 3
    np.testing.assert_allclose(np.asarray(aux["n"]), V * 2)
    np.testing.assert_allclose(np.asarray(g), V * 2)
    g, aux = grad(f, has_aux=True)(ours(V))
    assert aux["name"] == "layer"
    np.testing.assert_allclose(np.asarray(g), V * 2)
    out, pull, aux = vjp(f, ours(V), has_aux=True)
    assert aux["name"] == "layer"
    np.testing.assert_allclose(np.asarray(pull(ours(np.array(1.0)))[0]), V * 2)
    out, push, aux = linearize(f, ours(V), has_aux=True)
    assert aux["name"] == "layer"
    np.testing.assert_allclose(np.asarray(push(ours(V))), 2 * V @ V)
    out, t, aux = jvp(f, (ours(V),), (ours(V),), has_aux=True)
    np.testing.assert_allclose(np.asarray(t), 2 * V @ V)
    np.testing.assert_allclose(np.asarray(aux["n"]), V * 2)


def test_has_aux_must_return_a_pair():
    with pytest.raises(errors.TreeError, match=r"must return \(output, aux\)"):
        grad(lambda x: x.sum(), has_aux=True)(ours(V))


def test_aux_is_differentiated_from_outside():
    def f(m, x):
        def inner(y):
            return (y * y).sum() * x[0], y * x

        return m.grad(lambda z: sum(v.sum() for v in m.value_and_grad(inner, has_aux=True)(z)[0]))(
            x
        )

    agree(f, V)


def test_nonfloat_leaves():
    params = {"w": V, "step": np.array(3, np.int32), "mask": np.array([True, False])}
    f = lambda p: (p["w"] * p["step"]).sum()
    g = grad(f, nonfloat="none")(ours(params))
    assert g["step"] is None and g["mask"] is None
    np.testing.assert_allclose(np.asarray(g["w"]), np.full(4, 3.0))
    g = grad(f, allow_int=True)(ours(params))
    assert g["step"].dtype == np.int32 and int(g["step"]) == 0
    assert g["mask"].shape == (2,) and not np.asarray(g["mask"]).any()
    with pytest.raises(TypeError, match=r"argument 0\['mask'\]"):
        grad(f)(ours(params))


def test_safe_zero():
    f = lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))
    x = ours(np.array([0.0, 4.0]))
    assert np.isnan(np.asarray(grad(f)(x))[0])
    np.testing.assert_allclose(np.asarray(grad(f, safe_zero=True)(x)), [0.0, 0.25])
    np.testing.assert_allclose(np.asarray(jit(grad(f, safe_zero=True))(x)), [0.0, 0.25])
    inside = grad(lambda y: grad(f, safe_zero=True)(y)[1])(x)
    np.testing.assert_allclose(np.asarray(inside), [0.0, -1 / 32])


def test_safe_zero_under_jit_inside():
    f = jit(lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0)))
    x = ours(np.array([0.0, 4.0]))
    assert np.isnan(np.asarray(grad(f)(x))[0])  # the plain derivative must not be reused
    np.testing.assert_allclose(np.asarray(grad(f, safe_zero=True)(x)), [0.0, 0.25])
    assert np.isnan(np.asarray(grad(f)(x))[0])


def test_holomorphic():
    z = np.array(0.3 + 0.4j)
    agree(lambda m, x: m.grad(lambda t: m.np.exp(t) * t, holomorphic=True)(x), z)
    agree(lambda m, x: m.jacrev(lambda t: t * t, holomorphic=True)(x), np.array([1j, 2.0]))
    with pytest.raises(TypeError, match="holomorphic=True"):
        grad(lambda t: t * t)(ours(z))
    with pytest.raises(TypeError, match="complex scalar"):
        grad(lambda t: jnp.real(t), holomorphic=True)(ours(z))
    real = lambda m: lambda x: m.np.sum(m.np.abs(m.np.exp(1j * x) + 1) ** 2)
    agree(lambda m, x: m.grad(real(m))(x), V)
    agree(lambda m, x: m.vjp(lambda t: m.np.sin(t) * 2j, x)[1](x), z)


def test_scalar_arguments():
    assert float(grad(lambda x: x * x)(3.0)) == 6.0
    assert float(grad(lambda x, y: x * y, argnums=(0, 1))(3.0, 2.0)[1]) == 3.0
    with pytest.raises(TypeError, match="argument 0 is i32"):
        grad(lambda x: x * x)(3)


def test_weak_scalar_stays_weak():
    """A differentiated Python scalar does not widen what it meets."""
    x = from_numpy(np.ones(3, np.float16))
    seen = []

    def f(s):
        y = x * s
        seen.append(y.dtype)
        return y.sum().astype(np.float32)

    assert grad(f)(2.0).dtype == np.float32
    assert seen == [np.dtype(np.float16)]


def test_numpy_inputs_become_arrays():
    g = grad(lambda p: (p["w"] * 2).sum())({"w": V})
    np.testing.assert_allclose(np.asarray(g["w"]), np.full(4, 2.0))


def test_kwargs_and_names():
    def f(x, *, scale):
        """Doc."""
        return (x * scale).sum()

    assert grad(f).__name__ == "f" and grad(f).__doc__ == "Doc."
    np.testing.assert_allclose(np.asarray(grad(f)(ours(V), scale=3.0)), np.full(4, 3.0))


def test_perturbation_confusion():
    agree(lambda m, x: m.grad(lambda a: a * m.grad(lambda b: a + b)(1.0))(x), np.array(1.0))
    agree(
        lambda m, x: m.jvp(
            lambda a: a * m.jvp(lambda b: a + b, (a,), (m.np.ones_like(a),))[1], (x,), (x,)
        ),
        np.array(2.0),
    )
    agree(lambda m, x: m.grad(lambda a: m.jvp(lambda b: a * b, (a,), (a,))[1])(x), np.array(3.0))
    agree(lambda m, x: m.vmap(lambda a: m.grad(lambda b: a * b * x[0])(a))(x), V)


def test_closures_capture_tracers():
    def f(m, x):
        def outer(a):
            inner = m.jit(lambda b: a * b * x)
            return m.grad(lambda c: inner(c).sum() * a.sum())(a).sum()

        return m.grad(outer)(x), m.vmap(lambda r: m.grad(lambda y: (y * r).sum())(x))(x)

    agree(f, V)


def test_vjp_and_linearize():
    def f(m, x, y):
        g = lambda a, b: {"u": m.np.sin(a) @ b, "v": a.sum()}
        out, pull = m.vjp(g, x, y)
        out2, push = m.linearize(g, x, y)
        ct = {"u": m.np.cos(out["u"]), "v": m.np.ones_like(out["v"])}
        return out, pull(ct), pull(ct), push(x, y), push(y.T, x.T), out2

    agree(f, A, B)
    agree(lambda m, x, y: m.jit(lambda a, b: f(m, a, b))(x, y), A, B)


def test_vjp_crosses_jit_as_a_pytree():
    pull = jit(lambda x: vjp(lambda y: jnp.sin(y) * y, x)[1])(ours(V))
    assert isinstance(pull, VJP)
    expected = np.cos(V) * V + np.sin(V)
    np.testing.assert_allclose(np.asarray(pull(ours(V * 0 + 1))[0]), expected)
    np.testing.assert_allclose(
        np.asarray(jit(lambda p, c: p(c))(pull, ours(V * 0 + 1))[0]), expected
    )


def test_vjp_of_unused_integer_and_constant():
    out, pull = vjp(lambda x, n, y: x * n, ours(V), 3, ours(A))
    gx, gn, gy = pull(ours(V))
    np.testing.assert_allclose(np.asarray(gx), 3 * V)
    assert gn.shape == () and gy.shape == (3, 4) and not np.asarray(gy).any()
    out, push = linearize(lambda x, n: (x * n, n + 1), ours(V), 3)
    t, tn = push(ours(V), 0)
    np.testing.assert_allclose(np.asarray(t), 3 * V)
    assert int(tn) == 0


def test_none_tangents_and_cotangents_are_zero():
    out, pull = vjp(lambda x: (x * 2, x * 3), ours(V))
    np.testing.assert_allclose(np.asarray(pull((None, ours(V)))[0]), 3 * V)
    out, t = jvp(lambda x, y: x * y, (ours(V), ours(V)), (None, ours(V)))
    np.testing.assert_allclose(np.asarray(t), V * V)


def test_linear_transpose():
    def f(m, x):
        up = m.linear_transpose(lambda y: 2 * (m.np.asarray(A, dtype=y.dtype) @ y)[None], x)
        return up(m.np.ones((1, 3), x.dtype))

    agree(f, V)
    t = linear_transpose(lambda p: p["a"] * 3.0, {"a": ours(V), "b": ours(V)})(ours(V))[0]
    np.testing.assert_allclose(np.asarray(t["a"]), 3 * V)
    assert not np.asarray(t["b"]).any()


def test_linear_transpose_of_control_flow():
    def f(m, x):
        a = m.np.asarray(A.T @ A, dtype=x.dtype)
        step = lambda c, _: (m.lax.cond(True, lambda c: a @ c, lambda c: c, c), c.sum())
        up = m.linear_transpose(lambda x: m.lax.scan(step, x, None, length=3), x)
        return up((x + 1, m.np.arange(3.0, dtype=x.dtype)))

    agree(f, V)


def test_linear_transpose_says_what_is_not_linear():
    with pytest.raises(TypeError, match=r"is not linear: its derivative depends.*argument \[0\]"):
        linear_transpose(lambda x: x * x, ours(V))
    # Its value depends on the point, its derivative does not.
    affine = linear_transpose(lambda x: 3 * x + 1, ours(V))(ours(V))[0]
    np.testing.assert_allclose(np.asarray(affine), 3 * V)


def test_fwd_and_bwd():
    forward, backward = fwd_and_bwd(lambda x, y: (x * y).sum(), argnums=(0, 1))
    out, pull = jit(forward)(ours(V), ours(V + 1))
    gx, gy = jit(backward)(pull, ours(np.array(2.0)))
    np.testing.assert_allclose(np.asarray(gx), 2 * (V + 1))
    np.testing.assert_allclose(np.asarray(gy), 2 * V)
    forward, backward = fwd_and_bwd(lambda x: (x.sum(), x * 2), has_aux=True)
    out, pull, aux = forward(ours(V))
    np.testing.assert_allclose(np.asarray(backward(pull, ours(np.array(1.0)))), V * 0 + 1)


def test_gradient_of_16_bit_accumulates_wide():
    """Many cotangents of one bfloat16 value are summed in float32 and rounded once."""
    x = from_numpy(np.asarray(1.0, np.float32)).astype("bfloat16")
    g = grad(lambda v: sum([v * (1 / 256)] * 255, v).astype(np.float32))(x)
    assert abs(float(g) - (1 + 255 / 256)) < 0.01


@pytest.mark.parametrize(
    "bad, match",
    [
        (lambda x: x, r"returned f64\[4\]"),
        (lambda x: (x.sum(), x), "pytree of 2 leaves"),
        (lambda x: jnp.argmax(x), "real floating scalar"),
        (lambda x: None, "returned None: is a return missing?"),
    ],
)
def test_losses_that_are_not_scalars(bad, match):
    with pytest.raises(TypeError, match=match):
        grad(bad)(ours(V))


def test_bad_tangents_and_cotangents():
    out, pull = vjp(lambda x: {"a": x}, ours(V))
    with pytest.raises(errors.TreeError, match="the cotangent has structure"):
        pull(ours(V))
    with pytest.raises(errors.ShapeError, match="leaf 0"):
        pull({"a": ours(V[:2])})
    with pytest.raises(errors.DTypeError, match="must have the dtype"):
        pull({"a": ours(V.astype(np.float32))})
    with pytest.raises(TypeError, match="tuples or lists"):
        jvp(jnp.sin, ours(V), ours(V))
    with pytest.raises(errors.TreeError, match="the tangents"):
        jvp(jnp.sin, (ours(V),), (ours(V), ours(V)))
    with pytest.raises(TypeError, match="argnums=3"):
        grad(lambda x: x, argnums=3)(1.0)
    with pytest.raises(TypeError, match="an argument of .*'abc'"):
        grad(lambda x: x)("abc")


def test_jacobian_of_nothing_to_differentiate():
    with pytest.raises(TypeError, match="floating-point"):
        jacfwd(lambda n: n * 2.0)(ours(np.arange(3)))
    with pytest.raises(TypeError, match="floating-point"):
        hessian(lambda n: n.sum() * 2.0)(ours(np.arange(3)))


def test_values_are_the_same_with_and_without_derivatives():
    f = lambda x: jnp.sum(jnp.tanh(x @ ours(B)))
    value, _ = value_and_grad(f)(ours(A))
    assert float(value) == float(f(ours(A)))
    assert values(vmap(f)(ours(A))).shape == (3,)
    assert OURS.grad is grad
