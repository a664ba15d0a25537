"""Kernels that hold a matrix of more rows than a warp has lanes in the registers of a program."""
