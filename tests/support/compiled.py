"""Launches as the compiler makes them, run by the model of `tests/support/ptx.py` instead of a GPU.

    GENESIS_KERNELS=compiled python -m pytest tests/kernels/test_sort.py

runs the kernels that tests launch as sm_90 code; as sm_80 code where that is tensor-core products
or bulk copies of sm_90, which the model lacks. Slow: for small shapes. Triton must not interpret.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from genesis_fn.backends.cuda.binaries.compile import CompiledKernel, launch_key, request
from genesis_fn.backends.cuda.binaries.triton_compile import (
    _parameter_sizes,
    compiled_by_triton,
    is_gluon,
)
from genesis_fn.backends.cuda.driver.parameters import ParameterBlock
from genesis_fn.compiler.target import H200, OF_ARCHITECTURE
from genesis_fn.kernels.plan import Launch, Memset, Plan
from tests.support import ptx

CHOSEN = os.environ.get("GENESIS_KERNELS") == "compiled"
_UNMODELLED = ("wgmma", "cp.async.bulk", "mbarrier", "tensormap")


def run_launch(launch: Launch, addresses: Sequence[int], within: Sequence[tuple[int, int]]) -> None:
    """Runs a launch on host memory; `within` are the ranges that it may touch."""
    if 0 in launch.grid:
        return
    if is_gluon(launch.kernel):
        pytest.skip("Gluon's kernels are bulk copies and tensor-core products of sm_90")
    text, compiled = _compiled(launch_key(launch, H200), _Held(launch))
    block = ParameterBlock(launch, compiled, lambda *_: b"")
    block.bind(addresses, 0)
    parameters = [int.from_bytes(value, "little") for value in block.values()]
    merged: list[list[int]] = []
    for start, end in sorted(within):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    arrays = [
        np.frombuffer((ctypes.c_uint8 * (end - start)).from_address(start), np.uint8)
        for start, end in merged
    ]
    memory = ptx.Memory(arrays, [start for start, _ in merged])
    ptx.run(text, memory, parameters, (*launch.grid, 1, 1)[:3], compiled.shared)


class _Held:
    """A launch as an argument that does not count: the key before it does."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def __eq__(self, other: object) -> bool:
        return type(other) is _Held

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(4096)
def _compiled(key: str, held: _Held) -> tuple[str, CompiledKernel]:
    """(PTX, what its parameters are like) of a launch."""
    for architecture in (90, 80):
        found = compiled_by_triton(request(held.launch, OF_ARCHITECTURE[architecture]))
        text, data = found.asm["ptx"], found.metadata
        if not any(word in text for word in _UNMODELLED):
            break
    else:
        pytest.skip(f"{data.name} is not modelled")
    if data.global_scratch_size:
        pytest.skip(f"{data.name} takes scratch memory")
    described = tuple(dict(d) for d in (getattr(data, "tensordesc_meta", None) or ()))
    compiled = CompiledKernel(
        key,
        data.name,
        b"",
        (),
        tuple(_parameter_sizes(text)),
        described if architecture == 90 else (),
        data.shared,
        data.num_warps,
        data.num_ctas,
        0,
        False,
        "",
    )
    return text, compiled


def run_plan(plan: Plan, arrays: Sequence[np.ndarray]) -> None:
    """Runs a plan on arrays that are its inputs and outputs; workspaces start as garbage."""
    sizes = [a.nbytes for a in arrays] + [w.bytes for w in plan.workspaces]
    held = [_aligned(n) for n in sizes]
    for a, block in zip(arrays, held):
        block[: a.nbytes] = a.reshape(-1).view(np.uint8)
    addresses = [block.ctypes.data for block in held]
    within = [(at, at + max(n, 16)) for at, n in zip(addresses, sizes, strict=True)]
    for step in plan.steps:
        if isinstance(step, Memset):
            held[step.buffer][:] = 0
        else:
            run_launch(step, addresses, within)
    for a, block in zip(arrays[plan.inputs :], held[plan.inputs :]):
        a.reshape(-1).view(np.uint8)[:] = block[: a.nbytes]


def _aligned(size: int) -> np.ndarray:
    raw = np.full(max(size, 16) + 512, 0xFF, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + max(size, 16)]


def install() -> None:
    """Makes the interpreting driver run compiled kernels."""
    from genesis_fn.backends.cuda.driver import interpret
    from genesis_fn.backends.cuda.run.runtime import device_runtime

    class CompiledLaunch:
        """A launch, its addresses, and the ranges that it may touch."""

        scratch_bytes = 0

        def __init__(self, driver: Any, launch: Launch) -> None:
            self._driver, self._launch = driver, launch
            self._bound: tuple[list[int], list[tuple[int, int]]] = [], []

        def bind(
            self, addresses: Sequence[int], scratch: int = 0, within: Sequence[tuple[int, int]] = ()
        ) -> None:
            self._bound = list(addresses), list(within) or [*map(self._extent, addresses)]

        def _extent(self, address: int) -> tuple[int, int]:
            """The rest of the block that an address lies in."""
            live = device_runtime(self._driver.info.index).pool.live
            for start, (size, rounded, _) in live.items():
                if start <= address < start + rounded:
                    return address, max(start + size, address + 1)
            return address, address + 16  # an error word

        def launch(self, stream: Any, early: bool = True) -> None:
            launch, bound, loaded = self._launch, self._bound, weakref.ref(self)

            def run() -> None:
                if loaded() is None:
                    raise RuntimeError("the code of a launch is unloaded")
                run_launch(launch, *bound)

            stream.enqueue(run)

    interpret._InterpretedLaunch = CompiledLaunch  # type: ignore[misc]


__all__ = ["CHOSEN", "install", "run_launch", "run_plan"]
