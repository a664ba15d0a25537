"""Universal functions: which there are, and their methods against JAX's."""

from __future__ import annotations

import copy
import inspect
import pickle

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp

NAMES = [n for n in dir(jax.numpy) if isinstance(getattr(jax.numpy, n), jax.numpy.ufunc)]
PAIRS = [n for n in NAMES if n != "negative"]
FLOATS = {"logaddexp", "logaddexp2", "subtract", "add", "multiply", "maximum", "minimum"}


def operands(name: str, shape: tuple[int, ...] = (4, 3)) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    whole = rng.integers(-4, 5, shape).astype(np.int32)
    real = rng.normal(size=shape).astype(np.float32)
    if name.startswith("logadd"):
        return [real]
    return [whole, whole > 0, real] if not name.startswith("bitwise") else [whole, whole > 0]


def same(mine, theirs) -> None:
    assert str(mine.dtype) == str(theirs.dtype)
    np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=2e-5, atol=1e-6)


def test_those_that_jax_makes_universal_are() -> None:
    mine = [n for n in dir(jnp) if isinstance(getattr(jnp, n), jnp.ufunc)]
    assert mine == NAMES
    for name in NAMES:
        f, g = getattr(jnp, name), getattr(jax.numpy, name)
        assert f.__name__ == name and inspect.getdoc(f)
        assert (f.nin, f.nout, f.nargs) == (g.nin, g.nout, g.nargs)
        assert (f.identity is None) == (g.identity is None)
        assert f.identity is None or f.identity == g.identity
        assert len(inspect.signature(f).parameters) == f.nin


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("axis", [0, -1, None])
def test_reduce(name: str, axis: int | None) -> None:
    for x in operands(name):
        if name == "subtract" and x.dtype == bool:
            continue
        f = getattr(jnp, name)
        g = getattr(jax.numpy, name)
        same(f.reduce(x, axis), g.reduce(x, axis))
        same(
            gf.jit(lambda x: f.reduce(x, axis, keepdims=True))(x), g.reduce(x, axis, keepdims=True)
        )


@pytest.mark.parametrize("name", PAIRS)
def test_reduce_with_an_initial_value_and_a_mask(name: str) -> None:
    x = operands(name)[0]
    mask = np.random.default_rng(3).integers(0, 2, x.shape).astype(bool)
    f, g = getattr(jnp, name), getattr(jax.numpy, name)
    if name.startswith("logaddexp"):  # JAX's fails on an initial value that is a number
        want = np.logaddexp if name == "logaddexp" else np.logaddexp2
        want = want(want.reduce(np.where(mask, x, -np.inf), axis=0), np.float32(2))
    else:
        want = g.reduce(x, initial=2, where=mask)
    same(f.reduce(x, initial=2, where=mask), want)


@pytest.mark.parametrize("name", PAIRS)
def test_accumulate_and_outer(name: str) -> None:
    for x in operands(name):
        if name == "subtract" and x.dtype == bool:
            continue
        f, g = getattr(jnp, name), getattr(jax.numpy, name)
        for axis in (0, 1):
            want = g.accumulate(x, axis)
            same(f.accumulate(x, axis), want)
        same(f.outer(x[0], x[:2]), g.outer(x[0], x[:2]))


@pytest.mark.parametrize("name", PAIRS)
def test_at_and_reduceat(name: str) -> None:
    x = operands(name, (6, 2))[0]
    b = operands(name, (3, 2))[0] + 1
    where = np.array([1, 4, 1])
    f, g = getattr(jnp, name), getattr(jax.numpy, name)
    same(f.at(x, where, b, inplace=False), g.at(x, where, b, inplace=False))
    with pytest.raises(NotImplementedError, match="inplace=False"):
        f.at(x, where, b)
    starts = np.array([0, 3, 2, 5])
    want = g.reduceat(x, starts)
    if name.startswith("logical"):  # booleans, as NumPy's: JAX keeps the dtype of the operand
        want = want != 0
    same(f.reduceat(x, starts), want)


def test_a_function_of_one_argument() -> None:
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(
        jnp.negative.at(x, jnp.array([1, 2]), inplace=False), [0, -1, -2, 3]
    )
    with pytest.raises(ValueError, match="two arguments"):
        jnp.negative.reduce(x)
    with pytest.raises(ValueError, match="2 operands|1 operands|takes 0"):
        jnp.negative.at(x, 0, 1.0, inplace=False)


def test_a_function_of_the_users() -> None:
    digits = jnp.frompyfunc(lambda x, y: 10 * x + y, 2, 1)
    other = jax.numpy.frompyfunc(lambda x, y: 10 * x + y, 2, 1)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    same(digits.reduce(x, 1), other.reduce(x, 1))
    same(digits.accumulate(x, 1), other.accumulate(x, 1))
    same(digits.outer(x, x), other.outer(x, x))
    same(
        digits.at(x[0], [0, 0], 7, inplace=False),
        other.at(x[0], np.array([0, 0]), 7, inplace=False),
    )
    same(digits.reduceat(x[0], [0, 2, 1]), other.reduceat(x[0], np.array([0, 2, 1])))
    with pytest.raises(ValueError, match="initial="):
        digits.reduce(jnp.zeros(0))
    with pytest.raises(TypeError, match="takes 2 arguments"):
        digits(1)


def test_methods_are_differentiable_and_batched() -> None:
    x = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    np.testing.assert_allclose(gf.grad(lambda x: jnp.multiply.reduce(x))(x[0]), [6, 3, 2])
    np.testing.assert_allclose(gf.grad(lambda x: jnp.subtract.reduce(x))(x[0]), [1, -1, -1])
    np.testing.assert_allclose(gf.vmap(jnp.logaddexp.reduce)(x), np.logaddexp.reduce(x, axis=1))
    np.testing.assert_allclose(gf.vmap(jnp.subtract.accumulate)(x), [[1, -1, -4], [4, -1, -7]])


def test_an_object_is_a_function_to_transforms_pickles_and_copies() -> None:
    x = jnp.arange(3.0)
    for wrapped in (gf.jit(jnp.add), gf.vmap(jnp.add)):
        np.testing.assert_array_equal(wrapped(x, x), [0, 2, 4])
    assert gf.grad(jnp.multiply)(2.0, 3.0) == 3.0
    assert pickle.loads(pickle.dumps(jnp.add)) is jnp.add
    assert copy.deepcopy(jnp.add) is jnp.add
    made = pickle.loads(pickle.dumps(jnp.frompyfunc(max_of, 2, 1, identity=0)))
    assert made(1, 2) == 2 and made.identity == 0 and repr(made) == "<ufunc 'max_of'>"


def max_of(x, y):
    return jnp.where(x > y, x, y)
