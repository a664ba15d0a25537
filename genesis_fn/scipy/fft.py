"""scipy.fft: discrete cosine transforms."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import numpy as onp

import genesis_fn.numpy as np
from genesis_fn import lax
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax.promotion import inexact_value
from genesis_fn.primitives.shape import canonical_axes, canonical_axis

# ---- the transforms of the last axis, without a norm ----


def _phases(angles: onp.ndarray, like: Array) -> Array:
    """exp(i angles), rounded once."""
    return from_numpy(onp.exp(1j * angles).astype(dtypes.complex_of(like.dtype)))


def _first(x: Array) -> Array:
    """cos(pi k n / (N - 1)): the spectrum of the even extension, of length 2 (N - 1)."""
    mirrored = np.concatenate([x, np.flip(x[..., 1:-1], -1)], -1)
    return np.real(np.fft.rfft(mirrored))


def _second(x: Array) -> Array:
    """2 cos(pi k (2n + 1) / (2N)), by one transform of the even entries and the odd ones reversed.

    Source: Makhoul (1980), "A fast cosine transform in one and two dimensions".
    """
    n = x.shape[-1]
    shuffled = np.concatenate([x[..., ::2], np.flip(x[..., 1::2], -1)], -1)
    turns = _phases(-math.pi / (2 * n) * onp.arange(n), x)
    return 2 * np.real(np.fft.fft(shuffled) * turns)


def _third(x: Array) -> Array:
    """x_0 + 2 sum_k x_k cos(pi (2n + 1) k / (2N)): the transpose of the second, step by step."""
    n = x.shape[-1]
    factors = onp.where(onp.arange(n) == 0, n, 2 * n)
    turns = _phases(math.pi / (2 * n) * onp.arange(n), x) * from_numpy(factors.astype(x.dtype))
    shuffled = np.real(np.fft.ifft(x * turns))
    order = onp.empty(n, onp.int32)
    order[::2], order[1::2] = onp.arange((n + 1) // 2), onp.arange(n - 1, (n + 1) // 2 - 1, -1)
    return np.take(shuffled, order, axis=-1)


def _fourth(x: Array) -> Array:
    """2 sum_n x_n cos(pi (2k + 1) (2n + 1) / (4N)), by one transform of length 2N."""
    n = x.shape[-1]
    before = _phases(-math.pi / (2 * n) * onp.arange(n), x)
    after = _phases(-math.pi / (4 * n) * (2 * onp.arange(n) + 1), x)
    return 2 * np.real(np.fft.fft(x * before, 2 * n)[..., :n] * after)


_TRANSFORMS: dict[int, Callable[[Array], Array]] = {1: _first, 2: _second, 3: _third, 4: _fourth}
_INVERSES = {1: 1, 2: 3, 3: 2, 4: 4}


def _scaled_ends(x: Array, first: float, last: float = 1.0) -> Array:
    factors = onp.ones(x.shape[-1], x.dtype)
    factors[0] *= first
    factors[-1] *= last
    return x * from_numpy(factors)


def _normalized(x: Array, kind: int, norm: str | None, inverse: bool) -> Array:
    """The transform of the last axis: `inverse` says which of the pair 1 / (2N) belongs to."""
    n = x.shape[-1]
    whole = 2 * (n - 1) if kind == 1 else 2 * n
    root = math.sqrt(2)
    if norm == "ortho":  # the matrix is orthogonal once the constant's row or column is scaled
        if kind == 1:
            x = _scaled_ends(x, root, root)
        if kind == 3:
            x = _scaled_ends(x, root)
        y = _TRANSFORMS[kind](x) * (1 / math.sqrt(whole))
        if kind == 1:
            return _scaled_ends(y, 1 / root, 1 / root)
        return _scaled_ends(y, 1 / root) if kind == 2 else y
    y = _TRANSFORMS[kind](x)
    return y * (1 / whole) if inverse == (norm != "forward") else y


# ---- arguments ----


def _transform(
    name: str, x: ArrayLike, kind: int, lengths: Sequence[int | None], axes: Sequence[int],
    norm: str | None, inverse: bool,
) -> Array:  # fmt: skip
    x = inexact_value(x, name)
    if kind not in _TRANSFORMS:
        raise errors.ArgumentError(
            f"{name}: type {kind!r} is none of 1, 2, 3, 4\n  at {where().describe()}"
        )
    if norm not in (None, "backward", "ortho", "forward"):
        raise errors.ArgumentError(
            f"{name}: norm {norm!r} is none of None, 'backward', 'ortho', 'forward'\n"
            f"  at {where().describe()}"
        )
    if dtypes.is_complex(x.dtype):
        parts = [
            _transform(name, part, kind, lengths, axes, norm, inverse)
            for part in (np.real(x), np.imag(x))
        ]
        return lax.complex(*parts)
    if x.dtype.itemsize < 4:
        x = x.astype("float32")
    for n, axis in zip(lengths, axes):
        x = _sized(name, np.moveaxis(x, axis, -1), n)
        if x.shape[-1] < (2 if kind == 1 else 1):
            raise errors.ShapeError(
                f"{name}: type {kind} along axis {axis} of length {x.shape[-1]}, which takes "
                f"{'two entries' if kind == 1 else 'an entry'} at least\n  at {where().describe()}"
            )
        x = np.moveaxis(
            _normalized(x, _INVERSES[kind] if inverse else kind, norm, inverse), -1, axis
        )
    return x


def _sized(name: str, x: Array, n: int | None) -> Array:
    """`x` cut or filled with zeros to length `n`."""
    if n is None or n == x.shape[-1]:
        return x
    if n < 1:
        raise errors.ShapeError(
            f"{name}: the length of a transform is positive, got {n}\n  at {where().describe()}"
        )
    return lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(0, n - x.shape[-1], 0)])


def _one_axis(
    name: str, x: ArrayLike, kind: int, n: int | None, axis: int, norm: str | None, inverse: bool
) -> Array:
    x = inexact_value(x, name)
    return _transform(name, x, kind, (n,), (canonical_axis(axis, x.ndim, name),), norm, inverse)


def _many_axes(
    name: str, x: ArrayLike, kind: int, s: int | Sequence[int] | None,
    axes: int | Sequence[int] | None, norm: str | None, inverse: bool,
) -> Array:  # fmt: skip
    x = inexact_value(x, name)
    lengths = None
    if s is not None:
        lengths = [operator.index(n) for n in (s if isinstance(s, Sequence) else (s,))]
        if len(lengths) > x.ndim:
            raise errors.ShapeError(
                f"{name}: {len(lengths)} lengths for {x.aval}\n  at {where().describe()}"
            )
    if axes is None:
        axes = range(x.ndim if lengths is None else len(lengths))
        axes = [x.ndim - len(axes) + a for a in axes]
    axes = canonical_axes(axes if isinstance(axes, Sequence) else (axes,), x.ndim, name)
    if lengths is not None and len(lengths) != len(axes):
        raise errors.ShapeError(
            f"{name}: {len(lengths)} lengths for {len(axes)} axes\n  at {where().describe()}"
        )
    return _transform(name, x, kind, lengths or [None] * len(axes), axes, norm, inverse)


# ---- public ----


def dct(
    x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """The discrete cosine transform along one axis.

        type 1: y_k = x_0 + (-1)^k x_{N-1} + 2 sum_{0<n<N-1} x_n cos(pi k n / (N - 1))
        type 2: y_k = 2 sum_n x_n cos(pi k (2n + 1) / (2N))
        type 3: y_k = x_0 + 2 sum_{n>0} x_n cos(pi (2k + 1) n / (2N))
        type 4: y_k = 2 sum_n x_n cos(pi (2k + 1) (2n + 1) / (4N))

    Source: Makhoul (1980), "A fast cosine transform in one and two dimensions".

    Args:
        x: real numbers, or complex ones, whose parts are transformed each by itself.
        type: 1, 2, 3 or 4; 1 takes two entries at least.
        n: length to which `x` is cut or filled with zeros; its own by default.
        axis: the axis to transform.
        norm: None or "backward": as above. "ortho": the matrix is orthogonal. "forward": divided
            by 2N, or 2 (N - 1) for type 1.

    Returns:
        The coefficients, [..., n, ...]; float32 of narrower floats and of integers.

    Raises:
        ArgumentError: a type or a norm that is none of these.
        ShapeError: the axis is too short, or `n` is not positive.

    >>> from genesis_fn.scipy.fft import dct
    >>> dct(jnp.array([1.0, 2.0, 3.0]))
    Array([12., -3.4641016, 0.], dtype=float32)
    """
    return _one_axis("dct", x, type, n, axis, norm, inverse=False)


def idct(
    x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """The inverse of `dct` of the same type and norm.

    Args:
        x: coefficients, real or complex.
        type: 1, 2, 3 or 4: that of the transform to undo.
        n: length to which `x` is cut or filled with zeros; its own by default.
        axis: the axis to transform.
        norm: that of the transform to undo.

    Returns:
        The values, [..., n, ...]; float32 of narrower floats and of integers.

    Raises:
        ArgumentError: a type or a norm that `dct` does not take.
        ShapeError: the axis is too short, or `n` is not positive.

    >>> from genesis_fn.scipy.fft import dct, idct
    >>> idct(dct(jnp.array([1.0, 2.0, 4.0])))
    Array([1., 2., 4.], dtype=float32)
    """
    return _one_axis("idct", x, type, n, axis, norm, inverse=True)


def dctn(
    x: ArrayLike,
    type: int = 2,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The discrete cosine transform along several axes, one after another.

    Args:
        x: real or complex numbers.
        type: 1, 2, 3 or 4, as of `dct`.
        s: lengths to which the axes are cut or filled with zeros.
        axes: the axes to transform; the last len(s) by default, all without `s`.
        norm: as of `dct`.

    Returns:
        The coefficients.

    Raises:
        ArgumentError: a type or a norm that `dct` does not take.
        ShapeError: lengths and axes do not fit, or an axis is too short.

    >>> from genesis_fn.scipy.fft import dctn
    >>> dctn(jnp.array([[1.0, 2.0], [3.0, 4.0]])).round(3)
    Array([[40., -5.657], [-11.314, 0.]], dtype=float32)
    """
    return _many_axes("dctn", x, type, s, axes, norm, inverse=False)


def idctn(
    x: ArrayLike,
    type: int = 2,
    s: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The inverse of `dctn` of the same type and norm.

    Args:
        x: coefficients, real or complex.
        type: 1, 2, 3 or 4: that of the transform to undo.
        s: lengths to which the axes are cut or filled with zeros.
        axes: the axes to transform; the last len(s) by default, all without `s`.
        norm: that of the transform to undo.

    Returns:
        The values.

    Raises:
        ArgumentError: a type or a norm that `dct` does not take.
        ShapeError: lengths and axes do not fit, or an axis is too short.

    >>> from genesis_fn.scipy.fft import dctn, idctn
    >>> idctn(dctn(jnp.array([[1.0, 2.0], [3.0, 4.0]]))).round(3)
    Array([[1., 2.], [3., 4.]], dtype=float32)
    """
    return _many_axes("idctn", x, type, s, axes, norm, inverse=True)
