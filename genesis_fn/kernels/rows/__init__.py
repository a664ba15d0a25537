"""Kernels over the rows of a matrix: norms, softmax, losses, scans, windows."""
