"""Derivatives: linearize, transpose, grad and its relatives, checkpoint."""
