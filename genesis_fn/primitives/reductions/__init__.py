"""Reductions over axes, windows and prefixes."""
