"""NumPy bodies of the device functions, for kernels that run in Triton's interpreter.

Tensors there hold a NumPy array; bfloat16 and float8 values are kept as raw bits of the same width,
which `_values` and `_tensor` turn into numbers and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from genesis_fn.core import dtypes
from genesis_fn.kernels.language.dtypes import TYPES

_DTYPES = {getattr(tl, name): d for d, name in TYPES.items()}
_RAW = {t: d for t, d in _DTYPES.items() if d in dtypes.NARROW and d != dtypes.F16}
_LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}


def _values(x: tl.tensor) -> np.ndarray:
    data = np.ascontiguousarray(x.handle.data)
    raw = _RAW.get(x.dtype)
    return data if raw is None else data.view(raw).reshape(data.shape)


def _tensor(data: np.ndarray, dtype: tl.dtype, like: tl.tensor) -> tl.tensor:
    shape = data.shape
    if dtype in _RAW:
        data = data.view(np.uint16 if dtype == tl.bfloat16 else np.uint8)
    kind = tl.block_type(dtype, list(shape)) if like.type.is_block() else dtype
    return tl.tensor(TensorHandle(data.reshape(shape), dtype), kind)


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, tl.constexpr) else x


def cast(x: tl.tensor, dtype: tl.dtype) -> tl.tensor:
    """`x` as `dtype`, floats rounded to nearest even, float8 saturated, float to int cut."""
    dtype = _plain(dtype)
    values = _values(x)
    # Saturated, as the hardware's conversions to 8-bit floats are.
    if dtype in _LARGEST:
        values = values.astype(np.float32)
        values = np.clip(values, -_LARGEST[dtype], _LARGEST[dtype])
    if dtype in _RAW and values.dtype == np.float64:
        values = values.astype(np.float32)
    if dtype == tl.int1:
        return _tensor(values != 0, dtype, x)
    with np.errstate(all="ignore"):
        return _tensor(values.astype(_DTYPES[dtype]), dtype, x)


def up(x: tl.tensor) -> tl.tensor:
    """`x` in float32 if its type is a narrower float, else `x`."""
    return cast(x, tl.float32) if x.dtype in _RAW or x.dtype == tl.float16 else x


def _tf32(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def dot(a: tl.tensor, b: tl.tensor, acc: tl.tensor, precision: str) -> tl.tensor:
    """`acc + a @ b` in `acc`'s type; "tf32" drops the operands' low 13 bits as tensor cores do."""
    left, right = _values(a), _values(b)
    if a.dtype == tl.float32 and _plain(precision) in ("default", "tf32"):
        left, right = _tf32(left), _tf32(right)
    wide = _DTYPES[acc.dtype]
    return _tensor(
        acc.handle.data + np.matmul(left.astype(wide), right.astype(wide)), acc.dtype, acc
    )


def add_into(
    descriptor: tl.tensor_descriptor_base, offsets: list[tl.tensor], value: tl.tensor
) -> None:
    """Adds `value` to the tile of `descriptor` at `offsets`."""
    descriptor.store(offsets, descriptor.load(offsets) + value)


def rounded_product(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x * y`, which is rounded here anyway."""
    return x * y


def wait_for_dependencies() -> None:
    """Does nothing: interpreted launches run one after the other."""


def launch_dependents() -> None:
    """Does nothing: interpreted launches run one after the other."""


def _function(f: Callable[..., torch.Tensor]) -> Callable[..., tl.tensor]:
    def elementwise(*operands: tl.tensor) -> tl.tensor:
        first = next(x for x in operands if isinstance(x, tl.tensor))
        arrays = [
            np.array(_values(x)) if isinstance(x, tl.tensor) else np.asarray(_plain(x))
            for x in operands
        ]
        arrays = [x.astype(_DTYPES[first.dtype], copy=False) for x in np.broadcast_arrays(*arrays)]
        result = f(*(torch.from_numpy(np.ascontiguousarray(x)) for x in arrays)).numpy()
        blocks = [x for x in operands if isinstance(x, tl.tensor) and x.type.is_block()]
        return _tensor(result.reshape(arrays[0].shape), first.dtype, (blocks or [first])[0])

    return elementwise


def _fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # torch's is NaN where the quotient overflows.
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


def _cbrt(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.cbrt(x.numpy()))


def popcount(x: tl.tensor) -> tl.tensor:
    """The number of one bits of each 32-bit integer, as int32."""
    # NumPy counts the bits of a negative number's magnitude.
    return _tensor(np.bitwise_count(_values(x).view(np.uint32)).astype(np.int32), tl.int32, x)


exp = _function(torch.exp)
exp2 = _function(torch.exp2)
expm1 = _function(torch.expm1)
log = _function(torch.log)
log2 = _function(torch.log2)
log1p = _function(torch.log1p)
sin = _function(torch.sin)
cos = _function(torch.cos)
tan = _function(torch.tan)
asin = _function(torch.asin)
acos = _function(torch.acos)
atan = _function(torch.atan)
atan2 = _function(torch.atan2)
sinh = _function(torch.sinh)
cosh = _function(torch.cosh)
tanh = _function(torch.tanh)
asinh = _function(torch.asinh)
acosh = _function(torch.acosh)
atanh = _function(torch.atanh)
erf = _function(torch.erf)
erfc = _function(torch.erfc)
erf_inv = _function(torch.erfinv)
lgamma = _function(torch.lgamma)
cbrt = _function(_cbrt)
hypot = _function(torch.hypot)
pow = _function(torch.pow)
fmod = _function(_fmod)
copysign = _function(torch.copysign)
nextafter = _function(torch.nextafter)
floor = _function(torch.floor)
ceil = _function(torch.ceil)
trunc = _function(torch.trunc)
round_even = _function(torch.round)
sqrt = _function(torch.sqrt)
rsqrt = _function(torch.rsqrt)
