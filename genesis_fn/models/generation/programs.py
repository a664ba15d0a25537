"""The two programs of generation: a prefill that draws the first token, and a loop for the others.

Each is compiled once for what a `GenerationPlan` holds, shapes included. Numbers that differ
between calls (the lengths of prompts, how many tokens follow) are data.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, jit, tree
from genesis_fn.lax import dynamic_update_slice, while_loop
from genesis_fn.models.generation import causal_model
from genesis_fn.models.generation.penalties import (
    Penalties,
    first_uses,
    is_one_of,
    more_uses,
    penalized,
)
from genesis_fn.models.generation.sampling import Sampling, draw, take
from genesis_fn.nn import log_softmax
from genesis_fn.transforms import JitFunction

# Programs that stay: those of the plans that were used last.
_KEPT = 64


@dataclasses.dataclass(frozen=True)
class GenerationPlan:
    """What a program is compiled for.

    Args:
        config: the decoder's hyperparameters.
        sampling: how tokens are drawn.
        penalties: what changes logits before, and the tokens that end a row.
        rows: number of rows, B.
        capacity: positions of the cache, and the most new tokens.
        cache_dtype: dtype of the cache.
        logprobs: whether the chosen tokens' log-probabilities are computed.
    """

    config: causal_model.Config
    sampling: Sampling
    penalties: Penalties
    rows: int
    capacity: int
    cache_dtype: DTypeLike
    logprobs: bool = False


class Numbers(NamedTuple):
    """What differs between calls of one program: at most `limit` new tokens, `least` of them before
    an end, and the random key (None where nothing is drawn)."""

    limit: ArrayLike
    least: ArrayLike
    key: Key | None


# The state of a loop, a pytree:
#     step      int32 []              tokens drawn so far in each row that goes on
#     token     int32 [B]             the last one, which the cache lacks yet
#     new       int32 [B, capacity]   all of them; what follows a row's `count` means nothing
#     count     int32 [B]             how many of them are the row's
#     done      bool [B]              whether the row has ended
#     uses                            what the penalties read
#     logprobs  float32 [B, capacity] as `new`; only where the plan has them
#     cache                           the decoder's
State = dict[str, Any]


def first_token(
    plan: GenerationPlan,
    params: PyTree,
    cache: PyTree,
    tokens: Array,
    counts: Array,
    history: tuple[Array, Array],
    numbers: Numbers,
    empty: bool = False,
) -> State:
    """The state after a prefill and the first token.

    Args:
        plan: what the program is for.
        params: the decoder's parameters.
        cache: holds what comes before `tokens`.
        tokens: the prompts, or the rest of them, [B, T].
        counts: how many of them are real in each row [B].
        history: (whole prompts [B, H], their lengths [B]), for penalties.
        numbers: of the call; with a limit of 0 all rows have ended.
        empty: whether nothing comes before.
    """
    read = causal_model.prefill if empty else causal_model.extend_within
    logits, cache = read(params, tokens, cache, plan.config, counts, last=True)
    uses = first_uses(*history, logits.shape[-1], plan.penalties)
    step = jnp.zeros((), jnp.int32)
    token = _drawn(plan, numbers, step, logits, uses)
    none = jnp.broadcast_to(jnp.asarray(numbers.limit) < 1, (plan.rows,))
    buffer = jnp.zeros((plan.rows, plan.capacity), jnp.int32)
    state: State = {
        "step": step + 1,
        "token": token,
        "new": _put(buffer, token, step),
        "count": jnp.astype(~none, jnp.int32),
        "done": none | is_one_of(token, plan.penalties.eos),
        "uses": more_uses(uses, token),
        "cache": cache,
    }
    if plan.logprobs:
        none_yet = jnp.zeros((plan.rows, plan.capacity), jnp.float32)
        state["logprobs"] = _put(none_yet, _logprob(logits, token), step)
    return state


def more_tokens(
    plan: GenerationPlan, params: PyTree, state: State, numbers: Numbers, until: ArrayLike
) -> State:
    """The state when `until` tokens are drawn, or all rows have ended."""

    def unfinished(state: State) -> Array:
        return (state["step"] < until) & ~jnp.all(state["done"])

    def advance(state: State) -> State:
        step, done = state["step"], state["done"]
        logits, cache = causal_model.extend_within(
            params, state["token"][:, None], state["cache"], plan.config
        )
        logits = logits[:, 0]
        token = _drawn(plan, numbers, step, logits, state["uses"])
        after: State = {
            "step": step + 1,
            "token": token,
            "new": _put(state["new"], token, step),
            "count": jnp.where(done, state["count"], step + 1),
            "done": done | is_one_of(token, plan.penalties.eos),
            "uses": more_uses(state["uses"], token),
            "cache": cache,
        }
        if plan.logprobs:
            after["logprobs"] = _put(state["logprobs"], _logprob(logits, token), step)
        return after

    return while_loop(unfinished, advance, state)


def _drawn(plan: GenerationPlan, numbers: Numbers, step: Array, logits: Array, uses: Any) -> Array:
    """Token number `step` of each row.

    The noise of a row depends on the key, the step and the row's number: not on the shapes or on
    what the other rows hold.
    """
    logits = penalized(logits, uses, step, jnp.asarray(numbers.least), plan.penalties)
    key = random.key(0) if numbers.key is None else numbers.key
    return draw(random.fold_in(key, step), logits, plan.sampling)


def _logprob(logits: Array, token: Array) -> Array:
    return take(log_softmax(jnp.astype(logits, jnp.float32), -1), token)


def _put(buffer: Array, column: Array, at: Array) -> Array:
    """`buffer` [B, n] with `column` [B] at place `at`."""
    return dynamic_update_slice(buffer, column[:, None], (jnp.zeros((), jnp.int32), at))


# ---- compiled ----

# What the host passes is NumPy's; where `disable_jit` holds, nothing else makes arrays of it.
_arrays = functools.partial(tree.map, jnp.asarray)


@functools.lru_cache(_KEPT)
def prefill_program(plan: GenerationPlan, length: int) -> JitFunction[..., State]:
    """(params, tokens [B, length], lengths [B], numbers) to a state, in a cache of its own."""

    def prefill(params: PyTree, tokens: Array, lengths: Array, numbers: Numbers) -> State:
        tokens, lengths = _arrays((tokens, lengths))
        cache = causal_model.init_cache(plan.config, plan.rows, plan.capacity, plan.cache_dtype)
        return first_token(plan, params, cache, tokens, lengths, (tokens, lengths), numbers, True)

    return jit(prefill)


@functools.lru_cache(_KEPT)
def resume_program(plan: GenerationPlan, length: int) -> JitFunction[..., State]:
    """(params, cache, start, tokens [1, length], count [1], history, numbers) to a state: the
    cache's first `start` positions are kept, and its memory is used again."""

    def resume(
        params: PyTree,
        cache: PyTree,
        start: Array,
        tokens: Array,
        count: Array,
        history: tuple[Array, Array],
        numbers: Numbers,
    ) -> State:
        tokens, count, history = _arrays((tokens, count, history))
        lengths = jnp.astype(jnp.broadcast_to(start, (plan.rows,)), jnp.int32)
        cache = {**cache, "lengths": lengths}
        return first_token(plan, params, cache, tokens, count, history, numbers)

    return jit(resume, donate_argnames="cache")


@functools.lru_cache(_KEPT)
def decode_program(plan: GenerationPlan) -> JitFunction[..., State]:
    """(params, state, ended [B], until, numbers) to the state when `until` tokens are drawn, none
    for rows that have `ended`; the memory of the given one is used again."""

    def decode(params: PyTree, state: State, ended: Array, until: Array, numbers: Numbers) -> State:
        state = {**state, "done": state["done"] | ended}
        return more_tokens(plan, params, state, numbers, until)

    return jit(decode, donate_argnames="state")


@functools.lru_cache(_KEPT)
def joined_program(rows: int, length: int, capacity: int) -> JitFunction[..., tuple[Array, Array]]:
    """(tokens [B, length], lengths [B], new [B, capacity], count [B], pad) to the prompts with
    their new tokens behind them, [B, capacity], and their lengths."""

    def joined(
        tokens: Array, lengths: Array, new: Array, count: Array, pad: Array
    ) -> tuple[Array, Array]:
        tokens, lengths, count = _arrays((tokens, lengths, count))
        at = jnp.arange(capacity)[None, :] - lengths[:, None]
        behind = jnp.take_along_axis(new, at, axis=1, mode="clip")
        prompt = jnp.pad(tokens, ((0, 0), (0, capacity - length)))
        out = jnp.where(at < 0, prompt, behind)
        return jnp.where(at < count[:, None], out, pad), lengths + count

    return jit(joined)
