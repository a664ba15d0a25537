"""Rules by letters: which dimensions of operands and results belong together.

A letter is anything hashable; None is a dimension that has to be whole. A dimension of length 1
beside longer ones of its letter is repeated, and not divided.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.layout import Layout, parts
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.transforms.sharding.partitioner import Placed, local, moved, placed

Letters = Sequence[Hashable]
Axes = tuple[Hashable, ...]
Divided = dict[Hashable, Axes]


def divisions(
    mesh: Mesh,
    operands: Sequence[Placed],
    letters: Sequence[Letters],
    first: Sequence[Hashable] = (),
) -> Divided:
    """The axes that divide each letter: those that make most parts of it in an operand, if they
    divide it everywhere. An axis divides one letter: the first in the order of `first`, then of the
    operands. What can be made anew for any layout comes last."""
    sizes: dict[Hashable, set[int]] = {}
    order: dict[Hashable, None] = dict.fromkeys(first)
    for x, at in zip(operands, letters, strict=True):
        for n, letter in zip(x.aval.shape, at, strict=True):
            if letter is not None:
                sizes.setdefault(letter, set()).add(n)
                order.setdefault(letter)
    divided: Divided = {}
    for says in (True, False):
        for letter in order:
            choices = [
                axes
                for x, at in zip(operands, letters)
                for own, axes in zip(at, x.layout)
                if own == letter and axes and (x.remade is None) == says
            ]
            _choose(mesh, divided, letter, choices, sizes.get(letter, set()))
    return divided


def _choose(
    mesh: Mesh, divided: Divided, letter: Hashable, choices: list[Axes], lengths: set[int]
) -> None:
    used = {n for axes in divided.values() for n in axes}
    lengths = lengths - {1} if len(lengths) > 1 else lengths
    for axes in sorted(choices, key=lambda a: -parts(mesh, a)):
        fits = all(n % parts(mesh, axes) == 0 for n in lengths)
        if letter not in divided and not used & set(axes) and fits:
            divided[letter] = axes


def layout_of(shape: Sequence[int], letters: Letters, divided: Divided) -> Layout:
    """The layout of an array whose dimensions have these letters."""
    lengths = zip(shape, letters, strict=True)
    return tuple([divided.get(at, ()) if n > 1 else () for n, at in lengths])


def by_letters(
    mesh: Mesh,
    e: Eqn,
    operands: Sequence[Any],
    ins: Sequence[Letters],
    outs: Sequence[Letters],
    params: Callable[[Divided], dict[str, Any]] | None = None,
    first: Sequence[Hashable] = (),
) -> list[Placed]:
    """The operation on parts, divided along the letters of its operands. Results that lack a letter
    are sums over it. Letters of Python numbers among the operands do not matter; `params` gives the
    parameters that are others for parts."""
    ins = [at for at, x in zip(ins, operands, strict=True) if type(x) is Placed]
    arrays = [x for x in operands if type(x) is Placed]
    divided = divisions(mesh, arrays, ins, first)
    layouts = iter([layout_of(x.aval.shape, at, divided) for x, at in zip(arrays, ins)])
    xs = [local(moved(x, mesh, next(layouts))) if type(x) is Placed else x for x in operands]
    changed = {} if params is None else params(divided)
    made = bind(e.prim, *xs, **{**e.params, **changed})
    results = [layout_of(o.aval.shape, at, divided) for o, at in zip(e.outs, outs, strict=True)]
    kept = {letter for at in outs for letter in at}
    due = tuple([n for letter, axes in divided.items() if letter not in kept for n in axes])
    return placed(made, e, results, due)


def untouched(ndim: int, touched: Sequence[int]) -> list[Hashable]:
    """The letters of an array that an operation takes whole along some dimensions, and along the
    others element by element."""
    return [None if i in touched else i for i in range(ndim)]
