"""Values and derivatives at the places where formulas fail, and operands in the forms that users
have them in, beside JAX, NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as J
import jax.scipy.special as js
import numpy as np
import pytest
import scipy.special as ss

import genesis_fn as gf
import genesis_fn.numpy as jnp
import genesis_fn.scipy.special as gs

nan, inf = np.nan, np.inf


def agree(got: Any, want: Any, rtol: float = 1e-5, atol: float = 0.0, text: str = "") -> None:
    """Equal dtypes, shapes and, up to rounding, values."""
    for g, w in zip(gf.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.dtype, g.shape) == (w.dtype, w.shape), (text, g.dtype, w.dtype, g.shape, w.shape)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol, equal_nan=True, err_msg=text)


def both(
    f: Callable[[Any, Any], Any], rtol: float = 1e-5, atol: float = 0.0, text: str = ""
) -> None:
    """f(library, its numpy) beside f(jax, jax.numpy)."""
    agree(f(gf, jnp), f(jax, J), rtol, atol, text)


def derivative(library: Any, f: Callable, order: int, argnum: int = 0) -> Callable:
    for _ in range(order):
        f = library.grad(f, argnum)
    return f


@pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64"])
def test_a03_sign_of_nan(kind: str) -> None:
    x = jnp.asarray([nan, -0.0, 0.0, -2.0, inf], kind)
    for f in (jnp.sign, gf.jit(jnp.sign), gf.vmap(jnp.sign), gf.jit(lambda v: jnp.sign(v * 1.0))):
        y = np.asarray(f(x).astype("float32"))
        np.testing.assert_array_equal(y, [nan, 0, 0, -1, 1])
        assert list(np.signbit(y[1:])) == [True, False, True, False]


def test_a05_apply_to_repeated_indices() -> None:
    x, i = np.arange(1.0, 4.0, dtype=np.float32), np.array([1, 1, 2])
    step = lambda v: v * v + 1
    want = J.asarray(x).at[i].apply(step)
    xs = jnp.asarray(x)
    agree(xs.at[i].apply(step), want)
    agree(gf.jit(lambda v, k: v.at[k].apply(step))(xs, jnp.asarray(i)), want)
    agree(gf.vmap(lambda v: v.at[i].apply(step))(xs[None])[0], want)
    agree(gf.vmap(lambda k: xs.at[k].apply(step))(jnp.asarray(i)[None])[0], want)
    # d/dx of (x**2 + 1)**2 + 1 at 2, which JAX has no rule for.
    slope = gf.grad(lambda v: v.at[np.array([1, 1])].apply(step).sum())(xs)
    agree(slope, np.array([1.0, 40.0, 1.0], np.float32))
    # An element is a scalar to the function, as in JAX.
    both(lambda F, N: N.asarray(x).at[:].apply(lambda v: v - v.mean()))
    both(lambda F, N: N.asarray(x).at[i].power(N.asarray([2.0, 3.0, 2.0])))
    both(lambda F, N: N.asarray(x).at[i].divide(2.0))
    both(lambda F, N: N.asarray(x).at[np.array([7, 0])].apply(N.exp, mode="drop"))


@pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")
def test_a06_large_integer_exponents() -> None:
    rng = np.random.default_rng(0)
    for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        d = np.dtype(kind)
        bits = 8 * d.itemsize
        x = rng.integers(0, 100, 40).astype(kind)
        y = rng.integers(0, min(np.iinfo(kind).max, 10**6), 40).astype(kind)
        y[:6] = [0, 63, 64, 65, 100, 127]
        want = [pow(int(a), int(b), 1 << bits) for a, b in zip(x, y)]
        want = np.array(want, f"u{d.itemsize}").astype(d)
        for f in (jnp.power, gf.jit(jnp.power)):
            np.testing.assert_array_equal(np.asarray(f(jnp.asarray(x, d), jnp.asarray(y, d))), want)
    assert int(jnp.power(3, 64)) == 2038349057 and int(jnp.power(0, 64)) == 0
    got = jnp.power(jnp.array([2, 0, 1, -1, -1]), jnp.array([-1, -1, -3, -3, -(2**31)]))
    np.testing.assert_array_equal(got, [0, 0, 1, -1, 1])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a07_counts_of_unique_elements_that_are_cut_off(size: int) -> None:
    x = np.array([3, 1, 1, 2, 3, 3])
    options = {"return_index": True, "return_inverse": True, "return_counts": True}
    both(lambda F, N: N.unique(N.asarray(x), size=size, **options))
    both(lambda F, N: N.unique(N.asarray(x), size=size, fill_value=9, **options))
    both(lambda F, N: tuple(N.unique_counts(N.asarray(x), size=size)))
    y = np.array([4, 3, 3, 9])
    both(lambda F, N: N.union1d(x, y, size=size))
    both(lambda F, N: N.setdiff1d(x, y, size=size))
    both(lambda F, N: N.intersect1d(x, y, size=size))


@pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_a08_digitize_ties(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 9, 50).astype(kind)
    for bins in ([1, 2, 4, 7], [7, 4, 2, 1], [2, 2, 3, 3], [5, 5, 1, 1], [3], [3, 3]):
        bins = np.array(bins, kind)
        for right in (False, True):
            want = np.digitize(x, bins, right)
            np.testing.assert_array_equal(jnp.digitize(x, bins, right), want)
            np.testing.assert_array_equal(
                gf.jit(lambda a, b: jnp.digitize(a, b, right))(x, bins), want
            )
        for side in ("left", "right"):
            up = np.sort(bins)
            got = jnp.searchsorted(up, x, side=side)
            np.testing.assert_array_equal(got, np.searchsorted(up, x, side))


def test_a09_derivatives_of_frexp_and_sinc() -> None:
    x = np.array([3.0, -0.1, 1e-40, 3e38, 0.0, -0.0, inf, nan, 1e-38], np.float32)
    agree(jnp.frexp(x), np.frexp(x), 0)
    both(lambda F, N: F.grad(lambda v: N.frexp(v)[0])(3.0))
    for order in range(7):
        theirs = jax.jit(derivative(jax, J.sinc, order))
        for at in (0.0, 0.2, 0.24, 0.26, 1.3, -0.1):
            got = derivative(gf, jnp.sinc, order)(jnp.asarray(at, "float64"))
            with jax.enable_x64(True):
                want = theirs(np.float64(at))
            scale = 1e-11 if order < 3 or abs(at) > 1 or not at else 1e-4
            np.testing.assert_allclose(np.asarray(got), want, rtol=scale, atol=1e-12 * 4**order)


def grid(*values: float) -> list[np.ndarray]:
    return [v.ravel() for v in np.meshgrid(np.array(values), np.array(values))]


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_a11_beta_of_large_arguments(kind: str) -> None:
    some = (1e-3, 0.3, 1.0, 1.5, 9.9, 10.0, 11.5, 30.0, 1000.0, 60000.0, -0.5, -7.25)
    some += () if kind == "float16" else (1e-30, 1e-10, 1e10, 1e20, 1e30)
    a, b = [v.astype(kind) for v in grid(*some)]
    rtol = {"float16": 2e-3, "float32": 3e-5, "float64": 1e-9}[kind]
    for name in ("betaln", "beta"):
        # Both negative: gamma functions of either sign nearly cancel, in SciPy's formula too.
        keep = (a > 0) | (b > 0)
        keep &= (a > 0) & (b > 0) | (np.abs(a + b) > 5)
        want = getattr(ss, name)(a[keep].astype(np.float64), b[keep].astype(np.float64))
        got = getattr(gs, name)(jnp.asarray(a[keep], kind), jnp.asarray(b[keep], kind))
        assert got.dtype == kind
        with np.errstate(over="ignore", under="ignore"):
            want = want.astype(kind)
        small = np.abs(want) < 10 * np.finfo(kind).tiny
        atol = rtol if name == "betaln" else 0.0
        bound = rtol if name == "betaln" else 30 * rtol
        np.testing.assert_allclose(
            np.asarray(got)[~small].astype(np.float64),
            want[~small].astype(np.float64),
            rtol=bound,
            atol=atol,
        )
    assert np.isneginf(gs.betaln(1.0, inf)) and np.isinf(gs.betaln(0.0, 0.0))


@pytest.mark.parametrize("name", ["betaln", "beta"])
def test_a11_derivatives_of_beta(name: str) -> None:
    for a, b in ((3.0, 2.0), (1000.0, 2.0), (1000.0, 1.0), (20.0, 30.0), (0.5, 12.0)):
        for argnum in (0, 1):
            got = gf.grad(getattr(gs, name), argnum)(a, b)
            # The derivative by finite differences of SciPy's logarithm in float64.
            h = 1e-5 * (a, b)[argnum]
            shift = (h, 0) if argnum == 0 else (0, h)
            high, low = [ss.betaln(a + s * shift[0], b + s * shift[1]) for s in (1, -1)]
            want = (high - low) / (2 * h) * (ss.beta(a, b) if name == "beta" else 1)
            np.testing.assert_allclose(got, want, rtol=2e-4)


UNARY_SPECIAL = (
    "erf erfc erfinv gammaln digamma gamma factorial expit logit entr i0 i0e i1 i1e ndtr ndtri "
    "log_ndtr"
).split()


@pytest.mark.parametrize("name", UNARY_SPECIAL)
def test_a11_special_functions_at_extremes(name: str) -> None:
    x = np.array(
        [
            0.0,
            -0.0,
            1e-30,
            1e-10,
            1e-3,
            0.3,
            0.5,
            1,
            1.5,
            2,
            3,
            10,
            11.5,
            30,
            100,
            1000,
            1e5,
            1e10,
            1e20,
            inf,
            nan,
            -1e-10,
            -0.5,
            -1,
            -1.5,
            -2,
            -7.3,
            -100.5,
            -inf,
        ]
    )
    for kind, rtol in (("float32", 2e-5), ("float64", 1e-9), ("float16", 2e-3)):
        with np.errstate(all="ignore"):
            given = x.astype(kind)
            want = getattr(ss, name)(given.astype(np.float64)).astype(kind)
        if name == "gammaln":
            want[np.isneginf(given)] = inf  # as C's and JAX's lgamma
        if kind == "float16" and name in ("i0", "i1"):
            keep = np.abs(given) < 11  # exp(|x|) overflows before it is scaled
            given, want = given[keep], want[keep]
        got = np.asarray(getattr(gs, name)(jnp.asarray(given, kind)))
        assert got.dtype == kind
        tiny = np.abs(want.astype(np.float64)) < 4 * np.finfo(kind).tiny
        np.testing.assert_allclose(
            got[~tiny].astype(np.float64),
            want[~tiny].astype(np.float64),
            rtol=rtol,
            err_msg=f"{name} {kind}",
        )


@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "rel_entr", "kl_div"])
def test_a12_products_with_logarithms(name: str) -> None:
    x, y = grid(0.0, -0.0, 1e-30, 0.3, 1.0, 10.0, inf, nan, -1.0, -0.5)
    x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        want = getattr(ss, name)(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    got = np.asarray(getattr(gs, name)(x, y))
    # Where SciPy's is finite or infinite and JAX's NaN (inf - inf), either.
    theirs = np.asarray(getattr(js, name)(x, y))
    close = np.isclose(got, want, 1e-5, 1e-7, equal_nan=True)
    assert (close | (np.isnan(got) & np.isnan(theirs))).all()


@pytest.mark.parametrize("order", [1, 2])
def test_a12_derivatives_at_zero(order: int) -> None:
    cases: Sequence[tuple[str, tuple[float, ...]]] = [
        ("entr", (0.0,)),
        ("entr", (0.5,)),
        ("xlogy", (0.0, 0.0)),
        ("xlogy", (0.0, 2.0)),
        ("xlogy", (0.5, 2.0)),
        ("xlog1py", (0.0, -1.0)),
        ("xlog1py", (0.0, 1.0)),
        ("xlog1py", (0.5, 1.0)),
        ("rel_entr", (0.0, 0.5)),
        ("rel_entr", (0.3, 0.5)),
        ("kl_div", (0.0, 0.5)),
        ("kl_div", (0.3, 0.5)),
    ]
    for name, at in cases:
        for argnum in range(len(at)):
            got = derivative(gf, getattr(gs, name), order, argnum)(*at)
            want = derivative(jax, getattr(js, name), order, argnum)(*at)
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"{name}{at} by {argnum}")


def test_a13_derivatives_of_what_leaves_nan_out() -> None:
    x = np.array([[1.0, nan, 4.0], [3.0, 7.0, nan]], np.float32)
    for name in ("nanstd", "nanvar", "nanmean", "nansum", "nanprod", "nanmax", "nanmin"):
        for axis in (None, 0, 1):
            both(
                lambda F, N: F.grad(lambda v: getattr(N, name)(v, axis=axis).sum())(N.asarray(x)),
                text=f"{name} {axis}",
            )


def random_matrix(*shape: int, seed: int = 0, complex_: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return x + 1j * rng.normal(size=shape) if complex_ else x


def numeric(f: Callable, x: np.ndarray, t: np.ndarray, h: float = 1e-6) -> np.ndarray:
    return (f(x + h * t) - f(x - h * t)) / (2 * h)


def test_a13_derivatives_of_determinants() -> None:
    a = random_matrix(4, 4)
    singular = a.copy()
    singular[3] = singular[0] + singular[1]
    cases = [
        np.zeros((1, 1)),
        np.full((1, 1), 2.0),
        np.zeros((2, 2)),
        np.zeros((3, 3)),
        np.eye(4),
        np.zeros((4, 4)),
        np.ones((4, 4)),
        singular,
        np.diag([1.0, 2.0, 3.0, 0.0]),
        a,
        random_matrix(5, 5, seed=3),
        np.diag([1 + 1j, 2, 0, 3]),
    ]
    for x in cases:
        t = random_matrix(*x.shape, seed=7).astype(x.dtype)
        f = lambda v: jnp.linalg.det(v)
        kind = str(x.dtype)
        got = gf.jvp(f, (jnp.asarray(x, kind),), (jnp.asarray(t, kind),))[1]
        np.testing.assert_allclose(got, numeric(np.linalg.det, x, t), rtol=1e-6, atol=1e-8)
    agree(gf.grad(jnp.linalg.det)(jnp.zeros((1, 1))), np.ones((1, 1), np.float32))
    # Second derivatives where the matrix is regular.
    t = random_matrix(4, 4, seed=8)
    first = lambda v: gf.jvp(jnp.linalg.det, (v,), (jnp.asarray(t, "float64"),))[1]
    got = gf.jvp(first, (jnp.asarray(a, "float64"),), (jnp.asarray(t, "float64"),))[1]
    values = [np.linalg.det(a + s * 1e-4 * t) for s in (-1, 0, 1)]
    np.testing.assert_allclose(got, (values[0] - 2 * values[1] + values[2]) / 1e-8, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a13_derivative_of_a_complex_sign(n: int) -> None:
    x, t = (random_matrix(n, n, seed=s, complex_=True) for s in (1, 2))
    for part in (0, 1):
        f = lambda v: jnp.linalg.slogdet(v)[part]
        got = gf.jvp(f, (jnp.asarray(x, "complex128"),), (jnp.asarray(t, "complex128"),))[1]
        want = numeric(lambda v: np.linalg.slogdet(v)[part], x, t)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a13_derivative_of_pinv() -> None:
    zero = gf.jacrev(jnp.linalg.pinv)(jnp.zeros((3, 2)))
    np.testing.assert_array_equal(zero, np.zeros((2, 3, 3, 2)))
    low = random_matrix(4, 2) @ random_matrix(2, 4, seed=1)
    for x in (
        random_matrix(4, 4),
        random_matrix(5, 3),
        random_matrix(2, 4),
        low,
        random_matrix(3, 2, complex_=True),
        random_matrix(2, 3, complex_=True),
    ):
        t = random_matrix(*x.shape, seed=5, complex_=x.dtype.kind == "c")
        if x is low:  # a direction in which the rank stays
            t = x @ random_matrix(4, 4, seed=2)
        kind = str(x.dtype)
        got = gf.jvp(jnp.linalg.pinv, (jnp.asarray(x, kind),), (jnp.asarray(t, kind),))[1]
        want = numeric(lambda v: np.linalg.pinv(v, rcond=1e-9), x, t)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert jnp.linalg.pinv(jnp.zeros((0, 3))).shape == (3, 0)


def test_a14_complex_logarithms_of_sums() -> None:
    rng = np.random.default_rng(4)
    x, y = [(rng.normal(size=60) * 3 + 4j * rng.normal(size=60)).astype(np.complex64) for _ in "xy"]
    x[:3], y[:3] = [100 + 1j, 3j, -40 - 3j], [0, 3j, -3j]
    wide = np.log(np.exp(x.astype(np.complex128)) + np.exp(y.astype(np.complex128)))
    for got in (jnp.logaddexp(x, y), gf.jit(jnp.logaddexp)(x, y)):
        np.testing.assert_allclose(got, wide, rtol=1e-4, atol=1e-4)
        assert (np.abs(np.imag(got)) <= np.float32(np.pi)).all()
    both(lambda F, N: N.logaddexp(N.asarray(x), N.asarray(y)), 2e-4, 1e-4)
    two = jnp.logaddexp2(x / 3, y / 3)
    want = np.log2(np.exp2(x.astype(np.complex128) / 3) + np.exp2(y.astype(np.complex128) / 3))
    np.testing.assert_allclose(two, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["std", "var", "nanstd", "nanvar"])
def test_a15_no_degree_of_freedom_is_left(name: str) -> None:
    x = np.array([[1.0, 2.0, 4.0], [3.0, 7.0, 5.0]], np.float32)
    z = (x + 1j * x[::-1]).astype(np.complex64)
    mask = np.array([[True, False, True], [False, False, True]])
    for ddof in (0, 0.5, 1, 2, 3, 6, 7, -1):
        for axis in (None, 0, 1):
            for value in (x, z, np.where(mask, x, np.float32(nan)), x[:0], x.astype(np.int32)):
                both(
                    lambda F, N: getattr(N, name)(N.asarray(value), axis=axis, ddof=ddof),
                    2e-5,
                    text=f"ddof {ddof} axis {axis}",
                )
            options = {"axis": axis, "ddof": ddof}
            both(
                lambda F, N: getattr(N, name)(N.asarray(x), where=N.asarray(mask), **options),
                2e-5,
                text=f"where, ddof {ddof} axis {axis}",
            )


def test_a15_ldexp_of_infinity() -> None:
    x = np.array([inf, -inf, nan, 1.0, 0.0, -0.0, 1e-38, 3e38, 1.5], np.float32)
    for n in (-300, -149, -127, -1, 0, 1, 127, 128, 300, 2**31 - 1, -(2**31)):
        got = np.asarray(jnp.ldexp(x, np.int32(n)))
        with np.errstate(all="ignore"):
            want = np.ldexp(x, n)
        np.testing.assert_array_equal(got, want, err_msg=str(n))
        assert (np.signbit(got) == np.signbit(want))[:2].all()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_a18_truncated_normals_are_inside(kind: str) -> None:
    x = gf.random.truncated_normal(gf.random.key(0), -1.0, 1.0, (20000,), kind)
    x = np.asarray(x.astype("float32"))
    assert x.min() > -1 and x.max() < 1 and x.dtype == np.float32
    assert abs(x.std() - 0.5396) < 0.02  # of the standard normal distribution within one deviation


def test_a18_betainc_at_the_limits_of_its_parameters() -> None:
    some = [0.0, 1.0, 2.0, inf, nan]
    a, b, x = [v.ravel() for v in np.meshgrid(some, some, [0.0, 0.3, 1.0])]
    a, b, x = [v.astype(np.float32) for v in (a, b, x)]
    np.testing.assert_allclose(gs.betainc(a, b, x), js.betainc(a, b, x), rtol=1e-5)


def leaves_of(F: Any, name: str) -> Any:
    return getattr(gf if F is gf else jax, name)


COLUMN, ROW = np.ones((3, 1), np.float32), 2 * np.ones((1, 2), np.float32)
INTEGERS = (np.ones((3, 1), np.int32), np.ones((1, 2), np.int32))
IMAGES, WINDOWS = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 2, 2), np.float32)
STEPS = np.arange(6, dtype=np.float32).reshape(2, 3)
EDGED = np.pad(np.ones((2, 2), np.float32), ((1, 1), (2, 1)))
COMPLEX = np.array([1 + 3j, 2 - 3j, -0.5 + 0.2j], np.complex64)
MASK = np.array([True, False, True])

LAX: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{
        name: (lambda F, N, L, name=name: getattr(L, name)(COLUMN, ROW))
        for name in (
            "add mul sub div max min pow atan2 rem nextafter eq lt ne complex igamma"
        ).split()
    },
    **{
        name: (lambda F, N, L, name=name: getattr(L, name)(*INTEGERS))
        for name in ("bitwise_and", "shift_left")
    },
    "rank 1": lambda F, N, L: L.add(N.ones((3,)), N.ones((1,))),
    "betainc": lambda F, N, L: L.betainc(COLUMN, ROW, 0.5 * N.ones((3, 2))),
    "pad": lambda F, N, L: L.pad(N.ones(3), np.array(0.0), [(1, 1, 0)]),
    "pad of integers": lambda F, N, L: L.pad(N.ones(3, "int32"), np.array(0), [(1, 1, 0)]),
    "conv_general_dilated": lambda F, N, L: L.conv_general_dilated(
        lhs=IMAGES, rhs=WINDOWS, window_strides=(1, 1), padding="SAME"
    ),
    "conv": lambda F, N, L: L.conv(
        lhs=IMAGES, rhs=WINDOWS, window_strides=(1, 1), padding="SAME"
    ),
    "fft over nothing": lambda F, N, L: L.fft(N.asarray(COMPLEX), "fft", ()),
    "dot": lambda F, N, L: L.dot(N.ones((2, 3), "int32"), N.ones((3, 2), "bfloat16")),
    "dot of vectors": lambda F, N, L: L.dot(N.ones((3,), "int32"), N.ones((3,))),
    "broadcast_in_dim": lambda F, N, L: L.broadcast_in_dim(N.asarray(STEPS), (3, 4, 2), (2, 0)),
    **{
        f"{value} to {kind}": (
            lambda F, N, L, value=value, kind=kind: L.convert_element_type(value, kind)
        )
        for value, kind in ((nan, "int32"), (1e20, "int32"), (3.7, "int32"), (-1, "uint8"),
                            (np.float32(inf), "int8"), (2, "bool"), (300, "int8"))
    },
}  # fmt: skip

NUMPY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "polygamma": lambda F, N, L: (gs if F is gf else js).polygamma(np.array([0, 1, 2, 3]), 2.5),
    "polygamma, lax": lambda F, N, L: L.polygamma(
        N.array([1.0, 2.0, 0.0]), N.array([0.5, 2.0, 3.0])
    ),
    "polygamma, traced": lambda F, N, L: F.jit((gs if F is gf else js).polygamma)(2, 1.5),
    "one_hot": lambda F, N, L: leaves_of(F, "nn").one_hot([0, 1], 2),
    "array_equiv": lambda F, N, L: N.array_equiv([1, 2], [[1, 2], [1, 2]]),
    "cumsum": lambda F, N, L: N.cumsum(MASK, dtype=bool),
    "cumprod": lambda F, N, L: N.cumprod(MASK, dtype=bool),
    "geomspace": lambda F, N, L: N.geomspace(N.array([1.0, 2.0]), N.array([100.0, 200]), 4, axis=1),
    "geomspace, complex": lambda F, N, L: N.geomspace(1, 1j, 4),
    "trim_zeros": lambda F, N, L: [N.trim_zeros(EDGED, t) for t in ("fb", "f", "b")],
    "trim_zeros of zeros": lambda F, N, L: N.trim_zeros(EDGED * 0),
    "gradient": lambda F, N, L: N.gradient(N.asarray(STEPS), axis=(1,)),
    "mgrid": lambda F, N, L: N.mgrid[()],
    "ogrid": lambda F, N, L: N.ogrid[()],
    "ones": lambda F, N, L: N.ones(np.array(3)),
    "norm of nothing": lambda F, N, L: N.linalg.norm(N.zeros((0,)), ord=inf),
    "norm of no rows": lambda F, N, L: [N.linalg.norm(N.zeros((0, 3)), ord=o) for o in (inf, 2)],
    "pinv": lambda F, N, L: N.linalg.pinv(N.zeros((0, 3))),
    "bincount": lambda F, N, L: N.bincount(N.asarray(MASK)),
    "resize": lambda F, N, L: leaves_of(F, "image").resize(N.ones((4, 4)), (0, 3), "linear"),
    "at[True]": lambda F, N, L: N.ones((2,)).at[True].set(3.0),
    "at[False]": lambda F, N, L: N.ones((2,)).at[False].add(3.0),
    "at[True, 0]": lambda F, N, L: N.ones((2, 3)).at[True, 0].set(3.0),
    "at[True].apply": lambda F, N, L: N.ones((2,)).at[True].apply(N.exp),
    **{
        f"{name} of nothing": (lambda F, N, L, name=name: getattr(N.fft, name)(N.zeros((3, 0))))
        for name in ("fft", "ifft", "irfft")
    },
    "fft2": lambda F, N, L: N.fft.fft2(N.zeros((0, 3))),
    "irfft of one": lambda F, N, L: N.fft.irfft(N.ones((1,))),
    "convolve": lambda F, N, L: N.convolve(N.array([1, 2, 3]), N.array([1, 1])),
    "convolve, kept": lambda F, N, L: N.convolve(
        N.array([1, 2, 3]), N.array([1, 1]), preferred_element_type="int32"
    ),
    "correlate": lambda F, N, L: N.correlate(N.array([1, 2, 3]), N.array([1, 1])),
    "diff": lambda F, N, L: N.diff(N.array([1.0, 2.0]), n=0, prepend=N.array([5.0])),
    "astype": lambda F, N, L: N.array([1, 2]).astype(None),
    "isscalar": lambda F, N, L: [
        np.asarray(N.isscalar(v)) for v in (np.array(1), np.array([1]), 1, [1], N.asarray(1))
    ],
}  # fmt: skip

OF_COMPLEX: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{
        name: (lambda F, N, L, name=name: getattr(N, name)(COMPLEX, COMPLEX[::-1]))
        for name in "less less_equal greater greater_equal maximum minimum logaddexp2".split()
    },
    "<": lambda F, N, L: N.asarray(COMPLEX) < N.asarray(COMPLEX[::-1]),
    "scalars": lambda F, N, L: [N.maximum(N.asarray(COMPLEX), 1 + 1j), N.asarray(COMPLEX) > 1],
    "rint": lambda F, N, L: N.rint(N.asarray(COMPLEX * 1.5)),
    "interp": lambda F, N, L: N.interp(
        N.array([0.5, 2, -1]), N.array([0.0, 1.0]), N.array([0j, 1 + 2j])
    ),
    "logsumexp": lambda F, N, L: (gs if F is gf else js).logsumexp(N.asarray(COMPLEX)),
    "logsumexp, b": lambda F, N, L: (gs if F is gf else js).logsumexp(
        N.asarray(COMPLEX), b=N.array([1.0, -2, 1j])
    ),
    "logsumexp, sign": lambda F, N, L: (gs if F is gf else js).logsumexp(
        N.asarray(COMPLEX), return_sign=True
    ),
    "gamma": lambda F, N, L: (gs if F is gf else js).gamma(N.asarray(COMPLEX)),
    "max": lambda F, N, L: N.max(N.asarray(COMPLEX), where=N.asarray(MASK), initial=-5),
    "min": lambda F, N, L: N.min(N.asarray(COMPLEX), where=N.asarray(MASK), initial=5 + 1j),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LAX))
def test_b27_operands_of_lax(name: str) -> None:
    agree(LAX[name](gf, jnp, gf.lax), LAX[name](jax, J, jax.lax))


def test_b27_scatter_numbers_that_do_not_fit() -> None:
    for window, inserted, places in (((), (0,), (0,)), ((0, 1), (0,), (0,)), ((5,), (), (9,))):
        numbers = gf.lax.ScatterDimensionNumbers(window, inserted, places)
        with pytest.raises(gf.errors.ShapeError):
            gf.lax.scatter_add(jnp.ones((5, 2)), jnp.array([[1], [2]]), jnp.ones((2,)), numbers)


@pytest.mark.parametrize("name", sorted(OF_COMPLEX))
def test_b29_complex_operands(name: str) -> None:
    agree(OF_COMPLEX[name](gf, jnp, gf.lax), OF_COMPLEX[name](jax, J, jax.lax), 1e-4, 1e-6)


@pytest.mark.parametrize("name", ["uniform", "truncated_normal", "normal"])
def test_b29_complex_initializers(name: str) -> None:
    key = gf.random.key(3, impl="threefry2x32")
    got = gf.nn.initializers.variance_scaling(2.0, "fan_in", name)(key, (60, 40), "complex64")
    init = jax.nn.initializers.variance_scaling(2.0, "fan_in", name)
    want = init(jax.random.key(3), (60, 40), np.complex64)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_b32_plain_use(name: str) -> None:
    f = NUMPY[name]
    got, want = f(gf, jnp, gf.lax), f(jax, J, jax.lax)
    assert isinstance(got, list) == isinstance(want, list)
    agree(got, want, 1e-5, 1e-6)


def test_c03_convolution_shapes_of_unknown_batch() -> None:
    layout = ("NHWC", "HWIO", "NHWC")
    for batch in (-1, 2):
        for padding in ("SAME", "VALID"):
            args = ((batch, 28, 28, 1), (3, 3, 1, 32), (2, 1), padding, layout)
            got = gf.lax.conv_general_shape_tuple(*args)
            assert got == jax.lax.conv_general_shape_tuple(*args)
