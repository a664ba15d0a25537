"""What a compiler may do with a primitive: the `lowering` of its definition is one of these.

Values of these primitives are computed where they are needed, inside of generated kernels. An
equation of any other primitive (`lowering=None`) is a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.backend.index import Index, IndexGuard

IN_KERNELS: Any = "in kernels"
"""The Triton side of an elementwise primitive that is longer than an expression: the function that
`kernels/language/expressions.py` registers for it."""


class Elementwise:
    """Each element of the result is a function of the operands' elements in its place.

    * `torch`: a function of torch tensors, for dtypes that torch computes with; longer ones stand
      in `backends/cpu/lowerings/elementwise.py`.
    * `wraps`: the function on signed integers is right for unsigned ones of their width; otherwise
      `numpy` (or `fold`), a NumPy function, computes those that torch lacks.
    * `triton`: an expression in {0}, {1}, ... with the functions of `language` and
      `device_functions` (`kernels/language`) in scope; a function of (dtype, *operands, **params)
      that gives one; or IN_KERNELS. None where there is none: the equation is a step of its own.
    * `cost`: the additions that take as long as one element.
    * `fold`: a NumPy function that gives the same values, by which the simplifier computes with
      numbers; None where the last digit may differ.
    * `scalars`: the operands that may be Python numbers in place of arrays of one number.
    """

    __slots__ = ("triton", "torch", "numpy", "wraps", "cost", "fold", "scalars")

    def __init__(
        self,
        triton: str | Callable[..., str] | None = None,
        *,
        torch: Callable[..., Any] | None = None,
        numpy: Callable[..., Any] | None = None,
        wraps: bool = False,
        cost: int = 1,
        fold: Callable[..., Any] | None = None,
        scalars: tuple[int, ...] = (),
    ) -> None:
        self.triton, self.cost, self.fold, self.scalars = triton, cost, fold, scalars
        self.torch, self.numpy, self.wraps = torch, numpy or fold, wraps


Piece = tuple[int, Index, Sequence[IndexGuard]]


class View:
    """Each element of a result is an element of an operand.

    * `pieces(k, at, *avals, **params)`: where element `at` of result k comes from, as
      [(operand, index, conditions), ...]. It is the element `index` of the operand of the first
      piece whose conditions hold; those of the last piece hold where no other's do.
    * `joins`: there are several pieces.
    * `shares`: the result may be memory of the operand.
    * `interleaves`: elements k, k + n, ... of the result are those of operand k, of n that have one
      shape. A kernel that writes it computes all n at each place of theirs.
    """

    __slots__ = ("pieces", "joins", "shares", "interleaves")

    def __init__(
        self,
        pieces: Callable[..., Sequence[Piece]],
        *,
        joins: bool = False,
        shares: bool = True,
        interleaves: bool = False,
    ) -> None:
        self.pieces, self.joins, self.shares = pieces, joins, shares
        self.interleaves = interleaves


def moved(index: Callable[..., Index], *, shares: bool = True) -> View:
    """The view of one operand whose element `index(at, aval, **params)` is the result's `at`."""
    return View(lambda k, at, x, **params: [(0, index(at, x, **params), ())], shares=shares)


def same(*, shares: bool = True) -> View:
    """The view whose result k is operand k."""
    return View(lambda k, at, *avals, **params: [(k, at, ())], shares=shares)


class Source:
    """Each element of the result is known by its index: `value(at, **params)` is an expression in
    the index `at`, or a Python number."""

    __slots__ = ("value",)

    def __init__(self, value: Callable[..., Any]) -> None:
        self.value = value


class Reduce:
    """Elements along `params["axes"]`, or `params["axis"]`, become one.

    * `combine`: the function of `kernels.language` that combines two elements: "add", "multiply",
      "maximum", "minimum", "bit_and", "bit_or" or "bit_xor".
    * `identity(dtype)`: the result over no elements.
    * `position`: the result is where the first extreme is.
    """

    __slots__ = ("combine", "identity", "position")

    def __init__(
        self, combine: str, identity: Callable[[Any], Any], *, position: bool = False
    ) -> None:
        self.combine, self.identity, self.position = combine, identity, position


Lowering = Elementwise | View | Source | Reduce
