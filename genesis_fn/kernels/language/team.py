"""Where programs of one launch wait for each other: the launch must be a cooperative one."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meet(arrived, everybody, word, SITE: tl.constexpr, POLLS: tl.constexpr):
    """Wait until `arrived`, which counts those that came here, is `everybody`: what each of them
    wrote before is then seen by all.

    After POLLS looks at it (about 0.7 us each) a program gives up: it raises the error word, and
    lets all others through.
    """
    # All threads have written what they had to before one of them says so.
    tl.debug_barrier()
    here = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu") + 1
    polls = 0
    while (here < everybody) & (polls < POLLS):
        tl.debug_barrier()
        here = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
        polls += 1
    if here < everybody:
        tl.atomic_max(arrived, 1 << 62, sem="relaxed")
        tl.atomic_max(word, SITE << 40, sem="relaxed")
    tl.debug_barrier()
