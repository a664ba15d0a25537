"""How this process joins the others, and leaves them."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from typing import Any

from genesis_fn.backends.cpu.process_groups import close_groups
from genesis_fn.core import device as devices
from genesis_fn.core.configuration import config, environment
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import ArgumentError, BackendError, DistributedError
from genesis_fn.core.sharding.world import World, enter_world, world
from genesis_fn.distributed.clusters import Place, find_place
from genesis_fn.distributed.facts import own_facts, several_cpu_devices
from genesis_fn.distributed.meeting import SharedStore, linger, meet, open_store, refuse
from genesis_fn.distributed.watch import WatchThread

_joined = False


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    timeout: float = 600.0,
    initialization_timeout: float = 300,
) -> None:
    """Have this process meet the others that compute with it; each drives one device.

    Call it once, first of all. Without arguments it reads what the launcher says: `torchrun` by
    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, Slurm's `srun` by its variables.
    Where neither started this process, it is a world of one, and the same program runs.

    Afterwards `devices()` are those of all processes. When a process is gone, all others end within
    30 seconds, with a message that names it, and a nonzero exit status.

    Args:
        coordinator_address: "host:port" of process 0, where all meet.
        num_processes: how many processes there are.
        process_id: which of them this is, from 0 on.
        local_device_ids: the GPU of this process, by its index on the machine; None for as many as
            the process's number on its machine.
        timeout: seconds in which processes wait for one that is late, in a collective or a barrier.
        initialization_timeout: seconds in which they wait for each other here.

    Raises:
        RuntimeError: it was called before, or arrays are on another GPU already.
        ArgumentError: an argument is missing, or the variables of a launcher are.
        DistributedError: processes did not come, or are of different versions or devices.
        BackendError: there is no GPU for this process.

    >>> gf.distributed.initialize()
    >>> gf.process_index(), gf.process_count()
    (0, 1)
    >>> gf.distributed.shutdown()
    """
    global _joined
    if _joined:
        raise RuntimeError(
            f"distributed.initialize was called before; this is process {world().rank} of "
            f"{world().size}\n  at {where().describe()}\n  call it once, at the beginning"
        )
    place = find_place(os.environ, coordinator_address, num_processes, process_id)
    if place.size == 1:
        enter_world(World(local_rank=place.local_rank or 0, timeout=timeout))
    else:
        _join(place, local_device_ids, timeout, initialization_timeout)
    _joined = True


def _join(
    place: Place, local_device_ids: int | Sequence[int] | None, timeout: float, patience: float
) -> None:
    store = open_store(place, patience)
    local_rank = place.local_rank
    try:
        problem = several_cpu_devices()
        if problem:
            raise DistributedError(f"initialize: {problem}")
        chosen = _device(local_rank or 0, local_device_ids)
    except Exception as error:
        # The others learn of it, instead of waiting.
        refuse(store, f"rank {place.rank} cannot take part: {error}")
        linger(store, place)
        raise
    own = own_facts(place.rank, chosen.kind, _identity(chosen), exports_memory(chosen))
    ranks = meet(store, place, own, patience)
    if local_rank is None:
        local_rank = sum(f.machine == own.machine for f in ranks[: place.rank])
    watch = WatchThread(place, ranks)
    devices.decide_default(chosen)
    shared = SharedStore(store, place, watch)
    direct = all([f.direct for f in ranks])
    enter_world(World(place.rank, place.size, local_rank, timeout, shared, watch, direct))
    watch.start()
    atexit.register(_leave, watch)


def _device(local_rank: int, local_device_ids: int | Sequence[int] | None) -> Device:
    """The device of this process: a GPU of its own, or the CPU."""
    asked = config.current().default_device
    name = asked.kind if asked else environment.text("GENESIS_DEVICE").partition(":")[0]
    kind = {"gpu": "cuda"}.get(name, name) or ("cuda" if devices.cuda_usable() else "cpu")
    if kind != "cuda":
        return devices.device(kind)
    count = devices.backend(kind).device_count()
    ids = [local_device_ids] if isinstance(local_device_ids, int) else [*(local_device_ids or ())]
    if len(ids) > 1:
        raise ArgumentError(
            f"initialize: local_device_ids={ids}; one process drives one GPU\n"
            f"  start {len(ids)} processes: torchrun --nproc-per-node {len(ids)}"
        )
    # A launcher that shows each process its own GPU shows one.
    index = ids[0] if ids else local_rank if count > 1 else 0
    if not 0 <= index < count:
        raise BackendError(
            f"initialize: process {local_rank} of this machine would take GPU {index}, and there "
            f"are {count}\n  start at most as many processes on a machine as it has GPUs: torchrun "
            "--nproc-per-node"
        )
    chosen, before = devices.device(kind, index), devices.decided_default()
    if before is not None and before.kind == kind and before is not chosen:
        raise RuntimeError(
            f"initialize: this process drives {chosen}, and {before} was in use before\n"
            f"  at {where().describe()}\n  call distributed.initialize() first of all"
        )
    return chosen


def _identity(chosen: Device) -> str:
    """What names a GPU on its machine, whatever index it has in this process."""
    if chosen.kind != "cuda" or environment.text("GENESIS_CUDA_DRIVER") == "interpret":
        return ""
    from cuda.bindings import driver as cu  # pyright: ignore[reportAttributeAccessIssue]

    _, handle = cu.cuDeviceGet(chosen.index)
    code, name = cu.cuDeviceGetUuid(handle)
    return bytes(name.bytes).hex() if code == cu.CUresult.CUDA_SUCCESS else str(chosen.index)


def exports_memory(chosen: Device) -> bool:
    """Whether others can map the memory of a GPU: a driver that is open already took it for this
    process alone, and some virtual GPUs export none."""
    driver: Any = sys.modules.get("genesis_fn.backends.cuda.driver.driver")
    if chosen.kind != "cuda" or (driver is not None and chosen.index in driver.opened):
        return False
    if environment.text("GENESIS_CUDA_DRIVER") == "interpret":
        return True
    from cuda.bindings import driver as cu  # pyright: ignore[reportAttributeAccessIssue]

    exports = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    _, handle = cu.cuDeviceGet(chosen.index)
    code, value = cu.cuDeviceGetAttribute(exports, handle)
    return code == cu.CUresult.CUDA_SUCCESS and bool(value)


def _leave(watch: WatchThread) -> None:
    """The end of the program."""
    lost = watch.stop()
    if lost:
        watch.leave(f"{lost}, before it had ended", 1)
    # Python's end frees what the GPU uses, for which it waits for what may never be over.
    if watch.reason and watch.computes():
        watch.leave("", watch.status)


def shutdown() -> None:
    """Leave the others; what follows computes in a world of one.

    Every process calls it when it needs the others no more; the end of a program does. Process 0,
    where it keeps the store that all meet in, waits for the others.

    Raises:
        DistributedError: another process was gone before it came here.

    >>> gf.distributed.shutdown()
    """
    global _joined
    watch = world().watch
    _joined = False
    close_groups()
    enter_world(World())
    if isinstance(watch, WatchThread):
        lost = watch.stop()
        atexit.unregister(_leave)
        if lost:
            raise DistributedError(f"shutdown: {lost}, before it had ended")


def is_initialized() -> bool:
    """Whether `initialize` was called, and `shutdown` was not.

    Returns:
        True or False.

    >>> gf.distributed.is_initialized()
    False
    """
    return _joined


def local_rank() -> int:
    """The number of this process among those of its machine.

    Returns:
        The number, from 0 on.

    >>> gf.distributed.local_rank()
    0
    """
    return world().local_rank
