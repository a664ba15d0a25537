"""Products of a batch of vectors with small matrices, as sums that look the matrices up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.compiler.rewrites.vectors import inner_products
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import Target

pytestmark = pytest.mark.interpreted


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


PAIRS = 70
SMALL: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "rows": ("bd,bkd->bk", (PAIRS, 24), (PAIRS, 5, 24)),
    "columns": ("bk,bkd->bd", (PAIRS, 5), (PAIRS, 5, 24)),
    "matrix first": ("bkd,bd->bk", (PAIRS, 5, 24), (PAIRS, 24)),
    "batch last": ("db,kdb->bk", (24, PAIRS), (5, 24, PAIRS)),
    "two of each": ("bxij,yxbkij->bxky", (35, 2, 5, 3), (7, 2, 35, 4, 5, 3)),
    "columns and ones": ("bod,bkd->bok", (PAIRS, 1, 24), (PAIRS, 5, 24)),
}


def weighed(xp: Any, name: str) -> Callable[..., Any]:
    """A product of which the larger operand is computed."""

    def f(x, y):
        x, y = (x, xp.sin(y)) if y.size > x.size else (xp.sin(x), y)
        return xp.einsum(SMALL[name][0], x, y)

    return f


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", SMALL)
def test_vectors_and_small_matrices(name: str, kind: str) -> None:
    args = [normal(*s, seed=k).astype(gnp.dtype(kind)) for k, s in enumerate(SMALL[name][1:])]
    jaxpr = simplify_jaxpr(programs.traced(weighed(gnp, name), *args)[0])
    left = [e.prim.name for e in inner_products(jaxpr).eqns]
    assert "dot_general" not in left
    jaxpr, given = programs.traced(weighed(gnp, name), *args)
    (got,) = [
        programs.get(v)
        for v in programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, given))
    ]
    wide = [x.astype(np.float64) for x in args]
    want = weighed(np, name)(*wide)
    assert got.dtype == args[0].dtype and got.shape == want.shape
    bound = {"float32": 2e-6, "bfloat16": 4e-2, "float64": 1e-12}
    scale = np.abs(want).max()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=bound[kind] * scale)


STAYS: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "what lies in memory": (lambda x, y: gnp.einsum("bd,bkd->bk", x, y), ((70, 9), (70, 5, 9))),
    "few": (lambda x, y: gnp.einsum("bd,bkd->bk", x, gnp.sin(y)), ((9, 9), (9, 5, 9))),
    "large": (
        lambda x, y: gnp.einsum("bd,bkd->bk", x, gnp.sin(y)), ((70, 80), (70, 60, 80))
    ),
    "two matrices": (
        lambda x, y: gnp.einsum("bjd,bkd->bjk", x, gnp.sin(y)), ((70, 2, 9), (70, 5, 9))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_stays_a_product(name: str) -> None:
    f, shapes = STAYS[name]
    args = [normal(*s, seed=k) for k, s in enumerate(shapes)]
    jaxpr = simplify_jaxpr(programs.traced(f, *args)[0])
    assert inner_products(jaxpr) is jaxpr


def test_rows_that_products_read_are_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the product and its derivative gather them."""
    monkeypatch.setattr(Target, "launch_bytes", 4096)  # as if the arrays were large
    draw = np.random.default_rng(4)
    table, x = normal(900, 64, seed=1), normal(70, 64, seed=2)
    at = draw.integers(0, 900, (70, 8)).astype(np.int32)

    def step(x, table, at):
        score = lambda x: gnp.sum(gnp.tanh(gnp.einsum("bd,bkd->bk", x, table[at])))
        return g.value_and_grad(score)(x)

    jaxpr, given = programs.traced(step, x, table, at)
    made = programs.compile_jaxpr(jaxpr, programs.PLACE)
    assert "gather_rows" not in made.as_text()
    assert made.schedule.arena < at.size * 64
    score, back = [programs.get(v) for v in made(*map(programs.put, given))]
    rows = table[at].astype(np.float64)
    held = np.tanh(np.einsum("bd,bkd->bk", x, rows))
    want = np.einsum("bk,bkd->bd", 1 - held**2, rows)
    np.testing.assert_allclose(score, held.sum(), rtol=1e-4)
    np.testing.assert_allclose(back, want, rtol=1e-4, atol=1e-5)
    at[6, 2] = 901
    with pytest.raises(IndexError, match="901"):
        [programs.get(v) for v in made(*map(programs.put, (*given[:-1], at)))]
