"""The driver interface: everything that the CUDA backend does with a device.

There are two implementations. `cuda.py` drives a GPU through cuda-python. `interpret.py` keeps
"device" memory on the host and runs kernels through Triton's interpreter, so that allocation,
planning and the order of launches are tested without a GPU. `drivers.py` chooses.

Addresses are plain integers everywhere. Streams, events, graphs, conditions and memory handles are
opaque to everything but their driver.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeAlias

from genesis_fn.backends.cuda.driver.communication import Communication
from genesis_fn.backends.cuda.driver.errors import ForkedProcessError
from genesis_fn.backends.cuda.libraries import PreparedRoutine
from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import Launch
from genesis_fn.kernels.routines import Routine

StreamHandle: TypeAlias = Any
EventHandle: TypeAlias = Any
GraphHandle: TypeAlias = Any
ConditionHandle: TypeAlias = Any
MemoryHandle: TypeAlias = Any
CommunicatorHandle: TypeAlias = Any

ConditionalKind: TypeAlias = Literal["while", "switch"]
PredicateMode: TypeAlias = Literal["flag", "index", "count"]

captures = threading.RLock()
"""Held by a thread while it captures, and while it calls libraries otherwise. A library's routine
may put streams of its own into a capture, on which the legacy stream waits: then whatever another
thread does on that one fails, as planning a transform does, and the capture with it."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device's properties: `granularity` is the unit of physical memory in bytes, `target` what
    programs are compiled for, `kind` the DLPack device type of its addresses, `shared` whether
    other processes may map its memory, a piece at a time."""

    index: int
    name: str
    total_memory: int
    granularity: int
    target: Target
    kind: int
    shared: bool = False


class PreparedLaunch(Protocol):
    """One launch: its kernel compiled and loaded, its parameter block packed.

    It is bound to addresses, then launched any number of times. The owner serialises binding and
    launching from several threads.
    """

    scratch_bytes: int

    def bind(
        self, addresses: Sequence[int], scratch: int = 0, within: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Sets the addresses of the plan's buffers (by buffer number) and of scratch memory. The
        kernel accesses the ranges `within` only, which a driver may check."""
        ...

    def enqueue(self, addresses: Sequence[int], stream: StreamHandle) -> None:
        """`bind` without scratch memory, and `launch`, at the least cost to the host."""
        ...

    def launch(self, stream: StreamHandle, early: bool = True) -> None:
        """Enqueues the kernel on a stream, or records it if the stream is capturing. A programmatic
        launch may start before its predecessor has ended, unless `early` is False."""
        ...


class Driver(Protocol):
    """One device. Every method may be called from any thread."""

    info: DeviceInfo
    compute: StreamHandle

    # Memory: addresses are reserved once, and physical memory is mapped behind parts of them.

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device, over all processes."""
        ...

    def reserve(self, size: int) -> int:
        """Reserves `size` bytes of addresses without memory behind them; their start."""
        ...

    def release(self, address: int, size: int) -> None:
        """Frees a reserved range, in which nothing may be mapped."""
        ...

    def create(self, size: int) -> MemoryHandle:
        """Allocates physical memory, in units of the granularity. Raises DeviceMemoryExhausted."""
        ...

    def destroy(self, handle: MemoryHandle) -> None:
        """Frees physical memory, which must be unmapped."""
        ...

    def map(self, address: int, size: int, handle: MemoryHandle) -> None:
        """Maps physical memory at reserved addresses, readable and writable."""
        ...

    def unmap(self, address: int, size: int) -> None:
        """Unmaps physical memory, which no queued work may still use."""
        ...

    def given(self, address: int) -> bool:
        """Whether other processes have mapped the piece of memory that begins at an address. It
        must stay where it is."""
        ...

    def pin(self, size: int) -> int:
        """Allocates page-locked host memory, which the device can copy to and from; its address."""
        ...

    def unpin(self, address: int) -> None:
        """Frees memory from `pin`."""
        ...

    # Work in stream order.

    def copy(self, destination: int, source: int, size: int, stream: StreamHandle) -> None:
        """Copies between any two of device, pinned and host memory."""
        ...

    def copy_several(self, copies: Sequence[tuple[int, int, int]], stream: StreamHandle) -> None:
        """Copies within device memory: (destination, source, bytes) of each, in no order."""
        ...

    def copy_peer(
        self, destination: int, source: int, size: int, peer: Self, stream: StreamHandle
    ) -> None:
        """Copies `size` bytes from this device to `destination` on `peer`."""
        ...

    def fill(self, address: int, byte: int, size: int, stream: StreamHandle) -> None:
        """Sets `size` bytes."""
        ...

    def fill_words(self, address: int, value: int, count: int, stream: StreamHandle) -> None:
        """Sets `count` int32 to `value`."""
        ...

    def new_stream(self, urgent: bool = False) -> StreamHandle:
        """A non-blocking stream: one that does not synchronise with the legacy default stream. What
        is on an `urgent` one gets processors that become free before what is on others."""
        ...

    def destroy_stream(self, stream: StreamHandle) -> None:
        """Destroys a stream once its work is done."""
        ...

    def stream_handle(self, stream: StreamHandle) -> int:
        """The stream as the integer that other libraries know it by."""
        ...

    def foreign_stream(self, handle: int) -> StreamHandle:
        """Another library's stream, from that integer, for `record` and `wait`."""
        ...

    def synchronize(self, stream: StreamHandle | None = None) -> None:
        """Blocks until the work of a stream (default: the compute stream) is done."""
        ...

    def new_event(self, timing: bool = False) -> EventHandle:
        """An event that has not been recorded."""
        ...

    def destroy_event(self, event: EventHandle) -> None:
        """Destroys an event."""
        ...

    def record(self, event: EventHandle, stream: StreamHandle) -> None:
        """Makes the event complete when the stream's work so far does."""
        ...

    def wait(self, stream: StreamHandle, event: EventHandle) -> None:
        """Makes the stream's later work wait for the event."""
        ...

    def done(self, event: EventHandle) -> bool:
        """Whether the event is complete."""
        ...

    def wait_host(self, event: EventHandle) -> None:
        """Blocks until the event is complete."""
        ...

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        """Milliseconds between two complete timing events."""
        ...

    # Kernels.

    def prepare(self, launches: Sequence[Launch]) -> Sequence[PreparedLaunch]:
        """Compiles the kernels of the launches in parallel, and loads them."""
        ...

    def routine(self, routine: Routine) -> PreparedRoutine:
        """A library's routine, ready to run here."""
        ...

    # Exchanges with other processes, in stream order. All processes of a group take part, in the
    # same order.

    def communicator(self, groups: Sequence[tuple[int, ...]], messages: bool) -> CommunicatorHandle:
        """What this process's group, by the ranks of its members in order, communicates through:
        by `messages`, or else by collectives. All processes in `groups` ask for it, and wait for
        each other the first time."""
        ...

    def one_launch(self) -> AbstractContextManager[object]:
        """Within it, collectives are gathered; they are enqueued at its end as one launch."""
        ...

    def exchange(
        self,
        communicator: CommunicatorHandle,
        communication: Communication,
        source: int,
        destination: int,
        stream: StreamHandle,
    ) -> None:
        """Enqueues an exchange, from the address of the operand to that of the result, each in one
        piece of this device's memory. All members take part, those too who send and receive
        nothing."""
        ...

    # Graphs: a capture records what is enqueued on a stream instead of running it.

    def begin_capture(self, stream: StreamHandle) -> None:
        """Starts recording what is enqueued on the stream."""
        ...

    def end_capture(self, stream: StreamHandle, urgency: bool = False) -> GraphHandle:
        """Ends the recording and instantiates it; `launch_graph` launches the result. With
        `urgency`, what was recorded on an urgent stream stays urgent."""
        ...

    def abandon_capture(self, stream: StreamHandle) -> None:
        """Ends a recording that failed, and discards it."""
        ...

    def launch_graph(self, graph: GraphHandle, stream: StreamHandle) -> None:
        """Enqueues a whole graph."""
        ...

    def destroy_graph(self, graph: GraphHandle) -> None:
        """Frees a graph that is not running."""
        ...

    def new_condition(self, stream: StreamHandle) -> ConditionHandle:
        """The condition of a future conditional node in the graph that the stream is capturing."""
        ...

    def set_condition(
        self,
        stream: StreamHandle,
        condition: ConditionHandle,
        address: int,
        mode: PredicateMode,
        limit: int,
        many: int = 1,
    ) -> None:
        """Records a kernel that sets the condition from device memory at `address`.

        "flag": byte at `address` is not zero. "index": the int32 there, clamped to [0, limit).
        "count": the int32 there, increased by `many`, is less than `limit`; the `many` - 1 behind
        it get the numbers that follow.
        """
        ...

    def add_conditional(
        self, stream: StreamHandle, condition: ConditionHandle, kind: ConditionalKind, branches: int
    ) -> list[StreamHandle]:
        """Records a conditional node; a capturing stream for each of its bodies."""
        ...

    def end_branch(self, stream: StreamHandle) -> None:
        """Ends the recording of one body."""
        ...


opened: dict[int, Driver] = {}
_forked = False


def check_fork() -> None:
    """Raises `ForkedProcessError` in a child of a process that had opened a device."""
    if _forked:
        raise ForkedProcessError


def _after_fork() -> None:
    # The child inherits the parent's handles, but a CUDA context does not survive a fork.
    global _forked
    _forked = bool(opened)


os.register_at_fork(after_in_child=_after_fork)
