"""Dtypes of `jax.numpy` that only stand there."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_BYTES = ("int1", "int2", "int4", "uint1", "uint2", "uint4")
_FLOATS = (
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
globals().update({n: stub(f"jax.numpy.{n}", "jax.numpy.int8") for n in _BYTES})
globals().update({n: stub(f"jax.numpy.{n}", "jax.numpy.float8_e4m3fn") for n in _FLOATS})
