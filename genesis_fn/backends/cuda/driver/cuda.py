"""The real driver: one GPU through cuda-python's `cuda.bindings.driver`, versions 12.9 and 13."""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from cuda.bindings import driver as cu  # pyright: ignore[reportAttributeAccessIssue]

from genesis_fn.backends.cuda.binaries.compile import CompiledKernel, compile_launches
from genesis_fn.backends.cuda.driver import condition_kernels, copy_kernel, nccl
from genesis_fn.backends.cuda.driver.communication import Communication, memory_of
from genesis_fn.backends.cuda.driver.driver import (
    CommunicatorHandle,
    ConditionalKind,
    ConditionHandle,
    DeviceInfo,
    EventHandle,
    GraphHandle,
    MemoryHandle,
    PredicateMode,
    StreamHandle,
    check_fork,
)
from genesis_fn.backends.cuda.driver.errors import CudaError, DeviceMemoryExhausted
from genesis_fn.backends.cuda.driver.parameters import (
    ParameterBlock,
    patch_small_map,
    tensor_map_geometry,
)
from genesis_fn.backends.cuda.libraries import PreparedRoutine
from genesis_fn.compiler.target import Target, rates
from genesis_fn.core.sharding.world import world
from genesis_fn.kernels.plan import Descriptor, Launch
from genesis_fn.kernels.routines import ConvolutionRoutine, Routine

_SUCCESS = cu.CUresult.CUDA_SUCCESS
_NOT_READY = cu.CUresult.CUDA_ERROR_NOT_READY
_EXHAUSTED = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_NODE_PRIORITY = cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
_RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_SET_DEPENDENCIES = int(
    cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
)
_CUDA_KIND = 2  # kDLCUDA of DLPack
_DEFAULT_SHARED = 48 << 10  # bytes of shared memory that a kernel may use without asking
_CONDITIONAL_DRIVER = 12080  # 12.8, the first driver with switch nodes

# What version 12.9 has as `_v2` and `_v3` variants has the plain name in version 13.
_add_node = getattr(cu, "cuGraphAddNode_v2", cu.cuGraphAddNode)
_capture_info = getattr(cu, "cuStreamGetCaptureInfo_v3", cu.cuStreamGetCaptureInfo)
_update_dependencies = getattr(
    cu, "cuStreamUpdateCaptureDependencies_v2", cu.cuStreamUpdateCaptureDependencies
)

_current = threading.local()


def device_count() -> int:
    """How many GPUs the driver shows; 0 without a driver."""
    try:
        (code,) = cu.cuInit(0)
    except Exception:  # cuda.bindings raises several types where the library is missing
        return 0
    if code != _SUCCESS:
        return 0
    code, count = cu.cuDeviceGetCount()
    return count if code == _SUCCESS else 0


def _check(result: tuple[Any, ...]) -> Any:
    """The results of a driver call without its code. Raises CudaError."""
    code = result[0]
    if code != _SUCCESS:
        _fail(code)
    if len(result) == 2:
        return result[1]
    return result[1:] if len(result) > 2 else None


def _fail(code: Any) -> None:
    check_fork()
    _, text = cu.cuGetErrorString(code)
    error = DeviceMemoryExhausted if code == _EXHAUSTED else CudaError
    raise error("a CUDA driver call", code.name, text.decode() if text else "")


class _Module:
    """A loaded binary and its function, unloaded when no launch refers to it any more."""

    def __init__(self, driver: CudaDriver, compiled: CompiledKernel) -> None:
        driver.activate()
        self._driver = driver
        self.handle = _check(cu.cuModuleLoadData(compiled.binary))
        self.function = _check(cu.cuModuleGetFunction(self.handle, compiled.name.encode()))
        if compiled.shared > driver.info.target.shared_memory:
            raise CudaError(
                f"loading kernel {compiled.name}",
                "CUDA_ERROR_INVALID_VALUE",
                f"it needs {compiled.shared} bytes of shared memory, the device has "
                f"{driver.info.target.shared_memory}",
            )
        if compiled.shared > _DEFAULT_SHARED:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(cu.cuFuncSetAttribute(self.function, attribute, compiled.shared))
        if compiled.num_ctas > 8:  # larger clusters than every GPU guarantees
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _check(cu.cuFuncSetAttribute(self.function, attribute, 1))
        # Lazily loaded code would otherwise be loaded by the first launch, maybe during a capture.
        if hasattr(cu, "cuFuncLoad"):
            _check(cu.cuFuncLoad(self.function))

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            try:
                self._driver.synchronize()  # its last launch may still run
                cu.cuModuleUnload(self.handle)
            except Exception:  # the interpreter or the driver is already shutting down
                return


class CudaLaunch:
    """A launch with its module loaded and its parameters packed.

    The launch configuration is made once and reused, so two threads must not enqueue one launch at
    the same time.
    """

    def __init__(
        self, driver: CudaDriver, launch: Launch, compiled: CompiledKernel, module: _Module
    ) -> None:
        self._driver = driver
        self._context = driver.context
        self._several = driver.several
        self.module = module
        self.compiled = compiled
        self.grid = launch.grid
        self._empty = 0 in launch.grid
        self._block = ParameterBlock(launch, compiled, driver.encode_tensor_map)
        self._parameters = self._block.address
        self._function = module.function
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2] * compiled.num_ctas
        self.scratch_bytes = programs * compiled.scratch
        self._early = launch.programmatic and driver.info.target.programmatic_launch
        self._config = _launch_config(launch, compiled, self._early)
        self._stream: StreamHandle = None
        self._attributes = self._config.numAttrs

    def bind(
        self, addresses: Sequence[int], scratch: int = 0, within: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._block.bind(addresses, scratch)

    def enqueue(self, addresses: Sequence[int], stream: StreamHandle) -> None:
        write = self._block.write
        ready = stream is self._stream and not (self._empty or self._early or self._several)
        ready = ready and getattr(_current, "context", None) is self._context
        if write is None or not ready:
            self.bind(addresses)
            self.launch(stream)
            return
        write(*addresses, 0, 0)
        (code,) = cu.cuLaunchKernelEx(self._config, self._function, self._parameters, 0)
        if code != _SUCCESS:
            _fail(code)

    def launch(self, stream: StreamHandle, early: bool = True) -> None:
        if self._empty:
            return
        if self._early:
            # Programmatic serialisation is the last attribute: drop it for this launch.
            self._config.numAttrs = self._attributes - (not early)
        if stream is not self._stream:
            self._config.hStream = stream
            self._stream = stream
        self._driver.activate()
        (code,) = cu.cuLaunchKernelEx(self._config, self._function, self._parameters, 0)
        if code != _SUCCESS:
            _fail(code)


def _launch_config(launch: Launch, compiled: CompiledKernel, early: bool) -> Any:
    config = cu.CUlaunchConfig()
    config.gridDimX = launch.grid[0] * compiled.num_ctas
    config.gridDimY, config.gridDimZ = launch.grid[1], launch.grid[2]
    config.blockDimX, config.blockDimY, config.blockDimZ = 32 * compiled.num_warps, 1, 1
    config.sharedMemBytes = compiled.shared
    attributes = []
    kind = cu.CUlaunchAttributeID
    if compiled.cooperative:
        attribute = cu.CUlaunchAttribute()
        attribute.id = kind.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if compiled.num_ctas > 1:
        attribute = cu.CUlaunchAttribute()
        attribute.id = kind.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = compiled.num_ctas
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
        attributes.append(attribute)
        attribute = cu.CUlaunchAttribute()
        attribute.id = kind.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
        policy = cu.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        attribute.value.clusterSchedulingPolicyPreference = policy
        attributes.append(attribute)
    if early:
        attribute = cu.CUlaunchAttribute()
        attribute.id = kind.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


class CudaDriver:
    """The driver of one GPU, in the device's primary context, which torch and CuPy share."""

    def __init__(self, index: int) -> None:
        if not 0 <= index < device_count():
            raise ValueError(f"there is no device cuda:{index}")
        self._device = _check(cu.cuDeviceGet(index))
        self.context = _check(cu.cuDevicePrimaryCtxRetain(self._device))
        self.several = device_count() > 1
        self.activate()
        self.driver_version = _check(cu.cuDriverGetVersion())
        # NCCL has others write straight into memory that it can export (docs/cuda.md).
        shared = world().direct
        self._property = _allocation_property(index, shared)
        self.info = self._describe(index, shared)
        self._access = _read_write(index)
        self.compute = self.new_stream()
        # By key of the binary. Weak: a module is unloaded when its last launch is gone.
        self._modules: weakref.WeakValueDictionary[str, _Module] = weakref.WeakValueDictionary()
        self._setters: dict[str, Any] = {}
        self._copy_function: Any = None
        self._lock = threading.Lock()

    def activate(self) -> None:
        """Makes the device's context current in this thread."""
        # With several devices another library may have made another context current since.
        if self.several or getattr(_current, "context", None) is not self.context:
            _check(cu.cuCtxSetCurrent(self.context))
            _current.context = self.context

    def _attribute(self, name: str) -> int:
        attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return _check(cu.cuDeviceGetAttribute(attribute, self._device))

    def _describe(self, index: int, shared: bool) -> DeviceInfo:
        if not self._attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
            raise CudaError(
                f"opening cuda:{index}",
                "CUDA_ERROR_NOT_SUPPORTED",
                "the device has no virtual memory management",
            )
        minimum = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        name = _check(cu.cuDeviceGetName(256, self._device)).split(b"\0")[0].decode()
        return DeviceInfo(
            index=index,
            name=name,
            total_memory=int(_check(cu.cuDeviceTotalMem(self._device))),
            granularity=int(_check(cu.cuMemGetAllocationGranularity(self._property, minimum))),
            target=self._target(name),
            kind=_CUDA_KIND,
            shared=shared,
        )

    def _target(self, name: str) -> Target:
        architecture = 10 * self._attribute("COMPUTE_CAPABILITY_MAJOR")
        architecture += self._attribute("COMPUTE_CAPABILITY_MINOR")
        bandwidth, operations, link = rates(name, architecture)
        return Target(
            architecture=architecture,
            processors=self._attribute("MULTIPROCESSOR_COUNT"),
            shared_memory=self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            l2=self._attribute("L2_CACHE_SIZE"),
            bandwidth=bandwidth,
            operations=operations,
            link=link,
            registers=self._attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            conditional_nodes=self.driver_version >= _CONDITIONAL_DRIVER,
            libraries=True,
        )

    # Memory.

    def memory_info(self) -> tuple[int, int]:
        self.activate()
        free, total = _check(cu.cuMemGetInfo())
        return int(free), int(total)

    def reserve(self, size: int) -> int:
        return int(_check(cu.cuMemAddressReserve(size, 0, 0, 0)))

    def release(self, address: int, size: int) -> None:
        _check(cu.cuMemAddressFree(address, size))

    def create(self, size: int) -> MemoryHandle:
        self.activate()
        return _check(cu.cuMemCreate(size, self._property, 0))

    def destroy(self, handle: MemoryHandle) -> None:
        _check(cu.cuMemRelease(handle))

    def map(self, address: int, size: int, handle: MemoryHandle) -> None:
        self.activate()
        _check(cu.cuMemMap(address, size, 0, handle, 0))
        _check(cu.cuMemSetAccess(address, size, [self._access], 1))

    def unmap(self, address: int, size: int) -> None:
        self.activate()
        _check(cu.cuMemUnmap(address, size))

    def given(self, address: int) -> bool:
        return self.info.shared and nccl.registered(address)

    def pin(self, size: int) -> int:
        self.activate()
        flags = int(cu.CU_MEMHOSTALLOC_PORTABLE) | int(cu.CU_MEMHOSTALLOC_DEVICEMAP)
        return int(_check(cu.cuMemHostAlloc(max(size, 1), flags)))

    def unpin(self, address: int) -> None:
        self.activate()
        _check(cu.cuMemFreeHost(address))

    # Work in stream order.

    def copy(self, destination: int, source: int, size: int, stream: StreamHandle) -> None:
        if size:
            self.activate()
            _check(cu.cuMemcpyAsync(destination, source, size, stream))

    def copy_several(self, copies: Sequence[tuple[int, int, int]], stream: StreamHandle) -> None:
        small = [c for c in copies if 0 < c[2] <= copy_kernel.MOST_BYTES]
        if len(small) < 2:
            small = []
        for copy in copies:
            if not small or copy[2] > copy_kernel.MOST_BYTES:
                self.copy(*copy, stream)
        if not small:
            return
        self.activate()
        for first in range(0, len(small), copy_kernel.MOST_COPIES):
            some = small[first : first + copy_kernel.MOST_COPIES]
            table = copy_kernel.table_of(some)
            parameters = (ctypes.c_char_p * 1)(table)
            blocks, threads = copy_kernel.blocks_of(some), copy_kernel.THREADS
            at = ctypes.addressof(parameters)
            grid = blocks, len(some), 1
            (code,) = cu.cuLaunchKernel(self._copier(), *grid, threads, 1, 1, 0, stream, at, 0)
            if code != _SUCCESS:
                _fail(code)

    def _copier(self) -> Any:
        with self._lock:
            if self._copy_function is None:
                module = _check(cu.cuModuleLoadData(copy_kernel.PTX.encode() + b"\0"))
                function = _check(cu.cuModuleGetFunction(module, copy_kernel.ENTRY))
                if hasattr(cu, "cuFuncLoad"):
                    _check(cu.cuFuncLoad(function))
                self._copy_function = function
            return self._copy_function

    def copy_peer(
        self, destination: int, source: int, size: int, peer: CudaDriver, stream: StreamHandle
    ) -> None:
        if size:
            self.activate()
            _check(
                cu.cuMemcpyPeerAsync(destination, peer.context, source, self.context, size, stream)
            )

    def fill(self, address: int, byte: int, size: int, stream: StreamHandle) -> None:
        if size:
            self.activate()
            _check(cu.cuMemsetD8Async(address, byte, size, stream))

    def fill_words(self, address: int, value: int, count: int, stream: StreamHandle) -> None:
        if count:
            self.activate()
            _check(cu.cuMemsetD32Async(address, value & 0xFFFFFFFF, count, stream))

    def new_stream(self, urgent: bool = False) -> StreamHandle:
        self.activate()
        # Non-blocking: the legacy default stream of other libraries must not serialise with it.
        flags = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if not urgent:
            return _check(cu.cuStreamCreate(flags))
        _, greatest = _check(cu.cuCtxGetStreamPriorityRange())
        return _check(cu.cuStreamCreateWithPriority(flags, greatest))

    def destroy_stream(self, stream: StreamHandle) -> None:
        self.activate()
        _check(cu.cuStreamDestroy(stream))

    def stream_handle(self, stream: StreamHandle) -> int:
        return int(stream)

    def foreign_stream(self, handle: int) -> StreamHandle:
        return cu.CUstream(handle)

    def synchronize(self, stream: StreamHandle | None = None) -> None:
        self.activate()
        _check(cu.cuStreamSynchronize(self.compute if stream is None else stream))

    def new_event(self, timing: bool = False) -> EventHandle:
        self.activate()
        flags = cu.CUevent_flags
        # Events without timing are cheaper to record and to wait for.
        kind = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return _check(cu.cuEventCreate(int(kind)))

    def destroy_event(self, event: EventHandle) -> None:
        self.activate()
        _check(cu.cuEventDestroy(event))

    def record(self, event: EventHandle, stream: StreamHandle) -> None:
        self.activate()
        _check(cu.cuEventRecord(event, stream))

    def wait(self, stream: StreamHandle, event: EventHandle) -> None:
        self.activate()
        _check(cu.cuStreamWaitEvent(stream, event, 0))

    def done(self, event: EventHandle) -> bool:
        self.activate()
        (code,) = cu.cuEventQuery(event)
        if code == _NOT_READY:
            return False
        _check((code,))
        return True

    def wait_host(self, event: EventHandle) -> None:
        self.activate()
        _check(cu.cuEventSynchronize(event))

    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        self.activate()
        return float(_check(cu.cuEventElapsedTime(start, end)))

    # Kernels.

    def prepare(self, launches: Sequence[Launch]) -> list[CudaLaunch]:
        compiled = compile_launches(launches, self.info.target)
        modules = self._load(compiled)
        return [
            CudaLaunch(self, launch, one, modules[one.key])
            for launch, one in zip(launches, compiled, strict=True)
        ]

    def routine(self, routine: Routine) -> PreparedRoutine:
        from genesis_fn.backends.cuda.libraries import convolutions, nvidia

        self.activate()
        if isinstance(routine, ConvolutionRoutine):
            return convolutions.CudnnConvolution(routine)
        return nvidia.LibraryRoutine(routine)

    def _load(self, compiled: Sequence[CompiledKernel]) -> dict[str, _Module]:
        wanted = {one.key: one for one in compiled}
        with self._lock:
            loaded = {k: m for k in wanted if (m := self._modules.get(k)) is not None}
            missing = [one for key, one in wanted.items() if key not in loaded]
            # Modules load in parallel; a few are not worth the threads.
            if len(missing) > 8:
                with ThreadPoolExecutor(8) as pool:
                    modules = list(pool.map(lambda one: _Module(self, one), missing))
            else:
                modules = [_Module(self, one) for one in missing]
            for one, module in zip(missing, modules, strict=True):
                self._modules[one.key] = loaded[one.key] = module
        return loaded

    def encode_tensor_map(
        self, descriptor: Descriptor, meta: dict[str, Any], address: int
    ) -> bytes:
        """The 128 bytes of a tiled tensor map over the descriptor's view at `address`."""
        kind, sizes, strides, box = tensor_map_geometry(descriptor, meta)
        result = _check(
            cu.cuTensorMapEncodeTiled(
                cu.CUtensorMapDataType(kind),
                len(sizes),
                address,
                [cu.cuuint64_t(n) for n in sizes],
                [cu.cuuint64_t(n) for n in strides],
                [cu.cuuint32_t(n) for n in box],
                [cu.cuuint32_t(1)] * len(sizes),
                cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                cu.CUtensorMapSwizzle(meta["swizzle"]),
                cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )
        content = ctypes.string_at(result.getPtr(), 128)
        # A bug of drivers up to 13.1 (see `patch_small_map`).
        if self.driver_version <= 13010:
            content = patch_small_map(content, sizes, strides, meta["elem_size"])
        return content

    # Exchanges.

    def communicator(self, groups: Sequence[tuple[int, ...]], messages: bool) -> CommunicatorHandle:
        self.activate()
        return nccl.communicator(groups, messages)

    def one_launch(self) -> AbstractContextManager[object]:
        self.activate()
        return nccl.one_launch()

    def exchange(
        self,
        communicator: CommunicatorHandle,
        communication: Communication,
        source: int,
        destination: int,
        stream: StreamHandle,
    ) -> None:
        self.activate()
        if self.info.shared and all(memory_of(communication, communicator.size)):
            # Both, and every time: NCCL hangs where one side of an exchange is registered.
            for address in (source, destination):
                nccl.register(communicator, *self._piece(address))
        nccl.exchange(communicator, communication, source, destination, int(stream))

    def _piece(self, address: int) -> tuple[int, int]:
        """(address, bytes) of the piece of physical memory that is mapped at an address."""
        start, size = _check(cu.cuMemGetAddressRange(address))
        return int(start), int(size)

    # Graphs.

    def begin_capture(self, stream: StreamHandle) -> None:
        self.activate()
        # Relaxed: other threads may allocate or synchronise while this one captures.
        _check(cu.cuStreamBeginCapture(stream, _RELAXED))

    def end_capture(self, stream: StreamHandle, urgency: bool = False) -> GraphHandle:
        self.activate()
        graph = _check(cu.cuStreamEndCapture(stream))
        try:
            # Otherwise all nodes take the priority of the stream that the graph is launched on.
            flags = int(_NODE_PRIORITY) if urgency else 0
            executable = _check(cu.cuGraphInstantiate(graph, flags))
        finally:
            cu.cuGraphDestroy(graph)
        # Otherwise the first launch uploads the graph.
        _check(cu.cuGraphUpload(executable, stream))
        return executable

    def abandon_capture(self, stream: StreamHandle) -> None:
        self.activate()
        code, graph = cu.cuStreamEndCapture(stream)
        if code == _SUCCESS:
            cu.cuGraphDestroy(graph)

    def launch_graph(self, graph: GraphHandle, stream: StreamHandle) -> None:
        self.activate()
        (code,) = cu.cuGraphLaunch(graph, stream)
        if code != _SUCCESS:
            _fail(code)

    def destroy_graph(self, graph: GraphHandle) -> None:
        self.activate()
        _check(cu.cuGraphExecDestroy(graph))

    def new_condition(self, stream: StreamHandle) -> ConditionHandle:
        graph, _ = self._captured(stream)
        return _check(cu.cuGraphConditionalHandleCreate(graph, self.context, 0, 0))

    def set_condition(
        self,
        stream: StreamHandle,
        condition: ConditionHandle,
        address: int,
        mode: PredicateMode,
        limit: int,
        many: int = 1,
    ) -> None:
        setter = self._setter(mode)
        packed = struct.pack("<QQii", int(condition), address, limit, many)
        block = ctypes.create_string_buffer(packed)
        start = ctypes.addressof(block)
        pointers = (ctypes.c_void_p * 4)(start, start + 8, start + 16, start + 20)
        array = ctypes.addressof(pointers)
        _check(cu.cuLaunchKernel(setter, 1, 1, 1, 1, 1, 1, 0, stream, array, 0))

    def add_conditional(
        self, stream: StreamHandle, condition: ConditionHandle, kind: ConditionalKind, branches: int
    ) -> list[StreamHandle]:
        graph, dependencies = self._captured(stream)
        parameters = cu.CUgraphNodeParams()
        parameters.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        parameters.conditional.handle = condition
        kinds = cu.CUgraphConditionalNodeType
        parameters.conditional.type = {
            "while": kinds.CU_GRAPH_COND_TYPE_WHILE,
            "switch": kinds.CU_GRAPH_COND_TYPE_SWITCH,
        }[kind]
        parameters.conditional.size = branches
        parameters.conditional.ctx = self.context
        # Stream capture has no conditional nodes: the node is added to the graph being captured by
        # hand, after the nodes that the next one would depend on, and made the stream's dependency.
        node = _check(_add_node(graph, dependencies, None, len(dependencies), parameters))
        _check(_update_dependencies(stream, [node], None, 1, _SET_DEPENDENCIES))
        streams = []
        for body in parameters.conditional.phGraph_out[:branches]:
            inner = self.new_stream()
            _check(cu.cuStreamBeginCaptureToGraph(inner, body, None, None, 0, _RELAXED))
            streams.append(inner)
        return streams

    def end_branch(self, stream: StreamHandle) -> None:
        self.activate()
        _check(cu.cuStreamEndCapture(stream))
        self.destroy_stream(stream)

    def _captured(self, stream: StreamHandle) -> tuple[Any, list[Any]]:
        """(the graph that a stream is capturing, the nodes that its next node will depend on)."""
        self.activate()
        found = _check(_capture_info(stream))
        graph, dependencies, count = found[2], found[3], found[-1]
        if found[0] != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            raise CudaError("conditional node", "CUDA_ERROR_ILLEGAL_STATE", "no active capture")
        return graph, list(dependencies or ())[:count]

    def _setter(self, mode: str) -> Any:
        with self._lock:
            if not self._setters:
                self._setters = self._load_setters()
            return self._setters[mode]

    def _load_setters(self) -> dict[str, Any]:
        self.activate()
        # Where the driver rejects the PTX, NVRTC compiles the same kernels from CUDA C.
        code, module = cu.cuModuleLoadData(condition_kernels.ptx().encode() + b"\0")
        if code != _SUCCESS:
            module = _check(cu.cuModuleLoadData(self._compile_setters()))
        functions = {}
        for mode in ("flag", "index", "count"):
            name = condition_kernels.entry(mode).encode()
            functions[mode] = _check(cu.cuModuleGetFunction(module, name))
            if hasattr(cu, "cuFuncLoad"):
                _check(cu.cuFuncLoad(functions[mode]))
        return functions

    def _compile_setters(self) -> bytes:
        """The binary of the condition kernels, compiled by NVRTC."""
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

        def check(result: tuple[Any, ...]) -> Any:
            if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise CudaError("compiling the condition kernels", str(result[0]))
            return result[1] if len(result) > 1 else None

        source = condition_kernels.cuda_source().encode()
        program = check(nvrtc.nvrtcCreateProgram(source, b"conditions.cu", 0, [], []))
        options = [f"--gpu-architecture=sm_{self.info.target.architecture}".encode()]
        check(nvrtc.nvrtcCompileProgram(program, len(options), options))
        binary = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
        check(nvrtc.nvrtcGetCUBIN(program, binary))
        return binary


def _allocation_property(index: int, exported: bool) -> Any:
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = index
    if exported:
        kinds = cu.CUmemAllocationHandleType
        wanted.requestedHandleTypes = kinds.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return wanted


def _read_write(index: int) -> Any:
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = index
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access
