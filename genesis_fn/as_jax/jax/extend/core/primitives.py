"""The primitives that libraries have rules for."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

call_p = stub("jax.extend.core.primitives.call_p")
closed_call_p = stub("jax.extend.core.primitives.closed_call_p")
jit_p = stub("jax.extend.core.primitives.jit_p")
