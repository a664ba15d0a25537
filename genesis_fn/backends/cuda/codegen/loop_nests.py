"""Writes whole kernels: the loops around the instructions, for each kind of tiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.codegen.emit import KernelWriter, Parameter
from genesis_fn.backends.cuda.codegen.kernel_text import source_kernel
from genesis_fn.backends.cuda.codegen.loops import INT32, Loops, Store, is_wide, needed
from genesis_fn.backends.cuda.codegen.pairs import find_pairs
from genesis_fn.backends.cuda.codegen.reductions import accumulate, finish, finish_row, start, step
from genesis_fn.backends.cuda.codegen.source import kernel
from genesis_fn.backends.cuda.codegen.tiling import Tiling
from genesis_fn.core.backend import index as ix
from genesis_fn.kernels.language.expressions import loaded
from genesis_fn.kernels.plan_builder import cdiv


def write_kernel(loops: Loops, tiling: Tiling) -> tuple[SourceKernel, Mapping[str, Parameter]]:
    """Write the kernel that computes `loops`: (kernel, its parameters by name)."""
    t = KernelWriter(loops, tiling)
    for counter, name in loops.counters.items():
        t.line(f"{name} = tl.load({t.pointer(counter, False)})")
    name, write = _NESTS[tiling.kind]
    write(t)
    body = "".join([f"{line}\n" for line in t.lines or ["    pass"]])
    # What flags an error stands in no other kernel, so its module is needed in no other.
    made = source_kernel if loops.sites else kernel
    return made(name, ", ".join(t.parameters), body), t.parameters


# ---- pointwise ----


def _flat(t: KernelWriter) -> None:
    """Program i computes the i-th block of elements."""
    n, block = t.loops.rows, t.tiling.block
    first = f"tl.program_id(0){_cast(n, block)} * {block}"
    t.line(f"p = {first} + tl.arange(0, {block})")
    if t.pairs.variables():
        t.line(f"p2 = {first} + tl.arange(0, {block})[:, None]")
    t.bounded("p", n, n % block == 0)
    _straight_line(t)


def _tiled(t: KernelWriter) -> None:
    """Programs compute tiles of `block` by `chunk`, in row-major order of tiles."""
    tiling = t.tiling
    # Triton 3.6 takes an index's divisibility for each axis from how it was made: ranges get their
    # axes first and are computed with then (docs/cuda.md, "Alignment").
    rows, columns = t.loops.rows // tiling.columns, tiling.columns
    across = cdiv(columns, tiling.chunk)
    t.line(
        f"i = tl.program_id(0) // {across} * {tiling.block} + tl.arange(0, {tiling.block})[:, None]"
    )
    t.line(
        f"j = tl.program_id(0) % {across} * {tiling.chunk} + tl.arange(0, {tiling.chunk})[None, :]"
    )
    t.bounded("i", rows, rows % tiling.block == 0)
    t.bounded("j", columns, columns % tiling.chunk == 0)
    t.tiled = ix.add(ix.scale(ix.var("i", rows), columns), ix.var("j", columns))
    t.pairs = find_pairs(t.loops, tiling, t.tiled)
    if t.pairs.variables():
        first = f"tl.program_id(0) % {across} * {2 * tiling.chunk}"
        t.line(f"j2 = {first} + tl.arange(0, {2 * tiling.chunk})[None, :]")
    _straight_line(t)


def _straight_line(t: KernelWriter) -> None:
    """Write all instructions and stores."""
    t.wide_names()
    for n in range(len(t.loops.instrs)):
        t.emit(n)
    t.stores(t.loops.stores)


# ---- rows on chip ----


def _row(t: KernelWriter) -> None:
    """Program i computes the i-th block of rows, each whole."""
    _rows(t)
    _whole_row(t)
    t.wide_names()
    for n in needed(t.loops.instrs, [n for _, _, n in t.loops.stores]):
        step(t, n)
    t.stores(t.loops.stores)


def _rows(t: KernelWriter) -> None:
    """Define `p` and its mask."""
    rows, block = t.loops.rows, t.tiling.block
    first = f"tl.program_id(0){_cast(rows, block)} * {block}"
    t.line(f"p = {first} + tl.arange(0, {block})[:, None]")
    if "p" in t.pairs.variables():
        t.line(f"p2 = {first} * 2 + tl.arange(0, {2 * block})[:, None]")
    t.bounded("p", rows, rows % block == 0)


def _whole_row(t: KernelWriter) -> None:
    """Define `r` and its mask, where a row is one chunk."""
    t.line(f"r = tl.arange(0, {t.tiling.chunk})[None, :]")
    if len(t.chosen) > len(set(t.loops.of("load")) - t.replaced):
        # Most loads are at chosen offsets, an element at a time: others get the same layout.
        t.line("r = tl.max_contiguous(r, [1, 1])")
    if "r" in t.pairs.variables():
        t.line(f"r2 = tl.arange(0, {2 * t.tiling.chunk})[None, :]")
    t.bounded("r", t.loops.depth, t.loops.depth == t.tiling.chunk)


def _cast(n: int, block: int, beyond: int = 0) -> str:
    """The cast that a program's number needs so that `n` elements in blocks, and `beyond` more, do
    not overflow int32."""
    return ".to(tl.int64)" if cdiv(n, block) * block + beyond > INT32 else ""


# ---- slabs ----


def _slab(t: KernelWriter) -> None:
    """Program i computes every `splits`-th block of rows, and accumulates their columns.

    Software pipelining: the loads of the next block are issued before the present one is computed.
    The partial sums of columns go to a workspace that a second kernel combines.
    """
    loops, tiling, instrs = t.loops, t.tiling, t.loops.instrs
    columns = loops.of("column_reduce")
    roots = [n for _, _, n in loops.stores] + [instrs[n].args[0] for n in columns]
    used = needed(instrs, roots)
    _whole_row(t)
    t.wide_names(p=False)
    # What does not vary by row (weights) is loaded once, before the loop.
    for n in used:
        if "p" not in instrs[n].names:
            step(t, n)
    for n in columns:
        start(t, n)
    # Only these read new memory with every row; the others read what earlier rows have read.
    ahead = [n for n in used if tiling.ahead and loops.streams(n)]
    stride = tiling.splits * tiling.block
    block = f"tl.arange(0, {tiling.block})[:, None]"
    t.line(f"first = tl.program_id(0){_cast(loops.rows, tiling.block, stride)} * {tiling.block}")
    if ahead:
        t.line(f"q = first + {block}")
        _load_ahead(t, ahead)
    t.line(f"for start in range(first, {loops.rows}, {stride}):")
    t.depth += 1
    t.line(f"p = start + {block}")
    if "p" in t.pairs.variables():
        t.line(f"p2 = start * 2 + tl.arange(0, {2 * tiling.block})[:, None]")
    t.bounded("p", loops.rows, loops.rows % tiling.block == 0)
    t.wide_names(r=False)
    for n in ahead:
        t.value[n] = f"v{n}"
        t.line(f"v{n} = {loaded(f'n{n}', instrs[n].meta[0].aval.dtype)}")
    if ahead:
        # Rows `q` of the last round are beyond the end, and masked.
        t.line(f"q = p + {stride}")
        _load_ahead(t, ahead)
    for n in used:
        if "p" in instrs[n].names and n not in ahead:
            step(t, n)
    for n in columns:
        accumulate(t, n, "p")
    t.stores(loops.stores)
    t.depth -= 1
    # After the loop: each program's columns, [splits, columns], without the mask of its last rows.
    t.masks.pop("p", None)
    for n, (part,) in loops.partial_results("column_reduce").items():
        finish(t, n, f"a{n}", axis=0, whole=True)
        address = f"tl.program_id(0) * {loops.depth} + r"
        t.put(t.pointer(part, True), address, f"v{n}", t.masks.get("r", ""))


def _load_ahead(t: KernelWriter, loads: Sequence[int]) -> None:
    """Write loads of rows `q`, as n{i}: those of the next round."""
    rows, instrs = t.loops.rows, t.loops.instrs
    before, t.masks = t.masks, {k: v for k, v in t.masks.items() if k != "p"}
    t.bounded("q", rows, exact=False)
    if any(is_wide(instrs[n].meta[1]) for n in loads):
        t.line("q_wide = q.to(tl.int64)")
    for n in loads:
        target, offset, guards = instrs[n].meta
        names = (instrs[n].names - {"p"}) | {"q"}
        address = ix.substitute(offset, "p", ix.var("q", rows)) if rows > 1 else offset
        t.line(f"n{n} = {t.get(target, address, names, guards)}")
    t.masks = before


# ---- rows in a loop ----


def _looped(t: KernelWriter) -> None:
    """One pass over r for each level of reductions, and one for stores that need the last.

    An instruction's level is the number of reductions that it needs one after the other (a softmax
    has 0, 1 and 2), so that each pass may use the results of those before.
    """
    loops, instrs = t.loops, t.loops.instrs
    _rows(t)
    if (count := _neighbours(loops)) > 1:
        t.line(f"p = tl.max_contiguous(p, [{count}, 1])")
    t.wide_names(r=False)
    fixed = [n for n, i in enumerate(instrs) if "r" not in i.names and i.op != "reduce"]
    stores = [s for s in loops.stores if "r" in s[1].names]
    level_of = {n: instrs[instrs[n].args[0]].level for n in loops.of("reduce")}
    for level in sorted({*level_of.values()} | {instrs[n].level for _, _, n in stores}):
        if t.partial and level > 0:
            break  # needs whole reductions, which the second kernel combines
        _fixed(t, [n for n in fixed if instrs[n].level <= level])
        reductions = [n for n in level_of if level_of[n] == level]
        _pass(t, reductions, [s for s in stores if instrs[s[2]].level == level])
    flat = [s for s in loops.stores if "r" not in s[1].names]
    if t.partial:
        _store_parts(t, flat)
        return
    _fixed(t, fixed)
    for store in flat:
        t.store(store)


def _neighbours(loops: Loops) -> int:
    """How many neighbours a thread has of tiles that are loaded in fewer bits than they are stored
    in; 0 for as many as Triton gives it. That is 16 bytes of either, so that it would compute each
    element twice, in the layout of what is loaded and in that of what is stored."""
    whole = {"p", "r"}
    read = [i.dtype.itemsize for i in loops.instrs if i.op == "load" and i.names >= whole]
    written = [v.aval.dtype.itemsize for v, e, _ in loops.stores if e.names >= whole]
    if loops.inner or not read or not written or min(read) >= max(written):
        return 0
    return 16 // max(written)


def _fixed(t: KernelWriter, instrs: Sequence[int]) -> None:
    """Write those of the instructions that are not written yet."""
    for n in instrs:
        if n not in t.value:
            t.emit(n)


def _pass(t: KernelWriter, reductions: Sequence[int], stores: Sequence[Store]) -> None:
    """Write a loop over r that computes some reductions and stores."""
    loops, tiling, instrs = t.loops, t.tiling, t.loops.instrs
    for n in reductions:
        start(t, n)
    exact = loops.depth % tiling.chunk == 0
    span = f"0, {loops.depth}, {tiling.chunk}"
    if t.partial:
        t.line(f"first = tl.program_id(1) * {tiling.length}")
        span = f"first, first + {tiling.length}, {tiling.chunk}"
        exact = exact and loops.depth == tiling.length * tiling.splits
    ahead = tiling.stages > 1
    each = f"tl.range({span}, num_stages={tiling.stages})" if ahead else f"range({span})"
    t.line(f"for start in {each}:")
    t.depth += 1
    t.line(f"r = start + tl.arange(0, {tiling.chunk})[None, :]")
    if "r" in t.pairs.variables():
        t.line(f"r2 = start * 2 + tl.arange(0, {2 * tiling.chunk})[None, :]")
    # Values along `r` exist inside the loop only.
    before = dict(t.value), dict(t.masks)
    t.bounded("r", loops.depth, exact)
    t.wide_names(p=False)
    roots = [instrs[n].args[0] for n in reductions] + [n for _, _, n in stores]
    for n in needed(instrs, roots):
        if "r" in instrs[n].names and instrs[n].op != "reduce":
            t.emit(n)
    for n in reductions:
        accumulate(t, n, "r")
    t.stores(stores)
    t.depth -= 1
    t.value, t.masks = before
    for n in reductions:
        finish_row(t, n)


def _store_parts(t: KernelWriter, stores: Sequence[Store]) -> None:
    """Write stores of partial results, and of values that need no reduction."""
    address = f"tl.program_id(1) * {t.loops.rows} + p"
    for n, parts in t.loops.partial_results("reduce").items():
        values = [f"m{n}", t.value[n]] if len(parts) == 2 else [t.value[n]]
        for part, value in zip(parts, values, strict=True):
            t.put(t.pointer(part, True), address, value, t.masks.get("p", ""))
    for store in stores:
        # Every split computes the same value; one of them stores it.
        t.line("if tl.program_id(1) == 0:")
        t.depth += 1
        t.store(store)
        t.depth -= 1


_NESTS: dict[str, tuple[str, Callable[[KernelWriter], None]]] = {
    "flat": ("pointwise", _flat), "tiled": ("tiles", _tiled), "row": ("rows", _row),
    "slab": ("slabs", _slab), "looped": ("loop", _looped),
}  # fmt: skip
