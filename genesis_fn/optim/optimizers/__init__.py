"""Optimizers by name (`alias.py`), and the transformations that are particular to them."""
