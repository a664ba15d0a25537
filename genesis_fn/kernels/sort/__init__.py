"""Sorting and selection of the largest."""
