"""The three forms of a convolution, by which libraries have routines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

Form: TypeAlias = Literal["output", "image", "filter"]


def form_of(gaps: Sequence[int], taps: Sequence[int], positions: Sequence[int]) -> Form:
    """What a convolution is: an output, or the gradient of an image, which has gaps between the
    elements of its left operand, or that of a filter, whose taps are more than its positions."""
    if max(gaps, default=1) > 1:
        return "image"
    return "filter" if math.prod(taps) > math.prod(positions) else "output"
