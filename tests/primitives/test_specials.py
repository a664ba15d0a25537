"""Every elementwise primitive on NaN, infinities, signed zeros, subnormal and extreme numbers:
alone, compiled, in place, in lists, batched, and in the forms that compiled programs merge."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special

import genesis_fn as gf
from genesis_fn.core import errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.device import default_device
from genesis_fn.core.dtypes import BF16, BOOL, C64, C128, F16, F32, F64, I32, U8
from genesis_fn.core.primitive import PRIMITIVES, Primitive, bind
from genesis_fn.primitives.factories import batch_elementwise
from tests.primitives.specials import (
    BINARY,
    KINDS,
    OTHERS,
    OWN_DTYPE,
    UNARY,
    cast,
    mismatch,
    operands,
    pairs,
    show,
    specials,
    subnormal,
)

ELEMENTWISE = sorted(
    name
    for name, prim in PRIMITIVES.items()
    if isinstance(prim.batch, functools.partial) and prim.batch.func is batch_elementwise
)
# On a GPU subnormal operands and results may count as zeros (docs/design.md).
FLUSHES = default_device().kind != "cpu"
# A few units in the last place: what torch's kernels of functions promise.
BOUND = {BF16: 9e-3, F16: 1.1e-3, F32: 4e-6, F64: 2e-13, C64: 4e-6, C128: 2e-13}


def test_every_elementwise_primitive_is_in_the_table() -> None:
    missing = {*ELEMENTWISE} - {*UNARY, *BINARY, *OWN_DTYPE, *OTHERS}
    assert not missing, f"give {sorted(missing)} a line in tests/primitives/specials.py"


def reversed_(x: Any) -> Any:
    """`x` backwards: in a compiled program memory of its own, which may be written over."""
    return bind(PRIMITIVES["rev"], x, dimensions=(0,))


def ways(f: Callable) -> Iterator[tuple[str, Callable]]:
    yield "eager", f
    yield "compiled", gf.jit(f)
    inside = gf.jit(lambda *xs: f(*map(reversed_, xs)))
    yield "in place", lambda *xs: inside(*map(reversed_, xs))
    lists = gf.jit(lambda *xs: [f(*xs), f(*map(reversed_, xs))])
    yield "in a list", lambda *xs: lists(*xs)[0]
    # Every second element: torch's functions have other code for them than for neighbours.
    apart = gf.jit(lambda *xs: f(*[x[::2] for x in xs]))
    yield "strided", lambda *xs: apart(*[from_numpy(np.repeat(np.asarray(x), 2)) for x in xs])
    yield "batched", lambda *xs: gf.vmap(f)(*[x.reshape(-1, 1) for x in xs]).reshape(-1)


def admitted(prim: Primitive, xs: tuple[np.ndarray, ...], **params: Any) -> bool:
    try:
        prim.shape(*[from_numpy(x).aval for x in xs], **params)
    except (errors.DTypeError, errors.ShapeError):
        return False
    return True


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n in {*UNARY, *BINARY, *OWN_DTYPE}])
def test_specials(name: str) -> None:
    prim = PRIMITIVES[name]
    kinds = [k for k in KINDS if admitted(prim, operands(name, k))]
    assert kinds
    for kind in kinds:
        xs = operands(name, kind)
        for way, f in ways(lambda *xs: bind(prim, *xs)):
            got = np.asarray(f(*map(from_numpy, xs)))
            bad = mismatch(name, got, xs, BOUND.get(got.dtype, 0.0), FLUSHES)
            assert not bad.any(), f"{way}: {show(name, kind, xs, got, bad)}"


def same(got: Any, want: np.ndarray, bound: float, text: str) -> None:
    got = np.asarray(got)
    assert got.dtype == want.dtype, text
    if got.dtype == BF16:
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=bound, atol=0, equal_nan=True, err_msg=text)
    if got.dtype.kind == "f":
        zero = (got == 0) & (want == 0)
        assert (np.signbit(got) == np.signbit(want))[zero].all(), text


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_casts(kind: Any) -> None:
    x = specials(kind)
    for target in KINDS:
        want = cast(x, target)
        for way, f in ways(lambda v: bind(PRIMITIVES["convert_element_type"], v, dtype=target)):
            same(f(from_numpy(x)), want, 0.0, f"{way}: {kind} to {target}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_select(kind: Any) -> None:
    x, y = pairs(kind)
    c = np.arange(x.size) % 3 == 0
    for way, f in ways(lambda *xs: bind(PRIMITIVES["select"], *xs)):
        same(f(*map(from_numpy, (c, x, y))), np.where(c, x, y), 0.0, f"{way}: {kind}")


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in (BOOL, C64, C128)], ids=str)
def test_powers_of_known_exponents(kind: Any) -> None:
    x = specials(kind)
    for y in (0, 1, 2, 3, 5, 64, 65, 1000) + ((-1, -2, -3) if kind.kind not in "iu" else ()):
        if kind.kind in "iu":
            width = 1 << 8 * kind.itemsize
            want = np.array([pow(int(v), y, width) for v in x], f"u{kind.itemsize}").astype(kind)
        else:
            with np.errstate(all="ignore"):
                want = np.power(x.astype(np.float64), y).astype(kind)
        for way, f in ways(lambda v: bind(PRIMITIVES["integer_pow"], v, y=y)):
            same(f(from_numpy(x)), want, 2 * BOUND.get(kind, 0.0), f"{way}: {kind}**{y}")


@pytest.mark.parametrize("kind", [F32, F64], ids=str)
def test_polygamma(kind: Any) -> None:
    x = specials(kind)
    x = x[np.isnan(x) | ((x >= 1e-3) & (x < 1e30))]
    for n in (1, 2, 3):
        want = scipy.special.polygamma(n, x.astype(np.float64)).astype(kind)
        for way, f in ways(lambda v: bind(PRIMITIVES["polygamma"], v, n=n)):
            same(f(from_numpy(x)), want, 1e-5 if kind == F32 else 1e-12, f"{way}: order {n}")


MERGED: dict[str, tuple[int, Callable]] = {
    "a product added": (3, lambda x, y, z: z + x * y),
    "a product taken away": (3, lambda x, y, z: z - x * y),
    "a quotient added": (3, lambda x, y, z: z + x / y),
    "a scaled sum": (2, lambda x, y: x + y * -3.0),
    "a scaled product": (3, lambda x, y, z: z + (x * y) * 0.5),
    "a product scaled up": (3, lambda x, y, z: z + (x * y) * 1e20),
    "a product scaled down": (3, lambda x, y, z: z + (x * y) * 1e-20),
    "a scaled quotient": (3, lambda x, y, z: z + (x / y) * -0.25),
    "a square added": (2, lambda x, y: y + x * x),
}


@pytest.mark.parametrize("kind", [F32, F64], ids=str)
@pytest.mark.parametrize("name", sorted(MERGED))
def test_merged_forms(name: str, kind: Any) -> None:
    """Operation by operation, or with one rounding: then nothing overflows on the way either."""
    count, f = MERGED[name]
    x, y = pairs(kind)
    xs = (x, y, np.roll(x, 7))[:count]
    got = np.asarray(gf.jit(f)(*map(from_numpy, xs)))
    with np.errstate(all="ignore"):
        steps = f(*xs)
        whole = f(*[v.astype(np.longdouble) for v in xs]).astype(kind)
        scale = np.abs(xs[-1]) + np.abs(steps)
        near = np.abs(got - steps) <= 4 * np.finfo(kind).eps * scale
    ok = near | (got == steps) | (np.isnan(got) & np.isnan(steps))
    ok |= (got == whole) | (np.isnan(got) & np.isnan(whole))
    # Operands and results that are subnormal lose bits, more of them in one order than in another.
    small = np.any([subnormal(v) for v in (*xs, whole)], 0)
    assert (ok | small).all(), [v[~(ok | small)][:5] for v in (*xs, got, steps)]


@pytest.mark.parametrize("kind", [F32, F64], ids=str)
def test_merged_silu(kind: Any) -> None:
    x, t = pairs(kind)
    x, t = from_numpy(x), from_numpy(t)
    silu = lambda v: v * gf.lax.logistic(v)
    same(gf.jit(silu)(x), np.asarray(silu(x)), 2e-6, "silu")
    slope = lambda v, t: gf.vjp(silu, v)[1](t)[0]
    got, want = np.asarray(gf.jit(slope)(x, t)), np.asarray(slope(x, t))
    finite = np.isfinite(want) & np.isfinite(got)
    bound = 1e-5 if kind == F32 else 1e-13
    np.testing.assert_allclose(got[finite], want[finite], rtol=bound, atol=1e-30)
    plain = np.abs(np.asarray(x)) < 80
    assert (np.isnan(got) == np.isnan(want))[plain & np.isfinite(np.asarray(t))].all()


@pytest.mark.parametrize("kind", [I32, U8], ids=str)
def test_scalars_that_are_special(kind: Any) -> None:
    """Literal operands have kernels of their own: division by 0 and -1, shifts by the width."""
    x = specials(kind)
    bits = 8 * kind.itemsize
    for name, value in (
        ("div", 0),
        ("rem", 0),
        ("shift_left", bits),
        ("shift_right_logical", bits),
        ("shift_right_arithmetic", bits),
        ("max", 0),
        ("min", 0),
    ):
        y = np.full_like(x, value)
        want = np.asarray(bind(PRIMITIVES[name], from_numpy(x), from_numpy(y)))
        for way, f in ways(lambda v: bind(PRIMITIVES[name], v, value)):
            same(f(from_numpy(x)), want, 0.0, f"{way}: {name}({kind}, {value})")
