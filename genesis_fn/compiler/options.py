"""Which optional passes of the compiler run: all, but for those that are switched off.

`GENESIS_COMPILER_WITHOUT=in_place,epilogues` in the environment, or `with without("epilogues"):`,
switches passes off, to see what each is worth. What is compiled already stays as it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

PASSES = {
    "horizontal": "launches that do not wait for each other become one",
    "row_column_reduce": "one kernel reduces rows and columns",
    "split_rows": "rows are cut where concatenations cut them, flat kernels where rows begin",
    "products": "products of few rows make their left operand and finish their result themselves",
    "in_place": "updates of part of an array overwrite it where it is not needed any more",
    "segments": "a sum of matrix products is one product with several pairs of operands",
    "epilogues": "what alone reads a matrix product is done to its tiles before they are stored",
    "grouped": "matrix products with too few tiles to fill the machine share launches",
}


def _checked(names: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        if name not in PASSES:
            raise ValueError(f"the compiler has no pass {name!r}; it has {', '.join(PASSES)}")
    return frozenset(names)


_named = os.environ.get("GENESIS_COMPILER_WITHOUT", "").replace(" ", "")
_off = _checked(tuple([name for name in _named.split(",") if name]))


def enabled(name: str) -> bool:
    """Whether pass `name` runs."""
    return name not in _off


@contextlib.contextmanager
def without(*names: str) -> Generator[None]:
    """What is compiled inside is compiled without these passes. Not for several threads at once."""
    global _off
    before = _off
    _off = before | _checked(names)
    try:
        yield
    finally:
        _off = before
