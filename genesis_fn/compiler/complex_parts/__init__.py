"""Programs on complex numbers as programs on their parts; `represent` has the pass."""
