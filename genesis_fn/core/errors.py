"""Exceptions. Each subclasses the builtin that callers of NumPy, JAX and PyTorch would catch.

A message has at most six lines: what was wrong, with which operands, at which user line, how the
value came to be there, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable

# The user's line in words; `primitive.py` puts a function here that knows of transforms.
user_line: Callable[[], str] | None = None


class GenesisError(Exception):
    """Base of the errors that only this library raises."""


class JAXTypeError(GenesisError, TypeError):
    """A traced value was used where it cannot be, or a key twice: the base of JAX's name."""


class JAXIndexError(GenesisError, IndexError):
    """A bad index: the base of JAX's name."""


class JaxRuntimeError(GenesisError, RuntimeError):
    """A device or another process failed while a program ran: the base of JAX's name."""


class JaxprTypeError(GenesisError, TypeError):
    """A program is not well typed: an operand is not bound, or a type breaks its shape rule."""


class InconclusiveDimensionOperation(GenesisError):
    """JAX's error for dimensions that are symbols. Dimensions are numbers here: nothing raises
    it."""


class WithLine(GenesisError):
    """An error whose message names the user's line: where it was raised, if nothing better is said
    in it."""

    def __init__(self, message: str = "") -> None:
        self.said = message
        if user_line is not None and message and "\n  at " not in message:
            message += f"\n  at {user_line()}"
        super().__init__(message)


def said(error: BaseException) -> str:
    """The message of an error without the line that it was raised at, for who called no function:
    the user of a command, whose data are what is wrong."""
    return error.said if isinstance(error, WithLine) else str(error)


class ShapeError(WithLine, TypeError, ValueError):
    """Operand shapes do not fit an operation."""


class AxisError(ShapeError, IndexError):
    """An axis lies outside an array's dimensions."""


class DTypeError(WithLine, TypeError, ValueError):
    """Operand dtypes do not fit an operation, or have no common type."""


class TypePromotionError(DTypeError):
    """Operand dtypes have no common type, or none without a conversion that is forbidden."""


class ArgumentError(WithLine, ValueError, TypeError):
    """An argument is missing, or has a value that the function does not take."""


class UnsupportedError(ArgumentError, NotImplementedError):
    """A value that SciPy takes for an argument and the library does not."""


class DeviceError(GenesisError, ValueError, RuntimeError):
    """Operands live on two devices, or a device is not there."""


class MeshError(GenesisError, ValueError, RuntimeError):
    """A mesh cannot be made of these devices, or this process cannot compute on it."""


class ShardingError(WithLine, ValueError):
    """An array cannot be laid out so, or a value differs between devices where it must not."""


class DistributedError(JaxRuntimeError):
    """Processes that compute together did not meet, or one of them is gone or late."""


class TransferError(JaxRuntimeError):
    """A copy between host and device, or two devices, that `transfer_guard` forbids."""


class TreeError(WithLine, TypeError, ValueError):
    """A pytree has another structure than the one expected."""


class ConcretizationTypeError(JAXTypeError):
    """A value that is abstract while tracing was used where Python needs a concrete one."""


class TracerBoolConversionError(ConcretizationTypeError):
    """`bool()` of a traced value: Python `if`, `while`, `and`, `or` or `not` on it."""


class TracerIntegerConversionError(ConcretizationTypeError):
    """A traced value was used as a Python index or integer."""


class TracerArrayConversionError(ConcretizationTypeError):
    """A traced value was handed to NumPy."""


class NonConcreteBooleanIndexError(ConcretizationTypeError, JAXIndexError):
    """A traced boolean mask was used as an index: the result's shape would depend on values."""


class UnexpectedTracerError(JAXTypeError, RuntimeError):
    """A tracer left the function whose trace made it and was used afterwards."""


class DonatedError(JaxRuntimeError, ValueError):
    """An array was used after its memory had been donated to a jitted call."""


class CallbackResultError(TreeError, ShapeError, DTypeError, RuntimeError):
    """A function that runs on the host returned something else than it was declared to."""


class NotDifferentiableError(GenesisError, TypeError, ValueError):
    """No derivative is defined here, or not in this mode."""


class TracingError(GenesisError, RuntimeError):
    """A function would have to be traced, or a program run, where a setting forbids it."""


class MissingRuleError(NotDifferentiableError, AttributeError):
    """A function that takes rules of the user's was called before it had them."""


class ClosedOverError(NotDifferentiableError, UnexpectedTracerError):
    """A function with derivative rules closes over a value that is being differentiated."""


class NanError(GenesisError, FloatingPointError):
    """A NaN or infinity appeared while `debug_nans` or `debug_infs` was on."""


class AssertionFailed(GenesisError, AssertionError):
    """A condition given to `assert_` did not hold when the program ran."""


class CheckFailed(AssertionFailed, ValueError):
    """A condition given to `experimental.checkify.check` did not hold, or another of its checks."""


class KeyReuseError(JAXTypeError, RuntimeError):
    """A random key was used twice while `debug.check_keys` was on."""


class IndexOutOfRange(JAXIndexError):
    """An index lies outside an array's axis. `axis`, `size` and `index` say which."""

    def __init__(
        self,
        message: str,
        axis: int | None = None,
        size: int | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.axis, self.size, self.index = axis, size, index

    @classmethod
    def at(cls, index: int, axis: int, aval: object, window: int = 1) -> IndexOutOfRange:
        """The error for `index`, the start of `window` elements, along `axis` of an aval."""
        which = f"index {index}" if window == 1 else f"{window} elements from index {index}"
        size = aval.shape[axis]  # type: ignore[attr-defined]
        return cls(f"{which} out of range for axis {axis} of {aval}", axis, size, index)

    def naming(self, label: str) -> IndexOutOfRange:
        """The error with the name of the array, where one is known."""
        middle = f" out of range for axis {self.axis} of "
        head, found, tail = str(self).partition(middle)
        if not label or not found:
            return self
        return type(self)(f"{head}{middle}{label}, {tail}", self.axis, self.size, self.index)


class OutOfMemoryError(JaxRuntimeError, MemoryError):
    """A device has no room for an allocation."""


class FileError(GenesisError, ValueError):
    """A file that is not what it should be; says which file, field and value."""


class BackendError(GenesisError, RuntimeError):
    """A backend is missing, or its device cannot be used."""


def at_line(error: Exception, line: object) -> Exception:
    """`error` with the user's `line` (a `Where`, or None) added where its message names none."""
    if line is None or "\n  at " in str(error):
        return error
    text = f"\n  at {line.describe()}"  # type: ignore[attr-defined]
    if isinstance(error, GenesisError) and len(error.args) == 1:
        found = type(error)(f"{error}{text}")
        found.__dict__.update(error.__dict__)
        return found
    error.add_note(text.strip())
    return error
