"""Random numbers by a counter: the draw of a number depends on (seed, number) only."""

from __future__ import annotations

import numpy as np

_MASK = (1 << 64) - 1


def draw(seed: int, number: int) -> int:
    """A random integer of 64 bits.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (SplitMix64), 2014.
    """
    return _mixed(_mixed(seed) + number * 0x9E3779B97F4A7C15)


def below(limit: int, seed: int, number: int) -> int:
    """A random integer from 0 to `limit` - 1."""
    return (draw(seed, number) * limit) >> 64


def permutation(count: int, seed: int, number: int) -> list[int]:
    """0 ... count - 1 in a random order."""
    generator = np.random.Generator(np.random.Philox(key=[seed & _MASK, number]))
    return generator.permutation(count).tolist()


def _mixed(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
