"""Solutions of differential equations and their derivatives, against JAX's and closed forms."""

from __future__ import annotations

import jax
import jax.experimental.ode
import jax.numpy
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.experimental.ode import odeint


def wide(x) -> gf.Array:
    x = np.asarray(x)
    return jnp.asarray(x, x.dtype)


def pendulum(xp):
    def slope(y, t, a, b):
        pull = -a * xp.sin(y["angle"]) - b[0] * y["speed"] + b[1] * xp.cos(t)
        return {"angle": y["speed"], "speed": pull}

    return slope


Y0 = {"angle": np.array([0.3, 1.0]), "speed": np.array([0.0, -0.5])}
OPERANDS = (Y0, np.linspace(0, 3, 4), np.array(2.0), [np.array(0.1), np.array(0.7)])


def loss(ode, xp):
    def of(y0, t, a, b):
        y = ode(pendulum(xp), y0, t, a, b)
        return xp.sum(y["angle"] ** 2 * xp.cos(y["speed"]))

    return of


def test_values_and_gradients_as_in_jax() -> None:
    mine = gf.tree.map(wide, OPERANDS)
    with jax.enable_x64(True):
        yours = jax.tree.map(jax.numpy.asarray, OPERANDS)
        want = jax.experimental.ode.odeint(pendulum(jax.numpy), *yours)
        grads = jax.grad(loss(jax.experimental.ode.odeint, jax.numpy), (0, 1, 2, 3))(*yours)
    found = odeint(pendulum(jnp), *mine)
    for name in Y0:
        np.testing.assert_allclose(found[name], want[name], atol=1e-6)
    got = gf.grad(loss(odeint, jnp), (0, 1, 2, 3))(*mine)
    for a, b in zip(gf.tree.leaves(got), jax.tree.leaves(grads)):
        np.testing.assert_allclose(np.asarray(a), b, atol=1e-5)
    # Forward mode, in which JAX has no derivative, agrees with reverse mode.
    rng = np.random.default_rng(0)
    moves = gf.tree.map(lambda x: wide(rng.normal(size=x.shape)), mine)
    _, forward = gf.jvp(loss(odeint, jnp), mine, moves)
    pairs = zip(gf.tree.leaves(got), gf.tree.leaves(moves))
    reverse = sum(float(np.sum(np.asarray(g) * np.asarray(m))) for g, m in pairs)
    np.testing.assert_allclose(forward, reverse, rtol=1e-5)


def decayed(rate):
    """exp(-rate), with the rate captured."""
    one = jnp.ones((), "float64")
    return odeint(lambda y, t: -rate * y, one, jnp.asarray([0.0, 1.0], "float64"))[1]


@pytest.mark.parametrize(
    "second", [lambda f: gf.grad(gf.grad(f)), lambda f: gf.jacfwd(gf.grad(f))], ids=["rr", "fr"]
)
def test_second_derivatives_in_what_is_captured(second) -> None:
    found = second(decayed)(jnp.asarray(0.5, "float64"))
    np.testing.assert_allclose(found, np.exp(-0.5), rtol=1e-6)


def test_batches_and_programs() -> None:
    rates = jnp.asarray([0.5, 1.0, 30.0], "float64")
    found = gf.jit(gf.vmap(decayed))(rates)
    np.testing.assert_allclose(found, np.exp(-np.asarray(rates)), rtol=1e-5, atol=1e-8)


def test_complex_numbers() -> None:
    H, z = np.array([[0, 1], [1, 0.2]]), np.array([1.0 + 0j, 2j])
    times = np.array([0.0, 0.7])

    def energy(H, z, scale):
        y = odeint(lambda y, t, H, s: -1j * s * (H @ y), z, wide(times), H, scale)[1]
        return jnp.sum(jnp.abs(y) ** 2 * np.array([1.0, 2.0]))

    given = wide(H.astype(complex)), wide(z), wide(np.array(1.5))
    values, vectors = np.linalg.eigh(H)
    exact = vectors @ (np.exp(-1.5j * values * 0.7) * (vectors.T @ z))
    np.testing.assert_allclose(
        energy(*given), np.sum(np.abs(exact) ** 2 * np.array([1.0, 2.0])), rtol=1e-6
    )
    slope = gf.grad(energy, 2)(*given)
    step = wide(np.array(1e-4))
    near = (
        energy(given[0], given[1], given[2] + step) - energy(*given[:2], given[2] - step)
    ) / 2e-4
    np.testing.assert_allclose(slope, near, rtol=1e-5)


def test_integers_are_arguments() -> None:
    half = gf.grad(lambda r: odeint(lambda y, t, n, r: -y / n * r, 1.0, TIMES, 2, r)[1])(1.0)
    np.testing.assert_allclose(half, -0.5 * np.exp(-0.5), rtol=1e-5)


TIMES = jnp.array([0.0, 1.0])


def test_narrow_floats_are_computed_in_single_precision() -> None:
    y = odeint(lambda y, t: -y, jnp.ones(2, "bfloat16"), TIMES)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y[1], "float32"), np.exp(-1), rtol=1e-2)


def test_what_is_not_reached_is_nan() -> None:
    times = jnp.array([0.0, 0.5, 2.0])
    few = odeint(lambda y, t: -y, 1.0, times, mxstep=3)
    assert np.isnan(np.asarray(few)).tolist() == [False, True, True]
    # 1 / (1 - t) is infinite at 1.
    blown = odeint(lambda y, t: y * y, 1.0, times)
    assert np.isnan(np.asarray(blown)).tolist() == [False, False, True]


def test_a_time_alone_and_the_longest_step() -> None:
    assert odeint(lambda y, t: -y, 1.0, jnp.array([3.0])).tolist() == [1.0]
    # A kick between the times, over which steps that are longer would go.
    kick = lambda y, t: jnp.where((t > 4) & (t < 4.2), 5.0, 0.0)
    found = odeint(kick, 0.0, jnp.array([0.0, 8.0]), hmax=0.05)
    np.testing.assert_allclose(found[1], 1.0, rtol=1e-3)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: odeint(lambda y, t: y, 1.0, jnp.array([0, 1])), "times are floats"),
        (lambda: odeint(lambda y, t: y, 1.0, jnp.ones((2, 2))), "times are a vector"),
        (lambda: odeint(lambda y, t: y, 1.0, TIMES[::-1]), "do not increase"),
        (lambda: odeint(lambda y, t: (y, y), 1.0, TIMES), "another structure"),
        (lambda: odeint(lambda y, t: jnp.ones(2), 1.0, TIMES), r"float32\[2\]"),
        (lambda: odeint(lambda y, t: 1j * y, 1.0, TIMES), "complex y0"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
