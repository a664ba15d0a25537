"""Sums by segment of several tables become one sum of a table that has the rows of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.backends.cuda.lower.joined_sums import joined_sums
from genesis_fn.backends.cuda.lower.stacked_sums import stacked_sums
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.kernels.plan import Launch
from genesis_fn.kernels.sort import block_sort
from genesis_fn.primitives.indexing.scatter import segment_sum

ROWS, OTHERS, WIDTH = 1301, 1027, 9  # neither is a multiple of what parts begin at


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def places(seed: int, *shape: int, low: int = 0, high: int = OTHERS) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def given(kind: Any = np.float32) -> tuple[np.ndarray, ...]:
    """Updates of two tables, and their ids: of each table some that only the other one has."""
    x, y = [(8 * drawn(n, n, WIDTH)).astype(kind) for n in (70, 50)]
    return x, y, places(1, 70, low=-20, high=ROWS + 20), places(2, 50, low=-20, high=OTHERS + 300)


def two(*how: dict[str, Any]) -> Callable[..., Any]:
    """Twice the sums of both tables."""

    def f(x, y, i, j):
        first = segment_sum(x, i, ROWS, **how[0])
        second = segment_sum(y, j, OTHERS, **how[1])
        return first * 2, second * 2

    return f


def sums(x: np.ndarray, i: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros((rows, *x.shape[1:]))
    inside = (i >= 0) & (i < rows)
    np.add.at(out, i[inside], x[inside].astype(np.float64))
    return out


def count(f: Callable[..., Any], *args: Any) -> int:
    """The sums by segment of the program of `f`."""
    jaxpr = joined_sums(simplify_jaxpr(programs.traced(f, *args)[0]), H200)
    return [e.prim.name for e in stacked_sums(jaxpr).eqns].count("segment_sum")


def computed(f: Callable[..., Any], *args: Any) -> tuple[list[np.ndarray], int]:
    """The results on the interpreting driver, and how many kernels were launched for them."""
    jaxpr, inputs = programs.traced(f, *args)
    made = compile_jaxpr(jaxpr, programs.PLACE)
    outs = [programs.get(v) for v in made(*map(programs.put, inputs))]
    steps = [
        s
        for step in made.schedule.steps
        for s in (step.steps if isinstance(step, SubProgram) else (step,))
    ]
    return outs, sum([isinstance(s, Launch) for s in steps])


@pytest.mark.parametrize(
    ("kind", "mode"), [(np.float32, "fill"), (np.int16, "fill"), (gnp.bfloat16, "clip")]
)
def test_two_tables(kind: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sort, "BLOCK", 32)  # more are sorted by digits
    x, y, i, j = given(kind)
    f = two({"mode": mode}, {"mode": "fill"})
    # Rows that are shorter than a sector of memory are sorted with their ids.
    assert count(f, x, y, i, j) == (2 if np.dtype(kind).itemsize == 2 else 1)
    wide = [np.concatenate([v, v], 1) for v in (x, y)]
    assert count(f, *wide, i, j) == 1
    (first, second), launches = computed(f, *wide, i, j)
    at = np.clip(i, 0, ROWS - 1) if mode == "clip" else i
    bound = {"rtol": 2**-8 if kind == gnp.bfloat16 else 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(first.astype(float), 2 * sums(wide[0], at, ROWS), **bound)
    np.testing.assert_allclose(second.astype(float), 2 * sums(wide[1], j, OTHERS), **bound)
    with without("sums"):
        assert launches < computed(f, *wide, i, j)[1]


def test_gradients_of_three_tables_at_indices_of_several_types() -> None:
    tables = [drawn(n, rows, WIDTH) for n, rows in enumerate((ROWS, OTHERS, 1100))]
    at = places(3, 40, 2), places(4, 60).astype(np.int64), places(5, 90, high=120).astype(np.int8)
    weights = drawn(6, 90, WIDTH)

    def step(a, b, c, i, j, k, w):
        def loss(a, b, c):
            return (gnp.sin(a[i])).sum() + (b[j] ** 3).sum() + (c[k] * w).sum()

        return [x - 0.1 * dx for x, dx in zip((a, b, c), g.grad(loss, (0, 1, 2))(a, b, c))]

    got, _ = computed(step, *tables, *at, weights)
    a, b, c = tables
    want = [
        sums(np.cos(a[at[0]]).reshape(-1, WIDTH), at[0].reshape(-1), ROWS),
        sums(3 * b[at[1]] ** 2, at[1], OTHERS),
        sums(weights, at[2].astype(int), 1100),
    ]
    for x, table, dx in zip(got, tables, want):
        np.testing.assert_allclose(x, table - 0.1 * dx, rtol=1e-5, atol=1e-5)


def test_a_checked_gather_is_read_in_its_own_part() -> None:
    x, y, i, j = given()
    table, source = drawn(7, 300, WIDTH), places(8, 70, high=300)

    def f(table, source, x, y, i, j):
        first, second = two({}, {})(table[source] * x, y, i, j)
        return first + 1, second

    assert count(f, table, source, x, y, i, j) == 1
    (first, second), _ = computed(f, table, source, x, y, i, j)
    np.testing.assert_allclose(
        first, 1 + 2 * sums(table[source] * x, i, ROWS), rtol=1e-5, atol=1e-4
    )
    np.testing.assert_allclose(second, 2 * sums(y, j, OTHERS), rtol=1e-5, atol=1e-4)
    source[3] = 300
    with pytest.raises(IndexError, match="300"):
        computed(f, table, source, x, y, i, j)


def many(counts: tuple[int, int]) -> tuple[np.ndarray, ...]:
    x, y = [drawn(n, n, WIDTH) for n in counts]
    return x, y, places(1, counts[0]), places(2, counts[1])


def test_what_one_launch_sorts_is_not_joined_to_more() -> None:
    half = block_sort.BLOCK // 2
    assert count(two({}, {}), *many((half, half))) == 1
    assert count(two({}, {}), *many((half + 1, half))) == 2
    assert count(two({}, {}), *many((2 * half + 1, 5))) == 1


APART: dict[str, Callable[..., Any]] = {
    "results": lambda x, y, i, j: (segment_sum(x, i, ROWS), segment_sum(y, j, OTHERS)),
    "one waits for the other": lambda x, y, i, j: (
        s := segment_sum(x, i, ROWS) * 2, segment_sum(y + s[:50], j, OTHERS) * 2
    ),
    "one sort for both": lambda x, y, i, j: (
        segment_sum(x, i, ROWS) * 2, segment_sum(x * 2, i, OTHERS) * 3
    ),
    "nothing is sorted": two({"unique_indices": True}, {"unique_indices": True}),
    "checked": two({"mode": "check"}, {}),
    "rows of other lengths": lambda x, y, i, j: (
        segment_sum(x, i, ROWS) * 2, segment_sum(y[:, :8], j, OTHERS) * 2
    ),
    "products read one": lambda x, y, i, j: (
        segment_sum(x, i, ROWS) @ y[:WIDTH], segment_sum(y, j, OTHERS) * 2
    ),
    "in any order": two({"deterministic": False}, {"deterministic": False}),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_stays_apart(case: str) -> None:
    x, y, i, j = given()
    args = x, y, np.abs(i) % OTHERS, np.abs(j) % OTHERS
    assert count(APART[case], *args) == 2
    if case != "nothing is sorted":
        with g.default_matmul_precision("highest"):
            programs.compare(APART[case], *args, tolerance=2e-5)
