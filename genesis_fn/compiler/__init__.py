"""Target-free passes on programs."""
