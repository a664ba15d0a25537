"""The names of `jax.api_util` that libraries import."""

from __future__ import annotations

from genesis_fn.as_jax.stubs import stub

debug_info = stub("jax.api_util.debug_info")
flatten_fun = stub("jax.api_util.flatten_fun", "jax.tree.flatten of what the function returns")
flatten_fun_nokwargs = stub("jax.api_util.flatten_fun_nokwargs", "jax.tree.flatten")
argnums_partial = stub("jax.api_util.argnums_partial", "functools.partial")
