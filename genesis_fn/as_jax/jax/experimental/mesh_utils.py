"""Names of `jax.experimental.mesh_utils` that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

create_device_mesh = stub("jax.experimental.mesh_utils.create_device_mesh", "jax.make_mesh")
create_hybrid_device_mesh = stub(
    "jax.experimental.mesh_utils.create_hybrid_device_mesh", "jax.make_mesh"
)
