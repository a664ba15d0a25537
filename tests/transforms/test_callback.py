"""Host callbacks under every transform."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.callback import debug_callback, io_callback, pure_callback
from genesis_fn.transforms.custom.derivative_rules import custom_vjp
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def host_sin(x, method="sequential"):
    return pure_callback(np.sin, ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)


def test_values_eager_jit_scan_cond():
    x = jnp.array(X)
    expected = np.sin(X)
    np.testing.assert_allclose(np.asarray(host_sin(x)), expected)
    np.testing.assert_allclose(np.asarray(jit(host_sin)(x)), expected)
    total, ys = jit(
        lambda x: scan(lambda c, row: (c + host_sin(row).sum(), host_sin(row)), 0.0, x)
    )(x)
    np.testing.assert_allclose(np.asarray(ys), expected)
    bound = 1e-6 * np.abs(expected).sum()  # of the terms, which cancel
    np.testing.assert_allclose(float(total), expected.sum(), rtol=0, atol=bound)
    chosen = jit(lambda x: cond(x.sum() > 0, host_sin, lambda v: v, x))(x)
    np.testing.assert_allclose(np.asarray(chosen), expected)


@pytest.mark.parametrize(
    "method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"]
)
def test_vmap_methods(method):
    shapes = []

    def add(x, y):
        shapes.append((x.shape, y.shape))
        return np.asarray(x + y)

    def f(x, y):
        return pure_callback(add, ShapeDtypeStruct((), "float32"), x, y, vmap_method=method)

    g = vmap(vmap(f, in_axes=(0, None)), in_axes=(0, None))
    out = jit(g)(jnp.array(X), jnp.array(1.0))
    np.testing.assert_array_equal(np.asarray(out), X + 1)
    expected = {
        "sequential": [((), ())] * 6,
        "sequential_unrolled": [((), ())] * 6,
        "expand_dims": [((2, 3), (1, 1))],
        "broadcast_all": [((2, 3), (2, 3))],
    }
    assert shapes == expected[method]


def test_vmap_needs_a_method():
    with pytest.raises(ValueError, match="vmap_method=.*"):
        vmap(lambda x: pure_callback(np.sin, ShapeDtypeStruct((), "float32"), x))(jnp.ones(3))


def test_pytrees_and_keywords():
    def f(tree, *, scale):
        return {"a": tree["x"] * scale, "n": np.int32(3)}

    out = jit(
        lambda t: pure_callback(
            f,
            {"a": ShapeDtypeStruct((3,), "float32"), "n": ShapeDtypeStruct((), "int32")},
            t,
            scale=2.0,
        )
    )({"x": jnp.ones(3)})
    np.testing.assert_array_equal(np.asarray(out["a"]), np.full(3, 2.0))
    assert int(out["n"]) == 3


@pytest.mark.parametrize("transform", [jit, lambda f: f])
def test_python_numbers_arrive_as_scalars_of_numpy(transform):
    seen = []

    def f(x, *numbers, **named):
        seen.extend([*numbers, *named.values()])
        return x

    x, large = jnp.ones(3), 2**40
    transform(lambda x: pure_callback(f, x, x, 3, True, 0.5, large, "a", z=1j))(x)
    assert seen == [3, True, 0.5, large, "a", 1j]
    kinds = [np.int32, np.bool_, np.float32, int, str, np.complex64]
    assert [type(v) for v in seen] == kinds


@pytest.mark.parametrize("dtype", ["bfloat16", "uint32", "bool", "float8_e4m3fn", "complex64"])
def test_dtypes_arrive_as_they_are(dtype):
    x = jnp.array([0, 1, 2]).astype(dtype)
    seen = []

    def f(v):
        seen.append(v.dtype)
        return v

    out = jit(lambda x: pure_callback(f, ShapeDtypeStruct(x.shape, x.dtype), x))(x)
    assert seen[0] == x.dtype and out.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(out), np.asarray(x))


def test_derivative_raises_with_the_remedy():
    for d in (grad(lambda x: host_sin(x).sum()), lambda x: jvp(host_sin, (x,), (x,))):
        with pytest.raises(errors.NotDifferentiableError, match="custom_vjp"):
            d(jnp.ones(3))

    @custom_vjp
    def sin(x):
        return host_sin(x)

    sin.defvjp(lambda x: (sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    g = jit(grad(lambda x: sin(x).sum()))(jnp.array(X))
    np.testing.assert_allclose(np.asarray(g), np.cos(X), rtol=1e-6)
    g = vmap(grad(lambda x: sin(x).sum()))(jnp.array(X))
    np.testing.assert_allclose(np.asarray(g), np.cos(X), rtol=1e-6)


def test_wrong_results_are_named():
    x = jnp.ones(3)
    with pytest.raises(errors.ShapeError, match=r"returned shape \(2,\).*f32\[3\]"):
        pure_callback(lambda v: v[:2], ShapeDtypeStruct((3,), "float32"), x)
    with pytest.raises(errors.DTypeError, match="returned int32"):
        jit(
            lambda x: pure_callback(lambda v: v.astype("i4"), ShapeDtypeStruct((3,), "float32"), x)
        )(x)
    with pytest.raises(errors.TreeError, match="returned structure"):
        pure_callback(lambda v: (v, v), ShapeDtypeStruct((3,), "float32"), x)


def test_io_callback_runs_once_per_call_in_order():
    log = []

    def step(c, x):
        n = io_callback(
            lambda v: (log.append(float(v)), np.int32(len(log)))[1],
            ShapeDtypeStruct((), "int32"),
            x,
            ordered=True,
        )
        return c + n, None

    f = jit(lambda xs: scan(step, jnp.array(0), xs)[0])
    assert int(f(jnp.array([3.0, 1.0, 2.0]))) == 6
    assert int(f(jnp.array([5.0, 5.0, 5.0]))) == 15
    assert log == [3, 1, 2, 5, 5, 5]


def test_io_callback_unused_result_is_kept_and_vmapped():
    log = []

    def f(x):
        io_callback(lambda v: log.append(float(v)), None, x)
        return x * 2

    vmap(jit(f))(jnp.arange(3.0))
    assert sorted(log) == [0, 1, 2]
    with pytest.raises(ValueError, match="ordered"):
        vmap(lambda x: io_callback(lambda v: None, None, x, ordered=True))(jnp.ones(2))


def test_checkpoint_does_not_repeat_side_effects():
    log = []

    def step(c, v):
        debug_callback(lambda a: log.append(float(a)), v)
        return c + jnp.sin(c * v), None

    g = jit(grad(checkpoint(lambda x: scan(step, 1.0, x)[0])))(jnp.array([1.0, 2.0]))
    assert np.isfinite(np.asarray(g)).all()
    assert log == [1.0, 2.0]


def test_the_callback_may_keep_its_argument():
    kept = []
    f = jit(lambda x: (pure_callback(lambda v: (kept.append(v), v)[1], x, x), x + 1)[1])
    g = jit(lambda x: pure_callback(lambda v: (kept.append(v), v)[1], x, x) * 2 + 1)
    f(jnp.ones(4))
    g(jnp.ones(4))
    np.testing.assert_array_equal(kept[-1], np.ones(4))


def test_same_callback_is_traced_once():
    f = jit(lambda x: host_sin(x))
    f(jnp.ones(3))
    f(jnp.zeros(3))
    assert f.cache_size() == 1
