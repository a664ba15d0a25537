"""Indexing against NumPy over generated indices; `.at` against JAX; modes and errors."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import jax.numpy as jax_numpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.device import default_device
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit

SHAPE = (3, 4, 2, 5)


@st.composite
def indices(draw: Any) -> tuple:
    """A valid NumPy index of an array of SHAPE."""
    entries: list[Any] = []
    axis = 0
    batch = draw(st.sampled_from([(2,), (1,), (2, 3), (1, 3), ()]))
    masked = False
    while axis < len(SHAPE):
        kind = draw(st.sampled_from(["int", "slice", "array", "none", "mask", "stop", "slice"]))
        n = SHAPE[axis]
        if kind == "stop":
            break
        if kind == "none":
            entries.append(None)
            continue
        if kind == "int":
            entries.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            bound = st.one_of(st.none(), st.integers(-n - 1, n + 1))
            step = draw(st.one_of(st.none(), st.integers(-3, 3).filter(bool)))
            entries.append(slice(draw(bound), draw(bound), step))
        elif kind == "mask" and not masked:
            masked = True
            count = draw(st.integers(1, n))
            mask = np.zeros(n, bool)
            mask[draw(st.permutations(range(n)))[:count]] = True
            if batch not in ((), (1,)) and mask.sum() not in (1, batch[-1]):
                mask[:] = False
                mask[0] = True
            if mask.sum() > 1 and batch in ((), (1,)):
                batch = (int(mask.sum()),)
                if any(isinstance(e, np.ndarray) and e.shape not in ((), (1,)) for e in entries):
                    mask[:] = False
                    mask[0] = True
            entries.append(mask)
        else:
            shape = draw(st.sampled_from([batch, batch[-1:], (1,) * len(batch)]))
            values = draw(
                st.lists(
                    st.integers(-n, n - 1),
                    min_size=int(np.prod(shape)),
                    max_size=int(np.prod(shape)),
                )
            )
            entries.append(np.array(values, np.int64).reshape(shape))
        axis += 1
    if draw(st.booleans()):
        # An ellipsis fits anywhere, as the axes left over follow it; masks and ints keep their axis
        # only before it.
        entries.append(Ellipsis)
    return tuple(entries)


X = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
A = jnp.asarray(X)


@settings(max_examples=300, deadline=None)
@given(indices())
def test_getitem_matches_numpy(index: tuple) -> None:
    try:
        expected = X[index]
    except IndexError:  # the generator's arrays did not broadcast
        with pytest.raises(IndexError):
            A[index]
        return
    got = A[index]
    assert got.shape == expected.shape, index
    np.testing.assert_array_equal(np.asarray(got), expected)


@settings(max_examples=200, deadline=None)
@given(indices(), st.sampled_from(["set", "add", "multiply", "min", "max"]), st.booleans())
def test_updates_match_numpy(index: tuple, kind: str, scalar: bool) -> None:
    try:
        part = X[index]
    except IndexError:
        return
    v = np.float32(2.5) if scalar else np.linspace(1, 3, max(part.size, 1), dtype=np.float32)
    v = v if scalar else v[: part.size].reshape(part.shape)
    expected = X.copy()
    if kind == "set":
        expected[index] = v
    else:
        ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}[kind]
        ufunc.at(expected, index, v)
    got = getattr(A.at[index], kind)(v)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5)


@pytest.mark.parametrize("stride", [2, -2])
def test_updates_between_strides_and_reversed_axes(stride: int) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    index = (0, slice(None, None, stride), slice(3, 0, -1))
    v = np.arange(100, 100 + x[index].size, dtype=np.float32).reshape(x[index].shape)
    expected = x.copy()
    expected[index] = v
    np.testing.assert_array_equal(np.asarray(jnp.asarray(x).at[index].set(v)), expected)


@settings(max_examples=60, deadline=None)
@given(indices())
def test_traced_index_arrays(index: tuple) -> None:
    try:
        expected = X[index]
    except IndexError:
        return
    arrays = [e for e in index if isinstance(e, np.ndarray) and e.dtype != bool]

    def read(x: Any, *traced: Any) -> Any:
        left = iter(traced)
        whole = [next(left) if isinstance(e, np.ndarray) and e.dtype != bool else e for e in index]
        return x[tuple(whole)]

    got = jit(read)(A, *[jnp.asarray(a) for a in arrays])
    np.testing.assert_array_equal(np.asarray(got), expected)


@settings(max_examples=40, deadline=None)
@given(indices())
def test_gradient_of_indexing_counts_reads(index: tuple) -> None:
    try:
        X[index]
    except IndexError:
        return
    counts = np.zeros_like(X)
    np.add.at(counts, index, 1)
    got = grad(lambda x: x[index].sum())(A)
    np.testing.assert_array_equal(np.asarray(got), counts)


MODES = ["drop", "clip", "promise_in_bounds", "fill"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind", ["set", "add", "multiply", "min", "max", "divide", "power", "subtract"]
)
def test_at_matches_jax(mode: str, kind: str) -> None:
    i = np.array([0, 2, 2, -1] if mode == "promise_in_bounds" else [0, 7, 2, -9, -1], np.int32)
    if kind in ("set", "power"):
        i = i[[0, 1]]  # clipping makes others equal
    x = np.linspace(1, 2, 4, dtype=np.float32)
    v = np.linspace(2, 3, i.size).astype(np.float32)
    expected = getattr(jax_numpy.asarray(x).at[i], kind)(v, mode=mode)
    got = getattr(jnp.asarray(x).at[i], kind)(v, mode=mode)
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-5)


@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_get_matches_jax(mode: str) -> None:
    x, i = np.arange(4.0, dtype=np.float32), np.array([0, 9, -1, -7], np.int32)
    expected = jax_numpy.asarray(x).at[i].get(mode=mode)
    np.testing.assert_array_equal(
        np.asarray(jnp.asarray(x).at[i].get(mode=mode)), np.asarray(expected)
    )
    got = jnp.asarray(x).at[i].get(mode="fill", fill_value=-1)
    assert got.tolist() == [0.0, -1.0, 3.0, -1.0]
    n = jnp.arange(4).at[i].get(mode="fill")
    assert n.tolist() == np.asarray(jax_numpy.arange(4).at[i].get(mode="fill")).tolist()


def test_apply() -> None:
    got = jnp.arange(4.0).at[jnp.array([1, 1, 3])].apply(lambda x: x * 10)
    assert got.tolist() == [0.0, 100.0, 2.0, 30.0]


@pytest.mark.parametrize("mode", [None, "fill", "clip", "wrap"])
def test_take_modes(mode: str | None) -> None:
    x = np.arange(4.0, dtype=np.float32)
    i = np.array([0, 3, 5, -1, -6] if mode else [0, 3, -1], np.int32)
    expected = jax_numpy.take(x, i, mode=mode)
    np.testing.assert_array_equal(
        np.asarray(jnp.take(jnp.asarray(x), i, mode=mode)), np.asarray(expected)
    )


@pytest.mark.parametrize("index", [5, -6, (0, 9), [0, 7], (slice(None), [-8]), ([1, 2], [0, 4])])
def test_out_of_bounds_raises_with_index_axis_type_and_line(index: Any) -> None:
    x = jnp.zeros((5, 4))
    with pytest.raises(IndexError) as caught:
        x[index].block_until_ready()
    message = str(caught.value)
    assert "f32[5,4]" in message and "axis" in message and "test_indexing.py" in message


def test_out_of_bounds_names_the_users_index() -> None:
    with pytest.raises(IndexError, match=r"index -8 out of range for axis 1 of f32\[5,4\]"):
        jnp.zeros((5, 4))[:, jnp.array([0, -8])].block_until_ready()
    # What a GPU reports later tells of the array that is left once x[1] is taken.
    late = default_device().kind != "cpu"
    where = r"axis 1 of f32\[3,4\]" if late else r"axis 2 of f32\[2,3,4\]"
    with pytest.raises(IndexError, match=f"index 7 out of range for {where}"):
        jnp.zeros((2, 3, 4))[1, :, jnp.array([7])].block_until_ready()


def test_out_of_bounds_under_jit_and_in_updates() -> None:
    with pytest.raises(IndexError):
        jit(lambda x, i: x[i])(jnp.zeros(3), jnp.array(3)).block_until_ready()
    with pytest.raises(IndexError):
        jnp.zeros(3).at[jnp.array([5])].set(1.0).block_until_ready()
    with pytest.raises(IndexError):
        jnp.zeros(3).at[4].add(1.0).block_until_ready()


def test_traced_scalar_index() -> None:
    x = jnp.arange(12.0).reshape(3, 4)
    assert jit(lambda x, i: x[i])(x, jnp.array(-1)).tolist() == [8.0, 9.0, 10.0, 11.0]
    assert jit(lambda x, i: x[:, i])(x, jnp.array(1)).tolist() == [1.0, 5.0, 9.0]
    assert vmap(lambda row, i: row[i])(x, jnp.array([0, 1, 2])).tolist() == [0.0, 5.0, 10.0]
    assert vmap(lambda i: x.at[i, 0].set(-1.0)[:, 0])(jnp.array([0, 2])).tolist() == [
        [-1.0, 4.0, 8.0],
        [0.0, 4.0, -1.0],
    ]


def test_masks() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    assert x[x > 2].tolist() == [3.0, 4.0, 5.0]
    assert x.at[x > 2].set(0.0).tolist() == [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]
    assert x.at[x > 2].set([7.0, 8.0, 9.0])[1].tolist() == [7.0, 8.0, 9.0]
    assert jit(lambda v: v.at[v > 2].add(10.0))(x).tolist() == [[0.0, 1.0, 2.0], [13.0, 14.0, 15.0]]


@pytest.mark.parametrize(
    "index",
    [True, False, np.True_, (True, 1), (0, False), (..., True, 0), (None, True), ([0, 1], True)],
)
def test_boolean_scalars(index: Any) -> None:
    expected = X[index]
    assert A[index].shape == expected.shape
    np.testing.assert_array_equal(np.asarray(A[index]), expected)
    assert A[jnp.array(True)].shape == (1, *SHAPE)


def test_traced_mask_is_refused_with_advice() -> None:
    with pytest.raises(errors.NonConcreteBooleanIndexError) as caught:
        jit(lambda x: x[x > 0])(jnp.ones(3))
    message = str(caught.value)
    assert "bool[3]" in message and "jnp.where" in message and "size=" in message
    assert len(message.splitlines()) <= 6


def test_wrong_indices() -> None:
    x = jnp.ones((2, 3))
    with pytest.raises(IndexError, match="3 indices"):
        x[0, 0, 0]
    with pytest.raises(IndexError, match="integer or boolean"):
        x[jnp.ones(2)]
    with pytest.raises(TypeError, match="not an index"):
        x["a"]
    with pytest.raises(IndexError, match="ellipsis"):
        x[..., ...]
    with pytest.raises(IndexError, match="boolean index of shape"):
        x[np.ones(3, bool)]
    with pytest.raises(IndexError, match="do not broadcast"):
        x[jnp.array([0, 1]), jnp.array([0, 1, 2])]
    with pytest.raises(errors.ShapeError, match="do not broadcast to the indexed part"):
        x.at[0].set(jnp.ones(4))
    with pytest.raises(errors.TracerIntegerConversionError, match="dynamic_slice"):
        jit(lambda n: x[:n])(jnp.array(1))


def test_setitem_names_the_spelling() -> None:
    with pytest.raises(TypeError, match=r"x\.at\[i\]\.set"):
        jnp.ones(3)[0] = 1


def test_derivatives_of_updates() -> None:
    x, v = jnp.arange(4.0), jnp.array([5.0, 6.0])
    i = jnp.array([1, 3])
    w = jnp.array([1.0, 2.0, 3.0, 4.0])
    gx, gv = grad(lambda x, v: (x.at[i].set(v) * w).sum(), argnums=(0, 1))(x, v)
    assert gx.tolist() == [1.0, 0.0, 3.0, 0.0] and gv.tolist() == [2.0, 4.0]
    gx, gv = grad(lambda x, v: (x.at[1:3].multiply(v) * w).sum(), argnums=(0, 1))(x, v)
    assert gx.tolist() == [1.0, 10.0, 18.0, 4.0] and gv.tolist() == [2.0, 6.0]


def test_float_values_into_integers() -> None:
    assert jnp.arange(3).at[0].set(2.7).tolist() == [2, 1, 2]
    assert jnp.zeros(3, bool).at[1].set(True).tolist() == [False, True, False]


def test_masks_without_elements_along_an_axis_select_nothing() -> None:
    x = np.ones((3, 2))
    for shape in ((0,), (0, 2), (3, 0)):
        mask = np.zeros(shape, bool)
        assert jnp.asarray(x)[mask].shape == x[mask].shape
    with pytest.raises(IndexError):
        jnp.asarray(x)[np.zeros((2, 0), bool)]


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([1]),
        torch.tensor([[1]]),
        torch.tensor(1),
        torch.tensor([0, 2]),
        torch.tensor([True, False, True]),
        torch.tensor(True),
        (slice(None), torch.tensor([2])),
        (..., torch.tensor([True, False, False, True])),
        (torch.tensor([0, 1]), torch.tensor([2, 3])),
        (torch.tensor([0]), None, 1),
    ],
    ids=str,
)
def test_tensors_of_torch_index_as_in_torch(index: Any) -> None:
    """A tensor of one element has an `__index__`, and is an array nevertheless."""
    x = torch.arange(12.0).reshape(3, 4)
    values = jnp.asarray(x)
    assert np.array_equal(np.asarray(values[index]), x[index].numpy())
    assert values[index].shape == tuple(x[index].shape)
    changed = x.clone()
    changed[index] = -1.0
    assert np.array_equal(np.asarray(values.at[index].set(-1.0)), changed.numpy())
    assert values.at[index].get().shape == tuple(x[index].shape)


@pytest.mark.parametrize("mode", ["drop", "fill", "clip"])
@pytest.mark.parametrize(
    "index", [-1, [-1, 1], np.array([-4, 0], np.int8), (slice(None), -2)], ids=str
)
def test_negative_indices_are_outside_if_they_do_not_wrap(index: Any, mode: str) -> None:
    """As in JAX, whose default mode drops: here the mode is named."""
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    key = np.asarray(index) if isinstance(index, list) else index
    options: Any = {"mode": mode, "wrap_negative_indices": False}
    theirs, mine = jax_numpy.asarray(x).at[key], jnp.asarray(x).at[key]
    np.testing.assert_array_equal(mine.set(-1.0, **options), theirs.set(-1.0, **options))
    np.testing.assert_array_equal(mine.add(1.0, **options), theirs.add(1.0, **options))
    if mode != "drop":
        np.testing.assert_array_equal(mine.get(**options), theirs.get(**options))
    with pytest.raises(IndexError):
        mine.set(-1.0, wrap_negative_indices=False)
