"""Names of `jax.lax` that libraries import, over those of the library."""

from __future__ import annotations

from genesis_fn.primitives import stop_gradient_p as stop_gradient_p
