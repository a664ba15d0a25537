"""SciPy's functions on arrays."""

from genesis_fn.scipy import linalg as linalg, special as special
"""SciPy's special functions and distributions on arrays."""
from genesis_fn.scipy import special as special, stats as stats
