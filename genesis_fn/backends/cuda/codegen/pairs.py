"""Neighbours in memory that are one access, as the parts of complex numbers are.

Each value of a loop variable has a pair of them. Stores of every other number are slow, of which
memory writes parts of sectors: 8 MB took 38 us, as pairs 7 (H200).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from genesis_fn.backends.cuda.codegen.loops import INT32, Loops, Pointee, Store, dtype_of, is_wide
from genesis_fn.backends.cuda.codegen.tiling import Tiling
from genesis_fn.core.backend import index as ix
from genesis_fn.core.backend.index import Expr


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a kernel.

    * `loads[n]`: the load of the neighbour of load n; `stores`: the stores of two neighbours.
    * `tiled`: the expression of `p` in `i` and `j`, in a kernel that works on tiles.

    Where a loop variable x has pairs, `x2` counts the elements of all of them, along the axis of x;
    in a flat kernel `p2` has the values of `p` along the first of two axes.
    """

    loops: Loops
    tiling: Tiling
    tiled: Expr | None = None
    loads: Mapping[int, int] = field(default_factory=dict)
    stores: Sequence[tuple[Store, Store]] = ()

    @property
    def flat(self) -> bool:
        """Whether the kernel's blocks have one axis."""
        return self.tiling.kind == "flat"

    def variables(self) -> frozenset[str]:
        """The loop variables that have pairs."""
        found = [self.along(*self.loops.instrs[n].meta[:2]) for n in self.loads]
        return frozenset([*found, *[self.along(a, e) for (a, e, _), _ in self.stores]])

    def along(self, target: Pointee, offset: Expr) -> str:
        """The variable of which each value has the element at an offset, and the one behind it, to
        itself: elements of 4 or 8 bytes; "" if there is none."""
        offset = self._untiled(offset)
        numbers = *offset.terms.values(), offset.const
        if dtype_of(target).itemsize < 4 or any([k % 2 for k in numbers]) or not offset.terms:
            return ""
        if self.flat:
            is_p = all([atom.key[:2] == ("var", "p") for atom in offset.terms])
            return "p" if is_p and not is_wide(ix.shift(offset, 1)) else ""
        for x in "j" if self.tiled is not None else "rp":
            mine = [(atom.key[:2], k) for atom, k in offset.terms.items() if x in atom.names]
            if mine == [(("var", x), 2)] and 2 * self.size(x) <= INT32:
                return x
        return ""

    def address(self, offset: Expr, along: str, others: Collection[str]) -> str:
        """The text of the offsets of pairs, of a shape with the axes of the variables `others`."""
        if self.flat:
            # The range has its axis before anything is computed with it (docs/cuda.md,
            # "Alignment").
            first = ix.substitute(offset, "p", ix.var("p2", offset.hi + 2))
            return f"{first.text()} + tl.arange(0, 2)[None, :]"
        offset = self._untiled(offset)
        rest = Expr({a: k for a, k in offset.terms.items() if along not in a.names}, offset.const)
        text = f"{rest.text('_wide' if is_wide(offset) else '')} + {along}2"
        return text + "".join([f" + {x} * 0" for x in sorted({*others} - rest.names)])

    def size(self, variable: str) -> int:
        """The number of values of a loop variable."""
        return {"p": self.loops.rows, "r": self.loops.depth, "j": self.tiling.columns}[variable]

    def shape(self, names: Collection[str]) -> tuple[int, ...]:
        """The shape of a value that varies with the variables `names`, `p` and `r`."""
        rows = self.tiling.block if "p" in names else 1
        if self.flat:
            return (rows,)
        return rows, self.tiling.chunk if self.tiled is not None or "r" in names else 1

    def parted(self, access: str, along: str, names: Collection[str]) -> str:
        """The text of two values, of one of pairs along a variable."""
        if self.flat:
            return f"tl.split({access})"
        rows, chunk = self.shape(names)
        if along == "p":
            return f"tl.split(tl.permute(tl.reshape({access}, ({rows}, 2, {chunk})), (0, 2, 1)))"
        return f"tl.split(tl.reshape({access}, ({rows}, {chunk}, 2)))"

    def joined(self, left: str, right: str, along: str, names: Collection[str]) -> str:
        """The text of pairs along a variable, of two values."""
        if self.flat:
            return f"tl.join({left}, {right})"
        rows, chunk = self.shape(names)
        if along == "p":
            both = f"tl.permute(tl.join({left}, {right}), (0, 2, 1))"
            return f"tl.reshape({both}, ({2 * rows}, {chunk}))"
        return f"tl.reshape(tl.join({left}, {right}), ({rows}, {2 * chunk}))"

    def _untiled(self, e: Expr) -> Expr:
        return e if self.tiled is None else ix.substitute(e, "p", self.tiled)


def find_pairs(loops: Loops, tiling: Tiling, tiled: Expr | None = None) -> Pairs:
    """The pairs of a kernel: of stores and of loads that are under no condition."""
    pairs = Pairs(loops, tiling, tiled)
    read: dict[tuple[Pointee, Expr], int] = {}
    # Loads of every other number come as fast one after the other, so reductions keep the layout
    # that they have.
    whole = tiling.kind in ("flat", "tiled", "row") and not loops.of("reduce")
    for n in loops.of("load") if whole else ():
        target, offset, guards = loops.instrs[n].meta
        if not guards and not loops.instrs[n].args:
            read[target, offset] = n
    partners: dict[int, int] = {}
    for (target, offset), n in read.items():
        other = read.get((target, ix.shift(offset, 1)))
        if other is not None and pairs.along(target, offset):
            partners |= {n: other, other: n}
    written = {(target, offset): (target, offset, n) for target, offset, n in loops.stores}
    stores = [
        (store, written[target, ix.shift(offset, 1)])
        for (target, offset), store in written.items()
        if (target, ix.shift(offset, 1)) in written and pairs.along(target, offset)
    ]
    return Pairs(loops, tiling, tiled, partners, stores)
