"""Matrices for tests of kernels, and their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from genesis_fn.kernels.plan import Plan
from tests.kernels.run import run_plan

KINDS = ("float32", "float64", "complex64", "complex128")


def normal(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if kind[0] == "c" else x).astype(kind)


def positive(count: int, n: int, kind: str) -> np.ndarray:
    x = normal((count, n, n), kind)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) + n * np.eye(n)).astype(kind)


def names(kind: str) -> tuple[str, bool]:
    """The name of an element's parts, and whether there are two."""
    return "fp32" if kind in ("float32", "complex64") else "fp64", kind[0] == "c"


def results(plan: Plan, inputs: list[np.ndarray], *outs: tuple[tuple[int, ...], Any]) -> Any:
    found = [np.full(shape, 7, kind) for shape, kind in outs]
    raw = [torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(np.uint8)) for x in inputs]
    filled = [torch.from_numpy(y.reshape(-1).view(np.uint8)) for y in found]
    run_plan(plan, raw, filled)
    return found if len(found) > 1 else found[0]


def close(x: np.ndarray, y: np.ndarray) -> None:
    bound = 2e-5 if x.dtype.name in ("float32", "complex64") else 1e-12
    assert x.shape == y.shape
    assert np.abs(x - y).max() <= bound * max(1.0, np.abs(y).max())


def lower_triangles(x: np.ndarray) -> np.ndarray:
    """Their real diagonals, and what stands below; all else is NaN."""
    if x.dtype.kind != "c":
        return np.where(np.tri(x.shape[-1], dtype=bool), x, np.nan).astype(x.dtype)
    given = np.full_like(x, complex(np.nan, np.nan))
    given.real = lower_triangles(x.real)
    given.imag = np.where(np.tri(x.shape[-1], k=-1, dtype=bool), x.imag, np.nan)
    return given
