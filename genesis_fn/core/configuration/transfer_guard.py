"""transfer_guard: what happens at copies between the host's memory and a device's, by JAX's levels.

"log" and "disallow" concern implicit copies: an ndarray that becomes an operand, `float(x)`,
printing. `device_put` and `device_get` make explicit ones; "log_explicit" and "disallow_explicit"
concern those too. Arrays on the CPU are in the host's memory: nothing is
copied between devices for them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.core.diagnostics.source_info import where

if TYPE_CHECKING:
    from genesis_fn.core.aval import Aval
    from genesis_fn.core.device import Device

log = logging.getLogger("genesis_fn")

LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")


class _Asked(threading.local):
    """How many `asked_for` blocks a thread is inside of."""

    depth = 0


_asked = _Asked()


class asked_for:
    """`with asked_for():` copies made inside are explicit ones."""

    __slots__ = ()

    def __enter__(self) -> None:
        _asked.depth += 1

    def __exit__(self, *exc: Any) -> None:
        _asked.depth -= 1


def check(direction: str, aval: Aval, device: Device) -> None:
    """Note a copy of an array in `direction`, to or from `device`, by the setting.

    Raises TransferError where it is disallowed.
    """
    settings = config.current()
    level = getattr(settings, f"transfer_guard_{direction}") or settings.transfer_guard
    if level == "allow" or (_asked.depth and not level.endswith("_explicit")):
        return
    how = "explicit" if _asked.depth else "implicit"
    words = direction.replace("_", "-")
    side = "from" if direction == "device_to_host" else "to"
    message = f"{how} {words} transfer of {aval} {side} {device}"
    if level.startswith("log"):
        log.warning("%s at %s", message, where(depth=4).describe())
        return
    fix = "device_get(x)" if direction == "device_to_host" else "device_put(x, device)"
    raise errors.TransferError(
        f"{message}, which transfer_guard {level!r} forbids\n  at {where(depth=4).describe()}\n"
        + (
            f"  ask for it by {fix}, or allow it by transfer_guard_{direction}('allow')"
            if how == "implicit"
            else f"  allow it by transfer_guard_{direction}('disallow') or ('allow')"
        )
    )
