"""Names of `jax.experimental.layout` that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

Format = stub("jax.experimental.layout.Format", "jax.NamedSharding; layouts are the library's")
Layout = stub("jax.experimental.layout.Layout", "nothing: layouts are the library's affair")
