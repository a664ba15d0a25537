"""Feed-forward blocks: MLP, and GatedMLP and SwiGLU, whose hidden features are gated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.nn.functions import gelu, silu
from genesis_fn.nn.layers.dense import Linear
from genesis_fn.nn.layers.dropout import Dropout
from genesis_fn.nn.module import Module, call_part, check_fields, checked_input, init_parts


def check_activation(layer: Module, activation: Callable[..., Array]) -> None:
    """Raise ArgumentError for an activation that is no function, such as its name."""
    if not callable(activation):
        raise ArgumentError(
            f"{type(layer).__name__}: activation is {activation!r:.60}, but is a function of an "
            "array\n  give the function itself: activation=nn.silu"
        )


@dataclasses.dataclass(frozen=True)
class MLP(Module):
    """fc2(dropout(activation(fc1(x)))).

    Parameters: `fc1` and `fc2`, those of `Linear`. Input and output [..., features].

    Args:
        features: length of the last axis of input and output.
        hidden: number of hidden features.
        activation: function of the hidden features; `gelu` is its tanh form.
        bias: whether both products have a bias.
        dropout: probability with which a hidden feature is zero in training; a call with
            `train=True` then needs `key=`.
        dtype: of the parameters.

    Raises:
        ArgumentError: a size is no count, `activation` no function or `dropout` no probability.

    >>> layer = nn.MLP(4, 16)
    >>> layer(layer.init(random.key(0)), jnp.ones((2, 4))).shape
    (2, 4)
    """

    features: int
    hidden: int
    activation: Callable[[Array], Array] = gelu
    bias: bool = True
    dropout: float = 0.0
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        check_activation(self, self.activation)
        Dropout(self.dropout)

    def _parts(self) -> dict[str, Linear]:
        return {
            "fc1": Linear(self.features, self.hidden, self.bias, self.dtype),
            "fc2": Linear(self.hidden, self.features, self.bias, self.dtype),
        }

    def init(self, key: Key) -> dict[str, dict[str, Array]]:
        return init_parts(self._parts(), key)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        parts = self._parts()
        x = checked_input(self, x, self.features, "features")
        h = self.activation(call_part(self, parts["fc1"], params, "fc1", x))
        if train and self.dropout:
            h = Dropout(self.dropout)({}, h, key=key, train=True)
        return call_part(self, parts["fc2"], params, "fc2", h)


@dataclasses.dataclass(frozen=True)
class GatedMLP(Module):
    """down_proj(activation(gate_proj(x)) * up_proj(x)).

    Source: Shazeer, "GLU Variants Improve Transformer", 2020. Parameters: `gate_proj`, `up_proj`
    and `down_proj`, those of `Linear`. Input and output [..., features].

    Args:
        features: length of the last axis of input and output.
        hidden: number of hidden features.
        activation: function of the gate.
        bias: whether the three products have a bias.
        dtype: of the parameters.

    Raises:
        ArgumentError: a size is no count, or `activation` no function.

    >>> layer = nn.GatedMLP(4, 16, nn.gelu)
    >>> layer(layer.init(random.key(0)), jnp.ones((2, 4))).shape
    (2, 4)
    """

    features: int
    hidden: int
    activation: Callable[[Array], Array] = silu
    bias: bool = False
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        check_activation(self, self.activation)

    def _parts(self) -> dict[str, Linear]:
        return {
            "gate_proj": Linear(self.features, self.hidden, self.bias, self.dtype),
            "up_proj": Linear(self.features, self.hidden, self.bias, self.dtype),
            "down_proj": Linear(self.hidden, self.features, self.bias, self.dtype),
        }

    def init(self, key: Key) -> dict[str, dict[str, Array]]:
        return init_parts(self._parts(), key)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        parts = self._parts()
        x = checked_input(self, x, self.features, "features")
        gate = call_part(self, parts["gate_proj"], params, "gate_proj", x)
        up = call_part(self, parts["up_proj"], params, "up_proj", x)
        return call_part(self, parts["down_proj"], params, "down_proj", self.activation(gate) * up)


@dataclasses.dataclass(frozen=True)
class SwiGLU(GatedMLP):
    """down_proj(silu(gate_proj(x)) * up_proj(x)): `GatedMLP` with `silu`.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020. Parameters: `gate_proj`, `up_proj`
    and `down_proj`, those of `Linear`. Input and output [..., features].

    Args:
        features: length of the last axis of input and output.
        hidden: number of hidden features.
        bias: whether the three products have a bias.
        dtype: of the parameters.

    >>> layer = nn.SwiGLU(4, 16)
    >>> sorted(layer.init(random.key(0)))
    ['down_proj', 'gate_proj', 'up_proj']
    """

    activation: Callable[[Array], Array] = dataclasses.field(default=silu, init=False)

    def __post_init__(self) -> None:
        # A field that `__init__` does not set is the class's function, which would be a method.
        object.__setattr__(self, "activation", silu)
        super().__post_init__()
