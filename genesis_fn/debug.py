"""Looking into programs while they run."""

from genesis_fn.core.configuration.settings import (
    check_keys,
    debug_infs as infs,
    debug_nans as nans,
)
from genesis_fn.transforms.custom.callback import debug_callback as callback, debug_print as print
from genesis_fn.transforms.debugging.assertions import assert_, assert_ as check
from genesis_fn.transforms.debugging.breakpoints import breakpoint
from genesis_fn.transforms.debugging.nan_trace import nan_trace

__all__ = [
    "assert_", "breakpoint", "callback", "check", "check_keys", "infs", "nan_trace", "nans",
    "print",
]  # fmt: skip
