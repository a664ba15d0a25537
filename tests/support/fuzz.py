"""Random programs under random stacks of transforms: this library against JAX.

`Case(seed)` is a program with its inputs; `depth` is how deep loops, branches, calls and custom
rules may nest in it, and `more` are further kinds of steps, as those of `fuzz_matrices`.
`reference(case)` runs it in JAX in float64, or returns None where the result is not finite or moves
too much when the inputs change by one unit in the last place.
`difference(case, expected)` runs it here, eagerly, jitted and batched, and says what differs.
`low_difference` does so for the program in a smaller float type, with a bound in units of how far
rounding to that type moves the reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tests.support.fuzz_steps import Draw, grow, run
from tests.transforms.both import OURS, THEIRS, ours, theirs

SHAPES = [(), (3,), (2,), (2, 3), (3, 2), (2, 3, 2)]
STACK = ("grad", "grad", "jvp", "jit", "vmap", "checkpoint", "hessian")
LOW = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


class Case:
    """A program over a growing list of values, a stack of transforms, two examples of inputs."""

    def __init__(self, seed: int, depth: int = 1, more: dict[str, Any] | None = None) -> None:
        rng = random.Random(seed)
        self.seed, self.depth = seed, depth
        self.shapes = [rng.choice(SHAPES) for _ in range(2)]
        self.stack = [rng.choice(STACK) for _ in range(rng.randint(1, 3))]
        self.axes = rng.choice([(0, 0), (0, None), (None, 0), (-1, 0)])
        # custom_vjp has no forward mode, unless a reverse mode takes its rule first.
        first = [name for name in self.stack if name in ("grad", "jvp", "hessian")]
        rules = first[:1] != ["jvp"]
        draw = Draw(rng, list(self.shapes), depth, rules, more=more or {})
        self.steps, self.names = grow(draw, rng.randint(3, 5 + 3 * depth))
        self.kept = sorted(rng.sample(range(len(self.steps)), min(3, len(self.steps))))
        numbers = np.random.default_rng(seed)
        self.inputs = [np.asarray(numbers.normal(size=s)) for s in self.shapes]
        self.others = [x * 0.9 for x in self.inputs]

    def __repr__(self) -> str:
        return f"Case({self.seed}, {self.depth}): {'; '.join(self.names)} under {self.stack}"

    def function(self, m: Any) -> Callable:
        """The program as a function of arrays that returns a scalar, transforms applied."""

        def base(*xs: Any) -> Any:
            vs = run(m, self.steps, list(xs))[len(xs) :]
            kept = {*self.kept, len(vs) - 1}
            return sum((m.np.sum(m.np.sin(vs[k])) for k in sorted(kept)), 0.0)

        f = base
        for name in self.stack:
            f = transformed(m, name, f, self.axes)
        return f


def transformed(m: Any, name: str, f: Callable, axes: tuple) -> Callable:
    """A scalar function of the same arguments, by way of one transform of `f`."""
    if name == "jit":
        return m.jit(f)
    if name == "checkpoint":
        return lambda *xs: m.checkpoint(f)(*xs) * 1.7
    if name == "grad":
        return lambda *xs: sum(m.np.sum(m.np.sin(g)) for g in m.grad(f, (0, 1))(*xs))
    if name == "jvp":
        return lambda *xs: m.jvp(f, xs, tuple(m.np.cos(x) for x in xs))[1]
    if name == "hessian":

        def forward_over_reverse(*xs: Any) -> Any:
            _, ts = m.jvp(m.grad(f, (0, 1)), xs, tuple(m.np.cos(x) for x in xs))
            return sum(m.np.sum(m.np.sin(t)) for t in ts)

        return forward_over_reverse

    def batched(*xs: Any) -> Any:
        given = [
            x if a is None else m.np.stack([x * 0.7, m.np.sin(x)], a) for x, a in zip(xs, axes)
        ]
        return m.np.sum(m.vmap(f, axes)(*given))

    return batched


Reference = tuple[float, float | None]


def reference(case: Case) -> Reference | None:
    """JAX's value at the inputs and at the others (None where that one is ill-conditioned)."""
    with jax.enable_x64(True):
        f = jax.jit(case.function(THEIRS))
        value = _steady(f, case.inputs, 2.3e-16, 1e-9)
        if value is None:
            return None
        other = _steady(f, case.others, 2.3e-16, 1e-9)
        return value[0], None if other is None else other[0]


def _steady(f: Callable, xs: list, change: float, bound: float) -> tuple[float, float] | None:
    """(value, how far it moves when the inputs change relatively by `change`), or None if that is
    more than `bound` relative to the value, or it is not finite."""
    value = float(f(*theirs(xs)))
    if not np.isfinite(value):
        return None
    moved = [float(f(*[x * (1 + k * change) for x in xs])) for k in (1, -1, 2)]
    noise = max(abs(v - value) for v in moved)
    return (value, noise) if noise <= bound * max(1.0, abs(value)) else None


def _wrong(got: Any, wanted: float, rtol: float = 1e-7, atol: float = 1e-8) -> bool:
    return not np.isclose(float(got), wanted, rtol=rtol, atol=atol)


def difference(case: Case, expected: Reference, thorough: bool = True) -> str | None:
    """What is wrong with this library's value of the case, or None."""
    f = case.function(OURS)
    xs = ours(case.inputs)
    value, other = expected
    got = float(f(*xs))
    if _wrong(got, value):
        return f"{case}: {got}, JAX has {value}"
    if thorough:
        jitted = float(OURS.jit(f)(*xs))
        if _wrong(jitted, got):
            return f"{case}: jitted {jitted}, eager {got}"
        pairs = [OURS.np.stack([x, y]) for x, y in zip(xs, ours(case.others))]
        both = np.asarray(OURS.vmap(f)(*pairs))
        if _wrong(both[0], value) or other is not None and _wrong(both[1], other):
            return f"{case}: vmap {both}, loop {value}, {other}"
    return None


def low_difference(case: Case, kind: str) -> str | None:
    """What is wrong with the case in a smaller float type: eagerly, jitted, and batched.

    None also where rounding the inputs to the type moves the reference too far to say.
    """
    eps = EPSILON[kind]
    with jax.enable_x64(True):
        rounded = [x.astype(LOW[kind]).astype(np.float64) for x in case.inputs]
        f = jax.jit(case.function(THEIRS))
        found = _steady(f, rounded, eps / 4, 64 * eps)
    if found is None:
        return None
    value, noise = found
    f = case.function(OURS)
    xs = ours([x.astype(LOW[kind]) for x in rounded])
    bound = 40 * noise + 64 * len(case.steps) * eps * max(1.0, abs(value))
    eager, jitted = f(*xs), OURS.jit(f)(*xs)
    batched = np.asarray(OURS.vmap(f)(*[OURS.np.stack([x, x]) for x in xs])).astype(np.float64)
    if eager.dtype.name != kind or jitted.dtype.name != kind:
        return f"{case}: {eager.dtype} eager, {jitted.dtype} jitted, of {kind}"
    for name, got in {"eager": eager, "jit": jitted, "vmap": batched[1]}.items():
        if not abs(float(got) - value) <= bound:
            return f"{case}: {name} in {kind} gives {float(got)}, float64 {value}, bound {bound}"
    return None
