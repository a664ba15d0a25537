"""The names of JAX's execution that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

global_result_handlers = stub("jax.interpreters.pxla.global_result_handlers")
