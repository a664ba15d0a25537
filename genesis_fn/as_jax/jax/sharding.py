"""Names of `jax.sharding` that libraries import, over those of the library."""

from __future__ import annotations

import enum

from genesis_fn.as_jax.placement import AbstractMesh as AbstractMesh
from genesis_fn.as_jax.stubs import stub

AbstractDevice = stub("jax.sharding.AbstractDevice")
auto_axes = stub("jax.sharding.auto_axes", "jax.sharding.reshard or with_sharding_constraint")
explicit_axes = stub("jax.sharding.explicit_axes", "jax.sharding.reshard")
use_abstract_mesh = stub("jax.sharding.use_abstract_mesh", "jax.set_mesh")
PmapSharding = stub("jax.sharding.PmapSharding", "jax.NamedSharding")
GSPMDSharding = stub("jax.sharding.GSPMDSharding", "jax.NamedSharding")
PositionalSharding = stub("jax.sharding.PositionalSharding", "jax.NamedSharding")
UnspecifiedValue = stub("jax.sharding.UnspecifiedValue")


class AxisType(enum.Enum):
    """Who places values along an axis of a mesh: here always the partitioner, `Auto`."""

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()


def get_abstract_mesh() -> AbstractMesh:
    """The mesh without axes: types of arrays do not carry placements here."""
    return AbstractMesh()


get_mesh = get_abstract_mesh
