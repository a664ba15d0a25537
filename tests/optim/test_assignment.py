"""Assignments against SciPy's costs and optax's order of pairs."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
import scipy.optimize

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.errors import ShapeError

SHAPES = [(1, 1), (1, 5), (6, 1), (4, 4), (3, 9), (9, 3), (20, 20), (12, 30)]
NAMES = ["base_hungarian_algorithm", "hungarian_algorithm"]


@pytest.mark.parametrize("name", NAMES)
def test_least_costs_are_those_of_scipy(name: str) -> None:
    rng = np.random.default_rng(2)
    solve = getattr(optim.assignment, name)
    for n, m in SHAPES:
        for cost in (
            rng.normal(size=(n, m)),
            rng.integers(-3, 4, (n, m)),
            -(rng.random((n, m)) ** 9),
        ):
            rows, columns = scipy.optimize.linear_sum_assignment(cost)
            i, j = solve(jnp.asarray(cost, cost.dtype))
            assert str(i.dtype) == "int32" == str(j.dtype) and i.shape == (min(n, m),)
            assert len({*i.tolist()}) == len({*j.tolist()}) == min(n, m)
            got = cost[np.asarray(i), np.asarray(j)].sum()
            assert got == pytest.approx(cost[rows, columns].sum(), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_in_the_order_of_optax(name: str) -> None:
    rng = np.random.default_rng(7)
    for shape in ((4, 4), (3, 7), (7, 3)):
        cost = rng.normal(size=shape).astype(np.float32)
        got = getattr(optim.assignment, name)(cost)
        want = getattr(optax.assignment, name)(jax.numpy.asarray(cost))
        for p, q in zip(got, want, strict=True):
            assert p.tolist() == q.tolist()


def test_many_at_once_and_no_derivative() -> None:
    costs = np.random.default_rng(4).normal(size=(8, 5, 6)).astype(np.float32)
    i, j = gf.jit(gf.vmap(optim.assignment.hungarian_algorithm))(costs)
    for k, cost in enumerate(costs):
        rows, columns = optim.assignment.hungarian_algorithm(cost)
        assert i[k].tolist() == rows.tolist() and j[k].tolist() == columns.tolist()

    def total(cost: gf.Array) -> gf.Array:
        return cost[optim.assignment.base_hungarian_algorithm(cost)].sum()

    g = gf.grad(total)(jnp.asarray(costs[0]))
    rows, columns = scipy.optimize.linear_sum_assignment(costs[0])
    want = np.zeros((5, 6))
    want[rows, columns] = 1
    np.testing.assert_array_equal(np.asarray(g), want)


def test_forbidden_pairs_large_integers_and_nothing() -> None:
    rng = np.random.default_rng(9)
    cost = rng.normal(size=(6, 7))
    cost[rng.random((6, 7)) < 0.3] = np.inf
    rows, columns = scipy.optimize.linear_sum_assignment(cost)
    i, j = optim.assignment.base_hungarian_algorithm(jnp.asarray(cost, "float64"))
    assert (i.tolist(), j.tolist()) == (rows.tolist(), columns.tolist())
    # SciPy refuses a row that has no pair; here it gets one that is forbidden.
    i, j = optim.assignment.hungarian_algorithm(jnp.full((3, 3), jnp.inf).at[1, 2].set(-5.0))
    pairs = {*zip(i.tolist(), j.tolist(), strict=True)}
    assert len(pairs) == 3 and (1, 2) in pairs
    i, j = optim.assignment.hungarian_algorithm(jnp.full((2, 2), jnp.nan))
    assert sorted(i.tolist()) == sorted(j.tolist()) == [0, 1]
    # Float32 would not tell these apart.
    i, j = optim.assignment.base_hungarian_algorithm(
        np.array([[2**30, 2**30 + 1], [0, 0]], np.int32)
    )
    assert j.tolist() == [0, 1]
    for shape in ((0, 3), (3, 0), (0, 0)):
        assert [x.shape for x in optim.assignment.hungarian_algorithm(np.zeros(shape))] == [
            (0,)
        ] * 2
    with pytest.raises(ShapeError, match="cost_matrix must have two dimensions"):
        optim.assignment.hungarian_algorithm(jnp.ones(3))
