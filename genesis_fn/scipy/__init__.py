"""SciPy's special functions on arrays."""

from genesis_fn.scipy import special as special
