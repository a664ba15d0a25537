"""Routines of `kernels/routines.py` on a device: cuFFT, cuSOLVER and cuBLAS through NVIDIA's own
bindings, the package nvmath-python, cuDNN through nvidia-cudnn-frontend, and torch's on the
interpreting driver's host memory.

    usable(target)               whether plans for `target` may call those of nvmath-python
    convolves(routine, target)   whether they may call this convolution
    scratch(routine, target)     the bytes of scratch memory that a routine wants
    scales(routine, target)      whether a transform has a factor at no cost
    forget_plans()               frees what plans of transforms and convolutions hold

Nothing is loaded before the first plan asks. Drivers prepare a routine, and run it at addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.routines import ConvolutionRoutine, Fft, Routine


class PreparedRoutine(Protocol):
    """A routine of a library, ready to run on a device. What it refers to on the device lives as
    long as it does, so a graph that contains it must keep it."""

    def run(self, addresses: Sequence[int], stream: Any) -> None:
        """Enqueue it on a stream, on buffers at these addresses, scratch memory last."""
        ...


def usable(target: Target) -> bool:
    """Whether there are libraries for a device. Warns once where a package is missing; raises
    BackendError where one is too old."""
    if not target.libraries:
        return False
    if target.interpreted:
        return True
    from genesis_fn.backends.cuda.libraries import loading

    return loading.loaded() is not None


def convolves(routine: ConvolutionRoutine, target: Target) -> bool:
    """Whether there is a library for a device that has this convolution."""
    if not target.libraries:
        return False
    if target.interpreted:
        return True
    from genesis_fn.backends.cuda.libraries import convolutions

    return convolutions.loaded() is not None and convolutions.plan(routine) is not None


def scratch(routine: Routine, target: Target) -> int:
    """The bytes of scratch memory that a routine wants on a device."""
    if target.interpreted:
        return 0
    if isinstance(routine, ConvolutionRoutine):
        from genesis_fn.backends.cuda.libraries import convolutions

        planned = convolutions.plan(routine)
        assert planned is not None, "plans call convolutions only that the library has"
        return planned.scratch
    from genesis_fn.backends.cuda.libraries import nvidia

    return nvidia.scratch(routine)


def scales(routine: Fft, target: Target) -> bool:
    """Whether a complex transform that has a factor takes no longer than one without."""
    if target.interpreted:
        return True
    from genesis_fn.backends.cuda.libraries import transforms

    return transforms.scales(routine)


def forget_plans() -> None:
    """Destroy the plans of transforms and convolutions that no program contains, with the memory
    that they hold."""
    for name in ("transforms", "convolutions"):
        module = sys.modules.get(f"{__name__}.{name}")
        if module is not None:
            module.forget_plans()
