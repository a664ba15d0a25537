"""From Python and NumPy values to arrays, by the library's dtype rules."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, offers_array
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import SCALARS, Tracer


def is_value(x: object) -> bool:
    """Whether `x` is an array, a tracer, or something that becomes one: a number, an ndarray, or an
    array of another library."""
    kind = type(x)
    return (
        kind is ArrayImpl
        or kind in SCALARS
        or isinstance(x, (Tracer, np.ndarray, np.generic))
        or hasattr(x, "__genesis_array__")
        or offers_array(kind)
    )


def as_array(x: Any, dtype: DType | None = None, device: Device | None = None) -> Array:
    """`x` as an Array or tracer: arrays pass through; numbers and ndarrays are converted.

    Python scalars become bool, int32, float32 or complex64, and weak (but bool), unless `dtype` is
    given; ndarrays and NumPy scalars of 64-bit types become 32-bit unless `dtype` says otherwise.
    With `enable_x64` the scalars become 64-bit and NumPy's values stay so.
    What offers `__array__`, DLPack or `__jax_array__`, as a torch tensor does, is copied as it is
    now. Raises OverflowError where an integer does not fit, TypeError for anything that is not a
    number or an array.
    """
    if type(x) is ArrayImpl or isinstance(x, Tracer):
        return x
    # By exact type: NumPy's float64 inherits from float, and is not weak.
    if type(x) in SCALARS:
        target = dtypes.scalar_dtype(type(x)) if dtype is None else dtype
        return from_numpy(fitted(x, target), device, dtype is None and target is not dtypes.BOOL)
    if hasattr(x, "__genesis_array__"):
        return x.__genesis_array__()
    if isinstance(x, (np.ndarray, np.generic)):
        if x.dtype.hasobject or (x.dtype.kind in "USVmM" and x.dtype not in dtypes.ALL):
            raise errors.DTypeError(
                f"an ndarray of dtype {x.dtype} cannot become an array\n  at {where().describe()}"
            )
        target = dtype or dtypes.counted(x.dtype)
        if isinstance(x, np.ma.MaskedArray):
            raise errors.ArgumentError(
                f"a masked array cannot become an array: there are no masks here\n"
                f"  at {where().describe()}\n  pass x.filled(value), or x.data and x.mask apart"
            )
        return from_numpy(narrowed(np.asarray(x), dtypes.dtype(target)), device)
    if offers_array(type(x)):
        return _from_others(x, dtype, device)
    raise TypeError(
        f"expected an array or a number, got {x!r} of type {type(x).__name__}\n"
        f"  at {where().describe()}"
    )


def _from_others(x: Any, dtype: DType | None, device: Device | None) -> Any:
    """A copy of an array of another library."""
    kind, torch = type(x), sys.modules.get("torch")
    if hasattr(kind, "__jax_array__"):
        return as_array(x.__jax_array__(), dtype, device)
    if torch is not None and isinstance(x, torch.Tensor):
        return as_array(_from_torch(x, torch), dtype, device)
    found = x if hasattr(kind, "__array__") else np.from_dlpack(x)
    return as_array(np.asanyarray(found), dtype, device)


def of_torch(torch_dtype: object) -> DType | None:
    """The dtype that a torch.dtype is; None for one outside the library's list."""
    return dtypes.NAMES.get(str(torch_dtype).removeprefix("torch."))


def _from_torch(x: Any, torch: Any) -> np.ndarray:
    """A torch tensor's values. Raises TypeError for one that requires grad."""
    if x.requires_grad:
        raise TypeError(
            "a torch.Tensor that requires grad cannot become an array: torch would not see what "
            f"is computed from it\n  at {where().describe()}\n"
            "  pass x.detach(), or run torch functions in differentiated code by torch_call"
        )
    x = x.detach().to_dense().cpu().resolve_conj().resolve_neg()
    dtype = of_torch(x.dtype)
    if dtype is not None and dtype in dtypes.NARROW and dtype is not dtypes.F16:
        # torch hands NumPy no dtype that NumPy lacks, but its bits.
        bits = torch.int16 if dtype.itemsize == 2 else torch.int8
        return x.contiguous().view(bits).numpy().view(dtype)
    return x.numpy()


def fitted(x: bool | int | float | complex, dtype: DType) -> np.ndarray:
    """A Python scalar as a 0-d ndarray. Raises OverflowError where an integer does not fit."""
    _of_numbers(dtype)
    if type(x) is int and dtypes.is_integer(dtype):
        info = np.iinfo(dtype)
        if not info.min <= x <= info.max:
            raise OverflowError(
                f"Python int {x} does not fit {dtype.name}\n  at {where().describe()}\n"
                + ("  pass a float" if dtype.itemsize == 8 else "  pass dtype='int64'")
            )
    return np.asarray(x, dtype=dtype)


def _of_numbers(dtype: DType) -> None:
    if dtypes.is_key(dtype):
        raise errors.DTypeError(
            f"numbers do not become random keys ({dtype}); random.wrap_key_data(words) makes keys "
            "of uint32[..., 2]"
        )


def narrowed(x: np.ndarray, dtype: DType) -> np.ndarray:
    """`x` in another dtype. Raises OverflowError where a 64-bit integer does not fit 32 bits."""
    _of_numbers(dtype)
    if x.dtype == dtype:
        return x
    if dtypes.is_integer(dtype) and dtypes.is_integer(x.dtype) and x.size:
        info = np.iinfo(dtype)
        low, high = int(x.min()), int(x.max())
        if low < info.min or high > info.max:
            raise OverflowError(
                f"values from {low} to {high} do not fit {dtype.name}\n"
                f"  at {where().describe()}\n  pass dtype={x.dtype.name!r}"
            )
    return x.astype(dtype)
