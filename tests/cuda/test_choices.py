"""Choices between elements of one array as loads at chosen offsets: interpreted, against NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import programs
import pytest

import genesis_fn.numpy as gnp
from genesis_fn.backends.cuda.codegen import launches
from genesis_fn.compiler.loop_ir.kernel import KernelIR
from genesis_fn.compiler.options import without


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are generated."""
    found: list[str] = []
    before = launches.generate

    def generate(body: KernelIR, *args: Any) -> launches.GeneratedKernels:
        made = before(body, *args)
        found.extend(made.sources)
        return made

    monkeypatch.setattr(launches, "generate", generate)
    return found


def results(f: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    jaxpr, inputs = programs.traced(f, *args)
    executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
    return [programs.get(y) for y in executable(*map(programs.put, inputs))]


def loads(text: str) -> int:
    return len(re.findall(r"tl\.load\(", text))


def windows(np_: Any, x: Any, mode: str, radius: int) -> Any:
    """Weighted sums over windows, whose places beyond the edges are those of `mode`."""
    _, rows, columns = x.shape
    edges = ((0, 0), (radius, radius), (radius, radius))
    y = np_.pad(x, edges, mode=mode)
    total = np_.zeros_like(x)
    for i in range(2 * radius + 1):
        for j in range(2 * radius + 1):
            total = total + y[:, i : i + rows, j : j + columns] * (1 + 3 * i + j)
    return total


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap", "symmetric", "constant"])
@pytest.mark.parametrize("shape", [(2, 16, 64), (3, 13, 45)], ids=str)
def test_windows_over_edges(shape: tuple[int, ...], mode: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (got,) = results(lambda x: windows(gnp, x, mode, 1), x)
    want = windows(np, x.astype(np.float64), mode, 1)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_many_loads_share_the_parts_of_their_indices(mode: str, texts: list[str]) -> None:
    x = np.random.default_rng(1).standard_normal((2, 13, 45)).astype(np.float32)
    (got,) = results(lambda x: windows(gnp, x, mode, 2), x)
    want = windows(np, x.astype(np.float64), mode, 2)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-3)
    lines = [line.strip() for text in texts for line in text.splitlines()]
    parts = [line.partition(" = ")[2] for line in lines if line.startswith("v_at")]
    assert parts and len(set(parts)) == len(parts)
    # No row of a window is found more than once.
    assert all([text.count("% 13)") <= 1 for text in texts])


def test_a_place_is_one_load(texts: list[str]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 64)).astype(np.float32)
    (got,) = results(lambda x: windows(gnp, x, "edge", 2), x)
    np.testing.assert_allclose(got, windows(np, x, "edge", 2), rtol=2e-5, atol=1e-3)
    (text,) = texts
    # Corners would be four loads each, and there are 16 such places of 25.
    assert loads(text) <= 25 + 8
    with without("choices"):
        results(lambda x: windows(gnp, x, "edge", 2), x)
    assert loads(texts[-1]) > 64


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.int8, np.float64], ids=str)
def test_parts_in_another_order(kind: Any) -> None:
    x = (np.random.default_rng(0).standard_normal((6, 50)) * 50).astype(kind)

    def f(np_: Any, x: Any) -> Any:
        y = np_.concatenate([x[:, 31:], x[:, 3:17], x[:, 17:31], x[:, 1:3]], 1)
        z = np_.concatenate([x[3:], x[1:3], x[:1]], 0)
        return y + y[:, :1], z * z, np_.where(z > 0, z, x)

    for a, b in zip(results(lambda x: f(gnp, x), x), f(np, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_choice_that_others_read_stays_a_value() -> None:
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)

    def f(np_: Any, x: Any) -> Any:
        y = np_.concatenate([x[:, 7:], x[:, :7]], 1)
        z = np_.concatenate([y[:, 3:], x[:, 9:12]], 1)
        return np_.sum(y * z, 1), np_.max(z, 1), y + z

    for a, b in zip(results(lambda x: f(gnp, x), x), f(np, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_zeros_beyond_an_edge_are_not_read() -> None:
    # Two different fills: what neither part has is zero, and no element of the array.
    x = np.full((4, 64), np.nan, np.float32)
    x[:, 20:40] = 1

    def f(np_: Any, x: Any) -> Any:
        a = np_.pad(x[:, 20:40], ((0, 0), (22, 22)))
        b = np_.pad(x[:, 24:36], ((0, 0), (26, 26)))
        return np_.where(np_.arange(64) < 32, a, b)

    (got,) = results(lambda x: f(gnp, x), x)
    np.testing.assert_array_equal(got, f(np, x))
