"""Collectives over vmap's named axes against JAX, alone and inside every transform."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import lax as col
from genesis_fn.core import tree
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad, jvp
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit

X = np.random.default_rng(0).normal(size=(4, 4, 8)).astype(np.float32)


class Ours:
    lax, np = col, jnp
    vmap, jit, grad, jvp = map(staticmethod, (vmap, jit, grad, jvp))
    scan, cond, checkpoint = map(staticmethod, (scan, cond, checkpoint))


class Theirs:
    lax, np = jax.lax, jax.numpy
    vmap, jit, grad, jvp = map(staticmethod, (jax.vmap, jax.jit, jax.grad, jax.jvp))
    scan, cond, checkpoint = map(staticmethod, (jax.lax.scan, jax.lax.cond, jax.checkpoint))


def agree(program, *args, rtol=1e-5):
    ours = tree.leaves(program(Ours)(*args))
    theirs = jax.tree.leaves(program(Theirs)(*args))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert np.asarray(a).shape == b.shape and np.asarray(a).dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-5)


EACH = {
    "psum": lambda m, x: m.lax.psum(x, "i"),
    "psum_constant": lambda m, x: x * m.lax.psum(2, "i"),
    "psum_unbatched": lambda m, x: x + m.lax.psum(m.np.ones(8), "i"),
    "pmean": lambda m, x: m.lax.pmean(x, "i"),
    "pmax": lambda m, x: m.lax.pmax(x, "i"),
    "pmin": lambda m, x: m.lax.pmin(x, "i"),
    "all_gather": lambda m, x: m.lax.all_gather(x, "i"),
    "all_gather_axis": lambda m, x: m.lax.all_gather(x, "i", axis=1),
    "all_gather_tiled": lambda m, x: m.lax.all_gather(x, "i", axis=1, tiled=True),
    "all_to_all": lambda m, x: m.lax.all_to_all(x, "i", 0, 1),
    "all_to_all_same": lambda m, x: m.lax.all_to_all(x, "i", 0, 0),
    "all_to_all_tiled": lambda m, x: m.lax.all_to_all(x, "i", 1, 0, tiled=True),
    "ppermute": lambda m, x: m.lax.ppermute(x, "i", [(0, 1), (1, 3), (3, 0), (2, 2)]),
    "psum_scatter": lambda m, x: m.lax.psum_scatter(x, "i"),
    "psum_scatter_tiled": lambda m, x: m.lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
    "axis_index": lambda m, x: x * m.lax.axis_index("i"),
    "axis_size": lambda m, x: x * m.lax.axis_size("i"),
    "pshuffle": lambda m, x: m.lax.pshuffle(x, "i", [2, 0, 3, 1]),
    "pswapaxes": lambda m, x: m.lax.pswapaxes(x, "i", 0),
}


@pytest.mark.parametrize("name", EACH)
def test_values(name):
    f = EACH[name]
    agree(lambda m: m.vmap(lambda x: f(m, x), axis_name="i"), X)


@pytest.mark.parametrize("name", EACH)
def test_in_jit_both_ways(name):
    f = EACH[name]
    agree(lambda m: m.jit(m.vmap(m.jit(lambda x: f(m, x)), axis_name="i")), X)


@pytest.mark.parametrize("name", EACH)
def test_other_axis(name):
    """A vmap over an axis without a name, or with another one, inside or outside."""
    f = EACH[name]
    if name != "psum_scatter":  # JAX 0.10.2 raises IndexError here
        agree(
            lambda m: m.vmap(m.vmap(lambda x: f(m, x), in_axes=2, out_axes=1), axis_name="i"),
            np.stack([X, 2 * X], -1),
        )
    agree(
        lambda m: m.vmap(m.vmap(lambda x: f(m, x), axis_name="i"), axis_name="j"),
        np.stack([X, 2 * X]),
    )


# JAX has no derivative of pmax and pmin, and gets the shapes of all_to_all's wrong.
@pytest.mark.parametrize("name", [n for n in EACH if n not in ("pmax", "pmin", "all_to_all")])
def test_derivatives(name):
    f = EACH[name]

    def loss(m):
        return lambda x: (m.np.sin(f(m, x)) * m.np.cos(f(m, x) * 0.3)).sum()

    agree(lambda m: m.vmap(m.grad(loss(m)), axis_name="i"), X, rtol=1e-4)
    agree(lambda m: m.grad(lambda x: m.vmap(loss(m), axis_name="i")(x).sum()), X, rtol=1e-4)
    agree(lambda m: m.vmap(lambda x: m.jvp(loss(m), (x,), (x * x,)), axis_name="i"), X, rtol=1e-4)
    agree(
        lambda m: m.jit(m.grad(lambda x: m.vmap(m.jit(loss(m)), axis_name="i")(x).sum())),
        X,
        rtol=1e-4,
    )


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_extreme_derivative(name):
    x = jnp.array([1.0, 3.0, 3.0, -2.0])
    g = grad(lambda x: vmap(lambda v: getattr(col, name)(v * v, "i"), axis_name="i")(x)[0])(x)
    expected = [0, 3, 3, 0] if name == "pmax" else [2, 0, 0, 0]
    np.testing.assert_allclose(np.asarray(g), expected)


def test_in_control_flow():
    def body(m):
        def step(c, x):
            c = c + m.lax.psum(x, "i") * m.lax.axis_index("i")
            return c, m.lax.pmean(c, "i")

        return step

    def loss(m):
        def f(x):
            c, ys = m.scan(body(m), m.np.zeros(8), x)
            z = m.cond(c[0] > 0, lambda v: m.lax.psum(v, "i"), lambda v: v * 2, c)
            return (z * c).sum() + (ys**2).sum()

        return f

    agree(lambda m: m.vmap(loss(m), axis_name="i"), X, rtol=1e-4)
    agree(lambda m: m.vmap(m.checkpoint(loss(m)), axis_name="i"), X, rtol=1e-4)
    agree(lambda m: m.jit(m.vmap(m.grad(loss(m)), axis_name="i")), X, rtol=1e-3)
    agree(
        lambda m: m.grad(lambda x: m.vmap(m.checkpoint(loss(m)), axis_name="i")(x).sum()),
        X,
        rtol=1e-3,
    )


def test_two_axes_at_once():
    x = X[:3, :2]
    for f in (
        lambda m, x: m.lax.psum(x, ("i", "j")),
        lambda m, x: m.lax.pmean(x, ("i", "j")),
        lambda m, x: m.lax.axis_index(("i", "j")) + x,
        lambda m, x: m.lax.psum(x, "j") / m.lax.psum(x, "i"),
    ):
        agree(
            lambda m, f=f: m.vmap(m.vmap(lambda x: f(m, x), axis_name="j"), axis_name="i"),
            x,
            rtol=1e-4,
        )


def test_a_jitted_function_is_retraced_for_another_axis_size():
    f = jit(lambda x: col.psum(x, "i") * col.axis_size("i"))
    for n in (2, 5):
        out = vmap(f, axis_name="i")(jnp.ones(n))
        np.testing.assert_array_equal(np.asarray(out), np.full(n, n * n))


def test_errors():
    with pytest.raises(NameError, match=r"unbound axis name 'k'.*\n.*test_collectives.py"):
        vmap(lambda x: col.psum(x, "k"), axis_name="i")(jnp.ones(3))
    with pytest.raises(ValueError, match="must name each source"):
        vmap(lambda x: col.ppermute(x, "i", [(0, 1), (0, 2)]), axis_name="i")(jnp.ones(3))
    for perm in ([0, 0, 1], [0, 1], [0, 1, 3]):
        with pytest.raises(ValueError, match="pshuffle: .* is no permutation of 0 to 2"):
            vmap(lambda v, perm=perm: col.pshuffle(v, "i", perm), axis_name="i")(jnp.ones(3))
    with pytest.raises(ValueError, match="must equal the axis size 3"):
        vmap(lambda x: col.psum_scatter(x, "i"), axis_name="i")(jnp.ones((3, 2)))


def test_a_partial_permutation_leaves_zeros_and_transposes():
    x = jnp.arange(1.0, 5.0)
    moved = vmap(lambda v: col.ppermute(v, "i", [(0, 1), (1, 3)]), axis_name="i")
    np.testing.assert_array_equal(np.asarray(moved(x)), [0, 1, 0, 2])
    g = grad(lambda x: (moved(x) * x).sum())(x)
    np.testing.assert_array_equal(np.asarray(g), [2, 1 + 4, 0, 2])


def test_gathering_over_two_axes_is_row_major():
    x = jnp.array(X[:3, :2])
    out = vmap(vmap(lambda v: col.all_gather(v, ("i", "j")), axis_name="j"), axis_name="i")(x)
    np.testing.assert_array_equal(np.asarray(out)[1, 1], X[:3, :2].reshape(6, 8))


def test_exchange_derivative():
    """all_to_all moves elements, so the gradient of an elementwise loss is elementwise."""
    exchange = vmap(lambda v: jnp.sin(col.all_to_all(v, "i", 0, 1)), axis_name="i")
    each = vmap(
        lambda v: grad(lambda v: jnp.sin(col.all_to_all(v, "i", 0, 1)).sum())(v), axis_name="i"
    )
    x = jnp.array(X)
    np.testing.assert_allclose(
        np.asarray(grad(lambda x: exchange(x).sum())(x)), np.cos(X), rtol=1e-5
    )
    np.testing.assert_allclose(np.asarray(each(x)), np.cos(X), rtol=1e-5)
