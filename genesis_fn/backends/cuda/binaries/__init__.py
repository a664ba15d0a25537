"""Launches compiled to binaries, in parallel and once."""
