"""Images as sequences of patches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree
from genesis_fn.nn.module import (
    Module,
    check_fields,
    checked_input,
    is_count,
    layer_error,
    lookup,
    shown,
    uniform_fan_in,
)
from genesis_fn.nn.windows import window_lengths


@dataclasses.dataclass(frozen=True)
class PatchEmbedding(Module):
    """Patches of an image, each multiplied by one matrix, as a sequence.

    Equal to a convolution whose strides are the lengths of its kernel, as one product. Input
    [batch, *space, features_in], [batch, H, W, features_in] for images; output
    [batch, patches, features], patches in row-major order. Source: Dosovitskiy et al., "An Image is
    Worth 16x16 Words", 2020. Parameters: `weight` [features, features_in, *patch], as that
    convolution has it, and `bias` [features], both uniform in +-1 / sqrt(fan_in).

    Args:
        patch: length of a patch along each of 1 to 3 spatial axes, which it divides; one integer
            is that of both axes of images.
        features_in: number of channels.
        features: length of a patch's vector.
        bias: whether there is a bias.
        dtype: of the parameters.

    Raises:
        ArgumentError: `patch` does not have 1 to 3 lengths, all positive; a number of features is
            no integer >= 0; or, in a call, `patch` does not divide an axis of the input.

    >>> layer = nn.PatchEmbedding(4, 3, 8)
    >>> layer(layer.init(random.key(0)), jnp.ones((2, 8, 12, 3))).shape
    (2, 6, 8)
    """

    patch: int | Sequence[int]
    features_in: int
    features: int
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        axes = 2 if is_count(self.patch) else None
        patch = window_lengths(self, "patch", self.patch, axes, least=1)
        object.__setattr__(self, "patch", patch)

    def _weight_shape(self) -> tuple[int, ...]:
        patch: Any = self.patch
        return self.features, self.features_in, *patch

    def init(self, key: Key) -> dict[str, Array]:
        first, second = random.split(key)
        shape = self._weight_shape()
        fan_in = math.prod(shape[1:])
        params = {"weight": uniform_fan_in(first, shape, fan_in, self.dtype)}
        if self.bias:
            params["bias"] = uniform_fan_in(second, shape[:1], fan_in, self.dtype)
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
        shape = self._weight_shape()
        weight = lookup(self, params, "weight", shape, "init(key)")
        bias = lookup(self, params, "bias", shape[:1], "init(key)") if self.bias else None
        patch = shape[2:]
        n = len(patch)
        x = checked_input(self, x, self.features_in, "features_in", n + 2)
        batch, *space, channels = jnp.shape(x)
        if any([m % p for m, p in zip(space, patch)]):
            text = f"the input is {shown(x)}, whose axes {space} are no multiples of {[*patch]}"
            raise layer_error(self, "", f"{text}\n  cut, pad or resize it: gf.image.resize")
        # Axes: y, x, z number patches, h, w, d the elements of one.
        counts = [m // p for m, p in zip(space, patch)]
        split = [k for pair in zip(counts, patch) for k in pair]
        x = jnp.reshape(x, (batch, *split, channels))
        grid, inside = "yxz"[:n], "hwd"[:n]
        pairs = "".join([a + b for a, b in zip(grid, inside)])
        y = jnp.einsum(f"b{pairs}c,fc{inside}->b{grid}f", x, weight)
        y = jnp.reshape(y, (batch, math.prod(counts), self.features))
        return y if bias is None else y + bias
