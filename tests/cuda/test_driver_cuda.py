"""The real driver's calls, without a GPU.

Every call goes first to cuda-python itself, which converts the arguments and then fails because
there is no CUDA library here: that checks names, argument counts and types. A made-up result
follows.
"""

from __future__ import annotations

import ctypes
import os
import struct

os.environ.setdefault("TRITON_INTERPRET", "1")

import interpreted_kernels as kernels
import pytest
from cuda.bindings import driver as cu

from genesis_fn.backends.cuda.driver import cuda
from genesis_fn.backends.cuda.driver.errors import CudaError, DeviceMemoryExhausted
from genesis_fn.backends.cuda.memory import dlpack
from genesis_fn.backends.cuda.memory.pool import Pool
from genesis_fn.backends.cuda.memory.staging import Staging
from genesis_fn.backends.cuda.run.graph import BufferAddress, capture_program
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.backends.cuda.run.steps import Copy, ForLoop, Switch, While
from genesis_fn.kernels.plan import BufferArg, Memset

MIB = 1 << 20
OK = cu.CUresult.CUDA_SUCCESS


def library_is_missing() -> bool:
    try:
        cu.cuInit(0)
    except Exception:
        return True
    return False


pytestmark = pytest.mark.skipif(not library_is_missing(), reason="this machine has CUDA")


class FakeCuda:
    """cuda-python's driver module with results made up."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, object] = {}
        self.memory = 0
        self.bodies: list[object] = []
        self.next = 1 << 32

    def __getattr__(self, name: str):
        real = getattr(cu, name)
        if not name.startswith("cu") or not name[2:3].isupper():
            return real

        def call(*arguments):
            try:
                real(*arguments)
            except (TypeError, AttributeError, ValueError, OverflowError):
                raise
            except Exception:
                self.calls.append(name)
            base = name.removesuffix("_v2").removesuffix("_v3")
            made_up = getattr(type(self), f"_{base}", None)
            if name in self.failing:
                return (self.failing[name], *([None] if made_up else []))
            result = made_up(self, *arguments) if made_up else ()
            return (OK, *(result if isinstance(result, tuple) else (result,)))

        return call

    def _handle(self) -> int:
        self.next += 64 * MIB
        return self.next

    def _cuDeviceGetCount(self):
        return 1

    def _cuDeviceGet(self, index):
        return cu.CUdevice(index)

    def _cuDevicePrimaryCtxRetain(self, device):
        return cu.CUcontext(8)

    def _cuDriverGetVersion(self):
        return 13000

    def _cuDeviceGetName(self, length, device):
        return b"Fake GPU\0" + bytes(length - 9)

    def _cuDeviceTotalMem(self, device):
        return 1 << 30

    def _cuDeviceGetAttribute(self, attribute, device):
        known = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0}
        known |= {"MULTIPROCESSOR_COUNT": 132, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448}
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return known.get(name, 1)

    def _cuMemGetAllocationGranularity(self, prop, option):
        return 2 * MIB

    def _cuMemGetInfo(self):
        return (1 << 30) - self.memory, 1 << 30

    def _cuMemAddressReserve(self, size, *_):
        self.next += size
        return cu.CUdeviceptr(self.next - size)

    def _cuMemCreate(self, size, *_):
        self.memory += size
        return cu.CUmemGenericAllocationHandle(size)

    def _cuMemRelease(self, handle):
        self.memory -= int(handle)
        return ()

    def _cuMemHostAlloc(self, size, flags):
        self.host = ctypes.create_string_buffer(size)
        return ctypes.addressof(self.host)

    def _cuStreamCreate(self, flags):
        return cu.CUstream(self._handle())

    def _cuEventCreate(self, flags):
        return cu.CUevent(self._handle())

    def _cuEventElapsedTime(self, start, end):
        return 1.5

    def _cuModuleLoadData(self, image):
        return cu.CUmodule(self._handle())

    def _cuModuleGetFunction(self, module, name):
        return cu.CUfunction(self._handle())

    def _cuStreamEndCapture(self, stream):
        return cu.CUgraph(self._handle())

    def _cuGraphInstantiate(self, graph, flags):
        return cu.CUgraphExec(self._handle())

    def _cuGraphConditionalHandleCreate(self, *_):
        return cu.CUgraphConditionalHandle(77)

    def _cuStreamGetCaptureInfo(self, stream):
        status = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        nodes = [cu.CUgraphNode(3)]
        return status, 1, cu.CUgraph(5), nodes, [cu.CUgraphEdgeData()], 1

    def _cuGraphAddNode(self, graph, nodes, edges, count, parameters):
        assert len(nodes) == count == 1
        # The driver hands out the bodies' graphs through a pointer after (handle, type, size).
        conditional = parameters.conditional
        self.bodies.append((ctypes.c_void_p * conditional.size)(*range(1, conditional.size + 1)))
        place = ctypes.c_void_p.from_address(conditional.getPtr() + 16)
        place.value = ctypes.addressof(self.bodies[-1])
        return cu.CUgraphNode(9)

    def _cuTensorMapEncodeTiled(self, *_):
        return cu.CUtensorMap()

    def _cuGetErrorString(self, code):
        return b"made up"


@pytest.fixture
def fake(monkeypatch, tmp_path):
    fake = FakeCuda()
    monkeypatch.setattr(cuda, "cu", fake)
    for name, function in (
        ("_add_node", "cuGraphAddNode"),
        ("_capture_info", "cuStreamGetCaptureInfo"),
        ("_update_dependencies", "cuStreamUpdateCaptureDependencies"),
    ):
        real = getattr(cuda, name).__name__
        assert real.startswith(function)
        monkeypatch.setattr(cuda, name, getattr(fake, real))
    monkeypatch.setenv("GENESIS_CACHE_DIR", str(tmp_path))
    cuda._current.__dict__.clear()
    return fake


@pytest.fixture
def driver(fake):
    return cuda.CudaDriver(0)


def test_description(driver):
    info = driver.info
    assert (info.name, info.target.architecture) == ("Fake GPU", 90)
    assert info.total_memory == 1 << 30 and info.granularity == 2 * MIB
    assert info.target.conditional_nodes and info.kind == 2 and info.target.processors == 132
    assert cuda.device_count() == 1
    with pytest.raises(ValueError, match="cuda:4"):
        cuda.CudaDriver(4)


def test_the_pool_on_the_real_driver(driver, fake):
    pool = Pool(driver)
    block = pool.alloc(100 * MIB)
    small = pool.alloc(10)
    assert fake.memory == pool.mapped == pool.rounded(100 * MIB) + 2 * MIB or fake.memory > 0
    assert fake.calls.count("cuMemCreate") == fake.calls.count("cuMemSetAccess")
    del block, small
    pool.empty_cache()
    assert fake.memory == 0
    assert fake.calls.count("cuMemUnmap") == fake.calls.count("cuMemMap")
    fake.failing["cuMemCreate"] = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(MemoryError, match="cuda:0: 1.00 MiB requested"):
        pool.alloc(MIB)


def test_errors_carry_the_drivers_name(driver, fake):
    fake.failing["cuMemcpyAsync"] = cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS .made up"):
        driver.copy(1 << 20, 2 << 20, 5, driver.compute)
    fake.failing["cuMemCreate"] = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceMemoryExhausted):
        driver.create(2 * MIB)


def test_launches(driver, fake):
    launches = [kernels.axpy(100, 2.0), kernels.axpy(100, 3.0), kernels.double_tile(64, 64, 32)]
    prepared = driver.prepare(launches)
    assert fake.calls.count("cuModuleLoadData") == 2, "equal kernels are loaded once"
    prepared[0].bind([1 << 20, 2 << 20, 3 << 20])
    prepared[0].launch(driver.compute)
    prepared[2].bind([1 << 20, 2 << 20])
    prepared[2].launch(driver.compute)
    assert fake.calls.count("cuTensorMapEncodeTiled") == 2
    assert fake.calls.count("cuLaunchKernelEx") == 2
    empty = driver.prepare([kernels.axpy(0, 1.0)])[0]
    empty.bind([1, 2, 3])
    empty.launch(driver.compute)
    assert fake.calls.count("cuLaunchKernelEx") == 2, "an empty grid is no launch"
    fake.failing["cuLaunchKernelEx"] = cu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(CudaError, match="LAUNCH_OUT_OF_RESOURCES"):
        prepared[0].launch(driver.compute)
    del prepared, empty
    assert fake.calls.count("cuModuleUnload") == fake.calls.count("cuModuleLoadData") == 3


def test_many_modules_load_at_once_and_go_quietly(driver, fake):
    from dataclasses import replace

    (prepared,) = driver.prepare([kernels.axpy(100, 2.0)])
    wanted = [replace(prepared.compiled, key=f"kernel {i}") for i in range(9)]
    modules = driver._load(wanted)
    assert sorted(modules) == sorted(one.key for one in wanted)
    assert fake.calls.count("cuModuleLoadData") == 10
    fake.failing["cuStreamSynchronize"] = fake.failing["cuCtxSynchronize"] = cu.CUresult(999)
    del modules, prepared  # where the driver is shutting down nothing is raised


def test_what_a_device_lacks(driver, fake, monkeypatch):
    fake.failing["cuInit"] = cu.CUresult.CUDA_ERROR_NO_DEVICE
    assert cuda.device_count() == 0
    with monkeypatch.context() as patch:
        patch.setattr(cuda, "cu", cu)
        assert cuda.device_count() == 0, "without a driver"
    del fake.failing["cuInit"]
    fake.failing["cuGraphLaunch"] = cu.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        driver.launch_graph(cu.CUgraphExec(5), driver.compute)
    event = driver.new_event()
    assert driver.done(event)
    fake.failing["cuEventQuery"] = cu.CUresult.CUDA_ERROR_NOT_READY
    assert not driver.done(event)
    monkeypatch.setattr(FakeCuda, "_cuDeviceGetAttribute", lambda *_: 0)
    with pytest.raises(CudaError, match="no virtual memory management"):
        cuda.CudaDriver(0)


def test_condition_kernels_are_compiled(driver, monkeypatch):
    from cuda.bindings import nvrtc

    done, calls = nvrtc.nvrtcResult.NVRTC_SUCCESS, []

    def made_up(name, *result):
        def call(*arguments):
            calls.append((name, arguments))
            return (done, *result)

        monkeypatch.setattr(nvrtc, name, call)

    made_up("nvrtcCreateProgram", "program")
    made_up("nvrtcCompileProgram")
    made_up("nvrtcGetCUBINSize", 4)
    made_up("nvrtcGetCUBIN")
    assert driver._compile_setters() == b"    "  # which NVRTC fills
    (create, source), (_, (_, count, options)) = calls[:2]
    assert create == "nvrtcCreateProgram" and b"cudaGraphSetConditional" in source[0]
    assert count == 1 and options == [b"--gpu-architecture=sm_90"]
    done = nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
    with pytest.raises(CudaError, match="compiling the condition kernels"):
        driver._compile_setters()


def test_launch_attributes(driver):
    from dataclasses import replace

    launch = replace(kernels.axpy(100, 2.0), programmatic=True)
    (prepared,) = driver.prepare([launch])
    config = prepared._config
    assert (config.gridDimX, config.blockDimX, config.numAttrs) == (2, 128, 1)
    wanted = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert config.attrs[0].id == wanted
    assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1
    prepared.bind([1 << 20, 2 << 20, 3 << 20])
    for early in (False, True):
        prepared.launch(driver.compute, early=early)
        assert config.numAttrs == early
    compiled = replace(prepared.compiled, num_ctas=4, cooperative=True, shared=100_000)
    config = cuda._launch_config(launch, compiled, True)
    assert config.gridDimX == 8 and config.numAttrs == 4 and config.sharedMemBytes == 100_000
    assert cuda._launch_config(launch, prepared.compiled, False).numAttrs == 0
    with pytest.raises(CudaError, match="300000 bytes of shared memory"):
        cuda._Module(driver, replace(compiled, shared=300_000))
    cuda._Module(driver, replace(compiled, num_ctas=16))


def test_graphs(driver, fake):
    place = Runtime(driver)
    blocks = [place.alloc(64) for _ in range(3)]
    memory = [BufferAddress(b.address, 64) for b in blocks]
    steps = [
        Memset(0),
        Copy(1, 0, 8),
        kernels.add_one(0),
        While((kernels.below(0, 1, 5),), BufferArg(1, "i8"), (kernels.add_one(0),)),
        Switch(BufferArg(2, "i32"), ((Memset(0),), (Memset(1),), (Memset(2),))),
        ForLoop(3, BufferArg(2, "i32"), (kernels.add_one(0),)),
    ]
    start = len(fake.calls)
    program = capture_program(place, steps, memory)
    calls = fake.calls[start:]
    assert program.segments == 1
    assert calls.count("cuStreamBeginCaptureToGraph") == 1 + 3 + 1
    assert calls.count("cuStreamEndCapture") == 1 + 5
    assert sum(c.startswith("cuGraphAddNode") for c in calls) == 3
    assert calls.count("cuLaunchKernel") == 2 + 1 + 2, "loops decide before and at their end"
    assert calls.count("cuGraphInstantiate") == calls.count("cuGraphDestroy") == 1
    program.launch()
    assert fake.calls[-1] == "cuGraphLaunch"
    program.close()
    assert fake.calls[-1] == "cuGraphExecDestroy"
    start = len(fake.calls)
    fake.failing["cuMemsetD8Async"] = cu.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(CudaError):
        capture_program(place, [Switch(BufferArg(1, "i32"), ((Memset(0),),))], memory)
    calls = fake.calls[start:]
    assert calls.count("cuStreamEndCapture") == 2
    assert calls.count("cuStreamDestroy") == 2


def test_kernels_start_early_behind_kernels(driver, monkeypatch):
    place = Runtime(driver)
    blocks = [place.alloc(1 << 20) for _ in range(3)]
    memory = [BufferAddress(b.address, b.bytes) for b in blocks]
    started = []

    def launch(self, stream, early=True):
        started.append(early and self._early)

    monkeypatch.setattr(cuda.CudaLaunch, "launch", launch)
    steps = [kernels.add_one(0), kernels.add_one(0), Memset(0), kernels.add_one(0)]
    for programmatic in (False, True):
        capture_program(place, steps, memory, programmatic=programmatic)
    assert started == [False, False, False] + [False, True, False]


def test_conditional_nodes_need_an_active_capture(driver, fake, monkeypatch):
    idle = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    monkeypatch.setattr(cuda, "_capture_info", lambda s: (OK, idle, 0, None, None, None, 0))
    with pytest.raises(CudaError, match="no active capture"):
        driver.new_condition(driver.compute)


def test_condition_kernels_fall_back_to_nvrtc(driver, fake, monkeypatch):
    images = []

    def load(fake, image):
        images.append(image)
        return cu.CUmodule(1)

    def compiled():
        fake.failing.clear()
        return b"cubin"

    monkeypatch.setattr(driver, "_compile_setters", compiled)
    monkeypatch.setattr(FakeCuda, "_cuModuleLoadData", load)
    fake.failing["cuModuleLoadData"] = cu.CUresult.CUDA_ERROR_INVALID_PTX
    driver.set_condition(driver.compute, cu.CUgraphConditionalHandle(1), 64, "index", 3)
    assert images == [b"cubin"]
    assert fake.calls[-1] == "cuLaunchKernel"


def test_small_copies_share_a_launch(driver, monkeypatch):
    launched, copied = [], []

    def launch(fake, function, x, y, z, *rest):
        table = ctypes.c_void_p.from_address(rest[5]).value
        launched.append((x, y, struct.unpack("<6Q", ctypes.string_at(table, 48))))
        return ()

    monkeypatch.setattr(FakeCuda, "_cuLaunchKernel", launch, raising=False)
    monkeypatch.setattr(driver, "copy", lambda *copy: copied.append(copy[:3]))
    driver.copy_several([(64, 128, 5), (256, 512, 40000), (1024, 2048, 0)], driver.compute)
    assert launched == [(3, 2, (64, 128, 5, 256, 512, 40000))] and not copied
    driver.copy_several([(64, 128, 2 * MIB), (256, 512, 8)], driver.compute)
    assert copied == [(64, 128, 2 * MIB), (256, 512, 8)] and len(launched) == 1
    driver.copy_several([(64 * n, 1, 16) for n in range(100)], driver.compute)
    assert [y for _, y, _ in launched[1:]] == [64, 36]


def test_streams_events_and_transfers(driver, fake):
    event, timing = driver.new_event(), driver.new_event(timing=True)
    driver.record(event, driver.compute)
    driver.wait(driver.new_stream(), event)
    assert driver.done(event) and driver.elapsed(event, timing) == 1.5
    fake.failing["cuEventQuery"] = cu.CUresult.CUDA_ERROR_NOT_READY
    fake.failing.pop("cuEventQuery")
    driver.wait_host(event)
    driver.destroy_event(event)
    driver.fill(1 << 20, 3, 100, driver.compute)
    driver.fill_words(1 << 20, -1, 25, driver.compute)
    driver.copy_peer(1 << 20, 2 << 20, 64, driver, driver.compute)
    driver.synchronize()
    address = driver.pin(100)
    driver.unpin(address)
    start = driver.reserve(4 * MIB)
    driver.release(start, 4 * MIB)
    other = driver.foreign_stream(1)
    assert driver.stream_handle(other) == 1
    stream = driver.new_stream()
    driver.begin_capture(stream)
    driver.abandon_capture(stream)
    driver.destroy_stream(stream)
    for name in ("cuMemsetD8Async", "cuMemsetD32Async", "cuMemcpyPeerAsync", "cuMemFreeHost"):
        assert name in fake.calls


def test_exports_wait_for_both_sides(driver, fake):
    pool = Pool(driver)
    block = pool.alloc(64)
    capsule = dlpack.to_dlpack(block, (4,), (1,), "float32", stream=7)
    assert fake.calls[-3:] == ["cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy"]
    del capsule, block
    assert "cuEventRecord" in fake.calls[-2:], "what the consumer queued is waited for"
    pool.reclaim()
    assert pool.in_use == 0
    block = pool.alloc(64)
    with pytest.raises(ValueError, match="ambiguous"):
        dlpack.to_dlpack(block, (4,), (1,), "float32", stream=0)
    facts = dlpack.to_cuda_array_interface(block, (4,), (1,), "float32")
    assert facts["stream"] == int(driver.compute)


def test_staging_uses_pinned_memory(driver, fake):
    staging = Staging(driver, ring_bytes=4096)
    host = ctypes.create_string_buffer(b"abc")
    staging.to_device(1 << 20, ctypes.addressof(host), 3)
    assert fake.host.raw[:3] == b"abc"
    assert fake.calls.count("cuMemcpyAsync") == 1
