"""Matrix products, factorizations and convolutions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.conv import conv_p
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.linalg import (
    cholesky_p,
    eigh_p,
    lu_p,
    qr_p,
    solve_p,
    svd_p,
    triangular_solve_p,
)
from genesis_fn.primitives.ragged_dot import ragged_contraction_p, ragged_dot_p
from genesis_fn.transforms.sharding.partitioner import Placed, partitions
from genesis_fn.transforms.sharding.rules.letters import Letters, by_letters, untouched


@partitions(dot_general_p)
def _dot(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Batch and contracted dimensions are divided alike in both operands; sums over the parts of a
    contracted dimension are due.

    An axis that divides several letters stays where both operands are divided, then where the
    activations are, then where the weights are: of a weight whose contracted dimension is divided
    and rows that are divided over the same axis, the weight is gathered."""
    x, y = operands
    (xc, yc), (xb, yb) = e.params["dimension_numbers"]
    pairs = [*zip(xb, yb), *zip(xc, yc)]
    of_x: list[Hashable] = [("x", i) for i in range(x.aval.ndim)]
    of_y: list[Hashable] = [("y", j) for j in range(y.aval.ndim)]
    for i, j in pairs:
        of_y[j] = of_x[i]
    free_x = [of_x[i] for i in range(x.aval.ndim) if i not in (*xc, *xb)]
    free_y = [of_y[j] for j in range(y.aval.ndim) if j not in (*yc, *yb)]
    # Activations have more dimensions than weights, and are the first operand.
    rows = [*free_x, *free_y] if x.aval.ndim >= y.aval.ndim else [*free_y, *free_x]
    alike = [of_x[i] for i, j in pairs if x.layout[i] == y.layout[j]]
    outs = [*[of_x[i] for i in xb], *free_x, *free_y]
    return by_letters(mesh, e, operands, [of_x, of_y], [outs], first=[*alike, *rows])


@partitions(conv_p)
def _conv(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Divided along the batch, and without groups along features; windows are whole."""
    lhs, rhs, out = e.params["dimension_numbers"]
    grouped = e.params["feature_group_count"] * e.params["batch_group_count"] > 1
    x, w = [untouched(v.aval.ndim, range(v.aval.ndim)) for v in operands]
    y = untouched(e.outs[0].aval.ndim, range(e.outs[0].aval.ndim))
    if e.params["batch_group_count"] == 1:
        x[lhs[0]] = y[out[0]] = "batch"
    if not grouped:
        x[lhs[1]] = w[rhs[1]] = "features"
        w[rhs[0]] = y[out[1]] = "results"
    alike = operands[0].layout[lhs[1]] == operands[1].layout[rhs[1]]
    first = ["features", "batch"] if alike else ["batch", "results"]
    return by_letters(mesh, e, operands, [x, w], [y], first=first)


@partitions(ragged_dot_p, ragged_contraction_p)
def _by_groups(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Divided along features and a batch of such products: which rows a group has is known of all
    rows alone."""
    _, y, sizes = [v.aval.ndim for v in operands]
    batch = ["batch"] * (sizes - 1)
    ins: list[Letters] = [[*batch, None, "k"], [*batch, None, "n"], [*batch, None]]
    if e.prim is ragged_contraction_p:
        return by_letters(mesh, e, operands, ins, [[*batch, None, "k", "n"]])
    matrix = ["n", "k"] if e.params["rhs_transposed"] else ["k", "n"]
    ins[1] = [*(batch if y > 3 else ()), None, *matrix]
    return by_letters(mesh, e, operands, ins, [[*batch, None, "n"]])


@partitions(cholesky_p, triangular_solve_p, solve_p, lu_p, qr_p, eigh_p, svd_p)
def _of_matrices(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """A matrix is whole; batches of them are divided."""
    lead = operands[0].aval.ndim - 2
    at = lambda x: untouched(x.aval.ndim, range(lead, x.aval.ndim))
    return by_letters(mesh, e, operands, list(map(at, operands)), list(map(at, e.outs)))
