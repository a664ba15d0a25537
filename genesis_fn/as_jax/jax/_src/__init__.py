"""JAX's internals, of which libraries import names."""
