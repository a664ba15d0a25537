"""How the CPU backend stores each dtype: as a torch tensor; unsigned integers that torch lacks, in
signed storage of the same width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Scalar

T = TypeVar("T")

SIGNED_STORAGE = {dtypes.U16: torch.int16, dtypes.U32: torch.int32, dtypes.U64: torch.int64}
NARROW_FLOATS = (dtypes.F8E4, dtypes.F8E5)

TORCH_DTYPE = {d: getattr(torch, d.name) for d in dtypes.ALL} | SIGNED_STORAGE


# Integer dtypes through which torch and NumPy exchange the bits of dtypes that one of them lacks.
_CARRIERS = {
    dtypes.U16: "int16", dtypes.U32: "int32", dtypes.U64: "int64", dtypes.BF16: "int16",
    dtypes.F8E4: "uint8", dtypes.F8E5: "uint8",
}  # fmt: skip


def host_view(x: torch.Tensor, kind: DType) -> np.ndarray:
    """A CPU tensor's memory as a NumPy array of dtype `kind`, without a copy."""
    carrier = _CARRIERS.get(kind)
    if carrier is None:
        return x.detach().numpy()
    return x.detach().view(getattr(torch, carrier)).numpy().view(kind)


def host_tensor(value: np.ndarray, kind: DType) -> torch.Tensor:
    """A CPU tensor over a NumPy array's memory, in this library's storage for dtype `kind`."""
    value = np.asarray(value, dtype=kind, order="C")
    if not value.flags.writeable:
        value = value.copy()
    carrier = _CARRIERS.get(kind)
    if carrier is None:
        return torch.from_numpy(value)
    flat = value.reshape(-1)  # 0-d arrays cannot be viewed as another dtype
    return torch.from_numpy(flat.view(carrier)).view(TORCH_DTYPE[kind]).reshape(value.shape)


def through_numpy(f: Callable[..., Any], kind: DType) -> Callable[..., Any]:
    """`f` of NumPy arrays as a function of tensors of dtype `kind`; the result is stored as this
    library stores its dtype."""

    def call(*xs: Any) -> torch.Tensor:
        views = [host_view(x, kind) if type(x) is torch.Tensor else kind.type(x) for x in xs]
        with np.errstate(all="ignore"):
            y = np.asarray(f(*views))
        return host_tensor(y, y.dtype)

    return call


def through_float32(f: Callable[..., Any], kind: DType) -> Callable[..., Any]:
    """`f` computed in float32 on operands of an 8-bit float type."""
    narrow = TORCH_DTYPE[kind]

    def call(*xs: Any) -> torch.Tensor:
        y = f(*[x.float() if type(x) is torch.Tensor and x.dtype is narrow else x for x in xs])
        return y.to(narrow) if y.dtype is torch.float32 else y

    return call


def same(x: T) -> T:
    """The identity."""
    return x


def ordered(kind: DType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(to, from) storage in which torch compares, reverses and pads as `kind` is ordered."""
    if kind in SIGNED_STORAGE:
        least = torch.iinfo(SIGNED_STORAGE[kind]).min
        flip = lambda x: x ^ least
        return flip, flip
    if kind in NARROW_FLOATS:
        return torch.Tensor.float, lambda x: x.to(TORCH_DTYPE[kind])
    if kind == dtypes.BOOL:
        return lambda x: x.to(torch.uint8), lambda x: x.to(torch.bool)
    return same, same


def in_order(kind: DType, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, which compares and moves elements but makes none, for storage of any dtype."""
    to, back = ordered(kind)
    return f if to is same else lambda x: back(f(to(x)))


def summed(kind: DType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(to, from) a dtype in which torch adds `kind`: floats of 16 and 8 bits in float32."""
    if kind in dtypes.NARROW:
        return torch.Tensor.float, lambda x: x.to(TORCH_DTYPE[kind])
    return same, same


def moved(kind: DType, move: Callable[..., Any]) -> Callable[..., Any]:
    """`move`, which only copies elements of its operands, for every dtype of theirs: torch moves
    no 8-bit floats, but their bytes."""
    if kind not in NARROW_FLOATS:
        return move
    stored = TORCH_DTYPE[kind]

    def run(*xs: Any) -> torch.Tensor:
        return move(*[x.view(torch.uint8) if x.dtype is stored else x for x in xs]).view(stored)

    return run


def full(shape: Sequence[int], value: Scalar, kind: DType) -> torch.Tensor:
    """A tensor of one Python number, as this library stores dtype `kind`."""
    return host_tensor(np.full(shape, value, kind), kind)


def scalar(value: Scalar, kind: DType) -> torch.Tensor:
    """A 0-d tensor of a Python number; integers wrap."""
    return host_tensor(np.asarray(value).astype(kind), kind)
