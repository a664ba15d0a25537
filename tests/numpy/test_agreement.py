"""Results and errors of NumPy's functions at their corners, held to NumPy's and JAX's."""

from __future__ import annotations

import array
import itertools
import pickle
from typing import Any

import jax.numpy
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(3, 4)).astype(np.float32)


def close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-5)


def _complex(n: int) -> Any:
    return (RNG.normal(size=n) + 1j * RNG.normal(size=n)).astype(np.complex64)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_correlate_and_convolve_of_every_length_and_kind(mode: str):
    for (n, m), name in itertools.product([(5, 3), (3, 5), (4, 4)], ["correlate", "convolve"]):
        for kinds in itertools.product([np.real, lambda x: x], repeat=2):
            x, y = [kind(_complex(k)) for kind, k in zip(kinds, (n, m))]
            close(getattr(jnp, name)(x, y, mode), getattr(np, name)(x, y, mode))


# Everything below holds where mixed dtypes and ranks are forbidden: what a function mixes inside is
# its own affair.
STRICT = {
    "mean": lambda m: m.mean(REAL, 0, where=m.asarray(REAL > 0)),
    "mean of a mask of fewer axes": lambda m: m.mean(REAL, where=m.asarray(REAL[0] > 0)),
    "var": lambda m: m.var(REAL, 1, where=m.asarray(REAL > -1)),
    "complex std": lambda m: m.std(REAL * np.complex64(1j), 1, where=m.asarray(REAL > -1)),
    "nanvar": lambda m: m.nanvar(REAL, 0), "nanstd": lambda m: m.nanstd(REAL, 1),
    "nanmean": lambda m: m.nanmean(REAL, where=m.asarray(REAL[0] > 0)),
    "quantile": lambda m: m.quantile(REAL, m.asarray(np.float32([0.1, 0.5])), axis=1),
    "weighted quantile": lambda m: m.quantile(
        REAL, np.float32(0.3), axis=1, weights=np.abs(REAL), method="inverted_cdf"),
    "median": lambda m: m.median(REAL, axis=0), "cov": lambda m: m.cov(REAL),
    "weighted cov": lambda m: m.cov(REAL, aweights=np.float32([1, 2, 3, 4])),
    "outer": lambda m: m.maximum.outer(REAL, REAL[0]),
    "reduceat": lambda m: m.maximum.reduceat(REAL, np.array([0, 2, 1])),
    "unique rows": lambda m: m.unique(REAL.round(), axis=0),
    "where": lambda m: m.where(np.array([[True], [False], [True]]), REAL, REAL[0]),
    "polyfit": lambda m: m.polyfit(REAL[0], REAL[1], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", STRICT)
def test_functions_mix_nothing_of_the_users(name: str):
    with gf.numpy_dtype_promotion("strict"), gf.numpy_rank_promotion("raise"):
        ours = STRICT[name](jnp)
    close(ours, STRICT[name](np))


def test_masks_and_initial_values():
    for name in ("sum", "prod", "mean", "var", "std", "all", "any", "nanmean", "nanvar"):
        with pytest.raises(ValueError, match="where= must be a boolean array"):
            getattr(jnp, name)(REAL, where=np.ones_like(REAL))
    for name in ("max", "min"):
        with pytest.raises(ValueError, match="where= must be a boolean array"):
            getattr(jnp, name)(REAL, where=np.ones_like(REAL), initial=0)
    for name in ("sum", "prod", "max", "min"):
        with pytest.raises(ValueError, match="initial= must be a scalar"):
            getattr(jnp, name)(REAL, initial=np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match="complex dtype"):
        jnp.nanvar(REAL * 1j, dtype="float32")


def test_sets_of_what_is_not_unique():
    for x, y in ((RNG.integers(0, 6, 9), RNG.integers(3, 9, 7)), ([], [1, 1, 2]), ([], [])):
        x, y = [np.asarray(v, np.int32) for v in (x, y)]
        for unique in (False, True):
            want = np.setxor1d(x, y, assume_unique=unique)
            close(jnp.setxor1d(x, y, assume_unique=unique), want)
            got = gf.jit(lambda x, y, u=unique: jnp.setxor1d(x, y, u, size=20, fill_value=-1))(x, y)
            assert got.tolist() == want.tolist() + [-1] * (20 - want.size)
    parts = [-0.0, 0.0, 1.0, 1.0, np.nan, -np.nan]
    z = np.array([complex(a, b) for a, b in itertools.product(parts, repeat=2)], np.complex64)
    for ours, theirs in zip(jnp.unique(z, True, True, True), np.unique(z, True, True, True)):
        assert ours.shape == theirs.shape
    rows = RNG.integers(0, 2, (6, 2, 2)).astype(np.float32)
    ours = jnp.unique(rows, axis=0, size=20, fill_value=np.full((2, 2), 7.0))
    theirs = jax.numpy.unique(rows, axis=0, size=20, fill_value=np.full((2, 2), 7.0))
    close(ours, theirs)


def test_interpolation_of_complex_values_in_a_period():
    x, xp, fp = np.linspace(-4, 9, 8), np.array([0.5, 2, 3.5]), _complex(3)
    close(jnp.interp(x, xp, fp, period=4.0), np.interp(x, xp, fp, period=4.0))


def test_functions_at_infinity_and_of_complex_numbers():
    assert jnp.sinc(np.float32([np.inf, -np.inf, 0.0])).tolist() == [0.0, 0.0, 1.0]
    close(jnp.log10(np.complex64([0, 1j, 100, -10])), np.log10(np.complex64([0, 1j, 100, -10])))
    x, y = np.array([1 + 2j, np.nan, 3, 1 + 1j]), np.array([1 + 3j, 2, np.nan, 1 - 1j])
    for name in ("fmax", "fmin"):
        close(getattr(jnp, name)(x, y), getattr(np, name)(x, y))
    with pytest.raises(ValueError, match="hypot takes real numbers"):
        jnp.hypot(x, y)
    with pytest.raises(ValueError, match="arange takes real bounds"):
        jnp.arange(0, 5, 1 + 1j)


def test_arrays_from_python():
    assert jnp.array([0, np.float16(1)]).dtype == jax.numpy.array([0, np.float16(1)]).dtype
    assert jnp.array([0.0, np.int8(1)]).dtype == jax.numpy.array([0.0, np.int8(1)]).dtype
    assert jnp.asarray(array.array("i", [1, 2])).tolist() == [1, 2]
    with pytest.raises(ValueError, match="None of type NoneType is not a number"):
        jnp.array([0.0, None])
    x = jnp.arange(24).reshape(2, 3, 4)
    assert x.item((1, 2, 3)) == 23 and x.item(1, 2, 3) == 23 and x.item(7) == 7
    with pytest.raises(ValueError, match="item"):
        x.item()


def test_linspace_without_a_step():
    for num, endpoint in ((0, True), (1, True)):
        low, high = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
        ours = jnp.linspace(low, high, num, endpoint, retstep=True)
        theirs = np.linspace(low, high, num, endpoint, retstep=True)
        assert [v.shape for v in ours] == [np.shape(v) for v in theirs] and np.isnan(ours[1])


def test_empty_and_scalar_operands():
    assert jnp.trim_zeros(np.float32(0)).shape == () and jnp.unwrap(np.zeros((0, 2))).shape == (
        0,
        2,
    )
    steps = np.abs(REAL[:, 1:])
    close(jnp.trapezoid(REAL, dx=steps), np.trapezoid(REAL, dx=steps))
    close(jnp.trapezoid(REAL, dx=REAL[1:], axis=0), np.trapezoid(REAL, dx=REAL[1:], axis=0))


def test_padding_by_a_function():
    def pad(vector: Any, width: tuple[int, int], axis: int, options: dict[str, Any]) -> Any:
        vector = vector.at[: width[0]].set(options.get("padder", 10))
        return vector.at[-width[1] :].set(options.get("padder", 10))

    close(jnp.pad(REAL, 2, pad), np.pad(REAL, 2, constant_values=10))
    close(jnp.pad(REAL, 2, pad, padder=3), np.pad(REAL, 2, constant_values=3))


def test_lists_are_indices_only_of_positions():
    x = jnp.arange(6).reshape(3, 2)
    assert x[[0, 2]].tolist() == [[0, 1], [4, 5]]
    for index in ([True, False, True], [0, [0, 1]], [0, None], [0, slice(None)]):
        with pytest.raises(TypeError, match="is no index; write x"):
            x[index]
        with pytest.raises(TypeError, match="is no index; write x"):
            x.at[index].set(0)
    for other in ([1, 2], (1, 2), {1}, {1: 2}):
        with pytest.raises(TypeError, match="unsupported operand types"):
            x == other  # noqa: B015
    assert (x == "a") is False and (x == None) is False  # noqa: E711


def test_universal_functions_are_values():
    def f(x: Any, y: Any) -> Any:
        return x + y

    one, two = jnp.frompyfunc(f, 2, 1), jnp.frompyfunc(f, 2, 1)
    assert one == two and hash(one) == hash(two) and one != jnp.frompyfunc(f, 2, 1, identity=0)
    assert pickle.loads(pickle.dumps(jnp.add)) is jnp.add
    for name in ("nin", "nout", "nargs", "identity"):
        with pytest.raises(AttributeError):
            setattr(jnp.add, name, 3)


def test_what_vectorize_refuses():
    with pytest.raises(TypeError, match="positions and names"):
        jnp.vectorize(lambda x: x, excluded={1.5})
    with pytest.raises(ValueError, match="count from 0"):
        jnp.vectorize(lambda x: x, excluded={-1})
    with pytest.raises(TypeError, match="has 2 results, and the function gave 1"):
        jnp.vectorize(jnp.dot, signature="(n,m),(m,k)->(n,k),()")(np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="besides None, got 1"):
        jnp.vectorize(lambda x, y: x, signature="(k),(k)->(k)")(np.ones(3), None)
    with gf.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="leading axes"):
        jnp.vectorize(jnp.add, signature="(),()->()")(np.ones((2, 2)), np.ones(2))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "uint64", "float16",
                                   "bfloat16", "float64", "complex64"])  # fmt: skip
def test_swapped_bytes_and_addresses(dtype: str):
    x = jnp.asarray(REAL * 9).astype(dtype)
    for f in (lambda x: x.byteswap(), gf.jit(lambda x: x.byteswap())):
        assert np.asarray(f(x)).tobytes() == np.asarray(x).byteswap().tobytes()
    assert x.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    assert jnp.array(x, copy=True).unsafe_buffer_pointer() != x.unsafe_buffer_pointer()


def test_arrays_within_lists_and_positions_of_items():
    rows = [[3, np.array(2.0), 1], np.arange(3.0)]
    assert jnp.array(rows).tolist() == np.array(rows).tolist()
    for bad in ([[1, 2], np.ones(3)], [[1], [2, 3]]):
        with pytest.raises(ValueError, match="ragged"):
            jnp.array(bad)
    with pytest.raises(OverflowError, match="does not fit 64 bits"):
        jnp.array([0, -(2**63) - 1])
    assert jnp.asarray(5.0).item(0) == 5.0 and jnp.arange(8).reshape(2, 4).item((5,)) == 5


def test_histograms_of_any_dtypes():
    x, w = RNG.integers(0, 5, 30), RNG.random(30).astype(np.float32)
    with gf.numpy_dtype_promotion("strict"):
        ours = jnp.histogram(x, [0, 1, 3, 5], weights=np.abs(x))
        pair = jnp.histogramdd(np.stack([x, x], 1), 3, weights=w)
    close(ours[0], np.histogram(x, [0, 1, 3, 5], weights=np.abs(x))[0])
    close(pair[0], np.histogramdd(np.stack([x, x], 1), 3, weights=w)[0])


def test_operators_of_lax_take_numbers_of_one_kind():
    for name in ("add", "mul", "lt", "eq"):
        with pytest.raises(TypeError, match="operands of one dtype, got 0, 0.0"):
            getattr(gf.lax, name)(0, 0.0)
        assert getattr(gf.lax, name)(1, 2).shape == ()
