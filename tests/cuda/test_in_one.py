"""Functions of a few operations as one kernel, where they are called without jit."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.backends.cuda.driver import interpret
from genesis_fn.backends.cuda.driver.drivers import implementation
from genesis_fn.core.configuration import config
from genesis_fn.core.device import using_device

interpreted = pytest.mark.skipif(implementation() != "interpret", reason="counts interpreted calls")
SHAPES = ((6, 4), (37, 130), (3, 1, 5), (4, 2, 3), (7,), (1, 9), (300, 3), (2, 4000))


@pytest.fixture(autouse=True)
def gpu():
    with using_device(gf.cuda(0)) as device:
        yield device


@pytest.fixture
def launches(monkeypatch):
    """The kernels that are launched of functions which are made from now on: of shapes that no
    other test has."""
    found: list[str] = []
    launch = interpret._InterpretedLaunch.launch

    def counted(self, stream, early=True):
        found.append(getattr(self._launch.kernel, "name", repr(self._launch.kernel)))
        launch(self, stream, early)

    monkeypatch.setattr(interpret._InterpretedLaunch, "launch", counted)
    return found


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_statistics_are_numpys(name):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        for kind, close in ((np.float32, 1e-5), (np.float16, 2e-3), (np.int32, 1e-5)):
            x = (5 * rng.normal(size=shape) + 1).astype(kind)
            axes = [None, *range(-1, len(shape) - 1), tuple(range(len(shape)))[::2]]
            for axis in axes:
                kept = bool(rng.integers(2))
                want = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=kept)
                got = getattr(jnp, name)(jnp.asarray(x), axis=axis, keepdims=kept)
                again = getattr(jnp, name)(jnp.asarray(x), axis, keepdims=kept)
                assert got.shape == want.shape
                assert got.dtype == (np.float16 if kind is np.float16 else np.float32)
                np.testing.assert_allclose(np.asarray(got), want, rtol=close, atol=close)
                np.testing.assert_array_equal(np.asarray(again), np.asarray(got))


def test_one_hot_is_a_row_of_the_identity():
    rng = np.random.default_rng(4)
    for shape in ((), (5,), (3, 4), (2, 1, 3)):
        x = rng.integers(0, 7, shape).astype(np.int32)
        for kind in (np.float32, np.float16, np.bool_, np.int8):
            got = gf.nn.one_hot(jnp.asarray(x), 7, dtype=kind)
            np.testing.assert_array_equal(np.asarray(got), np.eye(7, dtype=kind)[x])
            first = gf.nn.one_hot(jnp.asarray(x), 7, dtype=kind, axis=0)
            np.testing.assert_array_equal(np.asarray(first), np.moveaxis(np.asarray(got), -1, 0))
    outside = gf.nn.one_hot(jnp.asarray([-1, 7, 2]), 7)
    assert np.asarray(outside).sum() == 1


def test_nan_and_infinities_go_where_numpy_has_them():
    x = np.random.default_rng(1).normal(size=(5, 33)).astype(np.float32)
    x[0, 3], x[1, 4], x[2, 5] = np.nan, np.inf, -np.inf
    x[3, 6:8] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        for name in ("mean", "var", "std"):
            for axis in (0, 1, None):
                want = getattr(np, name)(x, axis=axis)
                got = getattr(jnp, name)(jnp.asarray(x), axis=axis)
                np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)
        for other in (x[0], x[:, :1], np.float32([0.0]), -x[1]):
            for name in ("add", "multiply", "divide", "maximum", "minimum"):
                with np.errstate(divide="ignore"):
                    want = getattr(np, name)(x, other)
                got = getattr(jnp, name)(jnp.asarray(x), jnp.asarray(other))
                np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


PAIRS = (((6, 4), (4,)), ((6, 4), (6, 1)), ((3, 1, 5), (4, 1)), ((5,), ()), ((2, 3), (1, 1)),
         ((1,), (7, 1)), ((0, 3), (3,)), ((130, 70), (70,)))  # fmt: skip


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32, np.int16, np.bool_])
def test_operands_of_two_shapes_or_dtypes_give_what_the_cpu_gives(kind):
    rng = np.random.default_rng(2)
    for first, second in PAIRS:
        for other in (kind, np.float32):
            x, y = (4 * rng.normal(size=first)).astype(kind), (3 + rng.random(second)).astype(other)
            for name in ("add", "multiply", "divide", "less", "power"):
                got = getattr(jnp, name)(jnp.asarray(x), jnp.asarray(y))
                with using_device(gf.cpu()):
                    want = getattr(jnp, name)(jnp.asarray(x), jnp.asarray(y))
                assert got.aval is want.aval and got.weak is want.weak
                close = 2e-3 if np.float16 in (kind, other) else 1e-5
                np.testing.assert_allclose(
                    np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=close
                )


def test_a_weak_operand_stays_weak():
    x = jnp.asarray(2.0) if jnp.asarray(2.0).weak else gf.jit(lambda n: n + 1)(1.0)
    y = x + jnp.ones(3, jnp.float16)
    assert y.dtype == np.float16 and not y.weak


@interpreted
def test_a_statistic_and_a_sum_of_two_shapes_are_one_launch(launches):
    x, y = jnp.ones((11, 43)), jnp.arange(43.0)
    classes = y.astype(jnp.int32)
    for call in (
        lambda: x - y,
        lambda: jnp.mean(x, axis=1),
        lambda: jnp.std(x, axis=0, keepdims=True),
        lambda: jnp.var(x),
        lambda: gf.nn.one_hot(classes, 46),
    ):
        launches.clear()
        call()
        assert len(launches) == 1, launches


@interpreted
def test_one_kernel_serves_all_sizes_of_a_rank(launches):
    texts = set()
    for shape in ((12, 44), (8, 101), (13, 45)):
        jnp.var(jnp.ones(shape), axis=1)
        texts.add(launches[-1])
    assert texts == {"few_reductions"}


def test_transforms_see_the_operations():
    x = jnp.asarray(np.random.default_rng(3).normal(size=(4, 5)), jnp.float32)
    assert "fused" not in str(gf.make_jaxpr(lambda a: jnp.var(a, axis=0))(x))
    got = gf.grad(lambda a: jnp.sum(jnp.std(a, axis=1) * jnp.mean(a, axis=0)[:4]))(x)
    compiled = gf.jit(gf.grad(lambda a: jnp.sum(jnp.std(a, axis=1) * jnp.mean(a, axis=0)[:4])))(x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(compiled), rtol=1e-4, atol=1e-6)
    rows = gf.vmap(jnp.mean)(x)
    np.testing.assert_allclose(np.asarray(rows), np.asarray(x).mean(1), rtol=1e-5)


def test_errors_name_the_line_and_deleted_arrays():
    x, y = jnp.ones((3, 4)), jnp.ones(4)
    for _ in range(2):
        with pytest.raises(gf.errors.ShapeError, match="do not broadcast"):
            x + jnp.ones(3)
        with pytest.raises(gf.errors.ShapeError, match="axis"):
            jnp.mean(x, axis=2)
    x + y
    y.delete()
    with pytest.raises(gf.errors.DonatedError, match="deleted at"):
        x + y


def test_settings_about_promotion_still_hold():
    x, y = jnp.ones((3, 4)), jnp.ones(4)
    x + y
    with config.override(numpy_rank_promotion="raise"), pytest.raises(gf.errors.ShapeError):
        x + y
    with config.override(numpy_dtype_promotion="strict"):
        with pytest.raises(gf.errors.TypePromotionError):
            x + jnp.ones(4, jnp.float16)


def test_nans_are_found_in_what_runs_in_one():
    x = jnp.zeros((3, 4))
    x / jnp.zeros(4)
    with config.override(debug_nans=True), pytest.raises(gf.errors.NanError):
        x / jnp.zeros(4)


@interpreted
def test_casts_and_indices_are_part_of_the_launch(launches):
    x, mask = jnp.ones((14, 47)), jnp.arange(14) > 3
    classes = jnp.arange(14)[:, None]
    masked = np.asarray(x) * (np.arange(14) > 3)[:, None]
    column = mask[:, None]
    launches.clear()
    found = x * column
    assert len(launches) == 1
    np.testing.assert_array_equal(np.asarray(found), masked)
    launches.clear()
    taken = jnp.take_along_axis(x, classes, axis=1)
    assert len(launches) <= 5, launches
    np.testing.assert_array_equal(np.asarray(taken), np.ones((14, 1)))


def test_indices_under_a_derivative_are_those_of_numpy():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(9, 7)).astype(np.float32)
    index = rng.integers(-7, 7, (9, 3)).astype(np.int32)

    def loss(a):
        return jnp.sum(jnp.take_along_axis(a, jnp.asarray(index), axis=1) ** 2)

    value, grad = gf.value_and_grad(loss)(jnp.asarray(x))
    want = np.zeros_like(x)
    np.add.at(want, (np.arange(9)[:, None], index), 2 * np.take_along_axis(x, index, axis=1))
    np.testing.assert_allclose(
        float(value), (np.take_along_axis(x, index, 1) ** 2).sum(), rtol=1e-5
    )
    np.testing.assert_allclose(np.asarray(grad), want, rtol=1e-5)
    with pytest.raises(IndexError, match="index 9"):
        np.asarray(jnp.take_along_axis(jnp.asarray(x), jnp.full((9, 1), 9), axis=1))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "all", "any", "argmax", "argmin"])
def test_reductions_are_what_the_cpu_gives(name):
    rng = np.random.default_rng(6)
    for kind in (np.float32, np.float16, np.int32, np.int8, np.uint8, np.bool_):
        for shape in ((5, 17), (3, 1, 4), (6,)):
            x = rng.integers(0, 3, shape).astype(kind)
            if kind is np.float32:
                x[(0,) * len(shape)] = np.nan
            for axis in (None, 0, -1):
                for kept in (False, True):
                    got = getattr(jnp, name)(jnp.asarray(x), axis=axis, keepdims=kept)
                    with using_device(gf.cpu()):
                        want = getattr(jnp, name)(jnp.asarray(x), axis=axis, keepdims=kept)
                    assert got.aval is want.aval and got.weak is want.weak
                    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_products_are_what_the_cpu_gives():
    rng = np.random.default_rng(7)
    for first, second in (((5, 7), (7, 3)), ((7,), (7, 3)), ((2, 5, 7), (7,)), ((4, 0), (0, 2))):
        for kind in (np.float32, np.float16, np.int32):
            x, y = (rng.integers(-3, 4, s).astype(kind) for s in (first, second))
            for other in (y, y.astype(np.float32)):
                with using_device(gf.cpu()):
                    want = jnp.asarray(x) @ jnp.asarray(other)
                got = jnp.asarray(x) @ jnp.asarray(other)
                assert got.aval is want.aval
                np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
