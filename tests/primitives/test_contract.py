"""dot_general against JAX: values in every dtype, derivatives to order 2, batching, errors."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from genesis_fn.core import dtypes, errors
from genesis_fn.core.configuration import config
from genesis_fn.core.primitive import typeof
from genesis_fn.primitives import dot_general
from genesis_fn.transforms.autodiff.derivatives import vjp
from tests.primitives.check import (
    assert_same,
    check,
    check_dtypes,
    check_staged,
    check_value,
    random,
    to_array,
    to_numpy,
)

CASES = {
    "matmul": ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    "weight stored [out, in]": ((2, 3, 4), (5, 4), (((2,), (1,)), ((), ()))),
    "left transposed": ((4, 3), (4, 5), (((0,), (0,)), ((), ()))),
    "batched": ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    "batch in the middle": ((3, 2, 4), (4, 5, 2), (((2,), (0,)), ((1,), (2,)))),
    "heads": ((2, 5, 3, 4), (2, 6, 3, 4), (((3,), (3,)), ((0, 2), (0, 2)))),
    "two contracted, crossed": ((3, 4, 2), (2, 5, 4), (((1, 2), (2, 0)), ((), ()))),
    "inner product": ((4,), (4,), (((0,), (0,)), ((), ()))),
    "outer product": ((3,), (4,), (((), ()), ((), ()))),
    "elementwise": ((3, 4), (4, 3), (((), ()), ((0, 1), (1, 0)))),
    "matrix vector": ((3, 4), (4,), (((1,), (0,)), ((), ()))),
    "scalar": ((), (3,), (((), ()), ((), ()))),
    "nothing to sum": ((3, 0), (0, 2), (((1,), (0,)), ((), ()))),
    "no rows": ((0, 3), (3, 2), (((1,), (0,)), ((), ()))),
}


@pytest.mark.parametrize("name", CASES)
def test_against_jax(name):
    a, b, numbers = CASES[name]
    check(
        lambda x, y: dot_general.dot_general(x, y, numbers),
        lambda x, y: jax.lax.dot_general(x, y, numbers),
        random(a),
        random(b, seed=1),
    )


@pytest.mark.parametrize("name", ["matmul", "batch in the middle", "outer product", "no rows"])
def test_every_dtype(name):
    a, b, numbers = CASES[name]

    def make(kind):
        if dtypes.is_integer(kind):
            rng = np.random.default_rng(0)
            draw = lambda s: rng.integers(
                dtypes.iinfo(kind).min, int(dtypes.iinfo(kind).max) + 1, s, kind
            )
            return [draw(a), draw(b)]
        return [random(a, kind), random(b, kind, seed=1)]

    check_dtypes(
        lambda x, y: dot_general.dot_general(x, y, numbers),
        lambda x, y: jax.lax.dot_general(x, y, numbers),
        make,
    )


@pytest.mark.parametrize(
    ("kinds", "preferred"),
    [
        (("int8", "int8"), "int32"), (("uint8", "uint8"), "int32"),
        (("uint16", "uint16"), "uint32"),
        (("int16", "int16"), "int64"), (("uint32", "uint32"), "uint64"),
        (("bfloat16", "bfloat16"), "float32"), (("float16", "float16"), "float32"),
        (("float8_e4m3fn", "float8_e5m2"), "float32"), (("float32", "bfloat16"), "float32"),
        (("float32", "float32"), "float64"),
    ],
)  # fmt: skip
def test_preferred_element_type(kinds, preferred):
    a, b, numbers = CASES["matmul"]
    xs = []
    for shape, kind, seed in zip((a, b), kinds, (0, 1)):
        d = dtypes.dtype(kind)
        high = int(dtypes.iinfo(d).max) if dtypes.is_integer(d) else 0
        rng = np.random.default_rng(seed)
        xs.append(rng.integers(0, high, shape, d) if high else random(shape, d, seed))
    f = lambda x, y: dot_general.dot_general(x, y, numbers, None, preferred)
    wide = dtypes.dtype(preferred)
    out = f(*map(to_array, xs))
    assert typeof(out).dtype == wide
    exact = xs[0].astype(wide) @ xs[1].astype(wide)
    assert_same(out, exact)
    check_staged(f, *xs)


@pytest.mark.parametrize("preferred", [None, "float8_e5m2", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_narrow_floats_have_gradients_of_any_preferred_type(kind, preferred):
    if preferred == "float8_e5m2" and not kind.startswith("float8"):
        preferred = kind
    a, b, numbers = CASES["matmul"]
    d = dtypes.dtype(kind)
    x, y = [np.random.default_rng(i).choice([-1, -0.5, 0.5, 1], s) for i, s in enumerate((a, b))]
    ct = np.random.default_rng(2).choice([-1.0, 0.5], (3, 5))
    f = lambda x, y: dot_general.dot_general(x, y, numbers, None, preferred)
    out, pull = vjp(f, *[to_array(v.astype(d)) for v in (x, y)])
    wide = d if preferred is None else dtypes.dtype(preferred)
    dx, dy = pull(to_array(ct.astype(wide)))
    assert typeof(out).dtype == wide and typeof(dx).dtype == typeof(dy).dtype == d
    # These sums are exact in every type.
    np.testing.assert_array_equal(to_numpy(dx).astype(float), (ct @ y.T).astype(d).astype(float))
    np.testing.assert_array_equal(to_numpy(dy).astype(float), (x.T @ ct).astype(d).astype(float))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sixteen_bit_floats_accumulate_in_float32(kind):
    x = np.full((1, 5000), 0.1).astype(dtypes.dtype(kind))
    out = dot_general.dot(to_array(x), to_array(np.ones((5000, 1), x.dtype)))
    exact = float(x[0, 0]) * 5000
    assert abs(float(to_numpy(out)[0, 0]) - exact) <= exact * float(dtypes.finfo(x.dtype).eps)


def test_large_integer_products_wrap():
    x = np.array([[2**40 + 3, 5]], np.int64)
    y = np.array([[2**40 + 1], [7]], np.int64)
    check_value(dot_general.dot, jax.lax.dot, x, y)


def test_mixed_precision_derivatives_have_the_operands_dtypes():
    numbers = CASES["matmul"][2]
    check(
        lambda x, y: dot_general.dot_general(x, y, numbers, None, "float32"),
        lambda x, y: jax.lax.dot_general(x, y, numbers, None, "float32"),
        random((3, 4), dtypes.BF16),
        random((4, 5), dtypes.BF16, seed=1),
        tolerance=2e-2,
    )


def test_dot_and_batch_matmul():
    check(dot_general.batch_matmul, jax.lax.batch_matmul, random((2, 3, 4)), random((2, 4, 2)))
    for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4))]:
        check(dot_general.dot, lambda x, y: jax.numpy.dot(x, y), random(a), random(b, seed=1))


def test_negative_dimensions():
    x, y = random((2, 3)), random((4, 3))
    out = dot_general.dot_general(to_array(x), to_array(y), (((-1,), (-1,)), ((), ())))
    assert_same(out, x @ y.T)


def test_precision_names_and_setting():
    assert dot_general.canonical_precision(None) == config.current().matmul_precision
    assert dot_general.canonical_precision(dot_general.Precision.HIGHEST) == "highest"
    assert dot_general.canonical_precision(("default", "high")) == "tf32x3"
    with config.override(matmul_precision="tf32"):
        assert dot_general.canonical_precision(None) == "tf32"
        assert dot_general.canonical_precision("float32") == "highest"
    with pytest.raises(ValueError, match="'exact' is not a Precision"):
        dot_general.canonical_precision("exact")


@pytest.mark.parametrize(
    ("a", "b", "numbers", "message"),
    [
        ((3, 4), (5, 6), (((1,), (0,)), ((), ())), "dimension 1 of the left operand has length 4"),
        ((3, 4), (4, 6), (((1, 0), (0,)), ((), ())), "2 contracting dimensions of the left"),
        ((3, 4), (4, 6), (((2,), (0,)), ((), ())), "do not fit the left operand f64"),
        ((3, 4), (4, 6), (((1,), (5,)), ((), ())), "do not fit the right operand f64"),
        ((3, 4), (4, 3), (((1,), (0,)), ((1,), (0,))), "is named twice"),
        ((3, 4), (4, 5), (((1,), (0,)), ((0,), (1,))), "batch dimension 0 of the left operand"),
    ],
)
def test_shape_errors(a, b, numbers, message):
    with pytest.raises(errors.ShapeError, match=message):
        dot_general.dot_general(to_array(random(a)), to_array(random(b)), numbers)


def test_dtype_errors():
    x, y = to_array(random((3, 3))), to_array(random((3, 3), np.int32))
    assert dot_general.dot(x, y).dtype == dot_general.dot(y, x).dtype == x.dtype
    with pytest.raises(errors.DTypeError, match="cannot hold products of float64"):
        dot_general.dot(x, x, preferred_element_type="int32")
    with pytest.raises(errors.ShapeError, match="no vectors or matrices"):
        dot_general.dot(x, to_array(random((4,))))
