"""The interpreting driver: "device" memory on the host, kernels through Triton's interpreter.

To the rest of the backend it behaves like a device: memory is reserved, mapped and exhausted, work
is captured into graphs and replayed, and device memory decides conditional nodes. Work runs at
once, in the order in which it is enqueued. An access to addresses without memory raises the error
that a fault on a device is reported by.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.driver import bounds
from genesis_fn.backends.cuda.driver.communication import (
    AllGather,
    AllReduce,
    AllToAll,
    Communication,
    Permute,
    ReduceScatter,
    Reduction,
    memory_of,
)
from genesis_fn.backends.cuda.driver.driver import ConditionalKind, DeviceInfo, PredicateMode
from genesis_fn.backends.cuda.driver.errors import CudaError, DeviceMemoryExhausted
from genesis_fn.backends.cuda.driver.interpret_together import run_together
from genesis_fn.backends.cuda.libraries import PreparedRoutine
from genesis_fn.compiler.target import H200, Target
from genesis_fn.core.configuration import environment
from genesis_fn.core.sharding.world import world
from genesis_fn.kernels.language.dtypes import DTYPES
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.plan import Argument, BufferArg, Descriptor, Launch, Scalar
from genesis_fn.kernels.routines import Routine

if TYPE_CHECKING:
    from torch import Tensor

    from genesis_fn.backends.cpu.process_groups import ProcessGroup

_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13 on
_KERNEL_LOCK = threading.Lock()  # the interpreter patches Triton's language while it runs


def device_count() -> int:
    """`GENESIS_INTERPRET_DEVICES`, else 1."""
    return int(environment.text("GENESIS_INTERPRET_DEVICES") or 1)


class _Recording:
    """A captured graph: the work of its nodes, in order. `joined` are streams that a capture has
    spread to, by waiting for an event in it."""

    __slots__ = ("work", "joined")

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.joined: list[_Stream] = []

    def run(self) -> None:
        for work in self.work:
            work()


class _Stream:
    """Runs work at once, one item at a time, or appends it to a recording."""

    __slots__ = ("recording", "lock")

    def __init__(self) -> None:
        self.recording: _Recording | None = None
        self.lock = threading.RLock()  # re-entrant: a graph is one item, and launches kernels

    def enqueue(self, work: Callable[[], None]) -> None:
        if self.recording is None:
            with self.lock:
                work()
        else:
            self.recording.work.append(work)


class _Event:
    """The time at which it was recorded, in seconds of the host's clock, and the capture that it
    was recorded in."""

    __slots__ = ("time", "recording")

    def __init__(self) -> None:
        self.time = 0.0
        self.recording: _Recording | None = None


class _Condition:
    """The value that a conditional node reads."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class _InterpretedLaunch:
    """A launch whose arguments are tensors over device memory.

    Recordings refer to it weakly, so that replaying a graph whose module is unloaded fails here as
    it does on a device.
    """

    scratch_bytes = 0

    def __init__(self, driver: InterpretDriver, launch: Launch) -> None:
        self._driver = driver
        self._launch = launch
        self._function = _interpreted(launch.kernel)
        self._arguments: dict[str, Any] = {}
        self._within: Sequence[tuple[int, int]] = ()

    def bind(
        self, addresses: Sequence[int], scratch: int = 0, within: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._within = within
        self._arguments = {
            name: self._value(argument, addresses)
            for name, argument in self._launch.arguments.items()
        }

    def enqueue(self, addresses: Sequence[int], stream: _Stream) -> None:
        self.bind(addresses)
        self.launch(stream)

    def launch(self, stream: _Stream, early: bool = True) -> None:
        arguments, launch, function = self._arguments, self._launch, self._function
        loaded = weakref.ref(self)

        def run() -> None:
            if loaded() is None:
                raise CudaError(
                    "a launch", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "its code is unloaded"
                )
            if 0 not in launch.grid:
                with _KERNEL_LOCK, bounds.checked(repr(launch.kernel), self._within):
                    if launch.cooperative:
                        run_together(function, launch.grid, {**arguments, **launch.constants})
                    else:
                        function[launch.grid](**arguments, **launch.constants)

        stream.enqueue(run)

    def _value(self, argument: Argument, addresses: Sequence[int]) -> Any:
        if isinstance(argument, Scalar):
            return argument.value
        if isinstance(argument, BufferArg):
            return self._driver.tensor(addresses[argument.index] + argument.offset, argument.dtype)
        assert isinstance(argument, Descriptor)
        from triton.tools.tensor_descriptor import TensorDescriptor

        base = self._value(argument.buffer, addresses)
        shape, strides, block = argument.shape, argument.strides, argument.block
        return TensorDescriptor(base, list(shape), list(strides), list(block))


class InterpretDriver:
    """The driver interface over `total_memory` bytes of host memory, committed as it is used."""

    def __init__(
        self,
        index: int = 0,
        total_memory: int = 4 << 30,
        granularity: int = 2 << 20,
        target: Target = H200,
    ) -> None:
        self.info = DeviceInfo(
            index=index,
            name="Triton interpreter",
            total_memory=total_memory,
            granularity=granularity,
            target=replace(target, interpreted=True, libraries=True),
            kind=1,
            shared=world().direct,
        )
        self.compute = _Stream()
        self._given: set[int] = set()
        self._used = 0
        self._ranges: dict[int, mmap.mmap] = {}
        self._starts: list[int] = []
        self._mapped: dict[int, int] = {}
        self._mapped_starts: list[int] = []
        self._pinned: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._lock = threading.Lock()

    # Memory.

    def memory_info(self) -> tuple[int, int]:
        return self.info.total_memory - self._used, self.info.total_memory

    def reserve(self, size: int) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        area = mmap.mmap(-1, size, flags=flags)
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        with self._lock:
            self._ranges[start] = area
            insort(self._starts, start)
        return start

    def release(self, address: int, size: int) -> None:
        with self._lock:
            if any(address <= start < address + size for start in self._mapped):
                raise CudaError("release", "CUDA_ERROR_INVALID_VALUE", "memory is still mapped")
            del self._ranges[address]
            self._starts.remove(address)

    def create(self, size: int) -> int:
        if size <= 0 or size % self.info.granularity:
            raise CudaError("create", "CUDA_ERROR_INVALID_VALUE", f"{size} bytes")
        with self._lock:
            if self._used + size > self.info.total_memory:
                raise DeviceMemoryExhausted("create", "CUDA_ERROR_OUT_OF_MEMORY")
            self._used += size
        return size

    def destroy(self, handle: int) -> None:
        with self._lock:
            self._used -= handle

    def map(self, address: int, size: int, handle: int) -> None:
        with self._lock:
            area = self._area(address, size)
            if area is None or size != handle or address % self.info.granularity % 4096:
                raise CudaError("map", "CUDA_ERROR_INVALID_VALUE")
            index = bisect_right(self._mapped_starts, address + size - 1) - 1
            if index >= 0:
                start = self._mapped_starts[index]
                if start + self._mapped[start] > address:
                    raise CudaError("map", "CUDA_ERROR_ALREADY_MAPPED")
            self._mapped[address] = size
            insort(self._mapped_starts, address)

    def unmap(self, address: int, size: int) -> None:
        with self._lock:
            if self._mapped.get(address) != size:
                raise CudaError("unmap", "CUDA_ERROR_INVALID_VALUE")
            # On a GPU, others would go on writing to what was mapped here.
            if address in self._given:
                raise CudaError("unmap", "CUDA_ERROR_INVALID_VALUE", "other processes mapped it")
            del self._mapped[address]
            self._mapped_starts.remove(address)
            start = self._starts[bisect_right(self._starts, address) - 1]
            self._ranges[start].madvise(mmap.MADV_DONTNEED, address - start, size)

    def given(self, address: int) -> bool:
        return address in self._given

    def pin(self, size: int) -> int:
        block = (ctypes.c_char * max(size, 1))()
        address = ctypes.addressof(block)
        with self._lock:
            self._pinned[address] = block
        return address

    def unpin(self, address: int) -> None:
        with self._lock:
            del self._pinned[address]

    def tensor(self, address: int, dtype: str) -> Any:
        """A torch tensor of 16 bytes at a device address, which kernels use as a pointer."""
        import torch

        self._check(address, 1)
        kind = getattr(torch, DTYPES[dtype].name)
        if address % kind.itemsize:
            raise CudaError("launch", "CUDA_ERROR_MISALIGNED_ADDRESS", f"{address:#x} as {dtype}")
        raw = torch.frombuffer((ctypes.c_uint8 * 16).from_address(address), dtype=torch.uint8)
        return raw.view(kind)

    # Work in stream order.

    def copy(self, destination: int, source: int, size: int, stream: _Stream) -> None:
        def run() -> None:
            self._check(destination, size)
            self._check(source, size)
            ctypes.memmove(destination, source, size)

        stream.enqueue(run)

    def copy_several(self, copies: Sequence[tuple[int, int, int]], stream: _Stream) -> None:
        for destination, source, size in copies:
            self.copy(destination, source, size, stream)

    def copy_peer(
        self, destination: int, source: int, size: int, peer: InterpretDriver, stream: _Stream
    ) -> None:
        def run() -> None:
            self._check(source, size)
            peer._check(destination, size)
            ctypes.memmove(destination, source, size)

        stream.enqueue(run)

    def fill(self, address: int, byte: int, size: int, stream: _Stream) -> None:
        def run() -> None:
            self._check(address, size)
            ctypes.memset(address, byte, size)

        stream.enqueue(run)

    def fill_words(self, address: int, value: int, count: int, stream: _Stream) -> None:
        def run() -> None:
            self._check(address, 4 * count)
            (ctypes.c_int32 * count).from_address(address)[:] = [value] * count

        stream.enqueue(run)

    def new_stream(self, urgent: bool = False) -> _Stream:
        return _Stream()

    def destroy_stream(self, stream: _Stream) -> None:
        stream.recording = None

    def stream_handle(self, stream: _Stream) -> int:
        return id(stream)

    def foreign_stream(self, handle: int) -> _Stream:
        return _Stream()

    def synchronize(self, stream: _Stream | None = None) -> None:
        if stream is not None and stream.recording is not None:
            raise CudaError("synchronize", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    def new_event(self, timing: bool = False) -> _Event:
        return _Event()

    def destroy_event(self, event: _Event) -> None:
        event.time = 0.0

    def record(self, event: _Event, stream: _Stream) -> None:
        def run() -> None:
            event.time = time.perf_counter()

        event.recording = stream.recording
        stream.enqueue(run)

    def wait(self, stream: _Stream, event: _Event) -> None:
        if event.recording is not None and stream.recording is None:
            stream.recording = event.recording
            event.recording.joined.append(stream)

    def done(self, event: _Event) -> bool:
        return True

    def wait_host(self, event: _Event) -> None:
        return None

    def elapsed(self, start: _Event, end: _Event) -> float:
        return (end.time - start.time) * 1e3

    # Kernels.

    def prepare(self, launches: Sequence[Launch]) -> list[_InterpretedLaunch]:
        return [_InterpretedLaunch(self, launch) for launch in launches]

    def routine(self, routine: Routine) -> PreparedRoutine:
        from genesis_fn.backends.cuda.libraries import on_host

        return on_host.HostRoutine(routine)

    # Exchanges, through gloo: it moves bytes, and sums are made here.

    def communicator(self, groups: Sequence[tuple[int, ...]], messages: bool) -> ProcessGroup:
        from genesis_fn.backends.cpu.process_groups import group

        (mine,) = [g for g in groups if world().rank in g]
        return group(mine)

    def one_launch(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def exchange(
        self,
        communicator: ProcessGroup,
        communication: Communication,
        source: int,
        destination: int,
        stream: _Stream,
    ) -> None:
        if self.info.shared:
            for address, size in zip(
                (source, destination), memory_of(communication, communicator.size)
            ):
                self._give(address, size)
        stream.enqueue(lambda: self._exchange(communicator, communication, source, destination))

    def _give(self, address: int, size: int) -> None:
        """Note the piece of memory that other processes map. Raises CudaError where it is not one:
        on a GPU, the processes would wait for each other for ever."""
        if not size:
            return
        with self._lock:
            index = bisect_right(self._mapped_starts, address) - 1
            start = self._mapped_starts[index] if index >= 0 else 0
            if index < 0 or address + size > start + self._mapped[start]:
                raise CudaError("exchange", "CUDA_ERROR_INVALID_VALUE", "it is not in one piece")
            self._given.add(start)

    def _exchange(
        self, group: ProcessGroup, communication: Communication, source: int, destination: int
    ) -> None:
        name = communication.name
        match communication:
            case AllReduce(count, dtype, reduction):
                size = count * ITEMSIZE[dtype]
                parts = group.all_gather(self._bytes(source, size), name)
                self._bytes(destination, size).copy_(_reduced(parts, dtype, reduction))
            case ReduceScatter(count, dtype, reduction):
                size = count * ITEMSIZE[dtype]
                parts = group.all_to_all(self._rows(group, source, size), name)
                self._bytes(destination, size).copy_(_reduced(parts, dtype, reduction))
            case AllGather(size):
                parts = group.all_gather(self._bytes(source, size), name)
                self._rows(group, destination, size).copy_(parts)
            case AllToAll(size):
                parts = group.all_to_all(self._rows(group, source, size), name)
                self._rows(group, destination, size).copy_(parts)
            case Permute(size, receiver, sender):
                found = group.send(self._bytes(source, size), receiver, sender, name)
                if found is not None:
                    self._bytes(destination, size).copy_(found)

    def _bytes(self, address: int, size: int) -> Tensor:
        """Memory of the device as a tensor over it."""
        import torch

        self._check(address, size)
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def _rows(self, communicator: ProcessGroup, address: int, size: int) -> Tensor:
        """Memory with `size` bytes for each member of a group, as rows."""
        return self._bytes(address, communicator.size * size).view(communicator.size, size)

    # Graphs.

    def begin_capture(self, stream: _Stream) -> None:
        if stream.recording is not None:
            raise CudaError("begin_capture", "CUDA_ERROR_ILLEGAL_STATE", "already capturing")
        stream.recording = _Recording()

    def end_capture(self, stream: _Stream, urgency: bool = False) -> _Recording:
        if stream.recording is None:
            raise CudaError("end_capture", "CUDA_ERROR_ILLEGAL_STATE", "not capturing")
        graph = stream.recording
        self.abandon_capture(stream)
        return graph

    def abandon_capture(self, stream: _Stream) -> None:
        for other in stream.recording.joined if stream.recording is not None else ():
            other.recording = None
        stream.recording = None

    def launch_graph(self, graph: _Recording, stream: _Stream) -> None:
        stream.enqueue(graph.run)

    def destroy_graph(self, graph: _Recording) -> None:
        graph.work.clear()

    def new_condition(self, stream: _Stream) -> _Condition:
        return _Condition()

    def set_condition(
        self,
        stream: _Stream,
        condition: _Condition,
        address: int,
        mode: PredicateMode,
        limit: int,
        many: int = 1,
    ) -> None:
        def run() -> None:
            if mode == "flag":
                self._check(address, 1)
                condition.value = int(ctypes.c_uint8.from_address(address).value != 0)
                return
            self._check(address, 4 * many)
            number = ctypes.c_int32.from_address(address)
            if mode == "count":
                first = number.value + many
                for k in range(many):
                    ctypes.c_int32.from_address(address + 4 * k).value = first + k
                condition.value = int(first < limit)
            else:
                condition.value = min(max(number.value, 0), limit - 1)

        stream.enqueue(run)

    def add_conditional(
        self, stream: _Stream, condition: _Condition, kind: ConditionalKind, branches: int
    ) -> list[_Stream]:
        bodies = [_Stream() for _ in range(branches)]
        graphs: list[_Recording] = []
        for body in bodies:
            body.recording = _Recording()
            graphs.append(body.recording)

        def run() -> None:
            if kind == "while":
                while condition.value:
                    graphs[0].run()
            else:
                graphs[condition.value].run()

        stream.enqueue(run)
        return bodies

    def end_branch(self, stream: _Stream) -> None:
        stream.recording = None

    def _area(self, address: int, size: int) -> mmap.mmap | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        area = self._ranges[start]
        return area if address + size <= start + len(area) else None

    def _check(self, address: int, size: int) -> None:
        """Raises if [address, address + size) touches reserved addresses without memory."""
        with self._lock:
            if self._area(address, 0) is None:
                return  # host memory
            end = address + size
            while address < end:
                index = bisect_right(self._mapped_starts, address) - 1
                start = self._mapped_starts[index] if index >= 0 else 0
                if index < 0 or start + self._mapped[start] <= address:
                    raise CudaError("access", "CUDA_ERROR_ILLEGAL_ADDRESS", f"{address:#x}")
                address = start + self._mapped[start]


def _reduced(parts: Tensor, dtype: str, reduction: Reduction) -> Tensor:
    """The bytes of the elementwise reduction of rows of bytes, in their order."""
    import torch

    combine = np.add if reduction == "sum" else getattr(np, reduction)
    rows = parts.numpy().view(DTYPES[dtype])
    return torch.from_numpy(functools.reduce(combine, list(rows)).view(np.uint8))


def _interpreted(kernel: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    _splat_booleans()
    function = kernel.function if isinstance(kernel, SourceKernel) else kernel
    if not isinstance(function, InterpretedFunction):
        raise RuntimeError(
            f"{kernel!r} was decorated for the compiler: set TRITON_INTERPRET=1 before Triton is "
            "imported to use the interpreting driver"
        )
    return function


@functools.cache
def _splat_booleans() -> None:
    """Make blocks of comparisons of scalars blocks of booleans. In Triton's interpreter they have
    the type of what was compared, and cannot be combined with other conditions."""
    from triton.language import int1
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    splat = InterpreterBuilder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        if arg.data.dtype != np.bool_:
            return splat(self, ret_ty, arg)
        return TensorHandle(np.full(ret_ty.shape, arg.data.reshape(-1)[0]), int1)

    InterpreterBuilder.create_splat = create_splat
