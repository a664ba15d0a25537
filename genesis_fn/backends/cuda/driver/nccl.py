"""Communication between GPUs: NVIDIA's NCCL through its own bindings, the package nccl4py.

The communicator of the whole world is made from an identifier that the first process leaves in the
world's store. Communicators of groups are split from it: all processes split together, each into
its group. Groups that leave processes out have an identifier of their own.

Messages have communicators of their own. Before 2.29, NCCL does not tell the GPU where a
neighbour's memory is that messages have registered first: a collective that reads or writes it
then ends with an illegal address (its issue 1859).

NCCL has neighbours write straight into memory that is registered, a piece of physical memory at a
time. By itself it registers what a graph uses, but neither what reaches from one piece into the
next nor what it cannot export, as another library's memory; and processes wait for each other for
ever where that is so on one side of an exchange alone. Nor does it see that other memory is mapped
at an address: a graph that was captured before writes to memory that is gone. So it is told to
leave that alone, and what is registered stays so (docs/experiments.md, "Kernels beside
communication").

Nothing here is loaded before the first collective of a program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from genesis_fn.backends.cuda.driver.communication import (
    AllGather,
    AllReduce,
    AllToAll,
    Communication,
    Permute,
    ReduceScatter,
)
from genesis_fn.core.errors import BackendError, DistributedError
from genesis_fn.core.sharding.world import NEWS, arrive, world

_DTYPES = {
    "i8": "Int8", "u8": "Uint8", "i32": "Int32", "u32": "Uint32", "i64": "Int64", "u64": "Uint64",
    "fp32": "Float32", "fp64": "Float64",
}  # fmt: skip
_REDUCTIONS = {"sum": "Sum", "maximum": "Max", "minimum": "Min"}
_BYTES = 1  # ncclUint8
_PER_FUNCTION = 22400  # the first version whose NCCL_ALGO may name functions


@dataclass(frozen=True, slots=True)
class Communicator:
    """NCCL's handle of a group, the number of its members, and the addresses of the pieces of
    memory that they may write to."""

    handle: Any
    size: int
    pieces: set[int] = field(default_factory=set[int])


_made: dict[Any, Communicator] = {}
_lock = threading.Lock()


@functools.cache
def _library() -> Any:
    """NCCL's functions. Raises BackendError where nccl4py or the library is missing."""
    try:
        from nccl.bindings import nccl  # pyright: ignore[reportAttributeAccessIssue]

        version = nccl.get_version()
    except Exception as error:  # the bindings raise several types where the library is missing
        raise BackendError(
            f"collectives between GPUs need NCCL and its bindings ({type(error).__name__}: {error})"
            "\n  pip install genesis-fn[distributed], with the nvidia-nccl-cu12 or -cu13 of torch"
        ) from error
    # A ring adds in the same order in every run; what else NCCL would choose may not. It reads the
    # variable when it makes the first communicator.
    ring = "allreduce:ring;reducescatter:ring" if version >= _PER_FUNCTION else "Ring"
    os.environ.setdefault("NCCL_ALGO", ring)
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    return nccl


@contextlib.contextmanager
def _named(what: str) -> Generator[Any]:
    """NCCL's functions; their errors say what they were doing."""
    nccl = _library()
    try:
        yield nccl
    except nccl.NCCLError as error:
        watch = world().watch
        lost = watch.lost(NEWS) if watch is not None else ""
        advice = (
            "look at its last messages"
            if lost
            else "NCCL_DEBUG=WARN in the environment has NCCL say why"
        )
        message = f"{what} failed: {lost or error}\n  {advice}"
        if watch is not None:
            watch.failing(message)
        raise DistributedError(message) from error


def communicator(groups: Sequence[tuple[int, ...]], messages: bool) -> Communicator:
    """The communicator of this process's group among `groups`, in the order of its ranks, for
    messages or for collectives. The first time, all processes in `groups` must ask for the same."""
    here = world()
    (mine,) = [g for g in groups if here.rank in g]
    everyone = tuple(range(here.size))
    complete = sorted([r for g in groups for r in g]) == list(everyone)
    # The key is the same on all processes that have to take part.
    key = frozenset(groups) if complete else mine, messages
    with _lock:
        found = _made.get(key)
        if found is None:
            if not complete or mine == everyone:
                found = _met(mine, messages)
            else:
                found = _split(groups, mine, messages)
            _made[key] = found
        return found


def _place(kind: str, groups: Sequence[tuple[int, ...]], messages: bool) -> str:
    """Where processes meet in the world's store."""
    ranks = ";".join([",".join(map(str, g)) for g in groups])
    return f"nccl/{kind}/{'messages' if messages else 'collectives'}/{ranks}"


def _met(ranks: tuple[int, ...], messages: bool) -> Communicator:
    """A communicator of processes that meet in the world's store."""
    position, where = ranks.index(world().rank), _place("identifier", [ranks], messages)
    with _named(f"meeting processes {list(ranks)}") as nccl:
        if position == 0:
            world().store.set(where, bytes(nccl.get_unique_id()).hex())
        # NCCL waits for ever for who does not come: all say first that they are there.
        _arrive(where, ranks)
        identifier = bytearray.fromhex(world().store.get(where).decode())
        handle = nccl.comm_init_rank_scalable(len(ranks), position, 1, identifier, 0)
        return Communicator(handle, len(ranks))


def _arrive(where: str, ranks: Sequence[int]) -> None:
    here = world()
    late = arrive(where, ranks)
    if not late:
        return
    message = (
        f"rank {here.rank} of {here.size} gave up on the first collective of ranks {list(ranks)}: "
        f"ranks {late} did not come to it within {here.timeout:g} s\n  every process must run the "
        "same program; one that is slower for a reason needs distributed.initialize(timeout=...)"
    )
    if here.watch is not None:
        here.watch.failing(message)
    raise DistributedError(message)


def _split(
    groups: Sequence[tuple[int, ...]], mine: tuple[int, ...], messages: bool
) -> Communicator:
    """This process's part of the world's communicator."""
    everyone = tuple(range(world().size))
    key = frozenset([everyone]), False
    whole = _made.get(key)
    if whole is None:
        whole = _made[key] = _met(everyone, False)
    where = _place("split", groups, messages)
    with _named(f"splitting processes into {list(groups)}") as nccl:
        _arrive(where, everyone)
        color, position = list(groups).index(mine), mine.index(world().rank)
        handle = nccl.comm_split(whole.handle, color, position, 0)
        return Communicator(handle, len(mine))


def register(group: Communicator, address: int, size: int) -> None:
    """Let the members of a group on this machine write to a piece of memory, from now on."""
    if address not in group.pieces:
        with _named("registering memory") as nccl:
            nccl.comm_register(group.handle, address, size)
        group.pieces.add(address)


def registered(address: int) -> bool:
    """Whether a piece of memory is registered with anybody."""
    return any([address in group.pieces for group in list(_made.values())])


@contextlib.contextmanager
def one_launch() -> Generator[None]:
    """Collectives within are enqueued at its end, as one launch."""
    with _named("a group of collectives") as nccl:
        nccl.group_start()
        try:
            yield
        finally:
            nccl.group_end()


def exchange(
    group: Communicator, communication: Communication, source: int, destination: int, stream: int
) -> None:
    """Enqueue an exchange of memory with the members of a group."""
    with _named(communication.name) as nccl:
        match communication:
            case AllReduce(count, dtype, reduction) | ReduceScatter(count, dtype, reduction):
                whole = type(communication) is AllReduce
                enqueue = nccl.all_reduce if whole else nccl.reduce_scatter
                kind = int(nccl.DataType[_DTYPES[dtype]])
                operation = int(nccl.RedOp[_REDUCTIONS[reduction]])
                enqueue(source, destination, count, kind, operation, group.handle, stream)
            case AllGather(size):
                nccl.all_gather(source, destination, size, _BYTES, group.handle, stream)
            case AllToAll(size):
                pieces = [(i, i * size) for i in range(group.size)]
                sends = [(i, source + at) for i, at in pieces]
                receives = [(i, destination + at) for i, at in pieces]
                _send_receive(nccl, group, sends, receives, size, stream)
            case Permute(size, receiver, sender):
                sends = [] if receiver is None else [(receiver, source)]
                receives = [] if sender is None else [(sender, destination)]
                if sends or receives:
                    _send_receive(nccl, group, sends, receives, size, stream)


def _send_receive(
    nccl: Any,
    group: Communicator,
    sends: Sequence[tuple[int, int]],
    receives: Sequence[tuple[int, int]],
    size: int,
    stream: int,
) -> None:
    """Messages of `size` bytes to and from members, as (member, address), all at once."""
    nccl.group_start()
    try:
        for peer, address in sends:
            nccl.send(address, size, _BYTES, peer, group.handle, stream)
        for peer, address in receives:
            nccl.recv(address, size, _BYTES, peer, group.handle, stream)
    finally:
        nccl.group_end()


# ---- for who watches over the processes ----


def failed() -> str | None:
    """What went wrong in a communicator since it was made, None if nothing did. Any thread may
    ask."""
    if not _made:
        return None
    nccl = _library()
    for group in list(_made.values()):
        code = nccl.comm_get_async_error(group.handle)
        if code not in (nccl.Result.Success, nccl.Result.InProgress):
            return f"NCCL: {nccl.get_error_string(int(code))}"
    return None
