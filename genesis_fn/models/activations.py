"""The activations that a config.json can name, as functions of an array."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import genesis_fn.numpy as jnp
from genesis_fn import Array
from genesis_fn.lax import erf
from genesis_fn.nn import (
    gelu,
    hard_swish,
    identity,
    leaky_relu,
    mish,
    relu,
    relu6,
    sigmoid,
    silu,
    softplus,
    tanh,
)

_exact_gelu = functools.partial(gelu, approximate=False)


def _clipped_gelu(x: Array) -> Array:
    return jnp.clip(_exact_gelu(x), -10, 10)


def _quick_gelu(x: Array) -> Array:
    return x * sigmoid(1.702 * x)


def _squared_relu(x: Array) -> Array:
    return relu(x) ** 2


def _laplace(x: Array) -> Array:
    """Source: Ma et al., "Mega: moving average equipped gated attention", 2022."""
    return 0.5 * (1 + erf((x - 0.707107) / (0.282095 * math.sqrt(2))))


def _root_of_softplus(x: Array) -> Array:
    return jnp.sqrt(softplus(x))


# transformers' names but "prelu" and "xielu", which have parameters.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _exact_gelu, "gelu_10": _clipped_gelu, "gelu_accurate": gelu, "gelu_fast": gelu,
    "gelu_new": gelu, "gelu_python": _exact_gelu, "gelu_python_tanh": gelu,
    "gelu_pytorch_tanh": gelu, "hardswish": hard_swish, "laplace": _laplace,
    "leaky_relu": leaky_relu, "linear": identity, "mish": mish, "quick_gelu": _quick_gelu,
    "relu": relu, "relu2": _squared_relu, "relu6": relu6, "sigmoid": sigmoid, "silu": silu,
    "sqrtsoftplus": _root_of_softplus, "swish": silu, "tanh": tanh,
}  # fmt: skip
