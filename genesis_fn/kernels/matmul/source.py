"""The Triton source of matrix products: one template, into which prologues and epilogues are put.

A plain product is the template with an empty epilogue. Sizes and strides are names (`M`, `L_K`...)
that a launch sets as constants, so one text serves many shapes. From the bottom:
`persistent_source` and `tiled_source` write a kernel, `product_lines` one tile, `loop_lines` its
sum over k, `output_lines` its epilogue and store.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from genesis_fn.kernels.language.element_types import FLOAT8, ITEMSIZE, TRITON_NAMES
from genesis_fn.kernels.matmul.spec import MatmulConfig, MatmulSpec
from genesis_fn.kernels.plan_builder import INT32_MAX, next_power_of_two

_TL = {name: f"tl.{named}" for name, named in TRITON_NAMES.items()}
_GROUP = 8  # rows of tiles that are walked together, for the L2 cache
_AXES = {"lhs": "MK", "rhs": "KN", "out": "MN"}


@dataclass(frozen=True, slots=True)
class MatmulSource:
    """One product in a kernel's source: its spec, its configuration, and how it stores tiles.

    `suffix` tells the names of one problem of a group from another's; `out` is "descriptor",
    "pointer" or "partial" (a split of k stores its accumulator in a workspace).
    """

    spec: MatmulSpec
    config: MatmulConfig
    out: str
    suffix: str = ""

    def name(self, name: str) -> str:
        """`name` with this product's suffix."""
        return name + self.suffix

    def numbers(self) -> dict[str, int]:
        """The sizes and strides that the text names, with their values."""
        spec, numbers = self.spec, {"M": self.spec.m, "N": self.spec.n, "K": self.spec.k}
        numbers |= {f"B{i}": size for i, size in enumerate(spec.batch)}
        numbers |= {f"K_s{i}": part.k for i, part in enumerate(spec.segments, 1)}
        for operand, axes in _AXES.items():
            letter = operand[0].upper()
            names = [f"B{i}" for i in range(len(spec.batch))] + list(axes)
            steps = spec.strides(operand)
            numbers |= {f"{letter}_{x}": s for x, s in zip(names, steps, strict=True)}
        return {self.name(key): value for key, value in numbers.items()}

    def divides(self, size: str, block: int) -> bool:
        """Whether blocks cover a size exactly, so that no mask is needed."""
        return self.numbers()[self.name(size)] % block == 0

    def wide(self, operand: str) -> bool:
        """Whether the operand's offsets may need 64 bits."""
        return self.spec.extent(operand) > INT32_MAX


def kernel_text(name: str, parameters: Iterable[str], body: Iterable[str]) -> str:
    """The text of a kernel definition."""
    return f"def {name}({', '.join(parameters)}):\n" + "\n".join("    " + x for x in body) + "\n"


def indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    """The lines, `levels` deeper."""
    return ["    " * levels + line for line in lines]


def product_lines(text: MatmulSource, tile: str) -> list[str]:
    """The lines that compute and store the output tile number `tile` (all splits counted)."""
    spec, config, n = text.spec, text.config, text.name
    lines = [f"tiles_m = ({n('M')} + {config.bm - 1}) // {config.bm}"]
    lines += [f"tiles_n = ({n('N')} + {config.bn - 1}) // {config.bn}", f"rest = {tile}"]
    if config.split_k > 1:
        lines += [f"split = rest % {config.split_k}", f"rest = rest // {config.split_k}"]
    if spec.batch:
        lines += ["batch = rest // (tiles_m * tiles_n)", "rest = rest % (tiles_m * tiles_n)"]
        lines += batch_lines(text)
    lines += [
        f"tile_m, tile_n = tile_of(rest, tiles_m, tiles_n, {_GROUP})",
        f"m0 = tile_m * {config.bm}",
        f"n0 = tile_n * {config.bn}",
        f"rm = m0 + tl.arange(0, {config.bm})[:, None]",
        f"rn = n0 + tl.arange(0, {config.bn})[None, :]",
        *loop_lines(text),
        *output_lines(text),
    ]
    return lines


def batch_lines(text: MatmulSource) -> list[str]:
    """`b0`, `b1`, ... from `batch`, the number of a product."""
    lines, rank = [], len(text.spec.batch)
    for i in range(rank):
        inner = " * ".join(text.name(f"B{j}") for j in range(i + 1, rank))
        value = f"batch // ({inner})" if inner else "batch"
        lines.append(f"b{i} = ({value}) % {text.name(f'B{i}')}" if i else f"b{i} = {value}")
    return lines


def base_lines(text: MatmulSource, operand: str, pointer: str) -> list[str]:
    """`{pointer}_at`, the pointer moved to the current product's operand."""
    letter, terms = operand[0].upper(), []
    for i in range(len(text.spec.batch)):
        if text.spec.strides(operand)[i]:
            terms.append(f"b{i}.to(tl.int64) * {text.name(f'{letter}_B{i}')}")
    at = " + ".join([text.name(pointer), *terms])
    return [f"{pointer}_at = {at}"]


def index_text(text: MatmulSource, operand: str, row: str, col: str) -> str:
    """The offset of element (row, col) of an operand from its product's base."""
    letter, axes = operand[0].upper(), _AXES[operand]
    if text.wide(operand):
        row, col = (x if x.isdigit() else f"({x}).to(tl.int64)" for x in (row, col))
    steps = [text.name(f"{letter}_{axis}") for axis in axes]
    return f"{row} * {steps[0]} + {col} * {steps[1]}"


def mask_text(conditions: Iterable[str], dtype: str) -> str:
    """The mask and fill arguments of a load, empty when nothing can be out of range."""
    mask = " & ".join(f"({x})" for x in conditions)
    return f", mask={mask}, other={zero_text(dtype)}" if mask else ""


def zero_text(dtype: str) -> str:
    """Zero, such that Triton can convert it to the type (float8 only from floats)."""
    return "0.0" if dtype.startswith(("fp", "bf")) else "0"


# ---- the loop over k ----


def loop_lines(text: MatmulSource) -> list[str]:
    """`acc` (and `acc1`): the tile's sum over this split's part of k."""
    spec, config = text.spec, text.config
    if config.family == "gemv":
        return gemv_lines(text)
    shape = (config.bn, config.bm) if config.swap else (config.bm, config.bn)
    sliced = config.slices > 1
    if sliced:
        shape = (config.slices, *shape)
    zeros = f"tl.zeros({shape}, {_TL[spec.acc_dtype]})"
    lines = [f"acc = {zeros}"] + [f"acc1 = {zeros}"] * spec.gated
    steps, k0 = steps_text(text), k0_text(text)
    tma = config.family == "tma"
    exact_k = text.divides("K", config.bk * config.split_k)
    body = [k0, *segment_lines(text)]
    sides = [("lhs", "lhs", "a"), ("rhs", "rhs", "b")] + [("rhs", "rhs1", "b1")] * spec.gated
    if not tma:
        first, part = "k0", config.bk // config.slices
        if sliced:
            # Products of many matrices: Triton gives each warp some of them.
            first = f"k0 + {part} * tl.arange(0, {config.slices})[:, None, None]"
        body += [f"rk_row = {first} + tl.arange(0, {part})[None, :]"]
        body += [f"rk_col = {first} + tl.arange(0, {part})[:, None]"]
    for operand, pointer, value in sides:
        if tma:
            body += descriptor_load_lines(text, operand, pointer, value)
        else:
            lines += base_lines(text, operand, pointer)
            body += pointer_load_lines(text, operand, pointer, value, exact_k)
    body += dot_lines(text)
    lines += [f"for step in range({steps}):", *indent(body)]
    if sliced:
        lines += ["acc = tl.sum(acc, axis=0)"] + ["acc1 = tl.sum(acc1, axis=0)"] * spec.gated
    # Swapped, the few rows are the columns of the product: Hopper's tensor cores take 64 rows.
    if config.swap:
        lines += ["acc = tl.trans(acc)"] + ["acc1 = tl.trans(acc1)"] * spec.gated
    return lines


def steps_text(text: MatmulSource) -> str:
    """The number of blocks of k in one split, those of all segments counted."""
    return " + ".join(blocks_texts(text))


def blocks_texts(text: MatmulSource) -> list[str]:
    """The number of blocks of k of each segment (of the only one, in one split)."""
    block = text.config.bk * text.config.split_k
    sizes = ["K", *(f"K_s{i}" for i in range(1, len(text.spec.segments) + 1))]
    return [f"({text.name(size)} + {block - 1}) // {block}" for size in sizes]


def segment_lines(text: MatmulSource) -> list[str]:
    """`lhs_now`, `rhs_now` and `k0`: the operands of the segment that a step belongs to.

    The descriptor's address is selected, so that one pipelined loop runs through all segments.
    """
    count, blocks = len(text.spec.segments), blocks_texts(text)
    lines = []
    # From the last segment on, so that one comparison tells each from those before it.
    for i in range(count, 0, -1) if count else ():
        before = " + ".join(blocks[:i])
        lines += [
            f"{'if' if i == count else 'elif'} step >= {before}:",
            f"    lhs_now = {text.name(f'lhs_s{i}')}",
            f"    rhs_now = {text.name(f'rhs_s{i}')}",
            f"    k0 = (step - ({before})) * {text.config.bk}",
        ]
    if count:
        lines += ["else:", f"    lhs_now = {text.name('lhs')}", f"    rhs_now = {text.name('rhs')}"]
    return lines


def k0_text(text: MatmulSource) -> str:
    """The line that sets `k0`, the first k of block number `step` of this split."""
    first = f"split * ({steps_text(text)}) + step" if text.config.split_k > 1 else "step"
    return f"k0 = ({first}) * {text.config.bk}"


def gemv_lines(text: MatmulSource) -> list[str]:
    """`acc` (and `acc1`) [rows, cols] by multiplying and adding, for a handful of rows.

    The right operand's tile stays in the registers it was loaded into: each row of the left one is
    loaded in the same layout (its copies come from the L1 cache), so nothing moves between threads
    until one sum over k at the end. The tile is [cols, k] or [k, cols], contiguous axis last. A few
    steps are written out, with all of their tiles of the right operand loaded first: they are what
    takes time, and do not wait for what makes the left operand.
    """
    spec, config = text.spec, text.config
    deep = spec.contiguous_axis("rhs") == 0
    shape = (config.bn, config.bk) if deep else (config.bk, config.bn)
    wide, rows, hooks = _TL[spec.acc_dtype], min(config.bm, spec.m), spec.hooks
    cols = f"n0 + tl.arange(0, {config.bn})" + ("[:, None]" if deep else "[None, :]")
    names = [("rhs", "acc", "right"), ("rhs1", "acc1", "right1")][: 2 if spec.gated else 1]
    lines = [f"rn_at = {cols}"]
    if not hooks.lhs:
        lines += base_lines(text, "lhs", "lhs")
    for pointer, acc, _ in names:
        lines += base_lines(text, "rhs", pointer)
        lines += [f"{acc}_{row} = tl.zeros({shape}, {wide})" for row in range(rows)]
    setup: list[str] = []
    # What the left operand's lines assign themselves may have another shape in a step.
    own = assigned_names(hooks.setup) - assigned_names(hooks.lhs)
    for row in range(rows) if own else ():
        setup += [f"rm = tl.full((1, 1), {row}, tl.int32)"]
        setup += renamed(hooks.setup, assigned_names(hooks.setup), f"_{row}")
    unrolled = gemv_steps(text)
    if unrolled:
        # All loads of the right operand first: they take the time, and depend on nothing that the
        # kernel before this one writes.
        for step in range(unrolled):
            lines += [f"step = {step}", *gemv_right_lines(text, deep, str(step))]
        if config.early:
            lines += ["if EARLY:", "    wait_for_dependencies()"]
        lines += setup
        for step in range(unrolled):
            lines += [f"rk = rk{step}", *gemv_left_lines(text, shape, own, str(step))]
    else:
        body = [*gemv_right_lines(text, deep, ""), *gemv_left_lines(text, shape, own, "")]
        lines += [*setup, f"for step in range({steps_text(text)}):", *indent(body)]
    lines += [f"rm = m0 + tl.arange(0, {config.bm})[:, None]"]
    here = "rm" if spec.m <= config.bm else "rm - m0"
    for _, acc, _ in names:
        for row in range(rows):
            total = f"tl.sum({acc}_{row}, axis={1 if deep else 0})[None, :]"
            lines += [
                f"{acc} = tl.where({here} == {row}, {total}, {acc})"
                if row
                else f"{acc} = tl.broadcast_to({total}, ({config.bm}, {config.bn}))"
            ]
    return lines


_MAX_UNROLLED = 4
MAX_WRITTEN_OUT = 16  # splits whose sum is written out
_MAX_IN_FLIGHT = 192  # bytes of the right operand's tiles that a thread holds at once


def gemv_steps(text: MatmulSource) -> int:
    """The number of blocks of k in one split if they are few enough to be written out, else 0."""
    spec, config = text.spec, text.config
    steps = -(-spec.k // (config.bk * config.split_k))
    size = ITEMSIZE[spec.rhs_dtype] * (2 if spec.gated else 1)
    in_flight = steps * config.bk * config.bn * size // (32 * config.warps)
    return steps if steps <= _MAX_UNROLLED and in_flight <= _MAX_IN_FLIGHT else 0


def gemv_right_lines(text: MatmulSource, deep: bool, number: str) -> list[str]:
    """`rk` and `right` (and `right1`), with `number` appended: a step's tiles of the right side."""
    spec, config, n = text.spec, text.config, text.name
    rk = f"k0 + tl.arange(0, {config.bk})" + ("[None, :]" if deep else "[:, None]")
    lines = [k0_text(text), f"rk = {rk}"]
    edges = [] if text.divides("N", config.bn) else [f"rn_at < {n('N')}"]
    edges += [] if text.divides("K", config.bk * config.split_k) else [f"rk < {n('K')}"]
    mask = mask_text(edges, spec.rhs_dtype)
    for pointer, value in [("rhs", "right"), ("rhs1", "right1")][: 2 if spec.gated else 1]:
        lines += [f"b = tl.load({pointer}_at + ({index_text(text, 'rhs', 'rk', 'rn_at')}){mask})"]
        lines += [f"{value}{number} = b"]
    return [*lines, f"rk{number} = rk"] if number else lines


def gemv_left_lines(
    text: MatmulSource, shape: tuple[int, int], own: set[str], number: str
) -> list[str]:
    """The products of a step's tiles with every row of the left operand, added up."""
    spec, config, n, hook = text.spec, text.config, text.name, text.spec.hooks.lhs
    wide = _TL[spec.acc_dtype]
    exact = text.divides("K", config.bk * config.split_k)
    edge = [] if exact else [f"tl.broadcast_to(rk < {n('K')}, {shape})"]
    mask = mask_text(edge, spec.lhs_dtype)
    lines = []
    if hook:
        lines += [f"rk_row = tl.broadcast_to(rk, {shape})"]
    for row in range(min(config.bm, spec.m)):
        if hook:
            lines += [f"rm = tl.full((1, 1), {row}, tl.int32)"]
            lines += renamed(hook, own, f"_{row}")
            lines += [f"a = cast(a, {_TL[spec.operand_dtype]})"]
        else:
            at = f"lhs_at + ({index_text(text, 'lhs', gemv_row_text(text, row), 'rk')})"
            lines += [f"a = tl.load(tl.broadcast_to({at}, {shape}){mask})"]
        lines += [f"a = cast(a, {wide})"]
        for acc, value in [("acc", "right"), ("acc1", "right1")][: 2 if spec.gated else 1]:
            lines += [f"{acc}_{row} += a * cast({value}{number}, {wide})"]
    return lines


def gemv_row_text(text: MatmulSource, row: int) -> str:
    """Row number `row` of the tile, in the product. Rows past the last repeat it: they are not
    stored."""
    if text.spec.m <= text.config.bm:
        return str(row)
    here = f"m0 + {row}"
    exact = text.divides("M", text.config.bm)
    return f"({here})" if exact else f"tl.minimum({here}, {text.name('M')} - 1)"


def assigned_names(source: str) -> set[str]:
    """The names that the lines assign."""
    nodes = ast.walk(ast.parse(source))
    return {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


def renamed(source: str, names: set[str], suffix: str) -> list[str]:
    """The lines with `suffix` added to every use of `names`."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id += suffix
    return ast.unparse(tree).splitlines()


def descriptor_load_lines(text: MatmulSource, operand: str, pointer: str, value: str) -> list[str]:
    """`value`, the operand's tile, by TMA; elements out of range are zero."""
    spec, config = text.spec, text.config
    corner = ["m0", "k0"] if operand == "lhs" else ["k0", "n0"]
    block = (config.bm, config.bk) if operand == "lhs" else (config.bk, config.bn)
    # A descriptor's last axis is the contiguous one: a transposed operand is turned after its load.
    flipped = spec.contiguous_axis(operand) == 0
    if flipped:
        corner, block = corner[::-1], block[::-1]
    batch = [f"b{i}" for i in range(len(spec.batch)) if spec.strides(operand)[i]]
    source = f"{operand}_now" if spec.segments else text.name(pointer)
    load = f"{source}.load([{', '.join(batch + corner)}])"
    if batch:
        load = f"tl.reshape({load}, {block})"
    return [f"{value} = tl.trans({load})" if flipped else f"{value} = {load}"]


def pointer_load_lines(
    text: MatmulSource, operand: str, pointer: str, value: str, exact_k: bool
) -> list[str]:
    """`value`, the operand's tile, through pointers; elements out of range are zero."""
    config, n = text.config, text.name
    if operand == "lhs":
        row, col, depth = "rm", "rk_row", "rk_row"
        edge = [] if text.divides("M", config.bm) else [f"rm < {n('M')}"]
    else:
        row, col, depth = "rk_col", "rn", "rk_col"
        edge = [] if text.divides("N", config.bn) else [f"rn < {n('N')}"]
    dtype = text.spec.lhs_dtype if operand == "lhs" else text.spec.rhs_dtype
    mask = mask_text(edge + ([] if exact_k else [f"{depth} < {n('K')}"]), dtype)
    return [f"{value} = tl.load({pointer}_at + ({index_text(text, operand, row, col)}){mask})"]


def dot_lines(text: MatmulSource) -> list[str]:
    """`acc += a @ b` (and `acc1 += a @ b1`)."""
    spec, lines = text.spec, []
    kind, wide = spec.operand_dtype, _TL[spec.acc_dtype]
    for value, dtype in [("a", spec.lhs_dtype), ("b", spec.rhs_dtype), ("b1", spec.rhs_dtype)]:
        if value == "b1" and not spec.gated:
            continue
        # Mixed 8-bit floats are multiplied as they are; other operands take the wider type.
        target = dtype if kind in FLOAT8 else kind
        if dtype != target:
            lines.append(f"{value} = cast({value}, {_TL[target]})")
    for acc, b in [("acc", "b")] + [("acc1", "b1")] * spec.gated:
        # Without tensor cores the products are written out, then summed: [m, k, n] in registers.
        if not text.config.tensor_cores:
            product = f"cast(a, {wide})[:, :, None] * cast({b}, {wide})[None, :, :]"
            lines.append(f"{acc} += tl.sum({product}, axis=1)")
        elif text.config.swap:
            lines.append(f"{acc} = dot(tl.trans({b}), tl.trans(a), {acc}, {spec.precision!r})")
        else:
            lines.append(f"{acc} = dot(a, {b}, {acc}, {spec.precision!r})")
    return lines


# ---- the output tile ----


def output_lines(text: MatmulSource) -> list[str]:
    """Epilogue and store of the tile, whole or in parts."""
    config = text.config
    if config.subtiles == 1:
        return part_lines(text, config.bn, "n0")
    return split_lines(text, config.bn, "n0", config.subtiles, "")


def split_lines(text: MatmulSource, width: int, column: str, parts: int, side: str) -> list[str]:
    """Epilogue and store of `acc`, whose `width` columns start at `column`, in `parts`."""
    if parts == 1:
        lines = [f"rn = {column} + tl.arange(0, {width})[None, :]"]
        return lines + part_lines(text, width, column)
    # Halves of halves: Triton can only split a tile in two (`halves`), in registers.
    half, right, two = width // 2, f"right{side}", text.spec.gated
    lines = [f"acc, acc_{right} = halves(acc)"] + [f"acc1, acc1_{right} = halves(acc1)"] * two
    lines += split_lines(text, half, column, parts // 2, f"{side}_l")
    lines += [f"acc = acc_{right}"] + [f"acc1 = acc1_{right}"] * two
    return lines + split_lines(text, half, f"{column} + {half}", parts // 2, f"{side}_r")


def part_lines(text: MatmulSource, width: int, column: str) -> list[str]:
    """Epilogue and store of `acc`, whose columns start at `column`."""
    spec, config, n = text.spec, text.config, text.name
    inside = inside_line(text, config.bm, width)
    if text.out == "partial":
        return [inside, *partial_store_lines(text, width, column)]
    lines = [inside, *epilogue_lines(text)]
    if spec.accumulate and not adds_in_place(text):
        lines += base_lines(text, "out", "held")
        address = f"held_at + ({index_text(text, 'out', 'rm', 'rn')})"
        zero = zero_text(spec.out_dtype)
        lines += [f"acc = acc + up(tl.load({address}, mask=inside, other={zero}))"]
    value = f"cast(acc, {_TL[spec.rounded]})" if spec.rounded else "acc"
    value = f"cast({value}, {_TL[spec.out_dtype]})"
    if text.out == "descriptor":
        batch = [f"b{i}" for i in range(len(spec.batch))]
        if batch:
            value = f"tl.reshape({value}, {(*[1] * len(batch), config.bm, width)})"
        corner = f"[{', '.join([*batch, 'm0', column])}]"
        if adds_in_place(text):
            return [*lines, f"add_into({n('out')}, {corner}, {value})"]
        return [*lines, f"{n('out')}.store({corner}, {value})"]
    address = f"out_at + ({index_text(text, 'out', 'rm', 'rn')})"
    lines += base_lines(text, "out", "out")
    return [*lines, f"tl.store({address}, {value}{store_mask(text, width)})"]


def adds_in_place(text: MatmulSource) -> bool:
    """Whether the stores themselves add to the output, so that it need not be read."""
    spec = text.spec
    return spec.accumulate and text.out == "descriptor" and spec.out_dtype == "fp32"


def inside_line(text: MatmulSource, rows: int, width: int) -> str:
    """`inside`, which elements of the tile exist (a constant if all do)."""
    n = text.name
    if text.divides("M", rows) and text.divides("N", width):
        return "inside = tl.full((1, 1), 1, tl.int1)"
    return f"inside = (rm < {n('M')}) & (rn < {n('N')})"


def store_mask(text: MatmulSource, width: int) -> str:
    """The mask argument of the output's store, empty if every element exists."""
    exact = text.divides("M", text.config.bm) and text.divides("N", width)
    return "" if exact else ", mask=inside"


def partial_store_lines(text: MatmulSource, width: int, column: str) -> list[str]:
    """Store `acc` (and `acc1`) into the workspace [split, product (gate), batch, m, n]."""
    n, lines = text.name, []
    batches = " * ".join(n(f"B{i}") for i in range(len(text.spec.batch)))
    planes = 2 if text.spec.gated else 1
    for plane, value in enumerate(["acc", "acc1"][:planes]):
        slot = f"split * {planes} + {plane}"
        if batches:
            slot = f"({slot}) * ({batches}) + batch"
        if partial_descriptor(text):
            tile = f"tl.reshape({value}, {(1, text.config.bm, width)})"
            lines += [f"{n('partial')}.store([{slot}, m0, {column}], {tile})"]
            continue
        at = f"{n('partial')} + ({slot}).to(tl.int64) * ({n('M')} * {n('N')})"
        lines += [f"tl.store({at} + (rm * {n('N')} + rn), {value}, mask=inside)"]
    return lines


def partial_descriptor(text: MatmulSource) -> bool:
    """Whether partial tiles are stored by TMA, which overlaps with the next tile's loads."""
    whole_rows = text.spec.n % 4 == 0 and ITEMSIZE[text.spec.acc_dtype] == 4
    return text.config.family == "tma" and text.out == "partial" and whole_rows


def reduction_source(name: str, parameters: Iterable[str], text: MatmulSource) -> str:
    """The kernel that adds the splits' partial tiles in order and applies the epilogue."""
    spec, config, n = text.spec, text.config, text.name
    batches = " * ".join(n(f"B{i}") for i in range(len(spec.batch)))
    planes = 2 if spec.gated else 1
    lines = [f"rm = tl.program_id(0) * {config.bm} + tl.arange(0, {config.bm})[:, None]"]
    lines += [f"rn = tl.program_id(1) * {config.bn} + tl.arange(0, {config.bn})[None, :]"]
    if spec.batch:
        lines += ["batch = tl.program_id(2)", *batch_lines(text)]
    lines += [inside_line(text, config.bm, config.bn)]
    # In the order of the splits, or in one tree: the sum is the same from run to run.
    written_out = config.split_k <= MAX_WRITTEN_OUT
    size, zero = f"({n('M')} * {n('N')})", zero_text(spec.acc_dtype)
    if not written_out:
        every = f"tl.arange(0, {next_power_of_two(config.split_k)})[:, None, None]"
        lines += [f"every = {every}", f"present = (every < {config.split_k}) & inside[None]"]
    for plane, value in enumerate(["acc", "acc1"][:planes]):
        for split in map(str, range(config.split_k)) if written_out else ["every"]:
            slot = f"{split} * {planes} + {plane}"
            if batches:
                slot = f"(({slot}) * ({batches}) + batch)"
            at = f"partial + tl.cast({slot}, tl.int64) * {size} + (rm * {n('N')} + rn)"
            if written_out:
                load = f"tl.load({at}, mask=inside, other={zero})"
                lines.append(f"{value} {'+=' if split != '0' else '='} {load}")
            else:
                lines.append(f"{value} = tl.sum(tl.load({at}, mask=present, other={zero}), axis=0)")
    return kernel_text(name, parameters, lines + part_lines(text, config.bn, ""))


def epilogue_lines(text: MatmulSource) -> list[str]:
    """The generated epilogue on `acc`, then the residual."""
    spec = text.spec
    lines = spec.hooks.epilogue.splitlines()
    if spec.residual:
        lines += base_lines(text, "out", "residual")
        address = f"residual_at + ({index_text(text, 'out', 'rm', 'rn')})"
        zero = zero_text(spec.out_dtype)
        lines += [f"acc = acc + up(tl.load({address}, mask=inside, other={zero}))"]
    return lines


def persistent_source(name: str, parameters: Iterable[str], texts: Iterable[MatmulSource]) -> str:
    """A kernel whose `PROGRAMS` programs walk all tiles of one or several products.

    The products' tiles are dealt to the programs as one sequence; each product has its own loop, so
    that each may have its own descriptors. With `CHUNK` programs walk that many tiles each, and the
    next `PROGRAMS` of them the tiles behind these (`Launch.in_rounds`).
    """
    texts, lines, dealt = list(texts), [], "0"
    for text in texts:
        spec, config, n = text.spec, text.config, text.name
        count = [f"(({n('M')} + {config.bm - 1}) // {config.bm})"]
        count += [f"(({n('N')} + {config.bn - 1}) // {config.bn})"]
        count += [n(f"B{i}") for i in range(len(spec.batch))]
        count += [str(config.split_k)] * (config.split_k > 1)
        tiles = " * ".join(count)
        lines += [f"begin, end = tl.program_id(0), {tiles}"]
        # The next product's tiles begin with the program after the one that had the last tile, so
        # that the programs' shares differ by at most one tile.
        if dealt != "0":
            lines += [f"begin = (begin + PROGRAMS - ({dealt}) % PROGRAMS) % PROGRAMS"]
        lines += ["if CHUNK > 0:"]
        lines += ["    block = tl.program_id(0) // PROGRAMS * (PROGRAMS * CHUNK)"]
        lines += [f"    low = tl.maximum(block, {dealt})"]
        lines += ["    begin = tl.program_id(0) % PROGRAMS + PROGRAMS - low % PROGRAMS"]
        lines += [f"    begin = low + begin % PROGRAMS - ({dealt})"]
        lines += [f"    end = tl.minimum(block + PROGRAMS * CHUNK - ({dealt}), {tiles})"]
        flatten = ", flatten=True" if config.flatten else ""
        lines += [f"for tile in tl.range(begin, end, PROGRAMS{flatten}):"]
        lines += indent(product_lines(text, "tile"))
        dealt = f"{dealt} + {tiles}" if dealt != "0" else tiles
    constants = [f"{c}: tl.constexpr" for c in ("PROGRAMS", "CHUNK")]
    return kernel_text(name, [*parameters, *constants], lines)


def tiled_source(name: str, parameters: Iterable[str], text: MatmulSource) -> str:
    """A kernel with one program for each tile of the product."""
    if text.config.early and not gemv_steps(text):
        raise ValueError(f"the steps of {text.config} are too many to load them early")
    lines = ["if EARLY:", "    launch_dependents()"] if text.config.early else []
    return kernel_text(name, parameters, lines + product_lines(text, "tl.program_id(0)"))
