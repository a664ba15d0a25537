"""cuFFT's plans, some of which multiply by a factor what they store.

cuFFT does not scale inverse transforms, and a pass over the results takes a third of the transform.
It links a function into its kernels that stores their results (`cufftXtSetJITCallback`), if that is
given as NVRTC's intermediate code before planning.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

from genesis_fn.backends.cuda.driver.driver import captures
from genesis_fn.backends.cuda.driver.errors import CudaError
from genesis_fn.backends.cuda.libraries import loading
from genesis_fn.backends.cuda.libraries.loading import COMPLEX, DEFAULT_STREAM, REAL
from genesis_fn.kernels import routines as r

MOST_PLANS = 128  # that are kept; one that a graph contains lives as long as that
_ARCHITECTURE = b"--gpu-architecture=compute_80"  # of which code is linked on later ones, too
# cufftXtCallbackType, and the name that cuFFT looks for. It links no other name, though there is an
# argument for one (CUDA 13: INTERNAL_ERROR).
_STORES = {"float32": (4, "Complex", "float"), "float64": (5, "DoubleComplex", "double")}
_STORE = """
__device__ void cufftJITCallbackStore{name}(
    void *out, unsigned long long i, {number}2 x, void *, void *
) {{
    x.x *= ({number}){factor};
    x.y *= ({number}){factor};
    (({number}2 *)out)[i] = x;
}}
"""


class FftPlan:
    """A transform that is planned, without memory of its own for intermediate results."""

    def __init__(self, routine: r.Fft) -> None:
        self._fft, self._retired = loading.libraries().fft, loading.retired
        fft = self._fft
        self.handle = fft.create()
        fft.set_auto_allocation(self.handle, 0)
        if routine.factor != 1:
            # cuFFT reads the code when it plans.
            code, kind = _scaled_stores(routine.kind, routine.factor), _STORES[routine.kind][0]
            fft.xt_set_jit_callback(self.handle, 0, code, len(code), kind, 0)
        half = (*routine.lengths[:-1], routine.lengths[-1] // 2 + 1)
        source = half if routine.form == "c2r" else routine.lengths
        result = half if routine.form == "r2c" else routine.lengths
        kinds = REAL[routine.kind], COMPLEX[routine.kind]
        stride, distance = 1, math.prod
        if routine.interleaved:
            stride, distance = routine.batch, lambda _: 1
        self.scratch = fft.xt_make_plan_many(
            self.handle,
            len(routine.lengths),
            list(routine.lengths),
            list(source),
            stride,
            distance(source),
            kinds[routine.form[0] == "c"],
            list(result),
            stride,
            distance(result),
            kinds[routine.form[2] == "c"],
            routine.batch,
            kinds[1],
        )

    def run(self, routine: r.Fft, addresses: Sequence[int], stream: int) -> None:
        """Enqueue it, at the addresses of source, result and scratch memory."""
        source, result, scratch = addresses
        self._fft.set_stream(self.handle, stream)
        self._fft.set_work_area(self.handle, scratch)
        direction = 1 if routine.inverse or routine.form == "c2r" else -1
        try:
            self._fft.xt_exec(self.handle, source, result, direction)
        finally:
            self._fft.set_stream(self.handle, DEFAULT_STREAM)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._retired.append((self._fft.destroy, self.handle))


_plans: OrderedDict[tuple[int, r.Fft], FftPlan] = OrderedDict()


def plan(routine: r.Fft) -> FftPlan:
    """The plan of a transform in the current context."""
    key = loading.context(), routine
    with loading.planning():
        found = _plans.pop(key, None) or FftPlan(routine)
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


@functools.lru_cache(4096)
def scales(routine: r.Fft) -> bool:
    """Whether a complex transform with a factor is planned as one kernel for each dimension.

    cuFFT plans others with intermediate results, which take longer than a pass (16384 x 256, us:
    32 unscaled, 45 with a pass, 50 with a function that stores; 2^22: 61, 75, 200; H200), and for
    large primes refuses such functions.
    """
    try:
        found = plan(routine)
    except Exception:  # NVRTC or nvJitLink are missing, too: the bindings raise several types
        return False
    if found.scratch:
        with loading.planning():
            _plans.pop((loading.context(), routine), None)  # which nothing runs
    return found.scratch == 0


@functools.lru_cache(64)
def _scaled_stores(kind: str, factor: float) -> bytes:
    """A function that stores results times a factor, as intermediate code that cuFFT links."""
    _, name, number = _STORES[kind]
    rounded = float(np.dtype(kind).type(factor))
    text = _STORE.format(name=name, number=number, factor=repr(rounded))
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"store.cu", 0, [], []))
    try:
        options = [b"-dlto", b"--relocatable-device-code=true", _ARCHITECTURE]
        _checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
        code = b" " * _checked(nvrtc.nvrtcGetLTOIRSize(program))
        _checked(nvrtc.nvrtcGetLTOIR(program, code))  # written into the bytes
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a function of NVRTC returned beside its status. Raises CudaError."""
    status, *rest = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CudaError("compiling how a transform stores its results", status.name)
    return rest[0] if rest else None
