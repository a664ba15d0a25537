"""Products of integers and booleans on CUDA: exact, wrapped in the width of the result, against
NumPy's arithmetic of Python integers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from test_every_primitive import run

from genesis_fn.core.device import cuda
from genesis_fn.core.dtypes import BOOL, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from genesis_fn.core.primitive import PRIMITIVES
from genesis_fn.kernels.matmul import ragged
from genesis_fn.primitives.conv import ConvDimensionNumbers

INTEGERS = (I8, I16, I32, I64, U8, U16, U32, U64)
EVERY = (BOOL, *INTEGERS)
PRODUCT = {"precision": "default", "preferred_element_type": None}
MATRICES = {**PRODUCT, "dimension_numbers": (((1,), (0,)), ((), ()))}


def whole(shape: tuple[int, ...], kind: DType, seed: int) -> np.ndarray:
    """Integers of the whole range."""
    rng = np.random.default_rng([seed, *shape])
    if kind == BOOL:
        return rng.random(shape) < 0.3
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)


def as_python(x: np.ndarray) -> np.ndarray:
    return np.vectorize(int, otypes=[object])(x)


def wrapped(x: np.ndarray, kind: DType) -> np.ndarray:
    """Python integers in a dtype: modulo the power of two, and true where they are not 0."""
    if kind == BOOL:
        return (x != 0).astype(bool)
    if kind.kind == "f":
        return x.astype(np.float64).astype(kind)
    bits = np.array(x % (1 << 8 * kind.itemsize), f"u{kind.itemsize}")
    return bits.astype(kind)


def on_gpu(name: str, xs: list[np.ndarray], params: dict[str, Any]) -> np.ndarray:
    (out,) = run(PRIMITIVES[name], xs, params, cuda())
    assert out.device is cuda()
    return np.asarray(out)


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Equal, or to the last places of a float."""
    assert got.dtype == want.dtype, what
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want, err_msg=what)
    else:
        bound = 16 * np.finfo(want.dtype).eps
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound * np.abs(want).max())


# ---- products of matrices ----


def dots() -> list[tuple[DType, DType, DType | None]]:
    """(left, right, preferred): each dtype alone, with each wider or narrower result, and pairs."""
    alone = [(k, k, None) for k in EVERY]
    asked = [(BOOL, BOOL, I32), (I8, I8, I32), (U8, U8, I64), (I64, I64, I32), (U32, U32, U64)]
    floats = [(BOOL, BOOL, F32), (I8, I8, F32), (I32, I32, F32), (U64, U64, F64), (U16, U16, F64)]
    pairs = [(I8, U8, None), (U16, I8, None), (I32, U32, None), (U8, U64, None)]
    return alone + asked + floats + pairs


@pytest.mark.parametrize("left, right, asked", dots(), ids=str)
def test_products_are_exact(left, right, asked):
    params = {**MATRICES, "preferred_element_type": asked}
    for m, k, n in ((5, 37, 19), (1, 64, 3)):
        x, y = whole((m, k), left, 0), whole((k, n), right, 1)
        got = on_gpu("dot_general", [x, y], params)
        same(got, wrapped(as_python(x) @ as_python(y), got.dtype), f"{left} {right} -> {asked}")


def test_products_of_booleans_are_any_of_and():
    """Of as many true products as wrap in 8 and 16 bits, of batches, of other layouts, of none."""
    x = np.ones((3, 1 << 16), bool)
    x[1] = False
    assert (
        on_gpu("dot_general", [x, x.T.copy()], MATRICES).tolist()
        == np.outer(x[:, 0], x[:, 0]).tolist()
    )
    a, b = whole((4, 6, 40), BOOL, 2), whole((40, 4, 9), BOOL, 3)
    numbers = (((2,), (0,)), ((0,), (1,)))
    want = np.einsum("bik,kbj->bij", a.astype(int), b.astype(int)) > 0
    np.testing.assert_array_equal(
        on_gpu("dot_general", [a, b], {**MATRICES, "dimension_numbers": numbers}), want
    )
    nothing = on_gpu("dot_general", [np.ones((2, 0), bool), np.ones((0, 3), bool)], MATRICES)
    assert nothing.dtype == BOOL and not nothing.any()


# ---- convolutions ----

PLAIN = ConvDimensionNumbers(*[tuple(range(4))] * 3)
LAST = ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strides": {"window_strides": (2, 3)},
    "padding": {"padding": ((2, 1), (0, 3))},
    "cropped": {"padding": ((-1, 0), (1, -2))},
    "dilated": {"rhs_dilation": (2, 1), "padding": ((1, 1), (1, 1))},
    "transposed": {"lhs_dilation": (2, 3), "padding": ((1, 2), (2, 1))},
    "groups": {"feature_group_count": 2},
    "batch groups": {"batch_group_count": 2},
    "channels last": {"dimension_numbers": LAST},
}


def convolved(x: np.ndarray, w: np.ndarray, p: dict[str, Any]) -> np.ndarray:
    """The convolution of Python integers, by its definition."""
    lhs, rhs, out = p["dimension_numbers"]
    x, w = as_python(x).transpose(lhs), as_python(w).transpose(rhs)
    groups, batches = p["feature_group_count"], p["batch_group_count"]
    steps, gaps, taps = p["window_strides"], p["lhs_dilation"], p["rhs_dilation"]
    spread = [(n - 1) * g + 1 for n, g in zip(x.shape[2:], gaps)]
    ends = [max(low, 0) + n + max(high, 0) for (low, high), n in zip(p["padding"], spread)]
    wide = np.zeros((*x.shape[:2], *ends), object)
    places = [slice(max(low, 0), max(low, 0) + n, g)
              for (low, _), n, g in zip(p["padding"], spread, gaps)]  # fmt: skip
    wide[:, :, places[0], places[1]] = x
    kept = [slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(p["padding"], ends)]
    wide = wide[:, :, kept[0], kept[1]]
    reach = [t * (k - 1) + 1 for t, k in zip(taps, w.shape[2:])]
    sizes = [(n - r) // s + 1 for n, r, s in zip(wide.shape[2:], reach, steps)]
    count, features, channels = x.shape[0] // batches, w.shape[0], w.shape[1]
    y = np.zeros((count, features, *sizes), object)
    per_group = features // (groups * batches)
    for feature, i, j in itertools.product(range(features), *map(range, sizes)):
        group = feature // per_group
        rows = wide[group * count :][:count] if batches > 1 else wide
        first = group * channels if groups > 1 else 0
        at = [slice(s * o, s * o + r, t) for s, o, r, t in zip(steps, (i, j), reach, taps)]
        window = rows[:, first : first + channels, at[0], at[1]]
        y[:, feature, i, j] = (window * w[feature]).sum((1, 2, 3))
    return y.transpose(np.argsort(out))


def convolution(
    kind: DType, option: str, asked: DType | None = None
) -> tuple[list[np.ndarray], dict[str, Any]]:
    one = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1)}
    one |= {"rhs_dilation": (1, 1), "feature_group_count": 1, "batch_group_count": 1}
    params = {**one, **PRODUCT, "dimension_numbers": PLAIN, **OPTIONS[option]}
    params["preferred_element_type"] = asked
    x_shape, w_shape = (2, 4, 5, 4), (4, 4 // params["feature_group_count"], 3, 2)
    lhs, rhs, _ = params["dimension_numbers"]
    x = whole(tuple([x_shape[lhs.index(d)] for d in range(4)]), kind, 4)
    w = whole(tuple([w_shape[rhs.index(d)] for d in range(4)]), kind, 5)
    return [x, w], params


@pytest.mark.parametrize("option", OPTIONS)
def test_convolutions_are_exact(option):
    for kind in EVERY if option == "plain" else (BOOL, I8, U32, I64):
        xs, params = convolution(kind, option)
        got = on_gpu("conv_general_dilated", xs, params)
        same(got, wrapped(convolved(*xs, params), kind), f"{kind} {option}")


@pytest.mark.parametrize(
    "kind, asked", [(I8, I32), (U8, U64), (I64, I16), (BOOL, I32), (U16, F32), (I32, F64)], ids=str
)
def test_convolutions_in_another_dtype(kind, asked):
    xs, params = convolution(kind, "strides", asked)
    got = on_gpu("conv_general_dilated", xs, params)
    same(got, wrapped(convolved(*xs, params), asked), f"{kind} -> {asked}")


def test_long_sums_of_a_convolution_are_split():
    """As those of a kernel's gradient are: a second launch adds the partial sums."""
    numbers = ConvDimensionNumbers(*[(0, 1, 2)] * 3)
    params = {
        "window_strides": (1,), "padding": ((0, 0),), "lhs_dilation": (1,), "rhs_dilation": (1,),
        "feature_group_count": 1, "batch_group_count": 1, "dimension_numbers": numbers, **PRODUCT,
    }  # fmt: skip
    for kind in (I8, U64):
        x, w = whole((2, 1, 1200), kind, 6), whole((3, 1, 1198), kind, 7)
        got = on_gpu("conv_general_dilated", [x, w], params)
        sums = [[[sum(as_python(x[n, 0, i : i + 1198]) * as_python(w[o, 0])) for i in range(3)]
                 for o in range(3)] for n in range(2)]  # fmt: skip
        same(got, wrapped(np.array(sums, object), kind), str(kind))


# ---- products of groups of rows ----


@pytest.mark.parametrize(
    "left, right, asked",
    [*[(k, k, None) for k in EVERY], (I8, U8, None), (I16, I16, I64), (I32, I32, F32)],
    ids=str,
)
def test_products_of_groups_are_exact(left, right, asked):
    sizes = np.array([3, 0, 7], np.int32)
    options = {**PRODUCT, "preferred_element_type": asked}
    x, w, y = whole((12, 9), left, 8), whole((3, 9, 5), right, 9), whole((12, 5), right, 10)
    rows = [slice(0, 3), slice(3, 3), slice(3, 10)]
    got = on_gpu("ragged_dot", [x, w, sizes], {**options, "rhs_transposed": False})
    want = np.zeros((12, 5), object)
    for group, at in enumerate(rows):
        want[at] = as_python(x[at]) @ as_python(w[group])
    same(got, wrapped(want, got.dtype), f"ragged_dot {left} {right}")
    got = on_gpu("ragged_contraction", [x, y, sizes], options)
    sums = [as_python(x[at]).T @ as_python(y[at]) for at in rows]
    same(got, wrapped(np.array(sums, object).reshape(3, 9, 5), got.dtype), "ragged_contraction")


@pytest.mark.parametrize("kind, turned", [(F32, False), (I8, True)], ids=str)
def test_more_groups_than_a_program_holds(kind, turned, monkeypatch):
    """Their ends are looked up in memory: with rows of no group, groups of no rows, and batches."""
    monkeypatch.setattr(ragged, "MAX_GROUPS", 4)
    rng = np.random.default_rng(11)
    sizes = np.zeros((2, 1100), np.int64)
    sizes[0, 30:80], sizes[1, ::50] = rng.integers(0, 3, 50), 1
    whole_numbers = lambda *shape: rng.integers(-5, 6, shape).astype(kind)
    x, w, y = whole_numbers(2, 40, 9), whole_numbers(2, 1100, 9, 5), whole_numbers(2, 40, 5)
    given = w.swapaxes(-1, -2).copy() if turned else w
    got = on_gpu("ragged_dot", [x, given, sizes], {**PRODUCT, "rhs_transposed": turned})
    sums = on_gpu("ragged_contraction", [x, y, sizes[:, :60]], PRODUCT)
    assert got.dtype == sums.dtype == kind
    want, added = np.zeros(got.shape), np.zeros(sums.shape)
    for b in range(2):
        group = np.repeat(np.arange(1100), sizes[b])[:40]
        rows = x[b, : group.size].astype(float)
        want[b, : group.size] = np.einsum("rk,rkn->rn", rows, w[b, group].astype(float))
        outer = np.einsum("rk,rn->rkn", rows, y[b, : group.size].astype(float))
        np.add.at(added[b], group[group < 60], outer[group < 60])
    for found, wanted in ((got, want), (sums, added)):
        np.testing.assert_array_equal(found, wanted.astype(np.int64).astype(kind))
