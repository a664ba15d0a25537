"""Functions with rules, kernels or host code of the user's."""
