"""Gather, scatter and dynamic slices."""
