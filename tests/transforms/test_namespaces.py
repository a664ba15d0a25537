"""image, scipy.special, ops, flatten_util, lax's programs and implicit solutions against JAX."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.special

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import image, lax, ops
from genesis_fn.flatten_util import ravel_pytree
from genesis_fn.scipy import special

RNG = np.random.default_rng(0)


def f64(x):
    return jnp.array(x, dtype="float64")


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos3", "lanczos5"])
@pytest.mark.parametrize("shape", [(7, 3, 2), (3, 11, 2), (5, 6, 2)])
@pytest.mark.parametrize("antialias", [True, False])
def test_resize(method, shape, antialias):
    x = RNG.normal(size=(5, 6, 2)).astype(np.float32)
    ours = image.resize(jnp.array(x), shape, method, antialias)
    theirs = jax.image.resize(x, shape, method, antialias)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-4, atol=1e-5)


def test_resize_errors_and_gradient():
    with pytest.raises(ValueError, match="'fancy' is not known"):
        image.resize(jnp.ones((2, 2)), (4, 4), "fancy")
    with pytest.raises(gf.errors.ShapeError, match="must have the rank"):
        image.resize(jnp.ones((2, 2)), (4,), "linear")
    gf.test_util.check_grads(
        lambda x: image.resize(x, (5, 2), "cubic"), (f64(RNG.normal(size=(3, 4))),), 2
    )


X = np.array([-30.0, -12.0, -9.5, -2.0, -0.5, 0.0, 0.3, 1.0, 2.5, 9.0])
P = np.array([0.001, 0.2, 0.5, 0.9, 0.999])
POSITIVE = np.array([0.1, 0.5, 1.0, 3.0, 17.0])
UNARY = {
    "erf": X, "erfc": X, "erfinv": P, "gammaln": POSITIVE, "digamma": POSITIVE, "gamma": POSITIVE,
    "expit": X, "logit": P, "entr": X, "ndtr": X, "ndtri": P, "log_ndtr": X, "factorial": POSITIVE,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_special(name):
    x = UNARY[name]
    ours = np.asarray(getattr(special, name)(f64(x)))
    np.testing.assert_allclose(ours, getattr(scipy.special, name)(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "rel_entr", "kl_div", "betaln", "beta"])
def test_special_of_two(name):
    x, y = np.meshgrid([0.0, 0.5, 2.0], [0.3, 1.0, 4.0])
    if name.startswith("beta"):
        x = x + 0.1
    ours = np.asarray(getattr(special, name)(f64(x), f64(y)))
    np.testing.assert_allclose(ours, getattr(scipy.special, name)(x, y), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_segments(name, dtype):
    data = RNG.integers(1, 5, (6, 2)).astype(dtype)
    ids = np.array([0, 2, 0, 4, 2, -1], np.int32)
    for count in (None, 4):
        kept = ids if count is None else np.where(ids < 4, ids, -1)
        valid = kept >= 0
        ours = np.asarray(getattr(ops, name)(jnp.array(data), jnp.array(ids), count))
        rows = count or 5
        expected = np.stack([_segment(name, data[(kept == s) & valid], dtype) for s in range(rows)])
        np.testing.assert_array_equal(ours, expected)


def _segment(name, rows, dtype):
    info = np.iinfo(dtype) if dtype == "int32" else None
    if name == "segment_sum":
        return rows.sum(0)
    if name == "segment_prod":
        return rows.prod(0)
    if name == "segment_max":
        return rows.max(0, initial=info.min if info else -np.inf)
    return rows.min(0, initial=info.max if info else np.inf)


def test_segment_gradient_and_errors():
    g = gf.grad(lambda x: (ops.segment_sum(x, jnp.array([0, 1, 0]), 2) ** 2).sum())(jnp.arange(3.0))
    np.testing.assert_array_equal(np.asarray(g), [4, 2, 4])
    with pytest.raises(TypeError, match="num_segments must be given"):
        gf.jit(lambda x, i: ops.segment_sum(x, i))(jnp.ones(2), jnp.array([0, 1]))


def test_ravel_pytree():
    tree = {"a": jnp.ones((2, 2)), "b": jnp.arange(3), "c": (jnp.array(2.0).astype("bfloat16"),)}
    flat, back = ravel_pytree(tree)
    assert flat.shape == (8,) and flat.dtype == np.float32
    again = gf.jit(back)(flat * 2)
    assert again["b"].dtype == np.int32 and again["b"].tolist() == [0, 2, 4]
    assert again["c"][0].dtype == tree["c"][0].dtype
    with pytest.raises(gf.errors.ShapeError, match="vector of 8"):
        back(jnp.ones(7))
    assert ravel_pytree(())[0].shape == (0,)


# ---- implicit solutions ----


def matrix():
    a = RNG.normal(size=(3, 3))
    return f64(a @ a.T + 3 * np.eye(3)), f64(np.ones(3))


def dense(matvec, b):
    return jnp.linalg.solve(gf.jacfwd(matvec)(b), b)


@pytest.mark.parametrize("symmetric", [True, False])
def test_custom_linear_solve(symmetric):
    a, b = matrix()
    a = a if symmetric else a + f64(np.triu(np.ones((3, 3)), 1))
    options = {"symmetric": True} if symmetric else {"transpose_solve": dense}

    def ours(a, b):
        return (lax.custom_linear_solve(lambda v: a @ v, b, dense, **options) ** 2).sum()

    def direct(a, b):
        return (jnp.linalg.solve((a + a.T) / 2 if symmetric else a, b) ** 2).sum()

    for d in (
        lambda f: gf.grad(f, 1)(a, b),
        lambda f: gf.jit(gf.hessian(f, 1))(a, b),
        lambda f: gf.jvp(f, (a, b), (a, b))[1],
    ):
        np.testing.assert_allclose(np.asarray(d(ours)), np.asarray(d(direct)), rtol=1e-8)
    if not symmetric:
        np.testing.assert_allclose(
            np.asarray(gf.hessian(ours)(a, b)), np.asarray(gf.hessian(direct)(a, b)), rtol=1e-8
        )


def test_custom_linear_solve_forward_only():
    a, b = matrix()

    def f(b):
        return lax.custom_linear_solve(lambda v: a @ v, b, dense)

    np.testing.assert_allclose(np.asarray(gf.jvp(f, (b,), (b,))[1]), np.asarray(f(b)), rtol=1e-9)


def test_custom_root():
    def cube_root(a):
        def newton(f, x):
            return lax.while_loop(
                lambda x: jnp.abs(f(x)) > 1e-12, lambda x: x - f(x) / gf.grad(f)(x), x
            )

        return lax.custom_root(
            lambda x: x**3 - a, f64(1.0), newton, lambda g, y: y / g(jnp.ones_like(y))
        )

    a = f64(8.0)
    assert abs(float(gf.grad(cube_root)(a)) - 1 / 12) < 1e-12
    assert abs(float(gf.jit(gf.grad(gf.grad(cube_root)))(a)) + 2 / 9 * 8 ** (-5 / 3)) < 1e-12


# ---- programs ----


def test_ragged_dot():
    x, w = RNG.normal(size=(5, 3)).astype("f4"), RNG.normal(size=(2, 3, 4)).astype("f4")
    sizes = np.array([1, 3], np.int32)
    ours = gf.jit(lax.ragged_dot)(x, w, sizes)
    np.testing.assert_allclose(
        np.asarray(ours), jax.lax.ragged_dot(x, w, sizes), rtol=1e-5, atol=1e-6
    )
    g = gf.grad(lambda w: lax.ragged_dot(x, w, sizes).sum())(jnp.array(w))
    r = jax.grad(lambda w: jax.lax.ragged_dot(x, w, sizes).sum())(w)
    np.testing.assert_allclose(np.asarray(g), r, rtol=1e-5, atol=1e-6)


def test_convolution_shapes():
    numbers = ("NHWC", "HWIO", "NHWC")
    for args in (
        ((1, 3, 8, 8), (4, 3, 3, 3), (2, 2), "SAME", None),
        ((1, 9, 8, 3), (3, 3, 3, 4), (1, 2), "VALID", numbers),
    ):
        lhs, rhs, strides, padding, dims = args
        assert (
            lax.conv_general_shape_tuple(*args)
            == jax.eval_shape(
                lambda x, w, s=strides, p=padding, d=dims: jax.lax.conv_general_dilated(
                    x, w, s, p, dimension_numbers=d
                ),
                jax.ShapeDtypeStruct(lhs, "f4"),
                jax.ShapeDtypeStruct(rhs, "f4"),
            ).shape
        )
    assert lax.conv_transpose_shape_tuple((1, 8, 8, 3), (3, 3, 3, 4), (2, 2), "SAME", numbers) == (
        1,
        16,
        16,
        4,
    )


def test_composite_stage_platform_and_sink():
    square = lax.composite(lambda x: x * x, "square")
    assert "square" in str(gf.make_jaxpr(square)(1.0)) and float(gf.grad(square)(3.0)) == 6.0
    here = gf.default_backend() if hasattr(gf, "default_backend") else "cpu"
    on_cpu = gf.device_put(jnp.ones(2), "cpu")
    for x, place in ((2, here), (jnp.ones(2), here), (on_cpu, "cpu")):
        for run in (lambda f: f, gf.jit):
            got = run(lambda x: lax.platform_dependent(x, cpu=lambda x: x, default=lambda x: -x))(x)
            np.testing.assert_array_equal(got, x if place == "cpu" else -x)
    with pytest.raises(ValueError, match="no default"):
        lax.platform_dependent(2, tpu=lambda x: x)
    assert "exp" in str(gf.make_jaxpr(lambda x: (lax.dce_sink(jnp.exp(x)), x)[1])(1.0))
    assert len(gf.make_jaxpr(lambda: lax.stage(1.0))().eqns) >= 1
