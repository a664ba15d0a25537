"""Convolutions of cuDNN, through the package nvidia-cudnn-frontend.

cuDNN's heuristics name an engine for each convolution; of those that may take another order of sums
in every run none is used where results have to be repeatable. Nothing is timed to choose one.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from genesis_fn.backends.cuda.driver.driver import captures
from genesis_fn.backends.cuda.driver.errors import CudaError
from genesis_fn.backends.cuda.libraries import loading
from genesis_fn.backends.cuda.libraries.loading import DEFAULT_STREAM
from genesis_fn.kernels.routines import ConvolutionRoutine, Laid

MOST_PLANS = 512
_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
# Engines that want more for an output of float32 rearrange its image first: 81 us and 39 without
# them (8 x 16384 of 64 channels to 128, 3 taps; H200).
_MOST_OUTPUT_SCRATCH = 4 << 20
_FIRST, _SECOND, _WRITTEN = 1, 2, 3  # what cuDNN knows the arrays by, in the order of the buffers


@functools.cache
def loaded() -> Any:
    """cuDNN's module; None where it or the library is missing, and our kernels compute."""
    try:
        import cudnn

        cudnn.backend_version()
    except Exception:  # the library may be missing, or too old for the package
        return None
    # It warns of what cuDNN refuses, which is no news: our kernels compute that.
    logging.getLogger("cudnn").addHandler(logging.NullHandler())
    return cudnn


class _Handle:
    """A thread's handle of one device."""

    def __init__(self) -> None:
        self._destroy, self._retired = loaded().destroy_handle, loading.retired
        self.handle = loaded().create_handle()

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._retired.append((self._destroy, self.handle))


class _Thread(threading.local):
    """The handles of a thread, by context."""

    def __init__(self) -> None:
        self.handles: dict[int, _Handle] = {}


_thread = _Thread()


def _handle() -> _Handle:
    context = loading.context()
    found = _thread.handles.get(context)
    if found is None:
        found = _thread.handles[context] = _Handle()
    return found


class ConvPlan:
    """A convolution that is planned; `scratch` is the bytes of memory that it works in."""

    def __init__(self, routine: ConvolutionRoutine) -> None:
        self._retired, self._used = loading.retired, {_handle()}
        self.graph = _graph(routine, _handle().handle)
        self.scratch = int(self.graph.get_workspace_size())

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Enqueue it, at the addresses of its buffers and of scratch memory."""
        first, second, written, scratch = addresses
        cudnn, handle = loaded(), _handle()
        self._used.add(handle)
        cudnn.set_stream(handle.handle, stream)
        try:
            arrays = {_FIRST: first, _SECOND: second, _WRITTEN: written}
            self.graph.execute(arrays, scratch, handle.handle)
        finally:
            # A stream of a capture ends with it.
            cudnn.set_stream(handle.handle, DEFAULT_STREAM)

    def __del__(self) -> None:
        if hasattr(self, "graph"):
            self._retired.append((list.clear, [self.graph]))


def _graph(routine: ConvolutionRoutine, handle: Any) -> Any:
    """A graph of cuDNN's for one convolution, built. Raises what cuDNN does where it has no engine
    for it."""
    cudnn = loaded()
    kinds, real = cudnn.data_type, cudnn.data_type.FLOAT
    kind, result = [getattr(kinds, _TYPES[k]) for k in (routine.kind, routine.result)]
    graph = cudnn.pygraph(
        io_data_type=kind, intermediate_data_type=real, compute_data_type=real, handle=handle
    )

    def read(x: Laid, number: int) -> Any:
        sizes, strides, name = list(x.sizes), list(x.strides), f"operand {number}"
        return graph.tensor(dim=sizes, stride=strides, data_type=kind, name=name, uid=number)

    common = {
        "pre_padding": list(routine.before),
        "post_padding": list(routine.after),
        "stride": list(routine.steps),
        "dilation": list(routine.dilation),
        "compute_data_type": real,
    }
    first, second = [read(x, n) for x, n in zip(routine.read, (_FIRST, _SECOND), strict=True)]
    if routine.form == "output":
        written = graph.conv_fprop(image=first, weight=second, **common)
    elif routine.form == "image":
        written = graph.conv_dgrad(loss=first, filter=second, **common)
    else:
        written = graph.conv_wgrad(image=first, loss=second, **common)
    written.set_output(True)
    written.set_uid(_WRITTEN)
    written.set_dim(list(routine.written.sizes))
    written.set_stride(list(routine.written.strides))
    written.set_data_type(result)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    if routine.repeatable:
        graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    if routine.kind == "float16":
        graph.deselect_numeric_notes([cudnn.numerical_note.REDUCED_PRECISION_REDUCTION])
    if routine.kind == "float32" and routine.form == "output":
        graph.deselect_workspace_greater_than(_MOST_OUTPUT_SCRATCH)
    graph.check_support()
    graph.build_plans()
    return graph


_plans: OrderedDict[tuple[int, ConvolutionRoutine], ConvPlan | None] = OrderedDict()


def plan(routine: ConvolutionRoutine) -> ConvPlan | None:
    """The plan of a convolution in the current context; None where cuDNN refuses it."""
    key = loading.context(), routine
    with loading.planning():
        if key in _plans:
            _plans.move_to_end(key)
            return _plans[key]
        cudnn = loaded()
        try:
            found = ConvPlan(routine)
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError):
            found = None
        _plans[key] = found
        if len(_plans) > MOST_PLANS:
            _plans.popitem(last=False)
        return found


def forget_plans() -> None:
    """Destroy the plans that nothing else refers to."""
    with captures:
        _plans.clear()
        with loading.planning():  # which destroys what that has retired
            pass


class CudnnConvolution:
    """A convolution on the current device."""

    def __init__(self, routine: ConvolutionRoutine) -> None:
        found = plan(routine)
        if found is None:
            raise CudaError(f"{routine}", "NOT_SUPPORTED", "cuDNN planned it before")
        self._routine, self._plan = routine, found

    def run(self, addresses: Sequence[int], stream: Any) -> None:
        """Enqueue it, at the addresses of its buffers; scratch memory is last. Raises CudaError."""
        try:
            with captures:
                self._plan.run(addresses, int(stream))
        except Exception as error:  # of several types
            raise CudaError(f"{self._routine}", type(error).__name__, str(error)) from error
