"""The library's exceptions."""

from genesis_fn.core.errors import (
    ArgumentError as ArgumentError,
    AssertionFailed as AssertionFailed,
    BackendError as BackendError,
    ConcretizationTypeError as ConcretizationTypeError,
    DeviceError as DeviceError,
    DonatedError as DonatedError,
    DTypeError as DTypeError,
    FileError as FileError,
    GenesisError as GenesisError,
    IndexOutOfRange as IndexOutOfRange,
    KeyReuseError as KeyReuseError,
    MeshError as MeshError,
    NanError as NanError,
    NonConcreteBooleanIndexError as NonConcreteBooleanIndexError,
    NotDifferentiableError as NotDifferentiableError,
    OutOfMemoryError as OutOfMemoryError,
    ShapeError as ShapeError,
    ShardingError as ShardingError,
    TracerArrayConversionError as TracerArrayConversionError,
    TracerBoolConversionError as TracerBoolConversionError,
    TracerIntegerConversionError as TracerIntegerConversionError,
    TransferError as TransferError,
    TreeError as TreeError,
    UnexpectedTracerError as UnexpectedTracerError,
)
from genesis_fn.transforms.jitting.retrace import RecompilationWarning as RecompilationWarning
