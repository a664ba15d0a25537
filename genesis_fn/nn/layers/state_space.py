"""A selective state-space layer: a linear recurrence whose coefficients depend on the input."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.lax import scan
from genesis_fn.nn.functions import softplus
from genesis_fn.nn.layers.dense import Linear
from genesis_fn.nn.module import (
    Module,
    call_part,
    check_fields,
    checked_input,
    is_count,
    layer_error,
    lookup,
    shown,
    uniform_fan_in,
)

# Time steps at the start, drawn evenly in their logarithm: those of the paper.
_TIME_STEPS = (0.001, 0.1)


@dataclasses.dataclass(frozen=True)
class SelectiveSSM(Module):
    """A state-space model for each feature, with a step, an input and an output of the input's.

        d, B, C = split(x @ x_proj.T, [time_step_rank, state_size, state_size])
        dt = softplus(d @ dt_proj.T + bias)
        state[t] = exp(dt * A) * state[t-1] + dt * x * B,    A = -exp(A_log)
        y[t] = sum(state[t] * C) + D * x

    The core of a Mamba block, without its projections, convolution and gate. Input and output
    [batch, time, features]; without a batch axis, or with several, as well. Parameters have Hugging
    Face's names: `x_proj` {`weight` [time_step_rank + 2 * state_size, features]}, `dt_proj`
    {`weight` [features, time_step_rank], `bias` [features]}, `A_log` [features, state_size], of 1
    to state_size, and `D` [features], ones. State: `ssm` [batch, features, state_size], float32 at
    least, as is the recurrence. A call with `state=` begins with it and returns (output, state
    behind the last step), so that sequences may come in parts: for decoding [batch, 1, features];
    without it the first is zeros.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023.

    Args:
        features: length of the last axis.
        state_size: numbers that each feature carries.
        time_step_rank: length of what time steps are made of; None for ceil(features / 16).
        dtype: of the matrices; the other parameters are float32 at least.

    Raises:
        ArgumentError: a size is no integer >= 0.

    >>> layer = nn.SelectiveSSM(6, state_size=4)
    >>> params = layer.init(random.key(0))
    >>> x = jnp.ones((2, 5, 6))
    >>> y, state = layer(params, x[:, :4], state=layer.init_state(batch=2))
    >>> last, state = layer(params, x[:, 4:], state=state)
    >>> bool(jnp.allclose(layer(params, x)[:, 4:], last))
    True
    """

    features: int
    state_size: int = 16
    time_step_rank: int | None = None
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        check_fields(self)
        if self.time_step_rank is not None and not is_count(self.time_step_rank):
            raise ArgumentError(
                f"SelectiveSSM: time_step_rank is {self.time_step_rank!r:.60}, but is a number of "
                "elements, or None for ceil(features / 16)"
            )

    def _rank(self) -> int:
        rank = self.time_step_rank
        return math.ceil(self.features / 16) if rank is None else rank

    def _projections(self) -> dict[str, Linear]:
        rank = self._rank()
        return {
            "x_proj": Linear(self.features, rank + 2 * self.state_size, False, self.dtype),
            "dt_proj": Linear(rank, self.features, True, self.dtype),
        }

    def init(self, key: Key) -> dict[str, PyTree]:
        first, second, third = random.split(key, 3)
        wide = jnp.result_type(self.dtype, jnp.float32)
        logs = [math.log(step) for step in _TIME_STEPS]
        dt = jnp.exp(random.uniform(third, (self.features,), wide, *logs))
        rank = self._rank()
        dt_proj = {
            "weight": uniform_fan_in(second, (self.features, rank), rank, self.dtype),
            # The inverse of softplus.
            "bias": dt + jnp.log(-jnp.expm1(-dt)),
        }
        a = jnp.log(jnp.arange(1, self.state_size + 1, dtype=wide))
        return {
            "x_proj": self._projections()["x_proj"].init(first),
            "dt_proj": dt_proj,
            "A_log": jnp.tile(a, (self.features, 1)),
            "D": jnp.ones((self.features,), wide),
        }

    def init_state(
        self, batch: int | tuple[int, ...] | None = None, **sizes: Any
    ) -> dict[str, Array] | None:
        """Zeros for inputs with the leading axes `batch`, () for none; None without."""
        if batch is None:
            return None
        lead = batch if isinstance(batch, tuple) else (batch,)
        wide = jnp.result_type(self.dtype, jnp.float32)
        return {"ssm": jnp.zeros((*lead, self.features, self.state_size), wide)}

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
    ) -> PyTree:
        x = jnp.asarray(checked_input(self, x, self.features, "features"))
        if x.ndim < 2:
            text = f"the input is {shown(x)}, but has to be [batch, time, {self.features}]"
            raise layer_error(self, "", f"{text}\n  one step is [batch, 1, {self.features}]")
        size, rank = self.state_size, self._rank()
        parts = self._projections()
        projected = lambda name, v: call_part(self, parts[name], params, name, v)
        a_log = lookup(self, params, "A_log", (self.features, size), "init(key)")
        skip = lookup(self, params, "D", (self.features,), "init(key)")
        d, b, c = jnp.split(projected("x_proj", x), [rank, rank + size], -1)
        dt = softplus(projected("dt_proj", d))
        wide = jnp.result_type(x, a_log, jnp.float32)
        rate = -jnp.exp(jnp.astype(a_log, wide))
        carry = self._carry(state, x.shape[:-2], wide)

        def step(carry: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
            dt, x, b, c = at
            new = jnp.exp(dt[..., None] * rate) * carry + (dt * x)[..., None] * b[..., None, :]
            return jnp.astype(new, carry.dtype), jnp.sum(new * c[..., None, :], -1)

        # lax.associative_scan, which holds the states of all steps at once, takes 2.5 times as long
        # on a CPU: 79 against 32 ms for [1024, 1, 256] and 16 numbers, 205 against 134 for its
        # gradient. It is faster only where everything is small: 1.5 against 1.9 ms for [64, 2, 64].
        steps = [jnp.moveaxis(jnp.astype(v, wide), -2, 0) for v in (dt, x, b, c)]
        last, y = scan(step, carry, tuple(steps))
        y = jnp.astype(jnp.moveaxis(y, 0, -2) + skip * x, jnp.result_type(x, self.dtype))
        return y if state is None else (y, {"ssm": last})

    def _carry(self, state: PyTree, lead: tuple[int, ...], dtype: DTypeLike) -> Array:
        shape = (*lead, self.features, self.state_size)
        if state is None:
            return jnp.zeros(shape, dtype)
        init = f"init_state(batch={lead[0] if len(lead) == 1 else lead})"
        return jnp.asarray(lookup(self, state, "ssm", shape, init))
