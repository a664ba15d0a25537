"""Products that a scan need not make step by step leave it; values stay those of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from programs import run

import genesis_fn as g
from genesis_fn.compiler.scans import products
from genesis_fn.core.jaxpr import Eqn, Jaxpr


def normal(*shape: int, seed: int = 0, scale: float = 0.3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def inputs_ahead(xp: Any, lax: Any) -> Callable:
    return lambda w, u, xs: lax.scan(lambda h, x: (xp.tanh(x @ w + h @ u), h), xs[0] @ w, xs)


def turned_ahead(xp: Any, lax: Any) -> Callable:
    """The constant on the left: the product's axes are in the other order."""
    return lambda w, u, xs: lax.scan(
        lambda h, x: (xp.tanh((w.T @ x.T).T + h @ u), h), xs[0] @ w, xs, reverse=True
    )


def results_behind(xp: Any, lax: Any) -> Callable:
    return lambda w, u, xs: lax.scan(lambda h, x: (xp.tanh(h + x), (h @ w, u.T @ h.T)), xs[0], xs)


def inputs_to_results(xp: Any, lax: Any) -> Callable:
    """A product of what comes in that only goes out: it is made once, behind the loop."""
    return lambda w, u, xs: lax.scan(lambda h, x: (xp.tanh(h + x), x @ w), xs[0], xs)


def gradients(xp: Any, lax: Any) -> Callable:
    """Sums of products over rows, and of rows, with what they start from."""

    def run(w: Any, u: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            total, bias, h = carry
            h = xp.tanh(h * 0.5 + x)
            return (total + x.T @ h, bias + xp.sum(h, axis=0), h), h[0, 0]

        return lax.scan(step, (u, w[0], xs[0]), xs)

    return run


SQUARE = normal(16, 16), normal(16, 16, seed=1)
# name: (program, rows, what leaves the loop)
PROGRAMS: dict[str, tuple[Callable, int, int]] = {
    "inputs ahead": (inputs_ahead, 3, 1),
    "turned ahead": (turned_ahead, 3, 1),
    "results behind": (results_behind, 3, 2),
    "inputs to results": (inputs_to_results, 3, 1),
    "gradients": (gradients, 3, 1),
    "too many rows": (inputs_ahead, 30, 0),
    "gradients of many rows": (gradients, 30, 0),
}


def products_of(eqns: Sequence[Eqn]) -> int:
    return sum(e.prim.name == "dot_general" for e in eqns)


def count(jaxpr: Jaxpr) -> int:
    return products_of(jaxpr.eqns)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many products each scan has lost."""
    found: list[int] = []
    once = products._outside

    def noted(e: Any) -> Any:
        eqns = once(e)
        (scan,) = [x for x in eqns if x.prim.name == "scan"]
        # Each is somewhere, once.
        assert count(e.params["jaxpr"]) == products_of([*eqns, *scan.params["jaxpr"].eqns])
        found.append(count(e.params["jaxpr"]) - count(scan.params["jaxpr"]))
        return eqns

    monkeypatch.setattr(products, "_outside", noted)
    return found


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, kind: str, left: list[int]) -> None:
    make, rows, products_left = PROGRAMS[name]
    args = *SQUARE, normal(5, rows, 16, seed=2)
    narrow = kind == "bfloat16"
    if narrow:
        args = tuple([x.astype(ml_dtypes.bfloat16) for x in args])
    with g.default_matmul_precision("highest"):
        got = run(make(g.numpy, g.lax), *args)
    wide = [np.asarray(x, np.float32) for x in args]
    with jax.default_matmul_precision("highest"):
        want = [np.asarray(x) for x in jax.tree.leaves(make(jnp, jax.lax)(*wide))]
    assert left == [products_left]
    for x, y in zip(got, want, strict=True):
        assert x.dtype == (ml_dtypes.bfloat16 if narrow else np.float32)
        bound = (4e-2 if narrow else 2e-6) * max(1.0, np.abs(y).max())
        np.testing.assert_allclose(x.astype(np.float32), y, rtol=0, atol=bound)


def test_what_a_step_reads_stays(left: list[int]) -> None:
    """A sum that the next step needs, and a product that is carried on."""

    def f(w: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            total, h = carry
            return (total + x.T @ x, h @ w + total[:1, :]), total[0, 0]

        return g.lax.scan(step, (w, xs[0]), xs)

    def same(w: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            total, h = carry
            return (total + x.T @ x, h @ w + total[:1, :]), total[0, 0]

        return jax.lax.scan(step, (w, xs[0]), xs)

    args = normal(16, 16), normal(4, 2, 16, seed=3)
    with g.default_matmul_precision("highest"):
        got = run(f, *args)
    with jax.default_matmul_precision("highest"):
        want = jax.tree.leaves(same(*args))
    assert left == [0]
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


# ---- products of two vectors ----

INNER: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "vectors": (lambda xp, x, y: xp.dot(x, y), ((70,), (70,))),
    "a row and a column": (lambda xp, x, y: x @ y, ((1, 70), (70, 1))),
    "of a batch": (lambda xp, x, y: xp.einsum("bij,bij->b", x, y), ((5, 3, 7), (5, 3, 7))),
    "turned": (lambda xp, x, y: xp.einsum("ijb,jbi->b", x, y), ((3, 7, 5), (7, 5, 3))),
    "with what reads it": (lambda xp, x, y: x + xp.dot(xp.sin(x), y) * y, ((70,), (70,))),
}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", INNER)
def test_inner_products(name: str, kind: str) -> None:
    f, shapes = INNER[name]
    args = [normal(*s, seed=k).astype(jnp.dtype(kind)) for k, s in enumerate(shapes)]
    (got,) = run(lambda *xs: f(g.numpy, *xs), *args)
    want = np.asarray(f(np, *[x.astype(np.float64) for x in args]))
    assert got.dtype == args[0].dtype and got.shape == want.shape
    bound = 1e-6 if kind == "float32" else 1e-2
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=bound, atol=bound)
