"""The three forms of a convolution, by which libraries have routines, and one that has its filter
as the routine for the gradient of an image reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from genesis_fn.core.primitive import Primitive
from genesis_fn.primitives.conv import conv_p

Form: TypeAlias = Literal["output", "image", "filter"]


def form_of(gaps: Sequence[int], taps: Sequence[int], positions: Sequence[int]) -> Form:
    """What a convolution is: an output, or the gradient of an image, which has gaps between the
    elements of its left operand, or that of a filter, whose taps are more than its positions."""
    if max(gaps, default=1) > 1:
        return "image"
    return "filter" if math.prod(taps) > math.prod(positions) else "output"


turned_conv_p = Primitive("turned_conv", conv_p.shape, flops=conv_p.flops, listed=False)
"""A convolution whose taps are in reversed order in memory: the gradient of an image, whose filter
a library reads as the convolution itself does, so that nothing turns it twice."""
