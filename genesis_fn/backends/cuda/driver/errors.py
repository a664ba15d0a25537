"""The errors of the CUDA runtime."""

from __future__ import annotations

from collections.abc import Sequence

from genesis_fn.core import errors


class CudaError(errors.BackendError):
    """A driver call failed: `operation` names it, `code` is the driver's name for the reason."""

    def __init__(self, operation: str, code: str, detail: str = "") -> None:
        super().__init__(f"{operation} failed: {code}" + (f" ({detail})" if detail else ""))
        self.operation = operation
        self.code = code


class DeviceMemoryExhausted(CudaError):
    """The device has no physical memory left for a request. The allocator handles it."""


class ForkedProcessError(errors.BackendError):
    """CUDA was initialised before this process was forked, and cannot be used in the child."""

    def __init__(self) -> None:
        super().__init__(
            "CUDA was in use before this process was forked, and its state does not survive a "
            'fork: start workers with the "spawn" method, or fork before the first use of a GPU'
        )


class OutOfMemory(errors.OutOfMemoryError):
    """A device cannot hold one more block; every figure is in bytes.

    `sites` lists (bytes, blocks, site) of the largest live holders, largest first.
    """

    def __init__(
        self,
        *,
        device: int,
        requested: int,
        in_use: int,
        cached: int,
        largest_free: int,
        mapped: int,
        limit: int,
        free_on_device: int,
        sites: Sequence[tuple[int, int, str]] = (),
    ) -> None:
        self.device = device
        self.requested = requested
        self.in_use = in_use
        self.cached = cached
        self.largest_free = largest_free
        self.mapped = mapped
        self.limit = limit
        self.free_on_device = free_on_device
        self.sites = tuple(sites)
        text = (
            f"out of memory on cuda:{device}: {size_text(requested)} requested, "
            f"{size_text(in_use)} in use, {size_text(cached)} cached (largest free block "
            f"{size_text(largest_free)}), {size_text(mapped)} mapped of a limit of "
            f"{size_text(limit)}, {size_text(free_on_device)} free on the device"
        )
        if self.sites:
            held = "; ".join(f"{size_text(b)} in {n} from {site}" for b, n, site in self.sites)
            text += f"\n  largest holders: {held}"
        text += (
            "\n  free arrays, use smaller batches or checkpoint; genesis_fn.cuda.memory_summary() "
            "shows all"
        )
        super().__init__(text)


def size_text(count: int) -> str:
    """`count` bytes as people read them, e.g. "1.50 GiB"."""
    if count < 1024:
        return f"{count} B"
    value, units = float(count), ("KiB", "MiB", "GiB", "TiB")
    for unit in units:
        value /= 1024
        if value < 1024 or unit == units[-1]:
            return f"{value:.2f} {unit}"
    raise AssertionError("unreachable")
