"""JAX's interpreters, of which libraries import names."""
