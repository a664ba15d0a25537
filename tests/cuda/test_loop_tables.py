"""Loops whose rows carry small tables, which they read and change at places that they compute."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import programs
import pytest
from programs import run

import genesis_fn as g
from genesis_fn.core import errors

NAMES = "lax", "vmap", "grad", "nn", "tree"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def below(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n, shape).astype(np.int32)


# ---- programs, of a library's names ----


def learner(xp: Any) -> Callable:
    """Values of states and actions, learnt on a walk of each example."""

    def one(q: Any, s: Any, goes: Any, worth: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            q, s = carry
            go, reward = x
            a = xp.np.argmax(q[s] + 0.1 * reward)
            after = (s * 2 + a + go) % q.shape[0]
            error = reward + 0.9 * xp.np.max(q[after]) - q[s, a]
            return (q.at[s, a].add(0.5 * error), after), (s, error)

        return xp.lax.scan(step, (q, s), (goes, worth))

    return xp.vmap(one)


def bandit(xp: Any) -> Callable:
    """Arms that are chosen by their counts and sums."""

    def one(counts: Any, sums: Any, rewards: Any) -> Any:
        def step(carry: Any, reward: Any) -> Any:
            counts, sums = carry
            arm = xp.np.argmax(sums / counts + 1.0 / xp.np.sqrt(counts))
            carry = counts.at[arm].add(1.0), sums.at[arm].add(reward[arm])
            return carry, arm

        return xp.lax.scan(step, (counts, sums), rewards)

    return xp.vmap(one)


def ring(xp: Any) -> Callable:
    """A delay line: what was heard some steps ago comes back."""

    def one(buffer: Any, xs: Any) -> Any:
        n = buffer.shape[0]

        def step(carry: Any, x: Any) -> Any:
            buffer, i = carry
            y = x + 0.5 * buffer[i % n] - 0.25 * buffer[(i + 1) % n]
            return (buffer.at[i % n].set(y), i + 1), y

        return xp.lax.scan(step, (buffer, 3), xs)

    return xp.vmap(one)


def until_zero(xp: Any) -> Callable:
    """A while loop that writes down where it has been."""

    def one(table: Any, s: Any, seen: Any) -> Any:
        def step(carry: Any) -> Any:
            s, i, seen = carry
            return table[s], i + 1, seen.at[i].set(s)

        going = lambda c: (c[0] > 0) & (c[1] < seen.shape[0])
        return xp.lax.while_loop(going, step, (s, 0, seen))

    return xp.vmap(one)


def shuffled(xp: Any) -> Callable:
    """Elements change places, two at a time."""

    def one(x: Any, places: Any) -> Any:
        def step(carry: Any, place: Any) -> Any:
            x, i = carry
            here, there = x[i], x[place]
            return (x.at[i].set(there).at[place].set(here), i + 1), None

        return xp.lax.scan(step, (x, 0), places)[0][0]

    return xp.vmap(one)


def swept(xp: Any) -> Callable:
    """Spins of a ring, one after the other in an order that is drawn; some are counted."""

    def one(spins: Any, order: Any, noise: Any) -> Any:
        n = spins.shape[0]

        def step(spins: Any, x: Any) -> Any:
            at, z = x
            field = spins[(at + 1) % n] + spins[(at - 1) % n]
            up = z < xp.nn.sigmoid(0.8 * field)
            return spins.at[at].set(xp.np.where(up, 1.0, -1.0)), up

        return xp.lax.scan(step, spins, (order, noise))

    return xp.vmap(one)


def flags(xp: Any) -> Callable:
    """Numbers that were seen, as booleans."""

    def one(seen: Any, xs: Any) -> Any:
        step = lambda seen, x: (seen.at[x].set(True), seen[x])
        return xp.lax.scan(step, seen, xs)

    return xp.vmap(one)


def extremes(xp: Any) -> Callable:
    """What is multiplied, least and greatest by the class of each number."""

    def one(tables: Any, xs: Any, classes: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            (a, b, c), (x, k) = carry, x
            a, b, c = a.at[k].multiply(x), b.at[k].min(x), c.at[k].max(x)
            return (a, b, c), a[k] - b[k] * c[k]

        return xp.lax.scan(step, tables, (xs, classes))

    return xp.vmap(lambda a, xs, classes: one((a, a, a), xs, classes))


def by_numbers(xp: Any) -> Callable:
    """Rows that the program numbers itself, and slices at computed places."""

    def run(table: Any, places: Any, xs: Any) -> Any:
        rows = xp.np.arange(table.shape[0])

        def step(table: Any, x: Any) -> Any:
            place, x = x
            table = table.at[rows, place].add(x)
            return table * 0.9, table[rows, (place + 1) % table.shape[1]]

        return xp.lax.scan(step, table, (places, xs))

    return run


def sliced(xp: Any) -> Callable:
    def one(table: Any, places: Any, xs: Any) -> Any:
        def step(table: Any, x: Any) -> Any:
            place, x = x
            row = xp.lax.dynamic_slice(table, (place, 0), (1, table.shape[1]))
            table = xp.lax.dynamic_update_slice(table, row * 0.5 + x, (place + 1, 0))
            return table, xp.np.sum(row)

        return xp.lax.scan(step, table, (places, xs))

    return xp.vmap(one)


def beyond(xp: Any, mode: str) -> Callable:
    """Places outside: held within the table, or passed over."""

    def one(table: Any, places: Any, xs: Any) -> Any:
        def step(table: Any, x: Any) -> Any:
            place, x = x
            value = table.at[place].get(mode=mode, fill_value=-2.5)
            return table.at[place].add(x + value, mode=mode), value

        return xp.lax.scan(step, table, (places, xs))

    return xp.vmap(one)


ROWS = 21
XS = normal(ROWS, 7, seed=5)
# name: (program, operands)
PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "learner": (
        learner, (normal(ROWS, 5, 3), below(5, ROWS), below(3, ROWS, 7, seed=1), XS),
    ),
    "learner of many states": (
        learner, (normal(ROWS, 24, 2), below(24, ROWS), below(3, ROWS, 7, seed=1), XS),
    ),
    "bandit": (bandit, (np.ones((ROWS, 6), np.float32), normal(ROWS, 6), normal(ROWS, 7, 6))),
    "bandit of many arms": (
        bandit, (np.ones((ROWS, 40), np.float32), normal(ROWS, 40), normal(ROWS, 7, 40)),
    ),
    "ring": (ring, (normal(ROWS, 5), XS)),
    "long ring": (ring, (normal(9, 100), normal(9, 7))),
    "until zero": (
        until_zero, (below(7, ROWS, 7), below(7, ROWS, seed=1), np.zeros((ROWS, 9), np.int32)),
    ),
    "shuffled": (shuffled, (normal(ROWS, 8), below(8, ROWS, 7))),
    "swept": (
        swept, (np.sign(normal(ROWS, 12)), below(12, ROWS, 30), np.abs(normal(ROWS, 30)) % 1),
    ),
    "flags": (flags, (below(2, ROWS, 6) > 0, below(6, ROWS, 9, seed=1))),
    "many flags": (flags, (below(2, ROWS, 70) > 0, below(70, ROWS, 9, seed=1))),
    "extremes": (extremes, (normal(ROWS, 4), XS, below(4, ROWS, 7))),
    "by numbers": (by_numbers, (normal(ROWS, 6), below(6, 7, ROWS), XS.T.copy())),
    "sliced": (sliced, (normal(ROWS, 4, 3), below(6, ROWS, 7) - 1, XS)),
    "held within": (
        lambda xp: beyond(xp, "clip"), (normal(ROWS, 5), below(9, ROWS, 7) - 2, XS),
    ),
    "passed over": (
        lambda xp: beyond(xp, "fill"), (normal(ROWS, 5), below(9, ROWS, 7), XS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_gives_jax_results(name: str, loops: list[Any]) -> None:
    make, args = PROGRAMS[name]
    got = run(make(OURS), *args)
    want = jax.tree.leaves(make(JAX)(*map(jax.numpy.asarray, args)))
    assert len(got) == len(want)
    for mine, theirs in zip(got, want):
        np.testing.assert_allclose(mine, theirs, rtol=5e-6, atol=5e-6)
    assert len(loops) == 1 and loops[0].rows >= len(args[0])


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint32"])
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_indices_of_few_bits(kind: str, mode: str, loops: list[Any]) -> None:
    """Of tables with more places than they can say, in memory and in registers."""
    info = np.iinfo(kind)
    low, high = max(info.min, -40), min(info.max, 320)
    places = np.random.default_rng(0).integers(low, high, (3, 30), endpoint=True).astype(kind)

    def make(xp: Any) -> Callable:
        def one(table: Any, own: Any, places: Any) -> Any:
            def step(own: Any, place: Any) -> Any:
                look = {"mode": mode, "fill_value": -2.5}
                found = table.at[place].get(**look) + own.at[place].get(**look)
                return own.at[place].add(found, mode=mode), found

            return xp.lax.scan(step, own, places)

        return xp.vmap(one)

    tables = normal(3, 300), normal(3, 300, seed=1)
    got = run(make(OURS), *tables, places)
    # JAX cannot say 300 in 8 bits.
    want = jax.tree.leaves(make(JAX)(*tables, places.astype(np.int32)))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=5e-6, atol=5e-6)
    assert len(loops) == 1


@pytest.mark.parametrize("beyond, at", [(5, "5"), (-6, "-6")])
def test_places_beyond_a_table_raise(beyond: int, at: str) -> None:
    """Of what is changed, and of what is read, of each row in each step."""

    def reads(table: Any, move: Any) -> Any:
        step = lambda c, _: ((c[0].at[1].add(c[0][c[1]]), c[1] + move), None)
        return g.lax.scan(step, (table, 0), None, length=2)[0][0]

    def changes(table: Any, move: Any) -> Any:
        step = lambda c, _: ((c[0].at[c[1]].set(c[0][1]), c[1] + move), None)
        return g.lax.scan(step, (table, 0), None, length=2)[0][0]

    for f in (reads, changes):
        table, moves = np.zeros((3, 5), np.float32), np.zeros(3, np.int32)
        np.testing.assert_array_equal(run(g.vmap(f), table, moves)[0], 0)
        moves[1] = beyond
        jaxpr, inputs = programs.traced(g.vmap(f), table, moves)
        compiled = programs.compile_jaxpr(jaxpr, programs.PLACE)
        with pytest.raises(errors.IndexOutOfRange, match=at):
            out = compiled(*map(programs.put, inputs))
            programs.device_runtime(0).synchronize()
            programs.get(out[0])


def test_what_no_row_reads_stays(loops: list[Any]) -> None:
    """NaN, infinities and negative zeros of places that are looked up, and of others."""
    table = np.array([[np.nan, -np.inf, -0.0, np.inf, 1.0]] * 5, np.float32)

    def one(table: Any, at: Any) -> Any:
        step = lambda c, _: ((c[0].at[(c[1] + 3) % 5].set(c[0][c[1]]), c[1]), c[0][c[1]])
        return g.lax.scan(step, (table, at), None, length=3)

    (changed, _), seen = g.vmap(one)(g.numpy.asarray(table), g.numpy.arange(5))
    got = run(g.vmap(one), table, np.arange(5, dtype=np.int32))
    assert loops
    for mine, wanted in zip((got[0], got[2]), (changed, seen)):
        np.testing.assert_array_equal(mine, np.asarray(wanted))
        np.testing.assert_array_equal(np.signbit(mine), np.signbit(np.asarray(wanted)))
