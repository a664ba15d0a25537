"""Loops whose rows a team of programs shares: values are JAX's, and who waits in vain raises."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from programs import run

import genesis_fn as g
from genesis_fn.backends.cuda.codegen.row_loops import team_nests
from genesis_fn.compiler.options import without
from genesis_fn.compiler.row_loops import row_loops as pass_
from genesis_fn.compiler.row_loops.team import TeamNest
from genesis_fn.core import errors
from tests.support.fuzz_loops import CellCase

NAMES = "lax", "random", "vmap", "grad", "nn", "tree", "value_and_grad"
OURS, JAX = [
    SimpleNamespace(np=m.numpy, **{name: getattr(m, name) for name in NAMES}) for m in (g, jax)
]


def normal(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def weights(inputs: int, hidden: int, gates: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "x": normal(inputs, gates * hidden, seed=1, scale=inputs**-0.5),
        "h": normal(hidden, gates * hidden, seed=2, scale=hidden**-0.5),
        "b": normal(gates * hidden, seed=3),
        **more,
    }


# ---- programs, of a library's names ----


def lstm_step(xp: Any, p: Any, carry: Any, x: Any) -> Any:
    h, c = carry
    i, f, new, o = xp.np.split(x @ p["x"] + h @ p["h"] + p["b"], 4, axis=-1)
    c = xp.nn.sigmoid(f) * c + xp.nn.sigmoid(i) * xp.np.tanh(new)
    return xp.nn.sigmoid(o) * xp.np.tanh(c), c


def over_time(xp: Any, step: Callable, reverse: bool = False) -> Callable:
    """The loss of a network of LSTM cells over time, and its gradients."""

    def loss(p: Any, xs: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            carry = step(xp, p, carry, x)
            return carry, carry[0]

        hidden = p["h"].shape[0]
        zero = xp.np.zeros((xs.shape[1], hidden), xs.dtype)
        _, hs = xp.lax.scan(body, (zero, zero), xs, reverse=reverse)
        return xp.np.mean(xp.np.square(hs.astype(xp.np.float32)))

    return xp.value_and_grad(loss)


def lstm(xp: Any) -> Callable:
    return over_time(xp, lstm_step)


def backwards(xp: Any) -> Callable:
    return over_time(xp, lstm_step, reverse=True)


def separate(xp: Any) -> Callable:
    """Gates with matrices of their own, one of them turned."""

    def step(xp: Any, p: Any, carry: Any, x: Any) -> Any:
        h, c = carry
        gates = [x @ p["x"] + h @ p["h"], h @ p["other"].T + 1]
        c = xp.nn.sigmoid(gates[1]) * c + xp.np.tanh(gates[0] + p["b"])
        return xp.np.tanh(c), c

    return over_time(xp, step)


def normed(xp: Any) -> Callable:
    """A layer norm within the cell: whole rows are reduced."""

    def step(xp: Any, p: Any, carry: Any, x: Any) -> Any:
        h, c = carry
        y = x @ p["x"] + h @ p["h"] + p["b"]
        y = y - xp.np.mean(y, axis=-1, keepdims=True)
        y = y / xp.np.sqrt(xp.np.mean(xp.np.square(y), axis=-1, keepdims=True) + 1e-3)
        return xp.np.tanh(y), c + xp.np.max(y, axis=-1, keepdims=True)

    return over_time(xp, step)


def two_layers(xp: Any) -> Callable:
    """Two cells in a step, which have two whole rows to share."""

    def step(xp: Any, p: Any, carry: Any, x: Any) -> Any:
        h, c = carry
        h = xp.np.tanh(x @ p["x"] + h @ p["h"])
        return h, xp.np.tanh(h @ p["up"] + c @ p["other"] + p["b"])

    return over_time(xp, step)


def many_rows(xp: Any) -> Callable:
    """With so many rows the products of the inputs stay in the loop: their rows lie in memory."""
    return over_time(xp, lstm_step)


def within(xp: Any) -> Callable:
    """A loop around the loop."""

    def run(p: Any, xs: Any) -> Any:
        def step(p: Any, xs: Any) -> Any:
            value, g = lstm(xp)(p, xs)
            return xp.tree.map(lambda p, g: p - 0.1 * g, p, g), value

        return xp.lax.scan(step, p, xs)

    return run


def until(xp: Any) -> Callable:
    """As many steps as a number says."""

    def run(p: Any, h: Any, most: Any) -> Any:
        going = lambda c: c[1] < most
        return xp.lax.while_loop(going, lambda c: (xp.np.tanh(c[0] @ p["h"] + 1), c[1] + 1), (h, 0))

    return run


def lanes(xp: Any) -> Callable:
    """Wider than a tile's columns, and no power of two."""

    def run(p: Any, h: Any) -> Any:
        return xp.lax.scan(lambda h, _: (xp.np.sin(h @ p["h"]), None), h, None, length=3)[0]

    return run


def bfloat16(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), tree)


OTHER = {"other": normal(32, 32, seed=5, scale=0.2)}
UP = {"up": normal(32, 32, seed=6, scale=0.2)}
LSTM = weights(16, 32, 4)
# name: (program, operands, how many kernels of teams, tolerance)
PROGRAMS: dict[str, tuple[Callable, tuple[Any, ...], int, float]] = {
    "lstm": (lstm, (LSTM, normal(4, 5, 16)), 2, 1e-5),
    "more rows than a team has": (lstm, (LSTM, normal(2, 19, 16)), 2, 1e-5),
    "backwards": (backwards, (LSTM, normal(3, 5, 16)), 2, 1e-5),
    "separate": (separate, (weights(8, 32, 1, **OTHER), normal(3, 2, 8)), 2, 1e-5),
    "normed": (normed, (weights(8, 32, 1), normal(3, 4, 8)), 2, 2e-5),
    "two layers": (two_layers, (weights(8, 32, 1, **OTHER, **UP), normal(3, 2, 8)), 2, 1e-5),
    "many rows": (many_rows, (weights(16, 16, 4), normal(2, 34, 16)), 2, 1e-5),
    "within": (within, (LSTM, normal(3, 2, 4, 16)), 2, 1e-4),
    "until": (until, (weights(8, 32, 1), normal(3, 32), np.int32(4)), 1, 1e-5),
    "24 units": (lanes, (weights(8, 24, 1), normal(5, 24)), 1, 1e-5),
    "40 units": (lanes, (weights(8, 40, 1), normal(17, 40)), 1, 1e-5),
    "bfloat16": (lstm, (bfloat16(LSTM), bfloat16(normal(4, 5, 16))), 2, 3e-2),
}  # fmt: skip


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> Generator[list[TeamNest]]:
    """The nests of teams that become kernels, of all loops that can be: small ones, too."""
    found: list[TeamNest] = []
    once = pass_._row_loop

    def noted(*args: Any) -> Any:
        eqns = once(*args)
        found.extend(e.params["nest"] for e in eqns if e.prim is pass_.row_loop_p)
        return eqns

    monkeypatch.setattr(pass_, "_row_loop", noted)
    with without("row_loops"):
        yield found


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, teams: list[TeamNest]) -> None:
    make, args, count, tolerance = PROGRAMS[name]
    with g.default_matmul_precision("highest"):
        got = run(make(OURS), *args)
    with jax.default_matmul_precision("highest"):
        want = [np.asarray(x) for x in jax.tree.leaves(make(JAX)(*args))]
    assert len(teams) == count and all(t.members > 1 for t in teams)
    for x, y in zip(got, want, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.abs(y).max())


def test_results_are_the_same_every_time(teams: list[TeamNest]) -> None:
    """Members come in any order; what they compute depends on none."""
    f = lstm(OURS)
    args = LSTM, normal(2, 20, 16)
    first = run(f, *args)
    for _ in range(2):
        for x, y in zip(run(f, *args), first, strict=True):
            np.testing.assert_array_equal(x, y)
    assert teams


def test_who_waits_in_vain_raises(teams: list[TeamNest], monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that never comes: the others give up, and say so."""
    monkeypatch.setattr(team_nests, "POLLS", 50)
    meet = team_nests._TeamWriter._meet

    def one_more(self: Any) -> None:
        before, self.nest.members = self.nest.members, self.nest.members + 1
        meet(self)
        self.nest.members = before

    monkeypatch.setattr(team_nests._TeamWriter, "_meet", one_more)
    step = lambda p, h: lanes(OURS)(p, h)
    with pytest.raises(errors.BackendError, match="in vain.*team_loops"):
        run(step, weights(8, 24, 1), normal(5, 24))
    assert teams


# ---- random cells ----


@pytest.mark.parametrize(
    "seed", [*range(6), *[pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60)]]
)
def test_random_cells(seed: int, teams: list[TeamNest]) -> None:
    case = CellCase(seed)
    got = run(case.function(OURS), *case.inputs)
    want = [np.asarray(x) for x in case.function(JAX)(*map(jax.numpy.asarray, case.inputs))]
    # What is rounded differently is multiplied by as many steps.
    for x, y in zip(got, want, strict=True):
        scale = max(1.0, float(np.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * scale)
