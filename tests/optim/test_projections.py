"""Projections against optax's values and derivatives, and against what a projection is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim, tree
from genesis_fn.errors import ArgumentError, TreeError

# name -> calls of it on a tree, the same in both libraries.
CALLS: dict[str, list[Callable[..., Any]]] = {
    "projection_simplex": [lambda f, x, a, s: f(x), lambda f, x, a, s: f(x, s)],
    "projection_l1_sphere": [lambda f, x, a, s: f(x), lambda f, x, a, s: f(x, s)],
    "projection_l1_ball": [lambda f, x, a, s: f(x), lambda f, x, a, s: f(x, 100.0 * s)],
    "projection_l2_sphere": [lambda f, x, a, s: f(x, s)],
    "projection_l2_ball": [lambda f, x, a, s: f(x, s), lambda f, x, a, s: f(x, 100.0 * s)],
    "projection_linf_ball": [lambda f, x, a, s: f(x, s)],
    "projection_non_negative": [lambda f, x, a, s: f(x)],
    "projection_box": [lambda f, x, a, s: f(x, {"w": -a["w"], "b": -a["b"]}, a)],
    "projection_hypercube": [lambda f, x, a, s: {"w": f(x["w"], s)}],
    "projection_vector": [lambda f, x, a, s: f(x, a)],
    "projection_hyperplane": [lambda f, x, a, s: f(x, a, s)],
    "projection_halfspace": [lambda f, x, a, s: f(x, a, s), lambda f, x, a, s: f(x, a, 99.0)],
}


def _drawn() -> tuple[Any, Any]:
    rng = np.random.default_rng(11)
    draw = lambda *shape: rng.normal(size=shape)
    x = {"w": draw(3, 4), "b": draw(5)}
    return x, {"w": np.abs(draw(3, 4)), "b": np.abs(draw(5))}


def weighed(t: Any, lib: Any) -> Any:
    """A sum of all elements, each with a weight of its own."""
    weights = {k: np.cos(np.arange(v.size)).reshape(v.shape) for k, v in t.items()}
    return sum(lib.sum(v * lib.asarray(weights[k], v.dtype)) for k, v in t.items())


@pytest.mark.parametrize("name", CALLS)
def test_values_and_derivatives(name: str) -> None:
    f, g = getattr(optim.projections, name), getattr(optax.projections, name)
    x, a = _drawn()
    jax.config.update("jax_enable_x64", True)
    try:
        for call in CALLS[name]:
            mine = lambda x, a, s: weighed(call(f, x, a, s), jnp)
            theirs = lambda x, a, s: weighed(call(g, x, a, s), jax.numpy)
            ours = lambda t: tree.map(lambda v: jnp.asarray(v, "float64"), t)
            args = (ours(x), ours(a), jnp.asarray(0.7, "float64"))
            other = jax.tree.map(jax.numpy.asarray, (x, a, np.float64(0.7)))
            got = gf.jit(gf.value_and_grad(mine, (0, 1, 2)))(*args)
            want = jax.value_and_grad(theirs, (0, 1, 2))(*other)
            for p, q in zip(tree.leaves(got), jax.tree.leaves(want), strict=True):
                np.testing.assert_allclose(np.asarray(p), np.asarray(q), rtol=1e-9, atol=1e-12)
            _, tangent = gf.jvp(lambda x: mine(x, *args[1:]), (args[0],), (args[1],))
            _, other_tangent = jax.jvp(lambda x: theirs(x, *other[1:]), (other[0],), (other[1],))
            assert float(tangent) == pytest.approx(float(other_tangent), rel=1e-9, abs=1e-12)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_the_simplex_is_met_and_nothing_is_nearer() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 50):
        x = jnp.asarray(rng.normal(size=n) * 3, "float64")
        y = optim.projections.projection_simplex(x, 2.5)
        assert float(y.min()) >= 0 and float(y.sum()) == pytest.approx(2.5)
        others = rng.dirichlet(np.ones(n), 200) * 2.5
        nearest = np.linalg.norm(np.asarray(x) - others, axis=1).min()
        assert float(jnp.linalg.norm(x - y)) <= nearest + 1e-9
        inner = optim.projections.projection_simplex(y, 2.5)
        np.testing.assert_allclose(np.asarray(inner), np.asarray(y), atol=1e-12)
    ties = optim.projections.projection_simplex(jnp.array([0.5, 0.5, 0.5, -1.0]))
    np.testing.assert_allclose(np.asarray(ties), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)


def test_bounds_of_every_leaf_and_dtypes() -> None:
    x = {"w": np.float32([2.0, -3.0]), "b": np.float32(0.5)}
    got = optim.projections.projection_box(x, np.float32(-1.0), 1)
    assert got["w"].tolist() == [1.0, -1.0] and float(got["b"]) == 0.5
    got = optim.projections.projection_hypercube(x, {"w": np.float32([1.0, 2.0]), "b": 0.25})
    assert got["w"].tolist() == [1.0, 0.0] and float(got["b"]) == 0.25
    with pytest.raises(TreeError):
        optim.projections.projection_box(x, {"w": 0.0}, 1.0)
    # Arithmetic is wide, and each leaf keeps its dtype; integers have no share of a simplex.
    mixed = {"a": jnp.ones(300, "bfloat16"), "b": jnp.ones(100), "c": jnp.ones(3, "int32")}
    got = optim.projections.projection_simplex(mixed)
    assert [str(got[k].dtype) for k in "abc"] == ["bfloat16", "float32", "float32"]
    np.testing.assert_allclose(np.asarray(got["b"]), 1 / 403, rtol=1e-5)
    whole = optim.projections.projection_non_negative(jnp.array([-2, 3]))
    assert whole.tolist() == [0, 3] and str(whole.dtype) == "int32"
    assert np.isnan(np.asarray(optim.projections.projection_non_negative(jnp.array([jnp.nan]))))


def test_complex_vectors_are_met() -> None:
    rng = np.random.default_rng(1)
    x, a = (jnp.asarray(rng.normal(size=3) + 1j * rng.normal(size=3)) for _ in range(2))
    y = optim.projections.projection_hyperplane(x, a, 0.5)
    assert complex(optim.tree.vdot(a, y)) == pytest.approx(0.5, abs=1e-5)
    along = optim.projections.projection_vector(x, a)
    assert abs(complex(optim.tree.vdot(a, x - along))) < 1e-5


def test_sizes_that_are_refused() -> None:
    for f in ("simplex", "l1_sphere", "l1_ball"):
        project = getattr(optim.projections, f"projection_{f}")
        with pytest.raises(ArgumentError, match="scale must be positive, got 0"):
            project(jnp.ones(2), 0)
        with pytest.raises(ArgumentError, match="without elements"):
            project({})
