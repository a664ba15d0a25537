"""Runs plans on a GPU through Triton's own launcher and torch's memory, for measuring kernels.

The library itself launches through its driver; this path needs only torch and Triton.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from genesis_fn.backends.cuda.binaries.compile import tile_layout
from genesis_fn.compiler.target import H200, Target, rates
from genesis_fn.kernels.plan import Argument, BufferArg, Memset, Plan, Scalar

TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
}


def _target() -> Target:
    """The GPU of this machine, or an H200 where there is none."""
    if not torch.cuda.is_available():
        return H200
    found = torch.cuda.get_device_properties(0)
    architecture = 10 * found.major + found.minor
    return Target(
        architecture,
        found.multi_processor_count,
        found.shared_memory_per_block_optin,
        found.L2_cache_size,
        *rates(found.name, architecture),
    )


TARGET = _target()


def run_plan_torch(plan: Plan, tensors: Sequence[torch.Tensor]) -> None:
    """Runs the plan once on the current stream; `tensors` are its inputs, then its outputs."""
    bound_plan(plan, tensors)()


def bound_plan(plan: Plan, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """A function that runs the plan on these contiguous CUDA tensors (inputs, then outputs).

    Workspaces are allocated once, here, so that the function can be captured in a CUDA graph after
    one call that compiles.
    """
    if len(tensors) != plan.inputs + plan.outputs:
        raise ValueError(
            f"the plan takes {plan.inputs} + {plan.outputs} buffers, got {len(tensors)}"
        )
    for tensor in tensors:
        if not tensor.is_cuda or not tensor.is_contiguous():
            raise ValueError("buffers must be contiguous CUDA tensors")
    raw = [t.reshape(-1).view(torch.uint8) for t in tensors]
    raw += [
        torch.empty(max(w.bytes, 16), dtype=torch.uint8, device="cuda") for w in plan.workspaces
    ]
    calls = []
    for step in plan.steps:
        if isinstance(step, Memset):
            calls.append(raw[step.buffer].zero_)
            continue
        gluon = step.kernel.is_gluon()
        arguments = {name: _argument(a, raw, gluon) for name, a in step.arguments.items()}
        calls.append(_call(step.kernel, step.grid, {**arguments, **step.constants, **step.options}))

    def run() -> None:
        for call in calls:
            call()

    return run


def _call(kernel: object, grid: tuple[int, int, int], named: dict) -> Callable[[], object]:
    return lambda: kernel[grid](**named)


def _argument(argument: Argument, raw: list[torch.Tensor], gluon: bool) -> object:
    if isinstance(argument, Scalar):
        return argument.value
    if isinstance(argument, BufferArg):
        return _pointer(argument, raw)
    fields = (
        _pointer(argument.buffer, raw),
        list(argument.shape),
        list(argument.strides),
        list(argument.block),
    )
    return GluonDescriptor(*fields, tile_layout(argument)) if gluon else TensorDescriptor(*fields)


def _pointer(buffer: BufferArg, raw: list[torch.Tensor]) -> torch.Tensor:
    dtype = TORCH_DTYPES[buffer.dtype]
    held = raw[buffer.index][buffer.offset :]
    return held[: held.numel() // dtype.itemsize * dtype.itemsize].view(dtype)


def graph_time(calls: Sequence[Callable[[], object]], replays: int = 15) -> float:
    """Median seconds of one call: the calls, in turn, captured in one CUDA graph and replayed.

    Give calls on different buffers, together larger than the L2 cache, to measure cold reads.
    In a rehearsal the first call runs once and the time is 1.
    """
    if rehearsing():
        calls[0]()
        torch.cuda.synchronize()
        return 1.0
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
    seconds = replay_time(graph.replay, stream, replays) / len(calls)
    torch.cuda.current_stream().wait_stream(stream)
    return seconds


def replay_time(run: Callable[[], object], stream: Any, replays: int = 15) -> float:
    """Median seconds on the device of what `run` enqueues on a stream.

    The device waits meanwhile for the host, whose time is no part of the result.
    """
    # Clocks rise for some milliseconds after an idle moment.
    warm, host = time.perf_counter() + 0.03, 0.0
    while time.perf_counter() < warm:
        began = time.perf_counter()
        run()
        host = max(host, time.perf_counter() - began)
        stream.synchronize()
    cycles = int(2e9 * min(2 * host + 20e-6, 5e-3))
    times = []
    with torch.cuda.stream(stream):
        for _ in range(replays):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            torch.cuda._sleep(cycles)
            start.record(stream)
            run()
            end.record(stream)
            stream.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def rehearsing() -> bool:
    """Whether this process only compiles and checks, for a later one that measures."""
    return "KERNEL_REHEARSAL" in os.environ


def rehearse(
    function: Callable[..., Any], items: Sequence[tuple], seconds: float, processes: int = 14
) -> dict[tuple, Any]:
    """{item: function(*item), or the text of what it raised} from processes side by side.

    Fills the compile caches of Triton and torch on all cores before anything is measured. What
    has not ended after so many seconds, a kernel that hangs for instance, is killed and reported.
    """
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for item in items:
        tasks.put(item)
    workers: dict[int, Any] = {}
    running: dict[int, tuple] = {}
    found: dict[tuple, Any] = {}
    deadline, idle = time.monotonic() + seconds, 0
    count = min(processes, max(1, (os.cpu_count() or 2) - 1), len(items))
    while len(found) < len(items) and time.monotonic() < deadline:
        for pid, worker in list(workers.items()):
            if not worker.is_alive():
                del workers[pid]
                if pid in running:
                    found[running.pop(pid)] = f"the process ended with code {worker.exitcode}"
        while len(workers) < min(count, len(items) - len(found)):
            worker = context.Process(target=_rehearsal, args=(function, tasks, results))
            worker.start()
            workers[worker.pid] = worker
        try:
            pid, item, result = results.get(timeout=0.25)
        except queue.Empty:
            idle = 0 if running or not tasks.empty() else idle + 1
            if idle > 20:
                break
            continue
        if result is None:
            running[pid] = item
        else:
            running.pop(pid, None)
            found[item] = result[0]
    for worker in workers.values():
        worker.kill()
    for item in running.values():
        found[item] = f"had not ended after {seconds:.0f} s"
    return found


def _rehearsal(function: Callable[..., Any], tasks: Any, results: Any) -> None:
    os.environ["KERNEL_REHEARSAL"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["GENESIS_COMPILE_WORKERS"] = "0"  # the processes are as many as the cores already
    while True:
        try:
            item = tasks.get(timeout=1)
        except queue.Empty:
            break
        results.put((os.getpid(), item, None))
        try:
            result = function(*item)
        except Exception as problem:
            result = f"{type(problem).__name__}: {problem}"[:600]
        results.put((os.getpid(), item, (result,)))
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception:  # a kernel's fault ends a CUDA context: go on in a new process
            break
    results.close()
    results.join_thread()
    os._exit(0)
