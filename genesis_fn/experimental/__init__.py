"""What JAX has in jax.experimental: checks that give error values."""

from genesis_fn.experimental import checkify as checkify
