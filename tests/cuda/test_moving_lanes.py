"""Loops whose elements change places along lanes: they are gathered in registers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from programs import run

import genesis_fn as g
from genesis_fn.compiler.row_loops.lanes import Lanes

NAMES = "lax", "random", "vmap", "grad", "nn"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ---- programs, of a library's names ----


def ring(xp: Any) -> Callable:
    """Diffusion along a ring, of each row."""

    def run(x: Any) -> Any:
        def step(_: Any, u: Any) -> Any:
            return u + 0.2 * (xp.np.roll(u, 1, axis=1) + xp.np.roll(u, -1, axis=1) - 2 * u)

        return xp.lax.fori_loop(0, 5, step, x)

    return run


def walls(xp: Any) -> Callable:
    """A wave between fixed ends, and what it is at them."""

    def run(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            u, before = c
            inside = 2 * u[1:-1] - before[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
            new = xp.np.concatenate([xp.np.zeros(1), inside, xp.np.zeros(1)])
            return (new, u), (new[1], xp.np.max(new), new[-2] > 0)

        return xp.lax.scan(step, (x, x), None, length=6)

    return xp.vmap(run)


def walls_gradient(xp: Any) -> Callable:
    return xp.grad(lambda x: sum(xp.np.sum(xp.np.sin(y)) for y in walls(xp)(x)[1][:2]))


def alignment(xp: Any) -> Callable:
    """Sums over alignments, as of connectionist temporal classification, and their gradients."""

    def loss(emitted: Any, same: Any) -> Any:
        rows, n = emitted.shape[1:]

        def step(a: Any, now: Any) -> Any:
            low = xp.np.full((rows, 2), -1e5)
            one = xp.np.concatenate([low[:, :1], a[:, :-1]], 1)
            two = xp.np.where(same, -1e5, xp.np.concatenate([low, a[:, :-2]], 1))
            return xp.np.logaddexp(xp.np.logaddexp(a, one), two) + now, None

        first = xp.np.where(xp.np.arange(n) < 2, emitted[0], -1e5)
        last, _ = xp.lax.scan(step, first, emitted[1:])
        return -xp.np.mean(xp.np.logaddexp(last[:, -1], last[:, -2]))

    return xp.grad(loss)


def gated(xp: Any) -> Callable:
    """The gradients of gates that are parts of one product."""

    def loss(wi: Any, wh: Any, x: Any) -> Any:
        n = wh.shape[0]

        def step(h: Any, now: Any) -> Any:
            a, b = now @ wi, h @ wh
            r, z = xp.nn.sigmoid(a[:, :n] + b[:, :n]), xp.nn.sigmoid(a[:, n : 2 * n])
            h = z * h + (1 - z) * xp.np.tanh(a[:, 2 * n :] + r * b[:, 2 * n :])
            return h, h

        return xp.np.mean(xp.lax.scan(step, xp.np.zeros((x.shape[1], n)), x)[1] ** 2)

    return xp.grad(loss, argnums=(0, 1))


def reversal(xp: Any) -> Callable:
    """Reversed, taken apart with strides, repeated and put together."""

    def run(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            halves = xp.np.concatenate([c[:, ::2], c[:, 1::2]], axis=1)
            again = xp.np.repeat(c[:, : c.shape[1] // 2], 2, axis=1)
            c = 0.5 * c[:, ::-1] + 0.25 * halves + 0.25 * again
            return c, (c > 0)[:, ::-1]

        return xp.lax.scan(step, x, None, length=4)

    return run


def plane(xp: Any) -> Callable:
    """A stencil along both axes of a matrix of each row."""

    def run(x: Any) -> Any:
        def step(_: Any, u: Any) -> Any:
            across = xp.np.roll(u, 1, axis=1) + xp.np.roll(u, -1, axis=1)
            down = xp.np.roll(u, 1, axis=2) + xp.np.roll(u, -1, axis=2)
            return u + 0.1 * (across + down - 4 * u) + 0.01 * xp.np.roll(u, (2, -3), axis=(1, 2))

        return xp.lax.fori_loop(0, 3, step, x)

    return run


def windows(xp: Any) -> Callable:
    """Each element times those that follow it: an index that is the sum of two lanes."""

    def run(x: Any, w: Any) -> Any:
        n, k = x.shape[1], w.shape[0]

        def step(_: Any, c: Any) -> Any:
            padded = xp.np.concatenate([c, c[:, : k - 1]], axis=1)
            found = xp.np.stack([padded[:, j : j + n] for j in range(k)], axis=2)
            return xp.np.tanh(xp.np.sum(found * w, axis=2))

        return xp.lax.fori_loop(0, 3, step, x)

    return run


def split(xp: Any) -> Callable:
    """One axis as two, and two as one."""

    def run(x: Any) -> Any:
        def step(_: Any, c: Any) -> Any:
            m = c.reshape(c.shape[0], 9, -1)
            m = m - xp.np.mean(m, axis=2, keepdims=True)
            return 0.9 * xp.np.swapaxes(m, 1, 2).reshape(c.shape) + 0.1 * c

        return xp.lax.fori_loop(0, 3, step, x)

    return run


PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...], int, float]] = {
    "ring": (ring, (normal(5, 100),), 1, 1e-5),
    "ring-many": (ring, (normal(270, 66),), 1, 1e-5),
    "walls": (walls, (normal(5, 90),), 1, 1e-5),
    "walls-gradient": (walls_gradient, (normal(5, 90),), 2, 2e-5),
    "alignment": (
        alignment, (normal(36, 3, 33), np.random.default_rng(1).random((3, 33)) > 0.6), 2, 1e-4,
    ),
    "gated": (gated, (normal(20, 96), normal(32, 96, seed=1), normal(5, 18, 20, seed=2)), 2, 5e-5),
    "reversal": (reversal, (normal(3, 80),), 1, 1e-5),
    "plane": (plane, (normal(3, 20, 24),), 1, 1e-5),
    "windows": (windows, (normal(3, 70), normal(9, seed=1)), 1, 2e-5),
    "split": (split, (normal(3, 108),), 1, 1e-5),
}  # fmt: skip


def test_tiles_along_lanes_that_meet_have_one_length() -> None:
    """Also of one that met another one before that one grew: else Triton ends the process."""
    lanes = Lanes()
    lanes.update(r0=20, r1=40, r2=80, r3=9)
    lanes.pad_alike("r0", lanes.twin("r1"))
    assert [lanes.padded(x) for x in ("r0", "s1", "r2", "r3")] == [64, 64, 128, 16]
    lanes.pad_alike("r2", "r1")
    assert [lanes.padded(x) for x in ("r0", "s1", "r1", "r2", "r3")] == [128, 128, 128, 128, 16]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, loops: list[Any]) -> None:
    make, args, count, tolerance = PROGRAMS[name]
    with g.default_matmul_precision("highest"):
        got = run(make(OURS), *args)
    with jax.default_matmul_precision("highest"):
        want = [np.asarray(x) for x in jax.tree.leaves(make(JAX)(*args))]
    assert len(loops) == count and all([nest.rows > 1 for nest in loops])
    assert any([nest.of("gather") for nest in loops])
    for x, y in zip(got, want, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(y)))
