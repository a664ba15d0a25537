"""Which computations share a kernel."""
