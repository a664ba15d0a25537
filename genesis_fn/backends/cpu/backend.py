"""The CPU backend: torch operators, called one by one (eager) or from a compiled function."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.backends.cpu import lowerings as _lowerings  # noqa: F401 # pyright: ignore[reportUnusedImport] - registers rules
from genesis_fn.backends.cpu.compile import CpuExecutable
from genesis_fn.backends.cpu.forks import note_compiled
from genesis_fn.backends.cpu.inductor import InductorExecutable
from genesis_fn.backends.cpu.lower import lower_primitive
from genesis_fn.backends.cpu.storage import TORCH_DTYPE, host_tensor, host_view, same
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval, aval, sig
from genesis_fn.core.backend.backend import Backend
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.configuration import environment
from genesis_fn.core.convert import of_torch
from genesis_fn.core.device import Device
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives import elementwise as ops
from genesis_fn.transforms.keys.words import physical


def _keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory, unless the environment tunes its allocator.

    By default glibc returns large blocks to the operating system when they are freed, and each step
    of a training loop pays for fresh, zeroed pages: a third of the time of a memory-bound program.
    """
    tuned = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
    if not sys.platform.startswith("linux") or any(n in os.environ for n in tuned):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, 1 << 30)


class _Numbers:
    """A cache of Python numbers as 0-d tensors, which torch takes in half the time.

    They are slices of one allocation: a small block of its own that was allocated between two large
    arrays, and outlived them, would keep their memory from being coalesced.
    """

    __slots__ = ("dtype", "known", "free", "lock")

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.known: dict[Any, torch.Tensor] = {}
        self.free: list[torch.Tensor] = []
        self.lock = threading.Lock()

    def __call__(self, x: Any) -> Any:
        if not x:  # 0.0 and -0.0 are equal keys
            return x
        found = self.known.get(x)
        return self._remembered(x) if found is None else found

    def _remembered(self, x: Any) -> torch.Tensor:
        with self.lock:
            if not self.free:
                # Start a new allocation; the old one lives as long as its tensors are in use.
                self.known = {}
                self.free = list(torch.empty(_REMEMBERED, dtype=self.dtype).unbind())
            slot = self.free.pop()
            try:
                slot.fill_(x)
            except RuntimeError:  # `fill_` refuses numbers that overflow; a new tensor is infinite
                self.free.append(slot)
                return torch.tensor(x, dtype=self.dtype)
            self.known[x] = slot
            return slot


_REMEMBERED = 256
# No 16-bit dtypes: a 0-d tensor would be rounded, where torch computes with the exact number.
_NUMBERS = {d: _Numbers(TORCH_DTYPE[d]) for d in (dtypes.F32, dtypes.F64, dtypes.I32, dtypes.I64)}


_ARITHMETIC = frozenset(f.prim for f in (ops.add, ops.sub, ops.mul, ops.div))


class CpuBackend(Backend):
    """Storage is a torch tensor; unsigned types that torch lacks
    live in signed storage of the same width."""

    def __init__(self) -> None:
        _keep_freed_memory()

    def device_count(self) -> int:
        """`GENESIS_CPU_DEVICES`, else 1. Raises BackendError where it is no positive integer."""
        value = environment.text("GENESIS_CPU_DEVICES") or "1"
        if not value.isdecimal() or int(value) < 1:
            raise errors.BackendError(
                f"GENESIS_CPU_DEVICES={value!r} is no number of devices: a positive integer"
            )
        return int(value)

    def eager(
        self, prim: Primitive, avals: Sequence[Any], params: dict[str, Any], device: Device
    ) -> Callable[..., Any]:
        run = lower_primitive(prim, avals, params)
        out = prim.abstract(tuple(avals), params)
        if prim.multi:
            sigs = [sig(a, device) for a in out]

            def many(*args: Any) -> list[ArrayImpl]:
                ys = run(*[a.data if type(a) is ArrayImpl else a for a in args])
                return [ArrayImpl(y, s) for y, s in zip(ys, sigs, strict=True)]

            return many
        one = sig(out, device)
        if len(avals) == 1:
            return lambda x: ArrayImpl(run(x.data), one)
        if len(avals) == 2 and all(type(a) is Aval for a in avals):
            return lambda x, y: ArrayImpl(run(x.data, y.data), one)
        if prim in _ARITHMETIC:
            if type(avals[0]) is Aval:
                known = _NUMBERS.get(avals[0].dtype, same)
                return lambda x, y: ArrayImpl(run(x.data, known(y)), one)
            known = _NUMBERS.get(avals[1].dtype, same)
            return lambda x, y: ArrayImpl(run(known(x), y.data), one)
        return lambda *args: ArrayImpl(
            run(*[a.data if type(a) is ArrayImpl else a for a in args]), one
        )

    def compile(
        self,
        jaxpr: Jaxpr,
        device: Device,
        donated: Sequence[bool] = (),
        compiler: str | None = None,
    ) -> Executable:
        note_compiled()
        return compile_jaxpr(jaxpr, device, donated, compiler)

    def from_numpy(self, value: np.ndarray, aval: Aval, device: Device) -> torch.Tensor:
        return host_tensor(np.array(value, dtype=aval.dtype, order="C", copy=True), aval.dtype)

    def adopt(self, value: np.ndarray, aval: Aval, device: Device) -> torch.Tensor:
        return host_tensor(value, aval.dtype)

    def from_bytes(
        self, sources: Sequence[tuple[Aval, Callable[[memoryview, int], object]]], device: Device
    ) -> list[torch.Tensor]:
        """Tensors over memory that is filled by one call for each."""
        stored = []
        for kind, read in sources:
            value = np.empty(kind.shape, kind.dtype)
            read(value.reshape(-1).view(np.uint8).data, 0)
            stored.append(self.adopt(value, kind, device))
        return stored

    def to_numpy(self, array: ArrayImpl) -> np.ndarray:
        return host_view(array.data, array.dtype)

    def wait(self, array: ArrayImpl) -> None:
        """Nothing to wait for: torch on the CPU is synchronous."""

    def start_read(self, array: ArrayImpl) -> None:
        """Nothing to begin: the values are on the host."""

    def from_dlpack(self, x: Any, device: Device, copy: bool | None = None) -> ArrayImpl:
        """An array over another library's memory; a copy if the memory is a GPU's."""
        tensor = torch.from_dlpack(x).detach()
        found = of_torch(tensor.dtype)
        if found is None:
            raise errors.DTypeError(
                f"from_dlpack: {tensor.dtype} is not a data type of this library"
            )
        if tensor.device.type != "cpu":
            if copy is False:
                raise ValueError("from_dlpack: memory on a GPU needs a copy")
            tensor = tensor.cpu()
        stored = tensor.view(TORCH_DTYPE[found])
        kind = aval(tuple(tensor.shape), found)
        return ArrayImpl(stored.clone() if copy else stored, sig(kind, device))

    def to_dlpack(self, array: ArrayImpl, **options: Any) -> Any:
        """The DLPack capsule of an array's memory, in torch's dtype of the array's name."""
        return array.data.view(getattr(torch, array.dtype.name)).__dlpack__(**options)

    def dlpack_device(self, array: ArrayImpl) -> tuple[int, int]:
        """The host's memory."""
        return 1, 0


def compile_jaxpr(
    jaxpr: Jaxpr, device: Device, donated: Sequence[bool] = (), compiler: str | None = None
) -> Executable:
    """An executable for `jaxpr`. Raises BackendError for an unknown or unusable `compiler`."""
    program = physical(jaxpr)
    if compiler is None:
        executable = CpuExecutable(program, device, donated)
    elif compiler == "inductor":
        executable = InductorExecutable(program, device)
    else:
        raise errors.BackendError(f'compiler={compiler!r}: the CPU has "inductor", or None')
    executable.sigs = [sig(a, device) for a in jaxpr.out_avals]
    return executable
