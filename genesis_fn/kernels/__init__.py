"""Kernels of the CUDA backend, and the plans that launch them."""
