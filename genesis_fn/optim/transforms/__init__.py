"""Transformations of gradients, and transformations of transformations."""
