"""Trees as one vector."""

from __future__ import annotations

from genesis_fn.flatten_util import ravel_pytree as ravel_pytree
