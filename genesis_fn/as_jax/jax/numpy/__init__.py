"""Names of `jax.numpy` that only stand there."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

int2, int4 = (stub(f"jax.numpy.{name}", "jax.numpy.int8") for name in ("int2", "int4"))
uint2, uint4 = (stub(f"jax.numpy.{name}", "jax.numpy.uint8") for name in ("uint2", "uint4"))
