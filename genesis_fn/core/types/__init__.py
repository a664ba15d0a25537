"""Data types beyond the plain ones: random keys, and the scalar types."""
