"""Updates of part of an array: done in place where the array is not needed any more, else not."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.run.steps import Copy, ForLoop, SubProgram, Switch, While
from genesis_fn.compiler.options import without
from genesis_fn.kernels.plan import Launch

rng = np.random.default_rng(0)
CACHE = (64, 8)
SIZE = 64 * 8 * 4


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def moved(steps) -> int:
    """The copies of a whole cache among the steps, those inside loops and branches included."""
    found = 0
    for step in steps:
        if isinstance(step, Copy):
            found += step.bytes >= SIZE
        elif isinstance(step, SubProgram):
            found += moved(step.steps)
        elif isinstance(step, While):
            found += moved(step.condition) + moved(step.body)
        elif isinstance(step, Switch):
            found += sum(map(moved, step.branches))
        elif isinstance(step, ForLoop):
            found += moved(step.body)
        elif isinstance(step, Launch):
            # The other form of an update begins with a kernel that copies the operand, or scatters
            # into a copy that it makes itself, over every element.
            found += getattr(step.kernel, "name", "").startswith("copy")
    return found


def put_row(cache, row, at):
    return lax.dynamic_update_slice(cache, row[None], (at, 0))


def test_chains_of_updates_write_over_a_donated_input() -> None:
    def f(cache, x):
        cache = put_row(cache, x, 3)
        cache = cache.at[7].set(x * 2)
        return put_row(cache, x + 1, 9), gnp.sum(cache)

    executable = programs.compare(f, normal(*CACHE), normal(8), donated=[True, False])
    assert moved(executable.schedule.steps) == 0
    assert executable.schedule.arena < SIZE
    with without("in_place"):
        slow = programs.compare(f, normal(*CACHE), normal(8), donated=[True, False])
    assert slow.schedule.arena >= SIZE


def test_temporaries_are_updated_where_they_are() -> None:
    def f(x):
        cache = gnp.outer(gnp.arange(64.0, dtype=np.float32), x)
        cache = put_row(cache, x, 3)
        cache = put_row(cache, x, 5)
        return gnp.sum(cache, 0)

    executable = programs.compare(f, normal(8), tolerance=1e-4)
    assert moved(executable.schedule.steps) == 0 and executable.schedule.arena < 2 * SIZE


@pytest.mark.parametrize("donated", [True, False])
def test_what_is_needed_later_is_kept(donated: bool) -> None:
    def f(cache, x):
        new = put_row(cache, x, 3)
        newer = put_row(new, x * 2, 4)
        return new, newer, cache * gnp.sum(newer), put_row(cache, x, 63)

    programs.compare(f, normal(*CACHE), normal(8), donated=[donated, False])


def test_readers_come_before_the_update() -> None:
    def f(cache, x):
        new = put_row(cache, x, 3)
        return new, gnp.sum(cache, 1)

    executable = programs.compare(f, normal(*CACHE), normal(8), donated=[True, False])
    assert moved(executable.schedule.steps) == 0


def test_an_update_with_a_part_of_itself() -> None:
    def f(cache):
        return lax.dynamic_update_slice(cache, cache[2:5], (3, 0))

    programs.compare(f, normal(*CACHE), donated=[True])

    def g(cache):
        rows = gnp.arange(64)[::-1]
        return cache.at[rows].set(cache)

    programs.compare(g, normal(*CACHE), donated=[True])


@pytest.mark.parametrize("loop", ["while", "scan"])
@pytest.mark.parametrize("rows", [False, True])
def test_a_cache_carried_through_a_loop_stays_where_it_is(loop: str, rows: bool) -> None:
    """Step by step, and of a kernel of rows, which needs no copy to begin with."""

    def step(cache, i):
        x = gnp.sum(cache, 0) * 0.1 + 1
        return put_row(cache, x, i)

    def f(cache, n):
        if loop == "scan":
            return lax.scan(lambda c, i: (step(c, i), i), cache, gnp.arange(5))[0]
        state = lax.while_loop(
            lambda s: s[1] < n, lambda s: (step(s[0], s[1]), s[1] + 1), (cache, np.int32(0))
        )
        return state[0]

    with without(*[] if rows else ["row_loops"]):
        executable = programs.compare(f, normal(*CACHE), np.int32(5), donated=[True, False])
        assert moved(executable.schedule.steps) == 0
        assert executable.schedule.arena < SIZE
        # Not donated: one copy, before the loop.
        executable = programs.compare(f, normal(*CACHE), np.int32(5))
        assert moved(executable.schedule.steps) == (0 if rows else 1)
        # No iteration: the start is the result.
        programs.compare(f, normal(*CACHE), np.int32(0), donated=[True, False])


def test_a_cache_in_a_loop_in_a_loop_and_a_branch() -> None:
    def inner(i, cache):
        return lax.cond(i % 2 == 0, lambda c: put_row(c, c[i] * 2, i), lambda c: c, cache)

    def f(cache):
        return lax.fori_loop(
            0, 3, lambda j, c: lax.fori_loop(0, 4, lambda i, c: inner(i + j, c), c), cache
        )

    executable = programs.compare(f, normal(*CACHE), donated=[True])
    assert moved(executable.schedule.steps) == 0


def test_carries_that_share_or_are_read_as_constants() -> None:
    def f(cache, x):
        def step(i, s):
            a, b = s
            return put_row(a, b[0] + cache[1], i), put_row(b, a[1], i + 1)

        return lax.fori_loop(0, 3, step, (cache, cache))

    programs.compare(f, normal(*CACHE), normal(8), donated=[True, False])


def test_results_of_branches_from_one_operand() -> None:
    def f(p, cache, x):
        def one(c):
            return put_row(c, x, 1), put_row(c, x, 2)

        a, b = lax.cond(p, one, lambda c: (c, c), cache)
        return a + 1, b

    for p in (True, False):
        programs.compare(f, np.bool_(p), normal(*CACHE), normal(8), donated=[0, 1, 0])


def test_each_donated_input_goes_to_what_updates_it() -> None:
    def f(a, b, x):
        return put_row(b, x, 1), put_row(a * 3, x, 2)

    executable = programs.compare(
        f, normal(*CACHE), normal(*CACHE), normal(8), donated=[True, True, False]
    )
    assert executable.replaced == {0: 1, 1: 0} and moved(executable.schedule.steps) == 0
