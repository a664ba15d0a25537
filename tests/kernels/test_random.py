"""Philox random bits against the Random123 known answers and a NumPy implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from genesis_fn.kernels.plan import BufferArg, Launch, Plan
from genesis_fn.kernels.random import RandomBits, philox_block, plan_random_bits
from tests.kernels.run import TARGET, run_plan


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x32-10 in plain integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & 0xFFFFFFFF, p >> 32 ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


# kat_vectors of Random123: philox4x32 10 <counter> <key> <result>.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@triton.jit
def _block_kernel(state, out):
    c0, c1 = tl.load(state), tl.load(state + 1)
    c2, c3 = tl.load(state + 2), tl.load(state + 3)
    a, b, c, d = tl.philox_impl(c0, c1, c2, c3, tl.load(state + 4), tl.load(state + 5), 10)
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert tuple(philox(list(counter), list(key))) == answer
    state = torch.from_numpy(np.array([*counter, *key], np.uint32))
    out = torch.zeros(4, dtype=torch.uint32)
    pointers = {"state": BufferArg(0, "u32"), "out": BufferArg(1, "u32")}
    run_plan(Plan(1, 1, (Launch(_block_kernel, (1, 1, 1), pointers),)), [state], [out])
    assert tuple(out.tolist()) == answer


def stream(key: list[int], words: int) -> np.ndarray:
    blocks = [philox([i, 0, 0, 0], key) for i in range(-(-words // 4))]
    return np.array(blocks, np.uint32).reshape(-1)[:words]


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("count", [1, 7, 1030])
def test_bits_are_the_words_of_each_keys_stream(width, count):
    keys = np.array([[0, 0], [123, 456], [0xFFFFFFFF, 1]], np.uint32)
    dtype = getattr(torch, f"uint{width}")
    out = torch.zeros(3, count, dtype=dtype)
    run_plan(plan_random_bits(RandomBits(3, count, width), TARGET), [torch.from_numpy(keys)], [out])
    for key, got in zip(keys.tolist(), out.numpy(), strict=True):
        words = stream(key, 2 * count if width == 64 else count)
        want = words.view(np.uint64) if width == 64 else words.astype(got.dtype)
        np.testing.assert_array_equal(got, want)


@triton.jit
def _blocks_kernel(keys, out, START: tl.constexpr):
    zero = tl.zeros((16,), tl.uint32)
    counter = START + tl.arange(0, 16).to(tl.int64)
    words = philox_block(zero + tl.load(keys), zero + tl.load(keys + 1), counter)
    for i in tl.static_range(4):
        tl.store(out + 4 * tl.arange(0, 16) + i, words[i])


@pytest.mark.parametrize("start", [0, 2**32 + 1])
def test_blocks_count_beyond_32_bits(start):
    key = [77, 88]
    out = torch.zeros(64, dtype=torch.uint32)
    pointers = {"keys": BufferArg(0, "u32"), "out": BufferArg(1, "u32")}
    step = Launch(_blocks_kernel, (1, 1, 1), pointers, {"START": start})
    run_plan(Plan(1, 1, (step,)), [torch.from_numpy(np.array(key, np.uint32))], [out])
    want = []
    for i in range(start, start + 16):
        want += list(philox([i & 0xFFFFFFFF, i >> 32, 0, 0], key))
    assert out.tolist() == want
