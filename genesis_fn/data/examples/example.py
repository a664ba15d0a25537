"""An example: tokens, and which of them the loss counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Example(NamedTuple):
    """Tokens, and which of them are learned.

    Args:
        tokens: int32 [n].
        counted: bool [n]: whether the token is a target of the loss. That of the first has no
            effect, as nothing precedes it.
        cut: tokens that were cut off its end.

    >>> Example(np.array([5, 6, 7], np.int32), np.array([False, True, True])).tokens.size
    3
    """

    tokens: np.ndarray
    counted: np.ndarray
    cut: int = 0
