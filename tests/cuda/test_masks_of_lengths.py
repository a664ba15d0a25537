"""Attention of few queries against a cache: masks that are lengths become those, with the numbers
of JAX and of the softmax that is written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as xnp
import numpy as np
import programs
import pytest

import genesis_fn.numpy as gnp
from genesis_fn import lax, nn
from genesis_fn.backends.cuda.lower.steps import keeps_fused
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.attention.rewrite import fuse_attention
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.jaxpr import Jaxpr, e_jaxprs
from genesis_fn.kernels.plan import Launch
from genesis_fn.transforms.control_flow.scanning import scan_p

B, S, N, KV, D = 3, 37, 4, 2, 16
KEEPS = keeps_fused(H200)
SMALL, LARGE = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def operands(queries: int = 1) -> list[np.ndarray]:
    return [drawn(B, queries, N, D), drawn(B, S, KV, D, seed=1), drawn(B, S, KV, D, seed=2)]


def attended(mask_of: Callable[[Any, Any], Any], xp: Any, attention: Any) -> Callable[..., Any]:
    return lambda q, k, v, at: attention(q, k, v, mask=mask_of(xp, at))


def optional_operands(jaxpr: Jaxpr) -> list[tuple[bool, ...]]:
    """What each attention of a program has: bias, mask, lengths, segments."""
    found = []
    for e in jaxpr.eqns:
        if "op" in e.params and e.params["op"].name == "attention":
            found.append(dict(e.params["static"])["has"][:3])
        elif e.prim is scan_p:
            found += [x for inner in e_jaxprs(e) for x in optional_operands(inner)]
    return found


def after_the_pass(f: Callable[..., Any], *args: Any) -> list[tuple[bool, ...]]:
    program, _ = programs.traced(f, *args)
    return optional_operands(fuse_attention(simplify_jaxpr(program, KEEPS), KEEPS))


def kernels(steps: Sequence[Any]) -> list[str]:
    """The names of the kernels that steps launch."""
    found = []
    for step in steps:
        if isinstance(step, SubProgram):
            found += kernels(step.steps)
        elif isinstance(step, Launch):
            found.append(getattr(step.kernel, "__name__", ""))
    return found


# Masks [B or 1, 1, 1, S] of a counter, or of one counter for each batch entry.
LENGTHS = {
    "at most": lambda xp, at: (xp.arange(S) <= at)[None, None, None],
    "below": lambda xp, at: (xp.arange(S) < at)[None, None, None],
    "the other side": lambda xp, at: at > xp.arange(S)[None, None, None],
    "not above": lambda xp, at: ~(xp.arange(S) > at)[None, None],
    "from one": lambda xp, at: xp.arange(1, S + 1)[None, :] <= at,
    "both": lambda xp, at: (xp.arange(S) <= at) & (xp.arange(S) < 30),
    "two": lambda xp, at: (xp.arange(S) <= at) & (xp.arange(S) < at + 2),
    "broadcast": lambda xp, at: xp.broadcast_to(xp.arange(S) <= at, (B, 1, 1, S)),
}
ENTRIES = {
    "entries": lambda xp, at: xp.arange(S)[None, None, None] < at[:, None, None, None],
    "entries, not above": lambda xp, at: (
        ~(at.reshape(B, 1, 1, 1) <= xp.arange(S, dtype=xp.int32).reshape(1, 1, 1, S))
    ),
}
OTHERS = {
    "from a key on": lambda xp, at: (xp.arange(S) >= at)[None, None, None],
    "in steps": lambda xp, at: 2 * xp.arange(S) <= at,
    "given": lambda xp, at: xp.arange(S) % 3 != at,
    "of floats": lambda xp, at: xp.arange(S, dtype=xp.float32) <= at.astype(xp.float32),
    "either": lambda xp, at: (xp.arange(S) <= at) | (xp.arange(S) > 30),
    "of heads": lambda xp, at: xp.arange(S) <= at + xp.arange(N)[:, None, None],
}


@pytest.mark.parametrize("at", [0, 5, S - 1, S + 3, -1, SMALL, LARGE])
@pytest.mark.parametrize("name", LENGTHS)
def test_a_comparison_with_a_counter_is_a_length(name: str, at: int) -> None:
    f = attended(LENGTHS[name], gnp, nn.dot_product_attention)
    args = (*operands(), np.int32(at))
    if name != "both":  # the constant part is known, and no comparison is left
        assert after_the_pass(f, *args) == [(False, False, True)]
    executable = programs.compare(f, *args)
    assert "attention_vector_kernel" in kernels(executable.schedule.steps)


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_of_a_batch_have_lengths_of_their_own(name: str) -> None:
    f = attended(ENTRIES[name], gnp, nn.dot_product_attention)
    for at in ([0, 4, S], [LARGE, SMALL, 1]):
        args = (*operands(), np.asarray(at, np.int32))
        assert after_the_pass(f, *args) == [(False, False, True)]
        programs.compare(f, *args)


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay(name: str) -> None:
    f = attended(OTHERS[name], gnp, nn.dot_product_attention)
    args = (*operands(), np.int32(9))
    assert after_the_pass(f, *args) == [(False, True, False)]
    programs.compare(f, *args)


def test_a_bias_stays_beside_the_length() -> None:
    def f(q: Any, k: Any, v: Any, bias: Any, at: Any) -> Any:
        return nn.dot_product_attention(q, k, v, bias, (gnp.arange(S) <= at)[None])

    args = (*operands(), drawn(1, N, 1, S, seed=3), np.int32(20))
    assert after_the_pass(f, *args) == [(True, False, True)]
    programs.compare(f, *args)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 5])
def test_few_queries_have_jax_s_numbers(queries: int, dtype: str) -> None:
    q, k, v = operands(queries)
    bias, mask = drawn(1, N, queries, S, seed=4), drawn(B, 1, queries, S, seed=5) > 0.0
    for options in (
        {},
        {"bias": bias},
        {"mask": mask},
        {"is_causal": True},
        {"mask": mask[..., :1]},
    ):
        numbers = {n: x for n, x in options.items() if not isinstance(x, bool)}
        flags = {n: x for n, x in options.items() if isinstance(x, bool)}

        def f(q: Any, k: Any, v: Any, more: Any, flags: Any = flags) -> Any:
            q, k, v = [x.astype(dtype) for x in (q, k, v)]
            return nn.dot_product_attention(q, k, v, **more, **flags).astype(gnp.float32)

        jaxpr, inputs = programs.traced(f, q, k, v, numbers)
        executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
        (found,) = executable(*[programs.put(x) for x in inputs])
        wide = [xnp.asarray(x).astype(dtype) for x in (q, k, v)]
        wanted = jax.nn.dot_product_attention(*wide, **numbers, **flags).astype(xnp.float32)
        # Ten rows of a key head are multiplied by tensor cores.
        tolerance = 2e-2 if dtype == "bfloat16" else 2e-5 if queries == 1 else 4e-3
        np.testing.assert_allclose(programs.get(found), wanted, rtol=tolerance, atol=tolerance)


def test_decoding_in_a_loop_reads_no_key_that_is_not_there_yet() -> None:
    # What lies behind the counter is not a number: a mask would multiply it by zero.
    def f(q: Any, keys: Any, values: Any, new: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            (keys, values), (at, k, v, q) = carry, now
            keys = lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
            values = lax.dynamic_update_slice(values, v, (0, at, 0, 0))
            seen = (gnp.arange(S) <= at)[None, None, None, :]
            return (keys, values), nn.dot_product_attention(q, keys, values, mask=seen)

        return lax.scan(step, (keys, values), (gnp.arange(4), *new, q))[1]

    q, k, v = drawn(4, B, 1, N, D), drawn(4, B, 1, KV, D, seed=1), drawn(4, B, 1, KV, D, seed=2)
    empty = np.full((B, S, KV, D), np.nan, np.float32)
    assert after_the_pass(f, q, empty, empty, (k, v)) == [(False, False, True)]
    jaxpr, inputs = programs.traced(f, q, empty, empty, (k, v))
    (found,) = programs.compile_jaxpr(jaxpr, programs.PLACE)(*[programs.put(x) for x in inputs])
    for at in range(4):
        keys, values = [np.repeat(x[: at + 1, :, 0], N // KV, 2) for x in (k, v)]
        scores = np.einsum("bnd,sbnd->bns", q[at, :, 0], keys) / np.sqrt(D)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        wanted = np.einsum("bns,sbnd->bnd", weights, values)
        np.testing.assert_allclose(programs.get(found)[at, :, 0], wanted, rtol=2e-5, atol=2e-5)
