"""The simplifier of programs."""
