"""Polynomials of the values in an attention: probabilities, cotangents, statistics of rows.

Derivatives of softmax come in many spellings, which are equal as polynomials: with P the
probabilities, D the cotangent of P and d the sum of P * D over the keys, all of them are
P * D - P * d. A row's statistic may have a negative power: exp(x - m) / sum is P because both are
multiples of P by the same statistic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from genesis_fn.compiler.attention.axes import LogicalAxis


@dataclass(frozen=True, slots=True)
class Symbol:
    """A value that is not taken apart: what it is, by `key` which, and the axes it depends on."""

    kind: str
    key: Any
    depends: frozenset[LogicalAxis]


Monomial: TypeAlias = frozenset[tuple[Symbol, int]]  # symbols and their powers
Polynomial: TypeAlias = dict[Monomial, float]
ONE: Monomial = frozenset()
# Relative error of coefficients, which are float64: far less than of the values.
_CLOSE = 1e-9


def number(x: float) -> Polynomial:
    """A constant."""
    return {ONE: float(x)} if x != 0 else {}


def symbol(x: Symbol) -> Polynomial:
    """A symbol by itself."""
    return {frozenset([(x, 1)]): 1.0}


def add(terms: Iterable[Polynomial]) -> Polynomial:
    """The sum, without what cancels."""
    result: Polynomial = {}
    for x in terms:
        for m, c in x.items():
            old = result.get(m, 0.0)
            if abs(old + c) <= _CLOSE * max(abs(old), abs(c)):
                result.pop(m, None)
            else:
                result[m] = old + c
    return result


def scaled(x: Polynomial, factor: float) -> Polynomial:
    """A multiple."""
    return {m: c * factor for m, c in x.items()} if factor else {}


def times(x: Monomial, y: Monomial) -> Monomial:
    """The product of monomials."""
    powers = dict(x)
    for s, n in y:
        powers[s] = powers.get(s, 0) + n
    return frozenset([(s, n) for s, n in powers.items() if n])


def multiply(x: Polynomial, y: Polynomial) -> Polynomial:
    """The product."""
    return add([{times(m, n): a * b} for m, a in x.items() for n, b in y.items()])


def inverse(x: Polynomial) -> Polynomial | None:
    """1 / x of a single term."""
    if len(x) != 1:
        return None
    ((m, c),) = x.items()
    return {frozenset([(s, -n) for s, n in m]): 1.0 / c}


def depends(m: Monomial) -> frozenset[LogicalAxis]:
    """The axes that a monomial depends on."""
    return frozenset[LogicalAxis]().union(*[s.depends for s, _ in m])


def frozen(x: Polynomial) -> frozenset[tuple[Monomial, float]]:
    """The polynomial as a key."""
    return frozenset(x.items())


def close(x: float, y: float) -> bool:
    """Whether two coefficients are equal but for rounding."""
    return abs(x - y) <= _CLOSE * max(abs(x), abs(y))
