"""Loops and branches as primitives that hold programs."""
