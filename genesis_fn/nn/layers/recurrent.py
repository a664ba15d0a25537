"""Recurrent layers: cells of one step, RNN over a sequence by scan, LSTM and GRU of many layers.

A cell is two functions: `project`, the products with the input, which RNN does for all steps at
once, and `step`, what has to wait for the step before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, dtypes, tree
from genesis_fn.errors import ArgumentError
from genesis_fn.lax import scan
from genesis_fn.nn.functions import relu, sigmoid, tanh
from genesis_fn.nn.layers.dense import linear
from genesis_fn.nn.layers.dropout import Dropout
from genesis_fn.nn.module import (
    Module,
    at_path,
    check_fields,
    checked_input,
    layer_error,
    lookup,
    shown,
    uniform_fan_in,
)
from genesis_fn.transforms import assert_

Arrays = dict[str, Array]

# ---- cells ----


@dataclasses.dataclass(frozen=True)
class _Cell(Module):
    """One step of a recurrence whose gates are `weight_ih @ x + weight_hh @ hidden`."""

    features_in: int
    features: int
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    gates: ClassVar[int] = 1
    carried: ClassVar[tuple[str, ...]] = ("hidden",)

    def __post_init__(self) -> None:
        check_fields(self)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        rows = self.gates * self.features
        shapes = {"weight_ih": (rows, self.features_in), "weight_hh": (rows, self.features)}
        return shapes | ({"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {})

    def init(self, key: Key) -> Arrays:
        shapes = self._shapes()
        keys = random.split(key, len(shapes))
        return {
            name: uniform_fan_in(k, shape, self.features, self.dtype)
            for k, (name, shape) in zip(keys, shapes.items())
        }

    def init_state(self, batch: int | tuple[int, ...] | None = None, **sizes: Any) -> Arrays | None:
        """A carry of zeros for inputs with the leading axes `batch`, () for none; None without."""
        if batch is None:
            return None
        lead = batch if isinstance(batch, tuple) else (batch,)
        return {name: jnp.zeros((*lead, self.features), self.dtype) for name in self.carried}

    def checked_params(self, layer: Module, params: PyTree, suffix: str = "") -> Arrays:
        """The parameters by their own names, of a dict that has `suffix` behind each; errors name
        `layer`."""
        shapes = self._shapes().items()
        return {n: lookup(layer, params, n + suffix, shape, "init(key)") for n, shape in shapes}

    def checked_state(
        self,
        layer: Module,
        state: PyTree,
        lead: tuple[int, ...],
        dtype: DTypeLike,
        suffix: str = "",
    ) -> Arrays:
        """The carry by its own names; zeros of `dtype` where `state` is None."""
        shape = (*lead, self.features)
        if state is None:
            return {name: jnp.zeros(shape, dtype) for name in self.carried}
        init = f"init_state(batch={lead[0] if len(lead) == 1 else lead})"
        return {n: jnp.asarray(lookup(layer, state, n + suffix, shape, init)) for n in self.carried}

    def project(self, params: Arrays, x: ArrayLike) -> Array:
        """[..., features_in] -> [..., gates * features], with both biases."""
        y = linear(x, params["weight_ih"])
        return y + (params["bias_ih"] + params["bias_hh"]) if self.bias else y

    def step(self, params: Arrays, projected: Array, carry: Arrays) -> Arrays:
        """The next carry, of `project`'s result and the last carry."""
        raise ArgumentError(f"{type(self).__name__} defines no step")

    def advance(self, params: Arrays, projected: Array, carry: Arrays) -> tuple[Array, Arrays]:
        """(output, next carry). The carry keeps its dtypes, as loops around a call need it."""
        new = self.step(params, projected, carry)
        new = {name: jnp.astype(new[name], carry[name].dtype) for name in self.carried}
        return new["hidden"], new

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        x = checked_input(self, x, self.features_in, "features_in")
        own = self.checked_params(self, params)
        dtype = jnp.result_type(x, own["weight_hh"])
        carry = self.checked_state(self, state, jnp.shape(x)[:-1], dtype)
        y, new = self.advance(own, self.project(own, x), carry)
        return y if state is None else (y, new)


@dataclasses.dataclass(frozen=True)
class RNNCell(_Cell):
    """One step of Elman's network: hidden = tanh(x @ weight_ih.T + hidden @ weight_hh.T + biases).

    Source: Elman, "Finding Structure in Time", 1990. Parameters as in PyTorch, uniform in +-1 /
    sqrt(features): `weight_ih` [features, features_in], `weight_hh` [features, features],
    `bias_ih` and `bias_hh` [features]. Input [..., features_in], output [..., features]; state:
    `hidden` [..., features], zeros where a call gives none. A call with `state=` returns (output,
    next state); `init_state(batch=...)` makes zeros.

    Args:
        features_in, features: length of the last axis of input and output.
        bias: whether there are biases.
        dtype: of the parameters and of the state that `init_state` makes.
        nonlinearity: "tanh" or "relu".

    Raises:
        ArgumentError: `nonlinearity` is another, or a size is no integer >= 0.

    >>> cell = nn.RNNCell(3, 4)
    >>> params, state = cell.init(random.key(0)), cell.init_state(batch=2)
    >>> y, state = cell(params, jnp.ones((2, 3)), state=state)
    >>> y.shape, state["hidden"].shape
    ((2, 4), (2, 4))
    """

    nonlinearity: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(
                f"RNNCell: nonlinearity is {self.nonlinearity!r:.60}, but is 'tanh' or 'relu'"
            )

    def step(self, params: Arrays, projected: Array, carry: Arrays) -> Arrays:
        function = tanh if self.nonlinearity == "tanh" else relu
        return {"hidden": function(projected + linear(carry["hidden"], params["weight_hh"]))}


@dataclasses.dataclass(frozen=True)
class LSTMCell(_Cell):
    """One step of long short-term memory, with a forget gate.

        i, f, g, o = split(x @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
        hidden = sigmoid(o) * tanh(cell)

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Gers, Schmidhuber and
    Cummins, "Learning to Forget", 2000. Parameters as in PyTorch, uniform in +-1 / sqrt(features):
    `weight_ih` [4 * features, features_in], `weight_hh` [4 * features, features], `bias_ih` and
    `bias_hh` [4 * features]. Input [..., features_in], output [..., features], which is `hidden`;
    state: `hidden` and `cell` [..., features], zeros where a call gives none. A call with `state=`
    returns (output, next state); `init_state(batch=...)` makes zeros.

    Args:
        features_in, features: length of the last axis of input and output.
        bias: whether there are biases.
        dtype: of the parameters and of the state that `init_state` makes.

    >>> cell = nn.LSTMCell(3, 4)
    >>> params, state = cell.init(random.key(0)), cell.init_state(batch=2)
    >>> y, state = cell(params, jnp.ones((2, 3)), state=state)
    >>> y.shape, state["cell"].shape
    ((2, 4), (2, 4))
    """

    gates: ClassVar[int] = 4
    carried: ClassVar[tuple[str, ...]] = ("hidden", "cell")

    def step(self, params: Arrays, projected: Array, carry: Arrays) -> Arrays:
        gates = projected + linear(carry["hidden"], params["weight_hh"])
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = sigmoid(f) * carry["cell"] + sigmoid(i) * tanh(g)
        return {"hidden": sigmoid(o) * tanh(cell), "cell": cell}


@dataclasses.dataclass(frozen=True)
class GRUCell(_Cell):
    """One step of a gated recurrent unit.

        a_r, a_z, a_n = split(x @ weight_ih.T + bias_ih, 3)
        b_r, b_z, b_n = split(hidden @ weight_hh.T + bias_hh, 3)
        z = sigmoid(a_z + b_z)
        hidden = (1 - z) * tanh(a_n + sigmoid(a_r + b_r) * b_n) + z * hidden

    The reset gate multiplies after the product, as in PyTorch and cuDNN. Source: Cho et al.,
    "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation",
    2014. Parameters as in PyTorch, uniform in +-1 / sqrt(features): `weight_ih` [3 * features,
    features_in], `weight_hh` [3 * features, features], `bias_ih` and `bias_hh` [3 * features].
    Input [..., features_in], output [..., features]; state: `hidden` [..., features], zeros where a
    call gives none. A call with `state=` returns (output, next state); `init_state(batch=...)`
    makes zeros.

    Args:
        features_in, features: length of the last axis of input and output.
        bias: whether there are biases.
        dtype: of the parameters and of the state that `init_state` makes.

    >>> cell = nn.GRUCell(3, 4)
    >>> params, state = cell.init(random.key(0)), cell.init_state(batch=2)
    >>> y, state = cell(params, jnp.ones((2, 3)), state=state)
    >>> y.shape, state["hidden"].shape
    ((2, 4), (2, 4))
    """

    gates: ClassVar[int] = 3

    def project(self, params: Arrays, x: ArrayLike) -> Array:
        y = linear(x, params["weight_ih"])
        return y + params["bias_ih"] if self.bias else y

    def step(self, params: Arrays, projected: Array, carry: Arrays) -> Arrays:
        hidden = carry["hidden"]
        recurrent = linear(hidden, params["weight_hh"])
        # Its last third is multiplied by the reset gate, bias included.
        recurrent = recurrent + params["bias_hh"] if self.bias else recurrent
        (a_r, a_z, a_n), (b_r, b_z, b_n) = jnp.split(projected, 3, -1), jnp.split(recurrent, 3, -1)
        z = sigmoid(a_z + b_z)
        return {"hidden": (1 - z) * tanh(a_n + sigmoid(a_r + b_r) * b_n) + z * hidden}


# ---- sequences ----


def _sequences(layer: Module, x: ArrayLike, features: int | None) -> Array:
    """Return `x` if it is [..., time, features]; raise ArgumentError otherwise."""
    if features is not None:
        x = checked_input(layer, x, features, "features_in")
    if jnp.ndim(x) < 2:
        last = "features" if features is None else features
        text = f"the input is {shown(x)}, but has to be [batch, time, {last}]"
        raise layer_error(layer, "", f"{text}\n  a cell takes one step: [batch, {last}]")
    return jnp.asarray(x)


def _inside(layer: Module, x: Array, lengths: ArrayLike | None) -> Array | None:
    """[time, ...]: whether a step lies before its row's end."""
    if lengths is None:
        return None
    *lead, steps, _ = jnp.shape(x)
    ends: Array = jnp.asarray(lengths)
    if ends.shape != tuple(lead) or not dtypes.is_integer(ends.dtype):
        text = f"lengths is {shown(ends)}, but has to be integers [{', '.join(map(str, lead))}]"
        raise layer_error(layer, "", f"{text}\n  one number of steps for each row of {shown(x)}")
    fits = jnp.all((ends >= 0) & (ends <= steps))
    name = type(layer).__name__
    assert_(fits, name + ": lengths have to be from 0 to {n} steps, got {ends}", n=steps, ends=ends)
    return jnp.expand_dims(jnp.arange(steps), tuple(range(1, 1 + len(lead)))) < ends


def _where(inside: Array, new: Array, old: ArrayLike) -> Array:
    """`new` in the rows that are inside, `old` in others."""
    return jnp.where(jnp.expand_dims(inside, tuple(range(inside.ndim, new.ndim))), new, old)


def _over_time(
    step: Callable[[PyTree, PyTree], tuple[Array, PyTree]],
    inputs: PyTree,
    carry: PyTree,
    inside: Array | None,
    reverse: bool,
) -> tuple[Array, PyTree]:
    """(outputs [..., time, features], last carry) of `step(carry, inputs)`, whose leading axis is
    time. Behind a row's end the carry stays and outputs are 0; in reverse a row thus begins at its
    own end."""

    def body(carry: PyTree, at: tuple[PyTree, Array | None]) -> tuple[PyTree, Array]:
        x, inside = at
        y, new = step(carry, x)
        if inside is None:
            return new, y
        return tree.map(lambda n, o: _where(inside, n, o), new, carry), _where(inside, y, 0)

    carry, y = scan(body, carry, (inputs, inside), reverse=reverse)
    return jnp.moveaxis(y, 0, -2), carry


def _time_first(x: Array, inside: Array | None) -> Array:
    """[..., time, features] -> [time, ..., features], with zeros behind a row's end: a NaN there
    would reach gradients through the outputs that are thrown away."""
    x = jnp.moveaxis(x, -2, 0)
    return x if inside is None else _where(inside, x, 0)


def _run_cell(
    cell: _Cell, params: Arrays, x: Array, carry: Arrays, inside: Array | None, reverse: bool
) -> tuple[Array, Arrays]:
    inputs = cell.project(params, _time_first(x, inside))
    step = lambda carry, projected: cell.advance(params, projected, carry)
    return _over_time(step, inputs, carry, inside, reverse)


@dataclasses.dataclass(frozen=True)
class RNN(Module):
    """A cell over the steps of sequences: y[t], state = cell(x[t], state).

    Input [batch, time, features_in], output [batch, time, features]; without a batch axis, or with
    several, as well. Parameters and state are the cell's. A call with `state=` begins with it and
    returns (output, state behind the last step); without it the first carry is zeros. With
    `lengths=` [batch] rows are of their own length: the carry stays at a row's end, outputs behind
    it are 0, and what the input has there does not matter, as with PyTorch's packed sequences.

    The cells of this module do the input products of all steps at once. Any other layer with a
    state is a cell, too (`nn.Sequential(nn.Linear(3, 4), nn.LSTMCell(4, 4))`); it is called with
    `train` and, if there is a `key`, with one of its own at every step.

    Args:
        cell: a layer of one step, whose state is its carry.
        reverse: whether the steps are taken from the last to the first; outputs stay in place.

    Raises:
        ArgumentError: `cell` is no layer; or, in a call, it has no state, or `lengths` do not fit.

    >>> layer = nn.RNN(nn.GRUCell(3, 4))
    >>> params = layer.init(random.key(0))
    >>> layer(params, jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    >>> y, state = layer(params, jnp.ones((2, 5, 3)), state=layer.init_state(batch=2))
    >>> state["hidden"].shape
    (2, 4)
    >>> float(layer(params, jnp.ones((2, 5, 3)), lengths=jnp.array([5, 2]))[1, 2:].sum())
    0.0
    """

    cell: Module
    reverse: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.cell, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"RNN takes a cell, got {self.cell!r:.60} of type {type(self.cell).__name__}\n"
                "  give one: nn.RNN(nn.LSTMCell(features_in, features))"
            )
        check_fields(self)

    def init(self, key: Key) -> PyTree:
        return self.cell.init(key)

    def init_state(self, **sizes: Any) -> PyTree:
        return self.cell.init_state(**sizes)

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        lengths: ArrayLike | None = None,
    ) -> PyTree:
        cell = self.cell
        x = _sequences(self, x, cell.features_in if isinstance(cell, _Cell) else None)
        lead = jnp.shape(x)[:-2]
        inside = _inside(self, x, lengths)
        if isinstance(cell, _Cell):
            own = cell.checked_params(self, params)
            carry = cell.checked_state(self, state, lead, jnp.result_type(x, own["weight_hh"]))
            y, new = _run_cell(cell, own, x, carry, inside, self.reverse)
            return y if state is None else (y, new)
        carry = state
        if carry is None:
            carry = cell.init_state(batch=lead[0] if len(lead) == 1 else lead)
        if carry is None:
            raise layer_error(self, "", "the cell has no state to carry from step to step")
        for value in tree.leaves(carry) if lengths is not None else ():
            if jnp.shape(value)[: len(lead)] != lead:
                text = f"lengths= keeps the state of single rows, but it has {shown(value)}"
                raise layer_error(self, "", f"{text}, which is of all {list(lead)}")
        keys = None if key is None else random.split(key, jnp.shape(x)[-2])
        step = lambda carry, at: cell(params, at[0], state=carry, key=at[1], train=train)
        y, new = _over_time(step, (_time_first(x, inside), keys), carry, inside, self.reverse)
        return y if state is None else (y, new)


# ---- layers of cells ----


@dataclasses.dataclass(frozen=True)
class _Stack(Module):
    """Layers of cells in one or both directions."""

    features_in: int
    features: int
    layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    bias: bool = True
    dtype: DTypeLike = jnp.float32

    cell: ClassVar[type[_Cell]] = _Cell

    def __post_init__(self) -> None:
        check_fields(self)
        name = type(self).__name__
        if not self.layers:
            raise ArgumentError(f"{name}: layers is 0, but there is at least one")
        Dropout(self.dropout)  # refuses what is no probability
        if self.dropout and self.layers == 1:
            raise ArgumentError(
                f"{name}: dropout={self.dropout} is between layers, but there is one alone\n"
                "  put nn.Dropout behind it, or give layers="
            )

    def _suffixes(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def _cell(self, index: int) -> _Cell:
        features_in = self.features * len(self._suffixes()) if index else self.features_in
        return self.cell(features_in, self.features, self.bias, self.dtype)

    def init(self, key: Key) -> list[Arrays]:
        layers = []
        for i, k in enumerate(random.split(key, self.layers)):
            keys = random.split(k, len(self._suffixes()))
            made = [(s, self._cell(i).init(own)) for s, own in zip(self._suffixes(), keys)]
            layers.append({name + s: x for s, params in made for name, x in params.items()})
        return layers

    def init_state(
        self, batch: int | tuple[int, ...] | None = None, **sizes: Any
    ) -> list[Arrays] | None:
        """Carries of zeros, a dict for each layer, for inputs with the leading axes `batch`, () for
        none; None without."""
        carry = self._cell(0).init_state(batch=batch)
        if carry is None:
            return None
        names = [(name + s, x) for s in self._suffixes() for name, x in carry.items()]
        return [dict(names) for _ in range(self.layers)]

    def _entries(self, name: str, entries: PyTree, init: str) -> list[PyTree]:
        if isinstance(entries, (list, tuple)) and len(entries) == self.layers:
            return list(entries)
        length = f" of {len(entries)}" if isinstance(entries, (list, tuple)) else ""
        text = f"{name} has to be a list with one dict for each of the {self.layers} layers"
        text = f"{text}, but is of type {type(entries).__name__}{length}"
        raise layer_error(self, "", f"{text}\n  {name} = layer.{init} makes it")

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        lengths: ArrayLike | None = None,
    ) -> PyTree:
        y = _sequences(self, x, self.features_in)
        lead = jnp.shape(y)[:-2]
        inside = _inside(self, y, lengths)
        drops = train and self.dropout > 0
        if drops and key is None:
            raise layer_error(self, "", "in training it needs key=, from which dropout draws")
        keys = random.split(key, self.layers) if drops and key is not None else None
        layers = self._entries("params", params, "init(key)")
        states = [None] * self.layers
        if state is not None:
            states = self._entries("state", state, "init_state(batch=...)")
        new = list[Arrays]()
        for i, (p, s) in enumerate(zip(layers, states)):
            if i and keys is not None:
                y = Dropout(self.dropout)({}, y, key=keys[i], train=True)
            try:
                y, carry = self._layer(self._cell(i), p, y, s, lead, inside)
            except ArgumentError as error:
                raise at_path(f"[{i}]", error) from error.__cause__
            new.append(carry)
        return y if state is None else (y, new)

    def _layer(
        self,
        cell: _Cell,
        params: PyTree,
        x: Array,
        state: PyTree,
        lead: tuple[int, ...],
        inside: Array | None,
    ) -> tuple[Array, Arrays]:
        outputs, carries = list[Array](), Arrays()
        for suffix in self._suffixes():
            own = cell.checked_params(self, params, suffix)
            dtype = jnp.result_type(x, own["weight_hh"])
            carry = cell.checked_state(self, state, lead, dtype, suffix)
            y, new = _run_cell(cell, own, x, carry, inside, bool(suffix))
            outputs.append(y)
            carries |= {name + suffix: value for name, value in new.items()}
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, -1), carries


@dataclasses.dataclass(frozen=True)
class LSTM(_Stack):
    """Long short-term memory over sequences: layers of `LSTMCell`, as torch.nn.LSTM.

    Input [batch, time, features_in], output [batch, time, features], or 2 * features of a
    bidirectional one; without a batch axis, or with several, as well. Parameters: a list with a
    dict for each layer, which has those of `LSTMCell` under PyTorch's names without `_l0`, and of
    the other direction with `_reverse` behind them. State: a list with a dict for each layer,
    `hidden` and `cell` [batch, features], and with `_reverse`.

    A call with `state=` begins with it and returns (output, state behind the last step);
    `init_state(batch=...)` makes zeros, with which a call without it begins. With `lengths=`
    [batch] rows are of their own length: the carry stays at a row's end, and outputs behind it are
    0, as with PyTorch's packed sequences.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.

    Args:
        features_in, features: length of the last axis of the input and of a direction's output.
        layers: number of layers, each of which takes the outputs of the one before.
        bidirectional: whether each layer runs from the last step to the first, too, and hands on
            both outputs, concatenated.
        dropout: rate of the dropout between layers, with `train=True`.
        bias: whether there are biases.
        dtype: of the parameters and of the state that `init_state` makes.

    Raises:
        ArgumentError: a size is no count, or `dropout` is no probability or has no two layers
            between which it could be; or, in a call, `lengths` do not fit.

    >>> layer = nn.LSTM(3, 4, layers=2)
    >>> params = layer.init(random.key(0))
    >>> params[1]["weight_hh"].shape
    (16, 4)
    >>> y, state = layer(params, jnp.ones((2, 5, 3)), state=layer.init_state(batch=2))
    >>> y.shape, len(state), state[0]["cell"].shape
    ((2, 5, 4), 2, (2, 4))
    """

    cell: ClassVar[type[_Cell]] = LSTMCell


@dataclasses.dataclass(frozen=True)
class GRU(_Stack):
    """Gated recurrent units over sequences: layers of `GRUCell`, as torch.nn.GRU.

    Input [batch, time, features_in], output [batch, time, features], or 2 * features of a
    bidirectional one; without a batch axis, or with several, as well. Parameters: a list with a
    dict for each layer, which has those of `GRUCell` under PyTorch's names without `_l0`, and of
    the other direction with `_reverse` behind them. State: a list with a dict for each layer,
    `hidden` [batch, features], and with `_reverse`.

    A call with `state=` begins with it and returns (output, state behind the last step);
    `init_state(batch=...)` makes zeros, with which a call without it begins. With `lengths=`
    [batch] rows are of their own length: the carry stays at a row's end, and outputs behind it are
    0, as with PyTorch's packed sequences.

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
    Machine Translation", 2014.

    Args:
        features_in, features: length of the last axis of the input and of a direction's output.
        layers: number of layers, each of which takes the outputs of the one before.
        bidirectional: whether each layer runs from the last step to the first, too, and hands on
            both outputs, concatenated.
        dropout: rate of the dropout between layers, with `train=True`.
        bias: whether there are biases.
        dtype: of the parameters and of the state that `init_state` makes.

    Raises:
        ArgumentError: a size is no count, or `dropout` is no probability or has no two layers
            between which it could be; or, in a call, `lengths` do not fit.

    >>> layer = nn.GRU(3, 4, bidirectional=True)
    >>> params = layer.init(random.key(0))
    >>> layer(params, jnp.ones((2, 5, 3))).shape
    (2, 5, 8)
    """

    cell: ClassVar[type[_Cell]] = GRUCell
