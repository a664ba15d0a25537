"""Names of `jax.custom_derivatives` that libraries import, over those of the library."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

custom_jvp_call_p = stub("jax.custom_derivatives.custom_jvp_call_p", "jax.custom_jvp")
custom_vjp_call_p = stub("jax.custom_derivatives.custom_vjp_call_p", "jax.custom_vjp")
