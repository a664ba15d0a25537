"""Scans by a formula, in one kernel: against NumPy, step by step in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.lowerings import scans
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.kernels.plan import Launch
from genesis_fn.transforms.control_flow.associative import formula_of

RNG = np.random.default_rng(0)


def affine(p: Any, q: Any) -> Any:
    return p[0] * q[0], q[0] * p[1] + q[1]


def farthest(p: Any, q: Any) -> Any:
    """The largest number so far, and where it is."""
    xp = np if isinstance(p[0], (np.ndarray, np.generic)) else gnp
    later = q[0] > p[0]
    return xp.where(later, q[0], p[0]), xp.where(later, q[1], p[1])


def step_by_step(f: Callable, xs: Sequence[Any], axis: int, reverse: bool) -> list[np.ndarray]:
    rows = [np.moveaxis(np.asarray(x), axis, 0) for x in xs]
    rows = [x[::-1] if reverse else x for x in rows]
    out = [tuple([x[0] for x in rows])]
    for i in range(1, len(rows[0])):
        out.append(f(out[-1], tuple([x[i] for x in rows])))
    stacks = [np.stack(column) for column in zip(*out)]
    return [np.moveaxis(x[::-1] if reverse else x, 0, axis) for x in stacks]


def kernels(steps: Any) -> list[Any]:
    """The kernels of a program's steps, in order."""
    found = []
    for step in steps:
        if isinstance(step, SubProgram):
            found += kernels(step.steps)
        elif isinstance(step, Launch):
            found.append(step.kernel)
    return found


def names(made: Any) -> list[str]:
    return [getattr(k, "name", "") for k in kernels(made.schedule.steps)]


def run(f: Callable, xs: Sequence[Any], axis: int, reverse: bool) -> tuple[Any, list[Any]]:
    """(the executable, its results)."""
    call = lambda *xs: lax.associative_scan(f, xs, axis=axis, reverse=reverse)
    jaxpr, inputs = programs.traced(call, *xs)
    made = programs.compile_jaxpr(jaxpr, programs.PLACE)
    assert {*names(made)} <= {"prefixes", "prefix_totals"}
    return made, [programs.get(x) for x in made(*[programs.put(x) for x in inputs])]


def maps(*shape: int, kind: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    a = RNG.uniform(-1, 1, shape).astype(kind)
    return a, RNG.standard_normal(shape).astype(kind)


SHAPES = [((3, 37, 4), 1), ((5, 130), 1), ((90, 3), 0), ((2, 3, 21), 2), ((17, 2, 65), 0)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_compositions_of_affine_maps(shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    xs = maps(*shape)
    _, got = run(affine, xs, axis, reverse)
    want = step_by_step(affine, [x.astype(np.float64) for x in xs], axis, reverse)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(9001,), (4500, 2)])
def test_few_long_lines_are_cut_into_chunks(shape: tuple[int, ...], reverse: bool) -> None:
    xs = maps(*shape)
    made, got = run(affine, xs, 0, reverse)
    assert names(made) == ["prefix_totals", "prefixes"]
    want = step_by_step(affine, [x.astype(np.float64) for x in xs], 0, reverse)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=3e-5, atol=3e-5)


KINDS = {
    "int32": (lambda p, q: (gnp.minimum(p[0], q[0]),), np.minimum.accumulate),
    "uint32": (lambda p, q: (p[0] ^ q[0],), np.bitwise_xor.accumulate),
    "int64": (lambda p, q: (p[0] + q[0],), np.add.accumulate),
    "bool": (lambda p, q: (p[0] | q[0],), np.logical_or.accumulate),
    "float64": (lambda p, q: (gnp.maximum(p[0], q[0]),), np.maximum.accumulate),
}


@pytest.mark.parametrize("length", [16, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind: str, length: int) -> None:
    f, accumulate = KINDS[kind]
    x = RNG.integers(-9, 9, (6, length))
    x = (x > 7) if kind == "bool" else x.astype(kind)
    _, (got,) = run(f, (x,), 1, False)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, accumulate(x, 1))


def test_narrow_floats_are_combined_in_float32() -> None:
    xs = maps(4, 300, kind=gnp.bfloat16)
    _, (_, got) = run(affine, xs, 1, False)
    want = step_by_step(affine, [np.asarray(x, np.float64) for x in xs], 1, False)[1]
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2**-8, atol=2**-8)


def test_arrays_of_several_dtypes_and_the_sign_of_zero() -> None:
    x = RNG.integers(0, 50, (3, 600)).astype(np.float32)
    at = np.broadcast_to(np.arange(600, dtype=np.int32), x.shape).copy()
    _, got = run(farthest, (x, at), 1, False)
    for a, b in zip(got, step_by_step(farthest, (x, at), 1, False), strict=True):
        np.testing.assert_array_equal(a, b)
    zeros = np.full((2, 3000), -0.0, np.float32)
    _, (got,) = run(lambda p, q: (gnp.maximum(p[0], q[0]),), (zeros,), 1, False)
    assert np.signbit(got).all()


def test_results_that_nobody_reads_are_not_written() -> None:
    a, b = maps(4, 64, 8)
    f = lambda a, b: lax.associative_scan(affine, (a, b), axis=1)[1]
    made = programs.compare(f, a, b)
    (kernel,) = kernels(made.schedule.steps)
    assert kernel.text.count("tl.store") == 1


def test_a_batch_is_a_scan_of_more_lines() -> None:
    a, b = maps(40, 5, 3)
    f = lambda a, b: lax.associative_scan(affine, (a, b))
    made = programs.compare(g.vmap(g.vmap(f, (1, 1)), (2, 2)), a, b)
    assert "prefixes" in names(made)
    made = programs.compare(g.vmap(f, (1, None), 1), a[..., 0], b[:, 0, 0])
    assert "prefixes" in names(made)


def test_derivatives_are_those_of_the_recursion() -> None:
    a, b = maps(2, 33)

    def loss(a: Any, b: Any) -> Any:
        return gnp.sum(gnp.sin(lax.associative_scan(affine, (a, b), axis=1)[1]))

    programs.compare(lambda a, b: g.grad(loss, (0, 1))(a, b), a, b, tolerance=1e-4)
    ahead = lambda a, b: g.jvp(g.jit(loss), (a, b), (b, a))
    programs.compare(ahead, a, b, tolerance=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrences(reverse: bool) -> None:
    a, b = maps(3, 700, 2)
    f = lambda a, b: lax.linear_recurrence(a, b, 1, reverse)
    made = programs.compare(f, a, b)
    jaxpr, inputs = programs.traced(f, a, b)
    (got,) = [programs.get(x) for x in made(*[programs.put(x) for x in inputs])]
    want = step_by_step(affine, [x.astype(np.float64) for x in (a, b)], 1, reverse)[1]
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


def test_what_is_no_formula() -> None:
    kind = [aval((4, 1), dtypes.F32)]
    own = gnp.arange(4.0)[:, None]
    assert formula_of(lambda p, q: [p[0] + q[0]], kind) is not None
    assert formula_of(lambda p, q: [p[0] + q[0] * own], kind) is None
    assert formula_of(lambda p, q: [p[0] + gnp.flip(q[0], 0)], kind) is None
    assert formula_of(lambda p, q: [p[0] + gnp.sum(q[0])], kind) is None
    assert formula_of(lambda p, q: [p[0] * q[0]], [aval((), dtypes.C64)]) is None
    same = [formula_of(lambda p, q: [p[0] * q[0] + k], kind) for k in (1.0, 1.0, 2.0)]
    assert same[0] == same[1] != same[2] and hash(same[0]) == hash(same[1])


def test_products_of_matrices_are_scanned_by_the_recursion() -> None:
    x = (RNG.standard_normal((20, 3, 3)) * 0.5).astype(np.float32)
    made = programs.compare(lambda x: lax.associative_scan(gnp.matmul, x), x)
    assert "prefixes" not in names(made)


def test_tiles_fill_the_device_before_lines_are_cut() -> None:
    f32 = [dtypes.F32] * 2
    assert scans._tile(4096, 4096, 512, f32, 132) == (16, 128, 4)
    across, along, _ = scans._tile(1 << 20, 64, 1, f32, 132)
    assert along == 64 and across * along == 2048
    assert scans._tile(1, 1 << 20, 1, f32, 132)[:2] == (1, 2048)
