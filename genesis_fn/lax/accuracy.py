"""How accurate a function is asked to be: what `accuracy=` of exp, log, sin, ... takes."""

from __future__ import annotations

import enum
from typing import Any

from genesis_fn.core import dtypes, errors
from genesis_fn.core.diagnostics.source_info import where

# What every function with `accuracy=` keeps to, in units in the last place of its float operand.
ULPS = 4


class AccuracyMode(enum.Enum):
    """An accuracy by name. Functions have one implementation, which both names stand for.

    >>> lax.exp(jnp.float32(1), accuracy=lax.AccuracyMode.HIGHEST)
    Array(2.7182817, dtype=float32)
    """

    HIGHEST = 1
    DEFAULT = 2


class Tolerance:
    """The error that a function of floats may have.

    An absolute and a relative one add up, or an absolute one and units in the last place. Functions
    are accurate to 4 units in the last place, which is what may be asked for: less of both relative
    ones raises.

    Args:
        atol: the absolute error.
        rtol: the error relative to the result.
        ulps: the error in units in the last place.

    Raises:
        ValueError: one of them is negative, or none is given.

    >>> lax.exp(jnp.float32(1), accuracy=lax.Tolerance(rtol=1e-6))
    Array(2.7182817, dtype=float32)
    """

    def __init__(self, atol: float = 0.0, rtol: float = 0.0, ulps: int = 0) -> None:
        if atol < 0 or rtol < 0 or ulps < 0:
            raise errors.ArgumentError(
                f"Tolerance: atol={atol}, rtol={rtol} and ulps={ulps} must not be negative"
            )
        if not (atol or rtol or ulps):
            raise errors.ArgumentError("Tolerance: give one of atol, rtol and ulps")
        self.atol, self.rtol, self.ulps = atol, rtol, ulps

    def __repr__(self) -> str:
        return f"Tolerance(atol={self.atol}, rtol={self.rtol}, ulps={self.ulps})"


def check(name: str, accuracy: Any, operand: Any) -> None:
    """Raise ArgumentError where the function `name` of `operand` is less accurate than asked."""
    if accuracy is None or isinstance(accuracy, AccuracyMode):
        return
    if not isinstance(accuracy, Tolerance):
        raise errors.ArgumentError(
            f"{name}: accuracy={accuracy!r} is no lax.AccuracyMode, lax.Tolerance or None\n"
            f"  at {where().describe()}"
        )
    kind = dtypes.dtype(operand.dtype) if hasattr(operand, "dtype") else dtypes.F32
    eps = float(dtypes.finfo(kind).eps) if dtypes.is_float(kind) else None
    if eps is None or (accuracy.ulps < ULPS and accuracy.rtol < ULPS * eps):
        own = f"{ULPS} units in the last place" + (f", {ULPS * eps:.1e}" if eps else " of floats")
        raise errors.ArgumentError(
            f"{name}: {accuracy} of {kind.name} is more than its {own}\n"
            f"  at {where().describe()}\n  ask for ulps or rtol of that, or compute in a wider type"
        )
