"""Index algebra: where an element of a view lies, as an expression in loop variables.

An expression is a constant plus a sum of integer multiples of atoms; an atom is a loop variable, or
a quotient or remainder of an expression by a positive constant, both rounded down. The normal form
makes equal positions equal expressions in the cases that reshapes, transpositions and slices give
rise to. Every rewrite is exact for all values in the variables' ranges.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

_INT32 = 2**31 - 1

Around = Callable[["Atom", str], str]  # what stands in a text for an atom, given its text


class Atom:
    """A variable ("var", name), a quotient ("div") or a remainder ("mod"), with its bounds."""

    __slots__ = ("key", "lo", "hi", "names", "_hash")

    def __init__(self, key: tuple[Any, ...], lo: int, hi: int, names: frozenset[str]) -> None:
        self.key, self.lo, self.hi, self.names = key, lo, hi, names
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Atom and self._hash == other._hash and self.key == other.key
        )

    def text(self, suffix: str = "", within: Around | None = None) -> str:
        """The atom in Python's (and Triton's) notation; `suffix` is added to variables, and
        `within` to the text of each atom."""
        kind, operand, c = self.key
        if kind == "var":
            return operand + suffix
        text = f"(({operand.text(suffix, within)}) {'//' if kind == 'div' else '%'} {c})"
        return within(self, text) if within is not None else text


class Expr:
    """`const + sum(coefficient * atom)`, with bounds `lo` and `hi`; immutable."""

    __slots__ = ("terms", "const", "lo", "hi", "names", "_hash")

    def __init__(self, terms: dict[Atom, int], const: int) -> None:
        self.terms, self.const = terms, const
        lo = hi = const
        for atom, k in terms.items():
            lo += k * (atom.lo if k > 0 else atom.hi)
            hi += k * (atom.hi if k > 0 else atom.lo)
        self.lo, self.hi = lo, hi
        self.names: frozenset[str] = frozenset().union(*[a.names for a in terms])
        self._hash = hash((frozenset(terms.items()), const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Expr
            and self._hash == other._hash
            and self.const == other.const
            and self.terms == other.terms
        )

    def __repr__(self) -> str:
        return self.text()

    def text(self, suffix: str = "", within: Around | None = None) -> str:
        """The expression in Python's (and Triton's) notation, `suffix` and `within` as in atoms."""
        texts = [(a.text(suffix, within), k) for a, k in self.terms.items()]
        parts = [text if k == 1 else f"{text} * {k}" for text, k in texts]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    def evaluate(self, values: dict[str, int]) -> int:
        """The number that this is for given values of the variables."""
        return self.const + sum(k * _atom_value(a, values) for a, k in self.terms.items())


def _atom_value(atom: Atom, values: dict[str, int]) -> int:
    kind, operand, c = atom.key
    if kind == "var":
        return values[operand]
    inner = operand.evaluate(values)
    return inner // c if kind == "div" else inner % c


ZERO = Expr({}, 0)


def const(n: int) -> Expr:
    """The number `n`."""
    return Expr({}, n) if n else ZERO


def var(name: str, size: int) -> Expr:
    """A loop variable that takes the values 0 .. size - 1."""
    if size <= 1:
        return ZERO
    return Expr({Atom(("var", name, size), 0, size - 1, frozenset((name,))): 1}, 0)


def add(*exprs: Expr) -> Expr:
    """The sum."""
    terms: dict[Atom, int] = {}
    total = 0
    for e in exprs:
        total += e.const
        for atom, k in e.terms.items():
            terms[atom] = terms.get(atom, 0) + k
    terms = {a: k for a, k in terms.items() if k}
    return _joined(terms, total)


def _joined(terms: dict[Atom, int], total: int) -> Expr:
    """The sum with `c * (x // c) + x % c` replaced by x, and `c * (x // c % n) + x % c` by
    x % (c * n)."""
    for atom, k in terms.items():
        if atom.key[0] != "mod":
            continue
        _, x, c = atom.key
        quotient = div(x, c)
        if quotient.const or len(quotient.terms) != 1:
            continue
        ((other, one),) = quotient.terms.items()
        if one != 1:
            continue
        whole = x if terms.get(other) == k * c else None
        for a, n in terms.items():
            if n == k * c and a.key[:2] == ("mod", quotient):
                other, whole = a, mod(x, c * a.key[2])
        if whole is not None:
            rest = {a: n for a, n in terms.items() if a is not atom and a != other}
            return add(Expr(rest, total), scale(whole, k))
    return Expr(terms, total)


def scale(e: Expr, k: int) -> Expr:
    """e * k."""
    if k == 1:
        return e
    return Expr({a: n * k for a, n in e.terms.items()}, e.const * k) if k else ZERO


def shift(e: Expr, n: int) -> Expr:
    """e + n."""
    return Expr(e.terms, e.const + n) if n else e


def _digits(e: Expr, c: int) -> tuple[Expr, Expr, int] | None:
    """(high, low, g) with e = g * high + low, low in [0, g) and g > 1 a divisor of c: the place of
    `low` in a row of g elements, which are whole rows of what has c. None if there is no g."""
    for g in sorted({math.gcd(c, k) for k in e.terms.values()} - {1}, reverse=True):
        high = {a: k // g for a, k in e.terms.items() if k % g == 0}
        low = Expr({a: k for a, k in e.terms.items() if k % g}, e.const % g)
        if low.terms and low.lo >= 0 and low.hi < g:
            return Expr(high, e.const // g), low, g
    return None


def _parted(e: Expr, c: int) -> tuple[Expr, Expr]:
    """(q, rest) with e = c * q + rest and rest.lo in [0, c)."""
    whole = {a: k // c for a, k in e.terms.items() if k % c == 0}
    rest = {a: k for a, k in e.terms.items() if k % c}
    low = Expr(rest, e.const)
    n = low.lo // c
    return Expr(whole, n), shift(low, -n * c)


@functools.lru_cache(1 << 16)
def div(e: Expr, c: int) -> Expr:
    """e // c, rounded down."""
    if c == 1:
        return e
    q, rest = _parted(e, c)
    if rest.hi < c:
        return q
    g = math.gcd(c, *rest.terms.values())
    if g > 1:
        smaller = Expr({a: k // g for a, k in rest.terms.items()}, rest.const // g)
        return add(q, div(smaller, c // g))
    if len(rest.terms) == 1 and not rest.const:
        ((atom, k),) = rest.terms.items()
        kind, x, n = atom.key
        if k == 1 and kind == "div":
            return add(q, div(x, n * c))
        if k == 1 and kind == "mod" and n % c == 0:
            return add(q, mod(div(x, c), n // c))
    digits = _digits(rest, c)
    if digits is not None:
        return add(q, div(digits[0], c // digits[2]))
    atom = Atom(("div", rest, c), rest.lo // c, rest.hi // c, rest.names)
    return add(q, Expr({atom: 1}, 0))


@functools.lru_cache(1 << 16)
def mod(e: Expr, c: int) -> Expr:
    """e % c, not negative."""
    if c == 1:
        return ZERO
    rest = _parted(e, c)[1]
    if rest.hi < c:
        return rest
    g = math.gcd(c, *rest.terms.values())
    if g > 1:
        smaller = Expr({a: k // g for a, k in rest.terms.items()}, rest.const // g)
        return shift(scale(mod(smaller, c // g), g), rest.const % g)
    for atom, k in rest.terms.items():
        kind, x, n = atom.key
        if kind == "mod" and k * n % c == 0:
            # x % n is x less a multiple of n, and k * n is nothing.
            whole = add(Expr({**rest.terms, atom: 0}, rest.const), scale(x, k % c))
            if max(-whole.lo, whole.hi) <= _INT32:
                return mod(whole, c)
    digits = _digits(rest, c)
    if digits is not None:
        high, low, g = digits
        return add(scale(mod(high, c // g), g), low)
    atom = Atom(("mod", rest, c), 0, c - 1, rest.names)
    return Expr({atom: 1}, 0)


def substitute(e: Expr, name: str, by: Expr) -> Expr:
    """`e` with a variable replaced."""
    if name not in e.names:
        return e
    parts = [const(e.const)]
    for atom, k in e.terms.items():
        kind, operand, c = atom.key
        if kind == "var":
            inner = by if operand == name else Expr({atom: 1}, 0)
        else:
            inner = (div if kind == "div" else mod)(substitute(operand, name, by), c)
        parts.append(scale(inner, k))
    return add(*parts)


Index = tuple[Expr, ...]


@functools.lru_cache(1 << 16)
def ravel(index: Index, shape: tuple[int, ...]) -> Expr:
    """The row-major position of an element."""
    step, parts = 1, []
    for e, n in zip(reversed(index), reversed(shape), strict=True):
        parts.append(scale(e, step))
        step *= n
    return add(*reversed(parts))


@functools.lru_cache(1 << 16)
def unravel(e: Expr, shape: tuple[int, ...]) -> Index:
    """The index of the element at row-major position `e`, which lies inside the shape: the first
    axis takes what is left, even where the bounds of `e` alone would allow more than its length."""
    index = []
    first = next((i for i, n in enumerate(shape) if n != 1), 0)
    for i in range(len(shape) - 1, -1, -1):
        n = shape[i]
        index.append(e if n > 1 and i == first else mod(e, n) if n else ZERO)
        e = div(e, n) if n else ZERO
    return tuple(reversed(index))


class IndexGuard:
    """The condition `lo <= expr < hi`."""

    __slots__ = ("expr", "lo", "hi")

    def __init__(self, expr: Expr, lo: int, hi: int) -> None:
        self.expr, self.lo, self.hi = expr, lo, hi

    def __hash__(self) -> int:
        return hash((self.expr, self.lo, self.hi))

    def __eq__(self, other: object) -> bool:
        return type(other) is IndexGuard and (self.expr, self.lo, self.hi) == (
            other.expr,
            other.lo,
            other.hi,
        )

    @property
    def always(self) -> bool:
        """Whether it holds everywhere."""
        return self.lo <= self.expr.lo and self.expr.hi < self.hi

    @property
    def never(self) -> bool:
        """Whether it holds nowhere."""
        return self.expr.hi < self.lo or self.expr.lo >= self.hi or self.lo >= self.hi

    def text(self, within: Around | None = None) -> str:
        """The condition in Triton's notation, `within` as in atoms."""
        parts = []
        if self.expr.lo < self.lo:
            parts.append(f"({self.expr.text('', within)} >= {self.lo})")
        if self.expr.hi >= self.hi:
            parts.append(f"({self.expr.text('', within)} < {self.hi})")
        return " & ".join(parts)


Guards = frozenset[IndexGuard]


def holding(guards: Iterable[IndexGuard]) -> Guards | None:
    """The guards that say something; None if they never hold together."""
    kept = set()
    for g in guards:
        if g.never:
            return None
        if not g.always:
            kept.add(g)
    return frozenset(kept)


def share(guards: Guards) -> float:
    """About which share of the places the guards hold at."""
    widths = [(g.hi - g.lo) / (g.expr.hi - g.expr.lo + 1) for g in guards]
    return math.prod([min(w, 1.0) for w in widths])
