"""Assertions, breakpoints and the origin of NaN in programs, while they run."""
