"""Scatters of one element to each row of an array that holds one number: choices, which fuse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as xnp
import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as gnp

pytestmark = pytest.mark.interpreted
DTYPES = ("float32", "bfloat16", "float64", "int32", "int8", "bool")
INDICES = ("int32", "int8", "uint8", "int64")


def steps(f: Any, *args: Any, tolerance: float = 1e-6) -> list[str]:
    """The steps of a program that computes what the CPU does."""
    return [s.name for s in programs.compare(f, *args, tolerance=tolerance).table.summaries]


def scatters(names: list[str]) -> bool:
    return any("scatter" in n or "segment_sum" in n for n in names)


@pytest.mark.parametrize("seed", range(24))
def test_one_element_of_each_row(seed: int) -> None:
    draw = np.random.default_rng(seed)
    dtype, index = DTYPES[seed % len(DTYPES)], INDICES[seed // 2 % len(INDICES)]
    shape = [int(n) for n in draw.integers(1, 7, 3)]
    along = int(draw.integers(3))
    shape[along] = int(draw.choice([2, 5, 300]))
    rows = [n for d, n in enumerate(shape) if d != along]
    mode = ("drop", "promise_in_bounds")[seed % 2]
    most = min(shape[along] + 3 * (mode == "drop"), np.iinfo(index).max)
    labels = draw.integers(0, most, rows).astype(index)
    values = draw.integers(-9, 9, rows)
    values = values > 0 if dtype == "bool" else values.astype(gnp.dtype(dtype))
    others = list(np.ix_(*map(np.arange, rows)))
    kinds = ["set"] if dtype == "bool" else ["set", "add"]

    def f(labels, values):
        at = tuple([*others[:along], labels, *others[along:]])
        results = []
        for kind in kinds:
            zeros = gnp.zeros(shape, gnp.dtype(dtype))
            results.append(getattr(zeros.at[at], kind)(values, mode=mode))
        filled = gnp.full(shape, 1, gnp.dtype(dtype))
        return [*results, filled.at[at].set(values, mode=mode)]

    names = steps(f, labels, values)
    assert not scatters(names) or labels.size == 1


@pytest.mark.parametrize("shape", [(5, 3, 67), (4, 1001), (1, 9), (3, 0, 4)])
def test_derivatives_of_a_lookup_along_an_axis(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    x = draw.standard_normal(shape).astype(np.float32)
    at = draw.integers(-shape[-1], shape[-1], (*shape[:-1], 1)).astype(np.int32)

    def loss(xp, x, at):
        return xp.sum(xp.take_along_axis(xp.sin(x), at, -1) ** 2)

    f = gf.grad(lambda x, at: loss(gnp, x, at))
    names = steps(f, x, at)
    assert not scatters(names) or 0 in shape or at.size == 1
    jaxpr, given = programs.traced(f, x, at)
    (got,) = programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, given))
    want = jax.grad(lambda x, at: loss(xnp, x, at))(x, at)
    np.testing.assert_allclose(programs.get(got), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_values_that_are_not_finite_and_signs_of_zeros() -> None:
    at = np.array([2, 0, 4, 7], np.int32)
    u = np.array([np.nan, -0.0, np.inf, np.nan], np.float32)
    rows = np.arange(4)

    def f(at, u):
        zeros = gnp.zeros((4, 5), np.float32)
        return [
            zeros.at[rows, at].set(u, mode="drop"),
            zeros.at[rows, at].add(u, mode="drop"),
            gnp.full((4, 5), -np.inf).at[rows, at].set(u, mode="drop"),
        ]

    jaxpr, given = programs.traced(f, at, u)
    got = programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, given))
    for x, want in zip(map(programs.get, got), programs.on_cpu(jaxpr, given), strict=True):
        np.testing.assert_array_equal(x, want)
        np.testing.assert_array_equal(np.signbit(x), np.signbit(want))


def test_other_scatters_stay() -> None:
    draw = np.random.default_rng(2)
    at, rows = [draw.integers(0, 4, 6).astype(np.int32) for _ in range(2)]
    u, x = [draw.standard_normal(s).astype(np.float32) for s in ((6,), (6, 5))]
    zeros = lambda: gnp.zeros((6, 5), np.float32)
    assert scatters(
        steps(lambda rows, at, u: zeros().at[rows, at].add(u, mode="drop"), rows, at, u)
    )
    assert scatters(steps(lambda x, at, u: x.at[np.arange(6), at].add(u, mode="drop"), x, at, u))
    back = np.arange(6)[::-1]
    assert scatters(steps(lambda at, u: zeros().at[back, at].add(u, mode="drop"), at, u))
    assert scatters(steps(lambda at, u: zeros().at[np.arange(6), at].add(u, mode="clip"), at, u))
    assert scatters(steps(lambda at, u: zeros().at[np.arange(6), at].add(u), at, u))
