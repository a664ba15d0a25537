"""Matrix products."""

from __future__ import annotations

from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.layout import parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.transforms.sharding.partition import Placed, moved, partitions, placed


@partitions(dot_general_p)
def _dot(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    """Batch and contracted dimensions must be divided alike in both operands; sums over the parts
    of a contracted dimension are added up."""
    x, y = operands
    (xc, yc), (xb, yb) = e.params["dimension_numbers"]
    x_layout, y_layout = list(x.layout), list(y.layout)
    for i, j in (*zip(xb, yb), *zip(xc, yc)):
        # The operand whose dimension is divided by more decides; the other one is divided so too.
        axes = max(x_layout[i], y_layout[j], key=lambda a: parts(mesh, a) if a else 0)
        taken = {n for k, at in enumerate(y_layout) if k != j for n in at}
        taken |= {n for k, at in enumerate(x_layout) if k != i for n in at}
        x_layout[i] = y_layout[j] = () if taken & set(axes) else axes
    x_free = [i for i in range(x.aval.ndim) if i not in (*xc, *xb)]
    y_free = [i for i in range(y.aval.ndim) if i not in (*yc, *yb)]
    used = {n for i in x_free for n in x_layout[i]}
    for j in y_free:  # an axis divides one dimension of the result
        if used & set(y_layout[j]):
            y_layout[j] = ()
    x, y = moved(x, mesh, tuple(x_layout)), moved(y, mesh, tuple(y_layout))
    part = bind(e.prim, x.part, y.part, **e.params)
    due = tuple([n for i in xc for n in x_layout[i]])
    layout = [x_layout[i] for i in (*xb, *x_free)] + [y_layout[j] for j in y_free]
    return placed(part, e, [tuple(layout)], due)
