"""Checkpoints of arrays over several hosts."""
