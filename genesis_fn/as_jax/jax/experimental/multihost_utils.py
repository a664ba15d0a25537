"""Names of `jax.experimental.multihost_utils` that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_NAME = "jax.experimental.multihost_utils"
_INSTEAD = "genesis_fn.distributed"
sync_global_devices = stub(f"{_NAME}.sync_global_devices", _INSTEAD)
process_allgather = stub(f"{_NAME}.process_allgather", _INSTEAD)
broadcast_one_to_all = stub(f"{_NAME}.broadcast_one_to_all", _INSTEAD)
