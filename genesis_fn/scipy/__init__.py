"""SciPy's functions on arrays."""

from genesis_fn.scipy import linalg as linalg, special as special
