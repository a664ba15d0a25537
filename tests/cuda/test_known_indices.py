"""Gathers and scatters at indices that are known when a program is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as xnp
import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import errors, lax, ops
from genesis_fn.compiler.options import without
from genesis_fn.core.device import using_device

DTYPES = ("float32", "bfloat16", "float64", "int32", "int8", "uint16", "bool")
MODES = ("clip", "drop", "promise_in_bounds", None)
SORTS = ("scatter", "sort", "radix", "fill", "memset")


def drawn(draw: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = draw.integers(0 if dtype[0] == "u" else -9, 9, shape)
    return (x > 0) if dtype == "bool" else x.astype(gnp.dtype(dtype))


def operations(f: Any, *args: Any) -> list[str]:
    """What the program of `f` does: the names of its steps and kernels."""
    made = programs.compare(f, *args)
    return [n for s in made.table.summaries for n in (s.name, *map(str, s.sources))]


def has_none(names: list[str], *words: str) -> bool:
    return not any(w in n for n in names for w in words)


@pytest.mark.parametrize("seed", range(24))
def test_updates_at_known_rows_and_columns(seed: int) -> None:
    """Any number of updates, in rows or columns or both, twice or out of range as it comes."""
    draw = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shape = tuple(int(n) for n in draw.integers(1, 9, 3))
    x = drawn(draw, shape, dtype)
    mode = MODES[int(draw.integers(len(MODES)))]
    low, beyond = (-3, 3) if mode in ("clip", "drop") else (0, 0)
    axes = sorted(draw.permutation(3)[: int(draw.integers(1, 4))].tolist())
    count = int(draw.integers(0, 9))
    unique = bool(draw.integers(2))
    at: list[Any] = [slice(None)] * 3
    for a in axes:
        n = shape[a]
        if unique and mode is None:
            at[a] = draw.permutation(n)[:count].astype(np.int32)
        else:
            at[a] = draw.integers(low - n, n + beyond, count).astype(np.int32)
        at[a] = np.resize(at[a], count) if at[a].size else np.zeros(count, np.int32)
    index = tuple(at)
    u = drawn(draw, np.empty(shape)[tuple([np.zeros(count, int) if type(i) is not slice else i
                                           for i in at])].shape, dtype)  # fmt: skip
    kinds = ["set"] if dtype == "bool" else ["set", "add", "multiply", "min", "max"]

    def f(x, u):
        held = gnp.zeros_like(x)
        results = []
        for kind in kinds:
            results.append(getattr(x.at[index], kind)(u, mode=mode))
            results.append(getattr(held.at[index], kind)(u, mode=mode))
        return [*results, x[index] if mode is None else x.at[index].get(mode=mode)]

    programs.compare(f, x, u, tolerance=2e-2 if dtype == "bfloat16" else 2e-5)


@pytest.mark.parametrize("seed", range(8))
def test_derivatives_and_sums_agree_with_jax(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, k = (int(i) for i in draw.integers(2, 8, 2))
    first, second = np.tril_indices(n, -int(draw.integers(2)))
    rows = draw.integers(0, n, 3 * k).astype(np.int32)
    ids = draw.integers(-1, k + 1, n).astype(np.int32)
    x = draw.standard_normal((k, n, n)).astype(np.float32)
    w = draw.standard_normal((k, first.size)).astype(np.float32)

    def value(np_, x, w):
        pairs = np_.sum(np_.tanh(x)[:, first, second] * w)
        return pairs + np_.sum(np_.sin(x[:, rows]) ** 2) + np_.sum(np_.cos(x[:, ::-1, rows]))

    def of(g, np_, segment_sum):
        def f(x, w):
            return *g(lambda x, w: value(np_, x, w), (0, 1))(x, w), segment_sum(x[0], ids, k)

        return f

    want = of(jax.grad, xnp, jax.ops.segment_sum)(x, w)
    f = of(gf.grad, gnp, ops.segment_sum)
    with using_device(gf.cuda(0)):
        for y, z in zip(gf.jit(f)(x, w), want, strict=True):
            np.testing.assert_allclose(np.asarray(y), z, rtol=2e-5, atol=2e-5)


def test_an_inverse_needs_no_sort_and_no_zeros() -> None:
    draw = np.random.default_rng(1)
    first, second = np.tril_indices(7, -1)
    x = drawn(draw, (40, 7, 7), "float32")
    for deterministic in (True, False):

        def f(x):
            with gf.deterministic(deterministic):
                return gf.grad(lambda x: gnp.sum(x[:, first, second] ** 2))(x)

        assert has_none(operations(f, x), *SORTS)
        with without("known_indices"):
            assert not has_none(operations(f, x), "scatter")


def test_where_sums_meet_the_order_is_constant() -> None:
    draw = np.random.default_rng(2)
    at = draw.integers(0, 30, 600).astype(np.int32)
    x, u = drawn(draw, (5, 30), "float32"), drawn(draw, (5, 600), "float32")
    names = operations(lambda x, u: (gnp.zeros((5, 30)).at[:, at].add(u), x.at[:, at].add(u)), x, u)
    assert has_none(names, "sort_rows", "radix", "scatter_targets") and "ordered_sum" in names


def test_counting_indices_are_slices() -> None:
    draw = np.random.default_rng(3)
    x = drawn(draw, (6, 9, 5), "int32")
    back, odd, some = np.arange(5, -1, -1), np.arange(1, 9, 2), np.array([2, 3, 4])

    def f(x):
        return (
            x[back] + 1, x[:, odd], x[1:, 4, some], x[np.ix_(back, odd)], x[back[:, None], :, some],
            gnp.take(x, odd, axis=1), x[gnp.arange(6)], x[gnp.arange(6), 3], x[:, [-1]],
            gnp.take(x, np.array([8, 9, 10]), axis=2, mode="clip"),
        )  # fmt: skip

    names = operations(f, x)
    # But for the last one, whose indices are clipped by the program: a step and its kernel.
    assert sum([n in ("gather", "take_rows") for n in names]) <= 2
    with without("known_indices", "lookups"):
        assert sum([n in ("gather", "take_rows") for n in operations(f, x)]) > 5


@pytest.mark.parametrize(
    "f",
    [
        lambda x, at: x[at],
        lambda x, at: x.at[at].set(1.0, mode="check"),
        lambda x, at: gf.grad(lambda x: gnp.sum(x[:, at - 1]))(x),
    ],
)
def test_out_of_range_is_the_same_error(f: Any) -> None:
    at, x = np.array([0, 3, 4], np.int32), np.ones((4, 3), np.float32)
    told = []
    with using_device(gf.cuda(0)):
        for run in (lambda x: gf.jit(lambda x: f(x, at))(x), lambda x: gf.jit(f)(x, at)):
            with pytest.raises(errors.IndexOutOfRange) as raised:
                run(x).tolist()
            told.append(str(raised.value).split(chr(10))[0])
    assert told[0] == told[1]


def test_special_values_and_empty_arrays() -> None:
    x = np.array([[np.nan, -0.0, np.inf], [1, 2, -np.inf]], np.float32)
    at = np.array([2, 0], np.int32)
    u = np.array([[np.nan, -0.0], [np.inf, 3]], np.float32)

    def f(x, u):
        held = gnp.zeros((2, 3))
        none = np.zeros(0, np.int32)
        empty = gnp.zeros((2, 0))
        return (
            *[getattr(x.at[:, at], k)(u) for k in ("set", "add", "min", "max", "multiply")],
            1 / held.at[:, at].add(u), held.at[:, at].set(u), x[:, none], x.at[:, none].add(empty),
        )  # fmt: skip

    programs.compare(f, x, u)


def test_a_constant_is_held_once_and_may_be_a_result() -> None:
    at = np.array([3, 1, 1, 0], np.int32)

    def f(x):
        return x[at], x[::-1][at], lax.gather(
            x, at[:, None], lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 3)
        ), x + gnp.sum(x[at + 0])  # fmt: skip

    made = programs.compare(f, np.arange(12, dtype=np.float32).reshape(4, 3))
    assert len(made.table.contents) <= 2


def test_a_program_runs_operation_by_operation() -> None:
    """An eager derivative of a jitted function evaluates its program, constants included."""
    at = np.array([3, 1, 1, 0], np.int32)
    with using_device(gf.cuda(0)):
        f = gf.jit(lambda x: gnp.sum(x[:, at] ** 2))
        x = gnp.arange(8.0).reshape(2, 4)
        with gf.disable_jit():
            plain = gf.grad(f)(x).tolist()
        assert gf.grad(f)(x).tolist() == plain == [[0, 4, 0, 6], [8, 20, 0, 14]]
