"""Fusion: which computations share a kernel, matrix products included."""
