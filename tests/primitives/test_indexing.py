"""Dynamic slices, gather, scatter, rows and segments against JAX; errors of indexing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax as jlax

from genesis_fn.core import dtypes, errors
from genesis_fn.core.device import default_device
from genesis_fn.core.primitive import typeof
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.indexing import gather as G, indexing as I, scatter as S
from genesis_fn.transforms.staging.stage_trace import stage
from tests.primitives.check import (
    assert_same,
    check,
    check_batched,
    check_derivatives,
    check_dtypes,
    check_numeric,
    check_staged,
    check_value,
    random,
    to_array,
    to_numpy,
)
from tests.support.late import raises

A = random((4, 5, 3))


def i32(*values):
    return np.array(values[0] if len(values) == 1 else values, np.int32)


# ---- dynamic slices ----


@pytest.mark.parametrize("start", [(0, 1, 2), (3, 4, 1), (-1, -3, 0), (99, -99, 2)])
def test_dynamic_slice(start):
    starts = [i32(s) for s in start]
    scalars = [[i32(s + k) for s in start] for k in range(3)]
    check(
        lambda x, *s: I.dynamic_slice(x, s, (2, 5, 1)),
        lambda x, *s: jlax.dynamic_slice(x, s, (2, 5, 1)),
        A,
        *starts,
        examples=[[random((4, 5, 3), seed=k), *scalars[k]] for k in range(3)],
    )
    check(
        lambda x, s: I.dynamic_slice(x, s, (1, 3, 2)),
        lambda x, s: jlax.dynamic_slice(x, s, (1, 3, 2)),
        A,
        i32(list(start)),
    )


@pytest.mark.parametrize("start", [(0, 1, 2), (3, 4, 1), (-1, -3, 0), (99, -99, 2)])
def test_dynamic_update_slice(start):
    starts = [i32(s) for s in start]
    examples = [
        [random((4, 5, 3), seed=k), random((2, 5, 1), seed=k), *[i32(s + k) for s in start]]
        for k in range(3)
    ]
    check(
        lambda x, u, *s: I.dynamic_update_slice(x, u, s),
        lambda x, u, *s: jlax.dynamic_update_slice(x, u, s),
        A,
        random((2, 5, 1), seed=8),
        *starts,
        examples=examples,
    )
    check(
        lambda x, u, s: I.dynamic_update_slice(x, u, s),
        lambda x, u, s: jlax.dynamic_update_slice(x, u, s),
        A,
        random((1, 3, 3), seed=8),
        i32(list(start)),
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_one_axis(axis):
    n = A.shape[axis]
    at = i32(1)
    examples = [[random(A.shape, seed=k), i32(k)] for k in range(3)]
    for name, args in (
        ("dynamic_slice_in_dim", (n - 1, axis)),
        ("dynamic_index_in_dim", (axis,)),
        ("dynamic_index_in_dim", (axis, False)),
    ):
        check(
            lambda x, i, name=name, args=args: getattr(I, name)(x, i, *args),
            lambda x, i, name=name, args=args: getattr(jlax, name)(x, i, *args),
            A,
            at,
            examples=examples,
        )
    shape = tuple([2 if i == axis % 3 else m for i, m in enumerate(A.shape)])
    index_shape = tuple([m for i, m in enumerate(A.shape) if i != axis % 3])
    for name, u in (
        ("dynamic_update_slice_in_dim", random(shape, seed=3)),
        ("dynamic_update_index_in_dim", random(index_shape, seed=3)),
    ):
        check(
            lambda x, u, i, name=name: getattr(I, name)(x, u, i, axis),
            lambda x, u, i, name=name: getattr(jlax, name)(x, u, i, axis),
            A,
            u,
            at,
            examples=[[random(A.shape, seed=k), random(u.shape, seed=k), i32(k)] for k in range(3)],
        )


def test_integer_starts_are_static():
    def f(x, s):
        return [
            I.dynamic_slice(x, (1, -2, 7), (2, 2, 3)),
            I.dynamic_slice(x, (1, s, 0), (4, 2, 3)),
            I.dynamic_index_in_dim(x, np.int64(-1), 1),
        ]

    x, s = to_array(A), to_array(i32(1))
    program, _ = stage(f, [typeof(x), typeof(s)])
    assert [e.prim.name for e in program.eqns] == ["slice", "dynamic_slice", "slice"]
    assert program.eqns[1].ins[1] == 0 and program.eqns[1].ins[3] == 0
    expected = [
        jlax.dynamic_slice(A, (1, -2, 7), (2, 2, 3)),
        jlax.dynamic_slice(A, (1, 1, 0), (4, 2, 3)),
        jlax.dynamic_index_in_dim(A, -1, 1),
    ]
    for a, e in zip(f(x, s), expected):
        assert_same(a, e)
    same = I.dynamic_slice(x, (0, -1, 0), (4, 2, 3), allow_negative_indices=False)
    assert_same(same, A[:, :2])
    below = to_array(i32(-2))
    same = I.dynamic_slice(x, (0, below, 0), (4, 2, 3), allow_negative_indices=[True, False, True])
    assert_same(same, A[:, :2])
    assert_same(I.dynamic_slice(x, (0, below, 0), (4, 2, 3)), A[:, 3:])


@pytest.mark.parametrize("kind", dtypes.INTEGERS, ids=str)
def test_start_dtypes(kind):
    x = random((200, 2))
    for value in {0, 5, 127, int(np.iinfo(kind).max), int(np.iinfo(kind).min)}:
        s = np.array(value).astype(kind)
        actual = I.dynamic_slice_in_dim(to_array(x), to_array(s), 3)
        at = value + 200 if value < 0 else value
        at = min(max(at, 0), 197)
        assert_same(actual, x[at : at + 3], str(value))


def test_dynamic_slices_of_every_dtype():
    check_dtypes(
        lambda x, s: I.dynamic_slice(x, (s, 1), (2, 2)),
        lambda x, s: jlax.dynamic_slice(x, (s, i32(1)), (2, 2)),
        lambda kind: [random((4, 3), kind), i32(1)],
    )
    check_dtypes(
        lambda x, u, s: I.dynamic_update_slice(x, u, (s, 1)),
        lambda x, u, s: jlax.dynamic_update_slice(x, u, (s, i32(1))),
        lambda kind: [random((4, 3), kind), random((2, 2), kind, seed=1), i32(1)],
    )


def test_dynamic_slices_of_nothing_and_of_scalars():
    x = to_array(random(()))
    assert I.dynamic_slice(x, (), ()) is x
    check_value(
        lambda x, u: I.dynamic_update_slice(x, u, ()),
        lambda x, u: jlax.dynamic_update_slice(x, u, ()),
        random(()),
        random((), seed=1),
    )
    check(
        lambda x, s: I.dynamic_slice(x, (s, 0), (2, 0)),
        lambda x, s: jlax.dynamic_slice(x, (s, i32(0)), (2, 0)),
        random((3, 0)),
        i32(1),
        examples=[[random((3, 0)), i32(k)] for k in range(3)],
    )


def test_the_operand_of_an_update_is_kept():
    x = to_array(A)
    I.dynamic_update_slice(x, to_array(random((1, 1, 1))), (to_array(i32(0)), 0, 0))
    assert_same(x, A)


# ---- gather and scatter against JAX's derivatives ----

# name: operand shape, indices, dimension numbers, window sizes, indices that repeat none
FORMS = {
    "rows": ((6, 3), i32([[1], [4], [1]]), ((1,), (0,), (0,)), (1, 3)),
    "columns": ((3, 6), i32([[[1], [4]], [[1], [5]]]), ((0,), (1,), (1,)), (3, 1)),
    "elements": ((4, 5), i32([[1, 4], [3, 0], [1, 4]]), ((), (0, 1), (0, 1)), (1, 1)),
    "swapped": ((4, 5), i32([[4, 1], [0, 3], [4, 1]]), ((), (0, 1), (1, 0)), (1, 1)),
    "windows": ((6, 3), i32([[1], [3], [2]]), ((1, 2), (), (0,)), (2, 3)),
    "one": ((6, 3), i32([2]), ((0,), (0,), (0,)), (1, 3)),
    "along": (
        (3, 4, 2), i32([[[1, 0], [2, 2]], [[0, 0], [1, 3]], [[3, 1], [2, 2]]])[..., None],
        ((), (1,), (1,), (0, 2), (0, 2)), (1, 1, 1),
    ),
    "batched rows": ((2, 4, 3), i32([[[1], [1]], [[0], [3]]]), ((2,), (1,), (1,), (0,), (0,)),
                     (1, 1, 3)),
    "partial": ((5, 4), i32([[1], [3]]), ((1,), (0,), (0,)), (1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_gather_derivatives(form, mode):
    shape, indices, numbers, sizes = FORMS[form]
    indices = indices.copy()
    indices[-1] += 2 if mode == "clip" else 5
    check(
        lambda x, i: G.gather(x, i, G.GatherDimensionNumbers(*numbers), sizes, mode=mode),
        lambda x, i: jlax.gather(x, i, jlax.GatherDimensionNumbers(*numbers), sizes, mode=mode),
        random(shape),
        indices,
    )


SCATTERS = ["scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max"]


@pytest.mark.parametrize(
    "form, name",
    [
        (f, n)
        for f in FORMS
        for n in SCATTERS
        if n[-3:] not in ("sub", "min") or f in ("one", "rows")
    ],
)
def test_scatter_derivatives(form, name):
    shape, indices, numbers, sizes = FORMS[form]
    x, g = random(shape), G.GatherDimensionNumbers(*numbers)
    u = random(to_numpy(G.gather(to_array(x), to_array(indices), g, sizes)).shape, seed=2)
    s, js = S.ScatterDimensionNumbers(*numbers), jlax.ScatterDimensionNumbers(*numbers)

    def f(x, i, u):
        return getattr(S, name)(x, i, u, s)

    def reference(x, i, u):
        return getattr(jlax, name)(x, i, u, js)

    if name == "scatter_mul":  # JAX has no derivative for repeated indices
        check_value(f, reference, x, indices, u)
        check_numeric(f, x, indices, u)
        check_batched(f, x, indices, u)
        if form == "along":
            check(
                lambda x, i, u: S.scatter_mul(x, i, u, s, unique_indices=True),
                lambda x, i, u: jlax.scatter_mul(x, i, u, js, unique_indices=True),
                x,
                indices[:, :1],
                u[:, :1],
            )
        return
    check(f, reference, x, indices, u)


def test_ties_of_scatter_max_are_shared():
    x = np.array([1.0, 2.0, 3.0])
    i, u = i32([[0], [0], [1], [2]]), np.array([5.0, 5.0, 2.0, 1.0])
    numbers = ((), (0,), (0,))
    check_derivatives(
        lambda x, i, u: S.scatter_max(x, i, u, S.ScatterDimensionNumbers(*numbers)),
        lambda x, i, u: jlax.scatter_max(x, i, u, jlax.ScatterDimensionNumbers(*numbers)),
        x,
        i,
        u,
        order=1,
    )


def test_scatter_mul_by_zeros():
    numbers = S.ScatterDimensionNumbers((), (0,), (0,))
    x, i = np.array([2.0, 3.0, 4.0]), i32([[0], [0], [1], [1], [2]])
    u = np.array([0.0, 5.0, 0.0, 0.0, 7.0])
    check_numeric(lambda x, i, u: S.scatter_mul(x, i, u, numbers), x, i, u)


def test_a_set_keeps_the_last_of_repeated_indices():
    numbers = S.ScatterDimensionNumbers((1,), (0,), (0,))
    i, u = i32([[1], [3], [1], [1]]), random((4, 2), seed=1)
    x = random((5, 2))
    expected = x.copy()
    expected[[1, 3]] = u[[3, 1]]
    assert_same(S.scatter(*map(to_array, (x, i, u)), numbers), expected)
    check_numeric(lambda x, i, u: S.scatter(x, i, u, numbers), x, i, u)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_sums_round_once(kind):
    """4096 times 1/4096 is lost at every step when a running sum of 1 is rounded to 16 bits."""
    n = 4096
    u, ids = np.full((n, 2), 1 / n).astype(kind), np.zeros((n, 1), np.int32)
    x = np.ones((3, 2)).astype(kind)
    numbers = S.ScatterDimensionNumbers((1,), (0,), (0,))
    out = S.scatter_add(to_array(x), to_array(ids), to_array(u), numbers)
    assert_same(out, np.array([[2, 2], [1, 1], [1, 1]]).astype(kind), exact=True)
    total = S.segment_sum(to_array(u), to_array(ids[:, 0]), 2)
    assert_same(total, np.array([[1, 1], [0, 0]]).astype(kind), exact=True)


def test_derivatives_of_low_precision_operands():
    numbers, jnumbers = ((1,), (0,), (0,)), jlax.GatherDimensionNumbers((1,), (0,), (0,))
    check_derivatives(
        lambda x, i: G.gather(x, i, G.GatherDimensionNumbers(*numbers), (1, 3)),
        lambda x, i: jlax.gather(x, i, jnumbers, (1, 3)),
        random((6, 3), ml_dtypes.bfloat16),
        i32([[1], [4], [2]]),
    )


# ---- rows and segments ----


@pytest.mark.parametrize("shape", [(7, 3), (7,), (7, 2, 3)])
@pytest.mark.parametrize("mode", ["check", "clip", "fill"])
def test_take_rows(shape, mode):
    table = random(shape)
    indices = i32([[1, 6, 1], [0, 2, 1]])
    if mode != "check":
        indices[0, 1], indices[1, 2] = 9, -2

    def reference(x, i):
        if mode == "clip":
            i = jnp.clip(i, 0, 6)
        rows = x[jnp.clip(i, 0, 6)]
        valid = ((i >= 0) & (i < 7)).reshape(*i.shape, *[1] * (x.ndim - 1))
        return jnp.where(valid, rows, 2.5)

    def f(x, i):
        return G.take_rows(x, i, mode=mode, fill_value=2.5)

    check(f, reference, table, indices)
    check_value(f, reference, table, i32(3))


@pytest.mark.parametrize("shape", [(6, 3), (6,), (2, 3), (2, 3, 4)])
def test_segment_sum(shape):
    ids = i32([0, 2, 2, 5, 0, 9]) if shape[0] == 6 else i32([[0, 2, 9], [2, -1, 0]])
    check(
        lambda x, i: S.segment_sum(x, i, 4),
        lambda x, i: (
            jnp.zeros((4, *x.shape[i.ndim :])).at[jnp.where(i < 0, 99, i)].add(x, mode="drop")
        ),
        random(shape),
        ids,
    )


def test_rows_and_segments_of_every_dtype():
    ids = i32([3, 0, 3, 1])
    check_dtypes(
        lambda x, i: G.take_rows(x, i), lambda x, i: x[i], lambda kind: [random((4, 2), kind), ids]
    )
    check_dtypes(
        lambda x, i: S.segment_sum(x, i, 4),
        lambda x, i: jax.ops.segment_sum(x.astype(_wide(x)), i, 4).astype(x.dtype),
        lambda kind: [random((4, 2), kind), ids],
    )


def _wide(x):
    small = dtypes.is_float(x.dtype) and x.dtype.itemsize < 4
    return jnp.float32 if small else jnp.int32 if x.dtype == bool else x.dtype


def test_rows_of_nothing():
    for table, i in [((3, 0), (4,)), ((0, 2), (0,)), ((3, 2), (0, 5))]:
        x, indices = random(table), np.zeros(i, np.int32)
        check_value(G.take_rows, lambda x, i: x[i], x, indices)
        check_staged(G.take_rows, x, indices)
    empty = S.segment_sum(to_array(random((0, 2))), to_array(np.zeros(0, np.int32)), 3)
    assert_same(empty, np.zeros((3, 2)))


def test_index_take():
    x = random((4, 5, 3))
    i, j = i32([0, -1, 7]), i32([2, 9, -3])
    for axes in [(0, 1), (2, 0), (1,)]:
        idxs = (i, j)[: len(axes)]
        check(
            lambda x, *i, axes=axes: G.index_take(x, i, axes),
            lambda x, *i, axes=axes: _taken(x, i, axes),
            x,
            *idxs,
        )


def _taken(x, idxs, axes):
    where = [slice(None)] * x.ndim
    for i, a in zip(idxs, axes):
        where[a] = i % x.shape[a]
    if len(axes) > 1 and axes == (2, 0):
        return x[where[0], :, where[2]]
    return jnp.moveaxis(x[tuple(where)], 1, 0) if axes == (1,) else x[tuple(where)]


def test_a_default_fill_marks_what_was_out_of_bounds():
    numbers = G.GatherDimensionNumbers((), (0,), (0,))
    for kind in dtypes.ALL:
        x = to_array(random((3,), kind))
        out = to_numpy(G.gather(x, to_array(i32([[5]])), numbers, (1,), mode="fill"))
        if dtypes.is_inexact(kind):
            assert np.isnan(out.astype(np.complex128)).all()
        elif kind == dtypes.BOOL:
            assert out.all()
        else:
            limits = dtypes.iinfo(kind)
            assert out[0] == (limits.max if dtypes.is_unsigned(kind) else limits.min)


# ---- views and memory ----


@pytest.mark.cpu
def test_slices_share_memory_and_updates_do_not():
    x = to_array(A)
    taken = I.dynamic_slice_in_dim(x, to_array(i32(1)), 2)
    assert taken.data.data_ptr() == x.data[1].data_ptr()
    numbers = G.GatherDimensionNumbers((0, 1), (0,), (0,))
    one = G.gather(x, to_array(i32([2])), numbers, (1, 5, 3))
    assert one.data.data_ptr() == x.data[2].data_ptr()
    for name in SCATTERS:
        out = getattr(S, name)(
            x,
            to_array(i32([2])),
            to_array(random((5, 3))),
            S.ScatterDimensionNumbers((0, 1), (0,), (0,)),
        )
        assert out.data.data_ptr() != x.data.data_ptr()
    assert_same(x, A)


# ---- errors ----


def test_an_index_out_of_range_names_axis_array_and_index():
    table = to_array(np.zeros((50257, 3), np.float32))
    with raises(IndexError, match=r"index 50257 out of range for axis 0 of f32\[50257,3\]"):
        G.take_rows(table, to_array(i32([1, 50257])))
    with raises(errors.IndexOutOfRange, match="at .*test_indexing.py:") as caught:
        G.gather(
            to_array(A),
            to_array(i32([[1, 1], [2, -4]])),
            G.GatherDimensionNumbers((1,), (0, 2), (0, 2)),
            (1, 5, 1),
            mode="check",
        )
    assert (caught.value.axis, caught.value.size, caught.value.index) == (2, 3, -4)
    with raises(IndexError, match="2 elements from index 3 out of range for axis 0"):
        G.gather(
            to_array(A),
            to_array(i32([[3]])),
            G.GatherDimensionNumbers((1, 2, 3), (), (0,)),
            (2, 5, 3),
        )
    with raises(IndexError, match="index 4 out of range for axis 0"):
        S.scatter_add(
            to_array(random((4,))),
            to_array(i32([[4]])),
            to_array(random((1,))),
            S.ScatterDimensionNumbers((), (0,), (0,)),
            mode="check",
        )
    with raises(IndexError, match="index 4 out of range for axis 0"):
        S.segment_sum(to_array(random((1,))), to_array(i32([4])), 4, mode="check")
    if default_device().kind == "cpu":  # a GPU computes nothing, and so checks nothing, of no rows
        with raises(IndexError, match="index -1"):
            G.take_rows(to_array(random((3, 0))), to_array(i32([-1])))


ROWS = ((1,), (0,), (0,))


@pytest.mark.parametrize(
    "numbers, sizes, indices, words",
    [
        (((0, 0), (), (0,)), (1, 3), (2, 1), "must not repeat"),
        (((1, 0), (), (0,)), (1, 3), (2, 1), "must be ascending"),
        (((5,), (0,), (0,)), (1, 3), (2, 1), r"must lie in \[0, 2\)"),
        (((1,), (0,), (0, 1)), (1, 3), (2, 1), "one entry for each of the 1 components"),
        (((1,), (0,), (2,)), (1, 3), (2, 1), r"start_index_map \(2,\) must lie in"),
        (((1,), (0,), (0,), (0,), (0,)), (1, 3), (2, 1), "overlap"),
        (((), (1,), (1,), (0,), (0,)), (1, 1), (2, 1), "as long as"),
        (ROWS, (1,), (2, 1), "need a length for each of 2 dimensions"),
        (ROWS, (1, 4), (2, 1), "window of length 4 does not fit dimension 1 of length 3"),
        (ROWS, (2, 3), (2, 1), "window length 2 along collapsed_slice_dims 0"),
        (((), (0,), (0,)), (1, 3), (2, 1), "each of the 2 operand dimensions"),
        (ROWS, (1, 3), (), "last dimension that holds index vectors"),
    ],
)
def test_gather_errors(numbers, sizes, indices, words):
    x, i = to_array(random((6, 3))), to_array(np.zeros(indices, np.int32))
    with pytest.raises(errors.ShapeError, match=words):
        G.gather(x, i, G.GatherDimensionNumbers(*numbers), sizes)


def test_other_errors():
    x, i = to_array(random((6, 3))), to_array(np.zeros((2, 1), np.int32))
    rows = S.ScatterDimensionNumbers(*ROWS)
    u = to_array(random((2, 3)))
    with pytest.raises(errors.ShapeError, match="must have 2 dimensions"):
        S.scatter(x, i, to_array(random((2,))), rows)
    with pytest.raises(errors.ShapeError, match=r"must have shape \[2, 2\]"):
        S.scatter(x, i, to_array(random((4, 2))), rows)
    with pytest.raises(errors.ShapeError, match="does not fit dimension 1"):
        S.scatter(x, i, to_array(random((2, 4))), rows)
    with pytest.raises(errors.ShapeError, match="neither inserted nor batching"):
        S.scatter(x, i, u, S.ScatterDimensionNumbers((1,), (0, 1), (0,)))
    with pytest.raises(errors.DTypeError, match="dtypes differ"):
        S.scatter(x, i, convert(u, dtypes.F32), rows)
    with pytest.raises(errors.DTypeError, match="indices must be integers"):
        S.scatter(x, convert(i, dtypes.F32), u, rows)
    with pytest.raises(errors.DTypeError, match="real numbers"):
        S.scatter_max(convert(x, dtypes.C64), i, convert(u, dtypes.C64), rows)
    with pytest.raises(ValueError, match="mode 'wrap' is none of"):
        S.scatter(x, i, u, rows, mode="wrap")
    with pytest.raises(errors.DTypeError, match="indices must be integers"):
        G.take_rows(x, u)
    with pytest.raises(errors.ShapeError, match="must start with the dimensions"):
        S.segment_sum(x, i, 4)
    with pytest.raises(errors.ShapeError, match="needs 2 start indices"):
        I.dynamic_slice(x, (0,), (1, 1))
    with pytest.raises(errors.ShapeError, match="does not fit in"):
        I.dynamic_slice(x, (0, 0), (7, 1))
    with pytest.raises(errors.ShapeError, match="does not fit in"):
        I.dynamic_update_slice(x, to_array(random((7, 1))), (0, 0))
    with pytest.raises(errors.DTypeError, match="start index 0 must be an integer"):
        I.dynamic_slice(x, (to_array(random(())), 0), (1, 1))
    with pytest.raises(errors.ShapeError, match="start index 0 must be a scalar"):
        I.dynamic_slice(x, (i, 0), (1, 1))
