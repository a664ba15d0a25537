"""Extended data types: an element is more than one number. Random keys are the only ones.

An array of keys has the shape that its keys have; in memory each key is `WORDS` uint32 words, along
one more axis at the end. Programs are compiled, and backends see them, in that physical form
(`transforms/keys/words.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

WORDS = 2  # of a key of any implementation
IMPLEMENTATIONS = ("philox", "threefry2x32")
# JAX's names. Its "rbg" are of the device's fast generator, whose numbers it does not fix.
OTHER_NAMES = {"threefry": "threefry2x32", "rbg": "philox", "unsafe_rbg": "philox"}


class extended(np.generic):
    """What `issubdtype` finds every extended dtype below."""


class prng_key(extended):
    """What `issubdtype` finds the dtypes of random keys below."""


class KeyType:
    """The dtype of random keys of one implementation, `key<philox>`; one object for each."""

    __slots__ = ("impl", "name")

    kind = "V"  # NumPy's letter for what is opaque
    itemsize = 4 * WORDS
    type = prng_key
    # x[index] of keys, which is a derivation for a single key; `random/` puts the function here.
    index: ClassVar[Callable[[Any, Any], Any] | None] = None

    def __init__(self, impl: str) -> None:
        self.impl, self.name = impl, f"key<{impl}>"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return key_type, (self.impl,)


KEY_TYPES = {impl: KeyType(impl) for impl in IMPLEMENTATIONS}


def key_type(impl: str) -> KeyType:
    """The dtype of keys of an implementation. Raises KeyError for a name that is none."""
    return KEY_TYPES[impl]


def is_key(dtype: object) -> bool:
    """Whether `dtype` is that of random keys."""
    return type(dtype) is KeyType
