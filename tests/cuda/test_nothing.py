"""Programs over arrays without elements, and branches that the host runs, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax, ops

rng = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def none(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), ((1, 1),))


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1,), "VALID")


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "sums over no channels": (conv, (normal(2, 0, 5), normal(3, 0, 2))),
    "no batch": (conv, (normal(0, 1, 5), normal(3, 1, 2))),
    "a window of padding": (pool, (normal(0),)),
    "no windows": (lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), "VALID"), (normal(2),)),
    "gradient of padding": (lambda x: g.grad(lambda x: gnp.sum(pool(x)[:0]))(x), (normal(0),)),
    "no rows taken": (lambda x, i: x[i], (normal(3, 2), none(0))),
    "rows of nothing": (lambda x, i: x[i], (normal(3, 0), none(2))),
    "no places": (lambda x, i: x[i, i], (normal(3, 2), none(0))),
    "no updates": (lambda x, i: x.at[i].add(gnp.ones((0, 2))), (normal(3, 2), none(0))),
    "updates of nothing": (lambda x, i: x.at[i].set(1.0), (normal(3, 0), none(2))),
    "no segments": (lambda x, i: ops.segment_sum(x, i, 4), (normal(0, 2), none(0))),
    "segments of nothing": (lambda x, i: ops.segment_sum(x, i, 4), (normal(3, 0), none(3))),
    "a slice of nothing": (lambda x, i: lax.dynamic_slice(x, (i,), (0,)), (normal(3), np.int32(1))),
    "a slice from nothing": (
        lambda x, i: lax.dynamic_update_slice(x, gnp.ones(0), (i,)), (normal(3), np.int32(1)),
    ),
    "nothing updated": (
        lambda x, i: lax.dynamic_update_slice(x, gnp.ones(0), (i,)), (normal(0), np.int32(0)),
    ),
    "sums of nothing": (lambda x: (gnp.sum(x, 0), gnp.prod(x, 0), gnp.any(x > 0)), (normal(0, 3),)),
    "sums to nothing": (lambda x: (gnp.sum(x, 0), gnp.max(x, 0)), (normal(3, 0),)),
    "sorted": (lambda x: (gnp.sort(x), gnp.argsort(x), gnp.cumsum(x)), (normal(0),)),
    "products": (lambda x, y: (x @ y, y @ x), (normal(2, 0), normal(0, 2))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_nothing(name: str) -> None:
    f, operands = CASES[name]
    programs.compare(f, *operands)


def inverted(x: Any) -> Any:
    """An operation that the host computes."""
    return gnp.linalg.cholesky(x @ x.T + 3 * gnp.eye(3))


@pytest.mark.parametrize("choice", [0, 1, 7])
def test_branches_of_the_host(choice: int) -> None:
    def f(i, x):
        return lax.switch(i, [inverted, lambda x: x * 2, lambda x: inverted(x) + 1], x)

    programs.compare(f, np.int32(choice), normal(3, 3), tolerance=1e-4)


def test_loops_of_the_host() -> None:
    def f(x):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, inverted(c[1])), (0, x))

    programs.compare(f, normal(3, 3), tolerance=1e-4)


@pytest.mark.parametrize("shape, axis", [((2, 9000), 1), ((9000, 3), 0)])
def test_long_reductions_outside_programs(shape: tuple[int, int], axis: int) -> None:
    """They are cut into parts, of which a second launch makes one."""
    x = normal(*shape)
    x[5 % shape[0], 7 % shape[1]] = x[1, 1] = 9.0
    on_gpu = gnp.array(x, device="cuda")
    np.testing.assert_allclose(np.asarray(gnp.sum(on_gpu, axis)), x.sum(axis), rtol=1e-4, atol=1e-3)
    for name in ("max", "argmax", "argmin"):
        got = np.asarray(getattr(gnp, name)(on_gpu, axis))
        np.testing.assert_array_equal(got, getattr(np, name)(x, axis))
