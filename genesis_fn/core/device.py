"""Devices, and the registry in which a device finds the backend that runs programs on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from genesis_fn.core.configuration import config, environment
from genesis_fn.core.errors import BackendError
from genesis_fn.core.sharding.world import world

if TYPE_CHECKING:
    from genesis_fn.core.backend.backend import Backend


class Device:
    """Where arrays live: `cpu(0)`, `cuda(1)`. One object for each, compared by identity. `home` is
    where new arrays go beside one that is here: itself."""

    __slots__ = ("kind", "index", "sigs", "home")

    def __init__(self, kind: str, index: int) -> None:
        self.kind, self.index = kind, index
        self.sigs: dict[Any, Any] = {}
        self.home: Device = self  # no property: every jitted call asks for it

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})" if self.kind != "cpu" or self.index else "cpu()"

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (self.kind, self.index)

    @property
    def platform(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return self.kind

    @property
    def id(self) -> int:
        """The index among the devices of its kind, over all processes."""
        return world().rank if world().size > 1 else self.index

    @property
    def process_index(self) -> int:
        """The rank of the process that drives it."""
        return world().rank

    @property
    def backend(self) -> Backend:
        """The backend that runs programs here, loaded at first use."""
        return backend(self.kind)


class RemoteDevice(Device):
    """The device of another process: it has a place in meshes, and nothing runs on it from here."""

    __slots__ = ("rank",)

    def __init__(self, kind: str, rank: int) -> None:
        super().__init__(kind, rank)
        self.rank = rank

    def __repr__(self) -> str:
        return f"{self.kind} of process {self.rank}"

    def __reduce__(self) -> tuple[Any, ...]:
        return remote_device, (self.kind, self.rank)

    @property
    def id(self) -> int:
        return self.rank

    @property
    def process_index(self) -> int:
        return self.rank

    @property
    def backend(self) -> Backend:
        raise BackendError(
            f"{self} belongs to another process; this one is rank {world().rank} and runs programs "
            "on devices of its own: gf.local_devices()"
        )


_remote: dict[tuple[str, int], RemoteDevice] = {}


def remote_device(kind: str, rank: int) -> RemoteDevice:
    """The device of the process with this rank."""
    return _remote.setdefault((kind, rank), RemoteDevice(kind, rank))


_loaders: dict[str, Callable[[], Backend]] = {}
_backends: dict[str, Backend] = {}
_devices: dict[tuple[str, int], Device] = {}
_lock = threading.RLock()  # reentrant: `device` loads a backend while it holds the lock


def register_backend(kind: str, loader: Callable[[], Backend]) -> None:
    """Make devices of `kind` available; `loader` runs once, when the first of them is used.

    Raises BackendError where another backend of that kind is registered.
    """
    known = _loaders.get(kind)
    name = lambda f: (getattr(f, "__module__", f), getattr(f, "__qualname__", f))
    if known is not None and name(known) != name(loader):
        raise BackendError(f"there is a backend of devices {kind!r} already, by {known}")
    with _lock:
        # A cell of a notebook that runs again brings its class anew.
        _loaders[kind] = loader
        _backends.pop(kind, None)


def backend(kind: str) -> Backend:
    """The backend for a kind of device. Raises BackendError where it cannot be used."""
    found = _backends.get(kind)
    if found is None:
        with _lock:
            if kind not in _loaders:
                raise BackendError(f"no backend for {kind!r}; there are {sorted(_loaders)}")
            found = _backends.setdefault(kind, _loaders[kind]())
    return found


def device(kind: str, index: int = 0) -> Device:
    """The device of that kind and index. Raises BackendError if it is not there."""
    found = _devices.get((kind, index))
    if found is None:
        with _lock:
            count = backend(kind).device_count()
            if not 0 <= index < count:
                there = f"{kind}(0) to {kind}({count - 1})" if count > 1 else f"{kind}(0) alone"
                there = there if count else f"no {kind} device at all"
                raise BackendError(f"there is no {kind}({index}): this machine has {there}")
            # `setdefault`, as another thread may have made it since: identity is equality.
            found = _devices.setdefault((kind, index), Device(kind, index))
    return found


def used_devices() -> list[Device]:
    """The devices of this process that something asked for."""
    return [*_devices.values()]


def cpu(index: int = 0) -> Device:
    """The host."""
    return device("cpu", index)


def cuda(index: int = 0) -> Device:
    """An NVIDIA GPU."""
    return device("cuda", index)


def cuda_usable() -> bool:
    """Whether a GPU can be used: cuda-python is installed, and its driver finds a device."""
    try:
        return backend("cuda").device_count() > 0
    except (BackendError, ImportError):
        return False


def local_devices(kind: str | None = None) -> list[Device]:
    """The devices that this process drives, of `kind` or of the default kind: all that there are,
    but in a world of several processes one."""
    here = default_device()
    kind = {"gpu": "cuda"}.get(kind or here.kind, kind or here.kind)
    if world().size > 1:
        return [here if here.kind == kind else device(kind, 0)]
    return [device(kind, i) for i in range(backend(kind).device_count())]


def devices(kind: str | None = None) -> list[Device]:
    """All devices of `kind`, or of the default kind, in the order of the processes that drive
    them."""
    local, here = local_devices(kind), world()
    if here.size == 1:
        return local
    return [
        local[0] if r == here.rank else remote_device(local[0].kind, r) for r in range(here.size)
    ]


_default: Device | None = None


def default_device() -> Device:
    """Where new arrays go: the override, else `GENESIS_DEVICE`, else a usable GPU, else the CPU."""
    global _default
    chosen = config.current().default_device
    if chosen is not None:
        return chosen
    # Decided once: to ask whether a GPU can be used loads its backend.
    if _default is None:
        name = environment.text("GENESIS_DEVICE")
        if name:
            kind, _, index = name.partition(":")
            _default = device({"gpu": "cuda"}.get(kind, kind), int(index or 0))
        else:
            _default = cuda() if cuda_usable() else cpu()
    return _default


def decided_default() -> Device | None:
    """The default device, if something asked for it already."""
    return _default


def decide_default(chosen: Device) -> None:
    """Make `chosen` the default device of the process."""
    global _default
    _default = chosen


@contextlib.contextmanager
def using_device(where: Device) -> Generator[Device, None, None]:
    """Within the block, new arrays go to `where`."""
    with config.override(default_device=where):
        yield where
