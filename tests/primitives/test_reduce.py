"""Reductions and cumulative reductions against JAX: values, dtypes, ties, zeros, NaN."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from genesis_fn.core import dtypes, errors
from genesis_fn.primitives import elementwise
from genesis_fn.primitives.reductions import cumulative, reduce, reduce_generic
from tests.primitives.check import (
    assert_same,
    check,
    check_batched,
    check_dtypes,
    check_numeric,
    check_staged,
    check_value,
    jvp,
    random,
    to_array,
    to_numpy,
    vjp,
)

AXES = [(0,), (2,), (0, 2), (0, 1, 2)]


def extremes(kind, shape=(3, 4, 2), seed=0):
    """Values over the whole range of a dtype, so that unsigned and signed storage differ."""
    if dtypes.is_integer(kind):
        info = dtypes.iinfo(kind)
        rng = np.random.default_rng(seed)
        return rng.integers(info.min, int(info.max) + 1, shape, kind)
    return random(shape, kind, seed)


def lax_sum(x, axes):
    return jax.lax.reduce_sum_p.bind(x, axes=tuple(axes), out_sharding=None)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_derivatives_and_batching(name, axes):
    f = getattr(reduce_generic if name == "prod" else reduce, f"reduce_{name}")
    reference = lax_sum if name == "sum" else getattr(jax.lax, f"reduce_{name}")
    check(lambda x: f(x, axes), lambda x: reference(x, axes), random((3, 4, 2)))


@pytest.mark.parametrize("name", ["prod", "max", "min", "and", "or", "xor"])
def test_every_dtype(name):
    kinds = [d for d in dtypes.ALL if d.kind not in ("cb" if name == "prod" else "c")]
    if name == "prod":
        kinds.extend(dtypes.COMPLEX)
    if name in ("and", "or", "xor"):
        kinds = [dtypes.BOOL, *dtypes.INTEGERS]
    f, reference = (
        getattr(reduce_generic if name == "prod" else reduce, f"reduce_{name}"),
        getattr(jax.lax, f"reduce_{name}"),
    )
    for axes in [(1,), (0, 2)]:
        g = lambda x: f(x, axes)
        check_dtypes(g, lambda x: reference(x, axes), lambda k: [extremes(k)], kinds)
        check_batched(g, extremes(kinds[0]))


def test_sums_of_every_dtype():
    for kind in dtypes.ALL:
        x = extremes(kind)
        expected = lax_sum(x, (0,)) if kind != dtypes.BOOL else x.any(0)
        assert_same(reduce.reduce_sum(to_array(x), (0,)), expected, str(kind))


def test_sixteen_bit_sums_and_products_accumulate_in_float32():
    x = np.full(4096, 1.001).astype(dtypes.BF16)
    assert_same(reduce.reduce_sum(to_array(x), (0,)), np.array(4096.0).astype(dtypes.BF16))
    y = np.array([1.0078125] * 64).astype(dtypes.BF16)
    expected = np.array(1.0078125**64).astype(dtypes.BF16)
    assert_same(reduce_generic.reduce_prod(to_array(y), (0,)), expected, tolerance=0.0)


@pytest.mark.parametrize("zeros", [[], [1], [1, 3], [0, 1, 2, 3, 4]])
def test_product_with_zeros(zeros):
    x = random((5, 2))
    x[zeros, 0] = 0
    check(lambda v: reduce_generic.reduce_prod(v, (0,)), lambda v: jax.lax.reduce_prod(v, (0,)), x)


def test_ties_share_the_derivative_evenly():
    x = np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    (g,) = vjp(lambda v: reduce.reduce_max(v, (0,)), [to_array(x)], [to_array(np.float64(6.0))])
    assert_same(g, np.array([0, 2.0, 2.0, 0, 2.0]))
    check(
        lambda v: reduce.reduce_min(v, (0,)),
        lambda v: jax.lax.reduce_min(v, (0,)),
        np.array([[1.0, 3.0], [1.0, 2.0], [5.0, 2.0]]),
    )


def test_nan_propagates_and_nothing_gives_the_identity():
    x = np.array([[1.0, math.nan], [3.0, 2.0]], np.float32)
    for name in ("max", "min"):
        f, reference = (
            getattr(reduce_generic if name == "prod" else reduce, f"reduce_{name}"),
            getattr(jax.lax, f"reduce_{name}"),
        )
        check_value(lambda v: f(v, (0,)), lambda v: reference(v, (0,)), x)
        for kind in (np.float32, np.int8, np.uint16, np.bool_):
            empty = np.zeros((0, 3), kind)
            check_value(lambda v: f(v, (0,)), lambda v: reference(v, (0,)), empty)
            check_staged(lambda v: f(v, (0,)), empty)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions(name):
    f, reference = getattr(reduce, name), getattr(jax.lax, name)
    kinds = [dtypes.BOOL, *dtypes.INTEGERS, *dtypes.FLOATS]
    for axis in (0, 2):
        g = lambda x: f(x, axis)
        check_dtypes(g, lambda x: reference(x, axis, np.int32), lambda k: [extremes(k)], kinds)
        check_batched(g, extremes(dtypes.U32))
    nan = np.array([[1.0, math.nan, 5.0, math.nan], [2.0, 7.0, 7.0, 2.0]])
    check_value(lambda x: f(x, 1, "int64"), lambda x: reference(x, 1, np.int64), nan)
    (ct,) = vjp(lambda x: [f(x, 0), elementwise.neg(x)], [to_array(nan)], [None, to_array(nan)])
    assert_same(ct, -nan)


def test_reduce_with_any_function():
    x, y = random((4, 3, 5)), random((4, 3, 5), seed=1)
    for name, fast in (("add", lax_sum), ("max", jax.lax.reduce_max)):
        f = getattr(elementwise, name)
        identity = 0.0 if name == "add" else -math.inf
        out = reduce_generic.reduce(to_array(x), identity, f, (0, 2))
        assert_same(out, fast(x, (0, 2)))
    add_mul = lambda a, b: elementwise.add(elementwise.add(a, b), elementwise.mul(a, b))
    check(
        lambda v: reduce_generic.reduce(v, 0.0, add_mul, (0, 2)),
        lambda v: jax.numpy.prod(1 + v, (0, 2)) - 1,
        x * 0.1,
        tolerance=1e-10,
    )

    def larger(a, b):  # the value that goes with the larger key
        first = elementwise.gt(a[0], b[0])
        return tuple(elementwise.select(first, p, q) for p, q in zip(a, b))

    keys, values = reduce_generic.reduce((to_array(x), to_array(y)), (-math.inf, 0.0), larger, (1,))
    assert_same(keys, x.max(1))
    assert_same(values, np.take_along_axis(y, x.argmax(1)[:, None], 1)[:, 0])
    empty = to_array(np.zeros((0, 2)))
    assert to_numpy(reduce_generic.reduce(empty, 7.0, elementwise.add, (0,))).tolist() == [7.0, 7.0]


def test_reduction_errors():
    x = to_array(random((2, 3)))
    with pytest.raises(errors.ShapeError, match="reduce_max: axis 2 does not fit f64"):
        reduce.reduce_max(x, (2,))
    with pytest.raises(errors.ShapeError, match="axes .* do not fit"):
        reduce_generic.reduce_prod(x, (0, 0))
    with pytest.raises(errors.DTypeError, match="reduce_and takes integers or booleans"):
        reduce.reduce_and(x, (0,))
    with pytest.raises(errors.DTypeError, match="argmax takes real numbers"):
        reduce.argmax(to_array(random((2,), np.complex64)), 0)
    with pytest.raises(errors.ShapeError, match="has no elements"):
        reduce.argmin(to_array(np.zeros((0, 2))), 0)
    with pytest.raises(errors.DTypeError, match="index_dtype"):
        reduce.argmin(x, 0, "float32")


# ---- cumulative ----

NAMES = ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_cumulative(name, axis, reverse):
    f, reference = getattr(cumulative, name), getattr(jax.lax, name)
    x = random((5, 4))
    check(lambda v: f(v, axis, reverse), lambda v: reference(v, axis, reverse), x, tolerance=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_cumulative_dtypes(name):
    f, reference = getattr(cumulative, name), getattr(jax.lax, name)
    kinds = {
        "cumsum": [d for d in dtypes.ALL if d != dtypes.BOOL],
        "cumprod": [d for d in dtypes.ALL if d != dtypes.BOOL],
        "cumlogsumexp": dtypes.FLOATS,
    }.get(name, [*dtypes.INTEGERS, *dtypes.FLOATS])
    for reverse in (False, True):
        for kind in kinds:
            # 8-bit floats: JAX rounds after every step, this library once; compare with float32.
            x = extremes(kind, (6, 3))
            got = f(to_array(x), 0, reverse)
            check_staged(lambda v: f(v, 0, reverse), x)
            if dtypes.is_float(kind) and kind.itemsize < 4:
                wide = np.asarray(reference(x.astype(np.float32), 0, reverse))
                assert_same(
                    got, wide.astype(kind), f"{kind}", tolerance=float(dtypes.finfo(kind).eps)
                )
            else:
                assert_same(got, reference(x, 0, reverse), f"{kind}")


def test_cumprod_with_zeros():
    x = random((6, 2))
    x[2, 0] = x[4, 0] = x[0, 1] = 0
    for reverse in (False, True):
        check(
            lambda v: cumulative.cumprod(v, 0, reverse), lambda v: jax.lax.cumprod(v, 0, reverse), x
        )


def test_cummax_ties_share_evenly():
    x = np.array([1.0, 3.0, 3.0, 2.0, 3.0, 4.0])
    t = np.array([1.0, 2.0, 4.0, 8.0, 6.0, 7.0])
    (out,) = jvp(lambda v: cumulative.cummax(v), [to_array(x)], [to_array(t)])
    assert_same(out, np.array([1.0, 2.0, 3.0, 3.0, 4.0, 7.0]))


def test_cumlogsumexp_of_minus_infinity():
    x = np.array([-math.inf, -math.inf, 1.0, -math.inf, 2.0])
    check_value(cumulative.cumlogsumexp, jax.lax.cumlogsumexp, x)
    (g,) = vjp(cumulative.cumlogsumexp, [to_array(x)], [to_array(np.ones(5))])
    p = 1 / (1 + math.e)
    assert_same(g, np.array([0, 0, 2 + p, 0, 1 - p]))


@pytest.mark.parametrize("shape", [(7,), (5, 40)])
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrence(shape, reverse):
    def reference(a, b):
        if reverse:
            return jax.numpy.flip(scan(jax.numpy.flip(a, 0), jax.numpy.flip(b, 0)), 0)
        return scan(a, b)

    def scan(a, b):
        def step(h, ab):
            h = ab[0] * h + ab[1]
            return h, h

        return jax.lax.scan(step, jax.numpy.zeros_like(b[0]), (a, b))[1]

    check(
        lambda a, b: cumulative.linear_recurrence(a, b, 0, reverse),
        reference,
        random(shape),
        random(shape, seed=1),
    )
    check_numeric(lambda a, b: cumulative.linear_recurrence(a, b), random(shape), random(shape))


def test_cumulative_errors():
    x = to_array(random((2, 3)))
    with pytest.raises(errors.ShapeError, match="cumsum: axis 2 does not fit"):
        cumulative.cumsum(x, 2)
    with pytest.raises(errors.DTypeError, match="cumlogsumexp takes floats"):
        cumulative.cumlogsumexp(to_array(np.zeros(3, np.int32)))
    with pytest.raises(errors.ShapeError, match="must agree"):
        cumulative.linear_recurrence(x, to_array(np.zeros(3)))
