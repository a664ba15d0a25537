"""The same program with less in it."""
