"""The names of JAX's partial evaluation that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_NAME = "jax.interpreters.partial_eval"
PartialVal = stub(f"{_NAME}.PartialVal")
trace_to_jaxpr_nounits = stub(f"{_NAME}.trace_to_jaxpr_nounits", "jax.make_jaxpr")
