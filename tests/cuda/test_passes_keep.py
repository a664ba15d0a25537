"""What passes over a program's equations keep of those that they replace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda import pipeline
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.jaxpr import Jaxpr

pytestmark = pytest.mark.interpreted

# Those of `schedule` that rewrite equations, in its order; a new one belongs here, too.
PASSES = [
    "known_indices", "counted_scans", "products_outside", "row_loops", "joined_iterations",
    "absorb_casts", "shallow_products", "vectors_left", "inner_products", "pitched_products",
    "group_matmuls", "row_sums", "joined_sums", "stacked_sums", "share_sorts", "random_words",
    "rotations", "overlays", "computed_reductions", "row_factors", "reductions_by_columns",
]  # fmt: skip
rng = np.random.default_rng(17)


def drawn(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def numbers(high: int, *shape: int) -> np.ndarray:
    return rng.integers(0, high, shape).astype(np.int32)


def cell(w: Any, x: Any) -> Any:
    def step(c: Any, now: Any) -> Any:
        c = gnp.tanh(c @ w + now @ w)
        return c, c @ w

    return gnp.sum(lax.scan(step, x[0], x)[1] ** 2)


def rotated(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, x: 0.5 * x + gnp.roll(x, 1, 0) * gnp.roll(x, -1, 1), x)


def collected(x: Any, out: Any) -> Any:
    step = lambda i, c: (gnp.sin(c[0] + c[1][i]), c[1].at[i].set(c[0]))
    x, out = lax.fori_loop(0, 4, step, (x, out))
    return gnp.sum(x) + gnp.sum(out**2)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "vectors": (lambda x, v: (x @ v, v @ v, gnp.sum(x * v)), (drawn(40, 30), drawn(30))),
    "few terms": (lambda x, w: gnp.tanh(x @ w), (drawn(40, 2), drawn(2, 30))),
    "wide": (lambda x, w: gnp.exp(x) @ w, (drawn(2048, 1601), drawn(1601, 1024))),
    "groups": (lambda x, a, b: x @ a + x @ b, (drawn(64, 48), drawn(48, 32), drawn(48, 32))),
    "loop": (gf.grad(cell), (drawn(16, 16), drawn(9, 5, 16))),
    "stencil": (rotated, (drawn(24, 24),)),
    "counted": (gf.grad(collected), (drawn(9), drawn(5, 9))),
    "lookups": (
        gf.grad(lambda x, i, j: gnp.sum(gnp.sin(x[i, j]))),
        (drawn(9, 30, 4), numbers(9, 50), numbers(30, 50)),
    ),
    "sums": (
        lambda x, i: (gf.ops.segment_sum(x, i, 9), gf.ops.segment_sum(2 * x, i, 9)),
        (drawn(3000, 3), numbers(9, 3000)),
    ),
    "known": (lambda x: x[:, np.arange(3, 9)] * 2, (drawn(9, 12),)),
    "updates": (lambda x, y: x.at[2:30].set(y) + 1, (drawn(31, 8), drawn(28, 8))),
    "norms": (
        lambda x: (x - x.mean((0, 2), keepdims=True)) / x.std((0, 2), keepdims=True),
        (drawn(16, 32, 40),),
    ),
    "pairs": (lambda x: gnp.sum((x[:, None] - x[None]) ** 2, (1, 2)), (drawn(80, 3),)),
}


def test_all_passes_are_here() -> None:
    source = inspect.getsource(pipeline.schedule)
    found = [name for name in PASSES if f"jaxpr = {name}(jaxpr" in source]
    assert found == PASSES and source.count("jaxpr = ") == len(PASSES)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_rewritten_stays_in_its_pass(program: str) -> None:
    """Kernels of a forward and a backward pass do not merge: what one computes would live on."""
    f, given = PROGRAMS[program]
    jaxpr: Jaxpr = simplify_jaxpr(programs.traced(f, *given)[0])
    for e in jaxpr.eqns:
        e.backward = True
    for name in PASSES:
        run = getattr(pipeline, name)
        jaxpr = run(jaxpr, H200) if len(inspect.signature(run).parameters) > 1 else run(jaxpr)
        assert all([e.backward for e in jaxpr.eqns]), name
