"""Layers: hyperparameters in a frozen dataclass, `init(key) -> params`, `__call__(params, x, ...)`.

A layer holds no arrays. Parameters are dicts under Hugging Face's names; a Linear's `weight` is
[out, in]. Layers that use randomness take `key=` and `train=`; layers with running state take
`state=` and return (y, state).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import take_rows
from genesis_fn.lax import conv_general_dilated, layer_norm, rms_norm
from genesis_fn.nn.module import (
    Module,
    check_fields,
    checked_input,
    is_count,
    layer_error,
    lookup,
    require_state,
    shown,
)


def _uniform(key: Key, shape: Sequence[int], fan_in: int, dtype: DTypeLike) -> Array:
    """PyTorch's default for linear and convolution layers: uniform within 1 / sqrt(fan_in)."""
    limit = 1 / math.sqrt(max(fan_in, 1))
    return random.uniform(key, tuple(shape), dtype, -limit, limit)


@dataclasses.dataclass(frozen=True)
class Linear(Module):
    """x @ weight.T + bias.

    Parameters: `weight` [features_out, features_in] and `bias` [features_out], both uniform in
    +-1 / sqrt(features_in), as in PyTorch. Input [..., features_in], output [..., features_out].

    Args:
        features_in, features_out: length of the last axis of input and output.
        bias: whether there is a bias.
        dtype: of the parameters.

    >>> layer = nn.Linear(3, 2)
    >>> params = layer.init(random.key(0))
    >>> layer(params, jnp.ones((5, 3))).shape
    (5, 2)
    """

    features_in: int
    features_out: int
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        first, second = random.split(key)
        shape = (self.features_out, self.features_in)
        params = {"weight": _uniform(first, shape, self.features_in, self.dtype)}
        if self.bias:
            params["bias"] = _uniform(second, shape[:1], self.features_in, self.dtype)
        return params

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        shape = (self.features_out, self.features_in)
        weight = lookup(self, params, "weight", shape, "init(key)")
        bias = lookup(self, params, "bias", shape[:1], "init(key)") if self.bias else None
        y = linear(checked_input(self, x, self.features_in, "features_in"), weight)
        return y if bias is None else y + bias


def linear(x: ArrayLike, weight: ArrayLike) -> Array:
    """x @ weight.T.

    Args:
        x: array [..., in].
        weight: array [out, in].

    Returns:
        An array [..., out].

    >>> nn.linear(jnp.ones((4, 3)), jnp.ones((2, 3))).shape
    (4, 2)
    """
    return jnp.einsum("...i,oi->...o", x, weight)


@dataclasses.dataclass(frozen=True)
class Embedding(Module):
    """Rows of a table, by integer index.

    Parameter: `weight` [vocabulary, features], standard normal. Input integers [...], output
    [..., features]. An index outside the table raises IndexOutOfRange when the program runs.

    Args:
        vocabulary: number of rows.
        features: length of a row.
        dtype: of the table.

    >>> layer = nn.Embedding(10, 4)
    >>> params = layer.init(random.key(0))
    >>> layer(params, jnp.array([1, 7])).shape
    (2, 4)
    """

    vocabulary: int
    features: int
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        return {"weight": random.normal(key, (self.vocabulary, self.features), self.dtype)}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        weight = lookup(self, params, "weight", (self.vocabulary, self.features), "init(key)")
        rows: Array = jnp.asarray(x)
        if not dtypes.is_integer(rows.dtype):
            text = f"the input is {shown(x)}, but has to be integers: the numbers of rows"
            raise layer_error(self, "", f"{text}\n  cast them: x.astype('int32')")
        return take_rows(weight, rows)


@dataclasses.dataclass(frozen=True)
class RMSNorm(Module):
    """x / sqrt(mean(x**2) + eps) * weight over the last axis.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. Parameter: `weight`
    [features], ones.

    Args:
        features: length of the last axis.
        eps: added to the mean square.
        dtype: of the parameter.

    >>> layer = nn.RMSNorm(2)
    >>> layer(layer.init(random.key(0)), jnp.array([3.0, 4.0]))
    Array([0.8485281, 1.1313708], dtype=float32)
    """

    features: int
    eps: float = 1e-6
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        return {"weight": jnp.ones((self.features,), self.dtype)}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        weight = lookup(self, params, "weight", (self.features,), "init(key)")
        return rms_norm(checked_input(self, x, self.features, "features"), weight, eps=self.eps)


def _weight_and_bias(layer: LayerNorm | BatchNorm, params: PyTree) -> list[Array]:
    shape = (layer.features,)
    return [lookup(layer, params, name, shape, "init(key)") for name in ("weight", "bias")]


@dataclasses.dataclass(frozen=True)
class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016. Parameters: `weight` [features],
    ones, and `bias` [features], zeros.

    Args:
        features: length of the last axis.
        eps: added to the variance.
        dtype: of the parameters.

    >>> layer = nn.LayerNorm(3)
    >>> layer(layer.init(random.key(0)), jnp.array([1.0, 2.0, 3.0]))
    Array([-1.2247356,  0.       ,  1.2247356], dtype=float32)
    """

    features: int
    eps: float = 1e-5
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        shape = (self.features,)
        return {"weight": jnp.ones(shape, self.dtype), "bias": jnp.zeros(shape, self.dtype)}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        weight, bias = _weight_and_bias(self, params)
        x = checked_input(self, x, self.features, "features")
        return layer_norm(x, weight, bias, eps=self.eps)


@dataclasses.dataclass(frozen=True)
class BatchNorm(Module):
    """Normalises each feature by its mean and variance over the batch, channels last.

    With `train=True` the statistics are the batch's, over all axes but the last; otherwise they
    are the running ones. A call needs `state=` and returns (output, state).

    Source: Ioffe and Szegedy, "Batch Normalization", 2015. Parameters: `weight` [features], ones,
    and `bias` [features], zeros; state: `running_mean`, zeros, and `running_var`, ones, a mean of
    unbiased variances, as in PyTorch.

    Args:
        features: length of the last axis.
        eps: added to the variance.
        momentum: weight of the new batch in the running statistics, as in PyTorch.
        dtype: of the parameters.

    >>> layer = nn.BatchNorm(3)
    >>> params, state = layer.init(random.key(0)), layer.init_state()
    >>> y, state = layer(params, jnp.ones((8, 3)), state=state, train=True)
    >>> state["running_mean"]
    Array([0.1, 0.1, 0.1], dtype=float32)
    """

    features: int
    eps: float = 1e-5
    momentum: float = 0.1
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        shape = (self.features,)
        return {"weight": jnp.ones(shape, self.dtype), "bias": jnp.zeros(shape, self.dtype)}

    def init_state(self) -> dict[str, Array]:
        shape = (self.features,)
        return {"running_mean": jnp.zeros(shape), "running_var": jnp.ones(shape)}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> tuple[Array, PyTree]:
        weight, bias = _weight_and_bias(self, params)
        x = checked_input(self, x, self.features, "features")
        require_state(self, state)
        old_mean, old_var = [
            lookup(self, state, name, (self.features,), "init_state()")
            for name in ("running_mean", "running_var")
        ]
        if train:
            axes = tuple(range(x.ndim - 1))
            n = x.size // self.features
            mean, var = jnp.mean(x, axes), jnp.var(x, axes)
            unbiased = var * (n / max(n - 1, 1))
            m = self.momentum
            state = {
                "running_mean": old_mean * (1 - m) + mean * m,
                "running_var": old_var * (1 - m) + unbiased * m,
            }
        else:
            mean, var = old_mean, old_var
        y = (x - mean) / jnp.sqrt(var + self.eps) * weight + bias
        return y, state


@dataclasses.dataclass(frozen=True)
class Dropout(Module):
    """Zeroes elements with probability `rate` and divides the others by 1 - rate.

    Does so with `train=True` only, and then needs `key=`. Source: Srivastava et al., "Dropout",
    2014.

    Args:
        rate: probability of a zero, from 0 to 1; an array may be traced.

    Raises:
        ArgumentError: `rate` is not from 0 to 1; or the layer is called with `train=True` and
            without `key=`.

    >>> layer = nn.Dropout(0.5)
    >>> layer({}, jnp.ones(6), key=random.key(0), train=True)
    Array([2., 0., 0., 0., 0., 2.], dtype=float32)
    """

    rate: float | Array = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.rate, (int, float)) and not 0 <= self.rate <= 1:
            raise ArgumentError(
                f"Dropout: rate is {self.rate}, but it is a probability: the share of elements "
                "that become zero, between 0 and 1"
            )

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
        if not train or (known and self.rate == 0):
            return jnp.asarray(x)
        if key is None:
            raise layer_error(self, "", "in training it needs key=, from which it draws")
        if known and self.rate == 1:
            return jnp.zeros_like(x)
        kept = 1 - self.rate
        keep = random.bernoulli(key, kept, jnp.shape(x))
        # Where an array's rate is 1, a division by 0 would make derivatives NaN.
        share = kept if known else jnp.astype(jnp.where(kept > 0, kept, 1), jnp.result_type(x, 1.0))
        return jnp.where(keep, jnp.divide(x, share), 0.0)


def _per_axis(name: str, value: Any, n: int) -> tuple[int, ...] | None:
    """One number for each of `n` spatial axes, of a number or of as many."""
    if value is None:
        return None
    numbers = (value,) * n if isinstance(value, int) else tuple(value)
    if len(numbers) != n or not all(isinstance(k, int) and k > 0 for k in numbers):
        raise ArgumentError(
            f"Conv: {name} is {value!r:.60}, but is a positive number, or one for each of the {n} "
            "axes of kernel"
        )
    return numbers


def _padding(value: Any, n: int) -> str | tuple[tuple[int, int], ...]:
    """The padding of a convolution over `n` axes as a name or as pairs."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return ((value, value),) * n
    try:
        pairs = tuple([(operator.index(low), operator.index(high)) for low, high in value])
    except (TypeError, ValueError):
        pairs = ()
    if len(pairs) != n:
        raise ArgumentError(
            f"Conv: padding is {value!r:.60}, but is a name, a number, or a (low, high) pair for "
            f"each of the {n} axes of kernel"
        )
    return pairs


@functools.cache
def _layout(n: int) -> tuple[str, str, str]:
    """The layouts of input, kernel and output of a convolution over `n` axes, channels last."""
    space = "DHW"[3 - n :]
    return f"N{space}C", f"OI{space}", f"N{space}C"


@dataclasses.dataclass(frozen=True)
class Conv(Module):
    """Convolution (correlation: the kernel is not flipped) over 1 to 3 axes, channels last.

    Input [batch, *space, features_in], output [batch, *space, features_out]. Parameters: `weight`
    [features_out, features_in // groups, *kernel] and `bias` [features_out], both uniform in
    +-1 / sqrt(fan_in), as in PyTorch.

    Args:
        features_in, features_out: numbers of channels.
        kernel: length of the kernel along each spatial axis, 1 to 3 integers.
        strides: step along each spatial axis, or one for all; None means 1.
        padding: "SAME", "SAME_LOWER", "VALID", a (low, high) pair for each spatial axis, or one
            number for all sides.
        dilation: step between the kernel's elements along each spatial axis, or one for all; None
            means 1.
        groups: number of groups that channels are split into, each convolved alone; divides both
            numbers of channels.
        bias: whether there is a bias.
        dtype: of the parameters.

    Raises:
        ArgumentError: `kernel` does not have 1 to 3 lengths, `strides`, `dilation` or `padding`
            does not fit its axes, `groups` does not divide the channels, or a number of channels
            is no integer >= 0.

    >>> layer = nn.Conv(3, 8, kernel=(3, 3), strides=(2, 2))
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 16, 16, 3))).shape
    (1, 8, 8, 8)
    """

    features_in: int
    features_out: int
    kernel: tuple[int, ...] = (3, 3)
    strides: int | tuple[int, ...] | None = None
    padding: str | int | Sequence[tuple[int, int]] = "SAME"
    dilation: int | tuple[int, ...] | None = None
    groups: int = 1
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        kernel: Any = self.kernel
        lengths = kernel if isinstance(kernel, (tuple, list)) else ()
        if not 1 <= len(lengths) <= 3 or not all(map(is_count, lengths)):
            raise ArgumentError(
                f"Conv: kernel is {kernel!r:.60}, but is a length for each of 1 to 3 spatial axes\n"
                "  give a tuple: kernel=(3, 3) for images"
            )
        if not self.groups or self.features_in % self.groups or self.features_out % self.groups:
            raise ArgumentError(
                f"Conv: groups={self.groups} has to divide features_in={self.features_in} and "
                f"features_out={self.features_out}"
            )
        # Tuples, so that a layer can be a static argument of `jit`.
        n = len(kernel)
        object.__setattr__(self, "kernel", tuple(kernel))
        for name in ("strides", "dilation"):
            object.__setattr__(self, name, _per_axis(name, getattr(self, name), n))
        object.__setattr__(self, "padding", _padding(self.padding, n))

    def init(self, key: Key) -> dict[str, Array]:
        first, second = random.split(key)
        fan_in = self.features_in // self.groups * math.prod(self.kernel)
        shape = (self.features_out, self.features_in // self.groups, *self.kernel)
        params = {"weight": _uniform(first, shape, fan_in, self.dtype)}
        if self.bias:
            params["bias"] = _uniform(second, shape[:1], fan_in, self.dtype)
        return params

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        n = len(self.kernel)
        shape = (self.features_out, self.features_in // self.groups, *self.kernel)
        weight = lookup(self, params, "weight", shape, "init(key)")
        bias = lookup(self, params, "bias", shape[:1], "init(key)") if self.bias else None
        x = checked_input(self, x, self.features_in, "features_in", n + 2)
        strides: Any = self.strides or (1,) * n
        dilation: Any = self.dilation
        padding: Any = self.padding
        # By position, which is the cheaper call: lax converts arguments by name one by one.
        y = conv_general_dilated(
            x, weight, strides, padding, None, dilation, _layout(n), self.groups
        )
        return y if bias is None else y + bias


@dataclasses.dataclass(frozen=True)
class Flatten(Module):
    """[batch, ...] to [batch, features].

    >>> nn.Flatten()({}, jnp.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        shape = jnp.shape(x)
        if not shape:
            raise layer_error(self, "", f"the input is {shown(x)}, but has to be [batch, ...]")
        return jnp.reshape(x, (shape[0], math.prod(shape[1:])))
