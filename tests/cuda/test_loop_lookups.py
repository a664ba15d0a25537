"""Loops whose rows look up elements of arrays in memory, at places that they compute."""

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
from tests.support.fuzz_loops import WalkCase

NAMES = "lax", "random", "vmap", "grad", "nn", "tree"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def below(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n, shape).astype(np.int32)


# ---- programs, of a library's names ----


def traced_back(xp: Any) -> Callable:
    """The way back of a Viterbi decoder: where each step came from."""

    def step(state: Any, back: Any) -> Any:
        before = xp.np.take_along_axis(back, state[:, None], 1)[:, 0]
        return before, state

    return lambda last, backs: xp.lax.scan(step, last, backs, reverse=True)


def by_numbers(xp: Any) -> Callable:
    """The same, of rows that a program numbers."""

    def decode(last: Any, backs: Any) -> Any:
        rows = xp.np.arange(len(last))
        return xp.lax.scan(lambda s, back: (back[rows, s], s), last, backs, reverse=True)

    return decode


def decoder(xp: Any) -> Callable:
    """A Viterbi decoder of an example, both ways."""

    def one(first: Any, steps: Any, seen: Any) -> Any:
        def ahead(score: Any, seen: Any) -> Any:
            ways = score[:, None] + steps
            return xp.np.max(ways, axis=0) + seen, xp.np.argmax(ways, axis=0)

        score, backs = xp.lax.scan(ahead, first, seen)
        last = xp.np.argmax(score)
        _, states = xp.lax.scan(lambda s, b: (b[s], b[s]), last, backs, reverse=True)
        return xp.np.concatenate([states, last[None]])

    return xp.vmap(one, (None, None, 0))


def tables(xp: Any) -> Callable:
    """A table of each example, whose entries say where it goes."""
    walk = lambda table, s: xp.lax.scan(lambda s, _: (table[s], s), s, None, length=6)
    return xp.vmap(walk)


def maze(xp: Any) -> Callable:
    """Two places in each example's matrix, and what lies there."""

    def one(ground: Any, y: Any, x: Any) -> Any:
        def step(at: Any, _: Any) -> Any:
            y, x = at
            here = ground[y, x]
            return ((y + here) % 5, (x + 3 * here + 1) % 4), here

        return xp.lax.scan(step, (y, x), None, length=7)

    return xp.vmap(one)


def shared(xp: Any) -> Callable:
    """A matrix that all examples have in common, by state and action."""

    def run(values: Any, s: Any, actions: Any) -> Any:
        def step(s: Any, a: Any) -> Any:
            worth = values[s, a]
            return (s * 2 + a + (worth > 0)) % values.shape[0], worth

        return xp.lax.scan(step, s, actions)

    return run


def windows(xp: Any) -> Callable:
    """Three neighbours from a place on, which is held within the array."""

    def one(x: Any, at: Any) -> Any:
        def step(at: Any, _: Any) -> Any:
            near = xp.lax.dynamic_slice(x, (at,), (3,))
            return at + 2, xp.np.sum(near * near) + near[0]

        return xp.lax.scan(step, at, None, length=6)

    return xp.vmap(one)


def columns(xp: Any) -> Callable:
    """Columns in the order of a loop's counter, forwards and, with a difference, backwards."""

    def run(xs: Any, c: Any) -> Any:
        n = xs.shape[1]
        return xp.lax.fori_loop(0, n, lambda i, c: 0.5 * c + xs[:, i] - 0.1 * xs[:, n - 1 - i], c)

    return run


def through_views(xp: Any) -> Callable:
    """What is looked up is turned, cut and scaled in memory."""

    def run(x: Any, s: Any) -> Any:
        turned = xp.np.flip(x, 1)[:, 1:-1].T

        def step(s: Any, _: Any) -> Any:
            value = xp.np.take_along_axis(turned, s[None, :], 0)[0]
            return (s + (value > 0) + 1) % turned.shape[0], value

        return xp.lax.scan(step, s, None, length=5)

    return run


def beyond(xp: Any, mode: str) -> Callable:
    """Places outside: held within the table, or as numbers that fill it up."""

    def run(table: Any, s: Any) -> Any:
        rows = xp.np.arange(len(s))

        def step(s: Any, _: Any) -> Any:
            value = table.at[rows, s].get(mode=mode, fill_value=-2.5)
            return s + 2, value

        return xp.lax.scan(step, s, None, length=5)

    return run


def nested(xp: Any) -> Callable:
    """Lookups of a loop in a loop, in rows of stacks that the outer one slices."""

    def one(s: Any, tables: Any) -> Any:
        def outer(s: Any, table: Any) -> Any:
            def inner(s: Any, _: Any) -> Any:
                return table[s], s

            s, path = xp.lax.scan(inner, s, None, length=3)
            return (s + 1) % table.shape[0], xp.np.sum(path)

        return xp.lax.scan(outer, s, tables)

    return xp.vmap(one)


def of_lanes(xp: Any) -> Callable:
    """Rows of features that are chosen, and reduced: threads share them."""

    def run(features: Any, s: Any, h: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            s, h = carry
            h = 0.5 * h + features[s]
            return ((s + xp.np.argmax(h, axis=-1)) % features.shape[0], xp.nn.softmax(h)), h

        return xp.lax.scan(step, (s.astype(int), h), None, length=4)

    return run


def until(xp: Any) -> Callable:
    """A while loop of each example, which goes where its table says until it meets a zero."""

    def one(table: Any, s: Any) -> Any:
        step = lambda c: (table[c[0]], c[1] + 1)
        return xp.lax.while_loop(lambda c: (c[0] > 0) & (c[1] < 9), step, (s, 0))

    return xp.vmap(one)


# name: (program, operands)
PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "traced back": (traced_back, (below(6, 37), below(6, 5, 37, 6, seed=1))),
    "traced back of one row": (traced_back, (below(6, 1), below(6, 5, 1, 6, seed=1))),
    "many states": (traced_back, (below(40, 9), below(40, 5, 9, 40, seed=1))),
    "by numbers": (by_numbers, (below(6, 37), below(6, 5, 37, 6, seed=1))),
    "tables": (tables, (below(9, 21, 9), below(9, 21, seed=1))),
    "maze": (maze, (below(5, 33, 5, 4), below(5, 33, seed=1), below(4, 33, seed=2))),
    "shared": (shared, (normal(7, 3), below(7, 19), below(3, 6, 19, seed=1))),
    "windows": (windows, (normal(17, 8), below(8, 17, seed=1) - 2)),
    "columns": (columns, (normal(35, 6), normal(35, seed=1))),
    "through views": (through_views, (normal(12, 9), below(7, 12, seed=1))),
    "held within": (lambda xp: beyond(xp, "clip"), (normal(13, 5), below(5, 13) - 2)),
    "filled up": (lambda xp: beyond(xp, "fill"), (normal(13, 5), below(5, 13))),
    "nested": (nested, (below(8, 11), below(8, 11, 4, 8, seed=1))),
    "lanes": (of_lanes, (normal(6, 16), below(6, 10), normal(10, 16, seed=1))),
    "until": (until, (below(7, 26, 7), below(7, 26, seed=1))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_gives_jax_results(name: str, loops: list[Any]) -> None:
    make, args = PROGRAMS[name]
    got = run(make(OURS), *args)
    assert len(loops) == 1 and bool(loops[0].of("lookup")) == (name != "columns")
    want = jax.tree.leaves(make(JAX)(*map(jax.numpy.asarray, args)))
    assert len(got) == len(want)
    for mine, theirs in zip(got, want):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)


def test_a_decoder_is_a_kernel_each_way(loops: list[Any]) -> None:
    args = normal(9), normal(9, 9, seed=1), normal(11, 6, 9, seed=2)
    (got,) = run(decoder(OURS), *args)
    np.testing.assert_array_equal(got, decoder(JAX)(*args))
    assert [bool(nest.of("lookup")) for nest in loops] == [False, True]


@pytest.mark.parametrize("beyond, at", [((5, 0), "5"), ((0, 4), "4"), ((-6, 0), "-6")])
def test_places_beyond_an_array_raise(beyond: tuple[int, int], at: str) -> None:
    """Each component of a place is checked, of each row, in each step."""
    ground = np.zeros((3, 5, 4), np.int32)

    def f(ground: Any, move: Any) -> Any:
        def step(place: Any, _: Any) -> Any:
            y, x = place
            return (y + move[0], x + move[1]), ground[y, x]

        return g.lax.scan(step, (0, 0), None, length=2)[1]

    mapped = g.vmap(f)
    moves = np.zeros((3, 2), np.int32)
    np.testing.assert_array_equal(run(mapped, ground, moves)[0], 0)
    moves[1] = beyond
    jaxpr, inputs = programs.traced(mapped, ground, moves)
    compiled = programs.compile_jaxpr(jaxpr, programs.PLACE)
    with pytest.raises(errors.IndexOutOfRange, match=at):
        out = compiled(*map(programs.put, inputs))
        programs.device_runtime(0).synchronize()
        programs.get(out[0])


@pytest.mark.parametrize("seed", range(6))
def test_random_walks(seed: int, loops: list[Any]) -> None:
    """Random sizes, layouts of the tables and of the places in them."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in rng.integers(2, 7, rng.integers(1, 4)))
    rows = int(rng.integers(1, 40))
    order = tuple(int(i) for i in rng.permutation(len(sizes) + 1))
    shape = tuple(np.array((rows, *sizes))[list(order)])
    table = rng.integers(0, 50, shape).astype(np.int32)
    places = [rng.integers(0, n, rows).astype(np.int32) for n in sizes]

    def walk(xp: Any) -> Callable:
        def run(table: Any, *places: Any) -> Any:
            whole = xp.np.transpose(table, np.argsort(order))
            look = xp.vmap(lambda t, *s: t[s])

            def step(s: Any, _: Any) -> Any:
                value = look(whole, *s)
                return tuple(
                    [(a * 3 + value + k) % n for k, (a, n) in enumerate(zip(s, sizes))]
                ), value

            return xp.lax.scan(step, places, None, length=5)

        return run

    got = run(walk(OURS), table, *places)
    for mine, theirs in zip(got, jax.tree.leaves(walk(JAX)(table, *places)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert loops


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_that_look_up_and_write(seed: int) -> None:
    case = WalkCase(seed)
    got = run(case.function(OURS), *case.inputs)
    want = case.function(JAX)(*map(jax.numpy.asarray, case.inputs))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
