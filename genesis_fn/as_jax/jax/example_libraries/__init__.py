"""JAX's small libraries."""
