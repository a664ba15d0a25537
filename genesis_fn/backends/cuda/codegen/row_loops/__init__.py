"""Kernels of loops whose rows do not wait for each other, or only for their team."""
