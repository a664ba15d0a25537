"""Programs as bytes, which the library does not make."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

_INSTEAD = "jax.jit(f).lower(*args).compile(), in the process that runs it"

export = stub("jax.export.export", _INSTEAD)
deserialize = stub("jax.export.deserialize", _INSTEAD)
Exported = stub("jax.export.Exported", _INSTEAD)
symbolic_shape = stub("jax.export.symbolic_shape", "shapes of numbers")
symbolic_args_specs = stub("jax.export.symbolic_args_specs", "shapes of numbers")
is_symbolic_dim = stub("jax.export.is_symbolic_dim", "shapes of numbers")
