"""Debugging programs while they run: printing, callbacks, breakpoints, checks."""

from genesis_fn.core.configuration import settings as _settings
from genesis_fn.core.configuration.settings import check_keys as check_keys
from genesis_fn.transforms.custom import callback as _callback
from genesis_fn.transforms.debugging.assertions import assert_ as assert_
from genesis_fn.transforms.debugging.breakpoints import breakpoint as breakpoint
from genesis_fn.transforms.debugging.nan_tracing import nan_trace as nan_trace
from genesis_fn.transforms.debugging.shardings import (
    inspect_array_sharding as inspect_array_sharding,
    visualize_array_sharding as visualize_array_sharding,
    visualize_sharding as visualize_sharding,
)

check = assert_
infs, nans = _settings.debug_infs, _settings.debug_nans
callback, log, print = _callback.debug_callback, _callback.debug_log, _callback.debug_print
