"""Attention that is written out becomes the library's fused attention."""
