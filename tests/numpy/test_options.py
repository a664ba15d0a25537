"""Options and functions that are asked for less often, against jax.numpy or NumPy."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.primitives import elementwise
from tests.numpy.reference import check, close, ours, values

X = values((3, 4), "float32")
A = values((3, 3), "float32", 1)
B = values((2, 3, 4), "float32", 2)
V = values((5,), "float32", 3)
W = values((4,), "float32", 4)
N = values((3, 4), "int32", 5)
Z = values((3, 4), "complex64", 6)
S = np.array([3, 1, 2, 3, 1, 7], np.int32)
MASK = X > 0
TENSOR = values((2, 3, 2, 3), "float32", 7)
NAN = np.where(MASK, np.nan, X)
HALF = values((4,), "float16", 9)
SQUARE = values((4, 2, 2), "float32", 8)

JAX: list[tuple] = [
    ("ones_like", N), ("empty_like", N), ("argsort", S, {"descending": True}),
    ("sort", X, {"descending": True}), ("take", X, np.array([9, 1]), 1, {"fill_value": 7.0}),
    ("nonzero", N > 1, {"size": 3, "fill_value": (7, 8)}), ("can_cast", "bfloat16", "float32"),
    ("compress", MASK[0], X, 1, {"size": 2, "fill_value": 9}),
    ("can_cast", "float32", "bfloat16"), ("logaddexp", Z[0], Z[1]),
    ("unique_values", S), ("repeat", W, 2, {"total_repeat_length": 7}),
    ("repeat", W, np.array([1, 0, 2, 1]), {"total_repeat_length": 6}),
]  # fmt: skip


@pytest.mark.parametrize("case", JAX, ids=lambda c: c[0])
def test_as_in_jax(case: tuple) -> None:
    name, *args = case
    options = args.pop() if isinstance(args[-1], dict) else {}
    check(name, *args, **options)


NUMPY: list[tuple] = [
    # creation
    ("ascontiguousarray", W), ("full", (2,), np.float32(2)), ("full", 2, -0.0), ("array", [W, W]),
    ("array", [[W[0], W[1]], [W[2], 1.5]]), ("array", [np.float32(1), np.float32(2)]),
    ("zeros", np.array([2, 3])), ("array", [X, 2 * X], "float16"),
    # shapes
    ("array_split", V, [3, 1, 4]), ("dsplit", B, 2), ("rot90", X, 4), ("concatenate", B),
    ("concatenate", [X, X], 1, {"dtype": "float16"}), ("roll", X, (1, 2), 1),
    ("resize", np.zeros((0,), np.float32), (2, 2)), ("roll", X[:1], 1, 0),
    ("insert", W, slice(0, 2), 1.0), ("delete", W, np.array([], np.int32)),
    ("trim_zeros", np.zeros(3, np.float32)), ("repeat", X, np.array([2]), 1),
    # padding
    ("pad", X, ((1, 2), (3, 0)), "reflect", {"reflect_type": "odd"}),
    ("pad", X, ((7, 8), (1, 2)), "symmetric", {"reflect_type": "odd"}),
    ("pad", X[:1], ((2, 1), (0, 0)), "reflect", {"reflect_type": "odd"}),
    ("pad", X, (1, 2), "constant", {"constant_values": ((1, 2), (3, 4))}),
    ("pad", X, 1, "constant", {"constant_values": np.float32(2)}), ("pad", X, ((1, 2),), "edge"),
    ("pad", N, 1, "mean"), ("pad", N, 2, "median", {"stat_length": 2}),
    ("pad", X, {-1: (1, 2), 0: 3}, "constant"),
    # reductions
    ("average", X, 0, None, {"returned": True}), ("argmax", X, None, {"keepdims": True}),
    ("argmin", X, 1, {"keepdims": True}), ("argmax", Z, 1), ("argmin", Z),
    ("var", X, {"correction": 1}), ("cumulative_prod", W, {"include_initial": True}),
    ("cumulative_sum", X, {"axis": 1}), ("cumulative_sum", W, {"include_initial": True}),
    # sorting
    ("argsort", X, None), ("searchsorted", S, V, {"sorter": np.argsort(S)}),
    ("searchsorted", np.zeros(0, np.float32), V), ("lexsort", (np.int32(1), np.int32(2))),
    ("searchsorted", np.sort(Z[0]), Z[1]), ("partition", V, 2), ("argpartition", V, 0),
    # selection
    ("take", X, np.array([5, -7]), {"axis": 1, "mode": "wrap"}), ("where", N > 1),
    ("take", X, np.array([0, 1], np.int8), 1), ("take_along_axis", X, np.array([0, 5]), None),
    ("take_along_axis", X[:, :1], np.array([[0, 0], [0, 0], [0, 0]]), 1),
    ("choose", np.array([0, 5, -1]), [V[:3], W[:3]], {"mode": "clip"}),
    ("choose", np.array([0, 5, -1]), [V[:3], W[:3]], {"mode": "wrap"}),
    # statistics
    ("cov", X, {"ddof": 0}), ("cov", X, X[0], {"fweights": np.array([1, 2, 0, 3])}),
    ("cov", X, {"aweights": W + 4}), ("cov", X, {"aweights": W + 4, "ddof": 0}),
    ("cov", X, {"fweights": np.array([1, 2, 1, 3]), "aweights": W + 4}), ("corrcoef", Z),
    ("corrcoef", W), ("cov", Z), ("correlate", Z[0], Z[1, :2]),
    ("convolve", Z[0], Z[1, :2], "same"), ("convolve", S, S[:3]), ("convolve", S[:2], S, "same"),
    ("correlate", S, S[:3], "valid"), ("interp", W, np.sort(V), V, {"period": 2.0}),
    ("diff", X, {"prepend": 0.0, "append": X[:, :2]}), ("diff", X[:1], 2, 0),
    ("diff", MASK), ("trapezoid", X, W), ("trapezoid", X, X[:, ::-1].copy(), 1.0, 0),
    # positions
    ("diag_indices_from", A), ("tril_indices_from", X, 1), ("triu_indices_from", X),
    ("ravel_multi_index", (S, S), (3, 4), "clip"), ("ravel_multi_index", (S, S), (3, 4), "wrap"),
    ("ravel_multi_index", (S[1:3], S[1:3]), (5, 4), "raise", "F"),
    # linear algebra
    ("linalg.norm", W, 1), ("linalg.norm", W, np.inf), ("linalg.norm", W, -np.inf),
    ("linalg.norm", Z), ("linalg.svd", X, {"compute_uv": False}), ("linalg.det", A[:2, :2]),
    ("linalg.matrix_rank", W), ("linalg.cond", A, 1), ("linalg.matrix_power", A, 0),
    ("linalg.matrix_power", A, -2), ("linalg.multi_dot", [W, X.T.copy(), A, A[0]]),
    ("linalg.outer", V, W), ("linalg.cross", A, A[::-1].copy()), ("linalg.diagonal", B),
    ("linalg.trace", B), ("linalg.lstsq", X.T.copy(), X[:2].T.copy(), 0.01),
    ("linalg.tensorsolve", TENSOR, X[:2, :3]), ("linalg.tensorinv", SQUARE, 1),
    ("linalg.tensorsolve", np.moveaxis(TENSOR, 2, 0).copy(), X[:2, :3], (0,)),
    ("dot", 2.0, X), ("inner", 2.0, X), ("diagonal", X, 7), ("cross", X, X[::-1].copy(), 0, 0, 0),
    ("einsum", "ij,jk->ik", X, X.T.copy(), {"optimize": ["einsum_path", (0, 1)]}),
    ("fft.fft", X, 2), ("fft.fftn", X, None, ()),
    # elements
    ("remainder", MASK, ~MASK | MASK), ("floor_divide", S.astype(np.uint8), np.uint8(2)),
    ("divmod", MASK, ~MASK | MASK), ("power", MASK, 2), ("power", MASK, ~MASK),
    ("round", S * 13, -1), ("round", Z, 1), ("round", X * 100, -1), ("isinf", Z / 0),
    ("nan_to_num", np.array([np.nan + 1j, np.inf * 1j], np.complex64)), ("frexp", HALF),
    ("isclose", S, S + 1, 0.2), ("isclose", MASK, ~MASK), ("array_equal", S, S[:3]),
    ("array_equal", NAN, NAN, {"equal_nan": True}), ("array_equiv", S, S[:4]),
    ("array_equiv", X, X[:1]), ("where", MASK, 1, 2), ("piecewise", X, [X > 0, X < -1], [1, 2, 3]),
    # sets and counts
    ("argwhere", np.float32(2)), ("isin", S, S[:0]), ("isin", Z, Z[0]),
    ("digitize", W, W[:0]), ("setxor1d", S, S[:0]), ("unique", np.zeros((2, 0)), {"axis": 0}),
    ("linspace", 0, 7, 4, {"dtype": int}), ("linspace", W[:2], W[2:], 3, {"dtype": int}),
    ("indices", (2, 3), {"sparse": True}), ("indices", ()), ("ix_", MASK[0], S[:2]),
    ("fromfunction", lambda i, j: i + 2 * j, (2, 3)), ("arange", np.int32(2), np.float32(5)),
    # what there is
    ("isdtype", np.dtype("float32"), ("integral", "real floating")), ("iterable", X),
    ("isdtype", np.dtype("int8"), np.dtype("int8")), ("can_cast", "int32", "float64"),
    ("can_cast", "float32", "int8", "same_kind"), ("iscomplexobj", Z), ("iscomplexobj", 1.0),
    ("isrealobj", X), ("isrealobj", 1j), ("isscalar", 3.0), ("isscalar", X), ("iterable", 3),
    ("array_str", N),
]  # fmt: skip


@pytest.mark.parametrize("case", NUMPY, ids=lambda c: c[0])
def test_as_in_numpy(case: tuple) -> None:
    name, *args = case
    options = args.pop() if isinstance(args[-1], dict) else {}
    mine, reference = jnp, np
    for part in name.split("."):
        mine, reference = getattr(mine, part), getattr(reference, part)
    expected = reference(*args, **options)
    got = mine(*ours(args), **{k: ours(v) for k, v in options.items()})
    if name == "partition":  # which orders the rest as it likes
        expected, got = expected[2], got[2]
    close(got, expected, dtype=False, tolerance=2e-3 if name.startswith("linalg") else 2e-5)


def test_nonzero_of_nothing_is_filled() -> None:
    rows, columns = jnp.nonzero(jnp.zeros((0, 2)), size=2, fill_value=(1, 5))
    assert rows.tolist() == [1, 1] and columns.tolist() == [5, 5]
    assert (
        jnp.convolve(ours(MASK[0]), ours(MASK[1])).tolist()
        == np.convolve(MASK[0].astype(int), MASK[1].astype(int)).tolist()
    )


def test_traced_positions() -> None:
    x = values((5,), "float32")
    for i in (0, 3, -1):
        got = gf.jit(lambda x, i: jnp.delete(x, i))(ours(x), jnp.array(i))
        np.testing.assert_array_equal(np.asarray(got), np.delete(x, i))


def test_qr_without_q() -> None:
    upper = jnp.linalg.qr(ours(X), "r")
    np.testing.assert_allclose(np.abs(upper), np.abs(np.linalg.qr(X, "r")), rtol=1e-4, atol=1e-5)


def test_casts_copy_when_asked() -> None:
    x = jnp.arange(3)
    assert jnp.astype(x, "int32", copy=True) is not x and jnp.astype(x, "int32") is x
    assert jnp.asarray(x, device=x.device) is x and jnp.asarray(x, copy=True) is not x
    for given in ([1, 2], 1.5, np.ones(2), memoryview(b"ab"), [x, x]):
        assert jnp.array(given, device="cpu").device is gf.cpu()
    assert gf.jit(lambda x: jnp.asarray(x, device="cpu") + 1)(x).tolist() == [1, 2, 3]
    assert jnp.from_dlpack(x) is x and jnp.from_dlpack(x, device=x.device) is x
    assert jnp.fromiter((i * i for i in range(3)), "int32").tolist() == [0, 1, 4]
    assert jnp.frombuffer(np.arange(4, dtype="int16").tobytes(), "int16").tolist() == [0, 1, 2, 3]
    assert jnp.array(bytearray(b"ab")).tolist() == [97, 98]


def test_files(tmp_path) -> None:
    x, y = jnp.array(X).astype("float16"), jnp.array(N)
    jnp.save(tmp_path / "x.npy", x)
    close(jnp.load(tmp_path / "x.npy"), np.load(tmp_path / "x.npy"))
    jnp.savez(tmp_path / "both.npz", x, y=y)
    both = jnp.load(tmp_path / "both.npz")
    assert sorted(both) == ["arr_0", "y"]
    close(both["arr_0"], X.astype("float16"))
    close(both["y"], N)
    text = io.BytesIO()
    jnp.save(text, y)
    assert text.getvalue()[:6] == b"\x93NUMPY"


def test_text_of_arrays() -> None:
    x = jnp.arange(3)
    assert jnp.array_repr(x) == repr(x) and jnp.array_repr(2) == "2"
    info = jnp.__array_namespace_info__()
    assert info.capabilities()["max dimensions"] == 64
    assert info.default_device() in info.devices()


def test_in_place_functions_give_results() -> None:
    x = jnp.arange(6)
    put = lambda i, mode: jnp.put(x, jnp.array(i), jnp.array([9, 8]), mode, inplace=False)
    for mode, i in (("clip", [-5, 77]), ("wrap", [7, -2])):
        expected = np.arange(6)
        np.put(expected, i, [9, 8], mode)
        assert put(i, mode).tolist() == expected.tolist()
    assert jnp.put(x, jnp.zeros(0, "int32"), 1, inplace=False) is x
    assert jnp.place(x, x > 2, jnp.zeros(0), inplace=False) is x
    for shape, wrap in (((7, 3), True), ((3, 3, 3), False)):
        expected = np.zeros(shape, np.int32)
        np.fill_diagonal(expected, [1, 2, 3], wrap)
        got = jnp.fill_diagonal(
            jnp.zeros(shape, "int32"), jnp.array([1, 2, 3]), wrap, inplace=False
        )
        close(got, expected)


def test_functions_along_axes() -> None:
    close(
        jnp.apply_over_axes(lambda x, axis: jnp.sum(x, axis), ours(B), (0, 2)),
        np.apply_over_axes(np.sum, B, (0, 2)),
    )
    places = np.sort(W)
    close(jnp.gradient(ours(X), ours(places), axis=1), np.gradient(X, places, axis=1, edge_order=1))
    rows, columns = jnp.mask_indices(3, jnp.triu, 1)
    expected = np.mask_indices(3, np.triu, 1)
    assert rows.tolist() == expected[0].tolist() and columns.tolist() == expected[1].tolist()


def test_indices_of_other_types() -> None:
    class Third:
        def __index__(self) -> int:
            return 2

    x = ours(X)
    close(x[np.int64(1), Third()], X[1, 2])
    close(x[jnp.array([2, 0], dtype="uint8")], X[[2, 0]])
    close(x.at[0].set(jnp.ones((1, 1, 4))), np.concatenate([np.ones((1, 4), np.float32), X[1:]]))
    close(x.at[jnp.array([0, 9])].get(fill_value=7.0)[1], np.full(4, 7, np.float32))
    nothing = jnp.ones((0, 2)).at[jnp.array([1])].get(mode="fill", fill_value=3.0)
    assert nothing.tolist() == [[3.0, 3.0]]
    assert jnp.zeros((0, 2)).at[jnp.array([1])].set(1.0, mode="drop").shape == (0, 2)
    assert repr(jnp.arange(2).at).startswith("At(Array(")
    assert repr(jnp.frompyfunc(jnp.add, 2, 1)) == "<ufunc 'add'>"
    mask = np.array([True, False])
    close(ours(B)[..., :2][..., mask], B[..., :2][..., mask])


def test_set_operations_of_fixed_size() -> None:
    a, b = ours(S), jnp.array([7, 3, 9])
    both, i, j = jnp.intersect1d(a, b, return_indices=True, size=3, fill_value=-1)
    assert both.tolist() == [3, 7, -1]
    assert S[np.asarray(i)[:2]].tolist() == [3, 7] and i.tolist()[2] == S.size
    assert [[7, 3, 9][k] for k in j.tolist()[:2]] == [3, 7] and j.tolist()[2] == 3
    either = jnp.setxor1d(a, b, size=4, fill_value=-1)
    assert either.tolist() == [1, 2, 9, -1]


def test_vectorize_over_nothing() -> None:
    got = jnp.vectorize(jnp.add, signature="(n),(n)->(n)")(jnp.ones((0, 2)), jnp.ones(2))
    assert got.shape == (0, 2)


def test_deleted_arrays_say_so() -> None:
    x = jnp.ones(2)
    x.delete()
    assert repr(x) == "Array(f32[2], deleted)"
    assert jnp.ones(2).view() is not None and (jnp.ones(2) > 0).view("int8").tolist() == [1, 1]
    assert jnp.ones(2).to_device("cpu").tolist() == [1, 1]


# ---- what is refused ----

O, F = jnp.ones, gf.jit
REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: jnp.zeros((2, -1)), ValueError, "cannot have negative lengths"),
    (lambda: jnp.array([[1, 2], [3]]), ValueError, "nested sequences are ragged"),
    (lambda: jnp.array([O(2), O(3)]), ValueError, "of one sequence differ in shape"),
    (lambda: jnp.array(["a"]), TypeError, "'a' of type str is not a number"),
    (lambda: jnp.asarray([1], copy=False), ValueError, "copy=False"),
    (lambda: jnp.full(2, 300, "uint8"), OverflowError, "300 is out of bounds for uint8"),
    (
        lambda: gf.device_put(O(2), gf.cpu()).__cuda_array_interface__,
        AttributeError,
        "no __cuda_array_interface__",
    ),
    # shapes
    (lambda: jnp.reshape(O(4)), TypeError, "reshape needs a shape"),
    (lambda: jnp.reshape(O(4), (2, 2), "A"), ValueError, "order must be"),
    (lambda: jnp.reshape(O(4), (-1, -1)), ValueError, "may have one -1"),
    (lambda: jnp.reshape(O(4), (3, -1)), ValueError, "has 4 elements, which"),
    (lambda: jnp.transpose(O((2, 2)), (0,)), ValueError, "does not name all axes"),
    (lambda: jnp.matrix_transpose(O(2)), ValueError, "at least 2 dimensions"),
    (lambda: jnp.moveaxis(O((2, 2)), (0, 1), 0), ValueError, "2 sources but 1 destinations"),
    (lambda: jnp.concatenate([O(()), O(())]), ValueError, "scalars cannot be joined"),
    (lambda: jnp.concatenate([O((2, 2)), O((2, 3))]), ValueError, r"\[2,2\]"),
    (lambda: jnp.concatenate(3), TypeError, "takes a sequence of arrays, got int"),
    (lambda: jnp.concatenate([]), ValueError, "needs at least one array"),
    (lambda: jnp.stack([O(2), O(3)]), ValueError, "stack: shapes differ"),
    (lambda: jnp.split(O(5), 2), ValueError, "does not divide into 2"),
    (lambda: jnp.array_split(O(5), 0), ValueError, "must be positive, got 0"),
    (lambda: jnp.unstack(O(())), ValueError, "unstack needs at least one dimension"),
    (lambda: jnp.roll(O((2, 2)), (1, 2, 3), (0, 1)), ValueError, "3 shifts for 2 axes"),
    (lambda: jnp.repeat(O(3), [1, 2]), ValueError, "repeats for 3 elements along axis 0"),
    (lambda: F(lambda n: jnp.repeat(O(3), n))(jnp.array([1, 2, 0])), TypeError, "traced"),
    (lambda: jnp.pad(O(2), -1), ValueError, "widths must not be negative"),
    (lambda: jnp.pad(O(2), 1, lambda *_: None), TypeError, "a function as mode"),
    (lambda: jnp.pad(O(2), 1, "round"), ValueError, "unknown mode 'round'; there are constant"),
    (lambda: jnp.pad(O(2), 1, "edge", stat_length=2), ValueError, "'edge' takes no stat_length="),
    (lambda: jnp.pad(O((2, 2)), [1, 2, 3]), ValueError, "has 3 entries for 2 axes"),
    (lambda: jnp.pad(O(0), 1, "edge"), ValueError, "is empty, so mode 'edge' has no values"),
    # reductions
    (lambda: jnp.sum(O(2), out=O(())), TypeError, "there is no out="),
    (lambda: jnp.average(O((2, 3)), weights=O(3)), TypeError, "name an axis"),
    (lambda: jnp.average(O((2, 3)), 0, O(3)), ValueError, "do not fit axes"),
    (lambda: jnp.var(O(2), ddof=1, correction=1), ValueError, "not both"),
    (lambda: jnp.var(jnp.array(Z), dtype="float32"), ValueError, "needs a complex dtype"),
    (lambda: jnp.max(O(2), where=O(2) > 0), ValueError, "where= needs initial="),
    (lambda: jnp.argmax(O((0,))), ValueError, "argmax of nothing"),
    (lambda: jnp.cumulative_sum(O(())), ValueError, "needs at least one dimension"),
    (lambda: jnp.cumulative_sum(O((2, 2))), ValueError, "name the axis"),
    # sorting and selection
    (lambda: jnp.sort(O(2), kind="mergesort"), ValueError, "the order is always stable"),
    (lambda: jnp.lexsort(()), TypeError, "at least one key"),
    (lambda: jnp.searchsorted(O(2), 1.0, "middle"), ValueError, 'must be "left" or "right"'),
    (lambda: jnp.searchsorted(O((2, 2)), 1.0), ValueError, "must be a vector"),
    (lambda: jnp.take(O(3), O(2)), TypeError, "indices must be integers"),
    (lambda: jnp.take(O(0), 1, mode="wrap"), IndexError, "is empty"),
    (lambda: jnp.take_along_axis(O(3), O(3), 0), TypeError, "indices must be integers"),
    (lambda: jnp.take_along_axis(O((3, 3)), jnp.arange(3), 0), ValueError, "differ in dimensions"),
    (lambda: jnp.take_along_axis(O((3, 3)), jnp.zeros((2, 2), "int32"), 0), ValueError, "axis 1"),
    (lambda: jnp.put(O(3), 0, 1), ValueError, "pass inplace=False"),
    (lambda: jnp.place(O(3), O(2), 1, inplace=False), ValueError, "differ in size"),
    (lambda: jnp.fill_diagonal(O(3), 1, inplace=False), ValueError, "at least 2 dimensions"),
    (lambda: jnp.fill_diagonal(O((2, 2, 3)), 1, inplace=False), ValueError, "one length"),
    (lambda: jnp.nonzero(O(())), ValueError, r"use atleast_1d\(x\)"),
    (lambda: F(jnp.nonzero)(O(3)), TypeError, "give size="),
    (lambda: jnp.nonzero(O((2, 2)), size=2, fill_value=(1,)), ValueError, "1 fill values for 2"),
    (lambda: jnp.where(O(2) > 0, 1), ValueError, "or both x and y"),
    (lambda: jnp.compress(O((2, 2)), O(2)), ValueError, "must be a vector"),
    (lambda: jnp.choose(jnp.arange(2), [O(2)], mode="fold"), ValueError, "mode 'fold' is none of"),
    # statistics and positions
    (lambda: jnp.cov(O((2, 2, 2))), ValueError, "cov takes vectors or matrices"),
    (lambda: jnp.convolve(O((2, 2)), O(2)), ValueError, "convolve takes vectors"),
    (lambda: jnp.convolve(O(2), O(0)), ValueError, "neither vector may be empty"),
    (lambda: jnp.correlate(O(2), O(2), "half"), ValueError, "mode 'half' is none of"),
    (lambda: jnp.interp(1.0, O(2), O(3)), ValueError, "must be vectors of one length"),
    (lambda: jnp.diff(O(())), ValueError, "at least one dimension"),
    (lambda: jnp.diff(O(2), -1), ValueError, "must not be negative"),
    (lambda: jnp.gradient(O(3), edge_order=2), ValueError, "only edge_order=1"),
    (lambda: jnp.gradient(O((3, 3)), 1.0, 2.0, 3.0), TypeError, "3 spacings for 2 axes"),
    (lambda: jnp.gradient(O(1)), ValueError, "needs at least 2 elements"),
    (lambda: jnp.diag_indices_from(O((2, 3))), ValueError, "axes of one length"),
    (lambda: jnp.ravel_multi_index((1,), (2, 3)), ValueError, "1 indices for 2 axes"),
    (lambda: jnp.ravel_multi_index((1, 1), (2, 3), "fold"), ValueError, "mode 'fold' is none of"),
    (lambda: jnp.ravel_multi_index((5, 1), (2, 3)), ValueError, r"an index outside \[0, 2\)"),
    (lambda: jnp.isdtype("int8", "whole"), ValueError, "'whole' is none of"),
    # linear algebra
    (lambda: jnp.linalg.svd(O(2)), ValueError, "svd takes matrices"),
    (lambda: jnp.linalg.det(O((2, 3))), ValueError, "det takes square matrices"),
    (lambda: jnp.linalg.norm(O(2), "fro"), ValueError, "a norm of matrices, not of vectors"),
    (lambda: jnp.linalg.norm(O((2, 2, 2)), 2, (0, 1, 2)), ValueError, "one or two axes"),
    (lambda: jnp.linalg.matrix_norm(O((2, 2)), ord=5), ValueError, "5 is none of 'fro'"),
    (lambda: jnp.linalg.qr(O((2, 2)), "thin"), ValueError, "mode 'thin' is none of"),
    (lambda: jnp.linalg.eigh(O((2, 2)), "M"), ValueError, 'UPLO must be "L" or "U"'),
    (lambda: jnp.linalg.solve(O((2, 3)), O(2)), ValueError, "solve takes square matrices"),
    (lambda: jnp.linalg.solve(O((2, 2)), O(3)), ValueError, "differ in rows"),
    (lambda: jnp.linalg.lstsq(O((2, 2)), O(3)), ValueError, "a matrix and right-hand sides"),
    (lambda: jnp.linalg.matrix_power(O((2, 3)), 2), ValueError, "takes square matrices"),
    (lambda: jnp.linalg.multi_dot([O(2)]), ValueError, "at least two arrays"),
    (lambda: jnp.linalg.outer(O((2, 2)), O(2)), ValueError, "outer takes vectors"),
    (lambda: jnp.linalg.cross(O(2), O(2)), ValueError, "vectors of length 3"),
    (lambda: jnp.linalg.tensorsolve(O((2, 3)), O(2)), ValueError, "is not square for"),
    (lambda: jnp.linalg.tensorinv(O((2, 2)), 0), ValueError, "ind must be positive"),
    (lambda: jnp.linalg.tensorinv(O((2, 3)), 1), ValueError, "is not square when split"),
    # products and transforms
    (lambda: jnp.matmul(O(()), O(2)), ValueError, r"scalars are multiplied by \*"),
    (
        lambda: jnp.matmul(O((2, 2, 2)), O((3, 2, 2))),
        ValueError,
        r"batches \(2,\) and \(3,\) differ",
    ),
    (lambda: jnp.dot(O(2), O(3)), ValueError, "dot"),
    (lambda: jnp.tensordot(O(2), O((2, 2)), 2), ValueError, "fewer than 2 axes"),
    (lambda: jnp.tensordot(O(2), O(3), 1), ValueError, r"lengths \[2\] and \[3\] differ"),
    (lambda: jnp.vecdot(O(2), O(3)), ValueError, "lengths differ along axis -1"),
    (lambda: jnp.cross(O(4), O(4)), ValueError, "must have 2 or 3 components"),
    (lambda: jnp.diag(O((2, 2, 2))), ValueError, "takes a vector or a matrix"),
    (lambda: jnp.einsum("i,i", O(2), "x"), TypeError, "takes arrays after the subscripts"),
    (lambda: jnp.einsum("i1,i", O((2, 2)), O(2)), ValueError, "does not name the 2 axes"),
    (lambda: jnp.einsum("i->ii", O(2)), ValueError, "'ii' repeats or invents an index"),
    (lambda: jnp.einsum("ii", O((2, 3))), ValueError, "repeated index 'i' has two lengths"),
    (lambda: jnp.fft.fft(O(2), norm="half"), ValueError, "norm 'half' is none of"),
    (lambda: jnp.fft.rfft(jnp.array(Z)), TypeError, "rfft takes real numbers"),
    (lambda: jnp.fft.fft(O(2), 0), ValueError, "must be positive, got 0"),
    (lambda: jnp.fft.fftn(O((2, 2)), (2,), (0, 1)), ValueError, "1 lengths for 2 axes"),
    (lambda: jnp.fft.rfft(O((0,))), ValueError, r"of length \[0\]"),
    # grids
    (lambda: jnp.arange(0, 1, 0), ZeroDivisionError, "step must not be 0"),
    (lambda: jnp.linspace(0, 1, -1), ValueError, "num must not be negative"),
    (lambda: jnp.tril(O(2)), ValueError, "tril takes at least 2 dimensions"),
    (lambda: jnp.meshgrid(O(2), indexing="yx"), ValueError, 'must be "xy" or "ij"'),
    (lambda: jnp.meshgrid(O((2, 2))), ValueError, "meshgrid takes vectors"),
    (lambda: jnp.ix_(O((2, 2))), ValueError, "ix_ takes vectors"),
    (lambda: jnp.vander(O((2, 2))), ValueError, "vander takes a vector"),
    (lambda: jnp.vander(O(2), -1), ValueError, "must not be negative"),
    (lambda: jnp.r_["0,2", O(2)], ValueError, "directives such as '0,2'"),
    # elements
    (lambda: jnp.divmod(jnp.array(Z), 2), TypeError, "divmod takes real numbers"),
    (lambda: jnp.power(jnp.arange(3), -1), ValueError, "use floats"),
    (lambda: jnp.clip(jnp.array(Z), 0, 1), ValueError, "complex numbers have no order"),
    (lambda: jnp.ldexp(O(2), O(2)), ValueError, "the exponent must be an integer"),
    (lambda: jnp.gcd(O(2), O(2)), ValueError, "gcd takes integers"),
    (lambda: jnp.where(O(2) > 0, O(3), O(3)), ValueError, "do not broadcast to one shape"),
    (lambda: jnp.select([O(2) > 0], [1, 2]), ValueError, "1 conditions for 2 choices"),
    (lambda: jnp.select([], []), ValueError, "must be non-empty"),
    (lambda: jnp.piecewise(O(2), [O(2) > 0], []), ValueError, "1 conditions take 1 functions"),
    (lambda: pow(O(2), 2, 3), TypeError, "takes no third argument"),
    (lambda: np.array(O(2), "int8", copy=False), ValueError, "without a copy"),
    (lambda: O(()).view("int8"), ValueError, "has no last axis to change"),
    (lambda: O(3).view("float64"), ValueError, "does not divide into float64"),
    # sets and counts
    (lambda: jnp.bincount(O(2)), TypeError, "takes a vector of integers"),
    (lambda: F(jnp.bincount)(jnp.arange(3)), TypeError, "give length="),
    (lambda: jnp.bincount(jnp.arange(3), O(2)), ValueError, "weights .* do not fit"),
    (lambda: jnp.digitize(1.0, O((2, 2))), ValueError, "bins must be a vector"),
    (lambda: jnp.histogram(O(2), "auto"), ValueError, "must be a number or edges"),
    (lambda: jnp.result_type(), ValueError, "at least one operand"),
    (lambda: jnp.add([1], 2), TypeError, "got a list; make an array"),
    # indexing
    (lambda: O((0, 2))[jnp.array([1])], IndexError, "which is empty"),
    (lambda: O((0, 2)).at[jnp.array([1])].set(1.0), IndexError, "which is empty"),
    (lambda: O(2).at[0].set(1j), TypeError, "complex values do not fit"),
    # vectorize
    (lambda: jnp.vectorize(np.add, signature="(n)")(O(2)), ValueError, "needs the form"),
    (lambda: jnp.vectorize(np.add, signature="(n)->()")(O(2), 1), TypeError, "takes 1 arguments"),
    (lambda: jnp.vectorize(abs, signature="(n,m)->()")(O(2)), ValueError, "lacks the axes"),
    (lambda: jnp.vectorize(abs, signature="(n)->()")(O(2)), ValueError, "the result .* lacks"),
    (lambda: jnp.vectorize(jnp.add, signature="(n),(n)->(n)")(O(2), O(3)), ValueError, "elsewhere"),
    (lambda: jnp.frompyfunc(jnp.add, 2, 1)(O(2)), TypeError, "takes 2 arguments, got 1"),
    (lambda: jnp.frompyfunc(abs, 1, 1).reduce(O(2)), ValueError, "two arguments and one result"),
    (lambda: jnp.frompyfunc(jnp.add, 2, 1).reduce(O(0)), ValueError, "needs initial="),
]


@pytest.mark.parametrize("use, kind, message", REFUSALS, ids=[r[2] for r in REFUSALS])
def test_refusals(use: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()


def test_the_number_that_pads_is_that_of_the_call() -> None:
    for fill in (0.0, 2.0, -1.5):
        padded = jnp.pad(O(2), 1, constant_values=fill)
        assert np.asarray(padded).tolist() == [fill, 1.0, 1.0, fill]


def test_the_amount_of_a_shift_is_that_of_the_call() -> None:
    x = jnp.asarray(np.array([1, -8], np.int32))
    for shift, wanted in (
        (elementwise.shift_left, [[8, -64], [0, 0]]),
        (elementwise.shift_right_arithmetic, [[0, -1], [0, -1]]),
        (elementwise.shift_right_logical, [[0, 2**29 - 1], [0, 0]]),
    ):
        assert [np.asarray(shift(x, n)).tolist() for n in (3, 40)] == wanted
