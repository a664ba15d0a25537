"""Layers, a family in each module."""
