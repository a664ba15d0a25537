"""Which mesh a program, or an operation, refers to."""

from __future__ import annotations

from typing import Any

from genesis_fn.core import primitive
from genesis_fn.core.jaxpr import Jaxpr, jaxprs_in
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.sharding.mesh import Mesh

_FOUND = "mesh"  # the key of the answer in a program's cache


def mesh_of(jaxpr: Jaxpr) -> Mesh | None:
    """The mesh that a program refers to, if it does."""
    if _FOUND not in jaxpr.cache:
        found = (mesh_in(e.params) for e in jaxpr.eqns)
        jaxpr.cache[_FOUND] = next((m for m in found if m is not None), None)
    return jaxpr.cache[_FOUND]


def mesh_in(params: dict[str, Any]) -> Mesh | None:
    """The mesh that an operation with these parameters refers to, if it does."""
    for value in params.values():
        if type(value) is Mesh:
            return value
        if type(value) is NamedSharding:
            return value.mesh
    found = (mesh_of(j) for j in jaxprs_in(params))
    return next((m for m in found if m is not None), None)


primitive.mesh_in = mesh_in
