"""Every reduction, running reduction and sort on NaN, infinities, signed zeros, subnormal and
extreme numbers: alone, compiled, batched, over either axis, and over nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import genesis_fn as gf
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.dtypes import BOOL, F8E4, F8E5, F16, F32, F64, I32, I64, U8
from genesis_fn.core.primitive import PRIMITIVES, bind
from tests.primitives.specials import KINDS, subnormal, wide

REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or",
              "reduce_xor")  # fmt: skip
POSITIONS = ("argmax", "argmin")
RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "linear_recurrence")
ORDERS = ("sort", "top_k")
# Windows have tests of their own; the others reduce devices or bits.
ELSEWHERE = {"reduce_precision", "reduce_window_sum", "reduce_window_max", "reduce_window_min"}
EPS = {F16: 2e-3, F32: 2e-6, F64: 1e-14, dtypes.C64: 4e-6, dtypes.C128: 1e-14}


def test_every_reduction_is_in_the_table() -> None:
    found = {n for n in PRIMITIVES if n.startswith(("reduce_", "arg", "cum", "sort", "top_k"))}
    assert found == {*REDUCTIONS, *POSITIONS, *RUNNING, *ORDERS, *ELSEWHERE} - {"linear_recurrence"}


def triples(kind: Any) -> np.ndarray:
    """[rows, 3]: some special values of a dtype, each with each."""
    if kind == BOOL:
        some: Any = [False, True]
    elif dtypes.is_integer(kind):
        info = np.iinfo(kind)
        some = [0, 1, 3, info.max, info.max - 1, info.min, info.min + 1, info.max // 2 + 1]
    elif dtypes.is_complex(kind):
        part = (0.0, -0.0, 2.5, -np.inf, np.nan)
        some = [complex(a, b) for a in part for b in part][::2]
    else:
        info = ml_dtypes.finfo(kind)
        tiny, most = float(info.tiny), float(info.max)
        some = [
            0.0,
            -0.0,
            1.0,
            -2.5,
            tiny / 2,
            -tiny / 2,
            most,
            -most,
            np.inf,
            -np.inf,
            np.nan,
            -np.nan,
        ]
        if kind == F8E4:  # it has no infinities
            some = [v for v in some if not np.isinf(v)]
    return np.array(list(itertools.product(some, repeat=3)), kind)


def ways(f: Callable[[Any, int], Any]) -> Iterator[tuple[str, Callable[[np.ndarray], Any]]]:
    """`f(x, axis)` over the last axis of [rows, n]; results have the rows first."""
    yield "eager", lambda x: f(from_numpy(x), 1)
    yield "compiled", lambda x: gf.jit(lambda v: f(v, 1))(from_numpy(x))
    yield "batched", lambda x: gf.vmap(lambda v: f(v, 0))(from_numpy(x))
    other = lambda v: gf.tree.map(lambda y: y.T, f(v.T, 0))
    yield "over rows", lambda x: other(from_numpy(x))


def _rounded(y: Any, kind: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        if kind == F8E4:  # beyond its range its largest value, as the hardware's casts
            y = np.clip(y, -448.0, 448.0)
        return np.asarray(y).astype(kind)


def wide_enough(x: np.ndarray) -> np.ndarray:
    """Narrow floats are accumulated in float32."""
    return x.astype(np.float32) if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 else x


def _step(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype == BOOL:
        return (
            np.logical_xor(x, y)
            if name == "xor"
            else (np.logical_and(x, y) if name in ("prod", "min", "and") else np.logical_or(x, y))
        )
    return {
        "sum": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[name](x, y)


def _combined(name: str, x: np.ndarray) -> list[np.ndarray]:
    """x[:, 0], x[:, 1] and x[:, 2] combined in each order."""
    with np.errstate(all="ignore"):
        v = wide_enough(x)
        orders = ((0, 1, 2), (0, 2, 1), (1, 2, 0))
        return [
            _rounded(_step(name, _step(name, v[:, i], v[:, j]), v[:, k]), x.dtype)
            for i, j, k in orders
        ]


def _differs(got: np.ndarray, want: np.ndarray, bound: float, signs: bool) -> np.ndarray:
    if not dtypes.is_inexact(want.dtype):
        return got != want
    if dtypes.is_complex(want.dtype):
        return _differs(got.real, want.real, bound, signs) | _differs(
            got.imag, want.imag, bound, signs
        )
    g, w = wide(got), wide(want)
    with np.errstate(all="ignore"):
        near = np.isfinite(w) & np.isfinite(g) & (np.abs(g - w) <= bound * np.abs(w))
    same = (g == w) | (np.isnan(g) & np.isnan(w)) | near
    return ~same | (signs & (g == 0) & (w == 0) & (np.signbit(g) != np.signbit(w)))


def _kinds(name: str, **params: Any) -> list[Any]:
    """The dtypes that a primitive takes."""
    found = []
    for kind in (*KINDS, F8E4, F8E5):
        count = 2 if name == "linear_recurrence" else 1
        try:
            PRIMITIVES[name].shape(*[from_numpy(np.zeros((2, 3), kind)).aval] * count, **params)
        except errors.DTypeError:
            continue
        except errors.ShapeError:
            assert name == "linear_recurrence"
            continue
        found.append(kind)
    assert found
    return found


def _show(text: str, x: np.ndarray, got: np.ndarray, want: np.ndarray, bad: np.ndarray) -> str:
    rows = np.flatnonzero(bad if bad.ndim == 1 else bad.any(tuple(range(1, bad.ndim))))
    return f"{text}: {len(rows)} of {len(x)}: " + "; ".join(
        f"{x[i]} gives {got[i]}, not {want[i]}" for i in rows[:4]
    )


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    for kind in _kinds(name, axes=(1,)):
        x = triples(kind)
        wanted = _combined(name.removeprefix("reduce_"), x)
        for way, f in ways(lambda v, a: bind(PRIMITIVES[name], v, axes=(a,))):
            got = np.asarray(f(x))
            assert got.dtype == kind
            # The sign of a sum of zeros, and which zero is an extreme, no library promises.
            signs = name == "reduce_prod" and not dtypes.is_complex(kind)
            bad = np.all([_differs(got, w, EPS.get(kind, 0.0), signs) for w in wanted], 0)
            if dtypes.is_complex(kind) and name == "reduce_prod":
                bad &= np.isfinite(x).all(1)
            if name in ("reduce_sum", "reduce_prod"):
                bad &= ~subnormal(wanted[0])
            assert not bad.any(), _show(f"{name} of {kind}, {way}", x, got, wanted[0], bad)


@pytest.mark.parametrize("name", POSITIONS)
def test_positions(name: str) -> None:
    for kind in _kinds(name, axis=1, index_dtype=I32):
        x = triples(kind)
        want = getattr(np, name)(wide(x), 1)
        for target in (I32, I64, U8):
            f = lambda v, a: bind(PRIMITIVES[name], v, axis=a, index_dtype=target)
            for way, g in ways(f):
                got = np.asarray(g(x))
                assert got.dtype == target
                assert (got == want).all(), _show(
                    f"{name}, {kind}, {way}", x, got, want, got != want
                )


def _accumulated(name: str, v: np.ndarray, kind: Any) -> np.ndarray:
    columns = [v[:, 0]]
    for k in (1, 2):
        if name == "cumlogsumexp":
            columns.append(np.logaddexp(columns[-1], v[:, k]))
        elif name == "linear_recurrence":  # of x with itself: h_k = x_k h_{k-1} + x_k
            columns.append(v[:, k] * columns[-1] + v[:, k])
        else:
            columns.append(_step(name.removeprefix("cum"), columns[-1], v[:, k]))
    return _rounded(np.stack(columns, 1), kind)


def _running_values(name: str, x: np.ndarray, reverse: bool) -> list[np.ndarray]:
    """By steps in the dtype itself, and in a wider one, as torch has it on a CPU: there what
    overflows on the way may come back."""
    found = []
    with np.errstate(all="ignore"):
        fine = wide(x) if name != "linear_recurrence" else wide(x).astype(np.clongdouble)
        if not dtypes.is_complex(x.dtype) and fine.dtype == np.clongdouble:
            fine = fine.real  # a product and a sum may round once
        for v in (wide_enough(x), fine):
            y = _accumulated(name, v[:, ::-1] if reverse else v, x.dtype)
            found.append(y[:, ::-1] if reverse else y)
    return found


# A GPU combines pairs of elements first, so that a product may overflow before a zero meets it.
@pytest.mark.cpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", RUNNING)
def test_running_reductions(name: str, reverse: bool) -> None:
    for kind in _kinds(name, axis=1, reverse=reverse):
        x = triples(kind)
        want, finer = _running_values(name, x, reverse)
        count = 2 if name == "linear_recurrence" else 1
        for way, f in ways(
            lambda v, a: bind(PRIMITIVES[name], *[v] * count, axis=a, reverse=reverse)
        ):
            got = np.asarray(f(x))
            assert got.dtype == kind
            bound = EPS.get(kind, float(dtypes.finfo(kind).eps) if dtypes.is_float(kind) else 0.0)
            signs = name == "cumprod" and not dtypes.is_complex(kind)
            bad = np.asarray(_differs(got, want, bound, signs))
            bad &= _differs(got, finer, bound, signs)
            if dtypes.is_complex(kind):
                bad &= np.isfinite(x).all(1, keepdims=True) & np.isfinite(want)
            if dtypes.is_float(kind):
                bad &= ~subnormal(want)
            assert not bad.any(), _show(f"{name} of {kind}, {way}", x, got, want, bad)


@pytest.mark.parametrize("kind", [*KINDS, F8E4, F8E5], ids=str)
def test_sort(kind: Any) -> None:
    x = triples(kind)
    v = wide(x)
    index = np.broadcast_to(np.arange(3, dtype=np.int32), x.shape).copy()
    if dtypes.is_complex(kind):
        with jax.enable_x64(True):
            order = np.asarray(lax.sort((x, index), num_keys=1)[1])
    else:
        order = np.argsort(v, 1, kind="stable").astype(np.int32)
    want = np.take_along_axis(x, order, 1)
    f = lambda v, a: bind(
        PRIMITIVES["sort"],
        v,
        gf.lax.broadcasted_iota("int32", v.shape, a),
        dimension=a,
        is_stable=True,
        num_keys=1,
    )
    for way, g in ways(f):
        got, places = map(np.asarray, g(x))
        bad = (places != order) | _differs(got, want, 0.0, True)
        assert not bad.any(), _show(f"sort of {kind}, {way}", x, places, order, bad)
    one = lambda v, a: bind(PRIMITIVES["sort"], v, dimension=a, is_stable=True, num_keys=1)[0]
    for way, g in ways(one):
        got = np.asarray(g(x))
        bad = _differs(got, want, 0.0, True)
        assert not bad.any(), _show(f"sort of {kind} alone, {way}", x, got, want, bad)


@pytest.mark.parametrize("kind", [k for k in (*KINDS, F8E4, F8E5) if k.kind != "c"], ids=str)
def test_top_k(kind: Any) -> None:
    x = triples(kind)
    # Descending, NaN first, of equal ones the earlier: the ascending order of the reversed rows.
    order = 2 - np.argsort(wide(x)[:, ::-1], 1, kind="stable")[:, ::-1][:, :2]
    want = np.take_along_axis(x, order, 1)
    for way, f in ways(lambda v, a: bind(PRIMITIVES["top_k"], v, k=2, axis=a)):
        got, places = map(np.asarray, f(x))
        bad = (places != order) | _differs(got, want, 0.0, True)
        assert not bad.any(), _show(f"top_k of {kind}, {way}", x, places, order, bad)


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "log_softmax"])
def test_rows(name: str) -> None:
    # JAX subtracts logarithms in float16 itself.
    for kind in (F32, F64, F16) if name == "softmax" else (F32, F64):
        x = triples(kind)
        x = x[~subnormal(x).any(1)]
        with jax.enable_x64(True):
            want = np.asarray(getattr(jax.nn, name)(x, axis=1))
        for way, f in ways(lambda v, a: getattr(gf.nn, name)(v, axis=a)):
            got = np.asarray(f(x))
            bad = _differs(got, want, EPS[kind], False)
            assert not bad.any(), _show(f"{name} of {kind}, {way}", x, got, want, bad)


EMPTY = (BOOL, U8, F16, F32, dtypes.C64)


@pytest.mark.parametrize("name", [*REDUCTIONS, *POSITIONS, *RUNNING[:-1], "sort"])
def test_over_nothing(name: str) -> None:
    """The identity, or JAX's refusal."""
    theirs = {"reduce_sum": lambda x, axes: lax.reduce_sum_p.bind(x, axes=axes, out_sharding=None)}
    if name in REDUCTIONS:
        ours = lambda x, a: bind(PRIMITIVES[name], x, axes=(a,))
        jaxs = lambda x, a: (theirs.get(name) or getattr(lax, name))(x, (a,))
    elif name in POSITIONS:
        ours = lambda x, a: bind(PRIMITIVES[name], x, axis=a, index_dtype=I32)
        jaxs = lambda x, a: getattr(lax, name)(x, a, np.int32)
    elif name == "sort":
        ours = lambda x, a: gf.lax.sort(x, a)
        jaxs = lambda x, a: lax.sort(x, dimension=a)
    else:
        ours = lambda x, a: getattr(gf.lax, name)(x, a)
        jaxs = lambda x, a: getattr(lax, name)(x, a)
    compared = 0
    for kind in EMPTY[2:] if name == "cumlogsumexp" else EMPTY:
        for shape, axis in (((0,), 0), ((0, 3), 0), ((0, 3), 1), ((2, 0), 1)):
            x = np.zeros(shape, kind)
            try:
                with jax.enable_x64(True):
                    want = np.asarray(jaxs(x, axis))
            except (TypeError, ValueError):
                want = None
            text = f"{name} of {kind}{list(shape)} along {axis}"
            for f in (ours, gf.jit(ours, static_argnums=1)):
                try:
                    got = np.asarray(f(from_numpy(x), axis))
                except errors.DTypeError:
                    # Complex numbers have no order here but in sorts; of booleans there is no sum.
                    assert want is None or dtypes.is_complex(kind), text
                    continue
                except errors.ShapeError:
                    assert want is None, text
                    continue
                if want is None:  # JAX has no cumulative sums of booleans and the like
                    assert kind == BOOL, text
                    continue
                compared += 1
                assert (got.dtype, got.shape) == (want.dtype, want.shape), text
                np.testing.assert_array_equal(got, want, err_msg=text)
    assert compared
