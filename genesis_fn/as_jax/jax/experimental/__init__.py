"""JAX's experimental names."""

from __future__ import annotations

from genesis_fn.transforms.custom.callback import io_callback as io_callback
