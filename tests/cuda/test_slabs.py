"""Kernels that reduce rows and columns at once, and rows in parts: interpreted, against the CPU
backend and against the same program with each reduction in a kernel of its own."""

from __future__ import annotations

import os

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.fusion import fuse
from genesis_fn.compiler.loop_ir import reindex
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: np.dtype = dtypes.F32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def rms_norm(x, w):
    y = x.astype(gnp.float32)
    y = y * lax.rsqrt(gnp.mean(y * y, -1, keepdims=True) + 1e-6)
    return (y * w).astype(x.dtype)


def layer_norm(x, w, b):
    y = x - gnp.mean(x, -1, keepdims=True)
    return y * lax.rsqrt(gnp.mean(y * y, -1, keepdims=True) + 1e-5) * w + b


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    turned = gnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return (x * cos + turned * sin).astype(x.dtype)


def backward(f):
    def run(*xs, dy):
        return g.vjp(f, *xs)[1](dy)

    return lambda dy, *xs: run(*xs, dy=dy)


def crossed(f, *args) -> int:
    """How many kernels reduce rows and columns."""
    jaxpr, _ = programs.traced(f, *args)
    groups = fuse.fuse_jaxpr(simplify_jaxpr(jaxpr), H200).groups
    return sum(x.domain is not None and x.domain.row_column for x in groups)


def results(f, *args) -> list[np.ndarray]:
    jaxpr, inputs = programs.traced(f, *args)
    executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
    return [programs.get(y) for y in executable(*map(programs.put, inputs))]


def ulps(a: np.ndarray, b: np.ndarray, of_largest: bool) -> float:
    """The largest difference in units in the last place: of each value (at least a hundredth of the
    largest one), or of the largest value, as is fair to sums whose terms cancel."""
    kind = a.dtype
    a, b = a.astype(np.float64), b.astype(np.float64)
    largest = np.abs(b).max(initial=1e-30)
    scale = largest if of_largest else np.maximum(np.abs(b), largest * 1e-2)
    return float((np.abs(a - b) / scale).max(initial=0) / float(dtypes.finfo(kind).eps))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((300, 96), dtypes.F32), ((517, 128), dtypes.BF16), ((256, 1000), dtypes.F32),
     ((1031, 33), dtypes.BF16)],
    ids=str,
)  # fmt: skip
def test_norm_backward_is_one_pass(shape, kind) -> None:
    args = normal(*shape, dtype=kind), normal(*shape, dtype=kind), normal(shape[1])
    f = backward(rms_norm)
    assert crossed(f, *args) == 1
    programs.compare(f, *args, tolerance=2e-2 if kind == dtypes.BF16 else 2e-4)
    together = results(f, *args)
    with without("row_column_reduce"):
        assert crossed(f, *args) == 0
        apart = results(f, *args)
    for a, b in zip(together, apart, strict=True):
        # Interpreted, rows are summed in the same order; compiled, in one that suits the kernel.
        same_order = os.environ.get("TRITON_INTERPRET") == "1" and a.shape == shape
        assert ulps(a, b, a.shape != shape) <= (2 if same_order else 8)


def test_layer_norm_backward() -> None:
    f = backward(layer_norm)
    args = normal(400, 72), normal(400, 72), normal(72), normal(72)
    assert crossed(f, *args) == 1
    programs.compare(f, *args, tolerance=2e-4)


def test_equal_sides() -> None:
    programs.compare(
        lambda x: (gnp.sum(x, 0), gnp.max(x, 1), x - gnp.mean(x, 1, keepdims=True)),
        normal(256, 256),
        tolerance=1e-4,
    )


def test_every_fold() -> None:
    x = normal(3, 100, 50)
    x[1, 20, 7], x[2, 90, 9], x[0, 0, 11] = np.nan, np.inf, -np.inf

    def f(x):
        y = gnp.sum(x, 2)
        return (
            y,
            gnp.sum(x, (0, 1)),
            gnp.max(x, (0, 1)),
            gnp.min(x, (0, 1)),
            gnp.prod(x * 0.01 + 1, (0, 1)),
            gnp.any(x > 3, (0, 1)),
            gnp.all(x < 2, (0, 1)),
            gnp.argmax(x[0], 0),
            gnp.mean(x, (0, 1)) * 2 + gnp.arange(50),
        )

    programs.compare(f, x, tolerance=2e-4)
    i = rng.integers(-100, 100, (400, 48)).astype(np.int32)
    programs.compare(lambda i: (gnp.sum(i, 0), gnp.sum(i, 1), gnp.max(i, 0), gnp.min(i, 0)), i)


def test_parameters_are_updated_in_place() -> None:
    def step(x, dy, w, m):
        dx, dw = g.vjp(rms_norm, x, w)[1](dy)
        m = m * 0.9 + dw * 0.1
        return dx, w - 0.1 * m / (gnp.abs(m) + 1), m

    args = normal(512, 64), normal(512, 64), normal(64), normal(64)
    executable = programs.compare(step, *args, tolerance=2e-4, donated=(False, False, True, True))
    assert executable.memory_analysis()["alias_size_in_bytes"] == 2 * 64 * 4
    copies = [s for s in executable.schedule.steps if type(s).__name__ == "Copy"]
    assert not copies


def test_last_steps_of_alike_kernels_share_a_launch() -> None:
    def f(xs, ws, dys):
        return [g.vjp(rms_norm, x, w)[1](dy) for x, w, dy in zip(xs, ws, dys)]

    n = 3
    args = [
        [normal(300, 32) for _ in range(n)],
        [normal(32) for _ in range(n)],
        [normal(300, 32) for _ in range(n)],
    ]
    executable = programs.compare(f, *args, tolerance=2e-4)
    assert len(executable.schedule.steps) == 2


@pytest.mark.parametrize("heads", [1, 3])
def test_rotation_is_computed_in_halves(heads: int) -> None:
    shape = (2, 150, heads, 64)
    cos, sin = normal(150, 1, 64), normal(150, 1, 64)
    x, dy, w = normal(*shape), normal(*shape), normal(64)

    def forward(x, w, cos, sin):
        return rope(rms_norm(x, w), cos, sin)

    def both(x, w, cos, sin, dy):
        y, pull = g.vjp(lambda x, w: forward(x, w, cos, sin), x, w)
        return y, *pull(dy)

    executable = programs.compare(both, x, w, cos, sin, dy, tolerance=3e-4)
    text = executable.as_text()
    assert "tl.arange(0, 32)[None, :]" in text and "r < 32" not in text


def test_rows_of_a_concatenation_are_cut_at_its_parts() -> None:
    def f(x, y):
        z = gnp.concatenate([x, y, x + y], 1)
        return z * 2, gnp.sum(z, 1), gnp.max(z, 1)

    programs.compare(f, normal(70, 32), normal(70, 32), tolerance=1e-5)
    programs.compare(lambda x: gnp.sum(gnp.pad(x, ((0, 0), (32, 64))) + 1, 1), normal(90, 32))
    # Unequal parts keep their conditions.
    programs.compare(
        lambda x, y: gnp.sum(gnp.concatenate([x, y], 1), 1),
        normal(9, 48),
        normal(9, 17),
        tolerance=1e-5,
    )
    # Positions are of the whole row.
    programs.compare(
        lambda x, y: gnp.argmax(gnp.concatenate([x, y], 1), 1), normal(70, 32), normal(70, 32)
    )


def test_flat_kernels_with_a_value_for_each_row_use_rows() -> None:
    def f(x, s, w):
        return (x / (s * s + 1)[:, None] * w).astype(gnp.bfloat16)

    executable = programs.compare(f, normal(300, 64), normal(300), normal(64), tolerance=1e-2)
    assert "def rows(" in executable.as_text()


def test_the_length_of_parts() -> None:
    def parts(f, *args) -> list[int]:
        jaxpr, _ = programs.traced(f, *args)
        return [
            reindex.segment_length(x.kernel.instrs, x.domain.reduced)
            for x in fuse.fuse_jaxpr(simplify_jaxpr(jaxpr), H200).groups
            if x.kernel is not None
        ]

    def joined(x, y):
        return gnp.sum(gnp.concatenate([x, y], 1), 1)

    assert parts(joined, normal(8, 32), normal(8, 32)) == [32]
    assert parts(joined, normal(8, 32), normal(8, 96)) == [32]
    assert parts(joined, normal(8, 32), normal(8, 33)) == [65]
    assert parts(joined, normal(8, 4), normal(8, 4)) == [8]
