"""Looking into programs while they run."""

from genesis_fn.core.configuration.settings import check_keys as check_keys
from genesis_fn.transforms.debugging.breakpoints import breakpoint as breakpoint
from genesis_fn.transforms.debugging.nan_trace import nan_trace as nan_trace
