"""What JAX has under jax.experimental: interfaces that may change."""
