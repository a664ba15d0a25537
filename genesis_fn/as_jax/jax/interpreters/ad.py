"""The names of JAX's derivatives that libraries import."""

from __future__ import annotations

from typing import Any

from genesis_fn.as_jax.stubs import stub
from genesis_fn.core.aval import Aval

primitive_jvps: dict[Any, Any] = {}  # rules that libraries register; nothing reads them
primitive_transposes: dict[Any, Any] = {}
JVPTracer = stub("jax.interpreters.ad.JVPTracer")
UndefinedPrimal = stub("jax.interpreters.ad.UndefinedPrimal")
instantiate_zeros = stub("jax.interpreters.ad.instantiate_zeros")


class Zero:
    """A tangent that is zero."""

    def __init__(self, aval: Aval) -> None:
        self.aval = aval
