"""References to arrays that change, which the library does not have."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

AbstractRef = stub("jax._src.state.types.AbstractRef", "values that a function returns")
