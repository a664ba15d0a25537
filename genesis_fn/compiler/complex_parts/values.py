"""Complex values of a program that has none: two real values, or one with both parts in turn.

Within a program a complex value is the *pair* of its parts, which rules compute with and loops
carry. Where its bytes matter, at the program's inputs and outputs and at steps that a library runs,
it is *packed*: one real array with one more axis, of length 2, at the end. These are the bytes of
the complex array, so that nothing is copied at the border of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Index, IndexGuard
from genesis_fn.core.backend.lowering import Piece, View, moved
from genesis_fn.core.primitive import SCALARS, Primitive, bind, typeof
from genesis_fn.primitives.factories import full

F = TypeVar("F", bound=Callable[..., Any])
Part = Any  # a tracer, or a Python number that stands for an array of it


def _interleaved(re: Aval, im: Aval) -> Aval:
    if re != im:
        raise errors.ShapeError(f"interleave: the parts {re} and {im} differ")
    return re.update((*re.shape, 2))


def _interleaved_pieces(k: int, at: Index, re: Aval, im: Aval) -> list[Piece]:
    index, part = at[:-1], at[-1]
    return [(0, index, (IndexGuard(part, 0, 1),)), (1, index, ())]


interleave_p = Primitive(
    "interleave",
    _interleaved,
    lowering=View(_interleaved_pieces, joins=True, shares=False, interleaves=True),
    listed=False,
)
"""A packed complex value of its parts: a primitive of the compiler's own programs."""

part_p = Primitive(
    "part",
    lambda x, *, number: x.update(x.shape[:-1]),
    lowering=moved(lambda at, x, *, number: (*at, ix.const(number)), shares=False),
    listed=False,
)
"""Part 0 (real) or 1 (imaginary) of a packed complex value."""


def packed_aval(kind: Aval) -> Aval:
    """The aval of a packed value of a complex aval; any other aval itself."""
    if not dtypes.is_complex(kind.dtype):
        return kind
    return kind.update((*kind.shape, 2), dtypes.real_of(kind.dtype))


def part_aval(kind: Aval) -> Aval:
    """The aval of each part of a value of a complex aval."""
    return kind.update(dtype=dtypes.real_of(kind.dtype))


class Complex:
    """A complex value: its pair of parts, or both packed, each made of the other when a rule asks.

    `real`: the imaginary part is zero everywhere, as that of a converted real value.
    """

    __slots__ = ("aval", "real", "_parts", "_packed")

    def __init__(
        self,
        aval: Aval,
        parts: tuple[Any, Any] | None = None,
        packed: Any = None,
        real: bool = False,
    ) -> None:
        self.aval, self._parts, self._packed, self.real = aval, parts, packed, real

    @property
    def parts(self) -> tuple[Any, Any]:
        """(real part, imaginary part)."""
        if self._parts is None:
            re, im = [bind(part_p, self._packed, number=k) for k in (0, 1)]
            self._parts = re, im
        return self._parts

    @property
    def packed(self) -> Any:
        """Both parts in turn along one more axis at the end."""
        if self._packed is None:
            assert self._parts is not None
            self._packed = bind(interleave_p, *self._parts)
        return self._packed

    @property
    def is_packed(self) -> bool:
        """Whether the packed value exists: that of an input, or of a step of a library."""
        return self._packed is not None


def of_parts(re: Any, im: Any) -> Complex:
    """The complex value of two real ones."""
    kind = typeof(re)
    return Complex(kind.update(dtype=dtypes.complex_of(kind.dtype)), (re, im))


def of_packed(x: Any) -> Complex:
    """The complex value whose parts alternate along the last axis of `x`."""
    kind = typeof(x)
    return Complex(kind.update(kind.shape[:-1], dtypes.complex_of(kind.dtype)), packed=x)


def of_real(x: Any) -> Complex:
    """A real value as a complex one."""
    made = of_parts(x, constant(typeof(x), 0.0))
    made.real = True
    return made


def constant(kind: Aval, value: float) -> Any:
    """An array of one number."""
    return full(kind.shape, value, kind.dtype)


def pair(x: Any) -> tuple[Part, Part]:
    """The parts of a complex value or of a Python number, whose parts are numbers."""
    return x.parts if type(x) is Complex else (float(x.real), float(x.imag))


# ---- rules ----

Rule = Callable[..., Any]
RULES: dict[Primitive, Rule] = {}


def on_parts(*of: Primitive) -> Callable[[F], F]:
    """Decorator: `f(prim, operands, params)` does these primitives on real values.

    Complex operands are `Complex`, others tracers or Python numbers. The result is what it would
    be on complex values, with `Complex` for them; a list if the primitive has several.
    """

    def register(rule: F) -> F:
        RULES.update(dict.fromkeys(of, rule))
        return rule

    return register


def by_part(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> Any:
    """What moves elements, or treats both parts alike: the operation on each part. Numbers stand
    for complex values, too; real arrays, such as conditions and indices, serve both parts."""
    whole = [pair(x) if type(x) is Complex or type(x) in SCALARS else (x, x) for x in xs]
    re, im = [bind(prim, *[v[k] for v in whole], **params) for k in (0, 1)]
    if prim.multi:
        return [of_parts(a, b) for a, b in zip(re, im, strict=True)]
    return of_parts(re, im)
