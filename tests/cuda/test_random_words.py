"""New keys and short random streams in the kernels that need them: bit for bit the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax, random
from genesis_fn.backends.cuda.lower.steps import BufferTable, keeps_fused
from genesis_fn.backends.cuda.pipeline import schedule
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.options import without
from genesis_fn.compiler.rewrites import random_words
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.transforms.keys.words import physical

WORDS = np.array([7, 0xDEADBEEF], np.uint32)
IMPLS = ("philox", "threefry2x32")


def chain(key: Any) -> list[Any]:
    """Keys of keys, and numbers of both ends of the chain."""
    first, second, *_ = random.split(key, 5)
    third = random.fold_in(first, 123456789)
    many = random.split(third, (3, 4))
    return [
        random.key_data(many),
        random.bits(second, (37,)),
        random.uniform(third, (5, 7)),
        random.normal(many[2, 1], (2, 9)) + random.uniform(second, ()),
        random.bernoulli(random.fold_in(second, 3), 0.3, (33,)),
    ]


def of_each(key: Any) -> list[Any]:
    """A stream for each of many keys."""
    keys = random.split(key, 6)
    draw = lambda k: random.bits(k, (3, 5)) ^ random.bits(random.fold_in(k, 9), (3, 5))
    return [g.vmap(draw)(keys), g.vmap(lambda k: random.key_data(random.split(k, 3)))(keys)]


def of_steps(key: Any) -> list[Any]:
    """Keys that a loop carries, and those of its steps."""

    def step(carry: Any, k: Any) -> Any:
        x, key = carry
        key, now = random.split(key)
        return (x + gnp.cumsum(random.uniform(now, (16,)) * random.uniform(k, (16,))), key), x[0]

    (x, key), xs = lax.scan(step, (gnp.zeros(16), key), random.split(key, 5))
    return [x, random.key_data(key), xs]


def of_widths(key: Any) -> list[Any]:
    return [random.bits(key, (21,), dtype) for dtype in ("uint8", "uint16", "uint32", "uint64")]


PROGRAMS = {"chain": chain, "of each": of_each, "of steps": of_steps, "of widths": of_widths}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_the_cpu(name: str, impl: str) -> None:
    f = lambda words: PROGRAMS[name](random.wrap_key_data(words, impl=impl))
    got = compiled(f, WORDS)
    with g.default_device(g.cpu()):
        want = [np.asarray(x) for x in g.jit(f)(g.device_put(WORDS, g.cpu()))]
    for x, y in zip(got, want, strict=True):
        if x.dtype.kind == "f":  # sums in another order, and the inverse of erf
            np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("impl", IMPLS)
def test_long_streams_are_kernels_of_their_own(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_words, "_MOST_WORDS", 64)
    f = lambda words: [
        random.bits(random.wrap_key_data(words, impl=impl), (n,)) for n in (64, 65, 203)
    ]
    short, *long = compiled(f, WORDS)
    np.testing.assert_array_equal(short, long[1][:64])
    with without("random_words"):
        for x, y in zip(compiled(f, WORDS), (short, *long), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.interpreted
def test_the_keys_of_a_step_are_one_launch() -> None:
    def step(words: Any) -> list[Any]:
        key = random.wrap_key_data(words)
        key, a = random.split(key)
        key, b = random.split(key)
        return [random.key_data(k) for k in (key, a, b)]

    assert launches(step) == 1
    with without("random_words"):
        assert launches(step) > 1


def launches(f: Callable) -> int:
    """How many launches a program has."""
    jaxpr, _ = programs.traced(f, WORDS)
    program = simplify_jaxpr(physical(jaxpr), keeps_fused(H200))
    table = BufferTable(H200)
    inputs = [table.new(v.aval.nbytes) for v in program.invars]
    steps = schedule(table, program, inputs, [None] * len(program.outs)).steps
    return sum([len(s.steps) if isinstance(s, SubProgram) else 1 for s in steps])


def compiled(f: Callable, *args: Any) -> list[np.ndarray]:
    """The results of a compiled program on the device."""
    jaxpr, inputs = programs.traced(f, *args)
    return [
        programs.get(x)
        for x in programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, inputs))
    ]
