"""The memory that there is."""

from __future__ import annotations

import math
import os

from genesis_fn import cuda
from genesis_fn.core.device import default_device


def available() -> float:
    """The bytes that the device can give: of a computer those that are free or can be freed, of a
    GPU all, as what is free there may be held by this process; infinite where nothing says it."""
    device = default_device()
    if device.kind == "cuda":
        return cuda.mem_get_info(device)[1]
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            for line in f:
                name, _, value = line.partition(":")
                if name == "MemAvailable":
                    return int(value.split()[0]) << 10
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return math.inf
