"""Programs run on the interpreting driver and on the CPU backend, and compared.

With GENESIS_CUDA_DRIVER=cuda in the environment they run on a GPU instead.
"""

from __future__ import annotations

import os
import re

if os.environ.setdefault("GENESIS_CUDA_DRIVER", "interpret") == "interpret":
    os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from genesis_fn.backends.cpu.backend import compile_jaxpr as compile_for_cpu
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.core.aval import aval, sig
from genesis_fn.core.device import Device, cpu, cuda
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.transforms.staging.stage_trace import stage

PLACE = cuda(0)


def put(x: Any, place: Device = PLACE) -> ArrayImpl:
    """An array in the interpreting driver's memory."""
    x = np.ascontiguousarray(x).reshape(np.shape(x))
    block = device_runtime(place.index).alloc(max(x.nbytes, 1))
    if x.nbytes:
        device_runtime(place.index).staging.to_device(block.address, x.ctypes.data, x.nbytes)
    return ArrayImpl(block, sig(aval(x.shape, x.dtype), place))


def get(x: ArrayImpl) -> np.ndarray:
    """Its values."""
    out = np.empty(x.shape, x.dtype)
    if out.nbytes:
        device_runtime(x.device.index).read(out.ctypes.data, x.data.address, out.nbytes)
    return out


def traced(f: Callable, *args: Any) -> tuple[Jaxpr, list[np.ndarray]]:
    """(the program of `f`, all of its inputs)."""
    leaves, structure = tree.flatten(args)
    leaves = [np.asarray(x) for x in leaves]
    avals = [aval(x.shape, x.dtype) for x in leaves]
    jaxpr, captured = stage(lambda *xs: tree.leaves(f(*tree.unflatten(structure, xs))), avals)
    return jaxpr, [c.device.backend.to_numpy(c) for c in captured] + leaves


def run(f: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """The results of a compiled function on the device."""
    jaxpr, inputs = traced(f, *args)
    compiled = compile_jaxpr(jaxpr, PLACE)
    return [get(x) for x in compiled(*map(put, inputs))]


def on_cpu(jaxpr: Jaxpr, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The program's results from the CPU backend."""
    outs = compile_for_cpu(jaxpr, cpu())(*[from_numpy(x, cpu()) for x in inputs])
    return [np.array(o.device.backend.to_numpy(o)) for o in outs]


def close(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    """Asserts equality: exact for integers, within `tolerance` for floats."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(
            got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance
        )


def ranges_have_their_axis_first(text: str) -> None:
    """Asserts that generated kernels compute with ranges only after giving them their axis.

    Triton 3.6 may take every element of a range, once it has lost its order, for as divisible as
    the first, and says so of the axes that are added then (docs/cuda.md, "Alignment").
    """
    for kernel in re.split(r"^def ", text, flags=re.MULTILINE)[1:]:
        if kernel.startswith(("pointwise", "tiles", "rows", "loop", "slabs", "joint")):
            for axis in re.finditer(r"\[(None, :|:, None)\]", kernel):
                before = kernel[: axis.start()].rsplit("\n", 1)[-1]
                assert re.search(r"tl\.arange\(0, \d+\)$", before), before


def compare(
    f: Callable,
    *args: Any,
    tolerance: float = 2e-5,
    donated: Sequence[bool] = (),
    place: Device = PLACE,
) -> CudaExecutable:
    """Runs `f` on both backends, asserts that they agree, and returns the executable. `donated`
    marks the arguments; captured arrays come before them."""
    jaxpr, inputs = traced(f, *args)
    donated = [False] * (len(inputs) - len(donated)) + [bool(d) for d in donated]
    executable = compile_jaxpr(jaxpr, place, donated=donated)
    ranges_have_their_axis_first(executable.as_text())
    want = on_cpu(jaxpr, inputs)
    for _ in range(2):
        for g, w in zip(executable(*[put(x, place) for x in inputs]), want, strict=True):
            close(get(g), w, tolerance)
    return executable
