"""Optimizer states and trees: arithmetic, access, description."""
