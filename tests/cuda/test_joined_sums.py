"""Sums by segment that are added become one sum of all their updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import ops
from genesis_fn.backends.cuda.lower.joined_sums import joined_sums
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.options import without
from genesis_fn.compiler.rewrites.row_sums import row_sums
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.kernels.plan import Memset
from genesis_fn.primitives.indexing.scatter import segment_sum

WORDS, WIDTH = 1500, 16  # rows enough for atomics


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def places(seed: int, *shape: int, high: int = WORDS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def rewritten(f: Callable[..., Any], *args: Any) -> Jaxpr:
    """The program of `f` with its sums joined, as an H200 would get it."""
    return joined_sums(row_sums(simplify_jaxpr(programs.traced(f, *args)[0])), H200)


def prims(f: Callable[..., Any], *args: Any) -> list[str]:
    return [e.prim.name for e in rewritten(f, *args).eqns]


def computed(f: Callable[..., Any], *args: Any) -> tuple[list[np.ndarray], int]:
    """The results on the interpreting driver, and how many buffers its program fills with 0."""
    jaxpr, given = programs.traced(f, *args)
    made = compile_jaxpr(jaxpr, programs.PLACE)
    outs = [programs.get(v) for v in made(*map(programs.put, given))]
    steps = [
        s
        for step in made.schedule.steps
        for s in (step.steps if isinstance(step, SubProgram) else (step,))
    ]
    return outs, sum([isinstance(s, Memset) for s in steps])


def pairs(xp: Any, sigmoid: Any) -> Callable[..., Any]:
    """The loss of words beside their neighbours and beside others."""

    def loss(words, contexts, centre, beside, others):
        v = words[centre]
        near = xp.sum(v * contexts[beside], -1)
        far = xp.einsum("bd,bkd->bk", v, contexts[others])
        return -xp.mean(xp.log(sigmoid(near)) + xp.sum(xp.log(sigmoid(-far)), -1))

    return loss


@pytest.mark.parametrize(("deterministic", "width"), [(True, WIDTH), (False, 5)])
def test_a_step_of_words_and_their_neighbours(deterministic: bool, width: int) -> None:
    args = (
        drawn(1, WORDS, width), drawn(2, WORDS, width),
        places(3, 90), places(4, 90), places(5, 90, 5),
    )  # fmt: skip

    def step(words, contexts, *at):
        loss = pairs(gnp, g.nn.sigmoid)
        value, (dw, dc) = g.value_and_grad(loss, (0, 1))(words, contexts, *at)
        return value, words - 0.5 * dw, contexts - 0.5 * dc

    with g.deterministic(deterministic):
        (value, words, contexts), cleared = computed(step, *args)
        assert prims(step, *args).count("segment_sum") == 2
    want, (dw, dc) = jax.value_and_grad(pairs(jnp, jax.nn.sigmoid), (0, 1))(*map(jnp.asarray, args))
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(words, args[0] - 0.5 * dw, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(contexts, args[1] - 0.5 * dc, rtol=1e-5, atol=1e-6)
    # A table for each gradient, or one for both where sums sort ids and compute what they add.
    assert cleared == (1 if deterministic and width == WIDTH else 2)
    with g.deterministic(deterministic), without("sums"):
        assert prims(step, *args).count("segment_sum") == 3


USES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "three places": (
        lambda x, i, j, k: (x[i] ** 4).sum() + (x[j] ** 2).sum() + (x[k] ** 3).sum(),
        (places(1, 60), places(2, 40, 3), places(3, 70)),
    ),
    "two dimensions": (
        lambda x, i, j: (
            (x.reshape(30, 50, -1)[i, j] ** 2).sum() + (x.reshape(30, 50, -1)[j % 30, i] ** 3).sum()
        ),
        (places(4, 80, high=30), places(5, 80, high=50)),
    ),
    "other types of ids": (
        lambda x, i, j: (x[i] ** 2).sum() + (x[j] ** 3).sum(),
        (places(6, 80).astype(np.int16), places(7, 80)),
    ),
    "beside another term": (
        lambda x, i, j: (x[i] ** 2).sum() + (x[j] ** 3).sum() + (x**2).sum(),
        (places(8, 80), places(9, 80)),
    ),
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_one_table(use: str) -> None:
    f, at = USES[use]
    x = drawn(len(use), WORDS, WIDTH)
    found = prims(g.grad(f), x, *at)
    assert found.count("segment_sum") == 1
    assert ("add_n" in found) == (use == "beside another term")
    (got,), cleared = computed(g.grad(f), x, *at)
    np.testing.assert_allclose(got, jax.grad(f)(*map(jnp.asarray, (x, *at))), rtol=1e-4, atol=1e-5)
    assert cleared == 1


def added(*how: dict[str, Any]) -> Callable[..., Any]:
    def f(x, y, i, j):
        first, second = [segment_sum(v, n, WORDS, **h) for v, n, h in zip((x, y), (i, j), how)]
        return first + second

    return f


def given(kind: Any = np.float32) -> tuple[np.ndarray, ...]:
    x, y = [(8 * drawn(n, n, WIDTH)).astype(kind) for n in (70, 50)]
    return x, y, places(11, 70), places(12, 50)


def sums(*terms: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Sums by segment in float64."""
    out = np.zeros((WORDS, WIDTH))
    for x, i in terms:
        inside = (i >= 0) & (i < WORDS)
        np.add.at(out, i[inside], x[inside].astype(np.float64))
    return out


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int8, np.complex64])
def test_sums_that_are_no_derivatives(kind: Any) -> None:
    x, y, i, j = given(kind)
    i[:9], j[:5] = -3, WORDS + 2
    (got,), _ = computed(added({}, {}), x, y, i, j)
    if kind == np.complex64:
        want = sums((x.real, i), (y.real, j)) + 1j * sums((x.imag, i), (y.imag, j))
    else:
        want = sums((x, i), (y, j))
    if kind == np.int8:
        want = want.astype(np.int64).astype(np.int8)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    (got,), _ = computed(added({"mode": "clip"}, {"mode": "clip"}), x.real, y.real, i, j)
    want = sums((x.real, np.clip(i, 0, WORDS - 1)), (y.real, np.clip(j, 0, WORDS - 1)))
    if kind == np.int8:
        want = want.astype(np.int64).astype(np.int8)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_narrow_floats_are_rounded_once() -> None:
    """Two sums were rounded, and then their sum."""
    x, y, i, j = given(gnp.bfloat16)
    i, j = i % 20, j % 20
    want = sums((x, i), (y, j))
    assert prims(added({}, {}), x, y, i, j).count("segment_sum") == 1
    (got,), _ = computed(added({}, {}), x, y, i, j)
    np.testing.assert_array_equal(got, want.astype(np.float32).astype(gnp.bfloat16))
    with without("sums"):
        (apart,), _ = computed(added({}, {}), x, y, i, j)
    assert np.abs(apart.astype(float) - want).max() > np.abs(got.astype(float) - want).max()


def test_no_sum_is_negative_zero() -> None:
    x, y, i, j = given()
    x[:], y[:] = -0.0, -0.0
    (got,), _ = computed(added({}, {}), x, y, i, i[:50])
    assert not np.signbit(got).any()


def test_updates_of_the_same_rows_are_added_before() -> None:
    x, _, i, _ = given()
    y = drawn(21, 70, WIDTH)
    f = lambda x, y, i: added({}, {})(gnp.sin(x), y, i, i)
    eqns = rewritten(f, x, y, i).eqns
    (total,) = [e for e in eqns if e.prim.name == "segment_sum"]
    assert total.ins[0].aval.shape == x.shape and "concatenate" not in [e.prim.name for e in eqns]
    (got,), _ = computed(f, x, y, i)
    np.testing.assert_allclose(got, sums((np.sin(x), i), (y, i)), rtol=1e-5, atol=1e-5)
    # 16-bit floats would be rounded twice.
    narrow = x.astype(gnp.bfloat16), y.astype(gnp.bfloat16), i
    assert "concatenate" in prims(f, *narrow)
    (got,), _ = computed(f, *narrow)
    rounded = np.asarray(np.sin(narrow[0].astype(np.float32))).astype(gnp.bfloat16)
    np.testing.assert_allclose(
        got.astype(float), sums((rounded, i), (narrow[1], i)), rtol=2**-8, atol=1e-6
    )


def test_rows_that_are_gathered_are_read_in_their_own_part() -> None:
    """What one sum gathers lies at no place of the other's indices."""
    table, weights = drawn(31, 900, WIDTH), drawn(32, 70)
    i, j, source, other = places(33, 70), places(34, 5), places(35, 70, high=900), places(36, 5)

    def f(table, weights, i, j, source, other):
        first = ops.segment_sum(table[source] * weights[:, None], i, WORDS)
        return first + ops.segment_sum(table[other % 900] + 1, j, WORDS)

    (got,), cleared = computed(f, table, weights, i, j, source, other)
    rows = table[source] * weights[:, None]
    want = sums((rows, i), (table[other % 900] + 1, j))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert cleared == 1
    source[69] = 901
    with pytest.raises(IndexError, match="901"):
        computed(f, table, weights, i, j, source, other)


def test_sorts_that_are_shared_stay_shared() -> None:
    """Two tables that are looked up at the same places: their ids are joined, and sorted, once."""
    x, y, i, j = given()
    f = lambda x, y, i, j: (added({}, {})(x, y, i, j), added({}, {})(x + 1, y * 2, i, j))
    eqns = rewritten(f, x, y, i, j).eqns
    first, second = [e for e in eqns if e.prim.name == "segment_sum"]
    assert first.ins[1] is second.ins[1]
    got, _ = computed(f, x, y, i, j)
    np.testing.assert_allclose(got[0], sums((x, i), (y, j)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], sums((x + 1, i), (y * 2, j)), rtol=1e-5, atol=1e-5)


SORTED = {"indices_are_sorted": True}
APART: dict[str, Callable[..., Any]] = {
    "another reader": lambda x, y, i, j: (
        (s := ops.segment_sum(x, i, WORDS)) + ops.segment_sum(y, j, WORDS), s * 2
    ),
    "a result": lambda x, y, i, j: (
        (s := ops.segment_sum(x, i, WORDS)) + ops.segment_sum(y, j, WORDS), s
    ),
    "nothing is sorted": added(SORTED, SORTED),
    "one is sorted": added({}, SORTED),
    "no row twice": added({"unique_indices": True}, {}),
    "other modes": added({"mode": "clip"}, {}),
    "checked": added({"mode": "check"}, {"mode": "check"}),
    "in any order": added({"deterministic": False}, {"deterministic": True}),
    "another shape": lambda x, y, i, j: (
        ops.segment_sum(x, i, WORDS) + ops.segment_sum(y[:, :1], j, WORDS)
    ),
    "another type": lambda x, y, i, j: (
        ops.segment_sum(x, i, WORDS) + ops.segment_sum(y.astype(gnp.bfloat16), j, WORDS)
    ),
    "what is added is not a sum": lambda x, y, i, j: (
        ops.segment_sum(x, i, WORDS) + gnp.exp(ops.segment_sum(y, j, WORDS))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_what_stays_apart(case: str) -> None:
    args = given()
    assert prims(APART[case], *args).count("segment_sum") == 2
    if case in ("nothing is sorted", "one is sorted"):
        args = (*args[:2], *map(np.sort, args[2:]))
    if case != "no row twice":
        programs.compare(APART[case], *args, tolerance=1e-5)


def test_long_updates_of_a_small_table_stay_apart() -> None:
    """Those that would be written to memory for it, as they are too many steps for its kernel."""

    def long(x):
        for _ in range(40):
            x = gnp.sin(x) * 1.5
        return x

    f = lambda x, y, i, j: ops.segment_sum(long(x), i, 12) + ops.segment_sum(long(y), j, 12)
    x, y = [drawn(n, 200000, WIDTH) for n in (1, 2)]
    at = [places(n, 200000, high=12) for n in (3, 4)]
    assert prims(f, x, y, *at).count("segment_sum") == 2
    short = lambda x, y, i, j: ops.segment_sum(x * 2, i, 12) + ops.segment_sum(y, j, 12)
    assert prims(short, x, y, *at).count("segment_sum") == 1
