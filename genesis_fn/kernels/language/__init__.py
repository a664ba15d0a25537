"""Device functions that kernels share, compiled and interpreted, and generated kernel source."""
