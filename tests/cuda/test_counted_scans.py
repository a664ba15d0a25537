"""Loops that count, and that write arrays part by part: their values, and what they carry."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from programs import run

import genesis_fn as g
from genesis_fn.backends.cuda import pipeline
from genesis_fn.backends.cuda.codegen.row_loops.row_nests import plan_row_nest
from genesis_fn.compiler.target import H200
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.transforms.control_flow.scanning import scan_p

NAMES = "lax", "random", "vmap", "grad"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- programs, of a library's names ----


def collected(xp: Any, steps: int, write: Callable) -> Callable:
    """What a loop writes into an array that it is given, and what is left of its state."""

    def run(x: Any, out: Any) -> Any:
        def step(i: Any, carry: Any) -> Any:
            x, out = carry
            return xp.np.tanh(x) * 1.5, write(xp, out, i, x)

        return xp.lax.fori_loop(0, steps, step, (x, out))

    return run


def rows(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i].set(x)


def columns_backwards(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[:, out.shape[1] - 1 - i].set(x)


def later_rows(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i + 2].set(x)


def added(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i + 1].add(x)


def multiplied(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i].multiply(x)


def least(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i + 1].min(x).at[i + 1].max(-0.5)


def blocks(xp: Any, out: Any, i: Any, x: Any) -> Any:
    block = xp.np.stack([x, x + 1, -x], axis=1)
    return xp.lax.dynamic_update_slice(out, block, (0, 3 * i))


def blocks_backwards(xp: Any, out: Any, i: Any, x: Any) -> Any:
    block = xp.np.stack([x, x + 1, -x], axis=0)
    return xp.lax.dynamic_update_slice(out, block, (out.shape[0] - 3 - 3 * i, 0))


def changed(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i].set(0.5 * out[i] + x)


def scaled_columns(xp: Any, out: Any, i: Any, x: Any) -> Any:
    part = xp.lax.dynamic_slice(out, (0, 2 * i), (out.shape[0], 2))
    return xp.lax.dynamic_update_slice(out, part * x[:, None], (0, 2 * i))


def same_twice(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i // 2].set(x)


def beyond(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[2 * i].set(x, mode="drop")


def in_one_place(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[2 * i].set(0.5 * out[i] + x)


def after_one(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i + 1].set(0.5 * out[i] + x)


def after_two(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[:, i + 2].set(0.5 * out[:, i] - out[:, i + 1] + x)


def before_one(xp: Any, out: Any, i: Any, x: Any) -> Any:
    n = out.shape[0]
    return out.at[n - 2 - i].add(0.5 * out[n - 1 - i] * x)


def after_three(xp: Any, out: Any, i: Any, x: Any) -> Any:
    near = xp.lax.dynamic_slice(out, (0, i), (out.shape[0], 3))
    scale = xp.np.asarray([0.5, -0.25, 0.125], "float32")
    return out.at[:, i + 3].set(xp.np.sum(near * scale, axis=1) + x)


def blocks_after_one(xp: Any, out: Any, i: Any, x: Any) -> Any:
    block = xp.lax.dynamic_slice(out, (2 * i, 0), (2, out.shape[1]))
    return xp.lax.dynamic_update_slice(out, block[::-1] * 0.5 + x, (2 * i + 2, 0))


def two_at_a_time(xp: Any, out: Any, i: Any, x: Any) -> Any:
    out = out.at[i].set(out[i] + x)
    return out.at[i + 1].add(0.5 * out[i] * x)


def ahead(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i].set(out[i + 2] * x)


def blocks_over_blocks(xp: Any, out: Any, i: Any, x: Any) -> Any:
    block = xp.lax.dynamic_slice(out, (0, i), (out.shape[0], 3))
    return xp.lax.dynamic_update_slice(out, 0.5 * block[:, ::-1] + x[:, None], (0, i))


def far_behind(xp: Any, out: Any, i: Any, x: Any) -> Any:
    return out.at[i + 9].set(out[i] * x)


# name: (what a step writes, steps, the array's shape, that of a step's value, whether the loop
# carries the array all the same)
WRITES: dict[str, tuple[Callable, int, tuple[int, int], int, bool]] = {
    "rows": (rows, 6, (6, 33), 33, False),
    "some rows": (rows, 4, (9, 33), 33, False),
    "two rows": (rows, 2, (4, 33), 33, False),
    "columns backwards": (columns_backwards, 5, (33, 5), 33, False),
    "later rows": (later_rows, 4, (7, 33), 33, False),
    "added": (added, 5, (7, 33), 33, False),
    "added to few": (added, 2, (9, 33), 33, False),
    "multiplied": (multiplied, 6, (6, 33), 33, False),
    "least": (least, 4, (9, 33), 33, False),
    "blocks": (blocks, 4, (33, 12), 33, False),
    "some blocks": (blocks, 3, (33, 12), 33, False),
    "blocks backwards": (blocks_backwards, 4, (12, 33), 33, False),
    "changed": (changed, 6, (6, 33), 33, False),
    "some changed": (changed, 4, (9, 33), 33, False),
    "scaled columns": (scaled_columns, 3, (33, 7), 33, False),
    "same twice": (same_twice, 6, (6, 33), 33, True),
    "beyond": (beyond, 5, (6, 33), 33, True),
    "in one place": (in_one_place, 3, (6, 33), 33, True),
    "far behind": (far_behind, 5, (14, 33), 33, True),
}
# The same, of what a step writes that goes on from parts of steps before; how many of them stay.
GOING_ON: dict[str, tuple[Callable, int, tuple[int, int], int, int]] = {
    "after one": (after_one, 5, (6, 33), 33, 1),
    "some after one": (after_one, 5, (9, 33), 33, 1),
    "after two": (after_two, 5, (33, 7), 33, 2),
    "before one": (before_one, 5, (6, 33), 33, 1),
    "after three": (after_three, 6, (33, 9), 33, 3),
    "blocks after one": (blocks_after_one, 4, (10, 33), 33, 1),
    "two at a time": (two_at_a_time, 5, (7, 33), 33, 1),
    "ahead": (ahead, 4, (6, 33), 33, 2),
    "blocks over blocks": (blocks_over_blocks, 4, (33, 9), 33, 2),
}


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values each loop of the programs carries."""
    found: list[int] = []
    once = pipeline.counted_scans

    def noted(jaxpr: Jaxpr) -> Jaxpr:
        made = once(jaxpr)
        found.extend(e.params["carry"] for e in made.eqns if e.prim is scan_p)
        return made

    monkeypatch.setattr(pipeline, "counted_scans", noted)
    return found


def check(ours: Any, theirs: Any, *args: Any, tolerance: float = 2e-6) -> None:
    got = run(ours, *args)
    want = jax.tree.leaves(theirs(*map(jax.numpy.asarray, args)))
    for mine, his in zip(got, want, strict=True):
        assert mine.dtype == his.dtype
        np.testing.assert_allclose(mine, his, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", WRITES)
def test_arrays_that_are_written_part_by_part(name: str, scans: list[int]) -> None:
    write, steps, shape, size, carries = WRITES[name]
    args = normal(size), normal(*shape, seed=1)
    check(collected(OURS, steps, write), collected(JAX, steps, write), *args)
    assert scans[0] == 1 + carries


@pytest.mark.parametrize("name", [n for n in WRITES if not WRITES[n][-1]])
def test_their_gradients(name: str, scans: list[int]) -> None:
    write, steps, shape, size, _ = WRITES[name]

    def loss(xp: Any) -> Callable:
        f = collected(xp, steps, write)

        def of(x: Any, out: Any) -> Any:
            x, out = f(x, out)
            return xp.np.sum(x) + xp.np.sum(xp.np.sin(out))

        return xp.grad(of, argnums=(0, 1))

    check(loss(OURS), loss(JAX), normal(size), normal(*shape, seed=1))
    # The derivative of a product needs the array of each step.
    assert name in ("multiplied", "least") or scans[:2] == [1, 1]


@pytest.mark.parametrize("name", GOING_ON)
@pytest.mark.parametrize("reverse", [False, True])
def test_arrays_that_are_written_from_their_other_parts(
    name: str, reverse: bool, scans: list[int], loops: list[Any]
) -> None:
    write, steps, shape, size, kept = GOING_ON[name]

    def make(xp: Any) -> Callable:
        def run(x: Any, out: Any) -> Any:
            def step(carry: Any, i: Any) -> Any:
                x, out = carry
                return (xp.np.tanh(x) * 1.5, write(xp, out, i, x)), None

            return xp.lax.scan(step, (x, out), xp.np.arange(steps), reverse=reverse)[0]

        return run

    args = normal(size), normal(*shape, seed=1)
    check(make(OURS), make(JAX), *args)
    assert scans == [1 + kept] and len(loops) == 1


@pytest.mark.parametrize("name", GOING_ON)
def test_gradients_of_those(name: str, loops: list[Any]) -> None:
    write, steps, shape, size, _ = GOING_ON[name]

    def loss(xp: Any) -> Callable:
        f = collected(xp, steps, write)

        def of(x: Any, out: Any) -> Any:
            x, out = f(x, out)
            return xp.np.sum(x) + xp.np.sum(xp.np.sin(out))

        return xp.grad(of, argnums=(0, 1))

    # Roundings of a step go through those after it.
    check(loss(OURS), loss(JAX), normal(size), normal(*shape, seed=1), tolerance=1e-5)
    assert len(loops) == 2


@pytest.mark.parametrize("name", ["rows", "columns backwards", "blocks", "changed"])
def test_of_each_example(name: str, scans: list[int]) -> None:
    write, steps, shape, size, _ = WRITES[name]
    make = lambda xp: xp.vmap(collected(xp, steps, write), (0, None))
    check(make(OURS), make(JAX), normal(3, size), normal(*shape, seed=1))
    assert scans[0] == 1


def test_numbers_that_count(scans: list[int]) -> None:
    """By other steps than 1, backwards, in results and in stacks."""

    def make(xp: Any, reverse: bool) -> Callable:
        def step(carry: Any, x: Any) -> Any:
            i, j, c = carry
            c = 0.5 * c + xp.np.sin(x * i)
            return (i + 3, j + -1, c), (i, j * 2 + 1, xp.np.reshape(i, (1,)), c + j)

        return lambda c, xs: xp.lax.scan(step, (4, np.int16(7), c), xs, reverse=reverse)

    for reverse in (False, True):
        check(make(OURS, reverse), make(JAX, reverse), normal(9), normal(5, 9, seed=1))
    assert scans == [1, 1]


def counted_words(xp: Any) -> Callable:
    step = lambda count, word: (count.at[word].add(1), None)
    return lambda words, count: xp.lax.scan(step, count, words)[0]


def pairs_counted(xp: Any) -> Callable:
    """Two arrays, by two numbers, in a loop within a loop."""

    def run(words: Any, first: Any, second: Any) -> Any:
        def outer(carry: Any, words: Any) -> Any:
            def inner(carry: Any, word: Any) -> Any:
                first, second = carry
                return (first.at[word].add(0.5), second.at[word // 2].max(word * 1.5)), None

            return xp.lax.scan(inner, carry, words)[0], xp.np.sum(words)

        return xp.lax.scan(outer, (first, second), words)

    return run


def rows_looked_up(xp: Any) -> Callable:
    """The gradient of rows that each step looks up, of a table for all and of one for each."""

    def loss(table: Any, own: Any, x: Any, words: Any) -> Any:
        rows = xp.np.arange(x.shape[0])

        def step(x: Any, word: Any) -> Any:
            return xp.np.tanh(0.5 * x + table[word] + own[rows, word // 2]), None

        return xp.np.sum(xp.lax.scan(step, x, words)[0])

    return xp.grad(loss, argnums=(0, 1, 2))


def words(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n, shape).astype(np.int32)


# name: (a program, its operands, how much its loops carry)
ADDED: dict[str, tuple[Callable, tuple[Any, ...], list[int]]] = {
    "words": (counted_words, (words(9, 40), np.zeros(9, np.int32)), []),
    "words of examples": (
        lambda xp: xp.vmap(counted_words(xp)), (words(9, 5, 40), np.ones((5, 9), np.int32)), [],
    ),
    "words for all": (
        lambda xp: xp.vmap(counted_words(xp), (0, None)), (words(9, 5, 40), normal(9)), [],
    ),
    "words beyond": (
        lambda xp: lambda words, count: xp.lax.scan(
            lambda count, word: (count.at[word].add(2.0, mode="drop"), None), count, words
        )[0],
        (words(9, 40), normal(5)), [],
    ),
    "pairs": (pairs_counted, (words(6, 4, 7), normal(6, 3), normal(3, seed=1)), []),
    "rows": (
        rows_looked_up,
        (normal(8, 6), normal(5, 4, 6, seed=1), normal(5, 6, seed=2), words(8, 7, 5)), [1, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ADDED)
def test_what_steps_only_add_to(name: str, scans: list[int]) -> None:
    make, args, carries = ADDED[name]
    check(make(OURS), make(JAX), *args)
    assert scans == carries


def test_what_steps_read_that_they_add_to(scans: list[int]) -> None:
    def make(xp: Any) -> Callable:
        def step(count: Any, word: Any) -> Any:
            count = count.at[word].add(1)
            return count, count[word]

        return lambda words: xp.lax.scan(step, xp.np.zeros(9, "int32"), words)

    check(make(OURS), make(JAX), words(9, 40))
    assert scans == [1]


def test_words_of_a_counter_are_no_induction_variables(loops: list[Any]) -> None:
    """LLVM takes seconds, and twice the instructions, for words of a number that it sees count."""

    def make(xp: Any) -> Callable:
        def walk(x: Any) -> Any:
            key = xp.random.key(3, impl="threefry2x32")

            def step(i: Any, x: Any) -> Any:
                return 0.5 * x + xp.random.uniform(xp.random.fold_in(key, i), x.shape)

            return xp.lax.fori_loop(0, 7, step, x)

        return walk

    check(make(OURS), make(JAX), normal(9))
    source = plan_row_nest(loops[0], H200)[2]
    assert re.search(r"opaque\(\w*t0", source)


def test_numbers_that_overflow_are_carried(scans: list[int]) -> None:
    def make(xp: Any) -> Callable:
        step = lambda i, _: (i + xp.np.int8(9), i)
        return lambda x: xp.lax.scan(step, xp.np.int8(110) + 0 * x, None, length=5)

    check(make(OURS), make(JAX), np.int8(0))

    def known(xp: Any) -> Callable:
        step = lambda c, _: ((c[0] + xp.np.int8(9), c[1] * 2), c[0])
        return lambda x: xp.lax.scan(step, (xp.np.int8(110), x), None, length=5)

    check(known(OURS), known(JAX), normal(7))
    assert scans[-1] == 2


def test_loops_that_only_count_are_gone(scans: list[int]) -> None:
    def make(xp: Any) -> Callable:
        step = lambda c, _: (c + 2, (c, -c))
        return lambda x: (
            xp.lax.fori_loop(0, 9, lambda i, c: c + 5, 2) + x,
            xp.lax.scan(step, 3, None, length=4),
        )

    check(make(OURS), make(JAX), np.int32(7))
    assert not scans


def test_what_prints_stays(scans: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    """Although no result needs what a step prints."""

    def f(x: Any) -> Any:
        def step(i: Any, carry: Any) -> Any:
            g.debug.print("at {i}, {y}", i=i, y=carry[1])
            return carry[0].at[i].set(carry[1]), carry[1] * 2

        return g.lax.fori_loop(0, 3, step, (g.numpy.zeros(3, "float32"), x))

    out, last = run(f, np.float32(1))
    np.testing.assert_array_equal(out, [1, 2, 4])
    assert last == 8 and scans == [1]
    g.effects_barrier()
    said = capfd.readouterr().out
    assert "at 0, 1.0" in said and "at 2, 4.0" in said


def test_counters_of_nested_loops(scans: list[int]) -> None:
    """An array that an inner loop writes, row by row of one that the outer loop writes."""

    def make(xp: Any) -> Callable:
        def outer(i: Any, carry: Any) -> Any:
            x, out = carry

            def inner(j: Any, carry: Any) -> Any:
                x, row = carry
                return xp.np.sin(x) + 0.1 * (i + j), row.at[j].set(x)

            x, row = xp.lax.fori_loop(0, 3, inner, (x, xp.np.zeros((3, *x.shape), "float32")))
            return x, out.at[i].set(row)

        return lambda x, out: xp.lax.fori_loop(0, 4, outer, (x, out))

    check(make(OURS), make(JAX), normal(9), np.zeros((4, 3, 9), np.float32))
    assert scans[0] == 1


def test_slices_by_a_counter(scans: list[int]) -> None:
    """The gradient of what a loop reads by its counter is the stack of its steps' gradients."""

    def make(xp: Any) -> Callable:
        def loss(x: Any, xs: Any, ys: Any) -> Any:
            n = xs.shape[0]
            step = lambda i, x: xp.np.tanh(x + xs[i] * ys[:, n - 1 - i])
            return xp.np.sum(xp.lax.fori_loop(0, n, step, x) ** 2)

        return xp.grad(loss, argnums=(0, 1, 2))

    check(make(OURS), make(JAX), normal(21), normal(5, 21, seed=1), normal(21, 5, seed=2))
    assert scans[:2] == [1, 1]
