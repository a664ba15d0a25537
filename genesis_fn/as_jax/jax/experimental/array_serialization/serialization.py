"""Names of JAX's checkpoints that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_NAME = "jax.experimental.array_serialization.serialization"
GlobalAsyncCheckpointManager = stub(f"{_NAME}.GlobalAsyncCheckpointManager", "genesis_fn.io")
get_tensorstore_spec = stub(f"{_NAME}.get_tensorstore_spec", "genesis_fn.io")
async_deserialize = stub(f"{_NAME}.async_deserialize", "genesis_fn.io")
async_serialize = stub(f"{_NAME}.async_serialize", "genesis_fn.io")
