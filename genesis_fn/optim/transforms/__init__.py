"""Transformations that chains are made of: scaling, clipping, masking, noise, and wrappers."""
