"""Rotary position embeddings, and the ways to stretch them over longer contexts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, Key, PyTree, dtypes
from genesis_fn.errors import ArgumentError, DTypeError
from genesis_fn.nn.module import Module, check_fields, is_count, layer_error, shown


class RotaryScaling(Protocol):
    """How the frequencies of rotary positions change for contexts longer than the trained one."""

    def frequencies(self, base: float, size: int, length: ArrayLike) -> tuple[Any, float]:
        """Radians per position of each pair, [size / 2], and the factor of cosines and sines.

        Args:
            base: the base of the frequencies' geometric sequence.
            size: number of rotated elements of a head.
            length: number of positions of the whole sequence; may be traced.

        Returns:
            (float array [size / 2], factor).
        """
        ...


def _frequencies(base: float, size: int) -> np.ndarray:
    """base**(-2 i / size), in float64: a float32 power loses digits that positions multiply."""
    return float(base) ** (-np.arange(0, size, 2, dtype=np.float64) / size)


def _check_factor(scaling: Any, *more: str) -> None:
    """Raise ArgumentError where `factor` or one of the fields `more` is no positive number."""
    for name in ("factor", *more):
        value = getattr(scaling, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise ArgumentError(
                f"{type(scaling).__name__}: {name} is {value!r:.60}, but is a positive number"
            )


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Positions are divided by a factor.

        frequency / factor

    Source: Chen et al., "Extending context window of large language models via positional
    interpolation", 2023.

    Args:
        factor: how much longer the context becomes.

    Raises:
        ArgumentError: `factor` is not positive.

    >>> nn.RotaryEmbedding(8, scaling=nn.LinearScaling(2.0)).angles(jnp.arange(3))[0].shape
    (3, 1, 8)
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self)

    def frequencies(self, base: float, size: int, length: ArrayLike) -> tuple[np.ndarray, float]:
        return _frequencies(base, size) / self.factor, 1.0


@dataclasses.dataclass(frozen=True)
class NTKScaling:
    """The base grows, so that the slowest frequency is divided by a factor and the fastest stays.

        base * factor**(size / (size - 2))

    Source: "NTK-aware scaled RoPE" (2023), as described by Peng et al., "YaRN", 2023, section 3.1.

    Args:
        factor: how much longer the context becomes.

    Raises:
        ArgumentError: `factor` is not positive.

    >>> nn.RotaryEmbedding(8, scaling=nn.NTKScaling(2.0)).angles(jnp.arange(3))[0].shape
    (3, 1, 8)
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self)

    def frequencies(self, base: float, size: int, length: ArrayLike) -> tuple[np.ndarray, float]:
        return _frequencies(base * self.factor ** _ntk_exponent(size), size), 1.0


def _ntk_exponent(size: int) -> float:
    if size <= 2:
        raise ArgumentError(
            f"rotary scaling of the base needs more than one pair of elements, got {size} elements"
        )
    return size / (size - 2)


@dataclasses.dataclass(frozen=True)
class DynamicScaling:
    """`NTKScaling` by as much as the sequence is longer than the trained context.

        base * (1 + factor * (length / original - 1))**(size / (size - 2)),
        where length is at least original

    The whole call has one length, the largest position plus 1, as in transformers; keys that a
    cache holds stay as they were rotated.

    Source: as of `NTKScaling`; transformers' rope_type "dynamic".

    Args:
        factor: how much the base grows with the length.
        original_max_position_embeddings: number of positions of the trained context.

    Raises:
        ArgumentError: an argument is not positive.

    >>> scaling = nn.DynamicScaling(2.0, original_max_position_embeddings=16)
    >>> nn.RotaryEmbedding(8, scaling=scaling).angles(jnp.arange(32))[0].shape
    (32, 1, 8)
    """

    factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        _check_factor(self, "original_max_position_embeddings")

    def frequencies(self, base: float, size: int, length: ArrayLike) -> tuple[Array, float]:
        original = self.original_max_position_embeddings
        reached = jnp.maximum(jnp.astype(length, jnp.float32), float(original)) / original
        growth = 1 + self.factor * (reached - 1)  # of large factors, the other order rounds to 0
        # (base * growth**e)**(-2 i / size) as a product, whose first factor is exact.
        exponents = -np.arange(0, size, 2) / size * _ntk_exponent(size)
        stretch = jnp.exp(jnp.log(growth) * exponents.astype(np.float32))
        return stretch * _frequencies(base, size).astype(np.float32), 1.0


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Slow frequencies are divided by a factor, fast ones stay, those between are blended.

        w * frequency + (1 - w) * frequency / factor, with w from 1 to 0 between the pairs that
        turn beta_fast and beta_slow times within the trained context

    Cosines and sines are multiplied by `attention_factor`, which sharpens attention.

    Source: Peng et al., "YaRN: efficient context window extension of large language models", 2023.

    Args:
        factor: how much longer the context becomes.
        original_max_position_embeddings: number of positions of the trained context.
        beta_fast, beta_slow: turns within the trained context from which on a pair keeps its
            frequency, and up to which it is divided by the factor.
        attention_factor: of cosines and sines; None takes 0.1 * ln(factor) + 1, or the quotient of
            such terms with `mscale` and `mscale_all_dim` before the logarithm if both are given.
        mscale, mscale_all_dim: see `attention_factor`.
        truncate: whether the bounds between pairs are rounded to whole pairs.

    Raises:
        ArgumentError: a number is not positive.

    >>> scaling = nn.YarnScaling(4.0, original_max_position_embeddings=32768)
    >>> nn.RotaryEmbedding(64, 1e6, scaling=scaling).angles(jnp.arange(3))[0].shape
    (3, 1, 64)
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        given = [n for n in ("attention_factor",) if getattr(self, n) is not None]
        _check_factor(self, "original_max_position_embeddings", "beta_fast", "beta_slow", *given)

    def frequencies(self, base: float, size: int, length: ArrayLike) -> tuple[np.ndarray, float]:
        def pair_of(turns: float) -> float:
            """The place, in elements, of the pair that turns so often in the trained context."""
            wavelength = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return size * math.log(wavelength) / (2 * math.log(base))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        if low == high:
            high += 0.001  # as transformers has it: a step, not a division by 0
        blend = np.clip((np.arange(size // 2) - low) / (high - low), 0.0, 1.0)
        kept = _frequencies(base, size)
        return kept * (1 - blend) + kept / self.factor * blend, self._attention_factor()

    def _attention_factor(self) -> float:
        if self.attention_factor is not None:
            return float(self.attention_factor)

        def sharpness(mscale: float) -> float:
            return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

        if self.mscale and self.mscale_all_dim:
            return sharpness(self.mscale) / sharpness(self.mscale_all_dim)
        return sharpness(1.0)


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are stretched by a factor, short ones stay, those between are blended.

        frequency            where wavelength < original / high_freq_factor
        frequency / factor   where wavelength > original / low_freq_factor
        s * frequency + (1 - s) * frequency / factor between, with
        s = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)

    Source: "The Llama 3 herd of models", 2024; transformers' rope_type "llama3".

    Args:
        factor: how much longer the context becomes.
        low_freq_factor, high_freq_factor: the bounds, in wavelengths per trained context.
        original_max_position_embeddings: number of positions of the trained context.

    Raises:
        ArgumentError: a number is not positive, or `high_freq_factor` is not the larger one.

    >>> scaling = nn.Llama3Scaling(8.0, 1.0, 4.0, 8192)
    >>> nn.RotaryEmbedding(64, 5e5, scaling=scaling).angles(jnp.arange(3))[0].shape
    (3, 1, 64)
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        others = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        _check_factor(self, *others)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ArgumentError(
                f"Llama3Scaling: high_freq_factor is {self.high_freq_factor}, but has to be above "
                f"low_freq_factor, {self.low_freq_factor}"
            )

    def frequencies(self, base: float, size: int, length: ArrayLike) -> tuple[np.ndarray, float]:
        kept = _frequencies(base, size)
        turns = self.original_max_position_embeddings * kept / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        share = np.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
        return kept * share + kept / self.factor * (1 - share), 1.0


def apply_rotary(
    x: ArrayLike, cos: ArrayLike, sin: ArrayLike, *, interleaved: bool = False
) -> Array:
    """Rotates pairs of elements of queries or keys.

        (x1 cos - x2 sin, x2 cos + x1 sin) for each pair (x1, x2)

    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.

    Args:
        x: array [..., T, heads, head_dim].
        cos, sin: arrays [..., T, 1, rotated], from `RotaryEmbedding.angles`; elements of a head
            behind the first `rotated` stay as they are.
        interleaved: whether neighbours are pairs, (0, 1), (2, 3), ...; otherwise element i and the
            one half of the rotated elements later, as in Hugging Face's models.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        ArgumentError: a head has fewer elements than `cos`.
        DTypeError: `x` is no array of floats.

    >>> rotary = nn.RotaryEmbedding(8)
    >>> nn.apply_rotary(jnp.ones((5, 2, 8)), *rotary.angles(jnp.arange(5))).shape
    (5, 2, 8)
    """
    whole: Array = jnp.asarray(x)
    size = jnp.shape(cos)[-1]
    if not dtypes.is_float(whole.dtype):
        raise DTypeError(f"apply_rotary: x is {shown(whole)}, but has to be of floats")
    if whole.shape[-1] < size:
        raise ArgumentError(
            f"apply_rotary: a head of x {shown(whole)} has {whole.shape[-1]} elements, but cos and "
            f"sin rotate {size}"
        )
    turning = whole if whole.shape[-1] == size else whole[..., :size]
    if interleaved:
        pairs = jnp.reshape(turning, (*turning.shape[:-1], size // 2, 2))
        turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], -1)
        turned = jnp.reshape(turned, turning.shape)
    else:
        half = size // 2
        turned = jnp.concatenate([-turning[..., half:], turning[..., :half]], -1)
    # cos and sin are float32; their product with 16-bit values is rounded once, at the end.
    rotated = jnp.astype(turning * cos + turned * sin, whole.dtype)
    if size == whole.shape[-1]:
        return rotated
    return jnp.concatenate([rotated, whole[..., size:]], -1)


@dataclasses.dataclass(frozen=True)
class RotaryEmbedding(Module):
    """Positions as rotations of queries and keys, whose products then see distances alone.

        pair i of a head turns by position * base**(-2 i / rotated)

    Has no parameters. Input [..., T, heads, head_dim], output of its shape and dtype.

    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.

    Args:
        head_dim: number of elements of a head.
        base: of the frequencies.
        rotated: number of elements that are rotated, the first ones; None means all.
        interleaved: whether neighbours are pairs (GPT-J, the paper) instead of the two halves
            (Hugging Face's models).
        scaling: for longer contexts than the trained one: `LinearScaling`, `NTKScaling`,
            `DynamicScaling`, `YarnScaling` or `Llama3Scaling`.

    Raises:
        ArgumentError: the number of rotated elements is odd or above `head_dim`, `base` is not
            above 0, or `scaling` is none of these.

    >>> layer = nn.RotaryEmbedding(64, base=10000.0)
    >>> q = random.normal(random.key(0), (1, 5, 4, 64))
    >>> layer({}, q, positions=jnp.arange(5)).shape
    (1, 5, 4, 64)
    """

    head_dim: int
    base: float = 10000.0
    rotated: int | None = None
    interleaved: bool = False
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        size = self.head_dim if self.rotated is None else self.rotated
        fits = is_count(size) and is_count(self.head_dim) and 0 < size <= self.head_dim
        if not fits or size % 2:
            raise ArgumentError(
                f"RotaryEmbedding: {size!r} of the {self.head_dim!r} elements of a head are to be "
                "rotated, in pairs: give an even number, at most head_dim"
            )
        check_fields(self)
        if not self.base > 0:
            raise ArgumentError(f"RotaryEmbedding: base is {self.base!r:.60}, but is above 0")
        if self.scaling is not None and not hasattr(self.scaling, "frequencies"):
            raise ArgumentError(
                f"RotaryEmbedding: scaling is {self.scaling!r:.60}, which has no `frequencies`\n"
                "  give one: scaling=nn.LinearScaling(2.0)"
            )

    def angles(self, positions: ArrayLike) -> tuple[Array, Array]:
        """Cosines and sines of positions.

        Args:
            positions: integers [..., T].

        Returns:
            (cos, sin), float32 [..., T, 1, rotated], for `apply_rotary`.

        >>> cos, sin = nn.RotaryEmbedding(8).angles(jnp.arange(5))
        >>> cos.shape
        (5, 1, 8)
        """
        places: Array = jnp.asarray(positions)
        if not dtypes.is_integer(places.dtype):
            text = f"positions are {shown(places)}, but have to be integers [..., T]"
            raise layer_error(self, "", f"{text}\n  cast them: positions.astype('int32')")
        size = self.head_dim if self.rotated is None else self.rotated
        if self.scaling is None:
            frequencies, factor = _frequencies(self.base, size), 1.0
        else:
            length = jnp.max(places) + 1 if places.size else 1
            frequencies, factor = self.scaling.frequencies(self.base, size, length)
        each = jnp.asarray(frequencies, jnp.float32)
        angle = jnp.astype(places, jnp.float32)[..., None] * each
        if self.interleaved:
            angle = jnp.repeat(angle, 2, -1)
        else:
            angle = jnp.concatenate([angle, angle], -1)
        angle = angle[..., None, :]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        positions: ArrayLike | None = None,
    ) -> Array:
        """`x` rotated by `positions`, integers [..., T]; None means 0 ... T - 1."""
        shape = jnp.shape(x)
        if len(shape) < 3 or shape[-1] != self.head_dim:
            text = f"the input is {shown(x)}, but has to be [..., T, heads, {self.head_dim}]"
            raise layer_error(self, "", text)
        places = jnp.arange(shape[-3]) if positions is None else positions
        return apply_rotary(x, *self.angles(places), interleaved=self.interleaved)
