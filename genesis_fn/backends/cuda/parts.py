"""Programs with steps of the host: graphs between them, loops around them driven from the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from genesis_fn.backends.cuda.graph import (
    Executable,
    Memory,
    Overlap,
    Repeat,
    Step,
    Switch,
    While,
)
from genesis_fn.backends.cuda.runtime import Runtime
from genesis_fn.backends.cuda.steps import Host, Work
from genesis_fn.core.aval import Aval

_NO_OVERLAP = Overlap()


class Launchable(Protocol):
    """Something that runs in stream order."""

    def launch(self) -> None:
        """Enqueue it."""
        ...


def parts_of(
    device: Runtime, steps: Sequence[Work], memory: Sequence[Memory], owners: Sequence[Any],
    overlap: Overlap = _NO_OVERLAP,
) -> Launchable:  # fmt: skip
    """The steps, ready to run: one graph if the host has no part in them."""
    runs: list[Launchable] = []
    pending: list[Step] = []

    def flush() -> None:
        if pending:
            made = Executable(
                device.driver, tuple(pending), memory, device.pool, owners, overlap=overlap
            )
            runs.append(made)
            pending.clear()

    for step in steps:
        if not has_host(step):
            pending.append(step)  # type: ignore[arg-type]
            continue
        flush()
        if isinstance(step, Host):
            runs.append(_HostRun(device, step, memory))
        else:
            inner = lambda body: parts_of(device, body, memory, owners, overlap)  # noqa: E731
            runs.append(_Driven(device, step, memory, inner))
    flush()
    return runs[0] if len(runs) == 1 else _Sequence(runs)


def has_host(step: Work) -> bool:
    """Whether the host computes part of a step."""
    return isinstance(step, Host) or any(has_host(s) for body in _bodies(step) for s in body)


def _bodies(step: Any) -> tuple[Sequence[Any], ...]:
    if isinstance(step, While):
        return step.condition, step.body
    if isinstance(step, Switch):
        return step.branches
    return (step.body,) if isinstance(step, Repeat) else ()


class _Sequence:
    """Parts that run one after the other."""

    def __init__(self, runs: Sequence[Launchable]) -> None:
        self._runs = runs

    def launch(self) -> None:
        for run in self._runs:
            run.launch()


class _HostRun:
    """Operands to the host, the CPU's function, results back."""

    def __init__(self, device: Runtime, step: Host, memory: Sequence[Memory]) -> None:
        self._device, self._step, self._memory = device, step, memory
        self._run = step.call.function()
        prim, avals, params = step.call.prim, step.call.avals, step.call.params
        outs = prim.abstract(avals, params)
        self._outs: list[Aval] = list(outs) if prim.multi else [outs]

    def launch(self) -> None:
        import numpy as np

        from genesis_fn.primitives.define import host_tensor, host_view

        device = self._device
        operands = []
        for a, b in zip(self._step.call.avals, self._step.reads):
            if b is None:
                operands.append(a)
                continue
            value = np.empty(a.shape, a.dtype)
            if value.nbytes:
                device.read(value.ctypes.data, self._memory[b].address, value.nbytes)
            operands.append(host_tensor(value, a.dtype))
        for y, a, b in zip(self._run(*operands), self._outs, self._step.writes, strict=True):
            value = np.ascontiguousarray(host_view(y, a.dtype))
            if value.nbytes:
                device.staging.to_device(self._memory[b].address, value.ctypes.data, value.nbytes)


class _Driven:
    """Control flow decided by the host, which reads the predicate."""

    def __init__(
        self, device: Runtime, step: Any, memory: Sequence[Memory],
        inner: Callable[[Sequence[Work]], Launchable],
    ) -> None:  # fmt: skip
        self._device, self._step, self._memory = device, step, memory
        self._inner = [inner(body) for body in _bodies(step)]

    def launch(self) -> None:
        step, driver = self._step, self._device.driver
        if isinstance(step, Repeat):
            at = self._memory[step.counter.index].address + step.counter.offset
            for i in range(step.count):
                driver.fill_words(at, i, 1, driver.compute)
                self._inner[0].launch()
        elif isinstance(step, Switch):
            chosen = self._read(step.index, 4)
            self._inner[min(max(chosen, 0), len(self._inner) - 1)].launch()
        else:
            condition, body = self._inner
            condition.launch()
            while self._read(step.predicate, 1):
                body.launch()
                condition.launch()

    def _read(self, where: Any, size: int) -> int:
        place = ctypes.create_string_buffer(size)
        at = self._memory[where.index].address + where.offset
        self._device.read(ctypes.addressof(place), at, size)
        return int.from_bytes(place.raw, "little", signed=True)


__all__ = ["has_host", "parts_of"]
