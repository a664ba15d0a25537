"""NVIDIA GPUs: their devices (`cuda(1)`, by calling this module), memory, streams and events.

A device argument is an index, a `Device`, "cuda:1", or None for the default GPU: the default device
if that is one, else the first. Sizes are in bytes. Nothing here imports torch.
"""

from __future__ import annotations

import sys
import types
from typing import Any, TypeAlias

from genesis_fn.core import device as devices
from genesis_fn.core.device import Device
from genesis_fn.core.errors import BackendError, OutOfMemoryError as OutOfMemoryError

_DeviceLike: TypeAlias = Device | int | str | None


def is_available() -> bool:
    """Whether a GPU can be used: Triton and cuda-python are installed, the driver finds a device.

    Returns:
        True or False.

    >>> gf.cuda.is_available() == (gf.cuda.device_count() > 0)
    True
    """
    return devices.cuda_usable()


def device_count() -> int:
    """How many GPUs can be used.

    Returns:
        Their number; 0 where the packages or the driver are missing.

    >>> gf.cuda.device_count() >= 0
    True
    """
    try:
        return devices.backend("cuda").device_count()
    except BackendError:
        return 0


def get_device_name(device: _DeviceLike = None) -> str:
    """The name of a GPU, as its driver gives it.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        The name, "NVIDIA H200".

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> name = gf.cuda.get_device_name() if gf.cuda.is_available() else "no GPU"
    """
    return _runtime(device).driver.info.name


def get_device_capability(device: _DeviceLike = None) -> tuple[int, int]:
    """The compute capability of a GPU.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        (major, minor): (9, 0) for Hopper.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> hopper = gf.cuda.is_available() and gf.cuda.get_device_capability() >= (9, 0)
    """
    major, minor = divmod(_runtime(device).driver.info.target.architecture, 10)
    return major, minor


def mem_get_info(device: _DeviceLike = None) -> tuple[int, int]:
    """The memory of a GPU that is free, counting all processes, and all that it has.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        (free, total) in bytes.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     free, total = gf.cuda.mem_get_info()
    ...     assert 0 < free <= total
    """
    return _runtime(device).driver.memory_info()


def memory_allocated(device: _DeviceLike = None) -> int:
    """The bytes that arrays and programs of this process use now.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        Bytes, each block rounded up to the allocator's sizes.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     assert gf.cuda.memory_allocated() <= gf.cuda.memory_reserved()
    """
    return int(memory_stats(device)["in_use"])


def max_memory_allocated(device: _DeviceLike = None) -> int:
    """The most bytes in use at one time, since the process began or since `reset_peak`.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        Bytes.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     assert gf.cuda.max_memory_allocated() >= gf.cuda.memory_allocated()
    """
    return int(memory_stats(device)["peak"])


def memory_reserved(device: _DeviceLike = None) -> int:
    """The bytes of the GPU's memory that this process holds, in use or cached for later arrays.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        Bytes; `empty_cache` gives the unused ones back.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> held = gf.cuda.memory_reserved() if gf.cuda.is_available() else 0
    """
    return int(memory_stats(device)["mapped"])


def memory_stats(device: _DeviceLike = None) -> dict[str, int | float]:
    """The counters of a GPU's allocator.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        A dict. In bytes: in_use, peak, requested (in_use before rounding), mapped, peak_mapped,
        cached (mapped and not in use), largest_free, limit. Counts: live_blocks, allocations, hits
        (served from a free list of their size), misses, retries (after memory ran short),
        driver_calls. fragmentation: the share of cached outside of the largest free run.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     stats = gf.cuda.memory_stats()
    ...     assert stats["allocations"] == stats["hits"] + stats["misses"]
    """
    from genesis_fn.backends.cuda.memory import report

    return report.memory_stats(_runtime(device).pool)


def memory_summary(device: _DeviceLike = None) -> str:
    """A table of `memory_stats`, and the lines of the program whose arrays take most.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        The table, as lines of text.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     print(gf.cuda.memory_summary())  # doctest: +SKIP
    memory of cuda:0 (NVIDIA H200, 139.80 GiB)
      in use                 1.00 KiB
      ...
    """
    from genesis_fn.backends.cuda.memory import report

    return report.memory_summary(_runtime(device).pool)


def memory_snapshot(device: _DeviceLike = None) -> list[dict[str, Any]]:
    """A map of the memory that this process holds, in address order.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        A list of {address, size, state, requested, site}. `state` is "live", "cached" (kept for
        blocks of its size), "free" or "spare" (too short for a block); `site` is the line that made
        a live block, or None.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> blocks = gf.cuda.memory_snapshot() if gf.cuda.is_available() else []
    >>> sum(b["size"] for b in blocks if b["state"] == "live") >= 0
    True
    """
    from genesis_fn.backends.cuda.memory import report

    return report.memory_snapshot(_runtime(device).pool)


def reset_peak(device: _DeviceLike = None) -> None:
    """Set the peaks that `max_memory_allocated` and `memory_stats` report to what is in use now.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     gf.cuda.reset_peak()
    """
    _runtime(device).pool.reset_peak()


def empty_cache(device: _DeviceLike = None) -> int:
    """Return the memory that is held and not in use to the GPU, for other processes.

    The plans of Fourier transforms that no program contains are forgotten, too, with what they
    hold.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        The bytes returned.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> returned = gf.cuda.empty_cache() if gf.cuda.is_available() else 0
    """
    from genesis_fn.backends.cuda import libraries

    runtime = _runtime(device)
    libraries.forget_plans()
    return runtime.pool.empty_cache()


def set_memory_fraction(fraction: float, device: _DeviceLike = None) -> None:
    """Limit the memory that this process may hold to a share of a GPU's.

    Args:
        fraction: the share, in (0, 1].
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Raises:
        ValueError: the fraction is not in (0, 1].
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     gf.cuda.set_memory_fraction(1.0)
    """
    _runtime(device).pool.set_memory_fraction(fraction)


def synchronize(device: _DeviceLike = None) -> None:
    """Wait for all work that is queued on a GPU, and raise the errors that it reported.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Raises:
        AssertionFailed, IndexOutOfRange, ...: what the queued programs found.
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     gf.cuda.synchronize()
    """
    _runtime(device).synchronize()


class Stream:
    """The stream that a GPU's operations are queued on; other libraries order their work by it."""

    def __init__(self, device: _DeviceLike = None) -> None:
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
        """An event that completes when the work queued so far has."""
        event = Event(self._driver.info.index, timing)
        event.record()
        return event

    def wait_event(self, event: Event) -> None:
        """Make work that is queued later wait for an event."""
        self._driver.wait(self._stream, event.handle)

    def synchronize(self) -> None:
        """Wait for the queued work."""
        self._driver.synchronize(self._stream)


def current_stream(device: _DeviceLike = None) -> Stream:
    """The stream that a GPU's operations are queued on, for other libraries to order themselves by.

    Args:
        device: an index, a `Device`, "cuda:1", or None for the default GPU.

    Returns:
        A `Stream`.

    Raises:
        BackendError: there is no such GPU, or none can be used.

    >>> if gf.cuda.is_available():
    ...     event = gf.cuda.current_stream().record_event(timing=True)
    ...     event.synchronize()
    """
    return Stream(device)


class Event:
    """A point in the work of a GPU's stream."""

    def __init__(self, device: _DeviceLike = None, timing: bool = True) -> None:
        self._driver = _runtime(device).driver
        self.handle = self._driver.new_event(timing)

    def record(self) -> None:
        """Make the event complete when the work queued so far has."""
        self._driver.record(self.handle, self._driver.compute)

    def query(self) -> bool:
        """Whether the event is complete."""
        return self._driver.done(self.handle)

    def synchronize(self) -> None:
        """Wait until the event is complete."""
        self._driver.wait_host(self.handle)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`, both complete and recorded with timing."""
        return self._driver.elapsed(self.handle, end.handle)

    def __del__(self) -> None:
        event = getattr(self, "handle", None)
        if event is not None:
            self._driver.destroy_event(event)


def _runtime(device: _DeviceLike) -> Any:
    if device is None:
        chosen = devices.default_device()
        device = chosen.index if chosen.kind == "cuda" else 0
    elif isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind not in ("cuda", "gpu") or not (number.isdecimal() or device == kind):
            raise BackendError(f"{device!r} is not a GPU: write 'cuda:0', or the index 0")
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
