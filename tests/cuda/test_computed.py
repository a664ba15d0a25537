"""Reductions of arrays that are computed, rotations and stencils: interpreted, against the CPU
backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.codegen import tiling
from genesis_fn.compiler.rewrites import computed

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms of large arrays for small ones."""
    monkeypatch.setattr(computed, "_LARGE", 64)
    monkeypatch.setattr(computed, "_ROWS", 16)
    monkeypatch.setattr(computed, "_ROW", 16)
    monkeypatch.setattr(computed, "_COMPUTED", 2)
    monkeypatch.setattr(tiling, "_MANY", 64)
    monkeypatch.setattr(tiling, "_PAIRS", 32)


# ---- pairs ----


def energy(x):
    d = x[:, None, :] - x[None, :, :]
    return 0.5 * gnp.sum(1 / gnp.sqrt(gnp.sum(d * d, -1) + 0.1))


def forces(x):
    d = x[None, :, :] - x[:, None, :]
    r2 = gnp.sum(d * d, -1) + 0.1
    return gnp.sum(d * (r2**-1.5)[:, :, None], 1)


def margins(x):
    k = gnp.exp(-((x[:, None, 0] - x[None, :, 1]) ** 2))
    return gnp.sum(k, 0), gnp.sum(k, 1), gnp.max(k, 0), gnp.sum(k), gnp.min(k)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("n", [40, 67, 96])
@pytest.mark.parametrize(
    "f", [g.value_and_grad(energy), forces, margins], ids=["energy", "forces", "margins"]
)
def test_pairs(f: Callable, n: int) -> None:
    text = programs.compare(f, normal(n, 3), tolerance=2e-4).as_text()
    assert "def loop" in text


@pytest.mark.usefixtures("small")
def test_two_bodies_of_several_axes_and_dtypes() -> None:
    def f(x, y):
        d = x[:, None] - y[None, :]  # [n, m, 2, 2]
        s = gnp.max(d, (2, 3))
        return gnp.sum(d, 0), gnp.sum(s, (0, 1)), gnp.min(d * s[..., None, None], 1)

    programs.compare(f, normal(33, 2, 2), normal(40, 2, 2), tolerance=2e-4)
    half = lambda x, y: gnp.sum((x[:, None] - y[None, :]) ** 2, -1).sum()
    programs.compare(half, normal(32, 3, dtype=np.float16), normal(32, 3, dtype=np.float16))


@pytest.mark.usefixtures("small")
def test_extremes_of_pairs_keep_nan() -> None:
    x = normal(48, 3)
    x[5, 1] = np.nan
    f = lambda x: (gnp.max(gnp.max(x[:, None] - x[None], -1), 0), gnp.min(x[:, None] - x[None], 0))
    programs.compare(f, x)


@pytest.mark.usefixtures("small")
def test_components_stay_components_through_arithmetic() -> None:
    def f(x, v):
        a, b = forces(x), forces(x + 1)
        moved = v + 0.1 * (a - b * 2)
        return moved, gnp.sum(moved, 0), a[:, 1]

    programs.compare(f, normal(64, 3), normal(64, 3), tolerance=2e-4)


def kernel(x):
    d = x[:, None] - x[None, :]
    return gnp.exp(-gnp.sum(d * d, -1))


def products(x, v):
    k = kernel(x)
    d = gnp.sum((x[:, None] - x[None, :]) * k[:, :, None], 1)
    return k @ v + d, v.T @ k, k.T @ v[:, 0], v[:, 1] @ k, (k @ v[:, :1]) * 2


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each product that may be a sum whether it is."""
    found: list[bool] = []
    once = computed._Rewriting._summed
    monkeypatch.setattr(
        computed._Rewriting, "_summed", lambda *args: found.append(once(*args)) or found[-1]
    )
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("n", [40, pytest.param(67, marks=pytest.mark.slow)])
def test_products_of_computed_matrices_with_few_columns(
    n: int, dtype: str, summed: list[bool]
) -> None:
    """Sums that share their kernel with other reductions of the matrix, which is never stored."""
    x, v = normal(n, 5), normal(n, 5)

    def f(x, v):
        with g.default_matmul_precision("highest"):
            return products(x.astype(dtype), v.astype(dtype))

    bound = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 3e-2}[dtype]
    programs.compare(f, x, v, tolerance=bound)
    assert summed == [True] * 5


@pytest.mark.usefixtures("small")
def test_matrices_that_are_stored_anyway_are_multiplied(summed: list[bool]) -> None:
    def f(x, v):
        k = kernel(x)
        with g.default_matmul_precision("highest"):
            return k, k @ v, gnp.cumsum(x, 0) @ v[:5, :5]

    programs.compare(f, normal(48, 5), normal(48, 6), tolerance=1e-4)
    assert summed == [False]
    wide = lambda x, v: kernel(x) @ v
    programs.compare(wide, normal(48, 5), normal(48, 40), tolerance=2e-2)
    assert summed == [False]


def test_signs_of_zeros_of_reversed_differences() -> None:
    # Only squares are taken from each other: the differences themselves keep their signs.
    def f(x, y):
        a, b = x - y, y - x
        return a, b, a * a, b * b, b**2, b**3

    x = np.array([0.0, -0.0, 1.0, 2.0, np.inf], np.float32)
    y = np.array([0.0, 0.0, -3.0, 2.0, 1.0], np.float32)
    made = programs.compare(f, x, y)
    a, b, *_ = [programs.get(o) for o in made(programs.put(x), programs.put(y))]
    np.testing.assert_array_equal(np.signbit(a), np.signbit(x - y))
    np.testing.assert_array_equal(np.signbit(b), np.signbit(y - x))


# ---- rotations and stencils ----


@pytest.mark.parametrize("shape", [(24, 96), (16, 40), (5, 16, 48), (3, 7)])
def test_rotations(shape: tuple[int, ...]) -> None:
    def f(x):
        return [
            gnp.roll(x, k, axis) * 2 for k, axis in itertools.product((1, -1, 3, -5), range(x.ndim))
        ] + [gnp.roll(x, 7), gnp.roll(x, (1, -2), (0, 1)), gnp.roll(gnp.roll(x, 2, 0).T, 3, 0)]

    programs.compare(f, normal(*shape), tolerance=0)


@pytest.mark.parametrize("shape", [(16, 64), (24, 96), (40, 100), (512, 256)])
def test_a_stencil_of_rotations_runs_in_tiles(shape: tuple[int, int]) -> None:
    def step(x, b):
        around = [gnp.roll(x, k, axis) for k, axis in itertools.product((1, -1), (0, 1))]
        return 0.25 * (sum(around) + b)

    made = programs.compare(step, normal(*shape), normal(*shape))
    assert "def tiles" in made.as_text()


def test_stencils_of_slices_and_of_padded_arrays() -> None:
    def inner(x):
        return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]

    programs.compare(inner, normal(34, 66))
    programs.compare(lambda x: inner(gnp.pad(x, 1)), normal(32, 64))
    programs.compare(lambda x: inner(gnp.pad(x, 1, mode="edge")), normal(32, 64))
    loop = lambda x: lax.fori_loop(0, 3, lambda i, x: inner(gnp.pad(x, 1)) * 0.1 + x, x)
    programs.compare(loop, normal(32, 64))


# ---- norms over split axes, scans ----


def test_group_norm_and_its_gradients() -> None:
    def norm(x, w, b):
        y = gnp.reshape(x, (*x.shape[:3], 4, -1))
        y = y - gnp.mean(y, (1, 2, 4), keepdims=True)
        y = y / gnp.sqrt(gnp.mean(y * y, (1, 2, 4), keepdims=True) + 1e-5)
        return gnp.reshape(y, x.shape) * w + b

    f = lambda x, w, b, ct: (norm(x, w, b), g.vjp(norm, x, w, b)[1](ct))
    programs.compare(
        f, normal(2, 6, 5, 16), normal(16), normal(16), normal(2, 6, 5, 16), tolerance=2e-4
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_a_linear_recurrence_by_associative_scan(axis: int) -> None:
    def f(a, b):
        combine = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])
        return lax.associative_scan(combine, (a, b), axis=axis)[1]

    programs.compare(f, normal(19, 21) * 0.5, normal(19, 21), tolerance=2e-4)
