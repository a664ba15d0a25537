"""Normalisation by means and variances: of features, groups of them, instances, batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes
from genesis_fn.errors import ArgumentError
from genesis_fn.lax import layer_norm, rms_norm, rsqrt
from genesis_fn.nn.module import (
    Module,
    check_fields,
    checked_input,
    layer_error,
    lookup,
    require_state,
    shown,
    wide_dtype,
)


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


# ---- what layers with a mean and a variance share ----


def _fresh(layer: LayerNorm | GroupNorm | InstanceNorm | BatchNorm, bias: bool) -> dict[str, Array]:
    params = {"weight": jnp.ones((layer.features,), layer.dtype)}
    return {**params, "bias": jnp.zeros((layer.features,), layer.dtype)} if bias else params


def _weight_and_bias(
    layer: GroupNorm | InstanceNorm | BatchNorm, params: PyTree
) -> tuple[Array, Array]:
    shape = (layer.features,)
    weight, bias = [lookup(layer, params, name, shape, "init(key)") for name in ("weight", "bias")]
    return weight, bias


def _wide(layer: Module, x: ArrayLike) -> tuple[Array, DTypeLike]:
    """The input as statistics are computed, in float32 at least, and the dtype of the output."""
    array = jnp.asarray(x)
    if dtypes.is_complex(array.dtype):
        raise layer_error(layer, "", f"the input is {shown(x)}, but has to be real")
    wide = wide_dtype(array.dtype)
    return jnp.astype(array, wide), array.dtype if dtypes.is_float(array.dtype) else wide


def _moments(x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """The mean and the variance over `axes`, which are kept with length 1."""
    mean = jnp.mean(x, tuple(axes), keepdims=True)
    return mean, jnp.var(x, tuple(axes), keepdims=True)


def _standardized(x: Array, mean: Array, var: Array, eps: float) -> Array:
    return (x - mean) * rsqrt(var + eps)


def _fresh_statistics(layer: BatchNorm | InstanceNorm) -> dict[str, Array]:
    shape = (layer.features,)
    return {"running_mean": jnp.zeros(shape), "running_var": jnp.ones(shape)}


def _statistics(layer: BatchNorm | InstanceNorm, state: PyTree) -> tuple[Array, Array]:
    """The running mean and variance of a state."""
    require_state(layer, state)
    shape = (layer.features,)
    names = ("running_mean", "running_var")
    mean, var = [lookup(layer, state, name, shape, "init_state()") for name in names]
    return mean, var


def _moved(
    layer: BatchNorm | InstanceNorm, state: PyTree, mean: Array, var: Array, n: int
) -> dict[str, Array]:
    """The next state, after a mean and a variance of `n` elements; its dtypes stay."""
    old_mean, old_var = _statistics(layer, state)
    m = layer.momentum
    unbiased = var * (n / max(n - 1, 1))
    return {
        "running_mean": jnp.astype(old_mean * (1 - m) + mean * m, old_mean.dtype),
        "running_var": jnp.astype(old_var * (1 - m) + unbiased * m, old_var.dtype),
    }


@dataclasses.dataclass(frozen=True)
class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016. Parameters: `weight` [features],
    ones, and `bias` [features], zeros.

    Args:
        features: length of the last axis.
        eps: added to the variance.
        affine: whether there are a weight and a bias.
        bias: whether there is a bias where there is a weight.
        dtype: of the parameters.

    >>> layer = nn.LayerNorm(3)
    >>> layer(layer.init(random.key(0)), jnp.array([1.0, 2.0, 3.0]))
    Array([-1.2247356,  0.       ,  1.2247356], dtype=float32)
    """

    features: int
    eps: float = 1e-5
    affine: bool = True
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        return _fresh(self, self.bias) if self.affine else {}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        shape = (self.features,)
        weight: Any = np.ones(shape, np.float32)
        bias: Any = np.zeros(shape, np.float32)
        if self.affine:
            weight = lookup(self, params, "weight", shape, "init(key)")
        if self.affine and self.bias:
            bias = lookup(self, params, "bias", shape, "init(key)")
        x = checked_input(self, x, self.features, "features")
        return layer_norm(x, weight, bias, eps=self.eps)


@dataclasses.dataclass(frozen=True)
class GroupNorm(Module):
    """Normalises each group of features of each example, channels last.

        (x - mean) / sqrt(variance + eps) * weight + bias

    The mean and the variance are those of an example's group, over all of its positions. Rows of
    16-bit floats are computed in float32. Input [batch, *space, features] with any number of
    spatial axes. Source: Wu and He, "Group Normalization", 2018. Parameters: `weight` [features],
    ones, and `bias` [features], zeros.

    Args:
        groups: number of groups of neighbouring features; divides `features`. With 1 group all
            features are one.
        features: length of the last axis.
        eps: added to the variance.
        affine: whether there are a weight and a bias.
        dtype: of the parameters.

    Raises:
        ArgumentError: `groups` does not divide `features`, or one of them is no count.

    >>> layer = nn.GroupNorm(2, 4)
    >>> layer(layer.init(random.key(0)), jnp.array([[1.0, 2.0, 3.0, 5.0]]))
    Array([[-0.99998  ,  0.99998  , -0.9999949,  0.9999949]], dtype=float32)
    """

    groups: int
    features: int
    eps: float = 1e-5
    affine: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.groups or self.features % self.groups:
            raise ArgumentError(
                f"GroupNorm: groups={self.groups} has to divide features={self.features}"
            )

    def init(self, key: Key) -> dict[str, Array]:
        return _fresh(self, True) if self.affine else {}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        shape = jnp.shape(checked_input(self, x, self.features, "features"))
        if len(shape) < 2:
            wanted = f"[batch, ..., {self.features}]"
            raise layer_error(self, "", f"the input is {shown(x)}, but has to be {wanted}")
        array, dtype = _wide(self, x)
        n = self.groups
        grouped = jnp.reshape(array, (*shape[:-1], n, self.features // n))
        mean, var = _moments(grouped, (*range(1, len(shape) - 1), len(shape)))
        y = jnp.reshape(_standardized(grouped, mean, var, self.eps), shape)
        if self.affine:
            weight, bias = _weight_and_bias(self, params)
            y = y * weight + bias
        return jnp.astype(y, dtype)


@dataclasses.dataclass(frozen=True)
class InstanceNorm(Module):
    """Normalises each feature of each example, channels last.

        (x - mean) / sqrt(variance + eps) * weight + bias

    The mean and the variance are those of one feature of one example, over its positions; with
    `track_running_stats` and without `train=True` they are the running ones, as in PyTorch. 16-bit
    floats are computed in float32. Input [batch, *space, features]. With `track_running_stats` a
    call needs `state=` and returns (output, state).

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016. Parameters, if `affine`:
    `weight` [features], ones, and `bias` [features], zeros; state, with `track_running_stats`:
    `running_mean`, zeros, and `running_var`, ones, means over the batch, unbiased.

    Args:
        features: length of the last axis.
        eps: added to the variance.
        momentum: weight of the new batch in the running statistics, as in PyTorch.
        affine: whether there are a weight and a bias.
        track_running_stats: whether running statistics are kept, and used outside of training.
        dtype: of the parameters.

    >>> layer = nn.InstanceNorm(1)
    >>> layer({}, jnp.array([[[1.0], [2.0], [3.0]]]))[0, :, 0]
    Array([-1.2247356,  0.       ,  1.2247356], dtype=float32)
    """

    features: int
    eps: float = 1e-5
    momentum: float = 0.1
    affine: bool = False
    track_running_stats: bool = False
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        return _fresh(self, True) if self.affine else {}

    def init_state(self, **sizes: Any) -> dict[str, Array] | None:
        return _fresh_statistics(self) if self.track_running_stats else None

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        shape = jnp.shape(checked_input(self, x, self.features, "features"))
        if len(shape) < 3:
            wanted = f"[batch, *space, {self.features}]"
            raise layer_error(self, "", f"the input is {shown(x)}, but has to be {wanted}")
        array, dtype = _wide(self, x)
        running = _statistics(self, state) if self.track_running_stats else None
        if running is not None and not train:
            mean, var = running
        else:
            n = math.prod(shape[1:-1])
            if n < 2:
                text = f"the input is {shown(x)}: {n} element for each mean gives zeros"
                raise layer_error(self, "", f"{text}\n  it has to have positions to normalise over")
            mean, var = _moments(array, range(1, len(shape) - 1))
            if running is not None:
                axes = tuple(range(len(shape) - 1))
                state = _moved(self, state, jnp.mean(mean, axes), jnp.mean(var, axes), n)
        y = _standardized(array, mean, var, self.eps)
        if self.affine:
            weight, bias = _weight_and_bias(self, params)
            y = y * weight + bias
        y = jnp.astype(y, dtype)
        return (y, state) if self.track_running_stats else y


@dataclasses.dataclass(frozen=True)
class BatchNorm(Module):
    """Normalises each feature by its mean and variance over the batch, channels last.

    With `train=True` the statistics are the batch's, over all axes but the last; otherwise they
    are the running ones. 16-bit floats are computed in float32; the output has the dtype of the
    input. A call needs `state=` and returns (output, state).

    Source: Ioffe and Szegedy, "Batch Normalization", 2015. Parameters, if `affine`: `weight`
    [features], ones, and `bias` [features], zeros; state: `running_mean`, zeros, and `running_var`,
    ones, a mean of unbiased variances, as in PyTorch.

    Args:
        features: length of the last axis.
        eps: added to the variance.
        momentum: weight of the new batch in the running statistics, as in PyTorch.
        affine: whether there are a weight and a bias.
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
    affine: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: Key) -> dict[str, Array]:
        return _fresh(self, True) if self.affine else {}

    def init_state(self, **sizes: Any) -> dict[str, Array]:
        return _fresh_statistics(self)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> tuple[Array, PyTree]:
        scale = _weight_and_bias(self, params) if self.affine else None
        array, dtype = _wide(self, checked_input(self, x, self.features, "features"))
        mean, var = _statistics(self, state)
        if train:
            axes = tuple(range(array.ndim - 1))
            mean, var = jnp.mean(array, axes), jnp.var(array, axes)
            state = _moved(self, state, mean, var, math.prod(array.shape[:-1]))
        y = _standardized(array, mean, var, self.eps)
        if scale is not None:
            weight, bias = scale
            y = y * weight + bias
        return jnp.astype(y, dtype), state
