"""Loops whose carry is read in other places than it is written: stencils, buffers that take turns,
several iterations in one kernel. Against NumPy, which runs the same steps one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.lower.carries import carry_turns, parallel_copies
from genesis_fn.backends.cuda.lower.steps import BufferTable
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.backends.cuda.run.steps import Copy, ForLoop, bodies
from genesis_fn.compiler.options import without
from genesis_fn.compiler.target import H200, Target

SHAPE = 8, 32


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def copied(steps: Any) -> Iterator[int]:
    """The bytes of the copies in the bodies of loops."""
    for step in steps:
        for body in bodies(step):
            yield from [s.bytes for s in body if isinstance(s, Copy)]
            yield from copied(body)


def repeated(xp: Any, step: Callable, length: int) -> Callable:
    """The function that runs `step(xp, *carry)` so many times."""

    def run(*carry: Any) -> Any:
        if xp is gnp:
            return lax.fori_loop(0, length, lambda _, c: step(gnp, *c), carry)
        for _ in range(length):
            carry = step(np, *carry)
        return carry

    return run


def compiled(run: Callable, *args: np.ndarray, donated: bool = False) -> tuple[Any, list[Any]]:
    """(the executable of a function, its results)."""
    jaxpr, inputs = programs.traced(run, *args)
    made = compile_jaxpr(jaxpr, programs.PLACE, donated=[donated] * len(inputs))
    return made, [programs.get(x) for x in made(*[programs.put(x) for x in inputs])]


def check(step: Callable, length: int, *carry: np.ndarray, donated: bool = False) -> Any:
    made, got = compiled(repeated(gnp, step, length), *carry, donated=donated)
    for x, want in zip(got, repeated(np, step, length)(*carry), strict=True):
        np.testing.assert_allclose(x, want, rtol=2e-5, atol=2e-5)
    return made


# ---- stencils ----


def relaxed(xp: Any, u: Any, f: Any) -> Any:
    rows = xp.roll(u, 1, 0) + xp.roll(u, -1, 0)
    return 0.25 * (rows + xp.roll(u, 1, 1) + xp.roll(u, -1, 1) - f), f


def waves(xp: Any, before: Any, u: Any) -> Any:
    inner = u[1:-1, 1:-1]
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner
    new = 2 * inner - before[1:-1, 1:-1] + 0.2 * around
    if xp is gnp:
        return u, u.at[1:-1, 1:-1].set(new)
    following = u.copy()
    following[1:-1, 1:-1] = new
    return u, following


def reacting(xp: Any, u: Any, v: Any) -> Any:
    def spread(x: Any) -> Any:
        y = xp.pad(x, ((1, 2), (2, 1)), mode="wrap")
        return y[:-3, 2:-1] + y[2:-1, 2:-1] + y[1:-2, :-3] + y[3:, 3:] - 4 * x

    made = u * v * v
    return u + 0.05 * spread(u) - made, v + 0.02 * spread(v) + made


def reflected(xp: Any, x: Any) -> Any:
    y = xp.pad(x, 1, mode="reflect")
    z = xp.pad(x, 2, mode="symmetric")
    return ((y[2:, 1:-1] + y[1:-1, :-2] + z[:-4, 2:-2] + z[2:-2, 4:]) * 0.25,)


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays are treated as those are whose traffic is worth saving."""
    monkeypatch.setattr(Target, "launch_bytes", 0)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("step", [relaxed, waves, reacting, reflected])
def test_stencils(step: Callable, length: int) -> None:
    count = step.__code__.co_argcount - 1
    carry = [np.abs(drawn(k, *SHAPE)) * 0.3 for k in range(count)]
    made = check(step, length, *carry)
    assert not sum(copied(made.schedule.steps))


@pytest.mark.parametrize("off", [["loop_steps"], ["carry_turns", "overlays", "rotations"]])
@pytest.mark.parametrize("step", [waves, reacting])
def test_stencils_without_passes(step: Callable, off: list[str]) -> None:
    with without(*off):
        check(step, 3, *[np.abs(drawn(k, *SHAPE)) * 0.3 for k in range(2)], donated=True)


@pytest.mark.usefixtures("small_is_large")
def test_long_loops_of_a_stencil() -> None:
    check(relaxed, 37, drawn(1, *SHAPE), drawn(2, *SHAPE))


@pytest.mark.usefixtures("small_is_large")
def test_joined_iterations_are_those_of_the_loop_bit_for_bit() -> None:
    u, f = drawn(1, *SHAPE), drawn(2, *SHAPE)
    run = repeated(gnp, relaxed, 5)
    with without("row_loops"):
        joined, (a, _) = compiled(run, u, f)
    with without("loop_steps", "row_loops"):
        one_by_one, (b, _) = compiled(run, u, f)
    loads = [made.as_text().count("tl.load") for made in (joined, one_by_one)]
    assert loads[0] > loads[1]
    np.testing.assert_array_equal(a, b)


def test_a_batch_of_stencils_runs_in_tiles_of_rows() -> None:
    def step(xp: Any, u: Any, v: Any) -> Any:
        return relaxed(xp, u, v)

    us, fs = drawn(3, 2, *SHAPE), drawn(4, 2, *SHAPE)
    run = g.vmap(repeated(gnp, step, 4))
    with without("row_loops"):
        made, got = compiled(run, us, fs)
    want = [repeated(np, step, 4)(u, f)[0] for u, f in zip(us, fs)]
    np.testing.assert_allclose(got[0], want, rtol=2e-5, atol=2e-5)
    assert "def tiles" in made.as_text()


@pytest.mark.usefixtures("small_is_large")
def test_narrow_carries_are_rounded_in_each_iteration() -> None:
    x = drawn(5, *SHAPE).astype(gnp.bfloat16)
    step = lambda _, c: (c + gnp.roll(c, 1, 0) + gnp.roll(c, -1, 1)) * 0.3
    run = lambda x: lax.fori_loop(0, 4, step, x)
    _, (a,) = compiled(run, x)
    with without("loop_steps"):
        _, (b,) = compiled(run, x)
    np.testing.assert_array_equal(a, b)


# ---- carries that change places ----


def swapped(xp: Any, a: Any, b: Any) -> Any:
    return b, a


def shifted(xp: Any, a: Any, b: Any, c: Any) -> Any:
    return b, c, xp.roll(a, 1, 0) + 0.5 * xp.roll(c, 2, 0)


def doubled(xp: Any, a: Any, b: Any) -> Any:
    x = xp.cumsum(a, 0) * 0.1
    return x, x


def forgotten(xp: Any, a: Any, b: Any, c: Any) -> Any:
    return b, b, xp.zeros_like(c) + xp.cumsum(a, 1) * 0.1


@pytest.mark.parametrize("length", [0, 1, 3, 20, 33])
@pytest.mark.parametrize("step", [swapped, shifted, doubled, forgotten])
@pytest.mark.parametrize("donated", [False, True])
def test_carries_change_places(step: Callable, length: int, donated: bool) -> None:
    count = step.__code__.co_argcount - 1
    check(step, length, *[drawn(k, 6, 5) for k in range(count)], donated=donated)


def test_a_carry_that_takes_too_long_to_come_round_is_copied() -> None:
    def step(xp: Any, *c: Any) -> Any:
        turned = [*c[1:2], *c[:1], *c[3:5], c[2], *c[6:10], c[5]]
        return tuple(turned)

    with without("row_loops"):
        made = check(step, 31, *[drawn(k, 3, 4) for k in range(10)])
    assert sum(copied(made.schedule.steps))


def test_loops_in_loops_take_turns_of_their_own() -> None:
    def run(x: Any, y: Any) -> Any:
        def outer(i: Any, c: Any) -> Any:
            x, y = c
            x, _ = lax.fori_loop(0, 3, lambda _, d: relaxed(gnp, *d), (x, y))
            return gnp.cumsum(y, 0) * 0.1, lax.cond(i % 2 == 0, lambda z: z + 1, lambda z: z, x)

        return lax.fori_loop(0, 5, outer, (x, y))

    x, y = drawn(7, *SHAPE), drawn(8, *SHAPE)
    _, got = compiled(run, x, y)
    want_x, want_y = x, y
    for i in range(5):
        for _ in range(3):
            want_x, _ = relaxed(np, want_x, want_y)
        want_x, want_y = np.cumsum(want_y, 0) * 0.1, want_x + (i % 2 == 0)
    np.testing.assert_allclose(got[0], want_x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], want_y, rtol=1e-4, atol=1e-4)


def test_rows_are_stacked_in_order_while_buffers_take_turns() -> None:
    def run(x: Any, rows: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            c = gnp.cumsum(c, 0) * 0.1 + row
            return c, c[0]

        return lax.scan(step, x, rows)

    x, rows = drawn(9, 5, 7), drawn(10, 35, 7)
    _, got = compiled(run, x, rows)
    want, stack = x, []
    for row in rows:
        want = np.cumsum(want, 0) * 0.1 + row
        stack.append(want[0])
    np.testing.assert_allclose(got[0], want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(got[1], np.stack(stack), rtol=2e-5, atol=2e-5)


def test_the_turns_of_buffers() -> None:
    turns = carry_turns([4, 5, 6], [5, 9, 6])
    assert turns is not None and turns.period == 3
    # What an iteration leaves in 5 is the next one's 4.
    assert turns.after(1) == {4: 5, 5: 9, 9: 4} and turns.after(-1)[5] == 4
    assert turns.after(3) == {4: 4, 5: 5, 9: 9}
    assert carry_turns([1, 2], [1, 2]).after(7) == {}


def test_copies_at_once_keep_what_they_overwrite() -> None:
    table = BufferTable(H200)
    a, b, c = table.new(8), table.new(8), table.new(8)
    copies, held = parallel_copies([(a, b, 8), (b, a, 8), (c, a, 8)], table)
    values = {a: "a", b: "b", c: "c"}
    for copy in copies:
        values[copy.destination] = values[copy.source]
    assert [values[x] for x in (a, b, c)] == ["b", "a", "a"] and len(held) == 3


def test_loops_count_whole_rounds() -> None:
    with without("row_loops", "loop_steps"):
        made = check(shifted, 50, *[drawn(k, 6, 5) for k in range(3)])
    (loop,) = [s for s in made.schedule.steps if isinstance(s, ForLoop)]
    assert loop.many % 4 == 0 and loop.count == 48
