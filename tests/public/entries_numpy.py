"""Entries of `genesis_fn.numpy`, `numpy.linalg` and `numpy.fft`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.public.agree import E, Entry, Operand

X = Operand()
V = Operand((5,))
S = Operand((3, 3))
P = Operand(low=0.3, high=3.0)  # positive
U = Operand(low=-0.9, high=0.9)
ANY = Operand(kinds="fiubc")
REAL = Operand(kinds="fiub")
NUM = Operand(kinds="fiuc")
INT = Operand(kinds="iu", low=0, high=6)
BITS = Operand(kinds="iub", low=0, high=100)
BOOL = Operand(kinds="b")
SORTED = Operand((6,), values=lambda rng: np.sort(rng.uniform(-2, 2, 6)))
INDEX = Operand((4,), "i", 0, 2)
SINGLE = Operand((3, 3), "s")  # floats that decompositions take
# Far from singular.
REGULAR = Operand((3, 3), "s", values=lambda rng: rng.uniform(-1, 1, (3, 3)) + 3 * np.eye(3))


def _definite(rng: np.random.Generator) -> np.ndarray:
    a = rng.uniform(-1, 1, (3, 3))
    return a @ a.T + np.diag([1.0, 3.0, 6.0])


DEFINITE = Operand((3, 3), "s", values=_definite)


def _apart(shape: tuple[int, ...]) -> Callable:
    """Values without ties, whose order a rounding to 8 bits keeps."""
    size = int(np.prod(shape))
    return lambda rng: (rng.permutation(size).reshape(shape) - size / 2) / 4


APART = Operand((3, 4), values=_apart((3, 4)))


def each(names: str, *entries: Entry) -> dict[str, list[Entry]]:
    """The same entries for several names."""
    return {name: list(entries) for name in names.split()}


NUMPY: dict[str, list[Entry]] = {
    **each("abs absolute", E(NUM)),
    **each("sin cos sinh cosh exp arctan atan tanh arcsinh asinh", E(X), E(Operand(kinds="iubc"))),
    **each("tan exp2 expm1 cbrt sinc deg2rad rad2deg degrees radians fabs i0", E(X)),
    **each("sqrt log log2 log10 log1p reciprocal", E(P), E(Operand(kinds="c", low=0.3))),
    **each("arcsin arccos arctanh asin acos atanh", E(U)),
    **each("arccosh acosh", E(Operand(low=1.1, high=4.0))),
    **each("negative positive square conj conjugate", E(NUM)),
    **each("real imag", E(ANY)),
    **each("angle", E(Operand(kinds="fc"))),
    **each("floor ceil trunc rint", E(REAL, grad=False)),
    **each("round around", E(Operand(kinds="fi"), grad=False), E(
        X, call=lambda f, x: f(x, 1), grad=False)),
    **each("sign", E(NUM, grad=False)),
    **each("signbit spacing", E(X, grad=False)),
    **each("isfinite isinf isnan", E(ANY)), **each("isneginf isposinf", E(REAL)),
    **each("iscomplex isreal", E(ANY)),
    **each("logical_not", E(ANY)),
    **each("bitwise_not bitwise_invert invert", E(BITS)), **each("bitwise_count", E(INT)),
    **each("nan_to_num", E(ANY)),
    **each("frexp modf", E(X, grad=False), E(X, call=lambda f, x: f(x)[0])),
    # two operands
    **each("divide true_divide", E(ANY, P, same=False)),
    **each("floor_divide mod remainder fmod", E(X, P, grad=False), E(
        Operand(kinds="iu"), Operand(kinds="iu", low=1, high=5), same=False)),
    **each("divmod", E(X, P, grad=False)),
    **each("power pow", E(P, X), E(INT, Operand(kinds="iu", low=0, high=3))),
    **each("float_power", E(P, X)),
    **each("maximum minimum fmax fmin", E(REAL, REAL, same=False)),
    **each("logaddexp logaddexp2 hypot", E(X, X)), **each("arctan2 atan2", E(X, P)),
    **each("copysign nextafter", E(X, X, grad=False)),
    **each("heaviside", E(X, X, grad=False)),
    **each("ldexp", E(X, Operand(kinds="i", low=-3, high=3), same=False)),
    **each("equal not_equal", E(ANY, ANY, same=False)),
    **each("greater greater_equal less less_equal", E(REAL, REAL, same=False)),
    **each("isclose", E(X, X)),
    **each("allclose array_equal array_equiv", E(X, X)),
    **each("logical_and logical_or logical_xor", E(ANY, ANY, same=False)),
    **each("bitwise_and bitwise_or bitwise_xor", E(BITS, BITS)),
    **each("left_shift bitwise_left_shift right_shift bitwise_right_shift",
           E(INT, Operand(kinds="iu", low=0, high=3))),
    **each("gcd lcm", E(INT, INT)),
    # reductions
    **each("sum prod mean", E(ANY), E(X, call=lambda f, x: f(x, axis=1, keepdims=True)),
           E(X, call=lambda f, x: f(x, axis=(0, 1), where=x > 0, initial=1.0))),
    **each("var std", E(X), E(X, call=lambda f, x: f(x, axis=0, ddof=1)), E(
        Operand(kinds="iub"))),
    **each("max min amax amin", E(APART), E(REAL, grad=False), E(
        APART, call=lambda f, x: f(x, axis=1, keepdims=True))),
    **each("all any", E(ANY), E(X, call=lambda f, x: f(x > 0, axis=0))),
    **each("argmax argmin nanargmax nanargmin", E(APART), E(APART, call=lambda f, x: f(
        x, axis=1))),
    **each("ptp median nanmedian nansum nanprod nanmean nanvar nanstd nanmax nanmin", E(APART), E(
        APART, call=lambda f, x: f(x, axis=1))),
    **each("count_nonzero", E(ANY), E(X, call=lambda f, x: f(x, axis=0))),
    **each("average", E(X), E(X, P, call=lambda f, x, w: f(x, 1, w))),
    **each("quantile nanquantile", E(APART, call=lambda f, x: f(x, 0.3, axis=1))),
    **each("percentile nanpercentile", E(APART, call=lambda f, x: f(x, 30.0, axis=1))),
    **each("cumsum cumprod cumulative_sum cumulative_prod nancumsum nancumprod", E(
        NUM, call=lambda f, x: f(x, axis=1))),
    **each("trapezoid", E(X), E(X, call=lambda f, x: f(x, dx=0.5, axis=0))),
    **each("diff", E(NUM), E(X, call=lambda f, x: f(x, n=2, axis=0))), **each("ediff1d", E(V)),
    **each("gradient", E(X, call=lambda f, x: f(x, axis=1))),
    **each("cov corrcoef", E(X)),
    **each("correlate convolve", E(V, Operand((3,)))),
    **each("histogram", E(Operand((6,)), call=lambda f, x: f(x, bins=4, range=(-2, 2)))),
    **each("histogram_bin_edges", E(Operand((6,)), call=lambda f, x: f(x, bins=4))),
    **each("bincount", E(INDEX, call=lambda f, x: f(x, length=5))),
    **each("digitize", E(X, SORTED)), **each("searchsorted", E(SORTED, X)),
    **each("interp", E(X, SORTED, Operand((6,)))),
    **each("unwrap", E(V)),
    # shapes
    **each("reshape", E(ANY, call=lambda f, x: f(x, (2, -1)))), **each("ravel", E(ANY)),
    **each("resize", E(X, call=lambda f, x: f(x, (4, 5)))),
    **each("transpose matrix_transpose", E(ANY)),
    **each("permute_dims", E(X, call=lambda f, x: f(x, (1, 0)))),
    **each("swapaxes moveaxis", E(X, call=lambda f, x: f(x, 0, 1))),
    **each("rollaxis", E(X, call=lambda f, x: f(x, 1))),
    **each("expand_dims", E(X, call=lambda f, x: f(x, (0, 2)))),
    **each("squeeze", E(Operand((3, 1, 4)))),
    **each("atleast_1d atleast_2d atleast_3d", E(ANY)),
    **each("broadcast_to", E(X, call=lambda f, x: f(x, (2, 3, 4)))),
    **each("broadcast_arrays", E(X, Operand((4,)))),
    **each("flip fliplr flipud rot90", E(ANY)),
    **each("roll", E(X, call=lambda f, x: f(x, 2, 1))),
    **each("tile", E(X, call=lambda f, x: f(x, (2, 1)))),
    **each("repeat", E(X, call=lambda f, x: f(x, 2, axis=1))),
    **each("concatenate concat stack vstack hstack dstack column_stack block",
           E(X, X, call=lambda f, x, y: f([x, y]))),
    **each("append", E(X, X)),
    **each("row_stack", E(X, X, call=lambda f, x, y: f([x, y]), peer=False)),
    **each("split array_split vsplit", E(X, call=lambda f, x: f(x, 3))),
    **each("hsplit", E(X, call=lambda f, x: f(x, 2))),
    **each("dsplit", E(Operand((2, 3, 4)), call=lambda f, x: f(x, 2))),
    **each("unstack", E(X)),
    **each("pad", E(ANY, call=lambda f, x: f(x, 1)), E(X, call=lambda f, x: f(x, 1, "edge"))),
    **each("tril triu", E(ANY)), **each("diag diagonal diagflat trace", E(S)),
    **each("vander", E(V)),
    **each("kron outer", E(NUM, Operand((2, 2), "fiuc"))),
    **each("fill_diagonal", E(S, call=lambda f, x: f(x, 1.0, inplace=False))),
    **each("insert", E(V, call=lambda f, x: f(x, 1, 9.0))),
    **each("delete", E(V, call=lambda f, x: f(x, 1))),
    **each("meshgrid", E(V, Operand((3,)))), **each("ix_", E(INDEX, INDEX)),
    **each("copy asarray array ascontiguousarray", E(ANY)),
    **each("astype", E(REAL, call=lambda f, x: f(x, "float32"))),
    # products
    **each("matmul dot inner tensordot vdot",
           E(S, S, call=lambda f, x, y: f(x, y))),
    **each("vecdot", E(X, X)), **each("matvec", E(S, Operand((3,)))),
    **each("vecmat", E(Operand((3,)), S)),
    **each("einsum", E(S, X, call=lambda f, x, y: f("ij,jk->ik", x, y))),
    **each("cross", E(S, S)),
    **each("polyval", E(Operand((3,)), X)),
    # choice and order

    **each("sort", E(APART), E(REAL, grad=False)), **each("argsort lexsort", E(APART)),
    **each("sort_complex", E(Operand((5,), "c"))),
    **each("partition argpartition", E(APART, call=lambda f, x: f(x, 2), peer=False)),
    **each("take", E(X, INDEX, same=False), E(
        X, INDEX, call=lambda f, x, i: f(x, i, axis=1), same=False)),
    **each("take_along_axis", E(X, Operand((3, 2), "i", 0, 3), same=False, call=lambda f, x, i: f(
        x, i, axis=1))),
    **each("put_along_axis", E(X, Operand((3, 1), "i", 0, 3), same=False, call=lambda f, x, i: f(
        x, i, 7.0, axis=1, inplace=False))),
    **each("put", E(V, call=lambda f, x: f(x, np.array([0, 3]), 7.0, inplace=False))),
    **each("place", E(V, call=lambda f, x: f(x, x > 0, np.float32([7.0]), inplace=False))),
    **each("compress", E(X, call=lambda f, x: f(np.array([True, False, True]), x, axis=0))),
    **each("extract", E(V, call=lambda f, x: f(x > 0, x, size=5))),
    **each("isin", E(INT, INT)),
    **each("ravel_multi_index", E(INDEX, INDEX, call=lambda f, i, j: f(
        (i, j), (3, 3), mode="clip"))),
    **each("unravel_index", E(INDEX, call=lambda f, i: f(i, (2, 2)))),
    # shapes that depend on values
    **each("nonzero argwhere flatnonzero", E(X, call=lambda f, x: f(x > 0), jit=False)),
    **each("unique unique_all unique_counts unique_inverse unique_values", E(INT, jit=False)),
    **each("intersect1d setdiff1d setxor1d union1d", E(INT, INT, jit=False)),
    **each("trim_zeros", E(Operand((5,), "iu", 0, 1), jit=False)),
    # creation
    **each("zeros ones empty", E(call=lambda f: f((2, 3), "int8"))),
    **each("full", E(Operand((), "fi"), call=lambda f, v: f((2, 3), v))),
    **each("zeros_like ones_like empty_like", E(ANY)),
    **each("full_like", E(ANY, call=lambda f, x: f(x, 1))),
    **each("eye identity tri", E(call=lambda f: f(4))),
    **each("arange", E(call=lambda f: f(1, 9, 2)), E(call=lambda f: f(0.0, 1.0, 0.25))),
    **each("linspace logspace geomspace", E(P, P, call=lambda f, x, y: f(x, y, 5))),
    **each("tril_indices triu_indices diag_indices", E(call=lambda f: f(3))),
    **each("tril_indices_from triu_indices_from diag_indices_from", E(S)),
    **each("mask_indices", E(call=lambda f: f(3, np.triu), peer=False)),
    **each("indices", E(call=lambda f: f((2, 3)))),
    **each("fromfunction", E(call=lambda f: f(lambda i, j: i + j, (2, 3)))),
    **each("fromiter", E(call=lambda f: f(iter([1, 2]), "int32"), peer=False)),
    **each("frombuffer", E(call=lambda f: f(b"\0\1\2\3", "uint8"))),
    # functions of functions
    **each("apply_along_axis", E(X, call=lambda f, x: f(lambda v: v[0] * v, 1, x))),
    **each("apply_over_axes", E(X, call=lambda f, x: f(
        lambda v, axis: v.sum(axis, keepdims=True), x, [0]))),
    **each("vectorize", E(X, X, call=lambda f, x, y: f(lambda a, b: a * b + 1)(x, y))),
    **each("frompyfunc", E(X, X, call=lambda f, x, y: f(lambda a, b: a * b, 2, 1)(x, y))),
    # questions about types and shapes
    **each("shape ndim size iscomplexobj isrealobj isscalar iterable",
           E(ANY, vmap=False, grad=False)),
    **each("result_type", E(ANY, ANY, same=False, jit=False, call=lambda f, *xs: str(f(*xs)))),
    **each("promote_types", E(call=lambda f: str(f("int8", "float16")))),
    **each("can_cast", E(call=lambda f: f("int8", "float16"))),
    **each("isdtype", E(call=lambda f: f(np.dtype("int8"), "integral"))),
    **each("issubdtype", E(call=lambda f: f(np.dtype("int8"), np.integer))),
    **each("dtype", E(call=lambda f: str(f("float16")))),
    **each("finfo", E(call=lambda f: float(f("float16").max))),
    **each("iinfo", E(call=lambda f: int(f("int8").max))),
    **each("broadcast_shapes", E(call=lambda f: f((3, 1), (4,)))),
    **each("array_str", E(call=lambda f: f(np.arange(3)), peer=False)),
    **each("array_repr", E(call=lambda f: f(np.arange(3)), peer=False)),
}  # fmt: skip

# Names above whose call is not the common one.
NUMPY |= {
    "where": [E(BOOL, NUM, NUM, same=False), E(BOOL, X, call=lambda f, c, x: f(c, x, 0.0))],
    "select": [E(BOOL, X, X, call=lambda f, c, x, y: f([c], [x], y[0, 0]), peer=False)],
    "choose": [E(Operand((3, 4), "i", 0, 1), X, X, call=lambda f, i, x, y: f(i, [x, y]))],
    "piecewise": [E(X, call=lambda f, x: f(x, [x > 0], [lambda v: v * 2, lambda v: v - 1]))],
    "clip": [E(REAL, call=lambda f, x: f(x, 0, 1)), E(X, call=lambda f, x: f(x, max=0.5))],
    "add": [E(ANY, ANY, same=False), E(X, Operand((4,)))],
    "subtract": [E(NUM, NUM, same=False), E(Operand((3, 1)), Operand((4,)))],
    "multiply": [E(ANY, ANY, same=False), E(X, Operand(()))],
    "lexsort": [E(APART, call=lambda f, x: f((x[0], x[1])))],
    "trace": [E(S), E(Operand((2, 3, 3), "i"), call=lambda f, x: f(x, 1, 1, 2))],
    "diag": [E(S), E(Operand((3,)))],
    "inner": [E(X, X), E(Operand((3,), "c"), Operand((3,), "c"))],
    "mean": [E(ANY), E(X, call=lambda f, x: f(x, axis=0, where=x > -9))],
    "nanargmax": [E(APART, call=lambda f, x: f(x, axis=1))],
    "nanargmin": [E(APART, call=lambda f, x: f(x, axis=1))],
    "concatenate": [E(ANY, ANY, same=False, call=lambda f, x, y: f([x, y], axis=1))],
    "stack": [E(ANY, ANY, same=False, call=lambda f, x, y: f([x, y], axis=-1))],
    "spacing": [E(X, grad=False)],
    "load": [],
    "save": [],
    "savez": [],
    "from_dlpack": [],  # tests/io, tests/numpy/test_options.py
}

LINALG: dict[str, list[Entry]] = {
    **each("cholesky", E(DEFINITE)),
    **each("eigh", E(DEFINITE, call=lambda f, a: f(a)[0])), **each("eigvalsh", E(DEFINITE)),
    **each("eig", E(DEFINITE, call=lambda f, a: f(a)[0])), **each("eigvals", E(DEFINITE)),
    **each("inv det cond slogdet pinv matrix_rank", E(REGULAR)),
    **each("svd", E(REGULAR, call=lambda f, a: f(a, compute_uv=False))),
    **each("svdvals", E(REGULAR)), **each("qr", E(REGULAR, call=lambda f, a: f(a, mode="r"))),
    **each("solve", E(REGULAR, Operand((3, 2), "s"))),
    **each("lstsq", E(REGULAR, Operand((3,), "s"), call=lambda f, a, b: f(a, b)[0])),
    **each("matrix_power", E(S, call=lambda f, a: f(a, 3))),
    **each("norm", E(Operand(kinds="fc")), E(X, call=lambda f, x: f(x, axis=1))),
    **each("vector_norm matrix_norm", E(X)),
    **each("matmul tensordot multi_dot", E(S, S)),
    **each("vecdot cross", E(S, S)), **each("outer", E(V, Operand((3,)))),
    **each("diagonal trace matrix_transpose", E(S)),
    **each("tensorinv", E(REGULAR, call=lambda f, a: f(a, ind=1))),
    **each("tensorsolve", E(REGULAR, Operand((3,), "s"))),
}  # fmt: skip
LINALG["multi_dot"] = [E(S, S, X, call=lambda f, *xs: f(list(xs)))]
LINALG["matrix_rank"] = [E(REGULAR, grad=False)]

_F = Operand((4, 6), "sc")
_REAL = Operand((4, 6), "s")
FFT: dict[str, list[Entry]] = {
    **each("fft ifft fft2 ifft2 fftn ifftn fftshift ifftshift", E(_F)),
    **each("rfft rfft2 rfftn ihfft", E(_REAL)),
    **each("irfft irfft2 irfftn hfft", E(Operand((4, 4), "c"))),
    **each("fftfreq rfftfreq", E(call=lambda f: f(6, 0.5))),
}
