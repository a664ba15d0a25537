"""Gather, scatter and slices at positions that are values."""
