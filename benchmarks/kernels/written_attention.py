"""Attention that is written out, by the library's kernels and without: milliseconds on a GPU.

python -m benchmarks.kernels.written_attention
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import genesis_fn as g
import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.compiler import options

SIZES = [
    (64, 32, 12, 64), (32, 128, 12, 64), (16, 256, 12, 64), (8, 1024, 12, 64), (2, 2048, 16, 128),
    (2, 1000, 12, 80),
]  # fmt: skip


def attention(kind: str, q: Any, k: Any, v: Any, extra: Any) -> Any:
    """softmax(mask(q k^T / sqrt(d))) v of [batch, time, heads, d], the softmax in float32."""
    t = q.shape[1]
    s = jnp.einsum("bthd,bshd->bhts", q, k).astype("float32") / math.sqrt(q.shape[-1])
    if kind == "causal":
        s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9)
    elif kind == "padding":
        s = jnp.where(extra[:, None, None], s, -1e9)
    else:
        s = s + extra
    return jnp.einsum("bhts,bshd->bthd", nn.softmax(s, -1).astype(v.dtype), v)


def loss(kind: str, *xs: Any) -> Any:
    return jnp.sum(attention(kind, *xs).astype("float32") ** 2)


def milliseconds(f: Any, args: list[Any], count: int = 20) -> float:
    """The fastest of three rounds, of a call."""
    jitted = g.jit(f)
    g.block_until_ready(jitted(*args))
    rounds = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(count):
            out = jitted(*args)
        g.block_until_ready(out)
        rounds.append((time.perf_counter() - begin) / count * 1e3)
    return min(rounds)


def main() -> None:
    key = g.random.key(0)
    print("dtype, (batch, time, heads, d), mask: forward without -> with, with gradients likewise")
    for dtype in ("bfloat16", "float32"):
        for b, t, h, d in SIZES:
            draw = lambda n: g.random.normal(g.random.fold_in(key, n), (b, t, h, d)).astype(dtype)
            extras = {
                "causal": jnp.zeros(()),
                "padding": g.random.normal(g.random.fold_in(key, 3), (b, t)) > -1,
                "bias": g.random.normal(g.random.fold_in(key, 4), (h, t, t)),
            }
            for kind, extra in extras.items():
                args = [draw(0), draw(1), draw(2), extra]
                by = (0, 1, 2, 3) if kind == "bias" else (0, 1, 2)
                found = []
                for f in (attention, g.value_and_grad(loss, argnums=tuple([n + 1 for n in by]))):
                    with options.without("attention"):
                        found.append(milliseconds(functools.partial(f, kind), args))
                    found.append(milliseconds(functools.partial(f, kind), args))
                print(
                    f"{dtype} {(b, t, h, d)} {kind}: {found[0]:.3f} -> {found[1]:.3f} ms, "
                    f"{found[2]:.3f} -> {found[3]:.3f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
