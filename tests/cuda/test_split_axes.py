"""Reductions over split axes, as of group norms: interpreted, against JAX, and as planned for an
H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.loop_ir.kernel import is_reduction
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.options import without
from genesis_fn.compiler.rewrites import by_columns, row_factors as factors
from genesis_fn.compiler.rewrites.by_columns import reductions_by_columns
from genesis_fn.compiler.rewrites.row_factors import row_factors
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr
from genesis_fn.transforms.staging.stage_trace import stage

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays are rewritten, too."""
    for module in (by_columns, factors):
        monkeypatch.setattr(module, "_LARGE", 0)


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def group_norm(np_: Any, x: Any, w: Any, b: Any, groups: int) -> Any:
    """Over pixels and the channels of a group, then silu."""
    y = x.astype(np_.float32).reshape(*x.shape[:3], groups, -1)
    mean = np_.mean(y, (1, 2, 4), keepdims=True)
    var = np_.mean((y - mean) ** 2, (1, 2, 4), keepdims=True)
    y = ((y - mean) / np_.sqrt(var + 1e-5)).reshape(x.shape) * w + b
    return (y / (1 + np_.exp(-y))).astype(x.dtype)


def batch_norm(np_: Any, x: Any, w: Any, b: Any) -> Any:
    y = x.astype(np_.float32)
    mean, square = np_.mean(y, (0, 1, 2)), np_.mean(y * y, (0, 1, 2))
    return ((y - mean) / np_.sqrt(square - mean * mean + 1e-5) * w + b).astype(x.dtype)


def instance_norm(np_: Any, x: Any, w: Any, b: Any) -> Any:
    y = x.astype(np_.float32)
    y = y - np_.mean(y, (1, 2), keepdims=True)
    y = y / np_.sqrt(np_.mean(y * y, (1, 2), keepdims=True) + 1e-5)
    return (y * w + b).astype(x.dtype)


NORMS: dict[str, Callable[..., Any]] = {
    "group": lambda np_, x, w, b: group_norm(np_, x, w, b, 4),
    "batch": batch_norm,
    "instance": instance_norm,
}


def gradients(xp: Any, np_: Any, norm: Callable[..., Any]) -> Callable[..., Any]:
    """The result of a norm, and its derivatives."""

    def run(x: Any, w: Any, b: Any, ct: Any) -> Any:
        y, back = xp.vjp(lambda *args: norm(np_, *args), x, w, b)
        return y, back(ct)

    return run


def results(f: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    jaxpr, inputs = programs.traced(f, *args)
    executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
    return [programs.get(y) for y in executable(*map(programs.put, inputs))]


def close(got: list[np.ndarray], want: Any, tolerance: float) -> None:
    for a, b in zip(got, jax.tree.leaves(want), strict=True):
        b = np.asarray(b)
        assert a.shape == b.shape and a.dtype == b.dtype
        largest = max(1.0, float(np.abs(b.astype(np.float64)).max()))
        np.testing.assert_allclose(
            a.astype(np.float64) / largest, b.astype(np.float64) / largest, atol=tolerance
        )


def simplified(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = dtypes.F32) -> Jaxpr:
    jaxpr, _ = stage(lambda *xs: tree.leaves(f(*xs)), [aval(s, dtype) for s in shapes])
    return simplify_jaxpr(jaxpr)


def reductions(jaxpr: Jaxpr) -> list[Eqn]:
    return [e for e in jaxpr.eqns if is_reduction(e)]


# ---- values ----


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_and_its_gradients(name: str, dtype: Any) -> None:
    x, ct = normal(0, 2, 10, 14, 32, dtype=dtype), normal(1, 2, 10, 14, 32, dtype=dtype)
    w, b = normal(2, 32) + 1, normal(3, 32)
    got = results(gradients(g, gnp, NORMS[name]), x, w, b, ct)
    want = jax.jit(gradients(jax, jnp, NORMS[name]))(x, w, b, ct)
    close(got, want, 2e-5 if dtype is np.float32 else 1e-2)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 70, 8, 4), (1, 3)),
        ((70, 8, 6), (0, 2)),  # no images
        ((67, 11, 3), (0, 2)),  # lengths without divisors
        ((2, 9, 11, 16, 2), (1, 2, 4)),
        ((2, 33, 3, 5, 16, 2), (1, 3, 5)),  # three pieces
    ],
    ids=str,
)
def test_every_fold_of_split_axes(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = normal(0, *shape)
    x.flat[7], x.flat[-9] = np.nan, np.inf
    i = np.random.default_rng(1).integers(-100, 100, shape).astype(np.int32)

    h = (x * 0.25).astype(BF16)

    def f(np_: Any, x: Any, i: Any) -> Any:
        floats = [fold(x, axes) for fold in (np_.sum, np_.max, np_.min, np_.mean)]
        whole = [fold(i, axes) for fold in (np_.sum, np_.max, np_.min, np_.prod)]
        return *floats, *whole, np_.any(i > 98, axes), np_.all(i < 98, axes)

    got = results(lambda x, i, h: (*f(gnp, x, i), gnp.sum(h, axes)), x, i, h)
    want = [*f(np, x, i), np.sum(h.astype(np.float32), axes).astype(BF16)]
    for a, b in zip(got, want, strict=True):
        if b.dtype == np.int64:
            b = b.astype(np.int32)  # NumPy widens sums
        assert a.dtype == b.dtype
        tolerance = 1e-2 if a.dtype == BF16 else 2e-5
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.mark.usefixtures("any_size")
def test_positions_of_extremes_are_found_in_one_stage() -> None:
    x = normal(0, 70, 8, 6)
    jaxpr = simplified(lambda x: gnp.argmax(x, 0), x.shape)
    assert reductions_by_columns(jaxpr, H200).eqns == jaxpr.eqns


@pytest.mark.usefixtures("any_size")
def test_factors_of_rows_that_come_of_other_sums() -> None:
    def f(x: Any, np_: Any = gnp) -> Any:
        s = np_.sum(x * x, (1, 3), keepdims=True)
        t = np_.sum(x, 3, keepdims=True)
        return np_.sum(-(x * s) * np_.exp(s * 0.01), (1, 3)), np_.sum(t * x, (1, 3))

    x = normal(0, 3, 40, 4, 8) * 0.3
    want = f(jnp.asarray(x), jnp)
    close(results(f, x), want, 2e-5)
    with without("row_factors"):
        close(results(f, x), want, 2e-5)


# ---- forms ----

IMAGES = (16, 64, 64, 256)


def test_pieces_of_rows_are_reduced_in_two_stages() -> None:
    jaxpr = simplified(lambda x: gnp.sum(x.reshape(16, 4096, 32, 8), (1, 3)), IMAGES)
    first, second = reductions(reductions_by_columns(jaxpr, H200))
    # Whole rows of memory, and parts enough for all processors.
    assert first.ins[0].aval.shape[-2:] == (32, 8) == first.outs[0].aval.shape[-2:]
    assert first.outs[0].aval.size >= 2 * H200.processors * 64
    assert second.outs[0].aval.shape == (16, 32)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((16, 64, 8, 8), (1, 3)),  # small
        ((16, 4096, 4, 256), (1, 3)),  # pieces as long as rows
        ((4096, 4096), (1,)),
        ((65536, 256), (0,)),
        ((16, 4096, 256), (1,)),  # nothing shares its first stage
        ((1 << 16, 2, 64, 4), (1, 3)),  # few pixels
    ],
    ids=str,
)
def test_other_reductions_stay(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    jaxpr = simplified(lambda x: gnp.sum(x, axes), shape)
    assert reductions_by_columns(jaxpr, H200).eqns == jaxpr.eqns


def test_sums_of_what_others_read_share_the_first_stage() -> None:
    def f(x: Any, y: Any) -> Any:
        groups = gnp.sum((x * y).reshape(16, 4096, 32, 8), (1, 3))
        return groups, gnp.sum(x, (0, 1, 2)), gnp.sum(y, (1, 2))

    jaxpr = reductions_by_columns(simplified(f, IMAGES, IMAGES), H200)
    large = [e for e in reductions(jaxpr) if e.ins[0].aval.size == np.prod(IMAGES)]
    assert len({e.outs[0].aval.size for e in large}) == 1 and len(large) == 3
    assert len(reductions(jaxpr)) == 6


def test_sums_of_other_arrays_keep_their_kernels() -> None:
    def f(x: Any, y: Any) -> Any:
        return gnp.sum(x.reshape(16, 4096, 32, 8), (1, 3)), gnp.sum(y, (0, 1, 2))

    jaxpr = reductions_by_columns(simplified(f, IMAGES, IMAGES), H200)
    assert len(reductions(jaxpr)) == 3


def test_a_norm_and_its_gradients_take_two_passes_each() -> None:
    f = gradients(g, gnp, lambda np_, x, w, b: group_norm(np_, x, w, b, 32))
    jaxpr = simplified(f, IMAGES, (256,), (256,), IMAGES)
    program = rematerialise_jaxpr(Jaxpr(jaxpr.invars, jaxpr.eqns, jaxpr.outs[1:]))

    def moved() -> int:
        """Images read and written: again for each level of reductions."""
        total = 0
        for group in fuse_jaxpr(reductions_by_columns(row_factors(program), H200), H200).groups:
            assert group.kernel is not None
            inner = [i.level for i in group.kernel.instrs if "r" in i.names]
            large = [v for v in group.reads if v.aval.shape == IMAGES]
            total += len(large) * (1 + max(inner, default=0))
            total += len([v for v in group.writes if v.aval.size == np.prod(IMAGES)])
        return total

    # Two reads for the statistics, and in each of two passes x, the cotangent and a result.
    assert moved() == 8
    with without("row_factors"):
        assert moved() == 9
    with without("row_factors", "by_columns"):
        assert moved() == 13
