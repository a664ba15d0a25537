"""Convolutions and window reductions against JAX: layouts, strides, dilations, groups."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn.core import dtypes, errors
from genesis_fn.core.dtypes import extreme_over_nothing
from genesis_fn.primitives import conv, elementwise
from genesis_fn.primitives.reductions import reduce_window
from tests.primitives.check import (
    assert_same,
    check,
    check_batched,
    check_derivatives,
    check_dtypes,
    check_numeric,
    check_staged,
    check_value,
    random,
    to_array,
    vjp,
)
from tests.primitives.test_reduce import extremes
from tests.primitives.windows import pool

# name: (lhs shape, rhs shape, arguments)
CASES = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 2), dict(window_strides=(1, 1), padding="VALID")),
    "same, strided": ((2, 3, 7, 6), (4, 3, 3, 3), dict(window_strides=(2, 2), padding="SAME")),
    "same lower": ((1, 2, 6), (3, 2, 4), dict(window_strides=(1,), padding="SAME_LOWER")),
    "uneven padding": (
        (2, 2, 6, 5), (3, 2, 3, 2), dict(window_strides=(2, 1), padding=((0, 2), (1, 0)))
    ),
    "negative padding": (
        (2, 2, 7, 6), (3, 2, 2, 2), dict(window_strides=(1, 2), padding=((-1, 1), (0, -1)))
    ),
    "kernel dilation": (
        (2, 2, 8, 7), (3, 2, 3, 2),
        dict(window_strides=(1, 2), padding=((1, 1), (2, 0)), rhs_dilation=(2, 3)),
    ),
    "input dilation": (
        (2, 2, 4, 3), (3, 2, 3, 2),
        dict(window_strides=(1, 1), padding=((2, 2), (1, 1)), lhs_dilation=(2, 3)),
    ),
    "everything": (
        (2, 2, 5, 4), (3, 2, 3, 2),
        dict(window_strides=(2, 3), padding=((3, 1), (0, 2)), lhs_dilation=(2, 3),
             rhs_dilation=(2, 2)),
    ),
    "groups": (
        (2, 6, 5, 4), (4, 3, 3, 2),
        dict(window_strides=(2, 1), padding="SAME", feature_group_count=2),
    ),
    "depthwise": (
        (2, 3, 6), (6, 1, 3), dict(window_strides=(1,), padding=((2, 0),), feature_group_count=3)
    ),
    "batch groups": (
        (4, 3, 5, 4), (6, 3, 3, 2),
        dict(window_strides=(1, 2), padding="SAME", batch_group_count=2),
    ),
    "three dimensions": (
        (1, 2, 4, 3, 5), (2, 2, 2, 2, 3), dict(window_strides=(1, 1, 2), padding="SAME")
    ),
    "channels last": (
        (2, 6, 5, 3), (3, 2, 3, 4),
        dict(window_strides=(2, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    ),
    "one tap, channels last": (
        (4, 8, 8, 3), (1, 1, 3, 6),
        dict(window_strides=(2, 2), padding="VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    ),
    "one tap, padded": (
        (2, 9, 8, 4), (1, 1, 4, 6),
        dict(window_strides=(3, 1), padding=((2, 1), (-1, 0)),
             dimension_numbers=("NHWC", "HWIO", "NHWC")),
    ),
    "one tap of a volume": (
        (2, 5, 4, 4, 3), (1, 1, 1, 3, 6),
        dict(window_strides=(2, 1, 2), padding="SAME",
             dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
    ),
    "more cut than there is": (
        (2, 3, 1, 4), (4, 3, 1, 2), dict(window_strides=(1, 1), padding=((-1, 2), (4, -5)))
    ),
    "odd layouts": (
        (6, 3, 5, 2), (4, 2, 3, 3),
        dict(window_strides=(1, 2), padding="SAME", dimension_numbers=("HCWN", "OWHI", "CWNH")),
    ),
    "no spatial dimension": ((4, 3), (5, 3), dict(window_strides=(), padding=())),
    "kernel of the input's size": (
        (3, 2, 4, 5), (4, 2, 4, 5), dict(window_strides=(1, 1), padding="VALID")
    ),
    "large strided kernel": (
        (2, 2, 9, 8), (3, 2, 3, 3),
        dict(window_strides=(2, 3), padding=((1, -1), (0, 1)), rhs_dilation=(3, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_jax(name):
    x, w, options = CASES[name]
    check(
        functools.partial(conv.conv_general_dilated, **options),
        functools.partial(jax.lax.conv_general_dilated, **options),
        random(x),
        random(w, seed=1),
        order=1,
    )


@pytest.mark.parametrize("name", CASES)
def test_float32(name):
    """oneDNN has its own routines for it, in each layout; float64, above, is never theirs."""
    x, w, options = CASES[name]
    arrays = random(x), random(w, seed=1)

    def run(library, *arrays):
        y, pull = library.vjp(lambda *a: library.lax.conv_general_dilated(*a, **options), *arrays)
        return [np.asarray(a) for a in (y, *pull(y * 0.5 + 1))]

    for got, want in zip(run(gf, *[a.astype(np.float32) for a in arrays]), run(jax, *arrays)):
        assert got.dtype == np.float32 and want.dtype == np.float64
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "groups", "batch groups", "everything"])
def test_second_order(name):
    x, w, options = CASES[name]
    check_derivatives(
        functools.partial(conv.conv_general_dilated, **options),
        functools.partial(jax.lax.conv_general_dilated, **options),
        random(x),
        random(w, seed=1),
        order=2,
    )


@pytest.mark.parametrize("name", ["uneven padding", "groups", "input dilation"])
def test_every_dtype(name):
    x, w, options = CASES[name]
    f = functools.partial(conv.conv_general_dilated, **options)
    kinds = [d for d in dtypes.FLOATS if d.itemsize > 1] + list(dtypes.COMPLEX)
    check_dtypes(
        f,
        functools.partial(jax.lax.conv_general_dilated, **options),
        lambda k: [random(x, k), random(w, k, seed=1)],
        kinds,
    )
    # Integers: what float64 gives, wrapped; JAX has no such kernels for all of them.
    for kind in dtypes.INTEGERS:
        a, b = random(x, kind), random(w, kind, seed=1)
        wide = jax.lax.conv_general_dilated(a.astype(float), b.astype(float), **options)
        got = f(to_array(a), to_array(b))
        assert_same(got, np.asarray(wide).astype(np.int64).astype(kind))
        check_staged(f, a, b)


def test_wide_integers_are_exact():
    x = np.full((1, 1, 4), 2**40 + 1, np.int64)
    w = np.array([[[3, 2**20 + 1]]], np.int64)
    out = conv.conv(to_array(x), to_array(w), (1,), "VALID")
    assert_same(out, np.full((1, 1, 3), (2**40 + 1) * (2**20 + 4), np.int64))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sixteen_bit_floats_accumulate_in_float32(kind):
    d = dtypes.dtype(kind)
    x, w = random((2, 256, 5, 5), d), random((2, 256, 3, 3), d, seed=1)
    out = conv.conv(to_array(x), to_array(w), (1, 1), "SAME")
    exact = jax.lax.conv(x.astype(np.float64), w.astype(np.float64), (1, 1), "SAME")
    assert_same(out, np.asarray(exact).astype(d), tolerance=2 * float(dtypes.finfo(d).eps))
    wide = conv.conv(to_array(x), to_array(w), (1, 1), "SAME", None, "float32")
    assert_same(wide, np.asarray(exact).astype(np.float32), tolerance=1e-4)


def test_mixed_precision_derivatives_have_the_operands_dtypes():
    options = dict(window_strides=(1, 1), padding="SAME", preferred_element_type=np.float32)
    check(
        functools.partial(conv.conv_general_dilated, **options),
        functools.partial(jax.lax.conv_general_dilated, **options),
        random((2, 2, 4, 4), dtypes.BF16),
        random((2, 2, 3, 3), dtypes.BF16, seed=1),
        order=1,
        batch=False,
        tolerance=4e-2,
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((2, 1), (0, 3))])
@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_conv_transpose(padding, transpose_kernel):
    kernel = (3, 4, 2, 5) if transpose_kernel else (3, 4, 5, 2)
    options = dict(strides=(2, 3), padding=padding, transpose_kernel=transpose_kernel)
    x, w = random((2, 4, 3, 5)), random(kernel, seed=1)
    check(
        functools.partial(conv.conv_transpose, **options),
        functools.partial(jax.lax.conv_transpose, **options),
        x,
        w,
        order=1,
    )


def test_named_forms():
    x, w = random((2, 3, 6, 5)), random((4, 3, 3, 3), seed=1)
    check_value(
        lambda a, b: conv.conv(a, b, (2, 1), "SAME"),
        lambda a, b: jax.lax.conv(a, b, (2, 1), "SAME"),
        x,
        w,
    )
    pads = ((1, 2), (0, 1))
    check_value(
        lambda a, b: conv.conv_with_general_padding(a, b, (2, 1), pads, (1, 2), (2, 1)),
        lambda a, b: jax.lax.conv_with_general_padding(a, b, (2, 1), pads, (1, 2), (2, 1)),
        x,
        w,
    )
    for layout in (None, ("NCHW", "HWIO", "NHWC")):
        options = dict(
            filter_shape=(2, 3), window_strides=(2, 1), padding="SAME", dimension_numbers=layout
        )
        check(
            functools.partial(conv.conv_general_dilated_patches, **options),
            functools.partial(jax.lax.conv_general_dilated_patches, **options),
            x,
            order=1,
        )
    for padding in ("SAME", "SAME_LOWER", "VALID"):
        expected = jax.lax.padtype_to_pads((7, 10), (3, 4), (2, 3), padding)
        assert list(map(tuple, expected)) == conv.padtype_to_pads((7, 10), (3, 4), (2, 3), padding)


def test_empty_operands():
    for x, w in [((0, 3, 5), (2, 3, 2)), ((2, 3, 1), (4, 3, 3)), ((2, 0, 5), (4, 0, 3))]:
        check(
            lambda a, b: conv.conv(a, b, (1,), "VALID"),
            lambda a, b: jax.lax.conv(a, b, (1,), "VALID"),
            random(x),
            random(w),
            order=1,
            batch=False,
        )


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        ((2, 3, 5), (4, 3, 3, 3), {}, "must have one rank"),
        ((2, 3, 5), (4, 2, 3), {}, "3 features .dimension 1., the kernel 2 input features"),
        ((2, 3, 5), (4, 3, 3), dict(window_strides=(1, 1)), "window_strides .1, 1. must have 1"),
        ((2, 3, 5), (4, 3, 3), dict(window_strides=(0,)), "must be positive"),
        ((2, 4, 5), (3, 2, 3), dict(feature_group_count=2), "3 output features .* 2 groups"),
        ((3, 4, 5), (2, 4, 3), dict(batch_group_count=2), "batch of 3 do not divide"),
    ],
)
def test_errors(x, w, options, message):
    options = dict(window_strides=(1,), padding=((0, 0),)) | options
    with pytest.raises(errors.ShapeError, match=message):
        conv.conv_general_dilated(to_array(random(x)), to_array(random(w)), **options)


def test_argument_errors():
    x, w = to_array(random((2, 3, 5))), to_array(random((4, 3, 3)))
    with pytest.raises(ValueError, match="padding 'FULL' is not"):
        conv.conv(x, w, (1,), "FULL")
    with pytest.raises(ValueError, match="use conv_transpose"):
        conv.conv_general_dilated(x, w, (1,), "SAME", lhs_dilation=(2,))
    with pytest.raises(ValueError, match="layout 'NHX' must name 3 dimensions"):
        conv.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NHX", "OIH", "NCH"))
    with pytest.raises(errors.DTypeError, match="dtypes differ"):
        conv.conv(x, to_array(random((4, 3, 3), np.int32)), (1,), "VALID")
    check_batched(lambda a, b: conv.conv(a, b, (1,), "SAME"), random((2, 3, 5)), random((4, 3, 3)))


# ---- windows ----

WINDOWS = {
    "pool": ((2, 6, 5, 3), dict(window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1))),
    "overlapping, same": (
        (2, 7, 6), dict(window_dimensions=(1, 3, 3), window_strides=(1, 2, 1), padding="SAME")
    ),
    "uneven padding": (
        (5, 6), dict(window_dimensions=(2, 3), window_strides=(1, 2), padding=((1, 0), (0, 2)))
    ),
    "negative padding": (
        (7, 6), dict(window_dimensions=(2, 3), window_strides=(1, 1), padding=((-1, 0), (1, -2)))
    ),
    "more cut than there is": (
        (3, 4), dict(window_dimensions=(2, 2), window_strides=(1, 1), padding=((-4, 4), (5, -6)))
    ),
    "dilated": (
        (5, 4), dict(window_dimensions=(2, 3), window_strides=(1, 2), padding=((1, 1), (2, 1)),
                     base_dilation=(2, 1), window_dilation=(2, 2))
    ),
    "one": ((6,), dict(window_dimensions=(3,), window_strides=(1,))),
}  # fmt: skip


def lax_window(computation, init, x, window_dimensions, window_strides, padding="VALID", **options):
    return jax.lax.reduce_window(
        x,
        np.array(init, x.dtype),
        computation,
        window_dimensions,
        window_strides,
        padding,
        **options,
    )


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_windows(name, kind):
    shape, options = WINDOWS[name]
    computation, init = {
        "sum": (jax.lax.add, 0),
        "max": (jax.lax.max, -np.inf),
        "min": (jax.lax.min, np.inf),
    }[kind]
    f = functools.partial(pool(kind), **options)
    reference = functools.partial(lax_window, computation, init, **options)
    x = np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape) / 7.0
    if kind != "sum" and name in ("dilated", "negative padding", "more cut than there is"):
        # JAX cannot differentiate these in reverse mode.
        check_value(f, reference, x)
        check_staged(f, x)
        # Windows of padding alone are infinite: no differences there.
        check_numeric(lambda v: elementwise.min(elementwise.max(f(v), -99.0), 99.0), x)
        check_batched(f, x)
        return
    check(f, reference, x)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_window_dtypes(kind):
    computation = {"sum": jax.lax.add, "max": jax.lax.max, "min": jax.lax.min}[kind]
    kinds = [*dtypes.INTEGERS, *dtypes.FLOATS]
    for d in [*kinds, *dtypes.COMPLEX] if kind == "sum" else kinds:
        x = extremes(d, (6, 5))
        init = 0 if kind == "sum" else extreme_over_nothing(d, kind == "max")
        over = pool(kind)
        f = lambda v: over(v, (3, 2), (2, 1), "SAME")
        got = f(to_array(x))
        check_staged(f, x)
        narrow = dtypes.is_float(d) and d.itemsize < 4
        wide = x.astype(np.float32) if narrow else x
        expected = np.asarray(lax_window(computation, init, wide, (3, 2), (2, 1), "SAME")).astype(d)
        assert_same(got, expected, str(d))


def test_window_max_of_ties_takes_the_first_and_nan_wins():
    x = np.array([[1.0, 3.0, 3.0, 0.0], [3.0, 3.0, 0.0, 0.0]])
    (g,) = vjp(
        lambda v: pool("max")(v, (2, 2), (2, 2)), [to_array(x)], [to_array(np.array([[5.0, 7.0]]))]
    )
    assert_same(g, np.array([[0.0, 5.0, 7.0, 0.0], [0.0] * 4]))
    x[1, 2] = np.nan
    out = pool("max")(to_array(x), (2, 2), (2, 2))
    assert_same(out, np.array([[3.0, np.nan]]))


def test_reduce_window_of_any_function():
    x = random((5, 6))
    for computation, init, reference in [
        (elementwise.add, 0.0, jax.lax.add),
        (elementwise.max, -np.inf, jax.lax.max),
        (elementwise.add, 2.0, jax.lax.add),
        (elementwise.mul, 1.0, jax.lax.mul),
    ]:
        for options in (
            dict(padding="SAME"),
            dict(padding="SAME", base_dilation=(3, 2)),
            dict(base_dilation=(2, 1), window_dilation=(1, 2)),
        ):
            got = reduce_window.reduce_window(
                to_array(x), init, computation, (2, 3), (2, 1), **options
            )
            assert_same(got, lax_window(reference, init, x, (2, 3), (2, 1), **options))
    check(
        lambda v: reduce_window.reduce_window(v, 1.0, elementwise.mul, (2, 2), (1, 2)),
        lambda v: v[:-1, ::2] * v[1:, ::2] * v[:-1, 1::2] * v[1:, 1::2],
        x,
    )
    check(
        lambda v: reduce_window.reduce_window(v, -np.inf, elementwise.max, (2, 2), (1, 2)),
        lambda v: lax_window(jax.lax.max, -np.inf, v, (2, 2), (1, 2)),
        x,
        order=1,
    )


def test_window_errors():
    x = to_array(random((4, 5)))
    with pytest.raises(errors.ShapeError, match=r"reduce_window_sum of f64\[4,5\]: lengths .3,."):
        pool("sum")(x, (3,), (1,), ((0, 0),))
    with pytest.raises(errors.ShapeError, match="strides .0, 1. must be positive"):
        pool("max")(x, (3, 1), (0, 1))
    assert pool("max")(x, (5, 1), (1, 1)).aval.shape == (0, 5)
