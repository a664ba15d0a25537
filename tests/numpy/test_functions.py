"""Functions of shapes, reductions, products, sorting, sets, statistics against jax.numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from tests.numpy.reference import check, values

X = values((3, 4), "float32")
Y = values((4, 2), "float32", 1)
B = values((2, 3, 4), "float32", 2)
V = values((5,), "float32", 3)
W = values((4,), "float32", 4)
N = values((3, 4), "int32", 5)
Z = values((3, 4), "complex64", 6)
NAN = np.where(X > 1, np.nan, X).astype(np.float32)
MASK = X > 0
S = np.array([3, 1, 2, 3, 1, 7], np.int32)

CASES: list[tuple] = [
    # creation and grids
    ("zeros", (2, 3)), ("ones", 3), ("full", (2, 2), 7), ("full", (2,), W[:2]), ("eye", 3, 4, 1),
    ("identity", 3), ("arange", 5), ("arange", 2, 9, 3), ("arange", 5, 0, -2),
    ("arange", 0.0, 1.0, 0.25),
    ("arange", 3.0), ("linspace", 0, 1, 5), ("linspace", 0, 1, 5, False),
    ("linspace", W[:2], W[2:], 4),
    ("logspace", 0, 2, 3), ("geomspace", 1.0, 100.0, 3), ("tri", 3, 4, 1), ("tril", X),
    ("triu", B, 1),
    ("tril", N, -1), ("meshgrid", V, W), ("vander", W), ("vander", W, 3), ("indices", (2, 3)),
    ("zeros_like", N), ("full_like", X, 2), ("array", [[1, 2], [3, 4]]), ("array", [1.5, 2]),
    ("array", [True, False]), ("array", 3), ("asarray", W), ("astype", X, "int32"),
    ("astype", X, "bfloat16"), ("ix_", S[:2], S[:3]),
    # shapes
    ("reshape", X, (2, -1)), ("reshape", X, -1), ("reshape", X, (4, 3), "F"), ("ravel", B),
    ("transpose", B), ("transpose", B, (1, 0, 2)), ("swapaxes", B, 0, -1), ("moveaxis", B, 0, -1),
    ("moveaxis", B, (0, 1), (-1, 0)), ("rollaxis", B, 2), ("expand_dims", X, (0, 3)),
    ("squeeze", X[None, :, None]), ("squeeze", X[None, :, None], 0), ("broadcast_to", W, (3, 4)),
    ("broadcast_arrays", X, W), ("concatenate", [X, N], 0), ("concatenate", [X, X], None),
    ("stack", [X, N], 1), ("vstack", [W, W]), ("hstack", [X, X]), ("hstack", [V, W]),
    ("dstack", [X, X]), ("column_stack", [W, W]), ("append", X, X, 1), ("split", X, 2, 1),
    ("split", V, [1, 3]), ("array_split", V, 3), ("hsplit", X, 2), ("vsplit", X, 3),
    ("tile", X, (2, 1)), ("tile", W, (2, 3)), ("repeat", X, 2), ("repeat", X, 2, 1),
    ("repeat", W, np.array([1, 0, 2, 3])), ("flip", B), ("flip", B, 1), ("fliplr", X),
    ("flipud", X),
    ("roll", X, 2), ("roll", X, 1, 1), ("roll", X, (1, -1), (0, 1)), ("rot90", X), ("rot90", X, 2),
    ("rot90", X, 3), ("atleast_1d", np.float32(3)), ("atleast_2d", W), ("atleast_3d", X),
    ("unstack", X), ("insert", W, 1, 9.0), ("insert", X, 1, 5.0, 1),
    ("insert", W, np.array([0, 2]), 1.0),
    ("delete", W, 1), ("delete", X, np.array([0, 2]), 0), ("delete", X, slice(1, 3), 1),
    ("resize", X, (2, 3)), ("resize", W, (3, 3)), ("block", [[X, X], [X, X]]),
    ("trim_zeros", np.array([0, 1, 0, 2, 0], np.int32)),
    ("pad", X, 1), ("pad", X, ((1, 2), (0, 3))), ("pad", X, ((1, 2), (0, 3)), "edge"),
    ("pad", X, ((1, 2), (2, 3)), "reflect"), ("pad", X, 2, "symmetric"), ("pad", X, 2, "wrap"),
    ("pad", X, 2, "mean"), ("pad", X, 2, "maximum"), ("pad", X, 2, "minimum"),
    ("pad", X, 2, "linear_ramp"),
    ("permute_dims", B, (2, 0, 1)), ("matrix_transpose", B), ("ediff1d", V),
    # reductions
    ("cumsum", X), ("cumsum", X, 1), ("cumprod", X, 0), ("cumsum", N.astype(np.int8), 0),
    ("average", X, 0), ("average", X, 1, W), ("ptp", X, 0), ("count_nonzero", N, 1),
    ("median", X, 1),
    ("median", B, (0, 2)), ("quantile", X, 0.3, 1),
    ("quantile", X, np.array([0.1, 0.9], np.float32)),
    ("percentile", X, 40.0), ("nansum", NAN, 0), ("nanmean", NAN, 1), ("nanmax", NAN),
    ("nanmin", NAN, 0),
    ("nanvar", NAN, 0), ("nanstd", NAN), ("nanprod", NAN, 1), ("nancumsum", NAN, 1),
    ("nancumprod", NAN, 0),
    ("nanargmax", NAN, 1), ("nanargmin", NAN), ("nanmedian", NAN, 1), ("nanquantile", NAN, 0.3, 1),
    ("max", Z, 0), ("min", Z, 1),
    # products
    ("dot", X, Y), ("dot", W, W), ("dot", B, Y), ("matmul", X, Y), ("matmul", B, Y),
    ("matmul", W, Y),
    ("matmul", B, W), ("matmul", B[:, None], values((3, 4, 2), "float32")),
    ("matmul", W, values((3, 4, 2), "float32")),
    ("matmul", values((2, 1, 3, 4), "float32"), values((5, 4, 2), "float32")),
    ("matmul", values((1, 3, 4), "float32"), values((5, 4, 2), "float32")),
    ("inner", X, X), ("outer", V, W), ("vdot", Z, Z), ("tensordot", B, Y, 1),
    ("tensordot", X, Y, ((1,), (0,))),
    ("kron", X, Y), ("cross", X[:, :3], X[:, :3][::-1].copy()), ("cross", X[:, :2], X[:, 1:3]),
    ("trace", X),
    ("trace", B, 1, 1, 2), ("diag", W), ("diag", W, -1), ("diag", X, 1), ("diagonal", B, 0, 1, 2),
    ("diagonal", X, -1), ("diagflat", X[:2, :2]), ("vecdot", X, X[0]), ("matvec", B, W),
    ("vecmat", X[0, :3], B),
    # sorting and sets
    ("sort", X), ("sort", X, 0), ("sort", X, None), ("argsort", X, 1), ("argsort", N, 0),
    ("sort", NAN),
    ("argmax", X, 1), ("argmin", X), ("argmax", NAN, 0), ("lexsort", (S, S[::-1].copy())),
    ("searchsorted", np.sort(V), W), ("searchsorted", np.sort(S), S, "right"), ("nonzero", N),
    ("flatnonzero", N),
    ("argwhere", N > 1), ("unique", S), ("isin", N, S), ("bincount", S),
    ("digitize", W, np.sort(V)),
    ("union1d", S, S + 2), ("intersect1d", S, S + 2), ("setdiff1d", S, S + 2),
    ("setxor1d", S, S + 2),
    ("histogram", X), ("unique_counts", S), ("unique_inverse", S), ("unique_all", S),
    ("take", X, np.array([0, 2])), ("take", X, np.array([[0, 2], [1, 1]]), 1),
    ("choose", np.array([0, 1, 1]), [V[:3], W[:3]]),
    ("take_along_axis", X, np.argsort(X, 1), 1), ("take_along_axis", X, np.argsort(X, 0)[:1], 0),
    ("compress", MASK[0], X, 1), ("extract", MASK, X), ("sort_complex", Z.ravel()),
    # statistics
    ("diff", X), ("diff", X, 2, 0), ("gradient", V), ("gradient", X, 2.0), ("trapezoid", X),
    ("interp", W, np.sort(V), V),
    ("convolve", V, W), ("convolve", V, W, "same"), ("convolve", W, V, "valid"),
    ("correlate", V, W),
    ("correlate", W, V, "full"), ("correlate", V, W, "same"), ("cov", X), ("corrcoef", X),
    ("polyval", W, V),
    ("unwrap", np.cumsum(np.abs(V) * 3).astype(np.float32) % 6.28),
    ("ravel_multi_index", (S[:3] % 3, S[:3] % 2), (3, 2)), ("unravel_index", S, (3, 4)),
    ("tril_indices", 3), ("triu_indices", 3, 1), ("diag_indices", 3),
    # linear algebra
    ("linalg.norm", X), ("linalg.norm", X, 1), ("linalg.norm", X, np.inf), ("linalg.norm", X, 2),
    ("linalg.norm", X, "nuc"), ("linalg.norm", W, 3), ("linalg.norm", B, None, (0, 2)),
    ("linalg.norm", W, 0),
    ("linalg.inv", X[:, :3]), ("linalg.det", X[:, :3]),
    ("linalg.det", values((2, 4, 4), "float32")),
    ("linalg.slogdet", values((4, 4), "float32")), ("linalg.solve", X[:, :3], X[:, 0]),
    ("linalg.pinv", X),
    ("linalg.matrix_power", X[:, :3], 3), ("linalg.matrix_rank", X),
    ("linalg.multi_dot", [X, Y, Y.T.copy()]),
    ("linalg.svdvals", X), ("linalg.cholesky", (X @ X.T + np.eye(3)).astype(np.float32)),
    ("linalg.cond", X),
    ("linalg.eigvalsh", (X @ X.T).astype(np.float32)), ("linalg.vector_norm", X),
    ("linalg.matrix_norm", B),
    # Fourier
    ("fft.fft", V), ("fft.fft", X, 5), ("fft.ifft", Z, None, 0), ("fft.rfft", V),
    ("fft.irfft", Z[0]),
    ("fft.fftn", B), ("fft.fft2", B), ("fft.rfftn", B), ("fft.irfftn", Z), ("fft.fftfreq", 5),
    ("fft.rfftfreq", 6),
    ("fft.fftshift", X), ("fft.ifftshift", V), ("fft.hfft", Z[0]), ("fft.ihfft", V),
    ("fft.fft", V, None, -1, "ortho"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_function(case: tuple) -> None:
    name, *args = case
    check(name, *args, tolerance=1e-4 if name.startswith(("linalg", "fft", "c")) else None)


@pytest.mark.parametrize("options", [
    {}, {"axis": 0}, {"axis": (0, 2)}, {"axis": -1, "keepdims": True},
    {"where": B > 0, "initial": 1},
    {"axis": 1, "initial": 2},
])  # fmt: skip
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8", "bool", "int32"])
def test_reduction(name: str, dtype: str, options: dict[str, Any]) -> None:
    options = dict(options)
    if name in ("mean", "var", "std", "any", "all"):
        options.pop("initial", None)
    if dtype == "bool" and name in ("max", "min") and "initial" in options:
        options["initial"] = True
    if dtype in ("int8", "uint8") and name == "prod":
        options["dtype"] = "int32"
    x = values((2, 3, 4), dtype, low=-2, high=1)
    check(name, x, tolerance=3e-2 if dtype == "bfloat16" else 1e-4, **options)


@pytest.mark.parametrize("name", ["sum", "mean", "prod"])
def test_reduction_dtype(name: str) -> None:
    check(name, N, dtype="float32")
    check(name, X, axis=0, dtype="bfloat16", tolerance=2e-2)


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance(ddof: int) -> None:
    check("var", X, 0, ddof=ddof)
    check("std", Z, 1, ddof=ddof)
    check("var", X, 1, where=MASK, tolerance=1e-4)


def test_reductions_of_nothing() -> None:
    empty = jnp.zeros((0, 3))
    assert jnp.sum(empty).item() == 0 and jnp.prod(empty).item() == 1
    with pytest.raises(ValueError, match="initial="):
        jnp.max(empty, 0)
    assert jnp.max(empty, 1).shape == (0,)
    assert jnp.max(empty, 0, initial=2).tolist() == [2.0] * 3


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 2)), ("ij,jk", (3, 4), (4, 2)), ("ii", (3, 3)), ("ii->i", (3, 3)),
    ("ij->j", (3, 4)),
    ("ij->ji", (3, 4)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    ("...ij,jk", (2, 3, 4), (4, 5)), ("i,j->ij", (3,), (4,)), ("i,i", (3,), (3,)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("ij,j,k->ik", (3, 4), (4,), (2,)), ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("...,...->...", (2, 3), (3,)),
    ("i...->...", (3, 4)), ("bij,bj->bi", (1, 3, 4), (5, 4)), (",ij->ij", (), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("optimize", ["auto", False, True])
@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0])
def test_einsum(case: tuple, optimize: Any) -> None:
    text, *shapes = case
    xs = [values(s, "float32", i) for i, s in enumerate(shapes)]
    from tests.numpy.reference import close, ours

    expected = np.einsum(text, *xs)
    close(
        jnp.einsum(text, *ours(xs), optimize=optimize), expected.astype(np.float32), tolerance=1e-4
    )


def test_einsum_without_opt_einsum(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opt_einsum", None)
    test_einsum(("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 5), (5, 2)), "auto")
    test_einsum(("ij,j,k->ik", (3, 4), (4,), (2,)), "auto")


def test_einsum_interleaved_and_preferred() -> None:
    check("einsum", X, [0, 1], Y, [1, 2], [0, 2], tolerance=1e-4)
    x = values((3, 4), "bfloat16")
    check("einsum", "ij,kj->ik", x, x, preferred_element_type=np.float32, tolerance=1e-4)
    check("matmul", x, x.T.copy(), preferred_element_type=np.float32, tolerance=1e-4)


@pytest.mark.parametrize("text", ["ij->", "ij,kj->i", "ij,kj,lj->il"])
def test_einsum_sums_in_the_preferred_dtype(text: str) -> None:
    small = np.random.default_rng(3).integers(50, 120, (3, 4)).astype(np.int8)
    xs = [small] * (text.count(",") + 1)
    check("einsum", text, *xs, preferred_element_type=np.int32)
    check("einsum", text, *[x > 60 for x in xs], preferred_element_type=np.int32)


def test_einsum_errors() -> None:
    from genesis_fn.core.errors import ShapeError

    with pytest.raises(ShapeError, match="'j' has lengths 4 and 3"):
        jnp.einsum("ij,jk->ik", jnp.ones((3, 4)), jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="names 2 operands"):
        jnp.einsum("ij,jk->ik", jnp.ones((3, 4)))
    with pytest.raises(ValueError, match="more than one"):
        jnp.einsum("i...j...", jnp.ones((3, 4)))


def test_matmul_error_names_operands_and_line() -> None:
    from genesis_fn.core.errors import ShapeError

    with pytest.raises(ShapeError, match="inner dimensions 4 and 3 differ") as caught:
        jnp.ones((3, 4)) @ jnp.ones((3, 4))
    assert "f32[3,4]" in str(caught.value) and "test_functions.py" in str(caught.value)


def test_fixed_size_results_under_jit() -> None:
    from genesis_fn.transforms.jitting import jit

    x = jnp.array([0, 3, 0, 5, 1])
    (index,) = jit(lambda v: jnp.nonzero(v, size=4, fill_value=-1))(x)
    assert index.tolist() == [1, 3, 4, -1]
    assert jit(lambda v: jnp.nonzero(v, size=2)[0])(x).tolist() == [1, 3]
    assert jit(lambda v: jnp.unique(v, size=3))(jnp.array([4, 1, 4])).tolist() == [1, 4, 1]
    found, counts = jit(lambda v: jnp.unique(v, return_counts=True, size=2))(jnp.array([4, 1, 4]))
    assert found.tolist() == [1, 4] and counts.tolist() == [1, 2]
    assert jit(lambda v: jnp.bincount(v, length=4))(jnp.array([1, 1, 3])).tolist() == [0, 2, 0, 1]
    assert jit(lambda a, b: jnp.intersect1d(a, b, size=2))(x, jnp.array([5, 3])).tolist() == [3, 5]
    assert jit(lambda a, b: jnp.setdiff1d(a, b, size=3))(x, jnp.array([5, 0])).tolist() == [1, 3, 0]
    assert jit(lambda a, n: jnp.repeat(a, n, total_repeat_length=4))(
        jnp.array([7, 8, 9]), jnp.array([1, 2, 1])
    ).tolist() == [7, 8, 8, 9]
    assert jit(jnp.roll)(jnp.arange(4), jnp.array(1)).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("flags", [(True, False, False), (False, True, True), (True, True, True)])
@pytest.mark.parametrize("x", [S, N % 3, np.array([1.0, np.nan, np.nan, 2.0], np.float32)])
def test_unique(x: np.ndarray, flags: tuple) -> None:
    check("unique", x, *flags)


def test_unique_rows() -> None:
    x = np.array([[1, 2], [3, 4], [1, 2], [0, 9]], np.int32)
    check("unique", x, True, True, True, 0)
    check("unique", x, axis=1)


def test_histogram_and_digitize() -> None:
    check("histogram", X, 4, (-1.0, 1.0))
    check("histogram", X, np.array([-2.0, 0.0, 0.5, 3.0], np.float32), density=True)
    check("digitize", W, np.sort(V)[::-1].copy())
    check("digitize", W, np.sort(V), right=True)


def test_vectorize() -> None:
    f = jnp.vectorize(lambda a, b: a @ b, signature="(n,m),(m)->(n)")
    assert f(jnp.ones((5, 3, 4)), jnp.ones((2, 1, 4))).shape == (2, 5, 3)
    g = jnp.vectorize(lambda a, b: a + b)
    assert g(jnp.arange(3), jnp.arange(2)[:, None]).tolist() == [[0, 1, 2], [1, 2, 3]]
    add = jnp.frompyfunc(lambda a, b: a + b, 2, 1)
    assert add.reduce(jnp.arange(4)).item() == 6
    assert add.accumulate(jnp.arange(4)).tolist() == [0, 1, 3, 6]
    assert add.outer(jnp.arange(2), jnp.arange(3)).shape == (2, 3)


def test_grids() -> None:
    np.testing.assert_array_equal(np.asarray(jnp.mgrid[0:3, 1:3]), np.mgrid[0:3, 1:3])
    np.testing.assert_allclose(np.asarray(jnp.mgrid[0:1:3j]), np.mgrid[0:1:3j])
    for mine, reference in zip(jnp.ogrid[0:3, 1:3], np.ogrid[0:3, 1:3]):
        np.testing.assert_array_equal(np.asarray(mine), reference)
    np.testing.assert_array_equal(np.asarray(jnp.r_[1:4, 0, 4]), np.r_[1:4, 0, 4])
    np.testing.assert_array_equal(np.asarray(jnp.c_[S, S]), np.c_[S, S])
    assert jnp.s_[1:2, ...] == (slice(1, 2), Ellipsis)


def test_apply_along_axis() -> None:
    mine = jnp.apply_along_axis(lambda v: v[:2] * v.sum(), 0, jnp.asarray(X))
    np.testing.assert_allclose(
        np.asarray(mine), np.apply_along_axis(lambda v: v[:2] * v.sum(), 0, X), rtol=1e-5
    )


def test_in_place_functions() -> None:
    expected = X.copy()
    np.fill_diagonal(expected, 7)
    got = jnp.fill_diagonal(jnp.asarray(X), 7, inplace=False)
    np.testing.assert_array_equal(np.asarray(got), expected)
    expected = X.copy()
    np.put(expected, [0, 5], [1, 2])
    np.testing.assert_array_equal(
        np.asarray(jnp.put(jnp.asarray(X), [0, 5], [1, 2], inplace=False)), expected
    )
    expected = X.copy()
    np.place(expected, MASK, [1, 2])
    np.testing.assert_array_equal(
        np.asarray(jnp.place(jnp.asarray(X), MASK, [1, 2], inplace=False)), expected
    )
    index = np.argmax(X, 1)[:, None]
    expected = X.copy()
    np.put_along_axis(expected, index, 9, 1)
    got = jnp.put_along_axis(jnp.asarray(X), index, 9, 1, inplace=False)
    np.testing.assert_array_equal(np.asarray(got), expected)
    assert jnp.cumulative_sum(jnp.ones(3), include_initial=True).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("k", [2**31, -(2**33), 2, -1])
def test_diagonals_beyond_the_matrix(k) -> None:
    np.testing.assert_array_equal(np.asarray(jnp.eye(3, 2, k)), np.eye(3, 2, k))
    np.testing.assert_array_equal(np.asarray(jnp.tri(3, 2, k)), np.tri(3, 2, k))
    for name in ("tril", "triu"):
        got = getattr(jnp, name)(jnp.asarray(X), k)
        np.testing.assert_array_equal(np.asarray(got), getattr(np, name)(X, k))


def test_missing_axes_are_index_errors() -> None:
    for f in (
        lambda x: jnp.expand_dims(x, 5),
        lambda x: jnp.sum(x, axis=2),
        lambda x: jnp.stack([x], -4),
    ):
        with pytest.raises(IndexError, match="axis"):
            f(jnp.asarray(X))


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_methods_of_quantiles(method: str) -> None:
    """NumPy's, also at ties of "nearest", which JAX rounds down."""
    for q in (0.0, 0.25, 0.5, 0.6, 1.0):
        for name, x, options in (
            ("quantile", V, {}),
            ("quantile", B, {"axis": (0, 2), "keepdims": True}),
            ("nanquantile", NAN, {"axis": 1}),
        ):
            got = getattr(jnp, name)(jnp.asarray(x), q, method=method, **options)
            want = getattr(np, name)(x, q, method=method, **options)
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)
    got = jnp.nanpercentile(jnp.asarray(NAN), 40.0, method=method)
    np.testing.assert_allclose(float(got), np.nanpercentile(NAN, 40.0, method=method), rtol=1e-5)


def test_quantiles_refuse() -> None:
    with pytest.raises(ValueError, match="method 'middle' is none of"):
        jnp.quantile(jnp.ones(3), 0.5, method="middle")
    with pytest.raises(ValueError, match="quantile of nothing"):
        jnp.quantile(jnp.ones((2, 0)), 0.5, axis=1)
    with pytest.raises(errors.DTypeError, match="takes real numbers"):
        jnp.quantile(jnp.ones(3, "complex64"), 0.5)
    half = jnp.quantile(jnp.asarray(V).astype("bfloat16"), 0.5)
    assert half.dtype.name == "bfloat16"


def test_interp_extrapolates() -> None:
    x, xs, ys = np.float32([-1, 0.5, 2]), np.float32([0, 1]), np.float32([3, 5])
    given = [jnp.asarray(v) for v in (x, xs, ys)]
    found = jnp.interp(*given, "extrapolate", "extrapolate")
    np.testing.assert_allclose(found, [1, 4, 7], rtol=1e-6)
    with pytest.raises(ValueError, match="'extrapolate', got 'edge'"):
        jnp.interp(*given, "edge")


def test_ldexp_of_zero_and_cov_of_nothing() -> None:
    powers = jnp.ldexp(jnp.array([[0.0], [1.0]]), jnp.array([255, -3]))
    np.testing.assert_array_equal(powers, [[0, 0], [np.inf, 0.125]])
    assert np.isnan(np.asarray(jnp.cov(jnp.zeros((2, 0))))).all()
