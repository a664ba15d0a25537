"""Kernels of generated text."""

from __future__ import annotations

import functools

from genesis_fn.backends.cuda.compile import SourceKernel
from genesis_fn.kernels.expressions import MODULES, PRELUDE


@functools.lru_cache(maxsize=8192)
def kernel(name: str, parameters: str, body: str) -> SourceKernel:
    """The kernel of this text; equal texts are one kernel."""
    return SourceKernel(name, f"{PRELUDE}def {name}({parameters}):\n{body}", MODULES)


__all__ = ["kernel"]
