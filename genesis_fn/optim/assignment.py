"""The linear assignment problem: pairs of rows and columns of the least total cost."""

from __future__ import annotations

from typing import NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes, lax
from genesis_fn.errors import ShapeError
from genesis_fn.extend import as_array
from genesis_fn.optim.tree_map_updates import F64, I32, widen


def base_hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Array, Array]:
    """Solves the linear assignment problem; the pairs are in the order of the rows.

        least sum of cost_matrix[i, j] over min(n, m) pairs, no row and no column twice

    Where several assignments cost the least, one of them is returned. An infinite cost forbids a
    pair: it is taken only where there is no other assignment. The work is of order n**2 m for
    n <= m. Pairs are integers, so that no derivative passes.

    Source: Crouse, "On implementing 2D rectangular assignment algorithms", 2016, after Jonker &
    Volgenant, 1987.

    Args:
        cost_matrix: [n, m], real; integers are exact up to 2**53.

    Returns:
        (i, j): the rows and the columns of the pairs, int32 [min(n, m)], i increasing.

    Raises:
        ShapeError: `cost_matrix` has not two dimensions.

    >>> cost = jnp.array([[8, 4, 7], [5, 2, 3], [9, 6, 7], [9, 4, 8]])
    >>> i, j = optim.assignment.base_hungarian_algorithm(cost)
    >>> i.tolist(), j.tolist(), int(cost[i, j].sum())
    ([0, 1, 3], [0, 2, 1], 15)
    """
    cost = _checked(cost_matrix, "base_hungarian_algorithm")
    n, m = cost.shape
    if n <= m:
        return jnp.arange(n), _columns_of_rows(cost)
    rows = _columns_of_rows(cost.T)
    order = jnp.argsort(rows)
    return rows[order], order.astype(I32)


def hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Array, Array]:
    """Solves the linear assignment problem; the pairs are in the order of optax's function.

        least sum of cost_matrix[i, j] over min(n, m) pairs, no row and no column twice

    The same as `base_hungarian_algorithm`, but for the order of the pairs.

    Source: Crouse, "On implementing 2D rectangular assignment algorithms", 2016, after Jonker &
    Volgenant, 1987.

    Args:
        cost_matrix: [n, m], real; integers are exact up to 2**53, an infinite cost forbids a pair.

    Returns:
        (i, j): the rows and the columns of the pairs, int32 [min(n, m)]; j increases if n = m, i
        falls if n < m, and j falls if n > m.

    Raises:
        ShapeError: `cost_matrix` has not two dimensions.

    >>> cost = jnp.array([[8, 4, 7], [5, 2, 3], [9, 6, 7], [9, 4, 8]])
    >>> i, j = optim.assignment.hungarian_algorithm(cost)
    >>> i.tolist(), j.tolist(), int(cost[i, j].sum())
    ([1, 3, 0], [2, 1, 0], 15)
    """
    cost = _checked(cost_matrix, "hungarian_algorithm")
    n, m = cost.shape
    if n == m:
        return jnp.argsort(_columns_of_rows(cost)).astype(I32), jnp.arange(n)
    if n < m:
        return jnp.arange(n)[::-1], _columns_of_rows(cost)[::-1]
    return _columns_of_rows(cost.T)[::-1], jnp.arange(m)[::-1]


def _checked(cost_matrix: ArrayLike, name: str) -> Array:
    """Returns the costs as finite floats, those that were infinite out of reach of the others."""
    cost = as_array(cost_matrix)
    if cost.ndim != 2:
        raise ShapeError(f"{name}: cost_matrix must have two dimensions, got {cost.aval}")
    if not cost.size:
        return jnp.zeros(cost.shape)
    cost = widen(lax.stop_gradient(cost))
    cost = cost if dtypes.is_float(cost.dtype) else cost.astype(F64)
    finite = jnp.isfinite(cost)
    low = jnp.min(jnp.where(finite, cost, float("inf")))
    high = jnp.max(jnp.where(finite, cost, -float("inf")))
    spread = jnp.where(low <= high, high - low, 0.0) * min(cost.shape) + 1.0
    low, high = jnp.where(low <= high, low, 0.0), jnp.where(low <= high, high, 0.0)
    return jnp.where(finite, cost, jnp.where(cost < 0, low - spread, high + spread))


class _Matching(NamedTuple):
    """A matching of some rows, and prices u, v with u[i] + v[j] <= cost[i, j], equal at pairs.

    A row or column without a partner has -1.
    """

    u: Array
    v: Array
    column_of: Array
    row_of: Array


class _Paths(NamedTuple):
    """Shortest paths from a row without a partner through the pairs, as in Dijkstra's algorithm.

    `distance` is that to each column, `before` the row which leads there, `settled` says which
    columns are reached for good; `column` is the latest of these, at distance `reached`, and `row`
    its partner, or -1 at the end.
    """

    distance: Array
    before: Array
    settled: Array
    column: Array
    reached: Array
    row: Array


def _columns_of_rows(cost: Array) -> Array:
    """Returns each row's column, of a matrix with at least as many columns as rows."""
    n, m = cost.shape
    if n == 0:
        return jnp.zeros((0,), I32)
    no = jnp.full((), -1, I32)
    start = _Matching(
        jnp.zeros((n,), cost.dtype),
        jnp.zeros((m,), cost.dtype),
        jnp.full((n,), -1, I32),
        jnp.full((m,), -1, I32),
    )
    largest = float(dtypes.finfo(cost.dtype).max)

    def match_row(row: Array, matching: _Matching) -> _Matching:
        def extend(paths: _Paths) -> _Paths:
            slack = cost[paths.row] - matching.u[paths.row] - matching.v
            through = paths.reached + slack
            shorter = ~paths.settled & (through < paths.distance)
            distance = jnp.where(shorter, through, paths.distance)
            before = jnp.where(shorter, paths.row, paths.before)
            ahead = jnp.where(paths.settled, float("inf"), jnp.minimum(distance, largest))
            column = jnp.argmin(ahead).astype(I32)
            settled = paths.settled.at[column].set(True)
            return _Paths(
                distance, before, settled, column, distance[column], matching.row_of[column]
            )

        nowhere = _Paths(
            jnp.full((m,), float("inf"), cost.dtype),
            jnp.full((m,), -1, I32),
            jnp.zeros((m,), bool),
            no,
            jnp.zeros((), cost.dtype),
            row.astype(I32),
        )
        paths = lax.while_loop(lambda paths: paths.row >= 0, extend, nowhere)
        # Prices move so that every edge of the path has no slack; the last column's stays.
        gain = jnp.where(paths.settled, paths.reached - paths.distance, 0.0)
        partner = jnp.where(matching.row_of >= 0, matching.row_of, n)
        u = matching.u.at[partner].add(gain, mode="drop").at[row].add(paths.reached)
        v = matching.v - gain
        return _Matching(u, v, *_flipped(paths, matching.column_of, matching.row_of, row))

    return lax.fori_loop(0, n, match_row, start).column_of


def _flipped(paths: _Paths, column_of: Array, row_of: Array, start: Array) -> tuple[Array, Array]:
    """Pairs each row on the path with the column after it, from the free column back to `start`."""

    def pair(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        column_of, row_of, column, _ = carry
        row = paths.before[column]
        previous = column_of[row]
        return column_of.at[row].set(column), row_of.at[column].set(row), previous, row == start

    done = jnp.zeros((), bool)
    column_of, row_of, _, _ = lax.while_loop(
        lambda carry: ~carry[3], pair, (column_of, row_of, paths.column, done)
    )
    return column_of, row_of
