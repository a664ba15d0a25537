"""Sums over devices of what a loop adds up: taken once behind it, where the loop only adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import P, lax
from genesis_fn.core.jaxpr import Jaxpr, e_jaxprs
from genesis_fn.transforms.sharding.partitioner import partition

STEPS, ROWS, WIDTH = 3, 4, 6


def gradient(w: Any, x: Any) -> Any:
    """The gradient of a step, a sum over rows that are divided among devices."""
    return gf.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)


def accumulated(w: Any, x: Any) -> Any:
    start = jnp.ones_like(w)
    return lax.scan(lambda acc, rows: (acc + gradient(w, rows), None), start, x)[0]


def laid_out_as_its_parameter(w: Any, x: Any) -> Any:
    return lax.scan(lambda acc, rows: (acc + gradient(w, rows), None), w * 0, x)[0]


def by_turns(w: Any, x: Any) -> Any:
    """Some steps add nothing, others differently."""

    def step(acc: Any, at: Any) -> Any:
        i, rows = at
        more = lambda acc, rows: acc + gradient(w, rows)
        less = lambda acc, rows: acc - 2 * gradient(w, rows)
        return lax.switch(i, [lambda acc, rows: acc, more, less], acc, rows), None

    return lax.scan(step, jnp.zeros_like(w), (jnp.arange(STEPS), x))[0]


def read_within(w: Any, x: Any) -> Any:
    """The next step depends on the sum."""
    return lax.scan(lambda w, rows: (w - 0.1 * jnp.tanh(w + gradient(w, rows)), None), w, x)[0]


def shown_within(w: Any, x: Any) -> Any:
    """The sums before each step are results, too."""
    return lax.scan(lambda acc, rows: (acc + gradient(w, rows), acc), jnp.zeros_like(w), x)


def read_in_a_branch(w: Any, x: Any) -> Any:
    g = gradient(w, x[0])
    return lax.cond(w[0, 0] > 0, lambda g: (jnp.exp(g), g), lambda g: (g, g), g)


def in_16_bits(w: Any, x: Any) -> Any:
    step = lambda acc, rows: (acc + gradient(w, rows).astype("bfloat16"), None)
    return lax.scan(step, jnp.zeros_like(w, jnp.bfloat16), x)[0]


def within_loops(w: Any, x: Any) -> Any:
    outer = lambda acc, _: (accumulated(w, x) + acc, None)
    return lax.scan(outer, jnp.zeros_like(w), None, length=2)[0]


def collectives(jaxpr: Jaxpr, within: str = "") -> Iterator[str]:
    for e in jaxpr.eqns:
        if e.prim.collective and e.prim.name not in ("pvary", "axis_index"):
            yield within + e.prim.name
        for inner in e_jaxprs(e):
            yield from collectives(inner, f"{within}{e.prim.name} ")


ALL = "psum_invariant"
CASES: dict[str, tuple[Callable[..., Any], P, list[str]]] = {
    "accumulated": (accumulated, P(), [ALL]),
    "divided": (
        laid_out_as_its_parameter,
        P("d"),
        ["scan all_gather_invariant", "scan psum_scatter"],
    ),
    "by_turns": (by_turns, P(), [ALL]),
    "read": (read_within, P(), [f"scan {ALL}"]),
    "shown": (shown_within, P(), [ALL, ALL]),
    "branch": (read_in_a_branch, P(), [f"cond {ALL}"] * 2),
    "bfloat16": (in_16_bits, P(), [f"scan {ALL}"]),
    "nested": (within_loops, P(), [ALL]),
}


@pytest.mark.parametrize("case", CASES)
def test_sums_are_taken_once(case: str):
    f, spec, expected = CASES[case]
    mesh = gf.make_mesh((2,), ("d",))
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(WIDTH, WIDTH)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(STEPS, ROWS, WIDTH)), jnp.float32)
    layouts = gf.NamedSharding(mesh, spec), gf.NamedSharding(mesh, P(None, "d"))
    found = gf.jit(f)(*gf.device_put((w, x), layouts))
    for mine, whole in zip(gf.tree.leaves(found), gf.tree.leaves(f(w, x)), strict=True):
        mine, whole = (np.asarray(v).astype(np.float64) for v in (mine, whole))
        tolerance = 2e-2 if case == "bfloat16" else 1e-6
        np.testing.assert_allclose(mine, whole, tolerance, tolerance * np.abs(whole).max())

    jaxpr = gf.jit(f).trace(w, x).jaxpr
    ins = [((),) * k.ndim for k in jaxpr.in_avals[:-2]] + [
        s.over(n) for s, n in zip(layouts, (2, 3))
    ]
    program, _ = partition(jaxpr, mesh, tuple(ins), (None,) * len(jaxpr.outs))
    assert sorted(collectives(program)) == sorted(expected)
