"""How a contraction is computed, said by a `DotAlgorithm` or a preset of them."""

from __future__ import annotations

import enum
import functools
from typing import Any, NamedTuple

from genesis_fn.core import dtypes, errors
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import typeof
from genesis_fn.core.types.annotations import DTypeLike
from genesis_fn.primitives.elementwise import convert


class DotAlgorithm(NamedTuple):
    """The types that a contraction rounds its operands to and sums in, for `precision=`.

    The result has the operands' dtype, or `preferred_element_type`. Sums are at least as precise
    as `accumulation_type`. More than one primitive operation, which stands for wider operands that
    are cut into parts, is known of bfloat16 (3, 6 or 9) alone.

    * `lhs_precision_type`, `rhs_precision_type`: what the operands are rounded to.
    * `accumulation_type`: what products are summed in.
    * `lhs_component_count`, `rhs_component_count`, `num_primitive_operations`: parts of the
      operands and how many products of them are summed.
    * `allow_imprecise_accumulation`: nothing here sums less precisely for it.

    >>> to_float16 = lax.DotAlgorithm("float16", "float16", "float32")
    >>> lax.dot(jnp.array([0.1, 1.0]), jnp.array([1.0, 0.0]), precision=to_float16)
    Array(0.09997559, dtype=float32)
    """

    lhs_precision_type: DTypeLike
    rhs_precision_type: DTypeLike
    accumulation_type: DTypeLike
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class DotAlgorithmPreset(enum.Enum):
    """Algorithms of contractions by name: operand types and the type of sums, for `precision=`.

    `X3`, `X6` and `X9` compute float32 operands by 3, 6 or 9 products of narrower parts: here by
    three of TF32, or in float32 itself. A name as a string does the same. Operands that a preset
    does not take are converted, but those that ask for 8-bit floats refuse others.

    >>> lax.dot(jnp.array([0.1]), jnp.ones(1), precision=lax.DotAlgorithmPreset.BF16_BF16_F32)
    Array(0.10009766, dtype=float32)
    """

    DEFAULT = 1
    ANY_F8_ANY_F8_F32 = 2
    ANY_F8_ANY_F8_F32_FAST_ACCUM = 3
    ANY_F8_ANY_F8_ANY = 4
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = 5
    F16_F16_F16 = 6
    F16_F16_F32 = 7
    BF16_BF16_BF16 = 8
    BF16_BF16_F32 = 9
    BF16_BF16_F32_X3 = 10
    BF16_BF16_F32_X6 = 11
    BF16_BF16_F32_X9 = 12
    TF32_TF32_F32 = 13
    TF32_TF32_F32_X3 = 14
    F32_F32_F32 = 15
    F64_F64_F64 = 16

    def __repr__(self) -> str:
        return f"DotAlgorithmPreset.{self.name}"

    def __str__(self) -> str:
        return self.name


class _Plan(NamedTuple):
    """What an algorithm is here."""

    operands: tuple[DType, DType] | None  # what they are rounded to; None: as they are
    sums: DType | None  # None: as operands of the dtypes have it
    precision: str | None  # how float32 is multiplied; None: the setting's


_P = DotAlgorithmPreset
_F8 = (
    _P.ANY_F8_ANY_F8_F32, _P.ANY_F8_ANY_F8_F32_FAST_ACCUM, _P.ANY_F8_ANY_F8_ANY,
    _P.ANY_F8_ANY_F8_ANY_FAST_ACCUM,
)  # fmt: skip


def _of(operand: DType, sums: DType, precision: str | None = None) -> _Plan:
    return _Plan((operand, operand), sums, precision)


_PLANS: dict[Any, _Plan] = {
    _P.DEFAULT: _Plan(None, None, "default"),
    **dict.fromkeys(_F8[:2], _Plan(None, dtypes.F32, None)),
    **dict.fromkeys(_F8[2:], _Plan(None, None, None)),
    _P.F16_F16_F16: _of(dtypes.F16, dtypes.F16), _P.F16_F16_F32: _of(dtypes.F16, dtypes.F32),
    _P.BF16_BF16_BF16: _of(dtypes.BF16, dtypes.BF16),
    _P.BF16_BF16_F32: _of(dtypes.BF16, dtypes.F32),
    _P.BF16_BF16_F32_X3: _of(dtypes.F32, dtypes.F32, "tf32x3"),
    _P.BF16_BF16_F32_X6: _of(dtypes.F32, dtypes.F32, "highest"),
    _P.BF16_BF16_F32_X9: _of(dtypes.F32, dtypes.F32, "highest"),
    _P.TF32_TF32_F32: _of(dtypes.F32, dtypes.F32, "tf32"),
    _P.TF32_TF32_F32_X3: _of(dtypes.F32, dtypes.F32, "tf32x3"),
    _P.F32_F32_F32: _of(dtypes.F32, dtypes.F32, "highest"),
    _P.F64_F64_F64: _of(dtypes.F64, dtypes.F64),
}  # fmt: skip
# How often bfloat16 is multiplied in place of float32.
_PARTS = {3: _P.BF16_BF16_F32_X3, 6: _P.BF16_BF16_F32_X6, 9: _P.BF16_BF16_F32_X9}


def named_algorithm(precision: Any) -> DotAlgorithm | DotAlgorithmPreset | None:
    """The algorithm that `precision` is, or names; None for any other precision."""
    if isinstance(precision, str):
        return DotAlgorithmPreset.__members__.get(precision) if precision.isupper() else None
    return precision if isinstance(precision, (DotAlgorithm, DotAlgorithmPreset)) else None


def prepared(
    algorithm: DotAlgorithm | DotAlgorithmPreset, x: Any, y: Any
) -> tuple[Any, Any, str | None, DType | None]:
    """The operands that a contraction by `algorithm` multiplies, how float32 ones are, and the
    dtype that it has to be asked for.

    Raises:
        ValueError: nothing here computes it, or it does not take these operands.
    """
    kinds = typeof(x).dtype, typeof(y).dtype
    if algorithm in _F8 and not all(d.itemsize == 1 and dtypes.is_float(d) for d in kinds):
        raise errors.ArgumentError(
            f"The dot algorithm '{algorithm}' takes 8-bit floats, got {typeof(x)} and {typeof(y)}; "
            "convert them with .astype(...), or use another one"
        )
    plan = _PLANS[algorithm] if isinstance(algorithm, _P) else _plan(algorithm)
    if plan.operands is None:
        return x, y, plan.precision, plan.sums
    if any(map(dtypes.is_complex, kinds)):
        raise errors.ArgumentError(
            f"The dot algorithm '{algorithm}' takes real operands, got {typeof(x)} and {typeof(y)}"
        )
    x, y = [v if d == to else convert(v, to) for v, d, to in zip((x, y), kinds, plan.operands)]
    return x, y, plan.precision, plan.sums


@functools.cache
def _plan(algorithm: DotAlgorithm) -> _Plan:
    """What an algorithm of one's own is."""
    left, right, sums = [dtypes.dtype(d) for d in algorithm[:3]]
    parts = algorithm[3:6]
    if left == right == dtypes.BF16 and sums == dtypes.F32 and parts[2] in _PARTS:
        return _PLANS[_PARTS[parts[2]]]
    wide = max(left.itemsize, right.itemsize)
    if (
        parts != (1, 1, 1)
        or not all(map(dtypes.is_float, (left, right, sums)))
        or sums.itemsize < wide
    ):
        raise errors.ArgumentError(
            f"The dot algorithm '{algorithm}' is none of the library's: it computes floats in one "
            "primitive operation, summed in their type or a wider one, and bfloat16 in 3, 6 or 9; "
            "lax.DotAlgorithmPreset lists those that have names"
        )
    return _Plan((left, right), sums, "highest" if dtypes.F32 in (left, right) else None)
