"""Convolutions and their transposes, channels last."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.lax import conv_general_dilated
from genesis_fn.nn.module import (
    Module,
    check_fields,
    checked_input,
    layer_error,
    lookup,
    shown,
    uniform_fan_in,
)
from genesis_fn.nn.windows import Pairs, padding_pairs, per_axis, window_lengths


@functools.cache
def _layout(n: int, kernel: str = "OI") -> tuple[str, str, str]:
    """The layouts of input, kernel and output of a convolution over `n` axes, channels last."""
    space = "DHW"[3 - n :]
    return f"N{space}C", f"{kernel}{space}", f"N{space}C"


def _check_groups(layer: Conv | ConvTranspose) -> None:
    if not layer.groups or layer.features_in % layer.groups or layer.features_out % layer.groups:
        raise ArgumentError(
            f"{type(layer).__name__}: groups={layer.groups} has to divide "
            f"features_in={layer.features_in} and features_out={layer.features_out}"
        )


def _fresh(
    layer: Conv | ConvTranspose, key: Key, shape: tuple[int, ...], fan_in: int
) -> dict[str, Array]:
    """A weight of `shape` and perhaps a bias, uniform in +-1 / sqrt(fan_in)."""
    first, second = random.split(key)
    params = {"weight": uniform_fan_in(first, shape, fan_in, layer.dtype)}
    if layer.bias:
        params["bias"] = uniform_fan_in(second, (layer.features_out,), fan_in, layer.dtype)
    return params


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
    kernel: int | Sequence[int] = (3, 3)
    strides: int | tuple[int, ...] | None = None
    padding: str | int | Sequence[tuple[int, int]] = "SAME"
    dilation: int | tuple[int, ...] | None = None
    groups: int = 1
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    _axes: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_fields(self)
        # Tuples, so that a layer can be a static argument of `jit`.
        kernel = window_lengths(self, "kernel", self.kernel, self._axes)
        object.__setattr__(self, "kernel", kernel)
        _check_groups(self)
        n = len(kernel)
        for name in ("strides", "dilation"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, per_axis(self, name, value, n, "kernel"))
        names = ("SAME", "SAME_LOWER", "VALID")
        object.__setattr__(self, "padding", padding_pairs(self, self.padding, n, "kernel", names))

    def _weight_shape(self) -> tuple[int, ...]:
        kernel: Any = self.kernel
        return self.features_out, self.features_in // self.groups, *kernel

    def init(self, key: Key) -> dict[str, Array]:
        shape = self._weight_shape()
        return _fresh(self, key, shape, math.prod(shape[1:]))

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        shape = self._weight_shape()
        n = len(shape) - 2
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
class Conv1d(Conv):
    """`Conv` over one axis: input [batch, length, features_in].

    Args:
        features_in, features_out, strides, padding, dilation, groups, bias, dtype: as of `Conv`.
        kernel: length of the kernel, an integer or a tuple of one.

    Raises:
        ArgumentError: `kernel` has another number of lengths, or as `Conv`.

    >>> layer = nn.Conv1d(3, 8, kernel=5)
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 16, 3))).shape
    (1, 16, 8)
    """

    kernel: int | Sequence[int] = (3,)

    _axes = 1


@dataclasses.dataclass(frozen=True)
class Conv2d(Conv):
    """`Conv` over two axes: input [batch, H, W, features_in].

    Args:
        features_in, features_out, strides, padding, dilation, groups, bias, dtype: as of `Conv`.
        kernel: length of the kernel along both axes, or one for each.

    Raises:
        ArgumentError: `kernel` has another number of lengths, or as `Conv`.

    >>> layer = nn.Conv2d(3, 8, kernel=3, strides=2)
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 16, 16, 3))).shape
    (1, 8, 8, 8)
    """

    kernel: int | Sequence[int] = (3, 3)

    _axes = 2


@dataclasses.dataclass(frozen=True)
class Conv3d(Conv):
    """`Conv` over three axes: input [batch, D, H, W, features_in].

    Args:
        features_in, features_out, strides, padding, dilation, groups, bias, dtype: as of `Conv`.
        kernel: length of the kernel along all axes, or one for each.

    Raises:
        ArgumentError: `kernel` has another number of lengths, or as `Conv`.

    >>> layer = nn.Conv3d(1, 2, kernel=(1, 3, 3))
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 4, 8, 8, 1))).shape
    (1, 4, 8, 8, 2)
    """

    kernel: int | Sequence[int] = (3, 3, 3)

    _axes = 3


def _pads_of_transpose(
    span: int, stride: int, padding: str | tuple[int, int], more: int
) -> tuple[int, int]:
    """What a convolution of length `span`, over input with stride - 1 zeros between neighbours, is
    padded by. Pairs crop the full result, of which "VALID" keeps all and "SAME" n * stride."""
    if isinstance(padding, tuple):
        low, high = padding
        return span - 1 - low, span - 1 - high + more
    total = span + stride - 2
    if padding == "VALID":
        return span - 1, max(span, stride) - 1
    low = span - 1 if stride >= span else -(-total // 2)
    return low, total - low


@dataclasses.dataclass(frozen=True)
class ConvTranspose(Module):
    """The transpose of a convolution over 1 to 3 axes, channels last: lengths grow by `strides`.

    It is the gradient of a convolution by its input, with the weight of that convolution: its
    kernel is flipped where `Conv` does not flip. Input [batch, *space, features_in], output
    [batch, *space, features_out], with a length along each axis of

        (n - 1) * stride - low - high + dilation * (kernel - 1) + output_padding + 1

    for padding in numbers, n * stride for "SAME", and n * stride + max(span - stride, 0) for
    "VALID", where span = dilation * (kernel - 1) + 1. Parameters: `weight`
    [features_in, features_out // groups, *kernel] and `bias` [features_out], both uniform in
    +-1 / sqrt(features_out // groups * prod(kernel)), as in PyTorch. Source: Zeiler et al.,
    "Deconvolutional Networks", 2010.

    Args:
        features_in, features_out: numbers of channels.
        kernel: length of the kernel along each spatial axis, 1 to 3 integers.
        strides: step between the kernel's places in the output along each spatial axis, or one for
            all; None means 1.
        padding: "SAME" or "VALID", as JAX and Flax mean them; or how much of the output is cut off
            as in PyTorch: a (low, high) pair for each spatial axis, or one number for all sides.
        output_padding: elements that the output has more at the high end of each spatial axis, or
            one number for all; less than stride or dilation; goes with padding in numbers.
        dilation: step between the kernel's elements along each spatial axis, or one for all; None
            means 1.
        groups: number of groups that channels are split into, each computed alone; divides both
            numbers of channels.
        bias: whether there is a bias.
        dtype: of the parameters.

    Raises:
        ArgumentError: `kernel` does not have 1 to 3 lengths, `strides`, `dilation`, `padding` or
            `output_padding` does not fit its axes, `groups` does not divide the channels, or a
            number of channels is no integer >= 0.

    >>> layer = nn.ConvTranspose(8, 3, kernel=(4, 4), strides=2, padding=1)
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 8, 8, 8))).shape
    (1, 16, 16, 3)
    """

    features_in: int
    features_out: int
    kernel: int | Sequence[int] = (3, 3)
    strides: int | tuple[int, ...] | None = None
    padding: str | int | Sequence[tuple[int, int]] = "SAME"
    output_padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] | None = None
    groups: int = 1
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    _axes: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_fields(self)
        # Tuples, so that a layer can be a static argument of `jit`.
        kernel = window_lengths(self, "kernel", self.kernel, self._axes, least=1)
        object.__setattr__(self, "kernel", kernel)
        _check_groups(self)
        n = len(kernel)
        steps = {
            name: per_axis(self, name, 1 if value is None else value, n, "kernel")
            for name, value in (("strides", self.strides), ("dilation", self.dilation))
        }
        more = per_axis(self, "output_padding", self.output_padding, n, "kernel", least=0)
        padding = padding_pairs(self, self.padding, n, "kernel", ("SAME", "VALID"))
        if any(more) and isinstance(padding, str):
            raise ArgumentError(
                f"{type(self).__name__}: output_padding is {self.output_padding!r:.60}, but "
                f"padding={padding!r} says how long the output is\n  give padding as numbers"
            )
        # Larger ones would add elements that no element of the input reaches.
        if any(k >= max(s, d) for k, s, d in zip(more, steps["strides"], steps["dilation"])):
            raise ArgumentError(
                f"{type(self).__name__}: output_padding is {self.output_padding!r:.60}, but has to "
                f"be less than strides={steps['strides']} or dilation={steps['dilation']}"
            )
        for name, value in (*steps.items(), ("output_padding", more), ("padding", padding)):
            object.__setattr__(self, name, value)

    def _weight_shape(self) -> tuple[int, ...]:
        kernel: Any = self.kernel
        return self.features_in, self.features_out // self.groups, *kernel

    def init(self, key: Key) -> dict[str, Array]:
        shape = self._weight_shape()
        return _fresh(self, key, shape, math.prod(shape[1:]))

    def _pads(self, x: Array) -> Pairs:
        """The padding of the convolution that computes it; raises ArgumentError if nothing is left
        of the output."""
        kernel: Any = self.kernel
        strides: Any = self.strides
        dilation: Any = self.dilation
        more: Any = self.output_padding
        n = len(kernel)
        padding: Any = (self.padding,) * n if isinstance(self.padding, str) else self.padding
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        pads = tuple(map(_pads_of_transpose, spans, strides, padding, more))
        lengths = [
            (m - 1) * s + low + high - span + 2
            for m, s, (low, high), span in zip(jnp.shape(x)[1:-1], strides, pads, spans)
        ]
        if min(lengths) < 1:
            text = f"the input is {shown(x)}, of which the output has lengths {lengths}"
            raise layer_error(self, "", f"{text}\n  give longer input, or less padding")
        return pads

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        shape = self._weight_shape()
        n, g = len(shape) - 2, self.groups
        weight = lookup(self, params, "weight", shape, "init(key)")
        bias = None
        if self.bias:
            bias = lookup(self, params, "bias", (self.features_out,), "init(key)")
        x = checked_input(self, x, self.features_in, "features_in", n + 2)
        pads, strides = self._pads(x), self.strides
        dilation: Any = self.dilation
        kernel, layout = jnp.flip(weight, tuple(range(2, n + 2))), _layout(n, "IO")
        if g > 1:  # [features_out, features_in // groups, *kernel]
            kernel = jnp.reshape(kernel, (g, shape[0] // g, *shape[1:]))
            kernel = jnp.swapaxes(kernel, 1, 2)
            kernel = jnp.reshape(kernel, (self.features_out, shape[0] // g, *shape[2:]))
            layout = _layout(n)
        steps: Any = strides
        y = conv_general_dilated(x, kernel, (1,) * n, pads, steps, dilation, layout, g)
        return y if bias is None else y + bias


@dataclasses.dataclass(frozen=True)
class ConvTranspose1d(ConvTranspose):
    """`ConvTranspose` over one axis: input [batch, length, features_in].

    Args:
        features_in, features_out, strides, padding, output_padding, dilation, groups, bias, dtype:
            as of `ConvTranspose`.
        kernel: length of the kernel, an integer or a tuple of one.

    Raises:
        ArgumentError: `kernel` has another number of lengths, or as `ConvTranspose`.

    >>> layer = nn.ConvTranspose1d(3, 8, kernel=4, strides=2)
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 16, 3))).shape
    (1, 32, 8)
    """

    kernel: int | Sequence[int] = (3,)

    _axes = 1


@dataclasses.dataclass(frozen=True)
class ConvTranspose2d(ConvTranspose):
    """`ConvTranspose` over two axes: input [batch, H, W, features_in].

    Args:
        features_in, features_out, strides, padding, output_padding, dilation, groups, bias, dtype:
            as of `ConvTranspose`.
        kernel: length of the kernel along both axes, or one for each.

    Raises:
        ArgumentError: `kernel` has another number of lengths, or as `ConvTranspose`.

    >>> layer = nn.ConvTranspose2d(8, 3, kernel=3, strides=2, padding=1, output_padding=1)
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 8, 8, 8))).shape
    (1, 16, 16, 3)
    """

    kernel: int | Sequence[int] = (3, 3)

    _axes = 2


@dataclasses.dataclass(frozen=True)
class ConvTranspose3d(ConvTranspose):
    """`ConvTranspose` over three axes: input [batch, D, H, W, features_in].

    Args:
        features_in, features_out, strides, padding, output_padding, dilation, groups, bias, dtype:
            as of `ConvTranspose`.
        kernel: length of the kernel along all axes, or one for each.

    Raises:
        ArgumentError: `kernel` has another number of lengths, or as `ConvTranspose`.

    >>> layer = nn.ConvTranspose3d(1, 2, kernel=2, strides=(1, 2, 2))
    >>> layer(layer.init(random.key(0)), jnp.ones((1, 4, 4, 4, 1))).shape
    (1, 4, 8, 8, 2)
    """

    kernel: int | Sequence[int] = (3, 3, 3)

    _axes = 3
