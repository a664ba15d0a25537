"""The text of random words: of the generators that keys name, under the key k0, k1."""

from __future__ import annotations


def philox_lines(counter: tuple[str, str, str, str]) -> list[str]:
    """w0 .. w3: the block of Philox-4x32-10 at a counter of four words, under the key k0, k1."""
    named = ", ".join([f"({c}).to(tl.uint32)" for c in counter])
    return [f"w0, w1, w2, w3 = tl.philox_impl({named}, k0, k1, 10)"]


def threefry_lines(x0: str, x1: str) -> list[str]:
    """(w0, w1): Threefry-2x32-20 of the counter (x0, x1) under the key k0, k1."""
    return [f"w0, w1 = threefry({x0}, {x1}, k0, k1)"]
