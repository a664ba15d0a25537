"""Unshared convolution, ragged and scaled products, shapes, bits and resampling against JAX."""

from __future__ import annotations

import jax
import jax.image as jax_image
import numpy as np
import pytest

import genesis_fn.image as image
import genesis_fn.lax as lax
from genesis_fn.core import errors
from genesis_fn.core.array import from_numpy as ours
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.jitting import jit

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def close(got, want, bound=1e-5):
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=bound, atol=bound)


@pytest.mark.parametrize("numbers, x, w, strides, padding, window, dilation", [
    (None, (2, 3, 6, 7), (4, 12, 5, 6), (1, 1), "VALID", (2, 2), None),
    (("NHWC", "HWIO", "NHWC"), (2, 6, 7, 3), (3, 4, 18, 4), (2, 2), "SAME", (2, 3), None),
    (("NCW", "OIW", "NWC"), (2, 3, 8), (5, 9, 6), (1,), [(1, 1)], (3,), (2,)),
])  # fmt: skip
def test_unshared_convolution(numbers, x, w, strides, padding, window, dilation):
    x, w = normal(*x), normal(*w)
    f = lambda m, x, w: m.conv_general_dilated_local(
        x, w, strides, padding, window, rhs_dilation=dilation, dimension_numbers=numbers
    )
    close(f(lax, ours(x), ours(w)), f(jax.lax, x, w))
    slope = grad(lambda v: (f(lax, ours(x), v) ** 2).sum())(ours(w))
    close(slope, jax.grad(lambda v: (f(jax.lax, x, v) ** 2).sum())(w), 1e-4)


# lhs, rhs, contracting, batch, ragged, group dimensions
RAGGED = {
    "rows": ((7, 4), (3, 4, 5), ((1,), (1,)), ((), ()), (0,), (0,)),
    "rows of a batch": ((2, 7, 4), (2, 3, 4, 5), ((2,), (2,)), ((0,), (0,)), (1,), (1,)),
    "contracted": ((4, 7), (7, 5), ((1,), (0,)), ((), ()), (1,), ()),
    "contracted in a batch": ((2, 4, 7), (2, 7, 5), ((2,), (1,)), ((0,), (0,)), (2,), ()),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_products(name):
    lhs, rhs, contract, batch, ragged, group = RAGGED[name]
    x, y, sizes = normal(*lhs), normal(*rhs), np.array([2, 0, 4], np.int32)

    def f(m, x, y, sizes):
        numbers = m.RaggedDotDimensionNumbers((contract, batch), ragged, group)
        return m.ragged_dot_general(x, y, sizes, numbers)

    many = np.stack([sizes, sizes]) if batch[0] else sizes
    close(f(lax, ours(x), ours(y), ours(sizes)), f(jax.lax, x, y, many))
    assert grad(lambda v: f(lax, v, ours(y), ours(sizes)).sum())(ours(x)).shape == x.shape


def test_ragged_refusals():
    numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), ())
    with pytest.raises(errors.ShapeError, match="rhs_group_dimensions"):
        lax.ragged_dot_general(
            ours(normal(7, 4)), ours(normal(3, 4, 5)), ours(np.ones(3, np.int32)), numbers
        )


def test_scaled_products():
    x, y = normal(2, 5, 16), normal(2, 16, 6)
    a, b = np.abs(normal(2, 5, 4)), np.abs(normal(2, 2, 6))
    want = (x * np.repeat(a, 4, 2)) @ (y * np.repeat(b, 8, 1))
    f = jit(
        lambda x, y, a, b: lax.scaled_dot(
            x, y, lhs_scale=a, rhs_scale=b, preferred_element_type="float32"
        )
    )
    close(f(*map(ours, (x, y, a, b))), want)
    assert lax.scaled_dot(ours(x[0]), ours(y[0])).dtype == "bfloat16"
    with pytest.raises(errors.ShapeError, match="does not divide"):
        lax.scaled_dot(ours(x), ours(y), lhs_scale=ours(normal(2, 5, 3)))


def test_shapes_of_convolutions():
    for numbers in [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"), ("HNCW", "WIOH", "CNWH")]:
        want = jax.lax.conv_general_permutations(numbers)
        assert lax.conv_general_permutations(numbers) == tuple(map(tuple, want))
    args = ((2, 8, 9, 3), (3, 2, 3, 4), (2, 1))
    for padding in ("SAME", "VALID", ((1, 2), (0, 1))):
        numbers = ("NHWC", "HWIO", "NHWC")
        for name in ("conv_general_shape_tuple", "conv_transpose_shape_tuple"):
            want = getattr(jax.lax, name)(*args, padding, numbers)
            assert getattr(lax, name)(*args, padding, numbers) == tuple(want), (name, padding)
        assert lax.conv_shape_tuple((2, 3, 8, 9), (4, 3, 3, 2), (2, 1), padding) == tuple(
            jax.lax.conv_shape_tuple((2, 3, 8, 9), (4, 3, 3, 2), (2, 1), padding)
        )


@pytest.mark.parametrize("key", [
    np.array([1, 2], np.uint32), np.array([1, 2, 3, 4], np.uint32),
    np.array([5, 1 << 40], np.uint64),
], ids=["u32[2]", "u32[4]", "u64[2]"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits(key, dtype):
    f = lambda k: lax.rng_bit_generator(k, (4000,), dtype)
    following, bits = f(ours(key))
    assert following.aval == ours(key).aval and bits.dtype == dtype
    if dtype == "uint32" and key.shape == (2,) and key.dtype == np.uint32:
        np.testing.assert_array_equal(np.asarray(bits), np.asarray(jit(f)(ours(key))[1]))
    other = np.asarray(f(following)[1])
    assert (other == np.asarray(bits)).mean() < 0.02
    changed = key.copy()
    changed[-1] += 1
    assert (np.asarray(f(ours(changed))[1]) == other).mean() < 0.02
    mean = np.asarray(bits, np.float64).mean() / float(np.iinfo(dtype).max)
    assert abs(mean - 0.5) < 0.03


def test_uniform_values_differ_at_every_run():
    f = jit(lambda low: lax.rng_uniform(low, 5.0, (1000,)))
    first, second = np.asarray(f(2.0)), np.asarray(f(2.0))
    assert first.dtype == np.float32 and (first != second).any()
    assert first.min() >= 2 and first.max() < 5 and abs(first.mean() - 3.5) < 0.2
    whole = np.asarray(lax.rng_uniform(0, 3, (300,)))
    assert whole.dtype == np.int32 and set(whole) == {0, 1, 2}


METHODS = ["linear", "cubic", "lanczos3", "lanczos5", "cubic-pytorch", "area"]
PICTURE = normal(2, 7, 10, 3)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("method", [*METHODS, "nearest"])
def test_resize(method, antialias):
    for shape in ((2, 4, 15, 3), (2, 14, 3, 3), (2, 7, 1, 3)):
        got = image.resize(ours(PICTURE), shape, method, antialias)
        close(got, jax_image.resize(PICTURE, shape, method, antialias), 1e-4)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_scale_and_translate(method, antialias):
    scale, move = np.float32([0.6, 1.7]), np.float32([1.3, -2.1])
    f = lambda m, s, t: m.scale_and_translate(
        ours(PICTURE) if m is image else PICTURE, (2, 6, 12, 3), (1, 2), s, t, method, antialias
    )
    close(
        jit(lambda s, t: f(image, s, t))(ours(scale), ours(move)), f(jax_image, scale, move), 1e-4
    )
    got = grad(lambda s, t: (f(image, s, t) ** 2).sum(), (0, 1))(ours(scale), ours(move))
    want = jax.grad(lambda s, t: (f(jax_image, s, t) ** 2).sum(), (0, 1))(scale, move)
    for g, w in zip(got, want):
        close(g, w, 2e-2)


def test_scale_and_translate_refuses_nearest():
    with pytest.raises(ValueError, match="nearest"):
        image.scale_and_translate(ours(PICTURE), PICTURE.shape, (1,), [2.0], [0.0], "nearest")
