"""Layers: frozen hyperparameters with `init(key) -> params` and `__call__(params, x, ...)`.

A layer holds no arrays. Parameters are dicts under Hugging Face's names; a Linear's `weight` is
[out, in]. Layers that use randomness take `key=` and `train=`; layers with running state take
`state=` and return (y, state).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn.core.errors import ArgumentError
from genesis_fn.lax.norms import layer_norm, rms_norm
from genesis_fn.primitives.conv import conv_general_dilated
from genesis_fn.primitives.gather import take_rows


class Module:
    """The protocol of layers and models; containers thread state, keys and `train` through it."""

    def init(self, key: Any) -> Any:
        """Fresh parameters."""
        return {}

    def init_state(self) -> Any:
        """Fresh running state; None for layers that have none."""
        return None

    def __call__(
        self, params: Any, x: Any, *, state: Any = None, key: Any = None, train: bool = False
    ) -> Any:
        """The layer's output; (output, state) for layers with state."""
        raise ArgumentError(f"{type(self).__name__} defines no __call__")


def _uniform(key: Any, shape: Sequence[int], fan_in: int, dtype: Any) -> Any:
    """PyTorch's default for linear and convolution layers: uniform within 1 / sqrt(fan_in)."""
    limit = 1 / math.sqrt(max(fan_in, 1))
    return random.uniform(key, tuple(shape), dtype, -limit, limit)


@dataclasses.dataclass(frozen=True)
class Linear(Module):
    """x @ weight.T + bias: [..., features_in] to [..., features_out]."""

    features_in: int
    features_out: int
    bias: bool = True
    dtype: Any = jnp.float32

    def init(self, key: Any) -> dict[str, Any]:
        first, second = random.split(key)
        shape = (self.features_out, self.features_in)
        params = {"weight": _uniform(first, shape, self.features_in, self.dtype)}
        if self.bias:
            params["bias"] = _uniform(second, shape[:1], self.features_in, self.dtype)
        return params

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        y = linear(x, params["weight"])
        return y + params["bias"] if self.bias else y


def linear(x: Any, weight: Any) -> Any:
    """x @ weight.T for a weight [out, in]."""
    return jnp.einsum("...i,oi->...o", x, weight)


@dataclasses.dataclass(frozen=True)
class Embedding(Module):
    """Rows of a [vocabulary, features] table; indices out of range raise."""

    vocabulary: int
    features: int
    dtype: Any = jnp.float32

    def init(self, key: Any) -> dict[str, Any]:
        return {"weight": random.normal(key, (self.vocabulary, self.features), self.dtype)}

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        return take_rows(params["weight"], jnp.asarray(x))


@dataclasses.dataclass(frozen=True)
class RMSNorm(Module):
    """x / sqrt(mean(x**2) + eps) * weight over the last axis."""

    features: int
    eps: float = 1e-6
    dtype: Any = jnp.float32

    def init(self, key: Any) -> dict[str, Any]:
        return {"weight": jnp.ones((self.features,), self.dtype)}

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        return rms_norm(x, params["weight"], eps=self.eps)


@dataclasses.dataclass(frozen=True)
class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    features: int
    eps: float = 1e-5
    dtype: Any = jnp.float32

    def init(self, key: Any) -> dict[str, Any]:
        shape = (self.features,)
        return {"weight": jnp.ones(shape, self.dtype), "bias": jnp.zeros(shape, self.dtype)}

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        return layer_norm(x, params["weight"], params["bias"], eps=self.eps)


@dataclasses.dataclass(frozen=True)
class BatchNorm(Module):
    """Normalisation by batch statistics in training and running ones otherwise, channels last.

    `momentum` weighs the new batch, as in PyTorch. Returns (y, state).
    """

    features: int
    eps: float = 1e-5
    momentum: float = 0.1
    dtype: Any = jnp.float32

    def init(self, key: Any) -> dict[str, Any]:
        shape = (self.features,)
        return {"weight": jnp.ones(shape, self.dtype), "bias": jnp.zeros(shape, self.dtype)}

    def init_state(self) -> dict[str, Any]:
        shape = (self.features,)
        return {"running_mean": jnp.zeros(shape), "running_var": jnp.ones(shape)}

    def __call__(
        self, params: Any, x: Any, *, state: Any = None, key: Any = None, train: bool = False
    ) -> Any:
        state = self.init_state() if state is None else state
        if train:
            axes = tuple(range(x.ndim - 1))
            n = x.size // self.features
            mean, var = jnp.mean(x, axes), jnp.var(x, axes)
            unbiased = var * (n / max(n - 1, 1))
            m = self.momentum
            state = {
                "running_mean": state["running_mean"] * (1 - m) + mean * m,
                "running_var": state["running_var"] * (1 - m) + unbiased * m,
            }
        else:
            mean, var = state["running_mean"], state["running_var"]
        y = (x - mean) / jnp.sqrt(var + self.eps) * params["weight"] + params["bias"]
        return y, state


@dataclasses.dataclass(frozen=True)
class Dropout(Module):
    """Zeroes elements with probability `rate` in training and scales the others up."""

    rate: float = 0.5

    def __call__(
        self, params: Any, x: Any, *, state: Any = None, key: Any = None, train: bool = False
    ) -> Any:
        if not train or self.rate == 0:
            return x
        if key is None:
            raise ArgumentError("Dropout in training needs key=")
        keep = random.bernoulli(key, 1 - self.rate, x.shape)
        return jnp.where(keep, x / (1 - self.rate), 0.0)


@dataclasses.dataclass(frozen=True)
class Conv(Module):
    """Convolution, channels last: [batch, *space, features_in] to [batch, *space, features_out].

    `kernel` gives one length per spatial dimension; `padding` is "SAME", "VALID" or pairs.
    """

    features_in: int
    features_out: int
    kernel: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] | None = None
    padding: Any = "SAME"
    dilation: tuple[int, ...] | None = None
    groups: int = 1
    bias: bool = True
    dtype: Any = jnp.float32

    def init(self, key: Any) -> dict[str, Any]:
        first, second = random.split(key)
        fan_in = self.features_in // self.groups * math.prod(self.kernel)
        shape = (self.features_out, self.features_in // self.groups, *self.kernel)
        params = {"weight": _uniform(first, shape, fan_in, self.dtype)}
        if self.bias:
            params["bias"] = _uniform(second, shape[:1], fan_in, self.dtype)
        return params

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        n = len(self.kernel)
        space = "DHW"[3 - n :]
        y = conv_general_dilated(
            jnp.asarray(x), params["weight"], self.strides or (1,) * n, self.padding,
            rhs_dilation=self.dilation, feature_group_count=self.groups,
            dimension_numbers=(f"N{space}C", f"OI{space}", f"N{space}C"),
        )  # fmt: skip
        return y + params["bias"] if self.bias else y


@dataclasses.dataclass(frozen=True)
class Flatten(Module):
    """[batch, ...] to [batch, features]."""

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        return jnp.reshape(x, (x.shape[0], -1))


@dataclasses.dataclass(frozen=True)
class Activation(Module):
    """A function as a layer."""

    function: Callable

    def __call__(self, params: Any, x: Any, **_: Any) -> Any:
        return self.function(x)


class Sequential(Module):
    """Layers one after the other; plain functions count as layers. Parameters are a list."""

    def __init__(self, *layers: Any) -> None:
        self.layers = tuple([x if isinstance(x, Module) else Activation(x) for x in layers])

    def __hash__(self) -> int:
        return hash(self.layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequential) and other.layers == self.layers

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"

    def init(self, key: Any) -> list[Any]:
        return [x.init(k) for x, k in zip(self.layers, random.split(key, len(self.layers)))]

    def init_state(self) -> Any:
        states = [x.init_state() for x in self.layers]
        return None if all(s is None for s in states) else states

    def __call__(
        self, params: Any, x: Any, *, state: Any = None, key: Any = None, train: bool = False
    ) -> Any:
        fresh = self.init_state()
        state = fresh if state is None else state
        keys = [None] * len(self.layers) if key is None else random.split(key, len(self.layers))
        new = []
        for i, (layer, p) in enumerate(zip(self.layers, params)):
            s = None if state is None else state[i]
            x = layer(p, x, state=s, key=keys[i], train=train)
            if s is not None:
                x, s = x
            new.append(s)
        return x if fresh is None else (x, new)


@dataclasses.dataclass(frozen=True)
class Residual(Module):
    """x + layer(x)."""

    layer: Module

    def init(self, key: Any) -> Any:
        return self.layer.init(key)

    def init_state(self) -> Any:
        return self.layer.init_state()

    def __call__(self, params: Any, x: Any, **options: Any) -> Any:
        y = self.layer(params, x, **options)
        return (x + y[0], y[1]) if self.layer.init_state() is not None else x + y
