"""Emits reductions: of whole tiles, and of tiles that accumulate in a loop.

Names of reduction n: `a{n}` the accumulator, `w{n}` the position of its value, `m{n}` the extreme
of a row, `v{n}` the result.
"""

from __future__ import annotations

from genesis_fn.backends.cuda.codegen.emit import KernelWriter
from genesis_fn.backends.cuda.codegen.loops import INT32, accumulator
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import DType
from genesis_fn.kernels.language.dtypes import MEMORY
from genesis_fn.kernels.language.expressions import literal

_EXTREME = ("maximum", "minimum")


def step(t: KernelWriter, n: int) -> None:
    """Write instruction n of a kernel with whole rows in registers."""
    if t.loops.instrs[n].op == "reduce":
        _reduce_row(t, n)
    else:
        t.emit(n)


def _reduce_row(t: KernelWriter, n: int) -> None:
    i, kind = t.loops.instrs[n], t.loops.accumulator(n)
    x, how = _tile(t, i.args[0], kind), i.meta[0]
    # Elements beyond the row must not count: a masked load gives 0, which is the identity of few.
    if "r" in t.masks:
        x = f"tl.where({t.masks['r']}, {x}, {literal(how.identity(kind), kind)})"
    if not how.position:
        finish(t, n, x)
        return
    t.line(f"a{n} = {x}")
    here = "r" if len(i.args) == 1 else _tile(t, i.args[1], dtypes.widened(i.dtype))
    if "r" in t.masks:
        here = f"tl.where({t.masks['r']}, {here}, {INT32})"
    _position(t, n, here)


def start(t: KernelWriter, n: int) -> None:
    """Define the accumulator of reduction n."""
    shape, kind = f"({t.tiling.block}, {t.tiling.chunk})", t.loops.accumulator(n)
    how = t.loops.instrs[n].meta[0]
    t.line(f"a{n} = tl.zeros({shape}, {MEMORY[kind]}) + {literal(how.identity(kind), kind)}")
    if how.position:
        t.line(f"w{n} = tl.full({shape}, {t.loops.depth}, tl.int32)")


def accumulate(t: KernelWriter, n: int, over: str) -> None:
    """Accumulate this round's tile into reduction n over the variable `over`."""
    i, kind = t.loops.instrs[n], t.loops.accumulator(n)
    x, how = _tile(t, i.args[0], kind), i.meta[0]
    if over in t.masks:
        x = f"tl.where({t.masks[over]}, {x}, {literal(how.identity(kind), kind)})"
    if how.position:
        t.line(f"x{n} = {x}")
        # `w == depth`: nothing was found yet, so that a row of identities has a position too. Of
        # equal values the first stays; the first NaN wins over everything after it.
        sign = ">" if how.combine == "maximum" else "<"
        better = f"(x{n} {sign} a{n}) | (w{n} == {t.loops.depth})"
        if dtypes.is_float(kind):
            better = f"({better} | (x{n} != x{n})) & (a{n} == a{n})"
        if "r" in t.masks:
            better = f"({better}) & {t.masks['r']}"
        t.line(f"t{n} = {better}")
        t.line(f"w{n} = tl.where(t{n}, r, w{n})")
        t.line(f"a{n} = tl.where(t{n}, x{n}, a{n})")
    elif how.combine == "add":
        t.line(f"a{n} += {x}")
    elif how.combine in _EXTREME:
        t.line(f"a{n} = {how.combine}({x}, a{n})")
    elif how.combine == "bit_xor":
        t.line(f"a{n} = a{n} ^ {x}")
    else:
        t.line(f"a{n} = {how.combine}(a{n}, {x})")


def finish_row(t: KernelWriter, n: int) -> None:
    """Define the result of reduction n from its accumulator over `r`."""
    if t.loops.instrs[n].meta[0].position:
        _position(t, n, f"w{n}")
    else:
        finish(t, n, f"a{n}")


def finish(t: KernelWriter, n: int, x: str, axis: int = 1, whole: bool = False) -> None:
    """Define v{n}: tile `x` reduced along an axis; if `whole`, in the accumulator's dtype."""
    i, kind = t.loops.instrs[n], t.loops.accumulator(n)
    combine = i.meta[0].combine
    if combine in _EXTREME:
        t.line(f"x{n} = {x}")
        x = f"x{n}"
    text = reduced(x, combine, kind, axis)
    # Partial results stay in the accumulator's dtype: rounding them would change the sum.
    if not (whole or t.partial or dtypes.widened(i.dtype) == kind):
        text = f"{text} != 0" if i.dtype == dtypes.BOOL else f"({text}).to({MEMORY[i.dtype]})"
    t.line(f"v{n} = {text}")
    t.value[n] = f"v{n}"


def reduced(x: str, combine: str, kind: DType, axis: int) -> str:
    """The text of tile `x`, a name where it is an extreme that is asked for, reduced along an
    axis."""
    if combine == "add":
        return f"tl.sum({x}, {axis}, keep_dims=True)"
    if combine in _EXTREME:
        return _extreme(x, combine == "maximum", kind, axis)
    if combine == "bit_xor":
        return f"tl.xor_sum({x}, {axis}, keep_dims=True)"
    return f"tl.reduce({x}, {axis}, {combine}, keep_dims=True)"


def _position(t: KernelWriter, n: int, here: str) -> None:
    """Define v{n}: the least of the positions `here` at which a{n} is its row's extreme."""
    i, kind = t.loops.instrs[n], t.loops.accumulator(n)
    t.line(f"m{n} = {_extreme(f'a{n}', i.meta[0].combine == 'maximum', kind)}")
    hit = f"a{n} == m{n}"
    if dtypes.is_float(kind):
        hit = f"({hit}) | ((a{n} != a{n}) & (m{n} != m{n}))"
    first = f"tl.min(tl.where({hit}, {here}, {INT32}), 1, keep_dims=True)"
    t.line(f"v{n} = {first}.to({MEMORY[i.dtype]})")
    t.value[n] = f"v{n}"


def _tile(t: KernelWriter, n: int, kind: DType) -> str:
    """The text of value n, broadcast to a whole tile of dtype `kind`."""
    i, text = t.loops.instrs[n], t.value[n]
    if dtypes.widened(i.dtype) != kind:
        text = f"{text}.to({MEMORY[kind]})"
    # With one row in a tile, [1, chunk] is the whole tile.
    if "r" in i.names and ("p" in i.names or t.tiling.block == 1):
        return text
    if not i.names:
        text = f"({text} + tl.zeros((1, 1), {MEMORY[accumulator(i.dtype)]}))"
    return f"tl.broadcast_to({text}, ({t.tiling.block}, {t.tiling.chunk}))"


def _extreme(x: str, greatest: bool, kind: DType, axis: int = 1) -> str:
    """The text of the extremes of tile `x`, a name, along an axis; NaN where there is one, which
    `tl.max` and `tl.min` would drop."""
    f = "max" if greatest else "min"
    if not dtypes.is_float(kind):
        return f"tl.{f}({x}, {axis}, keep_dims=True)"
    worst = 'float("-inf")' if greatest else 'float("inf")'
    clean = f"tl.{f}(tl.where({x} != {x}, {worst}, {x}), {axis}, keep_dims=True)"
    nan = f"tl.max(({x} != {x}).to(tl.int32), {axis}, keep_dims=True) != 0"
    return f'tl.where({nan}, float("nan"), {clean})'
