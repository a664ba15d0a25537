"""Random bits by Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers").

Word i of a key's stream is philox(counter=i // 4, key)[i % 4]: elementwise in (key, i), and every
word of a block is used. A 64-bit value takes words 2i (low half) and 2i + 1; 8- and 16-bit values
take the low bits of word i.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder, cdiv, next_power_of_two

WIDTHS = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class RandomBits:
    """`count` values of `width` bits for each of `keys` keys."""

    keys: int
    count: int
    width: int = 32

    def __post_init__(self) -> None:
        if self.width not in WIDTHS:
            raise ValueError(f"random bits come in widths {WIDTHS}, not {self.width}")


@triton.jit
def philox_block(key0, key1, counter):
    """The four 32-bit words of Philox-4x32-10 at a 64-bit counter (its upper half is zero)."""
    low = counter.to(tl.uint32)
    high = (counter.to(tl.uint64) >> 32).to(tl.uint32)
    return tl.philox_impl(low, high, low * 0, low * 0, key0, key1, 10)


@triton.jit
def random_bits_kernel(keys, out, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Philox words of each key [keys, 2] into rows of WORDS, four to a counter."""
    ACROSS: tl.constexpr = (WORDS + 4 * BLOCK - 1) // (4 * BLOCK)
    row = (tl.program_id(0) // ACROSS).to(tl.int64)
    key0 = tl.load(keys + 2 * row)
    key1 = tl.load(keys + 2 * row + 1)
    # The counter of a word is its position in the row, whatever the tiles: streams do not depend on
    # the launch.
    first = (tl.program_id(0) % ACROSS).to(tl.int64) * BLOCK
    zero = tl.zeros((BLOCK,), tl.uint32)
    a, b, c, d = philox_block(zero + key0, zero + key1, first + tl.arange(0, BLOCK))
    # Interleaved in registers, so that a thread's four words are one 16-byte store.
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (4 * BLOCK,))
    at = 4 * first + tl.arange(0, 4 * BLOCK)
    tl.store(out + row * WORDS + at, words.to(out.dtype.element_ty), at < WORDS)


def plan_random_bits(spec: RandomBits, target: Target) -> Plan:
    """keys (u32 [keys, 2]) -> bits (unsigned, `width` wide, [keys, count])."""
    builder = PlanBuilder(1, 1)
    words = spec.count * (2 if spec.width == 64 else 1)
    block = min(256, next_power_of_two(cdiv(words, 4)))
    builder.launch(
        random_bits_kernel,
        (cdiv(words, 4 * block) * spec.keys,),
        # A little-endian 64-bit value is its two words in order.
        {"keys": BufferArg(0, "u32"), "out": BufferArg(1, f"u{min(spec.width, 32)}")},
        {"WORDS": words, "BLOCK": block},
    )
    return builder.build()
