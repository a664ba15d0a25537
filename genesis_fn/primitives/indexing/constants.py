"""Integers that are part of a program: indices that are known when it is traced.

A captured array is an input, of whose values a compiler knows nothing. What is indexed by known
integers is a slice, or a scatter that need not be sorted (`compiler/rewrites/known_indices.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive, bind, no_flops
from genesis_fn.core.types.annotations import Array
from genesis_fn.primitives.factories import PRIM, no_tangent

MOST_CONSTANTS = 1 << 20  # elements; a program keeps them for as long as it lives


@dataclass(frozen=True)
class ConstantNumbers:
    """The values of an array of integers or booleans, which are compared when parameters are."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes

    @functools.cached_property
    def array(self) -> np.ndarray:
        """The values, which cannot be written to."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}{[*self.shape]}"


def constant_numbers(values: np.ndarray) -> ConstantNumbers:
    """The values of an ndarray as a parameter."""
    return ConstantNumbers(dtypes.dtype(values.dtype), values.shape, values.tobytes())


def _constant_shape(*, numbers: ConstantNumbers) -> Aval:
    return aval(numbers.shape, numbers.dtype)


constant_p = Primitive("constant", _constant_shape, flops=no_flops)
constant_p.linearize = no_tangent(constant_p)
constant_p.batch = lambda size, xs, dims, /, **params: (bind(constant_p, **params), None)
PRIM["constant"] = constant_p


def constant(values: np.ndarray) -> Array:
    """Integers or booleans as an array that a program holds."""
    return bind(constant_p, numbers=constant_numbers(values))
