"""Passes on programs that no backend is needed for; GPUs are arguments (`target`)."""
