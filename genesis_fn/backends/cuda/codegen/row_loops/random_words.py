"""The text of random words: of the generators that keys name, under the key k0, k1."""

from __future__ import annotations

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def philox_lines(counter: tuple[str, str, str, str]) -> list[str]:
    """w0 .. w3: the block of Philox-4x32-10 at a counter of four words, under the key k0, k1."""
    named = ", ".join([f"({c}).to(tl.uint32)" for c in counter])
    return [f"w0, w1, w2, w3 = tl.philox_impl({named}, k0, k1, 10)"]


def threefry_lines(x0: str, x1: str) -> list[str]:
    """(w0, w1): Threefry-2x32-20 of the counter (x0, x1) under the key k0, k1."""
    lines = [
        "k2 = k0 ^ k1 ^ tl.full((), 0x1BD11BDA, tl.uint32)",
        f"w0 = ({x0}).to(tl.uint32) + k0",
        f"w1 = ({x1}).to(tl.uint32) + k1",
    ]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            lines += ["w0 = w0 + w1", f"w1 = ((w1 << {r}) | (w1 >> {32 - r})) ^ w0"]
        lines += [
            f"w0 = w0 + k{(i + 1) % 3}",
            f"w1 = w1 + k{(i + 2) % 3} + tl.full((), {i + 1}, tl.uint32)",
        ]
    return lines
