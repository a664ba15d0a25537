"""JAX's interface for extensions."""
