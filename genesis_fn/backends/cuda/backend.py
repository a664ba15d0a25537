"""The CUDA backend: the entry points that `core` calls, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.backends.cuda import eager
from genesis_fn.backends.cuda.driver import drivers
from genesis_fn.backends.cuda.in_one.kernels import plan_in_one
from genesis_fn.backends.cuda.lowerings import has_lowering
from genesis_fn.backends.cuda.memory.dlpack import (
    ImportedArray,
    dlpack_device,
    from_dlpack,
    to_cuda_array_interface,
    to_dlpack,
)
from genesis_fn.backends.cuda.memory.pool import Buffer
from genesis_fn.backends.cuda.memory.staging import PendingRead
from genesis_fn.backends.cuda.run.runtime import Runtime, device_runtime
from genesis_fn.compiler.complex_parts.represent import uses_parts
from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval, Signature, aval, sig
from genesis_fn.core.backend.alone import as_set, compiled_alone
from genesis_fn.core.backend.backend import Backend
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Eqn, Jaxpr, jaxprs_in
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.plan_builder import dense
from genesis_fn.primitives.shape import reshape_p

_ALIGNMENT = 16


class CudaBackend(Backend):
    """Storage is a `Buffer` (`memory/pool.py`): dense, row-major, every dtype in its own bytes."""

    def device_count(self) -> int:
        """How many GPUs the driver has."""
        return drivers.device_count()

    def eager(
        self, prim: Primitive, avals: Sequence[Any], params: dict[str, Any], device: Device
    ) -> Callable[..., Any]:
        """A function that runs `prim`. Control flow, calls, collectives and what is done to the
        parts of complex numbers are compiled, as a program."""
        runtime = device_runtime(device.index)
        return as_set(
            prim,
            lambda: self._eager(prim, avals, params, device),
            lambda elsewhere: eager.guarded_function(
                runtime, device, prim, avals, params, elsewhere
            ),
        )

    def _eager(
        self, prim: Primitive, avals: Sequence[Any], params: dict[str, Any], device: Device
    ) -> Callable[..., Any]:
        runtime = device_runtime(device.index)
        direct = has_lowering(prim) or not any(jaxprs_in(params))
        if uses_parts(prim, avals, params):
            return self._on_parts(prim, avals, params, device)
        if direct and not prim.collective:
            run = eager.eager_function(runtime, device, prim, avals, params)
            if run is not None:
                return run
        return compiled_alone(lambda program: self.compile(program, device), prim, avals, params)

    def _on_parts(
        self, prim: Primitive, avals: Sequence[Any], params: dict[str, Any], device: Device
    ) -> Callable[..., Any]:
        """A function that runs an operation on complex arrays: as a program, unless it only moves
        elements."""
        run = eager.moving_function(device_runtime(device.index), device, prim, avals, params)
        if run is not None:
            return run
        program = eager.with_numbers_as_arrays(prim, avals, params)
        if program is None:
            compile = lambda program: self.compile(program, device)
            return compiled_alone(compile, prim, avals, params)
        executable = self.compile(program, device)
        kinds = program.in_avals

        def array(x: Any, kind: Aval) -> ArrayImpl:
            if type(x) is ArrayImpl:
                return x
            return ArrayImpl(self.from_numpy(np.asarray(x), kind, device), sig(kind, device))

        return lambda *args: executable(*map(array, args, kinds))[0]

    joins_operations = True

    def in_one(self, jaxpr: Jaxpr, device: Device, weak: bool) -> Callable[..., Any] | None:
        """A function that computes a small program by one kernel, which serves all sizes; or by the
        only operation that it is, but for reshapes of its result."""
        runtime = device_runtime(device.index)
        kind = sig(jaxpr.outs[0].aval, device, True, weak)
        # There are some: the result is no operand, and captures nothing.
        first, *others = jaxpr.eqns
        if first.ins == jaxpr.invars and all([e.prim is reshape_p for e in others]):
            return self._operation(first, kind, device)
        plan = plan_in_one(jaxpr, runtime.driver.info.target)
        if plan is None:
            return None
        return eager.of_one_kernel(runtime, plan, kind, len(jaxpr.invars))

    def _operation(self, e: Eqn, kind: Signature, device: Device) -> Callable[..., Any] | None:
        """A function that runs one equation, whose result is read as an array of `kind`."""
        avals = tuple([v.aval for v in e.ins])
        direct = has_lowering(e.prim) and not (e.prim.multi or e.prim.collective or e.prim.effect)
        if not direct or uses_parts(e.prim, avals, e.params):
            return None
        run = eager.eager_function(device_runtime(device.index), device, e.prim, avals, e.params)
        if run is None or sig(e.outs[0].aval, device) is kind:
            return run
        return lambda *args: ArrayImpl(run(*args).data, kind)

    def compile(
        self,
        jaxpr: Jaxpr,
        device: Device,
        donated: Sequence[bool] = (),
        compiler: str | None = None,
    ) -> Executable:
        """An executable for a whole program."""
        from genesis_fn.backends.cuda.pipeline import compile_jaxpr

        return compile_jaxpr(jaxpr, device, donated, compiler=compiler)

    def from_numpy(self, value: np.ndarray, aval: Aval, device: Device) -> Buffer:
        """A buffer with a copy of `value`, which may change as soon as this returns."""
        value = np.asarray(value, dtype=aval.dtype, order="C")
        return eager.write(device_runtime(device.index), value, where(depth=4))

    def adopt(self, value: np.ndarray, aval: Aval, device: Device) -> Buffer:
        """A buffer with a copy of `value`: host memory is not the device's."""
        return self.from_numpy(value, aval, device)

    def from_bytes(
        self, sources: Sequence[tuple[Aval, Callable[[memoryview, int], object]]], device: Device
    ) -> list[Buffer]:
        """Buffers of bytes that go straight into pinned memory, and from there to the device."""
        runtime = device_runtime(device.index)
        blocks: list[Buffer] = [runtime.alloc(a.nbytes, where(depth=4)) for a, _ in sources]
        runtime.uploads.write(
            (block.address, aval.nbytes, read) for block, (aval, read) in zip(blocks, sources)
        )
        return blocks

    def to_numpy(self, array: ArrayImpl) -> np.ndarray:
        """The array's values on the host; raises the errors that queued work reported."""
        reading = getattr(array, "_reading", None)
        if reading is None:
            return eager.read(_runtime_of(array), array.data, array.sig.aval)
        return eager.finish_read(_runtime_of(array), reading, array.sig.aval)

    def start_read(self, array: ArrayImpl) -> PendingRead | None:
        """A copy to pinned memory behind the work that is queued now; None of no bytes."""
        size = array.sig.aval.nbytes
        return _runtime_of(array).staging.read(array.data.address, size) if size else None

    def wait(self, array: ArrayImpl) -> None:
        """Return when all queued work is done; raises the errors it reported."""
        _runtime_of(array).synchronize()

    def synchronize(self, device: Device) -> None:
        """Return when all queued work is done; raises the errors it reported."""
        device_runtime(device.index).synchronize()

    def copy(self, array: ArrayImpl, device: Device) -> ArrayImpl:
        """The array on another GPU: a peer-to-peer copy, ordered with both compute streams."""
        block = _runtime_of(array).copy_to(device_runtime(device.index), array.data, where(depth=4))
        return ArrayImpl(block, sig(array.sig.aval, device, True, array.weak))

    # Exchange with other libraries.

    def to_dlpack(self, array: ArrayImpl, **options: Any) -> Any:
        """The DLPack capsule of an array; read-only, it shares the memory."""
        shape = array.shape
        allowed = {k: v for k, v in options.items() if k in ("stream", "max_version")}
        return to_dlpack(array.data, shape, dense(shape), array.dtype.name, **allowed)

    def dlpack_device(self, array: ArrayImpl) -> tuple[int, int]:
        """(device type, index) by DLPack's numbering."""
        return dlpack_device(array.data)

    def cuda_array_interface(self, array: ArrayImpl) -> dict[str, Any]:
        """The `__cuda_array_interface__` of an array, read-only."""
        shape = array.shape
        return to_cuda_array_interface(array.data, shape, dense(shape), array.dtype.name)

    def from_dlpack(self, x: Any, device: Device, copy: bool | None = None) -> ArrayImpl:
        """An array over another library's device memory; a copy if that is asked for, or if the
        memory is strided or unaligned."""
        runtime = device_runtime(device.index)
        return _imported(runtime, from_dlpack(x, runtime.driver), device, copy)


def _imported(
    runtime: Runtime, found: ImportedArray, device: Device, copy: bool | None
) -> ArrayImpl:
    from genesis_fn.backends.cuda.codegen.kernel_text import add_copy
    from genesis_fn.kernels.plan import BufferArg
    from genesis_fn.kernels.plan_builder import PlanBuilder

    kind = aval(found.shape, dtypes.dtype(found.dtype))
    data = found.buffer
    apart = found.strides != dense(found.shape) or data.address % _ALIGNMENT != 0
    if apart and copy is False:
        raise ValueError(
            f"from_dlpack: {kind} with strides {found.strides} at address {data.address} needs a "
            f"copy: arrays are contiguous and begin at multiples of {_ALIGNMENT} bytes"
        )
    if apart or copy:
        words = max(1, kind.dtype.itemsize // 8)  # two of complex128
        shape, strides = (*kind.shape, words), (*[s * words for s in found.strides], 1)
        raw = f"i{8 * kind.dtype.itemsize // words}"
        builder = PlanBuilder(1, 1)
        add_copy(builder, BufferArg(0, raw), BufferArg(1, raw), shape, strides)
        block = runtime.alloc(kind.nbytes, where(depth=4))
        run = eager.PlanRunner(runtime, builder.build())
        run([data.address, block.address], [data.bytes, kind.nbytes])
        data = block
    if copy:  # the caller may overwrite its memory as soon as this returns
        runtime.synchronize()
    return ArrayImpl(data, sig(kind, device))


def _runtime_of(array: ArrayImpl) -> Runtime:
    return device_runtime(array.sig.device.index)
