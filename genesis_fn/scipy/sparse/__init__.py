"""scipy.sparse: systems of equations that are given by a function."""

from genesis_fn.scipy.sparse import linalg as linalg
