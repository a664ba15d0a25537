"""`generate` and `sample` by their older path; they stand in `models.generation`."""

from genesis_fn.models.generation.generating import generate
from genesis_fn.models.generation.sampling import nucleus as _nucleus, sample

__all__ = ["_nucleus", "generate", "sample"]
