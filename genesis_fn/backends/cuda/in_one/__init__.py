"""Kernels of a few operations that are called without jit, for all sizes of a rank."""
