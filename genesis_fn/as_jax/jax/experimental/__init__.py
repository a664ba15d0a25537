"""JAX's experimental names."""

from __future__ import annotations

from genesis_fn.core.configuration.settings import SettingBlock, enable_x64 as enable_x64
from genesis_fn.transforms.custom.callback import io_callback as io_callback


def disable_x64() -> SettingBlock:
    """A block in which defaults are 32-bit."""
    return enable_x64(False)
