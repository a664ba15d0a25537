"""scipy.optimize: minima of functions."""

from genesis_fn.scipy.optimize.minimization import (
    OptimizeResults as OptimizeResults,
    minimize as minimize,
)
