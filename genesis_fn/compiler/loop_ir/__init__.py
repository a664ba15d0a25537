"""The IR of generated kernels: instructions over loops, and changes of the loops."""
