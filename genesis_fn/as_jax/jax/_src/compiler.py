"""What libraries import of XLA's door."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

backend_compile = stub("jax._src.compiler.backend_compile", "jax.jit(f).lower(*args).compile()")
compile_or_get_cached = stub("jax._src.compiler.compile_or_get_cached")
