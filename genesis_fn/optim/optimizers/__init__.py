"""Optimizers by name, and the transformations that they are known for."""
