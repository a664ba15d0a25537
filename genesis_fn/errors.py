"""The library's exceptions."""

from genesis_fn.core.errors import (
    ArgumentError,
    AssertionFailed,
    BackendError,
    ConcretizationTypeError,
    DeviceError,
    DonatedError,
    DTypeError,
    FileError,
    GenesisError,
    IndexOutOfRange,
    KeyReuseError,
    NanError,
    NonConcreteBooleanIndexError,
    NotDifferentiableError,
    OutOfMemoryError,
    ShapeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    TransferError,
    TreeError,
    UnexpectedTracerError,
)
from genesis_fn.transforms.jit.retrace import RecompilationWarning

__all__ = [
    "ArgumentError", "AssertionFailed", "BackendError", "ConcretizationTypeError", "DTypeError",
    "DeviceError",
    "DonatedError", "FileError", "GenesisError", "IndexOutOfRange", "KeyReuseError", "NanError",
    "NonConcreteBooleanIndexError", "NotDifferentiableError", "OutOfMemoryError",
    "RecompilationWarning", "ShapeError", "TracerArrayConversionError",
    "TracerBoolConversionError", "TracerIntegerConversionError", "TransferError", "TreeError",
    "UnexpectedTracerError",
]  # fmt: skip
