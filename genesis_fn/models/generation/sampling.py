"""Drawing tokens from logits: temperature, top-k, top-p, min-p and typical sampling."""

from __future__ import annotations

import dataclasses
import math

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, ArrayLike, Key, errors
from genesis_fn.extend import typeof
from genesis_fn.lax import bitcast_convert_type, top_k as largest
from genesis_fn.models.generation.config_fields import count_argument, number_argument
from genesis_fn.nn import log_softmax, softmax
from genesis_fn.transforms import assert_


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits, as `sampling_of` makes it of the options of `sample`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None


def sampling_of(
    caller: str,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    typical_p: float | None,
) -> Sampling:
    """How a call draws, whose options are checked. Those that have no effect are None, so that
    equal ways of drawing are one program."""
    heat = number_argument(caller, "temperature", temperature)
    if not 0 <= heat < math.inf:
        raise errors.ArgumentError(f"{caller}: temperature {heat} must be finite and not negative")
    if top_k is not None:
        top_k = count_argument(caller, "top_k", top_k, 1)
    shares: dict[str, float | None] = {}
    for name, share in (("top_p", top_p), ("min_p", min_p), ("typical_p", typical_p)):
        neutral = 0 if name == "min_p" else 1
        if share is not None:
            share = number_argument(caller, name, share)
            if not 0 <= share <= 1 or (share == 0 and neutral == 1):
                least = "[0" if neutral == 0 else "(0"
                raise errors.ArgumentError(f"{caller}: {name} must lie in {least}, 1], got {share}")
        shares[name] = None if heat == 0 or share == neutral else share
    return Sampling(heat, None if heat == 0 else top_k, **shares)


def sample(
    key: Key,
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
) -> Array:
    """Tokens drawn from logits.

    The options apply in the order of the arguments, as in transformers: each to the probabilities,
    made to sum to 1, of the tokens that the ones before it kept.

    Sources: top-p: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019; typical:
    Meister et al., "Locally Typical Sampling", 2022; min-p: Nguyen et al., "Turning Up the Heat:
    Min-p Sampling for Creative and Coherent LLM Outputs", 2024.

    Args:
        key: random key; the call uses it up, unless `temperature` is 0.
        logits: array [..., vocabulary].
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep the k most likely tokens; None keeps all.
        top_p: keep the fewest most likely tokens whose probability reaches p, always at least one,
            the first of equal ones; None keeps all.
        min_p: keep the tokens that have at least this share of the most likely one's probability;
            None keeps all.
        typical_p: keep the fewest tokens whose probability reaches p among those whose information
            -log p is nearest to the entropy; None keeps all.

    Returns:
        int32 tokens [...].

    Raises:
        ShapeError: `logits` have no axis, or no token on the last one.
        ValueError: a setting is out of range, or of another kind.
        AssertionFailed: logits are NaN, or all of a row are -inf, when the program runs.

    >>> sample(random.key(0), jnp.array([[0.0, 1.0, 9.0]]), temperature=0.0)
    Array([2], dtype=int32)
    >>> sample(random.key(0), jnp.array([[0.0, 1.0, 9.0]]), min_p=0.1)
    Array([2], dtype=int32)
    """
    how = sampling_of("sample", temperature, top_k, top_p, min_p, typical_p)
    found: Array = jnp.asarray(logits)
    if found.ndim == 0 or found.shape[-1] == 0:
        raise errors.ShapeError(
            f"sample: logits {typeof(found)} must be [..., vocabulary], of at least one token"
        )
    return draw(key, found, how)


def draw(key: Key, logits: Array, how: Sampling) -> Array:
    """`sample`, with its options as one value."""
    if how.temperature == 0:
        token = jnp.argmax(logits, -1)
        return _checked_token(token, take(logits, token))
    scores: Array = jnp.astype(logits, jnp.float32)
    if how.temperature < _SMALL:
        # The quotient alone overflows. Differences below the least temperature are zero.
        scores = scores - jnp.max(scores, -1, keepdims=True)
    scores = scores / max(how.temperature, _LEAST)
    index = None
    if how.top_k is not None and how.top_k < scores.shape[-1]:
        # Largest first, so what follows is about k numbers.
        scores, index = largest(scores, how.top_k)
    best = scores[..., :1]
    if how.top_p is not None:
        if index is None:
            kept = nucleus(scores, how.top_p)
        else:
            p = softmax(scores, -1)
            # A token stays if those more likely than it have not reached p yet.
            kept = jnp.cumsum(p, -1) - p < how.top_p
        scores = jnp.where(kept, scores, -jnp.inf)
    if how.min_p is not None:
        least = jnp.max(scores, -1, keepdims=True) + math.log(how.min_p)
        scores = jnp.where(scores >= least, scores, -jnp.inf)
    if how.typical_p is not None:
        scores = jnp.where(typical(scores, how.typical_p), scores, -jnp.inf)
    token = random.categorical(key, scores)
    if index is None:
        return _checked_token(token, take(scores, token))
    return _checked_token(take(index, token), best[..., 0])


_SMALL = 1e-3  # temperatures below it take care of overflow
_LEAST = 1e-30  # float32 logits that differ at all differ by more than a hundred times that


def take(values: Array, index: Array) -> Array:
    """Of each row of `values` [..., n] the number at `index` [...]."""
    return jnp.take_along_axis(values, index[..., None], -1)[..., 0]


def _checked_token(token: Array, logit: Array) -> Array:
    """Return `token` as int32, and check `logit`, a row's largest or the one drawn: it is NaN in a
    row that has a NaN, which sorting and argmax take for the largest."""
    assert_(logit > -jnp.inf, "sample: the logits are NaN, or all of a row are -inf")
    return jnp.astype(token, jnp.int32)


def nucleus(logits: Array, top_p: float) -> Array:
    """The nucleus of top-p sampling: booleans [..., n] for the fewest most likely of float32 logits
    whose probability reaches p; of equal ones the first."""
    p = softmax(logits, -1)
    kept = _first(logits, p, top_p)
    # Numbers of few bits are often equal, and so far all that equal the least one are kept.
    least = jnp.min(jnp.where(kept, logits, jnp.inf), -1, keepdims=True)
    above = jnp.sum(jnp.where(logits > least, p, 0.0), -1, keepdims=True)
    equal = kept & (logits == least)
    before = jnp.cumsum(equal, -1) - 1
    needed = (before == 0) | (above + jnp.astype(before, jnp.float32) * p < top_p)
    return jnp.where(equal, needed, kept)


def typical(logits: Array, typical_p: float) -> Array:
    """Booleans [..., n] for the fewest of float32 logits whose probability reaches p, taken by the
    distance of their information from the entropy."""
    logp = log_softmax(logits, -1)
    p = jnp.exp(logp)
    # A token that was excluded before has probability 0 and infinite information.
    entropy = -jnp.sum(jnp.where(p > 0, logp * p, 0.0), -1, keepdims=True)
    return _first(-jnp.abs(logp + entropy), p, typical_p)


def _first(order: Array, p: Array, mass: float) -> Array:
    """Booleans [..., n] for the fewest elements, greatest of `order` first, whose `p` reach `mass`.

    Needs no sort: floats order like the integers `ranks`, and the least rank that stays is found by
    a search of 16 branches, four bits at a time, on the probability at or above each candidate.
    """
    bits = bitcast_convert_type(order, jnp.int32)
    ranks = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    least = jnp.full((*order.shape[:-1], 1), -(2**31), jnp.int32)
    for shift in range(28, -1, -4):
        steps = jnp.arange(1, 16, dtype=jnp.int32) * (1 << shift)
        above = ranks[..., None, :] >= (least + steps)[..., None]
        reached = jnp.sum(jnp.where(above, p[..., None, :], 0.0), -1) >= mass
        least = least + jnp.sum(jnp.astype(reached, jnp.int32), -1, keepdims=True) * (1 << shift)
    return ranks >= least
