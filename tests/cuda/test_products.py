"""Products of few rows take in what stands around them; small steps share launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.options import without
from genesis_fn.kernels.plan import Launch
from genesis_fn.lax.fused.norms import rms_norm
from genesis_fn.nn.functions import silu
from genesis_fn.nn.layers.dense import linear

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def weights(*shape: int) -> np.ndarray:
    """[n, k], of a size that keeps products of k terms as large as their operands."""
    return normal(*shape) / np.float32(np.sqrt(shape[-1]))


def launches(executable: Any) -> list[str]:
    found = []
    for step in executable.schedule.steps:
        for inner in step.steps if isinstance(step, SubProgram) else (step,):
            assert isinstance(inner, Launch), inner
            found.append(inner.kernel.name if hasattr(inner.kernel, "name") else "kernel")
    return found


def checked(f: Any, *args: Any, tolerance: float = 2e-5) -> list[str]:
    with g.default_matmul_precision("float32"):
        return launches(programs.compare(f, *args, tolerance=tolerance))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [gnp.float32, gnp.bfloat16], ids=["float32", "bfloat16"])
def test_norm_before_and_residual_after(rows: int, dtype: Any) -> None:
    def f(x, scale, w, v):
        h = rms_norm(x, scale, eps=1e-6)
        return x + (linear(h, w)) @ v

    k = 48
    args = normal(rows, k), normal(k), normal(20, k), normal(20, k)
    args = [a.astype(dtype) for a in args]
    tolerance = 2e-5 if dtype == gnp.float32 else 0.3
    assert len(checked(f, *args, tolerance=tolerance)) == (2 if rows == 1 else 3)
    with without("products"):
        assert len(checked(f, *args, tolerance=tolerance)) == 4


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_a_gate_is_one_product(rows: int) -> None:
    def f(x, gate, up, down):
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    k, n = 64, 40
    args = normal(rows, k), weights(n, k), weights(n, k), weights(k, n)
    assert len(checked(f, *args)) == 2


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("rows", [3, 16, 33, 64])
def test_few_rows_times_several_matrices_are_one_launch(rows: int, biased: bool) -> None:
    def f(x, q, k, v, bias):
        q, k, v = [linear(x, w) for w in (q, k, v)]
        return q, gnp.tanh(k + bias if biased else k), v

    shapes = (rows, 64), (48, 64), (24, 64), (24, 64), (24,)
    args = [weights(*shape).astype(gnp.bfloat16) for shape in shapes]
    assert len(checked(f, *args, tolerance=2e-2)) == 2
    with without("grouped"):
        assert len(checked(f, *args, tolerance=2e-2)) > 2


def test_what_others_read_stays_in_memory() -> None:
    def f(x, w):
        h = gnp.tanh(x) * 2
        y = linear(h, w)
        return gnp.exp(y * 0.1), y, h

    checked(f, normal(2, 32), normal(24, 32))

    def several(x, w):
        y = linear(x, w)
        return y[:, ::-1] * 2, y + 1, gnp.sum(y, -1)

    checked(several, normal(2, 32), normal(24, 32))


def test_an_epilogue_reads_other_products_and_broadcasts() -> None:
    def f(x, w, v, bias):
        return gnp.maximum(linear(x, w) + bias, 0) * (linear(bias, v))

    checked(f, normal(3, 16), normal(24, 16), normal(24, 24), normal(24))


def test_products_of_one_operand_share_a_launch() -> None:
    def f(x, scale, q, k, v):
        h = rms_norm(x, scale, eps=1e-6)
        return linear(h, q), gnp.tanh(linear(h, k)), h @ v

    args = normal(1, 32), normal(32), normal(24, 32), normal(16, 32), normal(32, 40)
    (name, *others) = checked(f, *args)
    assert name.startswith("joint_matmul_gemv") and len(others) <= 1
    with without("horizontal"):
        assert len(checked(f, *args)) == 3


def test_steps_that_depend_on_each_other_keep_their_order() -> None:
    def f(x, y):
        a = gnp.cumsum(x)
        b = gnp.sin(y)
        c = gnp.sum(a * b[:8])
        return c, gnp.cos(y[:5]), b, gnp.sort(a)

    checked(f, normal(8), normal(16))
