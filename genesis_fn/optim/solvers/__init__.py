"""Iterations that solve: eigenvalues, roots of matrices, least squares."""
