"""Functions with derivative or batching rules, kernels or host code of the user's."""
