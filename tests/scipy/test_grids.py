"""Values between the points of grids, and codes, against SciPy's, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.cluster.vq
import scipy.interpolate
import scipy.ndimage

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.scipy.cluster.vq import vq
from genesis_fn.scipy.interpolate import RegularGridInterpolator
from genesis_fn.scipy.ndimage import map_coordinates

MODES = {"constant": "grid-constant", "nearest": "nearest", "wrap": "grid-wrap", "mirror": "mirror",
         "reflect": "reflect"}  # fmt: skip


def wide(x: np.ndarray) -> gf.Array:
    return jnp.asarray(x, "float64")


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_map_coordinates(mode: str, order: int) -> None:
    rng = np.random.default_rng(1)
    x, at = rng.normal(size=(4, 5)), rng.uniform(-7, 9, (2, 50))
    found = map_coordinates(wide(x), [wide(c) for c in at], order, mode, 1.5)
    want = scipy.ndimage.map_coordinates(x, at, order=order, mode=MODES[mode], cval=1.5)
    np.testing.assert_allclose(found, want, atol=1e-10)
    single = map_coordinates(wide(x[:1]), [wide(c) for c in at], order, mode, 1.5)
    want = scipy.ndimage.map_coordinates(x[:1], at, order=order, mode=MODES[mode], cval=1.5)
    np.testing.assert_allclose(single, want, atol=1e-10)


def test_map_coordinates_refuses() -> None:
    x = jnp.ones((3, 3))
    with pytest.raises(ValueError, match="order 3"):
        map_coordinates(x, [x, x], 3)
    with pytest.raises(ValueError, match="mode 'grid-wrap'"):
        map_coordinates(x, [x, x], 1, "grid-wrap")
    with pytest.raises(gf.errors.ShapeError, match="1 coordinates"):
        map_coordinates(x, [x], 1)


@pytest.mark.parametrize("fill", [np.nan, None, 2.0])
@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_interpolator(method: str, fill: float | None) -> None:
    rng = np.random.default_rng(2)
    grid, values = [np.array([0.0, 1, 3]), np.array([1.0, 2, 5, 6])], rng.normal(size=(3, 4, 2))
    at = rng.uniform(-1, 7, (6, 7, 2))
    f = RegularGridInterpolator([wide(g) for g in grid], wide(values), method, fill_value=fill)
    theirs = scipy.interpolate.RegularGridInterpolator(grid, values, method, False, fill)
    np.testing.assert_allclose(f(wide(at)), theirs(at), atol=1e-10)
    np.testing.assert_allclose(f((wide(at[..., 0]), wide(at[..., 1]))), theirs(at), atol=1e-10)
    # A pytree of grid and values: an argument of compiled, batched and differentiated functions.
    near = wide(rng.uniform(1.1, 2.9, (5, 2)))
    np.testing.assert_allclose(gf.jit(lambda f, at: f(at))(f, near), f(near), atol=1e-12)
    np.testing.assert_allclose(gf.vmap(f)(near)[:, 0], f(near), atol=1e-12)
    total = lambda f: jnp.sum(f(near))
    np.testing.assert_allclose(gf.grad(total)(f).values.sum(), 10.0, rtol=1e-9)


def test_interpolator_on_a_line() -> None:
    f = RegularGridInterpolator((jnp.array([0.0, 2.0]),), jnp.array([1.0, 5.0]))
    np.testing.assert_allclose(f(jnp.array([0.5, 2.0])), [2.0, 5.0])
    assert f(jnp.array([[0.5]]), method="nearest").tolist() == [1.0]


LINE = jnp.array([0.0, 1.0])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: RegularGridInterpolator((LINE,), LINE, "cubic"), "method 'cubic'"),
        (lambda: RegularGridInterpolator((LINE,), LINE, bounds_error=True), "leave it out"),
        (lambda: RegularGridInterpolator((LINE[::-1],), LINE), "does not increase"),
        (lambda: RegularGridInterpolator((LINE,), jnp.ones(3)), "not axis 0 of values"),
        (lambda: RegularGridInterpolator((LINE, LINE), LINE), "not axis 1 of values"),
        (lambda: RegularGridInterpolator((LINE,), LINE, fill_value=1j), "does not fit"),
        (lambda: RegularGridInterpolator((LINE,), LINE)(jnp.ones((3, 2))), "2 coordinates"),
        (lambda: vq(jnp.ones((3, 2)), jnp.ones((3, 4))), "codes"),
        (lambda: vq(jnp.ones((3, 2)), jnp.ones(3)), "codes"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("shape", [(6,), (6, 3)], ids=str)
def test_vq(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x, codes = rng.normal(size=shape), rng.normal(size=(4, *shape[1:]))
    for found, want in zip(vq(wide(x), wide(codes)), scipy.cluster.vq.vq(x, codes)):
        np.testing.assert_allclose(found, want, atol=1e-10)


def test_grids_are_looked_at_in_programs_as_well() -> None:
    """A grid that a program holds is known, though what is computed of it is traced."""
    line, down, values = [jnp.array(x) for x in ([0.0, 1.0], [1.0, 0.0], [1.0, 3.0])]
    found = gf.jit(lambda at: RegularGridInterpolator((line,), values)(at))(jnp.array([0.5]))
    assert found.tolist() == [2.0]
    with pytest.raises(ValueError, match="does not increase"):
        gf.jit(lambda at: RegularGridInterpolator((down,), values)(at))(jnp.array([0.5]))
