"""The driver interface on the interpreting driver, parameter blocks, host copies and exchange."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import threading
import time

os.environ.setdefault("TRITON_INTERPRET", "1")

import interpreted_kernels as kernels
import numpy as np
import pytest
import torch

from genesis_fn import cuda
from genesis_fn.backends.cuda.binaries.compile import compile_launches
from genesis_fn.backends.cuda.driver import condition_kernels, copy_kernel, drivers
from genesis_fn.backends.cuda.driver.errors import CudaError, DeviceMemoryExhausted
from genesis_fn.backends.cuda.driver.interpret import InterpretDriver
from genesis_fn.backends.cuda.driver.parameters import (
    ParameterBlock,
    patch_small_map,
    tensor_map_geometry,
)
from genesis_fn.backends.cuda.memory import dlpack
from genesis_fn.backends.cuda.memory.pool import Pool
from genesis_fn.backends.cuda.memory.staging import Staging
from genesis_fn.backends.cuda.memory.uploads import Uploads
from genesis_fn.backends.cuda.run import runtime
from genesis_fn.backends.cuda.run.error_word import ErrorWords, decode
from genesis_fn.compiler.target import H200, OF_ARCHITECTURE

MIB = 1 << 20

pytestmark = pytest.mark.interpreted


@pytest.fixture
def device():
    return InterpretDriver(0, total_memory=256 * MIB)


@pytest.fixture
def pool(device):
    return Pool(device)


def put(pool: Pool, array: np.ndarray):
    block = pool.alloc(array.nbytes)
    array = np.ascontiguousarray(array)
    pool.driver.copy(block.address, array.ctypes.data, array.nbytes, pool.driver.compute)
    return block


def fetch(block, dtype, shape) -> np.ndarray:
    result = np.empty(shape, dtype)
    driver = block.driver
    driver.copy(result.ctypes.data, block.address, result.nbytes, driver.compute)
    return result


def test_choice_of_implementation(monkeypatch):
    monkeypatch.setenv("GENESIS_CUDA_DRIVER", "interpret")
    monkeypatch.setenv("GENESIS_INTERPRET_DEVICES", "3")
    assert drivers.implementation() == "interpret" and drivers.device_count() == 3
    monkeypatch.setattr(drivers, "opened", {})
    assert drivers.open_driver(2) is drivers.open_driver(2)
    assert drivers.open_driver(2).info.index == 2
    with pytest.raises(ValueError, match="cuda:3: 3 found"):
        drivers.open_driver(3)
    monkeypatch.setenv("GENESIS_CUDA_DRIVER", "metal")
    with pytest.raises(ValueError, match="metal"):
        drivers.device_count()


def test_no_gpu_means_no_devices(monkeypatch):
    monkeypatch.delenv("GENESIS_CUDA_DRIVER", raising=False)
    monkeypatch.setattr(drivers, "opened", {})  # other tests may have opened interpreted ones
    pytest.importorskip("cuda.bindings")
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    assert drivers.device_count() == 0
    with pytest.raises(ValueError, match="cuda:0: 0 found"):
        drivers.open_driver(0)


def test_kernel_launches_read_and_write_device_memory(device, pool):
    x, y = np.arange(200, dtype=np.float32), np.ones(200, np.float32)
    blocks = [put(pool, x), put(pool, y), pool.alloc(800)]
    (prepared,) = device.prepare([kernels.axpy(200, 2.5)])
    prepared.bind([b.address for b in blocks])
    prepared.launch(device.compute)
    np.testing.assert_array_equal(fetch(blocks[2], np.float32, 200), 2.5 * x + 1)
    other = put(pool, -x)
    prepared.bind([other.address, blocks[1].address, blocks[2].address])
    prepared.launch(device.compute)
    np.testing.assert_array_equal(fetch(blocks[2], np.float32, 200), -2.5 * x + 1)


def test_descriptors(device, pool):
    x = np.random.default_rng(0).normal(size=(48, 32)).astype(np.float32)
    blocks = [put(pool, x), pool.alloc(x.nbytes)]
    (prepared,) = device.prepare([kernels.double_tile(48, 32, 16)])
    prepared.bind([b.address for b in blocks])
    prepared.launch(device.compute)
    np.testing.assert_array_equal(fetch(blocks[1], np.float32, (48, 32)), 2 * x)


def test_faults_are_reported(device, pool):
    address = device.reserve(8 * MIB)
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        device.fill(address, 0, 4, device.compute)
    handle = device.create(2 * MIB)
    device.map(address, 2 * MIB, handle)
    device.fill(address, 7, 2 * MIB, device.compute)
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        device.copy(address, address + 2 * MIB - 4, 8, device.compute)
    with pytest.raises(CudaError, match="ALREADY_MAPPED"):
        device.map(address, 2 * MIB, device.create(2 * MIB))
    (prepared,) = device.prepare([kernels.add_one(0)])
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        prepared.bind([address + 4 * MIB])
    with pytest.raises(CudaError, match="MISALIGNED"):
        prepared.bind([address + 2])
    with pytest.raises(CudaError, match="still mapped"):
        device.release(address, 8 * MIB)
    device.unmap(address, 2 * MIB)
    device.destroy(handle)
    with pytest.raises(DeviceMemoryExhausted):
        device.create(512 * MIB)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        device.create(5)


def test_memory_is_gone_when_unmapped(device):
    address = device.reserve(2 * MIB)
    handle = device.create(2 * MIB)
    for _ in range(2):
        device.map(address, 2 * MIB, handle)
        assert ctypes.c_uint8.from_address(address).value == 0
        device.fill(address, 9, 2 * MIB, device.compute)
        device.unmap(address, 2 * MIB)


def test_compiled_kernels_are_refused_by_the_interpreter(device):
    class Compiled:
        def __repr__(self):
            return "<a compiled kernel>"

    launch = kernels.add_one(0)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1 before Triton"):
        device.prepare([type(launch)(Compiled(), (1, 1, 1), launch.arguments)])


def test_events_and_peers(device):
    start, end = device.new_event(timing=True), device.new_event(timing=True)
    device.record(start, device.compute)
    device.record(end, device.compute)
    assert device.elapsed(start, end) >= 0 and device.done(end)
    other = InterpretDriver(1, total_memory=64 * MIB)
    source, target = runtime.Runtime(device), runtime.Runtime(other)
    values = np.arange(1000)
    block = put(source.pool, values)
    copied = source.copy_to(target, block)
    assert copied.device == 1 and block.device == 0
    np.testing.assert_array_equal(fetch(copied, values.dtype, 1000), values)


# Parameter blocks: what cuLaunchKernel would get, checked against real compilations.


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GENESIS_CACHE_DIR", str(tmp_path))


def test_parameter_block_of_pointers_and_numbers(fresh_cache):
    launch = kernels.axpy(100, 0.5)
    (compiled,) = compile_launches([launch], H200)
    assert compiled.layout == (8, 8, 8, 4, 4, 8, 8)
    block = ParameterBlock(launch, compiled, lambda *_: b"")
    block.bind([1 << 40, 2 << 40, 3 << 40], 77 << 8)
    numbers = [int.from_bytes(v, "little") for v in block.values()[:4]]
    assert numbers == [1 << 40, 2 << 40, 3 << 40, 100]
    assert struct.unpack("<f", block.values()[4]) == (0.5,)
    assert [int.from_bytes(v, "little") for v in block.values()[5:]] == [77 << 8, 0]


def test_parameter_block_of_descriptors(fresh_cache):
    launch = kernels.double_tile(256, 64, 32, "bf16")
    encoded = []

    def encode(descriptor, meta, address):
        encoded.append((tensor_map_geometry(descriptor, meta), address))
        return bytes([len(encoded)]) * 128

    (compiled,) = compile_launches([launch], H200)
    block = ParameterBlock(launch, compiled, encode)
    block.bind([1 << 20, 2 << 20], 0)
    assert encoded == [((9, [64, 256], [128], [64, 32]), n << 20) for n in (1, 2)]
    values = block.values()
    assert values[0] == b"\x01" * 128 and values[5] == b"\x02" * 128
    shape_and_strides = [int.from_bytes(v, "little") for v in values[1:5]]
    assert shape_and_strides == [256, 64, 64, 1]
    assert [len(v) for v in values[1:5]] == [4, 4, 8, 8]
    pointers = ctypes.cast(block.address, ctypes.POINTER(ctypes.c_void_p))
    assert pointers[0] % 64 == pointers[5] % 64 == 0, "tensor maps are aligned to 64 bytes"
    block.bind([1 << 20, 3 << 20], 0)
    assert len(encoded) == 3, "only what moved is encoded again"


def test_descriptors_become_pointers_where_there_is_no_tma(fresh_cache):
    launch = kernels.double_tile(256, 64, 32, "bf16")
    (compiled,) = compile_launches([launch], OF_ARCHITECTURE[80])
    block = ParameterBlock(launch, compiled, lambda *_: pytest.fail("nothing to encode"))
    block.bind([1 << 20, 2 << 20], 0)
    values = [int.from_bytes(v, "little") for v in block.values()]
    flags = compiled.layout.count(1) // 2
    half = [256, 64, 64, 1, *[0] * flags, 256, 64, 64, 1]
    assert values == [1 << 20, *half, 2 << 20, *half, 0, 0]


def test_unknown_layouts_are_refused(fresh_cache):
    launch = kernels.add_one(0)
    (compiled,) = compile_launches([launch], H200)
    wrong = type(compiled)(
        **{**{name: getattr(compiled, name) for name in type(compiled).__slots__}, "layout": (8, 8)}
    )
    with pytest.raises(RuntimeError, match=r"\[8, 8\] bytes, not \[8, 8, 8\]"):
        ParameterBlock(launch, wrong, lambda *_: b"")


def test_small_tensor_maps_are_patched():
    content = struct.pack("<16Q", *[(1 << 64) - 1] * 16)
    patched = patch_small_map(content, [64, 256], [128], 2)
    assert struct.unpack("<16Q", patched)[1] == (1 << 64) - 1 - (1 << 21)
    assert patch_small_map(content, [64, 1025], [128], 2) == content
    assert patch_small_map(content, [64, 1024], [128], 2) != content


def test_condition_kernels_assemble(tmp_path):
    """Triton's assembler takes the PTX and knows the system call, for every architecture."""
    import subprocess
    from pathlib import Path

    import triton

    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    (tmp_path / "c.ptx").write_text(condition_kernels.ptx())
    for architecture in ("sm_80", "sm_90"):
        subprocess.run(
            [ptxas, f"-arch={architecture}", tmp_path / "c.ptx", "-o", tmp_path / "c.cubin"],
            check=True,
        )
        binary = (tmp_path / "c.cubin").read_bytes()
        for mode in ("flag", "index", "count"):
            assert condition_kernels.entry(mode).encode() in binary
            assert condition_kernels.entry(mode) in condition_kernels.cuda_source()


def test_the_copy_kernel_assembles(tmp_path):
    import subprocess
    from pathlib import Path

    import triton

    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    (tmp_path / "c.ptx").write_text(copy_kernel.PTX)
    for architecture in ("sm_80", "sm_90"):
        subprocess.run(
            [ptxas, f"-arch={architecture}", tmp_path / "c.ptx", "-o", tmp_path / "c.cubin"],
            check=True,
        )
        assert copy_kernel.ENTRY in (tmp_path / "c.cubin").read_bytes()


def test_several_copies(device, pool):
    rng = np.random.default_rng(8)
    values = [rng.integers(0, 256, n, dtype=np.uint8) for n in (1, 16, 4097, 0, 70000)]
    blocks = [put(pool, x) for x in values]
    made = [pool.alloc(x.nbytes + 1) for x in values]
    copies = [(m.address + 1, b.address, x.nbytes) for m, b, x in zip(made, blocks, values)]
    device.copy_several(copies, device.compute)
    for m, x in zip(made, values):
        np.testing.assert_array_equal(fetch(m, np.uint8, x.nbytes + 1)[1:], x)


# Host copies.


@pytest.mark.parametrize("size", [1, 255, 4096, 3 * MIB + 5])
def test_staged_copies(device, pool, size):
    staging = Staging(device, ring_bytes=MIB)
    values = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    block = pool.alloc(size)
    for _ in range(3):
        values += 1
        staging.to_device(block.address, values.ctypes.data, size)
        result = np.empty_like(values)
        staging.to_host(result.ctypes.data, block.address, size)
        np.testing.assert_array_equal(result, values)
    gc.collect()
    held = staging.pinned.bytes
    assert held <= 4 * MIB
    staging.pinned.trim()
    assert staging.pinned.bytes == 0


class LateDriver(InterpretDriver):
    """Copies from pinned memory happen only when their event is waited for."""

    def __init__(self) -> None:
        super().__init__(0, total_memory=64 * MIB)
        self.queue = []

    def copy(self, destination, source, size, stream):
        self.queue.append(lambda: InterpretDriver.copy(self, destination, source, size, stream))

    def record(self, event, stream):
        event.time = 0.0
        self.queue.append(event)

    def done(self, event):
        return event not in self.queue

    def wait_host(self, event):
        while event in self.queue:
            work = self.queue.pop(0)
            if callable(work):
                work()


def test_the_ring_is_not_overwritten_before_it_is_read():
    device = LateDriver()
    pool = Pool(device)
    staging = Staging(device, ring_bytes=4096)
    choose = np.random.default_rng(0)
    wanted = []
    for _ in range(60):
        values = choose.integers(0, 256, int(choose.integers(1, 3000)), dtype=np.uint8)
        block = pool.alloc(values.nbytes)
        staging.to_device(block.address, values.ctypes.data, values.nbytes)
        wanted.append((block, values.copy()))
        values[:] = 0
    for block, values in wanted:
        result = np.empty_like(values)
        staging.to_host(result.ctypes.data, block.address, values.nbytes)
        np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize("ring", [4096, 1 << 20])
def test_uploads_arrive_whole(ring):
    """Parts that threads fill in any order, and copies that read them late."""
    device = LateDriver()
    pool = Pool(device)
    uploads = Uploads(device, ring_bytes=ring)
    choose = np.random.default_rng(ring)
    sizes = [*choose.integers(0, 3 * ring // 2, 12), 1, ring, 7]
    contents = [choose.integers(0, 256, int(n), dtype=np.uint8) for n in sizes]
    blocks = [pool.alloc(x.nbytes) for x in contents]

    def reader(x):
        def fill(memory, start):
            time.sleep(choose_wait[(start // 64) % 7])
            memory[:] = x.data[start : start + len(memory)]

        return fill

    choose_wait = choose.random(7) * 1e-3
    uploads.write((b.address, x.nbytes, reader(x)) for b, x in zip(blocks, contents))
    staging = Staging(device)
    for block, x in zip(blocks, contents):
        result = np.empty_like(x)
        staging.to_host(result.ctypes.data, block.address, x.nbytes)
        np.testing.assert_array_equal(result, x)


def test_an_upload_that_fails_leaves_no_thread_behind(device, pool):
    uploads = Uploads(device, ring_bytes=1 << 20)
    block, running = pool.alloc(4 << 20), []

    def fill(memory, start):
        running.append(start)
        time.sleep(1e-3)
        running.remove(start)
        if start == 1 << 19:
            raise OSError("the disk is gone")
        memory[:] = b"x" * len(memory)

    with pytest.raises(OSError, match="the disk is gone"):
        uploads.write([(block.address, 4 << 20, fill)])
    assert not running
    uploads.write([(block.address, 3, lambda memory, start: memory.__setitem__(slice(3), b"abc"))])
    result = np.empty(3, np.uint8)
    Staging(device).to_host(result.ctypes.data, block.address, 3)
    assert result.tobytes() == b"abc"


def test_late_reads(device, pool):
    staging = Staging(device)
    values = np.arange(5000)
    block = pool.alloc(values.nbytes)
    staging.to_device(block.address, values.ctypes.data, values.nbytes)
    read = staging.read(block.address, 80)
    device.fill(block.address, 0, 80, device.compute)
    result = np.empty(10, values.dtype)
    assert read.done
    read.into(result.ctypes.data)
    np.testing.assert_array_equal(result, values[:10])


# The error word.


class Program:
    """What has an error word."""


def says(name: str):
    return lambda site, index: IndexError(f"{name}: site {site}, index {index}")


def test_error_word_names_the_check_and_clears(device, pool):
    words = ErrorWords(device)
    other, this = Program(), Program()
    words.register(other, says("other"))
    address = words.register(this, says("this"))
    block = put(pool, np.array([3], np.int32))
    (prepared,) = device.prepare([kernels.check(0, 1, 10, 5)])
    prepared.bind([block.address, address])
    prepared.launch(device.compute)
    words.raise_if_set()
    device.fill_words(block.address, 99, 1, device.compute)
    prepared.launch(device.compute)
    with pytest.raises(IndexError, match="this: site 5, index 99"):
        words.raise_if_set()
    words.raise_if_set()


def test_failures_of_several_programs_are_one_error(device):
    words, programs = ErrorWords(device), [Program() for _ in range(3)]
    addresses = [words.register(p, says(f"program {n}")) for n, p in enumerate(programs)]
    for address, index in zip(addresses[1:], (7, -8)):
        ctypes.c_int64.from_address(address).value = 2 << 40 | (index & (1 << 40) - 1)
    with pytest.raises(IndexError, match="program 1: site 2, index 7") as error:
        words.raise_if_set()
    assert error.value.__notes__ == ["and IndexError: program 2: site 2, index -8"]
    words.raise_if_set()


def test_error_words_are_taken_apart():
    for site, index in ((1, 0), (7, -1), (1 << 22, (1 << 39) - 1), (3, -(1 << 39))):
        word = site << 40 | (index & (1 << 40) - 1)
        assert decode(word) == (site, index)


def test_what_a_program_reported_outlives_it(device):
    words = ErrorWords(device)
    program = Program()
    address = words.register(program, says("gone"))
    del program
    gc.collect()
    ctypes.c_int64.from_address(address).value = 2 << 40 | 5
    with pytest.raises(IndexError, match="gone: site 2, index 5"):
        words.raise_if_set()


def test_error_words_are_reused_in_the_order_of_their_ends(device):
    words = ErrorWords(device)
    addresses = [words.register(Program(), says(f"{n}")) for n in range(200)]
    # Every program has ended; a word waits for the host to look at it before another takes it.
    assert addresses[:65] == [addresses[0] + 8 * n for n in range(65)]
    assert addresses[65:130] == addresses[:65] and len(set(addresses)) == 65
    ctypes.c_int64.from_address(addresses[-1]).value = 1 << 40
    with pytest.raises(IndexError, match="199: site 1, index 0"):
        words.raise_if_set()


def test_reading_a_value_raises_what_kernels_reported(device):
    here = runtime.Runtime(device)
    program = Program()
    address = here.errors.register(program, lambda site, index: IndexError(f"index {index}"))
    block = put(here.pool, np.array([50], np.int32))
    (prepared,) = device.prepare([kernels.check(0, 1, 10, 1)])
    prepared.bind([block.address, address])
    prepared.launch(device.compute)
    value = np.empty(1, np.int32)
    with pytest.raises(IndexError, match="index 50"):
        here.read(value.ctypes.data, block.address, 4)
    here.read(value.ctypes.data, block.address, 4)
    here.synchronize()
    assert value[0] == 50


# Exchange. The interpreting driver's memory is host memory, so torch's CPU side and NumPy take it.


class Exported:
    def __init__(self, buffer, shape, strides, dtype, offset=0, read_only=False):
        self.arguments = (buffer, shape, strides, dtype)
        self.options = {"offset": offset, "read_only": read_only}

    def __dlpack_device__(self):
        return dlpack.dlpack_device(self.arguments[0])

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        return dlpack.to_dlpack(
            *self.arguments, stream=stream, max_version=max_version, **self.options
        )


DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
    "bool", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_takes_and_gives_every_type(device, pool, dtype):
    values = torch.arange(24).reshape(4, 6).to(getattr(torch, dtype))
    imported = dlpack.from_dlpack(values, device)
    assert (imported.shape, imported.strides, imported.dtype) == ((4, 6), (6, 1), dtype)
    assert imported.buffer.address == values.data_ptr()
    assert imported.buffer.bytes == values.nbytes
    block = pool.alloc(values.nbytes)
    device.copy(block.address, imported.buffer.address, values.nbytes, device.compute)
    view = torch.from_dlpack(Exported(block, (4, 6), (6, 1), dtype))
    assert view.data_ptr() == block.address and view.dtype == values.dtype
    assert torch.equal(view, values)


def test_strided_views_and_offsets(device, pool):
    values = np.arange(60, dtype=np.int32).reshape(6, 10)
    block = put(pool, values)
    view = torch.from_dlpack(Exported(block, (3, 5), (20, 2), "int32", offset=4))
    np.testing.assert_array_equal(view.numpy(), values[::2, 1::2])
    imported = dlpack.from_dlpack(torch.from_numpy(values)[1::2, ::3], device)
    assert imported.shape == (3, 4) and imported.strides == (20, 3)
    assert imported.buffer.bytes == 4 * (1 + 2 * 20 + 3 * 3)


def test_numpy_sees_read_only_memory(pool):
    block = put(pool, np.arange(10, dtype=np.float32))
    view = np.from_dlpack(Exported(block, (10,), (1,), "float32", read_only=True))
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, np.arange(10))


def test_exported_memory_lives_as_long_as_its_last_user(pool):
    block = put(pool, np.arange(1000, dtype=np.int64))
    address = block.address
    exported = Exported(block, (1000,), (1,), "int64")
    view = torch.from_dlpack(exported)
    unused = exported.__dlpack__()
    del block, exported
    assert pool.alloc(8000).address != address
    del unused
    assert pool.alloc(8000).address != address
    assert int(view.sum()) == 499500
    del view
    gc.collect()
    assert pool.alloc(8000).address == address
    assert not dlpack._exported


def test_imported_memory_lives_as_long_as_our_buffer(device):
    class Owner(np.ndarray):
        pass

    import weakref

    values = np.arange(5.0).view(Owner)
    watch = weakref.ref(values)
    imported = dlpack.from_dlpack(values, device)
    del values
    gc.collect()
    assert watch() is not None
    assert np.frombuffer((ctypes.c_double * 5).from_address(imported.buffer.address))[4] == 4
    del imported
    gc.collect()
    dlpack.release_finished()
    assert watch() is None


def test_exchange_refuses_what_it_cannot_hold(device, pool):
    block = pool.alloc(64)
    with pytest.raises(TypeError, match="float128"):
        dlpack.to_dlpack(block, (4,), (1,), "float128")
    with pytest.raises(TypeError, match="bfloat16; use DLPack"):
        dlpack.to_cuda_array_interface(block, (4,), (1,), "bfloat16")

    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 1)

    with pytest.raises(ValueError, match=r"\(2, 1\), not on cuda:0"):
        dlpack.from_dlpack(Elsewhere(), device)


def test_cuda_array_interface(pool):
    block = pool.alloc(4 * 60)
    facts = dlpack.to_cuda_array_interface(block, (5, 6), (12, 2), "float32", offset=4)
    assert facts["typestr"] == "<f4" and facts["version"] == 3
    assert facts["data"] == (block.address + 4, True) and facts["strides"] == (48, 8)


def test_memory_functions_of_the_process(monkeypatch):
    monkeypatch.setenv("GENESIS_CUDA_DRIVER", "interpret")
    monkeypatch.setattr(runtime, "_runtimes", {})
    monkeypatch.setattr(drivers, "opened", {})
    here = runtime.device_runtime(0)
    assert here is runtime.device_runtime(0)
    block = here.alloc(3 * MIB, "a line")
    stats = cuda.memory_stats(0)
    assert stats["in_use"] == 3 * MIB == stats["peak"] and stats["mapped"] == 32 * MIB
    assert "a line" in cuda.memory_summary(0)
    assert any(part["site"] == "a line" for part in cuda.memory_snapshot(0))
    del block
    cuda.reset_peak(0)
    assert cuda.memory_stats(0)["in_use"] == 0
    assert cuda.empty_cache(0) == 32 * MIB
    cuda.set_memory_fraction(0.5, 0)
    assert here.pool.limit == here.driver.info.total_memory // 2


def test_threads_launch_kernels(device, pool):
    errors = []

    def work(i: int) -> None:
        try:
            x = np.full(64, i, np.float32)
            blocks = [put(pool, x), put(pool, x), pool.alloc(256)]
            (prepared,) = device.prepare([kernels.axpy(64, 3.0)])
            prepared.bind([b.address for b in blocks])
            for _ in range(3):
                prepared.launch(device.compute)
            np.testing.assert_array_equal(fetch(blocks[2], np.float32, 64), 4 * x)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


@pytest.mark.interpreted
def test_kernels_stay_within_their_buffers(device, pool):
    x, y = np.arange(200, dtype=np.float32), np.ones(200, np.float32)
    blocks = [put(pool, x), put(pool, y), pool.alloc(800)]
    (prepared,) = device.prepare([kernels.axpy(200, 2.5)])
    addresses = [b.address for b in blocks]
    ranges = [(a, a + 800) for a in addresses]
    prepared.bind(addresses, 0, ranges)
    prepared.launch(device.compute)
    for n in range(3):
        short = [(a, e - 4 * (i == n)) for i, (a, e) in enumerate(ranges)]
        prepared.bind(addresses, 0, short)
        with pytest.raises(CudaError, match="ILLEGAL_ADDRESS.*1 of .* accesses are outside"):
            prepared.launch(device.compute)
