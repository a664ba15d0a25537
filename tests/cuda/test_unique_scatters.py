"""Scatters that set no element twice: each element finds its own place."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import errors, lax, nn
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.core.device import using_device

DTYPES = ("float32", "bfloat16", "bool", "int8", "float64", "complex64")


def drawn(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    x = np.random.default_rng(seed).integers(-9, 9, shape)
    return (x > 0) if dtype == "bool" else x.astype(gnp.dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
def test_rows_and_windows(dtype: str, mode: str) -> None:
    draw = np.random.default_rng(len(dtype))
    x, rows = drawn(0, (17, 5, 6), dtype), draw.permutation(17)[:7].astype(np.int32)
    if mode == "drop":
        rows[2], rows[5] = 17, -18
    columns = draw.permutation(6)[:4].astype(np.int32)

    def f(x, u, v, w):
        return (
            x.at[rows].set(u, mode=mode, unique_indices=True),
            x.at[:, :, columns].set(v, mode="clip", unique_indices=True),
            x.at[rows[:1] % 17, 2:4, columns[:1]].set(w, mode="clip", unique_indices=True),
        )

    programs.compare(
        f, x, drawn(1, (7, 5, 6), dtype), drawn(2, (17, 5, 4), dtype), drawn(3, (1, 2), dtype)
    )


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_keys_into_a_cache_need_one_launch_and_one_for_where(batch: int) -> None:
    draw = np.random.default_rng(batch)
    cache = draw.standard_normal((batch, 12, 2, 4)).astype(gnp.bfloat16)
    new = draw.standard_normal((batch, 2, 2, 4)).astype(gnp.bfloat16)
    at = draw.integers(0, 14, batch).astype(np.int32)  # some begin too late: they count as the last

    def f(cache, new, at):
        return nn.write_cache(cache, new, at)

    programs.compare(f, cache, new, at)
    with using_device(gf.cuda(0)) as device:
        given = [gnp.asarray(x) for x in (cache, new, at)]
        made = gf.jit(f, donate_argnames="cache").trace(*given).executable(device)
    launches = [
        s for step in made.schedule.steps if isinstance(step, SubProgram) for s in step.steps
    ]
    assert len(launches) == (1 if batch == 1 else 2) and len(made.replaced) == 1


def test_sums_and_products_of_places_of_their_own() -> None:
    rows = np.random.default_rng(5).permutation(33)[:20].astype(np.int32)

    def f(x, u):
        return x.at[rows].add(u, unique_indices=True), x.at[rows].mul(u, unique_indices=True)

    programs.compare(f, drawn(6, (33, 40), "bfloat16"), drawn(7, (20, 40), "bfloat16"))


def test_a_checked_index_is_reported() -> None:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    with using_device(gf.cuda(0)):
        x, u = gnp.zeros((4, 3)), gnp.ones((2, 3))
        with pytest.raises(errors.IndexOutOfRange, match="7"):
            lax.scatter(
                x, gnp.array([[1], [7]]), u, numbers, unique_indices=True, mode="check"
            ).tolist()  # fmt: skip
