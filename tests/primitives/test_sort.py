"""sort and top_k against JAX: values, NaN and signed zeros, stability, derivatives."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from genesis_fn.core import dtypes, errors
from genesis_fn.primitives import sort
from tests.primitives.check import (
    assert_all_same,
    assert_same,
    check,
    check_batched,
    check_dtypes,
    check_staged,
    check_value,
    random,
    to_array,
    to_numpy,
)
from tests.primitives.test_reduce import extremes

REAL = [dtypes.BOOL, *dtypes.INTEGERS, *dtypes.FLOATS]


def distinct(shape, seed=0):
    n = math.prod(shape)
    return np.random.default_rng(seed).permutation(n).reshape(shape) / 7.0


@pytest.mark.parametrize("dimension", [0, 1, -1])
def test_sort_derivatives_and_batching(dimension):
    check(
        lambda x: sort.sort(x, dimension),
        lambda x: jax.lax.sort(x, dimension=dimension),
        distinct((4, 3, 2)),
    )


@pytest.mark.parametrize("num_keys", [1, 2])
def test_sort_of_several_operands(num_keys):
    a = np.random.default_rng(0).integers(0, 3, (5, 4)).astype(np.float64)
    b, c = distinct((5, 4), 1), random((5, 4))
    f = lambda *xs: sort.sort(xs, 1, num_keys=num_keys)
    reference = lambda *xs: jax.lax.sort(xs, dimension=1, num_keys=num_keys)
    check(f, reference, a, b, c)


def test_sort_every_dtype():
    for axis in (0, 1):
        check_dtypes(
            lambda x: sort.sort(x, axis),
            lambda x: jax.lax.sort(x, dimension=axis),
            lambda k: [extremes(k, (9, 5))],
        )
    check_dtypes(
        lambda x, y: sort.sort((x, y), 0),
        lambda x, y: jax.lax.sort_key_val(x, y, 0),
        lambda k: [extremes(k, (40, 3)), np.arange(120, dtype=np.int32).reshape(40, 3)],
    )


@pytest.mark.parametrize("kind", ["float16", "float32", "bfloat16", "float64"])
def test_nan_last_and_zeros_equal(kind):
    d = dtypes.dtype(kind)
    x = np.array([math.nan, 0.0, -0.0, 1.0, -math.inf, 0.0, math.inf, -0.0, -math.nan]).astype(d)
    index = np.arange(9, dtype=np.int32)
    check_value(lambda *xs: sort.sort(xs), jax.lax.sort_key_val, x, index)
    got = to_numpy(sort.sort(to_array(x))).astype(np.float32)
    expected = np.asarray(jax.lax.sort(x)).astype(np.float32)
    np.testing.assert_array_equal(np.signbit(got[:7]), np.signbit(expected[:7]))


def test_argsort():
    x = random((4, 5), np.float32)
    assert_same(sort.argsort(to_array(x), 0), np.argsort(x, 0, kind="stable").astype(np.int32))
    check_batched(lambda v: sort.argsort(v), x)


@pytest.mark.parametrize("axis", [0, -1])
def test_top_k_derivatives_and_batching(axis):
    check(
        lambda x: sort.top_k(x, 2, axis=axis),
        lambda x: jax.lax.top_k(x, 2, axis=axis),
        distinct((4, 5, 3)),
    )


def test_top_k_every_dtype():
    check_dtypes(
        lambda x: sort.top_k(x, 4),
        lambda x: jax.lax.top_k(x, 4),
        lambda k: [extremes(k, (3, 20))],
        [d for d in REAL if d not in (dtypes.F8E4, dtypes.F8E5)],
    )
    for kind in (dtypes.F8E4, dtypes.F8E5):
        x = extremes(kind, (3, 20))
        values, index = sort.top_k(to_array(x), 4)
        order = np.argsort(-x.astype(np.float32), -1, kind="stable")[:, :4]
        assert_same(index, order.astype(np.int32))
        assert_same(values, np.take_along_axis(x, order, -1), exact=True)


@pytest.mark.parametrize("kind", ["float32", "int32", "uint32", "bfloat16"])
@pytest.mark.parametrize("values", [5, 10**6])
def test_top_k_of_long_rows_is_stable(kind, values):
    # Few values: the k-th one has equals. Many: torch's selection is used.
    x = np.random.default_rng(0).integers(0, values, (4, 3000)).astype(dtypes.dtype(kind))
    check_value(lambda v: sort.top_k(v, 20), lambda v: jax.lax.top_k(v, 20), x)
    check_staged(lambda v: sort.top_k(v, 20), x)


def test_top_k_counts_nan_as_greatest():
    x = random((2, 2000), np.float32)
    x[0, [7, 900]] = math.nan
    for k in (1, 2, 5):
        check_value(lambda v: sort.top_k(v, k), lambda v: jax.lax.top_k(v, k), x)


def test_top_k_of_nothing():
    assert [y.aval.shape for y in sort.top_k(to_array(np.ones((2, 3))), 0)] == [(2, 0), (2, 0)]


def test_take_along():
    x, index = random((4, 3)), np.array([[0, 2, 1], [3, 3, 3]], np.int32)
    expected = lambda v, i: jax.numpy.take_along_axis(v, i, 0)
    check(lambda v, i: sort.take_along(v, i, 0), expected, x, index)


def test_errors():
    x = to_array(random((2, 3)))
    with pytest.raises(errors.ShapeError, match="operands must have one shape, got f64"):
        sort.sort((x, to_array(random((3, 2)))))
    with pytest.raises(errors.ShapeError, match="sort: axis 5 does not fit"):
        sort.sort(x, 5)
    with pytest.raises(errors.ShapeError, match="num_keys is 2, but there are 1 operands"):
        sort.sort(x, num_keys=2)
    with pytest.raises(errors.ShapeError, match="k is 4, but axis 1 of f64"):
        sort.top_k(x, 4)
    with pytest.raises(errors.DTypeError, match="top_k takes real numbers"):
        sort.top_k(to_array(random((2,), np.complex64)), 1)
    assert_all_same(sort.sort([x]), [np.sort(to_numpy(x))], "a list gives a tuple")
