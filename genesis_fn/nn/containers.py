"""Layers made of others: functions as layers, sequences, residual connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.nn.module import Module, at_path, layer_error, require_state, shown

LayerLike = Module | Callable[[Array], Array]
"""A layer, or a function of an array that becomes one."""


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
    """Layers applied one after the other, by place or by name.

    Parameters are a list with one entry per layer, or a dict where layers have names; so is the
    state, if a layer has any. A call with `state=` returns (output, state).

    Args:
        *layers: layers, or functions of an array; or one list or tuple of them, or one dict of them
            by name.
        **named: layers by name, in order.

    Raises:
        ArgumentError: an entry is no layer; or layers are given by place and by name.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Linear(8, 2))
    >>> params = model.init(random.key(0))
    >>> model(params, jnp.ones((5, 4))).shape
    (5, 2)
    >>> model = nn.Sequential(up=nn.Linear(4, 8), activation=nn.relu, down=nn.Linear(8, 2))
    >>> model.init(random.key(0))["down"]["weight"].shape
    (2, 8)
    """

    def __init__(
        self, *layers: LayerLike | Sequence[LayerLike] | Mapping[str, LayerLike], **named: LayerLike
    ) -> None:
        # Other libraries take one list of layers, or one dict of them.
        one = layers[0] if len(layers) == 1 else None
        by_name: dict[Any, Any] = named
        if isinstance(one, dict) and not named:
            layers, by_name = (), one
        if layers and by_name:
            raise ArgumentError(
                f"Sequential: {len(layers)} layers are given by place and {list(by_name)} by name\n"
                "  give all of them a name, or none"
            )
        for name in by_name:
            if not isinstance(name, str):
                raise ArgumentError(f"Sequential: the name of a layer is text, got {name!r:.60}")
        given: tuple[Any, ...] = layers or tuple(by_name.values())
        if isinstance(one, (list, tuple)):
            given = tuple(one)
        self.layers = tuple([_as_layer(x) for x in given])
        self.names = tuple(by_name) if by_name else None

    def __hash__(self) -> int:
        return hash((self.layers, self.names))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequential)
            and other.layers == self.layers
            and other.names == self.names
        )

    def __repr__(self) -> str:
        names = [""] * len(self.layers) if self.names is None else [f"{n}=" for n in self.names]
        return f"Sequential({', '.join([n + repr(x) for n, x in zip(names, self.layers)])})"

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, at: int | str) -> Module: ...
    @overload
    def __getitem__(self, at: slice) -> Sequential: ...
    def __getitem__(self, at: int | str | slice) -> Module:
        """The layer at a place or of a name; of a slice, a Sequential of its layers."""
        if isinstance(at, slice):
            if self.names is None:
                return Sequential(*self.layers[at])
            return Sequential(dict(zip(self.names[at], self.layers[at])))
        if isinstance(at, str):
            if self.names is None or at not in self.names:
                raise KeyError(f"Sequential has no layer {at!r}; names: {list(self.names or ())}")
            return self.layers[self.names.index(at)]
        return self.layers[at]

    def _gathered(self, entries: list[PyTree]) -> PyTree:
        """One entry per layer as parameters and state have them: a list, or a dict by name."""
        return entries if self.names is None else dict(zip(self.names, entries))

    def init(self, key: Key) -> PyTree:
        keys = random.split(key, len(self.layers))
        return self._gathered([x.init(k) for x, k in zip(self.layers, keys)])

    def init_state(self, **sizes: Any) -> PyTree:
        states = [x.init_state(**sizes) for x in self.layers]
        return None if all(s is None for s in states) else self._gathered(states)

    def _entries(self, name: str, entries: PyTree) -> list[PyTree]:
        """The entries of `params` or `state`, one per layer; raises ArgumentError otherwise."""
        n = len(self.layers)
        if self.names is not None:
            if isinstance(entries, dict) and entries.keys() == set(self.names):
                return [entries[k] for k in self.names]
            wanted = f"a dict with the keys {list(self.names)}"
            found = f"has the keys {list(entries)}" if isinstance(entries, dict) else None
        else:
            if isinstance(entries, (list, tuple)) and len(entries) == n:
                return list(entries)
            wanted = f"a list with one entry for each of the {n} layers"
            found = f"is of {len(entries)}" if isinstance(entries, (list, tuple)) else None
        found = found or f"is of type {type(entries).__name__}"
        init = "init(key)" if name == "params" else "init_state()"
        text = f"{name} has to be {wanted}, but {found}\n  {name} = layer.{init} makes it"
        raise layer_error(self, "", text)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        n = len(self.layers)
        keys = [None] * n if key is None else random.split(key, n)
        own = self._entries("params", params)
        states = [None] * n if state is None else self._entries("state", state)
        y: Any = x
        new = list[PyTree]()
        for i, (layer, p, s) in enumerate(zip(self.layers, own, states)):
            try:
                result: Any = layer(p, y, state=s, key=keys[i], train=train)
                if s is None and isinstance(result, tuple) and layer.init_state() is not None:
                    require_state(layer, s)
            except ArgumentError as error:
                at = f"[{i}]" if self.names is None else f"[{self.names[i]!r}]"
                raise at_path(at, error) from error.__cause__
            y, s = (result, None) if s is None else result
            new.append(s)
        return y if state is None else (y, self._gathered(new))


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

    def init_state(self, **sizes: Any) -> PyTree:
        return self.layer.init_state(**sizes)

    def __call__(self, params: PyTree, x: ArrayLike, **options: Any) -> PyTree:
        stateful = options.get("state") is not None
        result: Any = self.layer(params, x, **options)
        if not stateful and isinstance(result, tuple) and self.layer.init_state() is not None:
            require_state(self.layer, None)
        pair: Any = result if stateful else (result, None)
        y, state = pair
        if jnp.shape(y) != jnp.shape(x):
            text = f"its output is {shown(y)}, but Residual adds it to the input, {shown(x)}"
            raise layer_error(self.layer, "", text)
        return (x + y, state) if stateful else x + y
