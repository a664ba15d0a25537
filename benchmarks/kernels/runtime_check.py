"""Checks every path of the CUDA runtime on a GPU, and times it.

    python benchmarks/kernels/runtime_check.py --out runtime.json [--only NAME ...] [--skip-timing]

Needs an NVIDIA GPU (sm_90 for the descriptor checks), cuda-bindings and Triton; torch is the
reference, CuPy and JAX are used where installed. Prints a table; exits with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if "GENESIS_CACHE_DIR" not in os.environ:
    os.environ["GENESIS_CACHE_DIR"] = tempfile.mkdtemp(prefix="runtime-check-")

import numpy as np

from genesis_fn.backends.cuda.binaries import compile as compiler
from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.driver.drivers import device_count, open_driver
from genesis_fn.backends.cuda.driver.errors import ForkedProcessError, OutOfMemory
from genesis_fn.backends.cuda.memory import dlpack
from genesis_fn.backends.cuda.memory.pool import Pool
from genesis_fn.backends.cuda.memory.report import memory_snapshot, memory_stats, memory_summary
from genesis_fn.backends.cuda.run.graph import BufferAddress, CapturedProgram, capture_program
from genesis_fn.backends.cuda.run.runtime import Runtime, device_runtime
from genesis_fn.backends.cuda.run.steps import Copy, ForLoop, SubProgram, Switch, While
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Memset, Scalar
from genesis_fn.kernels.plan_builder import dense

MIB = 1 << 20
HEADER = "import triton\nimport triton.language as tl\n\n@triton.jit\n"


def kernel(name: str, body: str, header: str = HEADER) -> SourceKernel:
    return SourceKernel(name, header + body, modules=())


AXPY = kernel(
    "axpy",
    """\
def axpy(x, y, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    tl.store(out + i, scale * tl.load(x + i, keep) + tl.load(y + i, keep), keep)
""",
)
MATMUL = kernel(
    "matmul",
    """\
def matmul(a, b, c, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([k, n]), acc)
    c.store([m, n], acc.to(tl.bfloat16))
""",
)
DEVICE_DESCRIPTOR = kernel(
    "device_descriptor",
    """\
def device_descriptor(x, out, rows, N: tl.constexpr, M: tl.constexpr):
    src = tl.make_tensor_descriptor(x, shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    dst = tl.make_tensor_descriptor(out, shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    row = tl.program_id(0) * M
    dst.store([row, 0], src.load([row, 0]) * 2)
""",
)
CHAINED = kernel(
    "chained",
    """\
def chained(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gdc_wait()
    value = tl.load(x + i, i < n)
    gdc_launch_dependents()
    tl.store(x + i, value * 3 + 1, i < n)
""",
    "import triton\nimport triton.language as tl\n"
    "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n\n@triton.jit\n",
)
ADD_ONE = kernel(
    "add_one", "def add_one(x, AMOUNT: tl.constexpr):\n    tl.store(x, tl.load(x) + AMOUNT)\n"
)
BELOW = kernel(
    "below", "def below(x, flag, limit):\n    tl.store(flag, (tl.load(x) < limit).to(tl.int8))\n"
)
RECORD = kernel(
    "record", "def record(counter, out):\n    i = tl.load(counter)\n    tl.store(out + i, i * 10)\n"
)
CHECK = kernel(
    "check",
    """\
def check(x, word, limit, SITE: tl.constexpr):
    value = tl.load(x)
    if value >= limit:
        tl.atomic_max(word, (SITE << 40) | (value.to(tl.int64) & 0xFFFFFFFFFF), sem="relaxed")
""",
)
SPIN = kernel(
    "spin",
    """\
def spin(x, rounds):
    value = tl.load(x)
    for i in range(rounds):
        value = value * 1664525 + 1013904223
    tl.store(x, value)
""",
)


def axpy(n: int, scale: float, block: int = 1024, warps: int = 4) -> Launch:
    arguments = {
        "x": BufferArg(0, "fp32"),
        "y": BufferArg(1, "fp32"),
        "out": BufferArg(2, "fp32"),
        "n": Scalar(n),
        "scale": Scalar(scale, "fp32"),
    }
    return Launch(AXPY, (-(-n // block), 1, 1), arguments, {"BLOCK": block}, warps)


def matmul(m: int, n: int, k: int, bm: int = 128, bn: int = 128, bk: int = 64) -> Launch:
    def tile(index: int, rows: int, columns: int, block: tuple[int, int]) -> Descriptor:
        return Descriptor(BufferArg(index, "bf16"), (rows, columns), (columns, 1), block)

    arguments = {
        "a": tile(0, m, k, (bm, bk)),
        "b": tile(1, k, n, (bk, bn)),
        "c": tile(2, m, n, (bm, bn)),
    }
    constants = {"K": k, "BM": bm, "BN": bn, "BK": bk}
    return Launch(MATMUL, (m // bm, n // bn, 1), arguments, constants, 8, 4)


def add_one(buffer: int, amount: int = 1) -> Launch:
    return Launch(ADD_ONE, (1, 1, 1), {"x": BufferArg(buffer, "i32")}, {"AMOUNT": amount}, 1)


def below(buffer: int, flag: int, limit: int) -> Launch:
    arguments = {
        "x": BufferArg(buffer, "i32"),
        "flag": BufferArg(flag, "i8"),
        "limit": Scalar(limit),
    }
    return Launch(BELOW, (1, 1, 1), arguments, {}, 1)


def spin(rounds: int) -> Launch:
    arguments = {"x": BufferArg(0, "i32"), "rounds": Scalar(rounds)}
    return Launch(SPIN, (1, 1, 1), arguments, {}, 1)


CHECKS: dict[str, tuple[Callable[[], dict[str, Any] | None], bool]] = {}


def check(function: Callable[[], dict[str, Any] | None]) -> Callable[[], dict[str, Any] | None]:
    CHECKS[function.__name__] = (function, False)
    return function


def timing(function: Callable[[], dict[str, Any] | None]) -> Callable[[], dict[str, Any] | None]:
    CHECKS[function.__name__] = (function, True)
    return function


def require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def here() -> Runtime:
    return device_runtime(0)


def put(array: np.ndarray) -> Any:
    array = np.ascontiguousarray(array)
    block = here().alloc(array.nbytes)
    here().staging.to_device(block.address, array.ctypes.data, array.nbytes)
    return block


def fetch(block: Any, dtype: Any, shape: Any) -> np.ndarray:
    result = np.empty(shape, dtype)
    here().staging.to_host(result.ctypes.data, block.address, result.nbytes)
    return result


def run(launch: Launch, *blocks: Any) -> Any:
    (prepared,) = here().driver.prepare([launch])
    scratch = here().alloc(prepared.scratch_bytes) if prepared.scratch_bytes else None
    prepared.bind([b.address for b in blocks], scratch.address if scratch else 0)
    prepared.launch(here().driver.compute)
    here().driver.synchronize()
    return prepared


def as_torch(block: Any, shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    return torch.from_dlpack(Exported(block, shape, dtype))


class Exported:
    """A minimal array over a block, as the library's own would export itself."""

    def __init__(self, block: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.facts = (block, shape, dense(shape), dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.dlpack_device(self.facts[0])

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **_: Any) -> Any:
        return dlpack.to_dlpack(
            *self.facts, stream=stream, max_version=max_version, read_only=False
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dlpack.to_cuda_array_interface(*self.facts, read_only=False)


class Program:
    """Numbered int32 buffers on the device, for graph checks."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.blocks = [put(np.zeros(size, np.int32)) for size in sizes]

    def build(self, *steps: Any, conditional_nodes: bool | None = None) -> CapturedProgram:
        memory = [
            BufferAddress(b.address, 4 * n) for b, n in zip(self.blocks, self.sizes, strict=True)
        ]
        return capture_program(here(), steps, memory, conditional_nodes=conditional_nodes)

    def write(self, index: int, values: Any) -> None:
        array = np.asarray(values, np.int32)
        here().staging.to_device(self.blocks[index].address, array.ctypes.data, array.nbytes)

    def read(self, index: int) -> list[int]:
        return fetch(self.blocks[index], np.int32, self.sizes[index]).tolist()


# Kernels.


@check
def device() -> dict[str, Any]:
    info = here().driver.info
    require(device_count() >= 1, "no device")
    return {
        "name": info.name,
        "architecture": info.target.architecture,
        "memory": info.total_memory,
        "granularity": info.granularity,
        "conditional_nodes": info.target.conditional_nodes,
        "driver": here().driver.driver_version,
    }


@check
def launch_pointwise() -> None:
    n = 100_003
    x, y = np.random.rand(n).astype(np.float32), np.random.rand(n).astype(np.float32)
    blocks = [put(x), put(y), here().alloc(4 * n)]
    run(axpy(n, 2.5), *blocks)
    np.testing.assert_allclose(fetch(blocks[2], np.float32, n), 2.5 * x + y, rtol=1e-6)


@check
def launch_host_descriptors() -> dict[str, Any]:
    """Large dynamic shared memory and by-value tensor maps; one operand is below 128 KiB."""
    import torch

    results = {}
    for m, n, k in ((1024, 768, 512), (128, 128, 64), (256, 128, 4096)):
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        left, right = (dlpack.from_dlpack(t, here().driver).buffer for t in (a, b))
        out = here().alloc(2 * m * n)
        prepared = run(matmul(m, n, k), left, right, out)
        result = as_torch(out, (m, n), "bfloat16").float()
        wanted = (a.double() @ b.double()).float()
        error = (result - wanted).abs().max().item() / wanted.abs().max().item()
        require(error < 1e-2, f"{m} {n} {k}: relative error {error}")
        results[f"{m}x{n}x{k}"] = error
    results["shared"] = prepared.compiled.shared
    return results


@check
def launch_device_descriptors() -> dict[str, Any]:
    """Descriptors made in the kernel live in global scratch memory."""
    x = np.random.rand(512, 64).astype(np.float32)
    blocks = [put(x), here().alloc(x.nbytes)]
    arguments = {"x": BufferArg(0, "fp32"), "out": BufferArg(1, "fp32"), "rows": Scalar(512)}
    launch = Launch(DEVICE_DESCRIPTOR, (8, 1, 1), arguments, {"N": 64, "M": 64})
    prepared = run(launch, *blocks)
    require(prepared.scratch_bytes > 0, "no scratch was asked for")
    np.testing.assert_array_equal(fetch(blocks[1], np.float32, (512, 64)), 2 * x)
    program = capture_program(
        here(), [launch], [BufferAddress(b.address, x.nbytes) for b in blocks]
    )
    here().driver.fill(blocks[1].address, 0, x.nbytes, here().driver.compute)
    program.launch()
    np.testing.assert_array_equal(fetch(blocks[1], np.float32, (512, 64)), 2 * x)
    return {"scratch": prepared.scratch_bytes}


@check
def programmatic_dependent_launch() -> None:
    n = 1 << 16
    x = np.ones(n, np.int32)
    launch = Launch(
        CHAINED,
        (n // 256, 1, 1),
        {"x": BufferArg(0, "i32"), "n": Scalar(n)},
        {"BLOCK": 256},
        programmatic=True,
    )
    wanted = 1
    for _ in range(10):
        wanted = wanted * 3 + 1
    block = put(x)
    prepared = here().driver.prepare([launch])[0]
    prepared.bind([block.address])
    for _ in range(10):
        prepared.launch(here().driver.compute)
    require((fetch(block, np.int32, n) == wanted).all(), "launched one by one")
    block = put(x)
    program = capture_program(here(), [launch] * 10, [BufferAddress(block.address, 4 * n)])
    program.launch()
    require((fetch(block, np.int32, n) == wanted).all(), "in a graph")
    if here().driver.info.target.conditional_nodes:
        block, counter = put(x), put(np.zeros(1, np.int32))
        memory = [BufferAddress(block.address, 4 * n), BufferAddress(counter.address, 4)]
        loop = ForLoop(5, BufferArg(1, "i32"), (launch, launch))
        capture_program(here(), [loop], memory).launch()
        require((fetch(block, np.int32, n) == wanted).all(), "in a loop of a graph")


@check
def compile_in_parallel() -> dict[str, Any]:
    launches = [
        axpy(1 << 20, 1.0, block, warps) for block in (128, 256, 512) for warps in (1, 2, 4, 8)
    ]
    launches += [matmul(4096, 4096, 4096, bm, bn) for bm in (64, 128) for bn in (64, 128)]
    target = here().driver.info.target
    start = time.perf_counter()
    cold = compiler.compile_launches(launches, target)
    first = time.perf_counter() - start
    start = time.perf_counter()
    compiler._memory.clear()
    warm = compiler.compile_launches(launches, target)
    second = time.perf_counter() - start
    require([c.binary for c in cold] == [c.binary for c in warm], "the cache changed a kernel")
    return {"kernels": len(launches), "cold_s": first, "warm_s": second}


# Graphs.


@check
def graph_replay() -> None:
    m = Program(1, 4, 4)
    m.write(1, [1, 2, 3, 4])
    inner = SubProgram((add_one(0, 5),), ((2, 12),))
    program = m.build(
        add_one(0), Copy(2, 1, 8, destination_offset=8, source_offset=4), inner, Memset(1)
    )
    require(m.read(0) == [0], "capturing must not run")
    program.launch()
    require(m.read(0) == [1] and m.read(2) == [0, 0, 2, 8] and m.read(1) == [0] * 4, "first")
    program.launch()
    require(m.read(0) == [2] and m.read(2) == [0, 0, 0, 5], "second")


def control_flow(conditional_nodes: bool) -> int:
    m = Program(1, 1, 1)
    loop = While((below(0, 1, 10),), BufferArg(1, "i8"), (add_one(0, 3), add_one(2)))
    program = m.build(loop, add_one(2, 100), conditional_nodes=conditional_nodes)
    for start, runs in ((0, 4), (9, 1), (10, 0), (-5, 5)):
        m.write(0, [start])
        m.write(2, [0])
        program.launch()
        require(m.read(2) == [100 + runs] and m.read(0) == [start + 3 * runs], f"while {start}")
    m = Program(1, 1)
    branches = tuple((add_one(0, 10**i),) for i in range(3))
    program = m.build(Switch(BufferArg(1, "i32"), branches), conditional_nodes=conditional_nodes)
    for index in (0, 1, 2, -7, 99):
        m.write(1, [index])
        program.launch()
    require(m.read(0) == [212], f"switch: {m.read(0)}")
    m = Program(1, 6)
    record = Launch(
        RECORD, (1, 1, 1), {"counter": BufferArg(0, "i32"), "out": BufferArg(1, "i32")}, {}, 1
    )
    for count in (0, 1, 5):
        m.write(1, [-1] * 6)
        program = m.build(
            ForLoop(count, BufferArg(0, "i32"), (record,)), conditional_nodes=conditional_nodes
        )
        program.launch()
        wanted = [10 * i if i < count else -1 for i in range(6)]
        require(m.read(0) == [count] and m.read(1) == wanted, f"repeat {count}: {m.read(1)}")
    m = Program(1, 1, 1, 1, 1, 1)
    m.write(5, [1])
    inner = While(
        (below(1, 2, 7),),
        BufferArg(2, "i8"),
        (
            add_one(1, 2),
            Switch(BufferArg(5, "i32"), ((), (add_one(3),))),
            ForLoop(2, BufferArg(4, "i32"), (add_one(3, 100),)),
        ),
    )
    program = m.build(
        ForLoop(3, BufferArg(0, "i32"), (Memset(1), inner)), conditional_nodes=conditional_nodes
    )
    for _ in range(2):
        m.write(3, [0])
        program.launch()
        require(m.read(0) == [3] and m.read(1) == [8] and m.read(3) == [3 * 4 * 201], "nested")
    return program.segments


@check
def conditional_nodes() -> dict[str, Any]:
    if not here().driver.info.target.conditional_nodes:
        return {"skipped": "the driver has no conditional nodes"}
    return {"parts": control_flow(True)}


@check
def control_flow_by_the_host() -> dict[str, Any]:
    return {"parts": control_flow(False)}


@check
def condition_kernels_through_nvrtc() -> dict[str, Any]:
    from cuda.bindings import driver as cu

    binary = here().driver._compile_setters()
    code, _ = cu.cuModuleLoadData(binary)
    require(code == cu.CUresult.CUDA_SUCCESS, str(code))
    return {"bytes": len(binary)}


# Memory.


def fill_and_verify(pool: Pool, blocks: dict[int, Any]) -> None:
    """Each block holds its key in every byte."""
    for byte, block in blocks.items():
        for place in (
            block.address,
            block.address + block.bytes // 2,
            block.address + block.bytes - 1,
        ):
            value = ctypes.c_uint8()
            pool.driver.copy(ctypes.addressof(value), place, 1, pool.driver.compute)
            pool.driver.synchronize()
            require(value.value == byte, f"block {byte} was overwritten")


@check
def allocator_pressure() -> dict[str, Any]:
    """In 4 GiB: scattered free memory is moved behind one block, and live contents survive."""
    driver = here().driver
    pool = Pool(driver)
    pool.set_memory_fraction((4 << 30) / driver.info.total_memory)
    blocks = {i: pool.alloc(64 * MIB, f"block {i % 4}") for i in range(63)}
    for byte, block in blocks.items():
        driver.fill(block.address, byte, block.bytes, driver.compute)
    for i in range(0, 63, 2):
        del blocks[i]
    block = None
    before = memory_stats(pool)
    start = time.perf_counter()
    big = pool.alloc(1800 * MIB, "big")
    moved = time.perf_counter() - start
    driver.fill(big.address, 255, big.bytes, driver.compute)
    fill_and_verify(pool, {**blocks, 255: big})
    try:
        pool.alloc(1 << 30)
        raise AssertionError("4 GiB were exceeded")
    except OutOfMemory as error:
        message = str(error)
        require(error.sites[0][2] == "big" and len(error.sites) == 3, message)
    del big
    again = pool.alloc(1 << 30)
    driver.fill(again.address, 1, again.bytes, driver.compute)
    fill_and_verify(pool, blocks)
    parts = memory_snapshot(pool)
    require(sum(p["size"] for p in parts) == pool.mapped, "bytes are missing")
    del again
    blocks.clear()
    freed = pool.empty_cache()
    require(pool.mapped == 0, f"{pool.mapped} bytes stayed mapped")
    pool.close()
    return {
        "fragmentation_before": before["fragmentation"],
        "remap_ms": 1e3 * moved,
        "freed": freed,
        "message": message.splitlines()[0],
    }


@check
def allocator_whole_device() -> dict[str, Any]:
    """The device itself runs out (not the limit), the error says so, and work goes on."""
    driver = here().driver
    pool = Pool(driver)
    held, size = [], driver.info.total_memory // 32
    try:
        while True:
            held.append(pool.alloc(size, "filler"))
            require(len(held) < 1000, "endless memory")
    except OutOfMemory as error:
        text = str(error)
        require(error.free_on_device < size + (1 << 30), text)
    count = len(held)
    held.pop()
    x = pool.alloc(size // 2)
    driver.fill(x.address, 3, x.bytes, driver.compute)
    driver.synchronize()
    del x
    held.clear()
    lines = len(memory_summary(pool).splitlines())
    pool.close()
    return {"blocks": count, "summary_lines": lines}


@check
def allocator_threads() -> dict[str, Any]:
    pool = Pool(here().driver)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        choose, held = random.Random(seed), []
        try:
            for _ in range(3000):
                held.append(pool.alloc(choose.choice([100, 5000, 70_000, 3 * MIB, 20 * MIB])))
                if len(held) > 10:
                    held.pop(choose.randrange(10))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    require(not errors, str(errors[:1]))
    stats = memory_stats(pool)
    require(stats["in_use"] == 0 and stats["allocations"] == 24000, str(stats))
    pool.close()
    return {"peak": stats["peak"]}


@check
def staged_copies() -> dict[str, Any]:
    staging = here().staging
    for size in (1, 4097, 40 * MIB + 3):
        values = np.random.randint(0, 256, size).astype(np.uint8)
        block = put(values)
        require((fetch(block, np.uint8, size) == values).all(), f"{size} bytes")
    values = np.random.randint(0, 256, 512 * MIB // 8).astype(np.int64)
    block = here().alloc(values.nbytes)
    results = {}
    for name, work in (
        ("to_device", lambda: staging.to_device(block.address, values.ctypes.data, values.nbytes)),
        ("to_host", lambda: staging.to_host(values.ctypes.data, block.address, values.nbytes)),
    ):
        work()
        here().driver.synchronize()
        start = time.perf_counter()
        work()
        here().driver.synchronize()
        results[f"{name}_GBps"] = values.nbytes / (time.perf_counter() - start) / 1e9
    staging.to_device(block.address, values.ctypes.data, values.nbytes)
    read = staging.read(block.address, 800)
    here().driver.fill(block.address, 0, 800, here().driver.compute)
    result = np.empty(100, np.int64)
    read.into(result.ctypes.data)
    require((result == values[:100]).all(), "late read")
    return results


@check
def error_word() -> None:
    """Kernels raise words of pinned memory with atomics."""
    x = Program(1)
    word = here().errors.register(x, lambda site, index: IndexError(f"site {site} index {index}"))
    arguments = {"x": BufferArg(0, "i32"), "word": BufferArg(1, "i64"), "limit": Scalar(10)}
    launch = Launch(CHECK, (1, 1, 1), arguments, {"SITE": 3}, 1)
    memory = [BufferAddress(x.blocks[0].address, 4), BufferAddress(word, 8)]
    program = capture_program(here(), [launch], memory)
    for value, fails in ((5, False), (77, True), (-3, False)):
        x.write(0, [value])
        program.launch()
        try:
            here().synchronize()
            require(not fails, "the failure was lost")
        except IndexError as error:
            require(fails and str(error) == f"site 3 index {value}", str(error))
    here().synchronize()


@check
def fork_is_refused() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            here().alloc(10)
            text = "no error"
        except ForkedProcessError:
            text = "refused"
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    require(text == "refused", text)


@check
def peers() -> dict[str, Any]:
    if device_count() < 2:
        return {"skipped": "one device"}
    other = device_runtime(1)
    values = np.random.rand(1 << 20)
    copied = here().copy_to(other, put(values))
    result = np.empty_like(values)
    other.staging.to_host(result.ctypes.data, copied.address, result.nbytes)
    require((result == values).all(), "the copy differs")
    return {"devices": device_count()}


# Exchange. Long kernels run before each hand-over, so a missing wait shows as a wrong value.


def slow_increment(block: Any, rounds: int = 2_000_000) -> int:
    """Enqueues a kernel of some milliseconds on an int32; returns the value that it leaves."""
    (prepared,) = here().driver.prepare([spin(rounds)])
    prepared.bind([block.address])
    prepared.launch(here().driver.compute)
    # x -> a x + c, applied `rounds` times to 1, by squaring.
    result, power, summed, left = 1, 1664525, 1013904223, rounds
    while left:
        if left & 1:
            result = (power * result + summed) & 0xFFFFFFFF
        summed = (power * summed + summed) & 0xFFFFFFFF
        power = power * power & 0xFFFFFFFF
        left >>= 1
    return result - (1 << 32) if result >> 31 else result


@check
def dlpack_torch() -> None:
    import torch

    side = torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), side):
        with torch.cuda.stream(stream):
            block = put(np.ones(1, np.int32))
            wanted = slow_increment(block)
            view = torch.from_dlpack(Exported(block, (1,), "int32"))
            require(view.data_ptr() == block.address, "a copy was made")
            require(int(view.item()) == wanted, "torch read too early")
            view.fill_(5)
            torch.cuda._sleep(50_000_000)
            view.fill_(6)
            address = block.address
            del view, block
            reused = here().alloc(4)
            here().driver.fill(reused.address, 0, 4, here().driver.compute)
            torch.cuda.synchronize()
            here().driver.synchronize()
            require(
                reused.address != address or fetch(reused, np.int32, 1)[0] == 0,
                "memory was reused under torch's kernel",
            )
            values = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(50_000_000)
            values += 7
            imported = dlpack.from_dlpack(values, here().driver)
            require(imported.buffer.address == values.data_ptr(), "a copy was made")
            out = here().alloc(4 << 20)
            driver = here().driver
            driver.copy(out.address, imported.buffer.address, 4 << 20, driver.compute)
            require((fetch(out, np.float32, 1 << 20) == 7).all(), "we read too early")
            del imported, values
            dlpack.release_finished()
    require(not dlpack._exported, "an export was never let go")


@check
def array_interface_torch() -> None:
    import torch

    block = put(np.arange(12, dtype=np.float32))
    view = torch.as_tensor(Exported(block, (3, 4), "float32"), device="cuda")
    require(view.data_ptr() == block.address and float(view[2, 3]) == 11, "torch's view")


@check
def dlpack_and_interface_cupy() -> dict[str, Any] | None:
    try:
        import cupy
    except ImportError:
        return {"skipped": "no CuPy"}
    block = put(np.ones(1, np.int32))
    wanted = slow_increment(block)
    view = cupy.from_dlpack(Exported(block, (1,), "int32"))
    require(view.data.ptr == block.address and int(view[0]) == wanted, "DLPack out")
    block = put(np.ones(1, np.int32))
    wanted = slow_increment(block)
    view = cupy.asarray(Exported(block, (1,), "int32"))
    require(view.data.ptr == block.address and int(view[0]) == wanted, "interface out")
    values = cupy.arange(1000, dtype=cupy.float32) * 2
    imported = dlpack.from_dlpack(values, here().driver)
    require(imported.buffer.address == values.data.ptr, "a copy was made")
    out = here().alloc(4000)
    driver = here().driver
    driver.copy(out.address, imported.buffer.address, 4000, driver.compute)
    require((fetch(out, np.float32, 1000) == 2 * np.arange(1000)).all(), "values in")
    return None


@check
def dlpack_jax() -> dict[str, Any] | None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        return {"skipped": "no JAX"}
    if jax.default_backend() != "gpu":
        return {"skipped": f"JAX runs on {jax.default_backend()}"}
    values = jax.numpy.arange(1000, dtype="float32") * 2
    imported = dlpack.from_dlpack(values, here().driver)
    require((fetch(imported.buffer, np.float32, 1000) == 2 * np.arange(1000)).all(), "values in")
    block = put(np.ones(1, np.int32))
    wanted = slow_increment(block)
    require(int(jax.dlpack.from_dlpack(Exported(block, (1,), "int32"))[0]) == wanted, "values out")
    return None


# Timing.


def per_call(work: Callable[[], Any], count: int, repeats: int = 11) -> float:
    """Median microseconds of a call, after warm-up, with the device drained outside."""
    for _ in range(min(count, 20)):
        work()
    here().driver.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            work()
        times.append((time.perf_counter() - start) / count * 1e6)
        here().driver.synchronize()
    return statistics.median(times)


@timing
def launch_cost() -> dict[str, Any]:
    driver = here().driver
    blocks = [here().alloc(4096) for _ in range(3)]
    addresses = [b.address for b in blocks]
    (prepared,) = driver.prepare([axpy(1024, 1.0)])
    prepared.bind(addresses)
    results = {"launch_us": per_call(lambda: prepared.launch(driver.compute), 300)}

    def bound() -> None:
        prepared.bind(addresses)
        prepared.launch(driver.compute)

    results["bind_and_launch_us"] = per_call(bound, 300)
    operands = [here().alloc(2 * 128 * 128) for _ in range(3)]
    (product,) = driver.prepare([matmul(128, 128, 64)])
    places = [b.address for b in operands]
    product.bind(places)
    results["launch_three_tensor_maps_us"] = per_call(lambda: product.launch(driver.compute), 300)
    other = [places[1], places[0], places[2]]
    turn = [places, other]

    def moved() -> None:
        turn.reverse()
        product.bind(turn[0])

    results["encode_two_tensor_maps_us"] = per_call(moved, 300)
    return results


@timing
def graph_cost() -> dict[str, Any]:
    results = {}
    driver = here().driver
    for nodes in (1, 10, 100, 1000):
        m = Program(1)
        start = time.perf_counter()
        program = m.build(*[add_one(0)] * nodes)
        results[f"build_{nodes}_ms"] = 1e3 * (time.perf_counter() - start)
        results[f"launch_{nodes}_us"] = per_call(program.launch, 20 if nodes > 100 else 100)
        begin, end = driver.new_event(timing=True), driver.new_event(timing=True)
        driver.record(begin, driver.compute)
        for _ in range(10):
            program.launch()
        driver.record(end, driver.compute)
        driver.wait_host(end)
        results[f"gpu_us_per_node_{nodes}"] = 1e3 * driver.elapsed(begin, end) / 10 / nodes
    if driver.info.target.conditional_nodes:
        for bodies in (1, 5):
            m = Program(1, 1)
            program = m.build(
                ForLoop(1000, BufferArg(0, "i32"), tuple(add_one(1) for _ in range(bodies)))
            )
            program.launch()
            driver.synchronize()
            begin, end = driver.new_event(timing=True), driver.new_event(timing=True)
            driver.record(begin, driver.compute)
            program.launch()
            driver.record(end, driver.compute)
            driver.wait_host(end)
            results[f"loop_us_per_iteration_{bodies}_kernels"] = driver.elapsed(begin, end)
    return results


@timing
def mapping_cost() -> dict[str, Any]:
    driver = here().driver
    results = {}
    for size in (2 * MIB, 32 * MIB, 256 * MIB, 1 << 30):
        address = driver.reserve(size)
        times: dict[str, list[float]] = {"create": [], "map": [], "unmap": [], "destroy": []}
        for _ in range(5):
            a = time.perf_counter()
            handle = driver.create(size)
            b = time.perf_counter()
            driver.map(address, size, handle)
            c = time.perf_counter()
            driver.unmap(address, size)
            d = time.perf_counter()
            driver.destroy(handle)
            e = time.perf_counter()
            for name, value in zip(times, (b - a, c - b, d - c, e - d), strict=True):
                times[name].append(1e6 * value)
        driver.release(address, size)
        for name, values in times.items():
            results[f"{name}_{size // MIB}MiB_us"] = statistics.median(values)
    return results


def versions() -> dict[str, str]:
    import cuda.bindings

    found = {"python": platform.python_version(), "cuda-bindings": cuda.bindings.__version__}
    for name in ("torch", "triton", "numpy", "cupy", "jax"):
        try:
            module = __import__(name)
            found[name] = getattr(module, "__version__", "?")
        except ImportError:
            continue
    return found


def brief(result: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    flat = {k: v for k, v in result.items() if not isinstance(v, dict)}
    return ", ".join(f"{k} {shown(v)}" for k, v in flat.items())[:300]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--skip-timing", action="store_true")
    options = parser.parse_args()
    if device_count() == 0:
        print("no GPU is usable here")
        return 1
    open_driver(0)
    report: dict[str, Any] = {"checks": {}}
    failed = 0
    for name, (function, is_timing) in CHECKS.items():
        if (options.only and name not in options.only) or (is_timing and options.skip_timing):
            continue
        start = time.perf_counter()
        try:
            result = function() or {}
            here().synchronize()
            entry: dict[str, Any] = {"ok": True, "result": result}
            line = f"  ok    {name:<34} {brief(result)}"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failed += 1
            entry = {"ok": False, "error": traceback.format_exc()}
            line = f"  FAIL  {name:<34} {type(error).__name__}: {str(error)[:300]}"
        entry["seconds"] = time.perf_counter() - start
        report["checks"][name] = entry
        print(line, flush=True)
        if not entry["ok"]:
            print("        " + "\n        ".join(entry["error"].splitlines()[-8:]), flush=True)
    report["versions"] = versions()
    report["device"] = here().driver.info.name
    report["commit"] = os.environ.get("KERNEL_COMMIT")
    report["driver"] = getattr(here().driver, "driver_version", None)
    print(f"{len(report['checks']) - failed} of {len(report['checks'])} checks passed")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1, default=str))
    compiler.stop_workers()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
