"""Loops that work row by row are one kernel, whose results are JAX's; others stay as they were."""

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
from genesis_fn import lax
from genesis_fn.backends.cuda.lower.steps import ProgramLowering
from genesis_fn.backends.cuda.run.steps import ForLoop
from genesis_fn.core import errors
from tests.support.fuzz_loops import LoopCase

NAMES = "lax", "random", "vmap", "grad", "nn", "tree"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ---- programs, of a library's names ----


def newton(xp: Any) -> Callable:
    """Iterations until each example has converged."""

    def root(x: Any) -> Any:
        going = lambda c: (xp.np.abs(c[0] ** 2 - x) > 1e-4) & (c[1] < 30)
        step = lambda c: (c[0] - (c[0] ** 2 - x) / (2 * c[0]), c[1] + 1)
        return xp.lax.while_loop(going, step, (x + 1.0, 0))

    return xp.vmap(root)


def recurrence(xp: Any) -> Callable:
    def run(a: Any, x: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            h = now[0] * h + now[1]
            return h, xp.np.tanh(h)

        return xp.lax.scan(step, xp.np.zeros(x.shape[1:]), (a, x))

    return run


def backwards(xp: Any) -> Callable:
    return lambda a, x: xp.lax.scan(
        lambda h, now: (now[0] * h + now[1], h), x[0], (a, x), reverse=True
    )


def gradients(xp: Any) -> Callable:
    loss = lambda a, x: xp.np.sum(xp.np.sin(recurrence(xp)(a, x)[1]))
    return xp.grad(loss, argnums=(0, 1))


def field(xp: Any, s: Any) -> Any:
    return xp.np.stack([s[0] * (1.1 - 0.4 * s[1]), s[1] * (0.1 * s[0] - 0.4)])


def runge_kutta(xp: Any) -> Callable:
    """Of vectors whose elements are taken apart and put together."""

    def run(s: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            a = field(xp, s)
            b = field(xp, s + 0.02 * a)
            return s + 0.04 * b, s[::-1]

        return xp.lax.scan(step, s, None, length=6)

    return xp.vmap(run)


def policy(xp: Any, p: Any, s: Any) -> Any:
    h = xp.np.tanh(s @ p["a"] + p["b"])
    return (h @ p["c"] + p["d"])[:, 0]


def rollout(xp: Any) -> Callable:
    """Environments with a small network, whose hidden units threads share."""

    def run(p: Any, s: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            angle, speed = s[:, 0], s[:, 1]
            speed = speed + 0.1 * xp.np.sin(angle) + 0.1 * xp.np.tanh(policy(xp, p, s))
            s = xp.np.stack([angle + 0.1 * speed, speed, s[:, 2] * 0.9], axis=1)
            return s, -(angle**2)

        s, rewards = xp.lax.scan(step, s, None, length=5)
        return xp.np.mean(rewards) + xp.np.sum(s) * 0.01

    return run


def rollout_gradient(xp: Any) -> Callable:
    """The weights' gradients are sums over rows, which leave the loop."""
    return lambda p, s: xp.grad(rollout(xp), argnums=(0, 1))(p, s)


def recurrent(xp: Any) -> Callable:
    """A constant matrix that multiplies rows: a tile times a matrix."""

    def loss(w: Any, x: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            h = xp.np.tanh(xp.np.matmul(h, w, precision="highest") + now)
            return h, h

        return xp.np.sum(xp.lax.scan(step, xp.np.zeros(x.shape[1:]), x)[1] ** 2)

    return lambda w, x: xp.grad(loss, argnums=(0, 1))(w, x)


def nested(xp: Any) -> Callable:
    def outer(i: Any, y: Any) -> Any:
        inner = lambda j, z: z * 0.5 + xp.np.sin(z) * (j + 1)
        return xp.lax.fori_loop(0, 3, inner, y) + i

    return lambda x: xp.lax.fori_loop(0, 4, outer, x)


def until_within(xp: Any) -> Callable:
    """A while loop of rows in each step of a scan."""

    def step(x: Any, y: Any) -> Any:
        x = xp.lax.while_loop(lambda v: v > 1.0, lambda v: v * 0.5 - 0.01, xp.np.abs(x) + y)
        return x, x

    return xp.vmap(lambda x, ys: xp.lax.scan(step, x, ys)[1])


def walk(xp: Any) -> Callable:
    """Random keys that each step splits."""

    def one(key: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            key, x = state
            key, a, b = xp.random.split(key, 3)
            x = x + xp.random.normal(a, (3,)) * xp.random.uniform(b)
            return key, x

        return xp.lax.fori_loop(0, 3, step, (key, xp.np.zeros(3)))[1]

    def run(seed: Any) -> Any:
        keys = xp.random.split(xp.random.key(seed, impl="threefry2x32"), 9)
        return xp.vmap(one)(keys)

    return run


def branches(xp: Any) -> Callable:
    def step(c: Any, _: Any) -> Any:
        c = xp.lax.cond(c[0] > 2, lambda s: (s[0] * 0.5, s[1]), lambda s: (s[0] + s[1], -s[1]), c)
        y = xp.lax.switch(c[2] if len(c) > 2 else 1, [lambda v: v, lambda v: v * 2], c[0])
        return c, y

    return lambda a, b: xp.lax.scan(step, (a, b), None, length=7)


def lookup(xp: Any) -> Callable:
    """Rows of a constant table."""

    def run(table: Any, i: Any) -> Any:
        table = xp.np.asarray(table)

        def step(c: Any, _: Any) -> Any:
            return ((c[0] * 3 + 1) % 7, c[1] + table[c[0]]), c[0]

        return xp.lax.scan(step, (i, xp.np.zeros(table.shape[1])), None, length=5)

    return xp.vmap(run, in_axes=(None, 0))


def extremes(xp: Any) -> Callable:
    """Reductions of unrolled elements and of lanes, NaN included."""

    def step(x: Any, _: Any) -> Any:
        best = xp.np.argmax(x[:, :5], axis=1)
        y = xp.np.where(xp.np.arange(5) == best[:, None], x[:, :5] - 1.0, x[:, :5])
        return xp.np.concatenate([y, x[:, 5:] * 0.5], axis=1), xp.np.max(x, axis=1)

    return lambda x: xp.lax.scan(step, x, None, length=4)


def softmaxes(xp: Any) -> Callable:
    step = lambda x, _: (xp.nn.softmax(x * 3.0, axis=-1), xp.np.min(x, axis=-1))
    return lambda x: xp.lax.scan(step, x, None, length=3)


def narrow(xp: Any) -> Callable:
    """What is carried has the precision of its dtype."""
    step = lambda h, x: ((h * 1.01 + x).astype(xp.np.bfloat16), h)
    return lambda h, x: xp.lax.scan(step, h.astype(xp.np.bfloat16), x.astype(xp.np.bfloat16))


def wide(xp: Any) -> Callable:
    """Two axes of rows, values that have one of them, and a count that has none."""

    def step(c: Any, x: Any) -> Any:
        s, row, n = c
        return (s * 0.9 + row[:, None] * x, row + 0.1 * n, n + 1), (row, n)

    return lambda s, row, x: xp.lax.scan(step, (s, row, 0), x)


def means(xp: Any) -> Callable:
    """A mean over rows that each step reports leaves the loop."""

    def step(x: Any, y: Any) -> Any:
        x = x * 0.9 + y
        return x, xp.np.sqrt(xp.np.mean(x * x))

    return lambda x, ys: xp.lax.scan(step, x, ys)


def mixed(xp: Any) -> Callable:
    """An axis of which threads share a part, and have the rest each: sums count it once."""

    def run(w: Any, m: Any, s: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            m, s = carry
            both = xp.np.concatenate([m, s], axis=1)
            total = xp.np.mean(both, axis=1) + xp.np.max(both, axis=1) * 0.1 + both @ w
            return (xp.np.tanh(m + total[:, None]), xp.np.sin(s - total[:, None])), total

        return xp.lax.scan(step, (m, s), None, length=3)

    return run


NETWORK = {
    "a": normal(3, 16, seed=1), "b": normal(16, seed=2), "c": normal(16, 1, seed=3),
    "d": normal(1, seed=4),
}  # fmt: skip
# name: (program, operands, how many kernels of loops, tolerance)
PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...], int, float]] = {
    "newton": (newton, (np.abs(normal(70)) + 0.1,), 1, 2e-6),
    "recurrence": (recurrence, (normal(9, 2, 20), normal(9, 2, 20, seed=1)), 1, 2e-6),
    "backwards": (backwards, (normal(13, 40), normal(13, 40, seed=1)), 1, 2e-6),
    "gradients": (gradients, (normal(9, 20), normal(9, 20, seed=1)), 2, 5e-6),
    "runge-kutta": (runge_kutta, (np.abs(normal(33, 2)),), 1, 2e-6),
    "one row": (lambda xp: lambda s: runge_kutta(xp)(s[None]), (np.abs(normal(2)),), 1, 2e-6),
    "rollout": (rollout, (NETWORK, normal(40, 3)), 1, 1e-5),
    "rollout gradient": (rollout_gradient, (NETWORK, normal(40, 3)), 2, 1e-5),
    "recurrent": (recurrent, (normal(16, 16), normal(4, 20, 16)), 2, 1e-5),
    "nested": (nested, (normal(37),), 1, 5e-6),
    "until within": (until_within, (normal(20), np.abs(normal(20, 3, seed=1))), 1, 2e-6),
    "walk": (walk, (np.int32(3),), 1, 5e-6),
    "branches": (branches, (np.float32(3), np.float32(1.5)), 1, 2e-6),
    "lookup": (lookup, (normal(7, 3), np.arange(20, dtype=np.int32) % 7), 1, 2e-6),
    "lookup of lanes": (lookup, (normal(7, 16), np.arange(9, dtype=np.int32) % 7), 1, 2e-6),
    "extremes": (extremes, (np.where(normal(12, 9) > 1.2, np.nan, normal(12, 9)),), 1, 2e-6),
    "softmaxes": (softmaxes, (normal(12, 20),), 1, 5e-6),
    "narrow": (narrow, (normal(33), normal(5, 33, seed=1)), 1, 1e-2),
    "wide": (wide, (normal(6, 10), normal(6, seed=1), normal(4, 6, 10, seed=2)), 1, 2e-6),
    "mixed": (mixed, (normal(83, seed=3), normal(5, 80), normal(5, 3, seed=1)), 1, 5e-6),
    "means": (means, (normal(50), normal(6, 50, seed=1)), 1, 2e-6),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, loops: list[Any]) -> None:
    make, args, count, tolerance = PROGRAMS[name]
    with g.default_matmul_precision("highest"):
        got = run(make(OURS), *args)
    with jax.default_matmul_precision("highest"):
        want = [np.asarray(x) for x in jax.tree.leaves(make(JAX)(*args))]
    assert len(loops) == count
    for x, y in zip(got, want, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(y)))


def test_rows_of_one_program_stop_when_all_have(loops: list[Any]) -> None:
    """A row beyond the last one must keep no program going."""
    x = np.full(37, 4.0, np.float32)
    root = newton(OURS)
    (value, count) = run(root, x)
    np.testing.assert_allclose(value, 2.0, rtol=1e-4)
    assert len(loops) == 1 and np.all(count == count[0])


# ---- loops that are none of rows ----


def _waiting(c: Any) -> Any:
    return g.numpy.cumsum(c) * 0.1


def _mixed(c: Any) -> Any:
    return c * 0.5 + g.numpy.mean(c)


def _pairs(c: Any) -> Any:
    return g.numpy.sum(c[:, None] - c[None, :] ** 2, axis=1) * 1e-3


@pytest.mark.parametrize(
    ("step", "x"), [(_waiting, normal(30)), (_mixed, normal(30)), (_pairs, normal(30))]
)
def test_what_waits_for_other_rows_stays_a_loop(step: Callable, x: Any, loops: list[Any]) -> None:
    f = lambda x: lax.fori_loop(0, 4, lambda _, c: step(c), x)
    (got,) = run(f, x)
    (want,) = programs.on_cpu(*programs.traced(f, x))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert not loops or all(nest.rows == 1 for nest in loops)


def test_rows_that_go_on_when_they_are_done(loops: list[Any]) -> None:
    """A condition on any row, without one that freezes those that are done, holds for all rows."""
    f = lambda x: lax.while_loop(lambda c: g.numpy.any(c < 1.0), lambda c: c * 1.5, x)
    x = np.abs(normal(40)) + 0.05
    (got,) = run(f, x)
    want = x
    while np.any(want < 1):
        want = want * np.float32(1.5)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert not loops


# ---- lookups that fail ----


def test_a_row_beyond_a_table_raises() -> None:
    table = g.numpy.arange(5.0)
    f = g.vmap(lambda i: lax.fori_loop(0, 3, lambda k, c: c + table[i + k], 0.0))
    np.testing.assert_array_equal(run(f, np.array([0, 2], np.int32))[0], [3, 9])
    jaxpr, inputs = programs.traced(f, np.array([0, 3], np.int32))
    compiled = programs.compile_jaxpr(jaxpr, programs.PLACE)
    with pytest.raises(errors.IndexOutOfRange, match="5"):
        out = compiled(*map(programs.put, inputs))
        programs.device_runtime(0).synchronize()
        programs.get(out[0])


def test_a_loop_without_steps_checks_nothing() -> None:
    table = g.numpy.arange(5.0)

    def f(i: Any, n: Any) -> Any:
        body = lambda c: (c[0] + 1, c[1] + table[i])
        return lax.while_loop(lambda c: c[0] < n, body, (0, 0.0))[1]

    assert run(f, np.int32(7), np.int32(0))[0] == 0


# ---- random loops ----


@pytest.mark.parametrize(
    "seed", [*range(8), *[pytest.param(n, marks=pytest.mark.slow) for n in range(8, 60)]]
)
def test_random_loops(seed: int) -> None:
    case = LoopCase(seed)
    got = run(case.function(OURS), *case.inputs)
    want = [np.asarray(x) for x in case.function(JAX)(*map(jax.numpy.asarray, case.inputs))]
    # What is rounded differently is multiplied by as many steps.
    for x, y in zip(got, want, strict=True):
        scale = max(1.0, float(np.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * scale)


# ---- loops of a graph, several iterations to a node ----


@pytest.mark.parametrize("rows", [7, 64, 150])
def test_long_bodies_of_many_carries(rows: int, loops: list[Any]) -> None:
    """Their loads and stores are made through pointers that a loop of one turn carries."""

    def run(xp: Any) -> Callable:
        def step(carry: Any, x: Any) -> Any:
            for _ in range(9):
                last = carry[-1]
                carry = [0.5 * a + 0.25 * xp.np.sin(last * b) for a, b in zip(carry, carry[1:])]
                carry.append(0.5 * last + x)
            return carry, carry[0]

        return lambda x, *first: xp.lax.scan(step, list(first), x)

    first = [normal(rows, seed=k) for k in range(6)]
    x = normal(5, rows, seed=9)
    got = programs.compare(run(OURS), x, *first, tolerance=1e-5)
    assert got is not None and loops
    for ours, theirs in zip(
        g.tree.leaves(g.jit(run(OURS))(x, *first)), jax.tree.leaves(run(JAX)(x, *first))
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 33, 50])
@pytest.mark.parametrize("reverse", [False, True])
def test_unrolled_iterations_count_on(steps: int, reverse: bool) -> None:
    def f(x: Any, ys: Any) -> Any:
        return lax.scan(lambda c, y: (g.numpy.cumsum(c) * 0.1 + y, c), x, ys, reverse=reverse)

    x, ys = normal(5), normal(steps, 5, seed=1)
    last, stack = run(f, x, ys)
    want = np.zeros((steps, 5))
    for k in reversed(range(steps)) if reverse else range(steps):
        want[k] = x
        x = np.cumsum(x) * np.float32(0.1) + ys[k]
    np.testing.assert_allclose(last, x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stack, want, rtol=1e-5, atol=1e-6)


def test_small_bodies_are_unrolled() -> None:
    found: list[ForLoop] = []
    once = ProgramLowering.lower

    def noted(self: ProgramLowering) -> Any:
        items, outputs = once(self)
        found.extend(s for i in items for s in i.steps if isinstance(s, ForLoop))
        return items, outputs

    patch = pytest.MonkeyPatch()
    with patch.context() as m:
        m.setattr(ProgramLowering, "lower", noted)
        f = lambda x: lax.fori_loop(0, 40, lambda _, c: g.numpy.cumsum(c) * 0.1, x)
        programs.compile_jaxpr(programs.traced(f, normal(5))[0], programs.PLACE)
    (loop,) = found
    assert loop.many == 16 and loop.count == 32


# ---- carries in the memory of donated operands ----


def mixing(a: Any, b: Any) -> Any:
    """Lanes that meet, and carries that change places."""

    def step(carry: Any, _: Any) -> Any:
        a, b = carry
        return (b, a + 0.1 * g.nn.softmax(b) - g.numpy.mean(a, axis=1, keepdims=True)), None

    return lax.scan(step, (a, b), None, length=5)[0]


def read_as_it_was(a: Any, b: Any) -> Any:
    """What the loop begins with is looked up in every step."""
    rows = g.numpy.arange(a.shape[0])

    def step(carry: Any, i: Any) -> Any:
        x, y = carry
        place = g.numpy.argmax(y, axis=1)
        return (x * 0.5 + a[rows, place][:, None], y + x), None

    return lax.scan(step, (a, b), None, length=5)[0]


def turned(a: Any, b: Any) -> Any:
    """The first value is another one's, turned: rows read what others write."""
    step = lambda carry, _: ((carry[0] + 1.0, carry[1] * 0.5 + carry[0]), None)
    return lax.scan(step, (b[::-1], a[::-1]), None, length=3)[0]


@pytest.mark.parametrize("f", [mixing, read_as_it_was, turned])
@pytest.mark.parametrize("donated", [[True, True], [True, False], [False, False]])
def test_carries_in_the_memory_of_operands(
    f: Callable[..., Any], donated: list[bool], loops: list[Any]
) -> None:
    args = normal(40, 20), normal(40, 20, seed=1)
    programs.compare(f, *args, donated=donated, tolerance=1e-5)
    (loop,) = loops
    overwritten = [loop.overwritten(v) is not None for v in loop.results]
    assert overwritten == [f is mixing, f is not turned]
