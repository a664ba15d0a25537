"""Functions that are one operation with kernels of their own."""
