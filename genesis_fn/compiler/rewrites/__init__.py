"""Rewrites of a program ahead of fusion: forms that fuse better, or that kernels compute faster."""
