"""Random bits and key hashes, bit-equal to the CPU's: one lane for each word of a stream."""

from __future__ import annotations

import math

from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.codegen.row_loops.random_words import philox_lines, threefry_lines
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv
from genesis_fn.kernels.random import RandomBits, plan_random_bits
from genesis_fn.primitives.random_bits import key_hash_p, random_bits_p


def _key_lines(row: str) -> list[str]:
    return [
        f"k0 = tl.load(keys + ({row}) * 2, inside, other=0)",
        f"k1 = tl.load(keys + ({row}) * 2 + 1, inside, other=0)",
    ]


@lowers(random_bits_p)
def _random_bits(call: Call) -> Lowered:
    width, count = call.params["width"], math.prod(call.params["shape"])
    builder = PlanBuilder(1, 1)
    if call.out.size == 0:
        return builder.build()
    keys = call.out.size // count
    if call.params["impl"] == "philox":
        return _philox_bits(call, builder, keys, count, width)
    lines = [
        f"row = i // {count}",
        f"e = (i % {count}).to(tl.int64)",
        *_key_lines("row"),
        *threefry_lines("e >> 32", "e & 0xFFFFFFFF"),
    ]
    if width == 64:
        value = "(w0.to(tl.uint64) << 32) | w1.to(tl.uint64)"
    else:
        value = f"(w0 ^ w1).to(tl.uint{width})"
    lines.append(f"tl.store(y + i, {value}, inside)")
    buffers = {"keys": call.read(0), "y": call.write()}
    add_elements(builder, "threefry_bits", buffers, call.out.size, lines)
    return builder.build()


def _philox_bits(call: Call, builder: PlanBuilder, keys: int, count: int, width: int) -> Lowered:
    """Elements of 8 and 16 bits: one lane for each block of four words, read as memory."""
    if width >= 32:
        return plan_random_bits(RandomBits(keys, count, width), call.target)
    blocks = cdiv(count * width, 128)
    lines = [
        f"row = i // {blocks}",
        f"b = (i % {blocks}).to(tl.int64)",
        *_key_lines("row"),
        *philox_lines(("b & 0xFFFFFFFF", "b >> 32", "b * 0", "b * 0")),
        f"first = row.to(tl.int64) * {count}",
    ]
    per = 128 // width
    for j in range(per):
        word, shift = divmod(j * width, 32)
        value = f"(w{word} >> {shift}).to(tl.uint{width})"
        lines.append(f"e{j} = b * {per} + {j}")
        lines.append(f"tl.store(y + first + e{j}, {value}, inside & (e{j} < {count}))")
    buffers = {"keys": call.read(0), "y": call.write()}
    add_elements(
        builder, "philox_bits", buffers, keys * blocks, lines, wide=call.out.size > INT32_MAX
    )
    return builder.build()


@lowers(key_hash_p)
def _key_hash(call: Call) -> Lowered:
    key, data = call.operands
    per_key = math.prod(data.shape[key.ndim - 1 :])
    builder = PlanBuilder(2, 1)
    lines = [*_key_lines(f"i // {max(per_key, 1)}"), "d = tl.load(data + i, inside, other=0)"]
    if call.params["impl"] == "philox":
        lines += philox_lines(("d", "d * 0", "d * 0", f"d * 0 + {call.params['tag']}"))
    else:
        lines += threefry_lines("d * 0", "d")
    lines += ["tl.store(y + i * 2, w0, inside)", "tl.store(y + i * 2 + 1, w1, inside)"]
    buffers = {"keys": call.read(0), "data": call.read(1), "y": call.write()}
    add_elements(builder, "key_hash", buffers, data.size, lines)
    return builder.build()
