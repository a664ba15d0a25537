"""Defects that the library once had, each with a test named after its number."""
