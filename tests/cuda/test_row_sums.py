"""Scatters that add whole rows to zeros: sums by segment, of rows numbered by index vectors."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.compiler.options import without
from genesis_fn.compiler.rewrites.row_sums import row_sums
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr

pytestmark = pytest.mark.interpreted
MODES = ["fill", "clip", "promise_in_bounds"]


def drawn(shape, batch, seed, low=None):
    """(a table, an index array for each of its first two axes, what the rows are weighed with)."""
    rng = np.random.default_rng(seed)
    outside = 0 if low is None else low
    first, second = [rng.integers(-outside, n + outside, batch).astype(np.int32) for n in shape[:2]]
    table = rng.standard_normal(shape).astype(np.float32)
    return table, first, second, rng.standard_normal((*batch, *shape[2:])).astype(np.float32)


def lookups(mode):
    return lambda x, i, j, w: (x.at[i, j].get(mode=mode, fill_value=0) * w).sum()


def computed(f, *args):
    """The results, and the primitives of the program that is scheduled."""
    jaxpr, given = programs.traced(f, *args)
    made = programs.compile_jaxpr(jaxpr, programs.PLACE)
    prims = [e.prim.name for e in row_sums(simplify_jaxpr(jaxpr)).eqns]
    return [programs.get(v) for v in made(*map(programs.put, given))], prims


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(5, 7, 16), (3, 40), (6, 2, 3, 5)])
@pytest.mark.parametrize("batch", [(90,), (11, 4)])
def test_gradients_of_lookups(mode, shape, batch):
    given = drawn(shape, batch, 3, None if mode == "promise_in_bounds" else 2)
    got, prims = computed(g.grad(lookups(mode)), *given)
    want = jax.grad(lookups(mode))(*map(jnp.asarray, given))
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    assert "segment_sum" in prims and "scatter" not in prims
    with without("sums"):
        again, prims = computed(g.grad(lookups(mode)), *given)
    np.testing.assert_allclose(got[0], again[0], rtol=1e-5, atol=1e-5)
    assert "scatter" in prims


def test_rows_are_added_as_they_are_computed():
    """A sum over bags has one gradient for each bag, which nothing repeats in memory."""
    table, i, j, _ = drawn((4, 50, 8), (30, 4, 3), 5)

    def loss(x, i, j):
        return gnp.sum(gnp.sin(x[i, j].sum(2)))

    got, _ = computed(g.grad(loss), table, i, j)
    want = jax.grad(lambda x: jnp.sum(jnp.sin(x[i, j].sum(2))))(table)
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    jaxpr, _ = programs.traced(g.grad(loss), table, i, j)

    def most_stored():
        made = programs.compile_jaxpr(jaxpr, programs.PLACE)
        return made.schedule.arena

    arena = most_stored()
    with without("sums"):
        # The bags' gradient, each row three times; sums have numbers of rows instead.
        assert most_stored() > arena + 30 * 4 * 3 * 8 * 4 // 2


def test_the_same_rows_of_two_tables_are_sorted_once():
    table, i, j, w = drawn((6, 9, 8), (300,), 6)

    def f(x, y, i, j, w):
        return g.grad(lambda x, y: (x[i, j] * w + gnp.cos(y[i, j])).sum(), argnums=(0, 1))(x, y)

    got, prims = computed(f, table, -table, i, j, w)
    want = jax.grad(lambda x, y: (x[i, j] * w + jnp.cos(y[i, j])).sum(), argnums=(0, 1))(
        jnp.asarray(table), jnp.asarray(-table)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jaxpr, _ = programs.traced(f, table, -table, i, j, w)
    sums = [e for e in row_sums(simplify_jaxpr(jaxpr)).eqns if e.prim.name == "segment_sum"]
    assert len(sums) == 2 and sums[0].ins[1] is sums[1].ins[1]


def scattered(xp):
    return lambda u, i, j: xp.zeros((6, 9, 4), u.dtype).at[i, j].add(u, mode="drop")


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float32, np.complex64])
def test_sums_that_are_no_derivatives(kind):
    _, i, j, w = drawn((6, 9, 4), (40,), 7, 1)
    u = (8 * w).astype(kind) if kind != np.uint8 else np.abs(8 * w).astype(kind)
    u[3], i[3], j[3] = 0 if np.issubdtype(kind, np.integer) else -0.0, 5, 8
    i[4:], j[4:] = i[4:] % 5, j[4:] % 9  # that one alone: 0 + -0 is 0
    got, prims = computed(scattered(gnp), u, i, j)
    want = np.asarray(scattered(jnp)(*map(jnp.asarray, (u, i, j))))
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.signbit(got[0].real), np.signbit(want.real))
    assert "segment_sum" in prims


def test_an_index_out_of_bounds_is_named():
    """As where a scatter checks it, also by a kernel that computes what it adds."""
    rng = np.random.default_rng(11)
    x, i = rng.standard_normal((50, 64)).astype(np.float32), rng.integers(0, 30, 50)

    def f(x, i):
        return gnp.zeros((30, 64), x.dtype).at[i].add(gnp.sin(x) * 2)

    got, prims = computed(f, x, i.astype(np.int32))
    want = np.zeros((30, 64))
    np.add.at(want, i, np.sin(x.astype(float)) * 2)
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-4)
    assert "segment_sum" in prims
    i[17] = 30
    errors = []
    for on in (True, False):
        with contextlib.nullcontext() if on else without("sums"), pytest.raises(IndexError) as e:
            computed(f, x, i.astype(np.int32))
        errors.append(str(e.value))
    assert "30" in errors[0] and errors[0] == errors[1]


def test_what_stays_a_scatter():
    table, i, j, w = drawn((6, 9, 8), (20,), 8)
    columns = lambda x, j, w: (x[:, j] * w).sum()
    got, prims = computed(g.grad(columns), table, j, w)
    want = jax.grad(columns)(*map(jnp.asarray, (table, j, w)))
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    assert "segment_sum" not in prims
    added = lambda x, i, j, w: x.at[i, j].add(w)
    got, prims = computed(added, table, i, j, w)
    want = added(*map(jnp.asarray, (table, i, j, w)))
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    assert "scatter" in prims


def test_narrow_and_wide_index_types():
    table, i, j, w = drawn((6, 9, 8), (50,), 9, 2)
    for kind in (np.int8, np.int16, np.int64):
        a, b = i.astype(kind), j.astype(kind)
        if kind == np.int64:
            a[0], b[1] = 2**40, -(2**50)
        got, _ = computed(g.grad(lookups("fill")), table, a, b, w)
        with jax.enable_x64(True):
            want = jax.grad(lookups("fill"))(*map(jnp.asarray, (table, a, b, w)))
        np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
