"""Prompts as programs take them: checked, and padded to a length that many share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, dtypes, errors
from genesis_fn.extend import Tracer, brief, typeof
from genesis_fn.transforms import assert_

_LEAST = 16


def bucket(length: int) -> int:
    """The least of 16, 24, 32, 48, 64, 96 ... (2**k and 3 * 2**k) that is not below `length`.

    Above 16 padding is at most a third of it, where powers of two alone waste up to a half, and
    there are two programs for each doubling: prompts of up to 32,768 tokens meet 23.
    """
    power = max(_LEAST, 1 << (length - 1).bit_length())
    smaller = power * 3 // 4
    return smaller if length <= smaller and smaller > _LEAST else power


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Prompts [rows, padded], of which `width` columns were given.

    They lie on the host, where padding them compiles nothing, and go to the parameters' device with
    the call; traced ones are not padded.
    """

    tokens: np.ndarray | Array
    lengths: np.ndarray | Array
    width: int
    traced: bool

    @property
    def rows(self) -> int:
        """Their number, with copies."""
        return self.tokens.shape[0]

    @property
    def padded(self) -> int:
        """The columns that a program sees."""
        return self.tokens.shape[1]

    def capacity(self, limit: int) -> int:
        """The positions of a cache with room for them and `limit` new tokens."""
        return self.width + limit if self.traced else bucket(self.padded + limit)


class TokenError(errors.ArgumentError, IndexError):
    """A number is no token of the vocabulary; an IndexError as that of traced tokens is."""


def check_tokens(caller: str, tokens: np.ndarray, vocabulary: int) -> None:
    """Raise TokenError where an integer is no token."""
    other = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if other.size:
        raise TokenError(f"{caller}: {other[0]} is no token of a vocabulary of {vocabulary}")


def prompts_of(
    caller: str, tokens: ArrayLike, lengths: ArrayLike | None, vocabulary: int, copies: int = 1
) -> Prompts:
    """Prompts [B, T] of lengths [B], each `copies` times, one after the other; zeros behind their
    ends."""
    found = _array(caller, tokens)
    aval = typeof(found)
    if aval.ndim != 2 or 0 in aval.shape:
        raise errors.ShapeError(
            f"{caller}: tokens {aval} must be [batch, length], of at least one row and at least "
            "one token a row"
        )
    if not dtypes.is_integer(aval.dtype):
        raise errors.DTypeError(f"{caller}: tokens {aval} must be integers")
    rows, width = aval.shape
    ends: Array | None = None if lengths is None else jnp.asarray(lengths)
    if ends is not None:
        _check_lengths(caller, ends, rows, width)
    traced = isinstance(found, Tracer) or isinstance(ends, Tracer)
    if traced:
        space: Any = jnp
        here: Any = found
        long: Any = jnp.full((rows,), width, jnp.int32) if ends is None else ends
    else:
        space, here = np, np.asarray(found)
        long = np.full((rows,), width, np.int32) if ends is None else np.asarray(ends)
        here = np.pad(here, ((0, 0), (0, bucket(width) - width)))
    here, long = space.repeat(here, copies, axis=0), space.repeat(long, copies, axis=0)
    real = space.arange(here.shape[1])[None, :] < long[:, None]
    here = space.where(real, here, 0)
    if not traced:
        check_tokens(caller, here, vocabulary)
    return Prompts(here.astype(np.int32), long.astype(np.int32), width, traced)


def _array(caller: str, tokens: Any) -> Array:
    try:
        return jnp.asarray(tokens)
    except (TypeError, OverflowError) as error:
        raise errors.DTypeError(
            f"{caller}: tokens must be integers [batch, length]: {error}"
        ) from None
    except ValueError:  # what NumPy and nested lists raise where rows differ
        raise errors.ShapeError(
            f"{caller}: tokens {brief(tokens)} have rows of several lengths; pad the shorter ones "
            "at their end, and give `lengths`"
        ) from None


def _check_lengths(caller: str, lengths: Array, rows: int, width: int) -> None:
    aval = typeof(lengths)
    if aval.shape != (rows,) or not dtypes.is_integer(aval.dtype):
        raise errors.ShapeError(f"{caller}: lengths {aval} must be [{rows}] integers")
    # Here, where the message is a constant: one that shows values is made by the host, in the
    # middle of a program.
    inside = (lengths >= 1) & (lengths <= width)
    assert_(inside, f"{caller}: lengths must lie in 1 to {width}")
