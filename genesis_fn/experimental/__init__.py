"""What JAX keeps under `jax.experimental`."""

from genesis_fn.experimental import checkify as checkify, ode as ode
