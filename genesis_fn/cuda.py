"""GPUs. The namespace makes the devices: `cuda(1)`; beside it are memory, streams and events.

A device is an index, a `Device` or None for the default one (the first GPU unless the default
device is another). Figures are in bytes; nothing here imports torch.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from genesis_fn.core import device as devices
from genesis_fn.core.device import Device
from genesis_fn.core.errors import BackendError, OutOfMemoryError as OutOfMemoryError


def is_available() -> bool:
    """Whether a GPU can be used: the packages are there, and the driver finds a device."""
    return devices.cuda_usable()


def device_count() -> int:
    """How many GPUs can be used; 0 where none can."""
    try:
        return devices.backend("cuda").device_count()
    except BackendError:
        return 0


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return _runtime(device).driver.info.name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU: (9, 0) for Hopper."""
    major, minor = divmod(_runtime(device).driver.info.target.architecture, 10)
    return major, minor


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of a GPU, over all processes."""
    return _runtime(device).driver.memory_info()


def memory_allocated(device: Any = None) -> int:
    """Bytes in use by arrays and programs."""
    return int(memory_stats(device)["in_use"])


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use at once since the start or `reset_peak`."""
    return int(memory_stats(device)["peak"])


def memory_reserved(device: Any = None) -> int:
    """Bytes of physical memory held, in use or cached."""
    return int(memory_stats(device)["mapped"])


def memory_stats(device: Any = None) -> dict[str, int | float]:
    """The allocator's counters: in_use, peak, mapped, cached, hits, retries, fragmentation, ..."""
    from genesis_fn.backends.cuda.memory import report

    return report.memory_stats(_runtime(device).pool)


def memory_summary(device: Any = None) -> str:
    """The counters and the largest holders, with the lines that made them, as a table."""
    from genesis_fn.backends.cuda.memory import report

    return report.memory_summary(_runtime(device).pool)


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """Every part of the mapped memory in address order: {address, size, state, requested, site}."""
    from genesis_fn.backends.cuda.memory import report

    return report.memory_snapshot(_runtime(device).pool)


def reset_peak(device: Any = None) -> None:
    """Makes the peaks start from what is in use now."""
    _runtime(device).pool.reset_peak()


def empty_cache(device: Any = None) -> int:
    """Returns unused memory to the GPU; the result is the number of bytes returned."""
    return _runtime(device).pool.empty_cache()


def set_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits what the library may hold to a share, in (0, 1], of a GPU's memory."""
    _runtime(device).pool.set_memory_fraction(fraction)


def synchronize(device: Any = None) -> None:
    """Waits for all queued work, and raises what it reported."""
    _runtime(device).synchronize()


class Stream:
    """The stream that a GPU's operations are queued on; others order themselves by it."""

    def __init__(self, device: Any = None) -> None:
        self._driver = _runtime(device).driver
        self._stream = self._driver.compute

    @property
    def handle(self) -> int:
        """The stream's address, as other libraries take it."""
        return self._driver.stream_handle(self._stream)

    @property
    def __cuda_stream__(self) -> tuple[int, int]:
        """(protocol version, address), as cuda-python takes it."""
        return 0, self.handle

    def record_event(self, timing: bool = False) -> Event:
        """An event that is complete when the work queued so far is."""
        event = Event(self._driver.info.index, timing)
        event.record()
        return event

    def wait_event(self, event: Event) -> None:
        """Makes later work wait for an event."""
        self._driver.wait(self._stream, event._event)

    def synchronize(self) -> None:
        """Waits for the queued work."""
        self._driver.synchronize(self._stream)


def current_stream(device: Any = None) -> Stream:
    """The stream that a GPU's operations are queued on."""
    return Stream(device)


class Event:
    """A point in the work of a GPU's stream."""

    def __init__(self, device: Any = None, timing: bool = True) -> None:
        self._driver = _runtime(device).driver
        self._event = self._driver.new_event(timing)

    def record(self) -> None:
        """Makes the event complete when the work queued so far is."""
        self._driver.record(self._event, self._driver.compute)

    def query(self) -> bool:
        """Whether the event is complete."""
        return self._driver.done(self._event)

    def synchronize(self) -> None:
        """Waits for the event."""
        self._driver.wait_host(self._event)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`, both complete and recorded with timing."""
        return self._driver.elapsed(self._event, end._event)

    def __del__(self) -> None:
        event = getattr(self, "_event", None)
        if event is not None:
            self._driver.destroy_event(event)


def _runtime(device: Any) -> Any:
    if device is None:
        chosen = devices.default_device()
        device = chosen.index if chosen.kind == "cuda" else 0
    elif isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind not in ("cuda", "gpu"):
            raise BackendError(f"{device!r} is not a GPU")
        device = int(number or 0)
    elif isinstance(device, Device):
        if device.kind != "cuda":
            raise BackendError(f"{device} is not a GPU")
        device = device.index
    devices.cuda(device)  # says clearly what is missing
    from genesis_fn.backends.cuda.run.runtime import device_runtime

    return device_runtime(device)


class _Callable(types.ModuleType):
    """`genesis_fn.cuda(1)` is the second GPU."""

    __call__ = staticmethod(devices.cuda)


sys.modules[__name__].__class__ = _Callable
