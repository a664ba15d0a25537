"""What libraries import of JAX's trees."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_registry = stub("jax._src.tree_util._registry", "jax.tree_util.register_pytree_node")
