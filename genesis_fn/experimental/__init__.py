"""What JAX keeps under `jax.experimental`."""

from genesis_fn.experimental import ode as ode
