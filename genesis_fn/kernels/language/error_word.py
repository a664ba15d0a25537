"""The error word: how a kernel reports an index that it could not use.

One 64-bit word of device memory, zero while all is well. A kernel raises it to
`site << 40 | (index & (2**40 - 1))`, where `site` >= 1 names the equation. It is an integer
maximum, so the word does not depend on the order in which programs run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def flag_error(word, bad, index, SITE: tl.constexpr):
    """Raise `word` for the elements of `index` where `bad`; nothing if SITE is 0."""
    if SITE > 0:
        # One atomic for all elements, and none while all is well.
        code = (tl.zeros_like(index).to(tl.int64) + SITE) << 40
        code = code | (index.to(tl.int64) & 0xFFFFFFFFFF)
        worst = tl.max(tl.where(bad, code, 0), 0)
        if worst != 0:
            tl.atomic_max(word, worst, sem="relaxed")


@triton.jit
def flag_error_scalar(word, bad, index, SITE: tl.constexpr):
    """Raise `word` for one scalar `index` if `bad`; nothing if SITE is 0."""
    if SITE > 0:
        if bad:
            code = index.to(tl.int64) & 0xFFFFFFFFFF
            tl.atomic_max(word, code + (SITE << 40), sem="relaxed")
