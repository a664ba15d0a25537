"""Elementwise primitives as Triton text, over the functions of `language` and `device_functions`.

Nothing here imports Triton, so that a program whose kernels are all in the cache never does.

Values in registers have their dtype's *register type*: narrow floats (float16, bfloat16, float8)
are float32, booleans int1, every other dtype is itself. `loaded` and `stored` are the text of the
two conversions at memory; `expression` is the text of one equation between register values.

float32 operations have four degrees of exactness. `precise` ones are correctly rounded (division,
square root, reciprocal) or libdevice's; by default the three are good to 2 units in the last place,
at a tenth of the instructions. Values that came from narrow floats take the hardware's approximate
exponential and logarithm too, whose error their rounding hides. So do float32 values that are
rounded to narrow floats in the end (`approximate`), but for the logarithm, whose approximation is
poor near 1.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.lowering import IN_KERNELS, Elementwise
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import Primitive
from genesis_fn.kernels.language.dtypes import MEMORY
from genesis_fn.primitives.elementwise import (
    bitcast_p,
    convert_p,
    is_finite,
    nextafter,
    polygamma_p,
)
from genesis_fn.primitives.shape import reduce_precision_p

MODULES = ("genesis_fn.kernels.language.language", "genesis_fn.kernels.language.device_functions")
"""The modules whose functions the text uses."""

PRELUDE = (
    "import triton\nimport triton.language as tl\n"
    + "".join(f"from {module} import *\n" for module in MODULES)
    + "\n\n@triton.jit\n"
)
"""The text before `def` in a module that holds one generated kernel."""


def register(dtype: DType) -> str:
    """Text of the register type of `dtype`."""
    return MEMORY[dtypes.widened(dtype)]


def loaded(text: str, dtype: DType) -> str:
    """The register value of `text`, a value as it is in memory."""
    return f"up({text})" if dtype in dtypes.NARROW else text


def stored(text: str, dtype: DType) -> str:
    """`text`, a register value, as it goes to memory: rounded to nearest even."""
    return f"narrow({text}, {MEMORY[dtype]})" if dtype in dtypes.NARROW else text


def rounded(text: str, dtype: DType) -> str:
    """`text`, a register value, with the precision that `dtype` has in memory."""
    return f"up({stored(text, dtype)})" if dtype in dtypes.NARROW else text


def literal(value: Any, dtype: DType) -> str:
    """A Python number as a register value of `dtype`, integers wrapped."""
    if dtype == dtypes.BOOL:
        return f"tl.full((), {int(bool(value))}, tl.int1)"
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        span = 1 << 8 * dtype.itemsize
        wrapped = (int(value) - int(info.min)) % span + int(info.min)
        return f"tl.full((), {wrapped}, {MEMORY[dtype]})"
    number = float(value)
    if number == 0 and math.copysign(1.0, number) < 0:
        # Triton 3.6 makes a positive zero of a constant that equals zero.
        return f"negate(tl.full((), 0.0, {register(dtype)}))"
    # Infinities and NaN have no literal.
    text = repr(number) if number - number == 0 else f'float("{number}")'
    return f"tl.full((), {text}, {register(dtype)})"


# Device functions of float32 in place of correctly rounded ones. div.full.f32 and sqrt.approx.f32
# are good to 2 units in the last place over the whole range (PTX ISA), in 8 and 4 instructions
# of sm_90 where the correctly rounded ones take 118 and 34, half of which is a branch.
_CLOSE = {
    "div": "div_close", "square_root": "tl.sqrt", "logistic": "logistic_close",
    "integer_pow": "integer_pow_close",
}  # fmt: skip
# Faster device functions, whose errors the rounding to 16 bits or fewer hides.
_FAST = _CLOSE | {
    "exp": "tl.exp", "exp2": "tl.exp2", "log": "tl.log", "rsqrt": "tl.rsqrt",
    "logistic": "logistic_fast",
}  # fmt: skip
_APPROXIMATE = _FAST | {"log": "log"}
# Instructions of sm_90 for one element of float32, of functions that take more than a few: of
# Triton 3.6's compiler, counted in its cubins.
_INSTRUCTIONS = {
    "acos": 27, "acosh": 74, "asin": 27, "asinh": 125, "atan": 24, "atan2": 224, "atanh": 46,
    "cbrt": 16, "cos": 124, "cosh": 24, "digamma": 332, "div": 118, "div_close": 8,
    "erf": 32, "erf_inv": 99, "erfc": 49, "exp": 11, "exp2": 5, "expm1": 30, "integer_pow": 118,
    "integer_pow_close": 12, "lgamma": 214, "log": 30, "log1p": 35, "log2": 32, "logistic": 123,
    "logistic_close": 20, "logistic_fast": 13, "nextafter": 30, "polygamma": 328, "pow": 93,
    "rem": 74, "rsqrt": 5,
    "sin": 122, "sinh": 39, "square_root": 38, "tan": 119, "tanh": 18, "tl.exp": 6, "tl.exp2": 5,
    "tl.log": 30, "tl.rsqrt": 5, "tl.sqrt": 5,
}  # fmt: skip
_CALLED = re.compile(r"(?:\b\w+\.)?\b[A-Za-z_]\w*(?=\()")

Writer = Callable[..., str]
_WRITERS: dict[Primitive, Writer] = {}


def writes(prim: Primitive) -> Callable[[Writer], Writer]:
    """Decorator: `f(texts, dtype, **params)` writes the Triton text of an elementwise primitive
    whose lowering is IN_KERNELS, as it is longer than one expression."""

    def register(f: Writer) -> Writer:
        _WRITERS[prim] = f
        return f

    return register


def expression(
    prim: Primitive,
    names: Sequence[str],
    operands: Sequence[Any],
    params: Mapping[str, Any],
    precise: bool,
    approximate: bool = False,
) -> str:
    """The text of `prim` applied to register values, as a register value of the result's dtype.

    `operands` holds an Aval or a Python scalar for each operand; `names[i]` is the text of operand
    i where it is an Aval (scalars are written as literals of the arrays' dtype). A result of a
    narrow type is not rounded to it (`rounded` does that), except by a conversion. `precise` asks
    for correctly rounded float32 division and the like, `approximate` allows results that are off
    by a few more units in the last place than 2.
    """
    kinds = [a.dtype for a in operands if type(a) is Aval]
    kind = kinds[-1]
    texts = [
        name if type(a) is Aval else literal(a, kind)
        for name, a in zip(names, operands, strict=True)
    ]
    assert type(prim.lowering) is Elementwise
    triton = prim.lowering.triton
    if triton is IN_KERNELS:
        return _WRITERS[prim](texts, kind, **params)
    if callable(triton):
        text = triton(kind, *[f"{{{i}}}" for i in range(len(texts))], **params)
    else:
        text = f"({triton})"
    return template(text, kind, precise, approximate).format(*texts)


@functools.lru_cache(4096)
def template(text: str, kind: DType, precise: bool = True, approximate: bool = False) -> str:
    """A definition's template with the device functions for operands of dtype `kind`: exact ones,
    or approximate ones where these will do."""
    if kind in dtypes.NARROW:
        table = _FAST
    elif kind == dtypes.F32:
        table = _APPROXIMATE if approximate else {} if precise else _CLOSE
    else:
        table = {}
    return _CALLED.sub(lambda found: table.get(found.group(), found.group()), text)


def instructions(text: str, kind: DType) -> int:
    """About how many machine instructions a GPU takes for `text`, an expression of one element of
    dtype `kind`."""
    # CUDA's library computes float64 in software: some four times as many.
    weight = 4 if kind == dtypes.F64 else 1
    found = [_INSTRUCTIONS.get(name, 1) for name in _CALLED.findall(text)]
    return weight * max(1, sum(found))


@writes(convert_p)
def _convert(texts: Sequence[str], source: DType, *, dtype: DType) -> str:
    (x,) = texts
    if dtype == dtypes.BOOL:
        return x if source == dtypes.BOOL else f"({x} != 0)"
    if dtypes.is_float(source) and dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        return f"to_integer({x}, {MEMORY[dtype]}, {int(info.min)}, {int(info.max)})"
    moved = x if register(source) == register(dtype) else f"{x}.to({register(dtype)})"
    # Every value of float8e4nv is one of float16, and so on: only a loss needs rounding.
    exact = {
        (dtypes.F8E4, dtypes.F16),
        (dtypes.F8E4, dtypes.BF16),
        (dtypes.F8E5, dtypes.F16),
        (dtypes.F8E5, dtypes.BF16),
    }
    return moved if (source, dtype) in exact or source == dtype else rounded(moved, dtype)


@writes(bitcast_p)
def _bitcast(texts: Sequence[str], source: DType, *, dtype: DType) -> str:
    (x,) = texts
    if source == dtype:
        return x
    if dtype == dtypes.BOOL:
        # Booleans are a byte in memory: true is any byte that is not 0.
        if source in dtypes.NARROW:
            x = f"{stored(x, source)}.to(tl.uint8, bitcast=True)"
        return f"({x} != 0)"
    if source == dtypes.BOOL:
        x, source = f"{x}.to(tl.uint8)", dtypes.U8
    return loaded(f"{stored(x, source)}.to({MEMORY[dtype]}, bitcast=True)", dtype)


@writes(reduce_precision_p)
def _reduce_precision(
    texts: Sequence[str], kind: DType, *, exponent_bits: int, mantissa_bits: int
) -> str:
    layout = dtypes.finfo(kind if kind.itemsize > 1 else dtypes.F32)
    return (
        f"reduce_precision({texts[0]}, {MEMORY[kind]}, {layout.nexp}, {layout.nmant}, "
        f"{exponent_bits}, {mantissa_bits})"
    )


@writes(nextafter.prim)
def _nextafter(texts: Sequence[str], kind: DType) -> str:
    if kind in (dtypes.F16, dtypes.BF16):
        return f"nextafter_narrow({texts[0]}, {texts[1]}, {MEMORY[kind]})"
    return f"nextafter({texts[0]}, {texts[1]})"


@writes(is_finite.prim)
def _is_finite(texts: Sequence[str], kind: DType) -> str:
    # A value of a narrow type may have left its range in registers.
    return f"is_finite({rounded(texts[0], kind)})"


# B_2j / (2j)!, of Bernoulli's numbers.
_BERNOULLI = [
    b / math.factorial(2 * j)
    for j, b in enumerate(
        (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798), 1
    )
]
_WIDE_FROM = 3  # the order from which polygamma of float32 is computed in float64


@writes(polygamma_p)
def _polygamma(texts: Sequence[str], kind: DType, *, n: int) -> str:
    (x,) = texts
    if n == 0:
        return f"digamma({x})"
    wide = kind == dtypes.F64 or n >= _WIDE_FROM
    # (n - 1)! = scale^n factor: the powers that are taken neither overflow nor vanish.
    scale = math.exp(math.lgamma(n) / n)
    factor = float(Fraction(math.factorial(n - 1)) / Fraction(scale) ** n)
    # B_2j / (2j)! n (n + 1) ... (n + 2j - 1)
    rising = [float(math.prod(range(n, n + 2 * j))) for j in range(1, 10 if wide else 5)]
    terms = tuple([b * r for b, r in zip(_BERNOULLI, rising)])
    numbers = f"{n}, {n.bit_length()}, {scale!r}, {factor!r}, {terms}"
    if wide and kind != dtypes.F64:
        return f"polygamma({x}.to(tl.float64), {numbers}).to(tl.float32)"
    return f"polygamma({x}, {numbers})"


__all__ = [
    "MODULES", "PRELUDE", "expression", "instructions", "literal",
    "loaded", "register", "rounded", "stored", "template", "writes",
]  # fmt: skip
