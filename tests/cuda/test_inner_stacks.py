"""Loops of rows whose inner loops stack results: one kernel, whose results are JAX's."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import programs
import pytest
from programs import run
from triton.runtime import interpreter as triton_interpreter

import genesis_fn as g
from genesis_fn import lax
from genesis_fn.backends.cuda.codegen.row_loops import row_nests
from genesis_fn.compiler.options import without
from genesis_fn.compiler.row_loops import row_loops as pass_
from tests.support.fuzz_loops import LoopCase

NAMES = "lax", "random", "vmap", "grad", "checkpoint", "nn", "tree"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ---- programs, of a library's names ----


def pendulum(xp: Any, s: Any, push: Any) -> Any:
    angle, speed = s[:, 0], s[:, 1]
    speed = speed + 0.1 * (push - xp.np.sin(angle))
    return xp.np.stack([angle + 0.1 * speed, speed], axis=1)


def substeps(xp: Any) -> Callable:
    """The gradient of a rollout, of a few steps of physics each."""

    def loss(s: Any, pushes: Any) -> Any:
        def step(s: Any, push: Any) -> Any:
            s = xp.lax.fori_loop(0, 3, lambda _, s: pendulum(xp, s, push), s)
            return s, s[:, 0]

        s, angles = xp.lax.scan(step, s, pushes)
        return xp.np.sum(angles**2) + xp.np.sum(s[:, 1])

    return xp.grad(loss, argnums=(0, 1))


def trained(xp: Any) -> Callable:
    """The gradient by weights that all rows share: sums over rows that an inner loop carries."""

    def loss(w: Any, s: Any) -> Any:
        def inner(s: Any, _: Any) -> Any:
            return pendulum(xp, s, xp.np.tanh(s @ w)), None

        def step(s: Any, _: Any) -> Any:
            s, _ = xp.lax.scan(inner, s, None, length=3)
            return s, xp.np.sum(s[:, 0] ** 2)

        return xp.np.sum(xp.lax.scan(step, s, None, length=4)[1])

    return xp.grad(loss, argnums=(0, 1))


def checkpointed(xp: Any) -> Callable:
    """A body computed again in the backward pass: its inner loop's residuals are read there."""

    def loss(s: Any, xs: Any) -> Any:
        def inner(s: Any, _: Any) -> Any:
            return xp.np.sin(s * 1.1) + 0.1 * s, None

        @xp.checkpoint
        def step(s: Any, x: Any) -> Any:
            s, _ = xp.lax.scan(inner, s + x, None, length=5)
            return s, s

        s, ys = xp.lax.scan(step, s, xs)
        return xp.np.sum(s) + xp.np.sum(ys * ys)

    return xp.grad(loss, argnums=(0, 1))


def read_again(xp: Any, reverse: bool = False, length: int = 4) -> Callable:
    """What an inner loop stacks is read by another one, which stacks as well."""

    def run(s: Any, xs: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            def first(c: Any, _: Any) -> Any:
                c = xp.np.sin(c) * 0.9 + x
                return c, (c * 2.0, c > 0.0)

            def second(c: Any, now: Any) -> Any:
                c = c * 0.5 + xp.np.where(now[1], now[0], 0.1)
                return c, c * 0.5

            s, stacked = xp.lax.scan(first, s, None, length=length)
            s, ys = xp.lax.scan(second, s, stacked, reverse=reverse)
            return s, (s, ys, stacked[0])

        return xp.lax.scan(step, s, xs)

    return run


def of_time(xp: Any) -> Callable:
    """Reductions over an inner loop's steps, and views of what it stacks."""

    def run(s: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            def inner(c: Any, _: Any) -> Any:
                c = xp.np.sin(c * 1.3) + 0.2
                return c, c

            last, ys = xp.lax.scan(inner, s, None, length=5)
            mean, best = xp.np.mean(ys, axis=0), xp.np.argmax(ys, axis=0)
            moved = xp.np.concatenate([ys[1:], s[None]])[::-1]
            s, _ = xp.lax.scan(lambda c, y: (c * 0.5 + y, None), last - mean, moved)
            return s * 0.3, (mean, best, xp.np.max(ys * 2.0, axis=0), xp.np.moveaxis(ys, 0, -1))

        return xp.lax.scan(step, s, None, length=3)

    return run


def levels(xp: Any) -> Callable:
    """Loops in loops in a loop: what the innermost stacks is a result, and is read on the way."""

    def run(s: Any) -> Any:
        def innermost(c: Any, _: Any) -> Any:
            c = xp.np.sin(c) + 0.1
            return c, c

        def inner(c: Any, _: Any) -> Any:
            c, ys = xp.lax.scan(innermost, c, None, length=2)
            return c * 0.9, (ys, ys[0])

        def step(s: Any, _: Any) -> Any:
            s, (all_of, first) = xp.lax.scan(inner, s, None, length=3)

            def over(c: Any, now: Any) -> Any:
                c, back = xp.lax.scan(lambda c, y: (c * 0.8 + y, c), c, now[0], reverse=True)
                return c - now[1] * 0.1, back

            s, backs = xp.lax.scan(over, s, (all_of, first), reverse=True)
            return s * 0.2, (all_of, backs)

        return xp.lax.scan(step, s, None, length=4)

    return run


def of_all_rows(xp: Any) -> Callable:
    """What rows have in common is stacked once, and read by the rows of all programs."""

    def run(s: Any, n: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            s, n = carry

            def count(n: Any, _: Any) -> Any:
                n = xp.np.sin(n) + 0.5
                return n, n

            n, ns = xp.lax.scan(count, n, None, length=3)
            s, ys = xp.lax.scan(lambda c, m: (c * m + 0.1, c + m), s, ns)
            n, _ = xp.lax.scan(lambda c, m: (c * 0.5 + m, None), n, ns, reverse=True)
            return (s, n), (ns, ys)

        return xp.lax.scan(step, (s, n), None, length=4)

    return run


def matrices(xp: Any) -> Callable:
    """Two axes of rows, and stacks of values that have one of them, or both."""

    def run(s: Any, row: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            def inner(carry: Any, _: Any) -> Any:
                s, row = carry
                s, row = xp.np.sin(s) + row[:, None], row * 0.9 + 0.1
                return (s, row), (s, row)

            carry, (of_s, of_row) = xp.lax.scan(inner, carry, None, length=3)
            read = lambda c, now: (c * 0.5 + now[0] * now[1][:, None], None)
            s, _ = xp.lax.scan(read, carry[0], (of_s, of_row), reverse=True)
            return (s * 0.3, carry[1]), (of_row, of_s)

        return xp.lax.scan(step, (s, row), None, length=3)

    return run


def until(xp: Any) -> Callable:
    """A while loop of each example, whose steps run loops that stack and read."""

    def one(x: Any) -> Any:
        def step(c: Any) -> Any:
            x, n = c
            y, ys = xp.lax.scan(lambda c, _: (c * 0.9 - 0.01, c), x, None, length=3)
            y, _ = xp.lax.scan(lambda c, z: (c * 0.9 + z * 0.05, None), y, ys, reverse=True)
            return y, n + 1

        return xp.lax.while_loop(lambda c: c[0] > 0.3, step, (x, 0))

    return xp.vmap(one)


def optimised(xp: Any) -> Callable:
    """The gradient through an optimiser's iterations, of one example."""

    def one(target: Any, rate: Any) -> Any:
        def loss(rate: Any) -> Any:
            def outer(x: Any, t: Any) -> Any:
                descend = lambda _, x: x - rate * xp.grad(lambda x: xp.np.sum((x - t) ** 4))(x)
                x = xp.lax.fori_loop(0, 4, descend, x)
                return x, xp.np.sum((x - t) ** 2)

            return xp.np.sum(xp.lax.scan(outer, xp.np.zeros(3), target)[1])

        return xp.grad(loss)(rate)

    return xp.vmap(one)


def halves(xp: Any) -> Callable:
    """An axis of which threads share a part, and have the rest each."""

    def run(m: Any, s: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            def inner(carry: Any, _: Any) -> Any:
                m, s = carry
                both = xp.np.concatenate([m, s], axis=1)
                total = xp.np.mean(both, axis=1, keepdims=True)
                return (xp.np.tanh(m + total), xp.np.sin(s - total)), both

            (m, s), boths = xp.lax.scan(inner, carry, None, length=3)
            total, _ = xp.lax.scan(
                lambda c, both: (c * 0.5 + xp.np.sum(both, axis=1), None), s[:, 0], boths
            )
            return (m, s), (total, boths)

        return xp.lax.scan(step, (m, s), None, length=2)

    return run


def attentive(xp: Any, reverse: bool = False) -> Callable:
    """Features that steps reduce, so that threads share them: stacks of lanes."""

    def run(s: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            def inner(c: Any, _: Any) -> Any:
                c = xp.nn.softmax(c * 2.0, axis=-1) + 0.1 * c
                return c, (c, xp.np.max(c, axis=-1))

            def back(c: Any, now: Any) -> Any:
                return c * 0.5 + now[0] * now[1][:, None], xp.np.mean(c, axis=-1)

            s, stacked = xp.lax.scan(inner, s, None, length=3)
            mean = xp.np.mean(stacked[0], axis=0)
            s, ys = xp.lax.scan(back, s - mean, stacked, reverse=reverse)
            return s, (ys, stacked[1])

        return xp.lax.scan(step, s, None, length=3)

    return run


def attentive_gradient(xp: Any) -> Callable:
    """Its gradient, with a body that is computed again."""

    def loss(s: Any, w: Any) -> Any:
        inner = lambda c, _: (xp.nn.softmax(c * w, axis=-1) + 0.1 * c, None)
        step = xp.checkpoint(lambda s, _: (xp.lax.scan(inner, s, None, length=4)[0], None))
        return xp.np.sum(xp.lax.scan(step, s, None, length=3)[0] ** 2)

    return xp.grad(loss, argnums=(0, 1))


def layers(xp: Any) -> Callable:
    """Weights of many units: their gradients are products of what inner loops stack."""

    def loss(w: Any, s: Any) -> Any:
        def inner(s: Any, _: Any) -> Any:
            h = xp.np.tanh(xp.np.matmul(s, w["a"], precision="highest"))
            return s * 0.9 + 0.1 * xp.np.matmul(h, w["b"], precision="highest"), None

        def step(s: Any, _: Any) -> Any:
            s, _ = xp.lax.scan(inner, s, None, length=2)
            return s, xp.np.sum(s**2)

        return xp.np.sum(xp.lax.scan(step, s, None, length=3)[1])

    return xp.grad(loss, argnums=(0, 1))


def narrow(xp: Any) -> Callable:
    """What is read is what its dtype holds."""

    def step(h: Any, x: Any) -> Any:
        inner = lambda c, _: ((c * 0.5 + x).astype(xp.np.bfloat16), c)
        h, ys = xp.lax.scan(inner, h, None, length=3)
        h, _ = xp.lax.scan(lambda c, y: ((c * 0.3 + y).astype(xp.np.bfloat16), None), h, ys)
        return h, xp.np.max(ys, axis=0)

    return lambda h, x: xp.lax.scan(step, h.astype(xp.np.bfloat16), x.astype(xp.np.bfloat16))


# name: (program, operands, how many kernels of loops, tolerance)
PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...], int, float]] = {
    "substeps": (substeps, (normal(40, 2), normal(5, 40, seed=1)), 2, 1e-5),
    "substeps of one row": (substeps, (normal(1, 2), normal(5, 1, seed=1)), 2, 1e-5),
    "trained": (trained, (normal(2), normal(37, 2, seed=1)), 2, 1e-5),
    "checkpointed": (checkpointed, (normal(37), normal(4, 37, seed=1)), 2, 1e-5),
    "checkpointed matrix": (checkpointed, (normal(9, 16), normal(4, 9, 16, seed=1)), 2, 1e-5),
    "lanes": (attentive, (normal(9, 20),), 1, 5e-6),
    "lanes backwards": (lambda xp: attentive(xp, True), (normal(9, 32),), 1, 5e-6),
    "lanes of few": (attentive, (normal(3, 8),), 1, 5e-6),
    "unrolled": (attentive, (normal(37, 3),), 1, 5e-6),
    "gradient of lanes": (attentive_gradient, (normal(9, 16), normal(16, seed=1)), 2, 1e-5),
    "gradient of unrolled": (attentive_gradient, (normal(37, 3), normal(3, seed=1)), 2, 1e-5),
    "layers": (
        layers, ({"a": normal(3, 16, seed=1), "b": normal(16, 3, seed=2)}, normal(40, 3)), 2, 1e-5,
    ),
    "narrow": (narrow, (normal(33), normal(5, 33, seed=1)), 1, 2e-2),
    "read again": (read_again, (normal(150), normal(3, 150, seed=1)), 1, 5e-6),
    "read backwards": (
        lambda xp: read_again(xp, True), (normal(37, 3), normal(3, 37, 3, seed=1)), 1, 5e-6,
    ),
    "read in a matrix": (read_again, (normal(9, 20), normal(3, 9, 20, seed=1)), 1, 5e-6),
    "of one step": (
        lambda xp: read_again(xp, length=1), (normal(37), normal(3, 37, seed=1)), 1, 5e-6,
    ),
    "of time": (of_time, (normal(37),), 1, 5e-6),
    "of time in a matrix": (of_time, (normal(5, 16),), 1, 5e-6),
    "levels": (levels, (normal(37),), 1, 5e-6),
    "levels of a matrix": (levels, (normal(5, 16),), 1, 5e-6),
    "of all rows": (of_all_rows, (normal(300), np.float32(0.3)), 1, 5e-6),
    "matrices": (matrices, (normal(7, 5), normal(7, seed=1)), 1, 5e-6),
    "until": (until, (np.abs(normal(37)) + 0.2,), 1, 5e-6),
    "optimised": (optimised, (normal(37, 4, 3), np.abs(normal(37, seed=1)) * 0.1), 2, 1e-5),
    "halves": (halves, (normal(5, 80), normal(5, 3, seed=1)), 1, 5e-6),
    "many": (lambda xp: xp.vmap(read_again(xp)), (normal(6, 7), normal(6, 3, 7)), 1, 5e-6),
    "many in the middle": (
        lambda xp: xp.vmap(read_again(xp, True), in_axes=(0, 1), out_axes=1),
        (normal(6, 7), normal(3, 6, 7)), 1, 5e-6,
    ),
}  # fmt: skip


class Order:
    """Whether threads of a launch see what others wrote: a load must not find what another program
    wrote, or its own one since the last barrier, nor a store what was read since then."""

    def __init__(self) -> None:
        self.faults: set[str] = set()
        self.barriers = 0
        self.interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self.begin()

    def begin(self) -> None:
        """A launch."""
        self.written: dict[int, Any] = {}
        self.read: dict[int, Any] = {}

    def load(self, addresses: Iterable[int], now: Any) -> None:
        """Note reads, `now` in (program, number of barriers)."""
        for x in addresses:
            self._compare(self.written.get(x), now, "read what was written")
            self.read[x] = now

    def store(self, addresses: Iterable[int], now: Any) -> None:
        """Note writes."""
        for x in addresses:
            self._compare(self.read.get(x), now, "written what was read")
            if x in self.read and x not in self.written:
                self.faults.add("read before it was written")
            if x in self.written and self.written[x][0] != now[0]:
                self.faults.add("written by two programs")
            self.written[x] = now

    def has_barriers(self, wanted: bool = True) -> bool:
        """Whether there have been barriers, or none, as is `wanted`: if it has been asked."""
        return bool(self.barriers) == wanted or not self.interpreted

    def _compare(self, before: Any, now: Any, what: str) -> None:
        if before is not None and before[0] != now[0]:
            self.faults.add(f"{what} by another program")
        if before == now:
            self.faults.add(f"{what} without a barrier")


@pytest.fixture
def accesses(monkeypatch: pytest.MonkeyPatch) -> Order:
    """The memory operations of all launches."""
    noted, builder = Order(), triton_interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    begin = builder.set_grid_dim

    def addresses(pointers: Any, mask: Any) -> list[int]:
        pointers, mask = np.broadcast_arrays(pointers.data, mask.data)
        return pointers[mask.astype(bool)].astype(np.int64).tolist()

    def now(self: Any) -> Any:
        return tuple(self.grid_idx), noted.barriers

    def noted_load(self: Any, ptrs: Any, mask: Any, *more: Any, **named: Any) -> Any:
        noted.load(addresses(ptrs, mask), now(self))
        return load(self, ptrs, mask, *more, **named)

    def noted_store(self: Any, ptrs: Any, value: Any, mask: Any, *more: Any, **named: Any) -> Any:
        noted.store(addresses(ptrs, mask), now(self))
        return store(self, ptrs, value, mask, *more, **named)

    def noted_begin(self: Any, *sizes: int) -> None:
        noted.begin()
        begin(self, *sizes)

    def noted_barrier(self: Any) -> None:
        noted.barriers += 1

    monkeypatch.setattr(builder, "create_masked_load", noted_load)
    monkeypatch.setattr(builder, "create_masked_store", noted_store)
    monkeypatch.setattr(builder, "set_grid_dim", noted_begin)
    monkeypatch.setattr(builder, "create_barrier", noted_barrier)
    return noted


@pytest.fixture
def order(accesses: Order) -> Generator[Order]:
    """Those of loops whose results have memory of their own, which must be in order."""
    with without("in_place"):
        yield accesses
    assert not accesses.faults


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The nests that become kernels, None for loops that do not."""
    found: list[Any] = []
    once = pass_._row_loop

    def noted(*args: Any) -> Any:
        eqns = once(*args)
        nests = [e.params["nest"] for e in eqns if e.prim is pass_.row_loop_p]
        found.extend(nests or [None])
        return eqns

    monkeypatch.setattr(pass_, "_row_loop", noted)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, loops: list[Any], order: Order) -> None:
    make, args, count, tolerance = PROGRAMS[name]
    with g.default_matmul_precision("highest"):
        got = run(make(OURS), *args)
    with jax.default_matmul_precision("highest"):
        want = [np.asarray(x) for x in jax.tree.leaves(make(JAX)(*args))]
    assert len(loops) == count and None not in loops
    assert all([nest.rows > 2 or "one row" in name for nest in loops])
    assert order.has_barriers(any([nest.scratch for nest in loops]))
    for x, y in zip(got, want, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(y)))


@pytest.mark.parametrize(
    "seed", [8, 26, *[pytest.param(n, marks=pytest.mark.slow) for n in (9, 10, 19, 24, 28)]]
)
def test_random_loops(seed: int, loops: list[Any], order: Order) -> None:
    case = LoopCase(seed, stacks=True)
    got = run(case.function(OURS), *case.inputs)
    want = [np.asarray(x) for x in case.function(JAX)(*map(jax.numpy.asarray, case.inputs))]
    assert None not in loops and order.has_barriers()
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * max(1.0, float(np.abs(y).max())))


@pytest.mark.parametrize("make", [attentive, lambda xp: attentive(xp, True)])
def test_threads_that_have_several_elements(
    make: Callable, loops: list[Any], order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_, "_lane_width", lambda *_: 8)
    x = normal(21, 32)
    for got, want in zip(run(make(OURS), x), jax.tree.leaves(make(JAX)(x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=5e-6, atol=5e-6)
    (nest,) = loops
    assert nest.lanes == {"r0": 8} and nest.scratch and order.has_barriers()


@pytest.mark.parametrize("name", ["read again", "read backwards", "levels"])
def test_reads_a_step_ahead(
    name: str, loops: list[Any], order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in long bodies, of which one step is written."""
    monkeypatch.setattr(row_nests, "_UNROLLED", 1)
    make, args, *_ = PROGRAMS[name]
    for got, want in zip(run(make(OURS), *args), jax.tree.leaves(make(JAX)(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=5e-6, atol=5e-6)
    assert len(loops) == 1 and order.has_barriers()


def test_results_where_a_loop_has_begun_wait_for_all_threads(accesses: Order) -> None:
    def f(a: Any, b: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            a, b = carry
            return (b, a + 0.1 * g.nn.softmax(b)), None

        return lax.scan(step, (a, b), None, length=5)[0]

    args = normal(40, 20), normal(40, 20, seed=1)
    programs.compare(f, *args, donated=[True, True], tolerance=1e-5)
    assert accesses.faults <= {"read before it was written"} and accesses.has_barriers()


def test_a_sum_of_more_steps_than_are_unrolled(loops: list[Any]) -> None:
    """The steps are a lane."""

    def step(c: Any) -> Any:
        c, ys = lax.scan(lambda c, _: (g.numpy.sin(c), c), c, None, length=70)
        return c + g.numpy.mean(ys, axis=0)

    f = lambda x: lax.fori_loop(0, 3, lambda _, c: step(c), x)
    x = normal(9)
    (got,) = run(f, x)
    (want,) = programs.on_cpu(*programs.traced(f, x))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert loops[0].rows == 9


# ---- loops that stay as they were ----


def _table(c: Any) -> Any:
    """A lookup in what a loop stacks."""
    c, ys = lax.scan(lambda c, _: (g.numpy.sin(c), c), c, None, length=4)
    return c + ys[g.numpy.int32(g.numpy.abs(c[0]) * 3) % 4]


def _rows(c: Any) -> Any:
    """A reduction of rows in memory."""
    c, ys = lax.scan(lambda c, _: (g.numpy.sin(c), c), c, None, length=4)
    return c + g.numpy.mean(ys, axis=1)[:, None].sum() * 0.1


@pytest.mark.parametrize("step", [_table, _rows])
def test_what_a_row_cannot_read_stays_a_loop(step: Callable, loops: list[Any]) -> None:
    f = lambda x: lax.fori_loop(0, 3, lambda _, c: step(c), x)
    x = normal(30)
    (got,) = run(f, x)
    (want,) = programs.on_cpu(*programs.traced(f, x))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert loops[0] is None or loops[0].rows == 1


@pytest.mark.parametrize("x", [np.abs(normal(40)) + 0.1, np.float32(3.0)])
def test_a_condition_that_runs_a_loop(x: Any, loops: list[Any]) -> None:
    """It is asked ahead of the loop as well, where the loop in it has not run."""

    def going(x: Any) -> Any:
        y, ys = lax.scan(lambda c, _: (c * 0.9, c), x, None, length=3)
        return ys[1] + y > 0.5

    f = lambda x: lax.while_loop(going, lambda x: x * 0.8, x)
    f = g.vmap(f) if np.ndim(x) else f
    (got,) = run(f, x)
    (want,) = programs.on_cpu(*programs.traced(f, x))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert loops[0] is None
