"""Sums over segments and scatter-adds as users write them, against NumPy."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import ops
from genesis_fn.backends.cuda.lowerings import plan_for
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.device import using_device
from genesis_fn.kernels.plan import Launch, Plan
from genesis_fn.primitives.indexing.scatter import scatter_p, segment_sum_p
from genesis_fn.transforms.jitting import jit

SEGMENTS = 1100  # enough for atomics


def drawn(count: int, columns: int, low: int = -3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(count)
    ids = draw.integers(low, SEGMENTS, count).astype(np.int32)
    return draw.standard_normal((count, columns)).astype(np.float32), ids


def sums(data: np.ndarray, ids: np.ndarray, segments: int = SEGMENTS) -> np.ndarray:
    out = np.zeros((segments, *data.shape[1:]), np.float64)
    inside = (ids >= 0) & (ids < segments)
    np.add.at(out, ids[inside], data[inside].astype(np.float64))
    return out


def kernels(f, *args) -> list[str]:
    """The kernels of the sums in the program of `f`, as an H200 would get them."""
    found: list[str] = []
    for e in simplify_jaxpr(programs.traced(f, *args)[0]).eqns:
        if e.prim in (scatter_p, segment_sum_p):
            plan = plan_for(e.prim, tuple([x.aval for x in e.ins]), e.params, H200)
            assert isinstance(plan, Plan)
            found += [s.kernel.__name__ for s in plan.steps if isinstance(s, Launch)]
    return found


FORMS = {
    "segment_sum": lambda x, i, **how: ops.segment_sum(x, i, SEGMENTS, **how),
    "at": lambda x, i, **how: (
        jnp.zeros((SEGMENTS, x.shape[1]))
        .at[i]
        .add(x, mode="drop", wrap_negative_indices=False, **how)
    ),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("deterministic", [True, False])
def test_argument_and_setting(form: str, deterministic: bool) -> None:
    f, (x, ids) = FORMS[form], drawn(400, 5)
    with using_device(gf.cuda(0)):
        got = jit(lambda x, i: f(x, i, deterministic=deterministic))(x, ids)
        with gf.deterministic(deterministic):
            again = f(jnp.asarray(x), jnp.asarray(ids))
            names = kernels(f, x, ids)
    # A sum of few values of about 1: half a unit in the last place of each addition.
    np.testing.assert_allclose(got, sums(x, ids), rtol=0, atol=2e-6)
    # The order of atomics is another one in every run.
    np.testing.assert_allclose(got, again, rtol=0, atol=0 if deterministic else 2e-6)
    assert ("walk_runs_kernel" in names) == deterministic
    assert ("scatter_unordered_kernel" in names) != deterministic


def test_the_setting_is_in_the_key_of_jit_and_in_the_program() -> None:
    def total(x, ids):
        return jnp.sum(jnp.take(x, ids, axis=0) ** 2)

    x, ids = drawn(30, 2, low=0)
    f = jit(gf.grad(total))
    table = np.random.default_rng(0).standard_normal((SEGMENTS, 2)).astype(np.float32)
    want = 2 * table * sums(np.ones((30, 1), np.float32), ids)
    texts = []
    for deterministic in (True, False):
        with gf.deterministic(deterministic):
            np.testing.assert_allclose(f(table, ids), want, rtol=1e-5)
            texts.append(str(gf.make_jaxpr(gf.grad(total))(table, ids)))
    assert ["deterministic=True" in t for t in texts] == [True, False]
    assert ["deterministic=False" in t for t in texts] == [False, True]


def test_zeros_are_not_read_and_an_operand_is_kept() -> None:
    x, ids = drawn(50, 4)
    start = np.random.default_rng(1).standard_normal((SEGMENTS, 4)).astype(np.float32)
    prims = lambda f, *args: (
        {e.prim for e in simplify_jaxpr(programs.traced(f, *args)[0]).eqns}
        & {scatter_p, segment_sum_p}
    )
    assert prims(FORMS["at"], x, ids) == {segment_sum_p}
    added = lambda s, x, i: s.at[i].add(x, mode="drop")
    assert prims(added, start, x, ids) == {scatter_p}
    # 0 + -0 is 0, but -0 + -0 is not.
    assert prims(lambda x, i: jnp.full((9, 4), -0.0).at[i].add(x), x, ids) == {scatter_p}
    assert prims(lambda x, i: jnp.zeros((9, 4)).at[i].max(x), x, ids) == {scatter_p}
    programs.compare(added, start, x, np.abs(ids), donated=[True, False, False])


@pytest.mark.parametrize("deterministic", [True, False])
def test_batches_windows_and_gradients(deterministic: bool) -> None:
    draw = np.random.default_rng(4)
    x = draw.standard_normal((2, 30, 3)).astype(np.float32)
    ids = draw.integers(-2, 9, (2, 30)).astype(np.int32)
    places = draw.integers(0, 5, (7, 2)).astype(np.int32)
    updates = draw.standard_normal((7, 6)).astype(np.float32)

    def f(x, ids, grid, updates):
        shared = gf.vmap(lambda v: ops.segment_sum(v, ids[0], 9))(x)
        apart = gf.vmap(lambda v, i: ops.segment_sum(v, i, 9))(x, ids)
        windows = grid.at[places[:, 0], :, places[:, 1]].add(updates)
        back = gf.grad(lambda v: jnp.sum(ops.segment_sum(v, ids, 9) ** 3))(x)
        return shared, apart, windows, back

    with gf.deterministic(deterministic):
        programs.compare(f, x, ids, np.ones((5, 6, 5), np.float32), updates, tolerance=1e-4)
    shared, apart, _, _ = f(*map(jnp.asarray, (x, ids)), jnp.ones((5, 6, 5)), updates)
    for b in range(2):
        np.testing.assert_allclose(shared[b], sums(x[b], ids[0], 9), atol=1e-5)
        np.testing.assert_allclose(apart[b], sums(x[b], ids[b], 9), atol=1e-5)


def test_promises() -> None:
    x, ids = drawn(300, 3)
    ordered, apart = np.sort(ids), np.random.default_rng(2).permutation(SEGMENTS)[:300]
    with using_device(gf.cuda(0)):
        got = ops.segment_sum(x, ordered, SEGMENTS, indices_are_sorted=True)
        alone = ops.segment_sum(x, apart, SEGMENTS, unique_indices=True)
        most = ops.segment_max(x, ordered, SEGMENTS, indices_are_sorted=True)
        with pytest.raises(gf.errors.IndexOutOfRange, match="1100"):
            jnp.zeros((SEGMENTS, 3)).at[np.array([0, SEGMENTS])].add(1.0).tolist()
    np.testing.assert_allclose(got, sums(x, ordered), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(alone, sums(x, apart).astype(np.float32))
    want = np.full((SEGMENTS, 3), -np.inf, np.float32)
    np.maximum.at(want, ordered[ordered >= 0], x[ordered >= 0])
    np.testing.assert_array_equal(most, want)
    names = kernels(lambda x, i: ops.segment_sum(x, i, 9, indices_are_sorted=True), x, ordered)
    assert not any("sort" in n or "radix" in n for n in names)


def test_narrow_ids_of_many_segments() -> None:
    ids = np.array([-1, 0, 127, 127], np.int8)
    with using_device(gf.cuda(0)):
        got = ops.segment_sum(np.ones(4, np.float32), ids, 300)
    np.testing.assert_array_equal(got, np.bincount([0, 127, 127], minlength=300))


@pytest.mark.parametrize("columns", [None, 3])
def test_counts_read_nothing_but_ids(columns: int | None) -> None:
    """What is added may be a number, of which nothing lies in memory."""
    _, ids = drawn(200, 1, low=0)

    def count(i):
        ones = jnp.ones(i.shape if columns is None else (*i.shape, columns))
        return ops.segment_sum(ones, i, SEGMENTS)

    programs.compare(count, ids)
    want = np.bincount(ids, minlength=SEGMENTS).astype(np.float32)
    with using_device(gf.cuda(0)):
        got = np.asarray(jit(count)(jnp.asarray(ids)))
    np.testing.assert_array_equal(got if columns is None else got[:, 0], want)
