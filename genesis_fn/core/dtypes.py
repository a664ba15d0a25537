"""Data types: names, kinds, the promotion lattice, Python scalars.

A dtype is a NumPy dtype (`ml_dtypes` supplies bfloat16 and the 8-bit floats), so NumPy's own tools
read arrays of this library unchanged. Promotion is JAX's lattice in its 64-bit form. Defaults are
32-bit, and 64-bit types are had by asking for them; with the setting `enable_x64` they are 64-bit.
All that depends on the setting asks here: `scalar_dtype`, `counted`, `default_float` and its like.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from genesis_fn.core.configuration import config
from genesis_fn.core.errors import DTypeError, TypePromotionError
from genesis_fn.core.types.extended import (
    KEY_TYPES,
    extended as extended,
    is_key as is_key,
    prng_key as prng_key,
)
from genesis_fn.core.types.scalar_types import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

DType: TypeAlias = np.dtype


class HasDType(Protocol):
    """What has a dtype: an array, a scalar type of this library (`jnp.float32`)."""

    @property
    def dtype(self) -> DType:
        """Its dtype."""
        ...


# "float32", np.float32, jnp.float32, torch.float32, float, a dtype, or what has one.
DTypeLike: TypeAlias = DType | type[Any] | str | HasDType

BOOL, I8, I16, I32, I64 = bool_.dtype, int8.dtype, int16.dtype, int32.dtype, int64.dtype
U8, U16, U32, U64 = uint8.dtype, uint16.dtype, uint32.dtype, uint64.dtype
F8E4, F8E5, BF16 = float8_e4m3fn.dtype, float8_e5m2.dtype, bfloat16.dtype
F16, F32, F64 = float16.dtype, float32.dtype, float64.dtype
C64, C128 = complex64.dtype, complex128.dtype
# The dtype of "no tangent": what derivatives of integers are in JAX. No array has it.
FLOAT0 = np.dtype([("float0", np.void, 0)])

SIGNED = (I8, I16, I32, I64)
UNSIGNED = (U8, U16, U32, U64)
WIDE_UNSIGNED = frozenset((U16, U32, U64))  # torch computes with none of them
INTEGERS: tuple[DType, ...] = SIGNED + UNSIGNED
FLOATS = (F8E4, F8E5, BF16, F16, F32, F64)
COMPLEX = (C64, C128)
ALL = (BOOL, *INTEGERS, *FLOATS, *COMPLEX)
NARROW = frozenset((F8E4, F8E5, BF16, F16))  # floats that are computed with in float32

_INTEGERS, _FLOATS, _COMPLEX = frozenset(INTEGERS), frozenset(FLOATS), frozenset(COMPLEX)
_INEXACT = _FLOATS | _COMPLEX

SHORT = {
    BOOL: "bool", I8: "i8", I16: "i16", I32: "i32", I64: "i64",
    U8: "u8", U16: "u16", U32: "u32", U64: "u64",
    F8E4: "f8e4m3", F8E5: "f8e5m2", BF16: "bf16", F16: "f16", F32: "f32", F64: "f64",
    C64: "c64", C128: "c128",
}  # fmt: skip

# What a Python scalar becomes when nothing else decides, without and with `enable_x64`.
_SCALAR_DTYPE = {bool: BOOL, int: I32, float: F32, complex: C64}
_WIDE_SCALAR_DTYPE = {bool: BOOL, int: I64, float: F64, complex: C128}
# The dtypes that a weak value may have: those of Python scalars. (Without `enable_x64` float64 is
# one too, where uint64 and int64 meet.)
WEAK = frozenset((*_SCALAR_DTYPE.values(), *_WIDE_SCALAR_DTYPE.values()))
# What a NumPy value of a 64-bit type counts as unless its dtype is asked for, without `enable_x64`.
NARROWED: dict[DType, DType] = {F64: F32, I64: I32, U64: U32, C128: C64}
_settings = config.current


def dtype(spec: DTypeLike) -> DType:
    """The NumPy dtype that `spec` names, which may be torch's; Python's `float`, `int`, `complex`
    mean the defaults: 32-bit ones, or 64-bit ones with `enable_x64`.

    Raises DTypeError for a type outside the library's list.
    """
    if isinstance(spec, type) and spec in _SCALAR_DTYPE:
        return scalar_dtype(spec)
    if isinstance(spec, str) and spec in NAMES:
        return NAMES[spec]
    named: Any = spec if is_key(spec) else getattr(spec, "dtype", None)
    if is_key(named):
        return named
    try:
        found = np.dtype(spec if isinstance(spec, type) else getattr(spec, "dtype", spec))
    except TypeError:
        # torch.float32, which NumPy does not know.
        named = getattr(spec, "dtype", spec)
        torchs = type(named).__module__ == "torch" and str(named).removeprefix("torch.")
        found = NAMES.get(torchs) if torchs else None
    if found is None or found not in SHORT:
        raise DTypeError(
            f"{spec!r} is not a data type of this library; the types are "
            + ", ".join(d.name for d in ALL)
        )
    return found


NAMES: dict[str, Any] = {d.name: d for d in (*ALL, *KEY_TYPES.values())} | {
    s: d for d, s in SHORT.items()
}


def is_float(d: DType) -> bool:
    """Whether `d` is a real floating-point type."""
    return d in _FLOATS


def widened(d: DType) -> DType:
    """float32 for narrower floats, `d` for all else: what values of `d` are computed with in."""
    return F32 if d in NARROW else d


def is_complex(d: DType) -> bool:
    """Whether `d` is complex64 or complex128."""
    return d in _COMPLEX


def is_inexact(d: DType) -> bool:
    """Whether `d` is floating or complex: the types that carry derivatives."""
    return d in _INEXACT


def is_integer(d: DType) -> bool:
    """Whether `d` is a signed or unsigned integer (bool is not)."""
    return d in _INTEGERS


def is_unsigned(d: DType) -> bool:
    """Whether `d` is an unsigned integer."""
    return d.kind == "u"


def kind_rank(d: DType) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex: the order in which kinds promote."""
    rank = 0 if d == BOOL else 1 if d in _INTEGERS else 2 if d in _FLOATS else 3
    if rank == 3 and is_key(d):
        raise DTypeError(f"random keys ({d}) are no numbers; {KEY_REMEDY}")
    return rank


# What every refusal of a key says.
KEY_REMEDY = "random.key_data(keys) gives their words"


def real_of(d: DType) -> DType:
    """The dtype of the real part of `d`."""
    return {C64: F32, C128: F64}.get(d, d)


def complex_of(d: DType) -> DType:
    """The complex dtype whose parts hold `d`."""
    return d if d in _COMPLEX else C128 if inexact_of(d) == F64 else C64


def scalar_dtype(kind: type) -> DType:
    """The dtype of a Python scalar type on its own: bool, int32, float32 or complex64, or with
    `enable_x64` the 64-bit one (complex128)."""
    return (_WIDE_SCALAR_DTYPE if _settings().enable_x64 else _SCALAR_DTYPE)[kind]


def counted(d: DType) -> DType:
    """What a NumPy value of dtype `d` counts as: a 64-bit one as 32-bit, unless `enable_x64`."""
    narrow = NARROWED.get(d)
    return d if narrow is None or _settings().enable_x64 else narrow


def default_float() -> DType:
    """The dtype of floats that nothing else decides, as that of `zeros(3)` and of sin(1)."""
    return F64 if _settings().enable_x64 else F32


def default_int() -> DType:
    """The dtype of integers that nothing else decides, as that of `arange(3)` and of counts."""
    return I64 if _settings().enable_x64 else I32


def default_uint() -> DType:
    """The unsigned integers as wide as `default_int()`."""
    return U64 if _settings().enable_x64 else U32


def default_complex() -> DType:
    """The complex dtype whose parts are `default_float()`."""
    return C128 if _settings().enable_x64 else C64


def inexact_of(d: DType) -> DType:
    """`d` if floating or complex; float64 for 64-bit integers with `enable_x64`; else float32."""
    return d if d in _INEXACT else F64 if d.itemsize == 8 and _settings().enable_x64 else F32


def or_default_float(spec: DTypeLike | None) -> DType:
    """The dtype that the argument `dtype=None` of a function names: `default_float()` for None."""
    return default_float() if spec is None else dtype(spec)


# The lattice's arrows. "i*", "f*", "c*" stand for weak Python int, float and complex.
_ARROWS: dict[Any, tuple[Any, ...]] = {
    BOOL: ("i*",),
    "i*": (U8, I8),
    U8: (U16, I16), U16: (U32, I32), U32: (U64, I64), U64: ("f*",),
    I8: (I16,), I16: (I32,), I32: (I64,), I64: ("f*",),
    "f*": (F8E4, F8E5, BF16, F16, "c*"),
    F8E4: (), F8E5: (), BF16: (F32,), F16: (F32,), F32: (F64, C64), F64: (C128,),
    "c*": (C64,), C64: (C128,), C128: (),
}  # fmt: skip


@functools.cache
def _above(node: Any) -> frozenset[Any]:
    return frozenset({node}).union(*(_above(n) for n in _ARROWS[node]))


@functools.cache
def _join(a: Any, b: Any) -> Any:
    common = _above(a) & _above(b)
    least = [n for n in common if common <= _above(n)]
    if len(least) != 1:
        raise TypePromotionError(
            f"{_name(a)} and {_name(b)} have no common type; convert one with .astype(...)"
        )
    return least[0]


def _name(node: Any) -> str:
    return node.name if isinstance(node, np.dtype) else f"Python {node}"


_WEAK_NODE = (BOOL, "i*", "f*", "c*")  # by kind_rank
_WEAK_RESULT = {"i*": I32, "f*": F32, "c*": C64}
_WIDE = {narrow: wide for wide, narrow in NARROWED.items()}


def promote(strong: frozenset[DType], weak: frozenset[DType] = frozenset()) -> tuple[DType, bool]:
    """(result dtype, whether it is weak) of combining strong operands with weak ones, by their
    dtypes. A Python scalar is weak and has its `scalar_dtype`; booleans are never weak."""
    found = _promote(strong, weak)
    # Only the dtypes of weak results are defaults; all others are the same under any setting.
    return (_WIDE.get(found[0], found[0]), True) if found[1] and _settings().enable_x64 else found


@functools.cache
def _promote(strong: frozenset[DType], weak: frozenset[DType]) -> tuple[DType, bool]:
    """`promote` without `enable_x64`."""
    if any(is_key(d) for d in strong):
        if len(strong) > 1 or weak:
            names = ", ".join(sorted(d.name for d in strong) + (["numbers"] if weak else []))
            raise DTypeError(f"random keys have no common type with others: {names}; {KEY_REMEDY}")
        return next(iter(strong)), False
    if not strong:
        node = functools.reduce(_join, sorted(weak, key=str))
        found = _of_node(node, weak)
        return found, found != BOOL
    node = functools.reduce(
        _join, sorted((*strong, *(_WEAK_NODE[kind_rank(d)] for d in weak)), key=str)
    )
    return _of_node(node, strong | weak), isinstance(node, str)


def _of_node(node: Any, given: frozenset[DType]) -> DType:
    """The dtype of a node; a weak one is 32 bits wide, but float64 where uint64 and signed integers
    meet, or where such a result meets others."""
    if not isinstance(node, str):
        return node
    if node == "f*" and (F64 in given or (U64 in given and any(d in SIGNED for d in given))):
        return F64
    return C128 if node == "c*" and C128 in given else _WEAK_RESULT[node]


def promote_types(a: DTypeLike, b: DTypeLike) -> DType:
    """The dtype of an operation between arrays of dtypes `a` and `b`."""
    return promote(frozenset((dtype(a), dtype(b))))[0]


_ABSTRACT = {
    np.generic: lambda d: True,
    np.number: lambda d: d != BOOL,
    np.integer: is_integer,
    np.signedinteger: lambda d: d in SIGNED,
    np.unsignedinteger: is_unsigned,
    np.inexact: is_inexact,
    np.floating: is_float,
    np.complexfloating: is_complex,
}


def issubdtype(arg1: DTypeLike, arg2: DTypeLike) -> bool:
    """Whether dtype `arg1` is `arg2` or below that abstract NumPy type (bfloat16 is floating)."""
    a, b = arg1, arg2
    if isinstance(b, type) and issubclass(b, extended):
        return issubclass(a if isinstance(a, type) else getattr(a, "type", object), b)
    if isinstance(a, type) and (a in _ABSTRACT or issubclass(a, extended)):
        return isinstance(b, type) and issubclass(a, b)
    if is_key(a):
        return b is np.generic or a is b
    if isinstance(b, type) and b in _ABSTRACT:
        return _ABSTRACT[b](dtype(a))
    return dtype(a) == dtype(b)


class FInfo:
    """Machine limits of a floating dtype, or of a complex one's parts, as Python numbers.

    `bits`, `dtype`; `eps`, `epsneg`, `max`, `min`, `tiny`, `smallest_normal`,
    `smallest_subnormal`, `resolution` (floats); `nmant`, `nexp`, `precision`, `maxexp`, `minexp`,
    `machep`, `negep` (ints), each as NumPy defines it.
    """

    dtype: DType
    bits: int
    eps: float
    epsneg: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    smallest_subnormal: float
    resolution: float
    nmant: int
    nexp: int
    precision: int
    maxexp: int
    minexp: int
    machep: int
    negep: int

    def __init__(self, d: DType) -> None:
        found = ml_dtypes.finfo(d)
        self.dtype, self.bits = np.dtype(found.dtype), int(found.bits)
        for name in _FINFO_FLOATS:
            setattr(self, name, float(getattr(found, name)))
        for name in _FINFO_INTS:
            setattr(self, name, int(getattr(found, name)))

    def __repr__(self) -> str:
        return f"finfo(dtype={self.dtype}, min={self.min}, max={self.max}, eps={self.eps})"


_FINFO_FLOATS = ("eps", "epsneg", "max", "min", "tiny", "smallest_normal", "smallest_subnormal",
                 "resolution")  # fmt: skip
_FINFO_INTS = ("nmant", "nexp", "precision", "maxexp", "minexp", "machep", "negep")


@functools.cache
def _finfo(d: DType) -> FInfo:
    return FInfo(d)


def finfo(dtype: DTypeLike) -> FInfo:
    """Machine limits of a floating or complex dtype, bfloat16 and 8-bit floats included."""
    return _finfo(_of_numbers(dtype))


def iinfo(int_type: DTypeLike) -> ml_dtypes.iinfo:
    """Machine limits of an integer dtype."""
    return ml_dtypes.iinfo(_of_numbers(int_type))


def extreme_over_nothing(dtype: DType, greatest: bool) -> bool | int | float:
    """What a maximum (`greatest`) or minimum over nothing is: the least or greatest value."""
    if is_float(dtype) and dtype != F8E4:
        return -math.inf if greatest else math.inf
    if dtype == BOOL:
        return not greatest
    limits = finfo(dtype) if is_float(dtype) else iinfo(dtype)
    value = limits.min if greatest else limits.max
    return float(value) if is_float(dtype) else int(value)


def _of_numbers(d: DTypeLike) -> DType:
    found = dtype(d)
    if is_key(found):
        raise DTypeError(f"random keys ({found}) have no limits; {KEY_REMEDY}")
    return found
