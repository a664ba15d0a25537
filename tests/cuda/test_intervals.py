"""What is known of the integers of a kernel: tests and checks of indices that it spares."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.loop_ir.intervals import interval_of
from tests.cuda import programs


def ran(f: Any, *args: Any) -> np.ndarray:
    jaxpr, given = programs.traced(f, *args)
    (made,) = programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, given))
    return programs.get(made)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def numbers(kind: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    drawn = np.random.default_rng(4).integers(limits.min, limits.max, shape, dtype=kind)
    drawn.flat[:2] = limits.min, limits.max
    return drawn


INSIDE = {
    "clipped": lambda np_, i: np_.clip(i, 0, 49),
    "remainder": lambda np_, i: i % 50,
    "remainder of a power of two": lambda np_, i: i % 32,
    "from the end": lambda np_, i: np_.clip(i, -50, -1),
    "masked": lambda np_, i: i & 31,
    "chosen": lambda np_, i: np_.where(i > 7, 3, 40),
    "beside": lambda np_, i: np_.minimum(np_.clip(i, 0, 49) + 1, 49),
    "scaled": lambda np_, i: (i & 15) * 3 + 2,
    "compared": lambda np_, i: (i < 5).astype(np.int32) * 49,
    "narrowed": lambda np_, i: (i & 31).astype(np.int8),
}


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int16])
@pytest.mark.parametrize("form", INSIDE)
def test_an_index_that_is_inside_is_not_checked(form: str, kind: Any, bodies: Any) -> None:
    x, i, f = floats(50, 3), numbers(kind, 70), INSIDE[form]
    if form in ("from the end", "clipped") and kind == np.uint8:
        pytest.skip("no number below 0")
    got = ran(lambda x, i: gnp.sin(x[f(gnp, i)]), x, i)
    np.testing.assert_allclose(got, np.sin(np.asarray(x)[np.asarray(f(jnp, i))]), rtol=1e-5)
    assert not [b for b in bodies if b.checks]


OUTSIDE = {
    "one more": lambda np_, i: np_.clip(i, 0, 50),
    "one less": lambda np_, i: np_.clip(i, -51, 0),
    "unknown": lambda np_, i: i,
    "wrapped": lambda np_, i: np_.clip(i, 0, 2**31 - 1) + 1,
    "a longer remainder": lambda np_, i: i % 51,
}


@pytest.mark.parametrize("form", OUTSIDE)
def test_an_index_that_may_be_outside_is_checked(form: str, bodies: Any) -> None:
    x, f = floats(50, 3), OUTSIDE[form]
    i = np.zeros(70, np.int32)
    ran(lambda x, i: gnp.sin(x[f(gnp, i)]), x, i)
    assert [b for b in bodies if b.checks]
    i[5] = {"one less": -51, "wrapped": 2**31 - 1}.get(form, 50)
    with pytest.raises(IndexError):
        ran(lambda x, i: gnp.sin(x[f(gnp, i)]), x, i)


OPERATIONS = [
    lambda np_, lib, i, j: np_.maximum(i, j),
    lambda np_, lib, i, j: np_.minimum(i, j),
    lambda np_, lib, i, j: i + j,
    lambda np_, lib, i, j: i - j,
    lambda np_, lib, i, j: i * j,
    lambda np_, lib, i, j: -i,
    lambda np_, lib, i, j: lib.rem(i, 7),
    lambda np_, lib, i, j: lib.rem(i, -5),
    lambda np_, lib, i, j: i % 9,
    lambda np_, lib, i, j: i & j,
    lambda np_, lib, i, j: i & 12,
    lambda np_, lib, i, j: np_.where(i < j, i, j),
    lambda np_, lib, i, j: np_.where(i < 3, i + 9, i),
    lambda np_, lib, i, j: np_.where(i < 0, i + 9, i),
    lambda np_, lib, i, j: (i <= j).astype(np.int32),
    lambda np_, lib, i, j: (i > 2).astype(np.int32),
    lambda np_, lib, i, j: (i >= -3).astype(np.int32),
    lambda np_, lib, i, j: i.astype(np.int8).astype(np.int32),
]


@pytest.mark.parametrize("first", range(len(OPERATIONS)))
def test_numbers_lie_in_their_intervals(first: int, bodies: Any) -> None:
    """Random chains of operations, of numbers of every kind: no result is outside."""
    rng = np.random.default_rng(first)
    for low, high in ((-20, 20), (0, 3), (-(2**31), 2**31 - 1)):
        i, j = [rng.integers(low, high, 200, dtype=np.int32) for _ in range(2)]
        chain = [OPERATIONS[first], *rng.choice(OPERATIONS, 3)]

        def f(i: Any, j: Any, chain: Any = chain, low: int = low, high: int = high) -> Any:
            i, j = gnp.clip(i, low, high), gnp.clip(j, low, high)
            for one in chain:
                i, j = one(gnp, lax, i, j), i
            return i

        bodies.clear()
        got = ran(f, i, j)
        (body,) = bodies
        ((_, _, n),) = body.stores
        least, most = interval_of(body.instrs, n)
        assert least <= got.min() and got.max() <= most
