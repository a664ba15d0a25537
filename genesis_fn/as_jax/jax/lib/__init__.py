"""JAX's old door to XLA."""

from __future__ import annotations

from jax.version import __version__ as __version__
