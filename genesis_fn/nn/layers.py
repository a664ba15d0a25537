"""Layers: hyperparameters in a frozen dataclass, `init(key) -> params`, `__call__(params, x, ...)`.

A layer holds no arrays. Parameters are dicts under Hugging Face's names; a Linear's `weight` is
[out, in]. Layers that use randomness take `key=` and `train=`; layers with running state take
`state=` and return (y, state).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import take_rows, typeof
from genesis_fn.lax import conv_general_dilated, layer_norm, rms_norm


class Module:
    """The base class of layers and models.

    A subclass is a frozen dataclass of hyperparameters that overrides `__call__`, `init` if it has
    parameters and `init_state` if it has running state. Containers hand `state`, `key` and `train`
    on to their layers; a layer without state returns its output alone.

    >>> class Scale(nn.Module):
    ...     def init(self, key):
    ...         return {"scale": jnp.ones(())}
    ...
    ...     def __call__(self, params, x, **_):
    ...         return params["scale"] * x
    >>> Scale()(Scale().init(random.key(0)), 3.0)
    Array(3., dtype=float32)
    """

    def init(self, key: Key) -> PyTree:
        """Fresh parameters."""
        return {}

    def init_state(self) -> PyTree:
        """Fresh running state; None for layers that have none."""
        return None

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        """The layer's output; (output, state) for layers with state."""
        raise ArgumentError(f"{type(self).__name__} defines no __call__")


def _layer_error(layer: Module, path: str, text: str) -> ArgumentError:
    """The error of a layer that cannot use its arguments, with `params[` in `text` at `path`.

    Containers catch it and put their part of the path in front (`_at_path`), for which it carries
    its layer, path and text.
    """
    at_path = text.replace("params[", f"params{path}[", 1)
    error = ArgumentError(f"{_described(layer)}: {at_path}")
    error.layer, error.path, error.text = layer, path, text  # type: ignore[attr-defined]
    return error


def _at_path(path: str, error: ArgumentError) -> ArgumentError:
    """`error` with the path of its layer in a container's parameters, `[2]`."""
    if not hasattr(error, "layer"):
        return error
    return _layer_error(error.layer, path + error.path, error.text)  # type: ignore[attr-defined]


def _described(layer: object) -> str:
    """The layer as a user writes it: required fields, and others that differ from the default."""
    if not dataclasses.is_dataclass(layer):
        return type(layer).__name__
    parts = []
    for f in dataclasses.fields(layer):
        value = getattr(layer, f.name)
        if f.default is dataclasses.MISSING:
            parts.append(f"{value!r:.40}")
        elif value != f.default:
            parts.append(f"{f.name}={value!r:.40}")
    return f"{type(layer).__name__}({', '.join(parts)})"


def _lookup(layer: Module, tree: PyTree, name: str, shape: tuple[int, ...], init: str) -> Array:
    """Return the array `name` of a layer's parameters or state; raise ArgumentError if it is
    missing or of another shape."""
    what = "params" if init == "init(key)" else "state"
    made = f"{what} = layer.{init} makes {'them' if what == 'params' else 'it'}"
    try:
        x = tree[name]
    except (KeyError, TypeError, IndexError):
        try:
            found = f"has the keys {list(tree.keys())}"
        except (AttributeError, TypeError):
            found = f"is {tree!r:.60}" if tree is None else f"is of type {type(tree).__name__}"
        text = f"{what}[{name!r}] of shape {list(shape)} is wanted, but {what} {found}"
        raise _layer_error(layer, "", f"{text}\n  {made}") from None
    if jnp.shape(x) != shape:
        text = f"{what}[{name!r}] is {_shown(x)}, but has to be {list(shape)}"
        raise _layer_error(layer, "", f"{text}\n  {made}")
    return x


def _shown(x: ArrayLike) -> str:
    return str(typeof(jnp.asarray(x)))


def _checked_input(
    layer: Module, x: Any, features: int, field: str, ndim: int | None = None
) -> Array:
    """Return `x` if its last axis has `features` elements; raise ArgumentError otherwise."""
    if x is None or isinstance(x, (str, dict)):
        raise _layer_error(layer, "", f"the input is {x!r:.60}, no array: call layer(params, x)")
    shape = jnp.shape(x)
    if not shape or shape[-1] != features or ndim not in (None, len(shape)):
        wanted = ["...", features] if ndim is None else ["batch", *"DHW"[5 - ndim :], features]
        text = f"the input is {_shown(x)}, but has to be [{', '.join(map(str, wanted))}]"
        remedy = f"features are the last axis, {field}={features}"
        if len(shape) > 1 and shape[1] == features and shape[-1] != features:
            remedy += ": move them there with jnp.moveaxis(x, 1, -1)"
        raise _layer_error(layer, "", f"{text}\n  {remedy}")
    return x


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

    def init(self, key: Key) -> dict[str, Array]:
        first, second = random.split(key)
        shape = (self.features_out, self.features_in)
        params = {"weight": _uniform(first, shape, self.features_in, self.dtype)}
        if self.bias:
            params["bias"] = _uniform(second, shape[:1], self.features_in, self.dtype)
        return params

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        shape = (self.features_out, self.features_in)
        weight = _lookup(self, params, "weight", shape, "init(key)")
        bias = _lookup(self, params, "bias", shape[:1], "init(key)") if self.bias else None
        y = linear(_checked_input(self, x, self.features_in, "features_in"), weight)
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

    def init(self, key: Key) -> dict[str, Array]:
        return {"weight": random.normal(key, (self.vocabulary, self.features), self.dtype)}

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        weight = _lookup(self, params, "weight", (self.vocabulary, self.features), "init(key)")
        rows: Array = jnp.asarray(x)
        if not dtypes.is_integer(rows.dtype):
            text = f"the input is {_shown(x)}, but has to be integers: the numbers of rows"
            raise _layer_error(self, "", f"{text}\n  cast them: x.astype('int32')")
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

    def init(self, key: Key) -> dict[str, Array]:
        return {"weight": jnp.ones((self.features,), self.dtype)}

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        weight = _lookup(self, params, "weight", (self.features,), "init(key)")
        return rms_norm(_checked_input(self, x, self.features, "features"), weight, eps=self.eps)


def _weight_and_bias(layer: LayerNorm | BatchNorm, params: PyTree) -> list[Array]:
    shape = (layer.features,)
    return [_lookup(layer, params, name, shape, "init(key)") for name in ("weight", "bias")]


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

    def init(self, key: Key) -> dict[str, Array]:
        shape = (self.features,)
        return {"weight": jnp.ones(shape, self.dtype), "bias": jnp.zeros(shape, self.dtype)}

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        weight, bias = _weight_and_bias(self, params)
        x = _checked_input(self, x, self.features, "features")
        return layer_norm(x, weight, bias, eps=self.eps)


@dataclasses.dataclass(frozen=True)
class BatchNorm(Module):
    """Normalises each feature by its mean and variance over the batch, channels last.

    With `train=True` the statistics are the batch's, over all axes but the last; otherwise they
    are the running ones. Returns (output, state). Source: Ioffe and Szegedy, "Batch
    Normalization", 2015. Parameters: `weight` [features], ones, and `bias` [features], zeros;
    state: `running_mean`, zeros, and `running_var`, ones.

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
        x = _checked_input(self, x, self.features, "features")
        state = self.init_state() if state is None else state
        old_mean, old_var = [
            _lookup(self, state, name, (self.features,), "init_state()")
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
        rate: probability of a zero, from 0 to 1.

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
    ) -> ArrayLike:
        if not train or self.rate == 0:
            return x
        if key is None:
            raise _layer_error(self, "", "in training it needs key=, from which it draws")
        if self.rate == 1:
            return jnp.zeros_like(x)
        keep = random.bernoulli(key, 1 - self.rate, jnp.shape(x))
        return jnp.where(keep, jnp.divide(x, 1 - self.rate), 0.0)


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
        kernel: length of the kernel along each spatial axis.
        strides: step along each spatial axis; None means 1.
        padding: "SAME", "VALID", or a (low, high) pair for each spatial axis.
        dilation: step between the kernel's elements along each spatial axis; None means 1.
        groups: number of groups that channels are split into, each convolved alone.
        bias: whether there is a bias.
        dtype: of the parameters.

    >>> layer = nn.Conv(3, 8, kernel=(3, 3), strides=(2, 2))
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 16, 16, 3))).shape
    (1, 8, 8, 8)
    """

    features_in: int
    features_out: int
    kernel: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] | None = None
    padding: str | Sequence[tuple[int, int]] = "SAME"
    dilation: tuple[int, ...] | None = None
    groups: int = 1
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    def init(self, key: Key) -> dict[str, Array]:
        first, second = random.split(key)
        fan_in = self.features_in // self.groups * math.prod(self.kernel)
        shape = (self.features_out, self.features_in // self.groups, *self.kernel)
        params = {"weight": _uniform(first, shape, fan_in, self.dtype)}
        if self.bias:
            params["bias"] = _uniform(second, shape[:1], fan_in, self.dtype)
        return params

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        n = len(self.kernel)
        shape = (self.features_out, self.features_in // self.groups, *self.kernel)
        weight = _lookup(self, params, "weight", shape, "init(key)")
        bias = _lookup(self, params, "bias", shape[:1], "init(key)") if self.bias else None
        x = _checked_input(self, x, self.features_in, "features_in", n + 2)
        strides, layout = self.strides or (1,) * n, _layout(n)
        # By position, which is the cheaper call: lax converts arguments by name one by one.
        y = conv_general_dilated(
            x, weight, strides, self.padding, None, self.dilation, layout, self.groups
        )
        return y if bias is None else y + bias


@dataclasses.dataclass(frozen=True)
class Flatten(Module):
    """[batch, ...] to [batch, features].

    >>> nn.Flatten()({}, jnp.ones((2, 3, 4))).shape
    (2, 12)
    """

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        shape = jnp.shape(x)
        if not shape:
            raise _layer_error(self, "", f"the input is {_shown(x)}, but has to be [batch, ...]")
        return jnp.reshape(x, (shape[0], math.prod(shape[1:])))


@dataclasses.dataclass(frozen=True)
class Activation(Module):
    """A function of an array as a layer without parameters.

    Args:
        function: called with the input alone.

    >>> nn.Activation(jnp.sin)({}, 0.0)
    Array(0., dtype=float32)
    """

    function: Callable[[ArrayLike], Array]

    def __call__(self, params: PyTree, x: ArrayLike, **_: object) -> Array:
        return self.function(x)


class Sequential(Module):
    """Layers applied one after the other.

    Parameters, and state if a layer has any, are lists with one entry per layer. With state it
    returns (output, state).

    Args:
        *layers: layers, or functions of an array.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))
    >>> params = model.init(random.key(0))
    >>> model(params, jnp.ones((5, 4))).shape
    (5, 2)
    """

    def __init__(self, *layers: Any) -> None:
        self.layers = tuple([x if isinstance(x, Module) else Activation(x) for x in layers])

    def __hash__(self) -> int:
        return hash(self.layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequential) and other.layers == self.layers

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"

    def init(self, key: Key) -> list[PyTree]:
        return [x.init(k) for x, k in zip(self.layers, random.split(key, len(self.layers)))]

    def init_state(self) -> PyTree:
        states = [x.init_state() for x in self.layers]
        return None if all(s is None for s in states) else states

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        fresh = self.init_state()
        state = fresh if state is None else state
        keys = [None] * len(self.layers) if key is None else random.split(key, len(self.layers))
        for name, entries in (("params", params), ("state", state)):
            if entries is None and name == "state":
                continue
            count = len(entries) if isinstance(entries, (list, tuple)) else None
            if count != len(self.layers):
                found = f"of type {type(entries).__name__}" if count is None else f"of {count}"
                init = "init(key)" if name == "params" else "init_state()"
                raise _layer_error(
                    self,
                    "",
                    f"{name} has to be a list with one entry for each of the "
                    f"{len(self.layers)} layers, but is {found}\n"
                    f"  {name} = layer.{init} makes it",
                )
        y, new = x, list[PyTree]()
        for i, (layer, p) in enumerate(zip(self.layers, params)):
            s = None if state is None else state[i]
            try:
                y = layer(p, y, state=s, key=keys[i], train=train)
            except ArgumentError as error:
                raise _at_path(f"[{i}]", error) from error.__cause__
            if s is not None:
                y, s = y
            new.append(s)
        return y if fresh is None else (y, new)


@dataclasses.dataclass(frozen=True)
class Residual(Module):
    """x + layer(x).

    Args:
        layer: whose output has the shape of its input; its parameters and state are used as they
            are.

    >>> block = nn.Residual(nn.Linear(4, 4))
    >>> block(block.init(random.key(0)), jnp.ones((2, 4))).shape
    (2, 4)
    """

    layer: Module

    def init(self, key: Key) -> PyTree:
        return self.layer.init(key)

    def init_state(self) -> PyTree:
        return self.layer.init_state()

    def __call__(self, params: PyTree, x: ArrayLike, **options: Any) -> PyTree:
        y = self.layer(params, x, **options)
        return (x + y[0], y[1]) if self.layer.init_state() is not None else x + y
