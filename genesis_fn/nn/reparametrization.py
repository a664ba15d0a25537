"""Wrappers that change what a layer's parameter is: WeightNorm, SpectralNorm, and Tied weights.

A parameter is named by its path in the layer's parameters, names and numbers with dots between:
"weight", "0.weight" of a Sequential, "block.down.weight".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, Key, PyTree, eval_shape, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import typeof
from genesis_fn.lax import cond, fori_loop, stop_gradient
from genesis_fn.nn.module import Module, is_count, layer_error, lookup, require_state, shown

# ---- paths in parameters ----


def _entry(layer: Module, params: PyTree, path: str) -> PyTree:
    """What stands at `path`; raises ArgumentError where nothing does."""
    found = params
    steps = path.split(".")
    for i, step in enumerate(steps):
        try:
            found = found[_place(found, step)]
        except (KeyError, IndexError, TypeError, ValueError):
            if isinstance(found, dict):
                has = f"has the keys {list(found)}"
            elif isinstance(found, (list, tuple)):
                has = f"is a list of {len(found)}"
            else:
                has = f"is {found!r:.60}" if found is None else f"is of type {type(found).__name__}"
            at = ".".join(steps[:i])
            where = f"params at {at!r}" if at else "params"
            raise layer_error(layer, "", f"no parameter is at {path!r}: {where} {has}") from None
    return found


def _place(entries: PyTree, step: str) -> str | int:
    """A step of a path as the key of a dict or the index of a list."""
    if not isinstance(entries, (list, tuple)):
        return step
    if step != str(int(step)) or step[0] == "-":
        raise IndexError(step)
    return int(step)


def _changed(params: PyTree, path: str, value: PyTree, absent: bool = False) -> PyTree:
    """`params` with `value` at `path`; with `absent`, nothing there: no key of a dict, None in a
    list, whose other places stay."""
    step, _, rest = path.partition(".")
    at = _place(params, step)
    if rest:
        value = _changed(params[at], rest, value, absent)
    if isinstance(params, (list, tuple)):
        return [value if i == at else x for i, x in enumerate(params)]
    if absent and not rest:
        return {k: x for k, x in params.items() if k != at}
    return {**params, at: value}


def _check_wrapped(wrapper: Any) -> None:
    """Raise ArgumentError where a wrapper holds no layer, or no path of a parameter."""
    kind = type(wrapper).__name__
    if not isinstance(wrapper.layer, Module):
        raise ArgumentError(
            f"{kind} takes a layer, got {wrapper.layer!r:.60} of type "
            f"{type(wrapper.layer).__name__}\n  make one: {kind}(nn.Linear(...))"
        )
    name = getattr(wrapper, "name", "weight")
    if not isinstance(name, str) or not name:
        raise ArgumentError(
            f"{kind}: name is {name!r:.60}, but is a parameter's path: 'weight', '0.weight'"
        )


# ---- weight and spectral norm ----


def _rows(weight: Array, axis: int) -> Array:
    """[length of `axis`, all others]."""
    return jnp.reshape(jnp.moveaxis(weight, axis, 0), (weight.shape[axis], -1))


@dataclasses.dataclass(frozen=True)
class WeightNorm(Module):
    """A layer whose weight is g * v / norm(v): length and direction are parameters of their own.

    The norm is of each slice along `axis`: of the weights of each output, where it is 0. In the
    layer's parameters, a dict stands at `name`: `g`, the norms, with 1 for the other axes, and `v`,
    of the weight's shape; both are PyTorch's original0 and original1 of
    torch.nn.utils.parametrizations.weight_norm. Fresh parameters give the layer's own fresh weight.
    A slice of v that is 0 has no direction: it gives NaN. State and other parameters are the
    layer's.

    Source: Salimans and Kingma, "Weight Normalization", 2016.

    Args:
        layer: any layer with a parameter at `name`.
        name: the path of the parameter, dots between its parts.
        axis: the axis whose elements have norms of their own; None for one norm of all elements.

    Raises:
        ArgumentError: `layer` is no layer; or, in `init` or a call, there is no such parameter, or
            it has no such axis.

    >>> layer = nn.WeightNorm(nn.Linear(3, 2))
    >>> params = layer.init(random.key(0))
    >>> tree.map(jnp.shape, params)
    {'weight': {'g': (2, 1), 'v': (2, 3)}, 'bias': (2,)}
    >>> layer(params, jnp.ones((5, 3))).shape
    (5, 2)
    """

    layer: Module
    name: str = "weight"
    axis: int | None = 0

    def __post_init__(self) -> None:
        _check_wrapped(self)

    def _norm(self, v: Array) -> Array:
        if self.axis is None:
            return jnp.sqrt(jnp.sum(v * v))
        others = tuple([i for i in range(v.ndim) if i != _axis(self, v)])
        return jnp.sqrt(jnp.sum(v * v, others, keepdims=True))

    def init(self, key: Key) -> PyTree:
        params = self.layer.init(key)
        v = _entry(self, params, self.name)
        return _changed(params, self.name, {"g": self._norm(v), "v": v})

    def init_state(self, **sizes: Any) -> PyTree:
        return self.layer.init_state(**sizes)

    def __call__(self, params: PyTree, x: ArrayLike, **options: Any) -> PyTree:
        """The layer's, with its weight put together."""
        pair = _entry(self, params, self.name)
        v = jnp.asarray(_entry(self, params, f"{self.name}.v"))
        norm = self._norm(v)
        g = lookup(self, pair, "g", norm.shape, "init(key)")
        return self.layer(_changed(params, self.name, g * v / norm), x, **options)


def _axis(layer: WeightNorm | SpectralNorm, weight: ArrayLike) -> int:
    """The layer's axis as an index of `weight`; raises ArgumentError if there is none."""
    ndim, axis = jnp.ndim(weight), layer.axis
    if axis is None or not -ndim <= axis < ndim:
        raise layer_error(layer, "", f"{layer.name!r} is {shown(weight)}, which has no axis {axis}")
    return axis % ndim


# Power iterations before the first use: PyTorch's number.
_WARM_UP = 15


@dataclasses.dataclass(frozen=True)
class SpectralNorm(Module):
    """A layer whose weight is divided by its largest singular value, so that its norm is 1.

        u = normalize(W @ v), v = normalize(W.T @ u)    `steps` times, with train=True
        weight = W / (u @ W @ v)

    W is the weight as a matrix: `axis` against all others. `u` and `v` are no part of derivatives,
    as in torch.nn.utils.parametrizations.spectral_norm, and are state: a dict of `u`, `v` and
    `layer`, the layer's own state. A fresh state begins with 15 steps, whether in training or not.
    A call needs `state=` and returns (output, state); parameters are the layer's.

    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018.

    Args:
        layer: any layer with a parameter of two axes or more at `name`.
        name: the path of the parameter, dots between its parts.
        steps: power iterations of a call with `train=True`.
        eps: the least norm that u and v are divided by.
        axis: the weight's axis that W has as rows.

    Raises:
        ArgumentError: `layer` is no layer, or `steps` is no integer >= 1; or, in a call, there is
            no such parameter or no state.

    >>> layer = nn.SpectralNorm(nn.Linear(3, 2, bias=False))
    >>> params, state = layer.init(random.key(0)), layer.init_state()
    >>> for _ in range(3):
    ...     y, state = layer(params, jnp.eye(3), state=state, train=True)
    >>> float(jnp.linalg.norm(y, 2))
    1.0
    """

    layer: Module
    name: str = "weight"
    steps: int = 1
    eps: float = 1e-12
    axis: int = 0

    def __post_init__(self) -> None:
        _check_wrapped(self)
        if not is_count(self.steps) or not self.steps:
            raise ArgumentError(
                f"SpectralNorm: steps is {self.steps!r:.60}, but is a number of power iterations, "
                "at least 1"
            )

    def init(self, key: Key) -> PyTree:
        params = self.layer.init(key)
        self._shape(_entry(self, params, self.name))
        return params

    def _shape(self, weight: ArrayLike) -> tuple[int, int]:
        """The shape of the weight as a matrix."""
        axis, shape = _axis(self, weight), jnp.shape(weight)
        if len(shape) < 2:
            text = f"{self.name!r} is {shown(weight)}, but has to be a matrix or have more axes"
            raise layer_error(self, "", text)
        return shape[axis], math.prod(shape) // max(shape[axis], 1)

    def init_state(self, **sizes: Any) -> PyTree:
        """u, drawn from a fixed key, v, zeros, which mark a state that is fresh, and the layer's
        state."""
        params = eval_shape(self.layer.init, random.key(0))
        weight = _entry(self, params, self.name)
        rows, columns = self._shape(weight)
        u = _normalized(random.normal(random.key(0), (rows,), weight.dtype), self.eps)
        inner = self.layer.init_state(**sizes)
        return {"u": u, "v": jnp.zeros((columns,), weight.dtype), "layer": inner}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        **options: Any,
    ) -> PyTree:
        weight = jnp.asarray(_entry(self, params, self.name))
        rows, columns = self._shape(weight)
        require_state(self, state)
        u = lookup(self, state, "u", (rows,), "init_state()")
        v = lookup(self, state, "v", (columns,), "init_state()")
        matrix = _rows(weight, _axis(self, weight))
        # A state keeps its dtype, whatever that of the parameters: it is a loop's carry.
        kept = u.dtype
        wide = jnp.result_type(matrix, u, jnp.float32)
        matrix, u, v = [jnp.astype(y, wide) for y in (matrix, u, v)]
        u, v = self._iterated(stop_gradient(matrix), stop_gradient(u), stop_gradient(v), train)
        own = _changed(params, self.name, jnp.astype(weight / (u @ matrix @ v), weight.dtype))
        u, v = u.astype(kept), v.astype(kept)
        inner = state.get("layer")
        y = self.layer(own, x, state=inner, key=key, train=train, **options)
        y, inner = y if inner is not None else (y, None)
        return y, {"u": u, "v": v, "layer": inner}

    def _iterated(self, matrix: Array, u: Array, v: Array, train: bool) -> tuple[Array, Array]:
        """u and v after the power iterations of a call."""

        def step(u: Array, v: Array) -> tuple[Array, Array]:
            u = _normalized(matrix @ v, self.eps)
            return u, _normalized(matrix.T @ u, self.eps)

        def first(u: Array, v: Array) -> tuple[Array, Array]:
            start = (u, _normalized(matrix.T @ u, self.eps))
            return fori_loop(0, _WARM_UP, lambda _, uv: step(*uv), start)

        u, v = cond(jnp.any(v != 0), lambda u, v: (u, v), first, u, v)
        for _ in range(self.steps if train else 0):
            u, v = step(u, v)
        return u, v


def _normalized(x: Array, eps: float) -> Array:
    """x / norm(x)."""
    return x / jnp.maximum(jnp.sqrt(jnp.sum(x * x)), eps)


# ---- tied weights ----


@dataclasses.dataclass(frozen=True)
class Tied(Module):
    """A layer or container in which parameters are others of its own: `ties`, target to source.

    `init` leaves the targets out, a call puts the sources' arrays there; so gradients of both uses
    add up, and optimizers and files see one array. Paths lead to arrays, or to parts with several.
    State and options are the layer's.

    Source: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017.

    Args:
        layer: any layer or container.
        ties: a dict from targets to sources, paths in its parameters with dots between their parts;
            stored as pairs.

    Raises:
        ArgumentError: `layer` is no layer, or a source is a target or a part of one; or, in `init`,
            a path leads nowhere or a target differs from its source in shape or dtype; or, in a
            call, a target is there.

    >>> model = nn.Sequential(embed=nn.Embedding(10, 4), head=nn.Linear(4, 10, bias=False))
    >>> model = nn.Tied(model, {"head.weight": "embed.weight"})
    >>> params = model.init(random.key(0))
    >>> tree.map(jnp.shape, params)
    {'embed': {'weight': (10, 4)}, 'head': {}}
    >>> model(params, jnp.array([1, 7])).shape
    (2, 10)
    """

    layer: Module
    ties: Mapping[str, str] | tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        _check_wrapped(self)
        given: Any = self.ties
        try:
            pairs = [(t, s) for t, s in (given.items() if isinstance(given, Mapping) else given)]
        except (TypeError, ValueError):
            pairs = []
        paths = [path for pair in pairs for path in pair]
        if not pairs or not all(isinstance(path, str) and path for path in paths):
            raise ArgumentError(
                f"Tied: ties is {given!r:.60}, but is a dict of paths, targets to sources\n"
                '  as in {"head.weight": "embed.weight"}'
            )
        for i, (target, _) in enumerate(pairs):
            others = [path for j, path in enumerate(paths) if j != 2 * i]
            for other in others:
                if f"{target}.".startswith(f"{other}.") or f"{other}.".startswith(f"{target}."):
                    raise ArgumentError(
                        f"Tied: {target!r} is a target, which {other!r} is or is a part of\n"
                        "  give each target once, and a source that is none"
                    )
        # Pairs, so that the layer is hashable: a static argument of `jit`.
        object.__setattr__(self, "ties", tuple(pairs))

    def init(self, key: Key) -> PyTree:
        params = self.layer.init(key)
        for target, source in self._pairs():
            here, there = _entry(self, params, target), _entry(self, params, source)
            if tree.map(typeof, here) != tree.map(typeof, there):
                text = f"{target!r} is {tree.map(shown, here)}, but its source, {source!r}, is "
                raise layer_error(self, "", f"{text}{tree.map(shown, there)}")
            params = _changed(params, target, None, absent=True)
        return params

    def init_state(self, **sizes: Any) -> PyTree:
        return self.layer.init_state(**sizes)

    def _pairs(self) -> tuple[tuple[str, str], ...]:
        pairs: Any = self.ties
        return pairs

    def __call__(self, params: PyTree, x: ArrayLike, **options: Any) -> PyTree:
        """The layer's, with the sources' arrays at the targets."""
        own = params
        for target, source in self._pairs():
            parent, _, last = target.rpartition(".")
            entries = _entry(self, own, parent) if parent else own
            if last in entries if isinstance(entries, dict) else _entry(self, own, target):
                text = f"{target!r} is in params, but is {source!r}, to which it is tied"
                raise layer_error(self, "", f"{text}\n  leave it out: params = layer.init(key)")
            own = _changed(own, target, _entry(self, own, source))
        return self.layer(own, x, **options)
