"""Layers made of others: functions as layers, sequences, residual connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.nn.module import Module, at_path, layer_error, require_state, shown


def _check_function(container: str, f: Any) -> None:
    """Raise ArgumentError for what is no function of an array, such as a class of layers."""
    wanted = "layers and functions of an array" if container == "Sequential" else "a function"
    if isinstance(f, type) and issubclass(f, Module):
        raise ArgumentError(
            f"{container}: {f.__name__} is a class of layers\n"
            f"  make a layer of it: {f.__name__}(...)"
        )
    if isinstance(f, Module):
        raise ArgumentError(f"{container}: {f!r:.60} is a layer already: use it as it is")
    if not callable(f):
        raise ArgumentError(f"{container} takes {wanted}, got {f!r:.60} of type {type(f).__name__}")


@dataclasses.dataclass(frozen=True)
class Activation(Module):
    """A function of an array as a layer without parameters.

    Args:
        function: called with the input alone.

    >>> nn.Activation(jnp.sin)({}, 0.0)
    Array(0., dtype=float32)
    """

    function: Callable[[ArrayLike], Array]

    def __post_init__(self) -> None:
        _check_function("Activation", self.function)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> Array:
        return self.function(x)


def _as_layer(x: Any) -> Module:
    if isinstance(x, Module):
        return x
    _check_function("Sequential", x)
    return Activation(x)


class Sequential(Module):
    """Layers applied one after the other.

    Parameters, and state if a layer has any, are lists with one entry per layer. With state a call
    needs `state=` and returns (output, state).

    Args:
        *layers: layers, or functions of an array; or one list or tuple of them.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))
    >>> params = model.init(random.key(0))
    >>> model(params, jnp.ones((5, 4))).shape
    (5, 2)
    """

    def __init__(self, *layers: Any) -> None:
        # Other libraries take one list of layers.
        one = layers[0] if len(layers) == 1 else None
        given = tuple(one) if isinstance(one, (list, tuple)) else layers
        self.layers = tuple([_as_layer(x) for x in given])

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
        if fresh is not None:
            require_state(self, state)
        keys = [None] * len(self.layers) if key is None else random.split(key, len(self.layers))
        for name, entries in (("params", params), ("state", state)):
            if entries is None and name == "state":
                continue
            count = len(entries) if isinstance(entries, (list, tuple)) else None
            if count != len(self.layers):
                found = f"of type {type(entries).__name__}" if count is None else f"of {count}"
                init = "init(key)" if name == "params" else "init_state()"
                raise layer_error(
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
                raise at_path(f"[{i}]", error) from error.__cause__
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

    Raises:
        ArgumentError: `layer` is no layer; or, in a call, its output has another shape.

    >>> block = nn.Residual(nn.Linear(4, 4))
    >>> block(block.init(random.key(0)), jnp.ones((2, 4))).shape
    (2, 4)
    """

    layer: Module

    def __post_init__(self) -> None:
        if not isinstance(self.layer, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"Residual takes a layer, got {self.layer!r:.60} of type "
                f"{type(self.layer).__name__}\n  make a layer of a function: nn.Activation(f)"
            )

    def init(self, key: Key) -> PyTree:
        return self.layer.init(key)

    def init_state(self) -> PyTree:
        return self.layer.init_state()

    def __call__(self, params: PyTree, x: ArrayLike, **options: Any) -> PyTree:
        stateful = self.layer.init_state() is not None
        result = self.layer(params, x, **options)
        y, state = result if stateful else (result, None)
        if jnp.shape(y) != jnp.shape(x):
            text = f"its output is {shown(y)}, but Residual adds it to the input, {shown(x)}"
            raise layer_error(self.layer, "", text)
        return (x + y, state) if stateful else x + y
