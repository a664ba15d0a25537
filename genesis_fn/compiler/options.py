"""Optional passes of the compiler, which can be switched off to see what each is worth.

`GENESIS_COMPILER_WITHOUT=in_place,epilogues` in the environment switches passes off for the
process, `with without("epilogues"):` for what is compiled inside. Compiled programs stay as they
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from genesis_fn.core.configuration import environment

PASSES = {
    "computed": "reductions of arrays that are computed and never read have forms of their own",
    "row_factors": "sums of rows do not wait for a factor of the row that comes of other sums",
    "by_columns": "reductions over split axes go by columns first, and share that pass",
    "horizontal": "independent launches become one (horizontal fusion)",
    "row_column_reduce": "one kernel reduces rows and columns",
    "split_rows": "rows are unrolled where concatenations cut them, flat kernels run over rows",
    "products": "matrix products of few rows have prologues and epilogues",
    "in_place": "updates of a part of an array overwrite it if it is not needed any more",
    "carry_turns": "iterations of a loop write their carry elsewhere in turns, and copy nothing",
    "segments": "a sum of matrix products is one product with several pairs of operands",
    "epilogues": "the only reader of a tiled matrix product becomes its epilogue",
    "sums": "sums by segment compute what they add, share sorts, and are one if they are added",
    "stored_casts": "a cast of a product that must be in memory is what its kernel stores",
    "lookups": "kernels do gathers and dynamic slices where they need the elements",
    "recompute": "values that merged kernels store are computed again where that is faster",
    "known_indices": "indices that are known make slices of gathers, and gathers of scatters",
    "random_words": "new keys, and few random bits, are arithmetic in the kernels that need them",
    "rotations": "concatenations that rotate an array are read at an index modulo its length",
    "overlap": "collectives run on a stream of their own, beside kernels that need none of them",
    "overlays": "what an update at a known place replaces most of is computed where it is read",
    "counters": "scans carry no number that counts steps, and no array that they write by it",
    "loop_products": "products with constants, and sums of products, leave scans of few rows",
    "row_loops": "loops whose rows do not wait for each other are one kernel each",
    "team_loops": "programs share the rows of loops with matrices too large for one of them",
    "loop_steps": "several iterations of a loop are one kernel, which computes again what it needs",
    "attention": "attention that is written out becomes the fused functions that have kernels",
    "loads_ahead": "sums for columns load several rounds of their loop at once",
    "repeats": "neighbours along a row that read one element load it once",
    "choices": "a choice between elements of one array is a load at a chosen offset",
    "pointwise_convolutions": "convolutions with a single tap are matrix products",
    "library_convolutions": "convolutions that a library computes faster are calls of it",
    "pitched": "large products read matrices with rows that lie apart, at multiples of 16 bytes",
    "grouped": "matrix products with too few tiles to fill the GPU share launches",
}


def _checked(names: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        if name not in PASSES:
            raise ValueError(f"the compiler has no pass {name!r}; it has {', '.join(PASSES)}")
    return frozenset(names)


# Read once: a program's kernels would otherwise depend on when each was compiled.
_named = environment.text("GENESIS_COMPILER_WITHOUT").replace(" ", "")
_off = _checked(tuple([name for name in _named.split(",") if name]))


def enabled(name: str) -> bool:
    """Whether pass `name` runs."""
    return name not in _off


@contextlib.contextmanager
def without(*names: str) -> Generator[None]:
    """Switch passes off for what is compiled inside, in all threads of the process."""
    global _off
    before = _off
    _off = before | _checked(names)
    try:
        yield
    finally:
        _off = before
