"""Dropout: of elements, channels and whole examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.nn.module import Module, is_amount, layer_error


def _number_like(x: Array, number: Array | float) -> Array | float:
    """An array in the dtype of an operation of `x` with a number; a number as it is."""
    if isinstance(number, (int, float)):
        return number
    return jnp.astype(number, jnp.result_type(x, 1.0))


class _Dropping(Module):
    """What layers with a `rate` share: in training a drawn mask says what is kept."""

    rate: float | Array

    def __post_init__(self) -> None:
        if not is_amount(self.rate) or (not isinstance(self.rate, Array) and self.rate > 1):
            raise ArgumentError(
                f"{type(self).__name__}: rate is {self.rate!r:.60}, but it is a probability: the "
                "share of elements that become zero, between 0 and 1"
            )

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the mask of an input; it broadcasts to that of the input."""
        return shape

    def _applied(self, x: Array, keep: Array, kept: Array | float) -> Array:
        """The output where `kept` is the probability of `keep`, above 0."""
        return jnp.where(keep, jnp.divide(x, _number_like(x, kept)), 0.0)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        known = isinstance(self.rate, (int, float))
        shape = self._mask_shape(jnp.shape(x))
        if not train or (known and self.rate == 0):
            return jnp.asarray(x)
        if key is None:
            raise layer_error(self, "", "in training it needs key=, from which it draws")
        if known and self.rate == 1:
            return jnp.zeros_like(x)
        kept = 1 - self.rate
        keep = random.bernoulli(key, kept, shape)
        x = jnp.asarray(x)
        if known:
            return self._applied(x, keep, kept)
        # Where an array's rate is 1, a division by 0 would make derivatives NaN.
        y = self._applied(x, keep, jnp.where(kept > 0, kept, 1))
        return jnp.where(kept > 0, y, 0.0)

    def _channels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One element for each channel of each example of [batch, *space, features]."""
        if len(shape) < 2:
            text = f"the input has the shape {[*shape]}, but has to be [batch, *space, features]"
            raise layer_error(self, "", text)
        return (shape[0], *[1] * (len(shape) - 2), shape[-1])


@dataclasses.dataclass(frozen=True)
class Dropout(_Dropping):
    """Zeroes elements with probability `rate` and divides the others by 1 - rate.

    Does so with `train=True` only, and then needs `key=`. Source: Srivastava et al., "Dropout",
    2014.

    Args:
        rate: probability of a zero, from 0 to 1; an array may be traced.
        broadcast_dims: axes along which elements are zeroed together, as in Flax: (1,) drops the
            same features at all positions of [batch, positions, features].

    Raises:
        ArgumentError: `rate` is not from 0 to 1; or the layer is called with `train=True` and
            without `key=`, or its input lacks an axis of `broadcast_dims`.

    >>> layer = nn.Dropout(0.5)
    >>> layer({}, jnp.ones(6), key=random.key(0), train=True)
    Array([2., 0., 0., 0., 0., 2.], dtype=float32)
    """

    rate: float | Array = 0.5
    broadcast_dims: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        dims = self.broadcast_dims
        if not isinstance(dims, (tuple, list)) or not all([type(d) is int for d in dims]):
            raise ArgumentError(
                f"Dropout: broadcast_dims is {dims!r:.60}, but is a tuple of axes\n"
                "  give a tuple: broadcast_dims=(1,)"
            )
        object.__setattr__(self, "broadcast_dims", tuple(dims))

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        n = len(shape)
        if not all([-n <= d < n for d in self.broadcast_dims]):
            text = f"broadcast_dims={self.broadcast_dims} has an axis that the input of shape"
            raise layer_error(self, "", f"{text} {[*shape]} lacks")
        dims = {d % n for d in self.broadcast_dims}
        return tuple([1 if i in dims else k for i, k in enumerate(shape)])


@dataclasses.dataclass(frozen=True)
class ChannelDropout(_Dropping):
    """Zeroes whole channels of an example with probability `rate` and divides the others by
    1 - rate.

    PyTorch's Dropout1d, 2d and 3d, channels last: input [batch, *space, features] with any number
    of spatial axes. Does so with `train=True` only, and then needs `key=`. Source: Tompson et al.,
    "Efficient Object Localization Using Convolutional Networks", 2015.

    Args:
        rate: probability of a channel of zeros, from 0 to 1; an array may be traced.

    Raises:
        ArgumentError: `rate` is not from 0 to 1; or the layer is called with `train=True` and
            without `key=`.

    >>> layer = nn.ChannelDropout(0.5)
    >>> layer({}, jnp.ones((1, 2, 4)), key=random.key(3), train=True).shape
    (1, 2, 4)
    """

    rate: float | Array = 0.5

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._channels(shape)


# What selu tends to for x to -infinity: -scale * alpha.
_NEGATIVE_SATURATION = -1.7580993408473766


@dataclasses.dataclass(frozen=True)
class AlphaDropout(_Dropping):
    """Sets elements to what `selu` saturates at with probability `rate`, and keeps the mean 0 and
    the variance 1 of its input.

        y = a * (x if kept else s) + b,  s = -1.7581,  q = 1 - rate
        a = (q + s**2 * q * rate)**-0.5,  b = -a * rate * s

    Does so with `train=True` only, and then needs `key=`; a rate of 1 gives zeros, as in PyTorch.
    Source: Klambauer et al., "Self-Normalizing Neural Networks", 2017.

    Args:
        rate: probability of an element to be set, from 0 to 1; an array may be traced.

    Raises:
        ArgumentError: `rate` is not from 0 to 1; or the layer is called with `train=True` and
            without `key=`.

    >>> layer = nn.AlphaDropout(0.5)
    >>> layer({}, jnp.zeros(4), key=random.key(0), train=True)
    Array([ 0.77919734, -0.77919734, -0.77919734, -0.77919734], dtype=float32)
    """

    rate: float | Array = 0.5

    def _applied(self, x: Array, keep: Array, kept: Array | float) -> Array:
        s, q = _NEGATIVE_SATURATION, kept
        a = (q * (1 + s * s * (1 - q))) ** -0.5
        b = -a * (1 - q) * s
        return jnp.where(keep, x, s) * _number_like(x, a) + _number_like(x, b)


@dataclasses.dataclass(frozen=True)
class FeatureAlphaDropout(AlphaDropout):
    """`AlphaDropout` of whole channels of an example.

    Input [batch, *space, features] with any number of spatial axes. Does so with `train=True` only,
    and then needs `key=`. Source: Klambauer et al., "Self-Normalizing Neural Networks", 2017.

    Args:
        rate: probability of a channel to be set, from 0 to 1; an array may be traced.

    Raises:
        ArgumentError: `rate` is not from 0 to 1; or the layer is called with `train=True` and
            without `key=`.

    >>> layer = nn.FeatureAlphaDropout(0.5)
    >>> layer({}, jnp.zeros((2, 8, 8, 3)), key=random.key(0), train=True).shape
    (2, 8, 8, 3)
    """

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._channels(shape)


@dataclasses.dataclass(frozen=True)
class DropPath(_Dropping):
    """Zeroes whole examples with probability `rate` and divides the others by 1 - rate: stochastic
    depth, at the end of a residual branch.

    Input [batch, ...]. Does so with `train=True` only, and then needs `key=`. The paper multiplies
    by 1 - rate outside of training instead, which is the same on average. Source: Huang et al.,
    "Deep Networks with Stochastic Depth", 2016.

    Args:
        rate: probability of an example of zeros, from 0 to 1; an array may be traced.

    Raises:
        ArgumentError: `rate` is not from 0 to 1; or the layer is called with `train=True` and
            without `key=`.

    >>> block = nn.Residual(nn.Sequential(nn.Linear(4, 4), nn.DropPath(0.1)))
    >>> block(block.init(random.key(0)), jnp.ones((2, 4)), key=random.key(1), train=True).shape
    (2, 4)
    """

    rate: float | Array = 0.1

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape:
            raise layer_error(self, "", "the input has no axis, but has to be [batch, ...]")
        return (shape[0], *[1] * (len(shape) - 1))
