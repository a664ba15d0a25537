"""What Triton's compiler makes of kernels, run by a model of PTX: layouts, lanes, alignment.

In a run that interprets kernels, one test starts the others in a process that compiles.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import programs
import pytest
import torch

import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.kernels.indexing.scatter import ScatterRows, plan_scatter_rows
from genesis_fn.kernels.plan import BufferArg, Launch
from genesis_fn.kernels.sort import block_sort
from genesis_fn.kernels.sort.sort import Sort, plan_sort
from tests.kernels.planned import plans_of
from tests.support import compiled, ptx

rng = np.random.default_rng(0)
only_compiled = pytest.mark.skipif(not compiled.CHOSEN, reason="started by the first test")


@pytest.mark.skipif(compiled.CHOSEN, reason="these are its tests")
@pytest.mark.interpreted
def test_compiled_kernels() -> None:
    environment = {**os.environ, "GENESIS_KERNELS": "compiled"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    run = subprocess.run(
        [*command, __file__], env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


@only_compiled
def test_lanes_count_the_digits_before_them() -> None:
    """Elements of a tile lie in the lanes and registers that the inline PTX takes them to be in."""
    x = rng.integers(-128, 128, (2, 2500)).astype(np.int8)
    x[:, 700:1900] >>= 5  # many equal ones
    places = np.broadcast_to(np.arange(2500, dtype=np.int32), x.shape).copy()
    values, order = np.zeros_like(x), np.zeros_like(places)
    plan = plan_sort(Sort(*x.shape, ("i8", "i32")), H200)
    compiled.run_plan(plan, [x, places, values, order])
    np.testing.assert_array_equal(order, np.argsort(x, 1, kind="stable"))
    np.testing.assert_array_equal(values, np.sort(x, 1))


@only_compiled
@pytest.mark.parametrize(
    ("columns", "deterministic"),
    [(3, True), (1, True), (64, False)],
    ids=["rows", "one", "atomics"],
)
def test_sums_of_rows(columns: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted by digits narrower than 8 bits, in tiles of 64-bit keys, or added 16 bytes at once."""
    monkeypatch.setattr(block_sort, "BLOCK", 64)
    rows, count = 1100, 700 if deterministic else 200
    index = rng.integers(0, rows, count).astype(np.int32)
    index[50:150] = 9
    updates = rng.standard_normal((count, columns)).astype(np.float32)
    spec = ScatterRows(rows, columns, count, "fp32", deterministic=deterministic)
    out = np.full((rows, columns), np.nan, np.float32)
    compiled.run_plan(plan_scatter_rows(spec, H200), [index, updates, out])
    want = np.zeros(out.shape)
    np.add.at(want, index, updates.astype(np.float64))
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-4)


@only_compiled
def test_convolution_of_bfloat16() -> None:
    """A window of even width: Triton 3.6 takes odd positions for even ones if it may."""
    x = rng.standard_normal((2, 3, 8, 8)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((8, 3, 6, 4)).astype(ml_dtypes.bfloat16)
    padding = ((0, 5), (0, 3))
    out = np.zeros((2, 8, 8, 8), ml_dtypes.bfloat16)
    (plan,) = plans_of(
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), padding),
        [(x.shape, dtypes.BF16), (w.shape, dtypes.BF16)],
        H200,
    )
    compiled.run_plan(plan, [x, w, out])
    wide = np.pad(x.astype(np.float32), ((0, 0), (0, 0), *padding))
    want = torch.nn.functional.conv2d(
        torch.from_numpy(wide), torch.from_numpy(w.astype(np.float32))
    ).numpy()
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=2e-2, atol=2e-2)


def cut(x):
    """Rows of 6 made of 4 columns: positions are remainders by 4 of remainders by 6."""
    return gnp.tile(x, (1, 2))[:, :6]


NESTED: dict[str, Callable] = {
    "flat": lambda x: gnp.tile(gnp.tile(x[0], 2)[:6], 50) * 2,
    "row": lambda x: gnp.max(gnp.tile(cut(x), (1, 50)), 1),
    "columns": lambda x: gnp.sum(gnp.tile(cut(x), (1, 50)), 0),
    "tiles": lambda x: gnp.transpose(gnp.tile(cut(x), (1, 16))) + 1,
}


@only_compiled
@pytest.mark.parametrize("name", NESTED)
def test_remainders_of_remainders(name: str) -> None:
    x = rng.standard_normal((96, 4)).astype(ml_dtypes.bfloat16)
    text = programs.compare(NESTED[name], x, tolerance=2e-2).as_text()
    assert "% 6)) % 4" in text


@only_compiled
@pytest.mark.parametrize("kind", [dtypes.BF16, dtypes.F32], ids=str)
def test_sums_for_columns_load_ahead(kind: np.dtype) -> None:
    """Rounds of a loop are under way in shared memory; what is stored may be wider."""
    x = rng.standard_normal((2101, 64)).astype(kind)

    def f(x):
        y = x.astype(gnp.float32) * 2
        return gnp.sum(y * y, 0), gnp.max(y, 0), y

    text = programs.compare(f, x, tolerance=2e-4).as_text()
    assert "num_stages" in text and ("max_contiguous" in text) == (kind == dtypes.BF16)


@only_compiled
def test_neighbours_that_read_one_element() -> None:
    x, m = rng.standard_normal((4, 70, 32, 8)).astype(np.float32), rng.standard_normal((4, 32))

    def f(x, m):
        return (x - m[:, None, :, None]) ** 2, gnp.sum(x * m[:, None, :, None], (0, 1, 2, 3))

    text = programs.compare(f, x, m.astype(np.float32), tolerance=2e-3).as_text()
    assert "r_8" in text


@only_compiled
def test_chosen_offsets() -> None:
    """Of a padded array: addresses that no part has are computed, and not read."""
    x = rng.standard_normal((2, 24, 64)).astype(np.float32)

    def f(x):
        y = gnp.pad(x, ((0, 0), (1, 1), (1, 1)), mode="edge")
        return sum([y[:, i : i + 24, j : j + 64] * (i + 3 * j) for i in range(3) for j in range(3)])

    text = programs.compare(f, x, tolerance=1e-4).as_text()
    assert "tl.load(b0 + (tl.where" in text


@only_compiled
def test_a_misaligned_access_is_refused() -> None:
    from genesis_fn.backends.cuda.binaries.compile import SourceKernel
    from genesis_fn.kernels.language.expressions import MODULES, PRELUDE

    text = (
        f"{PRELUDE}def aligned(x, y):\n"
        "    p = tl.arange(0, 512)\n"
        "    tl.store(y + p, tl.load(x + p))\n"
    )
    # The offset is not what the kernel is compiled for.
    kernel = SourceKernel("aligned", text, MODULES)
    launch = Launch(kernel, (1, 1, 1), {"x": BufferArg(0, "fp32"), "y": BufferArg(1, "fp32")})
    held = np.zeros(1024, np.float32)
    at = -(-held.ctypes.data // 16) * 16
    within = [(held.ctypes.data, held.ctypes.data + held.nbytes)]
    compiled.run_launch(launch, [at, at + 2048], within)
    with pytest.raises(ptx.Fault, match="16 bytes"):
        compiled.run_launch(launch, [at + 4, at + 2048], within)
    with pytest.raises(ptx.Fault, match="array"):
        compiled.run_launch(launch, [at, at + 4096 - 1024], within)
