"""Layers that are a product with one matrix: Linear, Embedding; and Flatten before them."""

from __future__ import annotations

import dataclasses
import math

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes
from genesis_fn.extend import take_rows
from genesis_fn.nn.low_rank import LoraWeight
from genesis_fn.nn.module import (
    Module,
    check_fields,
    checked_input,
    layer_error,
    lookup,
    shown,
    uniform_fan_in,
)


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
        params = {"weight": uniform_fan_in(first, shape, self.features_in, self.dtype)}
        if self.bias:
            params["bias"] = uniform_fan_in(second, shape[:1], self.features_in, self.dtype)
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


def linear(x: ArrayLike, weight: ArrayLike | LoraWeight) -> Array:
    """x @ weight.T.

    Args:
        x: array [..., in].
        weight: array [out, in], or one with an adapter.

    Returns:
        An array [..., out].

    >>> nn.linear(jnp.ones((4, 3)), jnp.ones((2, 3))).shape
    (4, 2)
    """
    if isinstance(weight, LoraWeight):
        return weight.multiply(jnp.asarray(x))
    return jnp.einsum("...i,oi->...o", x, weight)


@dataclasses.dataclass(frozen=True)
class Embedding(Module):
    """Rows of a table, by integer index.

    Parameter: `weight` [vocabulary, features], standard normal. Input integers [...], output
    [..., features]. An index outside the table raises IndexOutOfRange when the program runs.
    `attend` is the product with all rows, for logits by the same table.

    Args:
        vocabulary: number of rows.
        features: length of a row.
        dtype: of the table.

    >>> layer = nn.Embedding(10, 4)
    >>> params = layer.init(random.key(0))
    >>> layer(params, jnp.array([1, 7])).shape
    (2, 4)
    >>> layer.attend(params, jnp.ones((2, 4))).shape
    (2, 10)
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

    def attend(self, params: PyTree, x: ArrayLike) -> Array:
        """x @ weight.T: products with all rows, as logits of a vocabulary that shares the table.

        Args:
            params: the layer's parameters.
            x: array [..., features].

        Returns:
            An array [..., vocabulary].

        >>> layer = nn.Embedding(10, 4)
        >>> layer.attend(layer.init(random.key(0)), jnp.ones((2, 4))).shape
        (2, 10)
        """
        weight = lookup(self, params, "weight", (self.vocabulary, self.features), "init(key)")
        return linear(checked_input(self, x, self.features, "features"), weight)


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
