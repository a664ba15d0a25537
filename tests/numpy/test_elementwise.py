"""Elementwise functions against jax.numpy, over dtypes and shapes."""

from __future__ import annotations

import jax.numpy as jax_numpy
import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as jnp
from tests.numpy.reference import check, close, ours, theirs, values

FLOATS = ["float32", "bfloat16", "float16"]
INTEGERS = ["int32", "int8", "uint8", "uint32"]

UNARY_ANY = ["sign", "square", "negative", "absolute", "floor", "ceil", "trunc", "isnan", "isinf",
             "isfinite", "isposinf", "isneginf", "signbit", "real", "imag", "conj", "positive",
             "logical_not", "isreal", "iscomplex", "round", "nan_to_num", "angle"]  # fmt: skip
UNARY_INEXACT = ["exp", "exp2", "expm1", "sin", "cos", "tan", "arctan", "sinh", "cosh", "tanh",
                 "arcsinh", "cbrt", "rint", "sinc", "deg2rad", "rad2deg", "fabs",
                 "reciprocal", "i0"]  # fmt: skip
UNARY_POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "arccosh"]
UNARY_UNIT = ["arcsin", "arccos", "arctanh"]


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint8"])
@pytest.mark.parametrize("name", UNARY_ANY)
def test_unary(name: str, dtype: str) -> None:
    if dtype.startswith("u") and name == "negative":
        pytest.skip("the sign of unsigned integers wraps alike; checked among integers")
    check(name, values((3, 4), dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("name", UNARY_INEXACT)
def test_unary_inexact(name: str, dtype: str) -> None:
    x = values((3, 4), dtype)
    if dtype == "bool" and name in ("fabs", "rint"):
        x = x.astype(np.int32)
    check(name, x, tolerance=2e-2 if dtype == "bfloat16" else 1e-4 if name == "i0" else None)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", UNARY_POSITIVE)
def test_unary_positive(name: str, dtype: str) -> None:
    check(name, values((5,), dtype, low=1.1, high=4))


@pytest.mark.parametrize("name", UNARY_UNIT)
def test_unary_unit(name: str) -> None:
    check(name, values((5,), "float32", low=-0.9, high=0.9))


COMPLEX = ["exp", "log", "sqrt", "sin", "cos", "tanh", "absolute", "conj", "real", "imag", "angle",
           "square", "sign", "reciprocal", "isnan", "negative", "log1p", "expm1"]  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name: str) -> None:
    check(name, values((3, 2), "complex64"))


BINARY = ["add", "subtract", "multiply", "divide", "floor_divide", "remainder", "maximum",
          "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
          "logical_and", "logical_or", "logical_xor", "fmax", "fmin", "fmod", "divmod"]  # fmt: skip


@pytest.mark.parametrize("pair", [
    ("float32", "float32"), ("float32", "int32"), ("bfloat16", "float32"), ("bfloat16", "float16"),
    ("int32", "int8"), ("uint8", "int8"), ("int8", "uint32"), ("bool", "int32"),
    ("float16", "int8"),
])  # fmt: skip
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, pair: tuple[str, str]) -> None:
    x, y = values((3, 1, 4), pair[0], 1), values((2, 1), pair[1], 2)
    if name in ("floor_divide", "remainder", "divide", "fmod", "divmod"):
        y = np.where(y == 0, np.ones_like(y), y)
    # JAX without 64-bit types meets int8 and uint32 in int32.
    widened = pair == ("int8", "uint32")
    check(name, x, y, dtype=not widened, tolerance=3e-2 if "16" in "".join(pair) else None)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift",
                                  "right_shift", "gcd", "lcm"])  # fmt: skip
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(name: str, dtype: str) -> None:
    x, y = values((3, 4), dtype, 1), values((4,), dtype, 2)
    check(name, x, np.abs(y) % 7 if "shift" in name else y)


@pytest.mark.parametrize("name", ["arctan2", "hypot", "logaddexp", "logaddexp2", "copysign",
                                  "heaviside", "nextafter", "float_power"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_floating(name: str, dtype: str) -> None:
    x, y = values((3, 4), dtype, 1), values((4,), dtype, 2)
    check(name, np.abs(x) if name == "float_power" else x, y)


SCALARS = [2, 2.5, True, np.float32(1.5), np.int32(3), np.float64(0.5)]


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "power", "maximum", "floor_divide"])
def test_python_scalars_follow_the_array_and_numpys_have_their_dtype(
    name: str, dtype: str, scalar: object
) -> None:
    x = values((3,), dtype, 1, low=1)
    x = np.maximum(x, np.ones_like(x))  # what a division by zero gives is the processor's
    f, reference = getattr(jnp, name), getattr(jax_numpy, name)
    close(f(ours(x), scalar), reference(theirs(x), scalar), tolerance=2e-2)
    close(f(scalar, ours(x)), reference(scalar, theirs(x)), tolerance=2e-2)


def test_operators() -> None:
    x, y = values((2, 3), "float32", 1, low=0.5), values((3,), "float32", 2, low=0.5)
    a, b = ours(x), ours(y)
    for f in (
        lambda p, q: p + q,
        lambda p, q: p - q,
        lambda p, q: p * q,
        lambda p, q: p / q,
        lambda p, q: p // q,
        lambda p, q: p % q,
        lambda p, q: p**q,
        lambda p, q: p @ q,
        lambda p, q: 2 - p,
        lambda p, q: 2 / p,
        lambda p, q: 2**p,
        lambda p, q: 7 // p,
        lambda p, q: 7 % p,
        lambda p, q: divmod(p, q)[1],
        lambda p, q: -p,
        lambda p, q: abs(-p),
        lambda p, q: p < q,
        lambda p, q: p == q,
        lambda p, q: p**2,
        lambda p, q: p**-1,
        lambda p, q: round(p, 1),
        lambda p, q: (p > 1) & (q > 1),
        lambda p, q: ~(p > 1) ^ (q > 1),
    ):
        close(f(a, b), f(theirs(x), theirs(y)))
    n = values((4,), "int32", 3)
    for f in (
        lambda p: p << 2,
        lambda p: p >> 1,
        lambda p: p | 1,
        lambda p: p**3,
        lambda p: 1 << abs(p),
    ):
        close(f(ours(n)), f(theirs(n)))


def test_numpy_array_on_the_left() -> None:
    x = jnp.arange(3.0)
    y = np.arange(3.0) + x
    assert isinstance(y, jnp.ndarray) and y.dtype == np.float32


def test_lists_are_refused() -> None:
    with pytest.raises(TypeError, match="got a list"):
        jnp.add([1, 2], [3, 4])
    with pytest.raises(TypeError, match="unsupported operand"):
        jnp.ones(2) + [1, 2]


def test_shape_error_names_operands_and_line() -> None:
    with pytest.raises(jnp_errors().ShapeError) as caught:
        jnp.ones((3, 4)) + jnp.ones((3, 5))
    message = str(caught.value)
    assert "f32[3,4]" in message and "f32[3,5]" in message and "test_elementwise.py" in message
    assert "jnp.ones((3, 4)) + jnp.ones((3, 5))" in message


def jnp_errors():
    from genesis_fn.core import errors

    return errors


def test_python_integer_out_of_range() -> None:
    with pytest.raises(OverflowError):
        jnp.ones(2, jnp.int8) + 300
    with pytest.raises(OverflowError):
        jnp.uint8(1) + jnp.ones(2, jnp.uint8) + -1


def test_strict_promotion() -> None:
    from genesis_fn.core.configuration import config

    with config.override(numpy_dtype_promotion="strict"):
        assert (jnp.ones(2) + 1).dtype == np.float32
        with pytest.raises(jnp_errors().DTypeError, match="strict"):
            jnp.ones(2) + jnp.ones(2, jnp.int32)


def test_rank_promotion() -> None:
    from genesis_fn.core.configuration import config

    with config.override(numpy_rank_promotion="raise"):
        jnp.ones((2, 3)) + jnp.ones(())
        with pytest.raises(jnp_errors().ShapeError, match="leading"):
            jnp.ones((2, 3)) + jnp.ones(3)


@pytest.mark.parametrize("name", ["modf", "frexp", "spacing"])
def test_parts_of_floats(name: str) -> None:
    check(name, np.array([1.5, -2.25, 0.0, 1e-20, 3e8, 0.1], np.float32))


def test_special_values() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0], np.float32)
    for name in ("nan_to_num", "sign", "isposinf", "signbit", "sinc", "reciprocal", "isinf"):
        check(name, x) if name != "sinc" else check(name, x[3:])
    wide = jnp.asarray(x, "float64")
    np.testing.assert_array_equal(np.asarray(jnp.nan_to_num(wide)), np.nan_to_num(np.asarray(wide)))
    for name in ("logaddexp", "fmax", "maximum", "hypot", "copysign", "floor_divide", "remainder"):
        check(name, x[:, None], x[None, :])


def test_select_and_where() -> None:
    x = values((3, 4), "float32")
    check("where", x > 0, x, 0.0)
    check("where", x > 0, 1, x)
    check("where", x[0] > 0, x, x.astype(np.int32))
    check("select", [x > 1, x > 0], [x, -x], 7.0)
    check("clip", x, -1, 1)
    check("clip", x, None, 0.5)
    check("isclose", x, x + 1e-7)
    check("allclose", x, x + 1e-9)
    check("array_equal", x, x)
    check("array_equiv", x, x[None])
    check("piecewise", x, [x < -1, x > 1], [lambda v: v * 2, 3.0, 0.5])
    check("ldexp", x, np.array([1, 2, -1, 0], np.int32))


def test_integer_division_by_zero_does_not_trap() -> None:
    for dtype in ("int32", "uint8", "uint32"):
        x, y = values((4,), dtype, 1), np.array([0, 1, 2, 0], dtype)
        close(jnp.floor_divide(ours(x), ours(y))[1:3], jax_numpy.floor_divide(x, y)[1:3])
        close(jnp.remainder(ours(x), ours(y))[1:3], jax_numpy.remainder(x, y)[1:3])
        jnp.where(ours(y) == 0, 0, ours(x) // ours(y)).block_until_ready()


def test_shifts_beyond_the_width_after_shifts_within() -> None:
    x = ours(np.array([1, -8], np.int32))
    assert (x << 3).tolist() == [8, -64]
    assert (x << 40).tolist() == [0, 0]
    assert (x >> 40).tolist() == [0, -1]


def test_unsigned_to_float() -> None:
    x = np.array([5, 2**31 + 5], np.uint32)
    close(ours(x).astype(jnp.float32), jax_numpy.asarray(x).astype("float32"))


def test_strict_promotion_is_about_what_a_program_writes() -> None:
    """The library's own functions promote inside as always; operators and functions called by a
    line of the program, also within a transformation or a function that they call back, do not."""
    import genesis_fn as gf
    from genesis_fn.scipy import fft, optimize, special, stats

    x, i = jnp.ones((2, 3)), jnp.ones((2, 3), jnp.int32)
    refused = (jnp_errors().DTypeError, jnp_errors().ShapeError)
    with gf.numpy_dtype_promotion("strict"), gf.numpy_rank_promotion("raise"):
        fft.dct(x), fft.idct(x), stats.rankdata(x), stats.sem(x), jnp.polyfit(x[0], x[0], 0)
        special.logsumexp(x.astype(jnp.complex64)), gf.random.gamma(gf.random.key(0), x)
        optimize.minimize(lambda v: ((v - 1) ** 2).sum(), x[0], method="BFGS")
        for wrong in (
            lambda: x + i, lambda: x @ i.T, lambda: 1.5 * i, lambda: jnp.hypot(x, i),
            lambda: x.dot(i.T), lambda: x + x[0], lambda: jnp.where(x > 0, x, i),
            lambda: gf.jit(lambda a, b: a + b)(x, i), lambda: gf.grad(lambda a: (a * i).sum())(x),
            lambda: gf.vmap(lambda a: a - i[0])(x), lambda: np.ones((2, 3), np.float32) * i,
            lambda: optimize.minimize(lambda v: (v * i[0]).sum(), x[0], method="BFGS"),
            lambda: jnp.concatenate([x, i]), lambda: jnp.cross(x, i), lambda: jnp.polyval(x, i),
        ):  # fmt: skip
            with pytest.raises(refused, match="strict|raise"):
                wrong()


BINARY = [
    name
    for name in dir(np)
    if isinstance(getattr(np, name), np.ufunc)
    and getattr(np, name).nin == 2
    and not getattr(np, name).signature
    and hasattr(jnp, name)
    and name != "ldexp"  # whose exponent is an array of integers
]


@pytest.mark.parametrize("name", BINARY)
def test_numbers_beside_what_is_traced_are_known_to_the_program(name: str) -> None:
    """They are none of its operands, by which nothing could be told at planning."""
    f, traced = getattr(jnp, name), 0
    for x in (jnp.arange(1.0, 4.0), jnp.arange(1, 4), 3, 1.5):
        for y in (2, 2.5):
            for program in (lambda x, y=y: f(x, y), lambda x, y=y: f(y, x)):
                try:
                    jaxpr = g.make_jaxpr(program)(x).jaxpr
                except (TypeError, ValueError):
                    continue  # of integers only
                traced += 1
                assert len(jaxpr.invars) == 1, jaxpr
    assert traced
