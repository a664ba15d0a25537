"""Elementwise functions, reductions, statistics and products."""
