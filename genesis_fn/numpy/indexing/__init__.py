"""Indexing, updates, and selection by positions and conditions."""
