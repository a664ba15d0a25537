"""Kernels written as text, for lowerings: elementwise kernels and copies between strided views."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.kernels.language.expressions import MODULES, PRELUDE
from genesis_fn.kernels.plan import Argument, BufferArg, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, dense

BLOCK = 1024
TILE = 64
_ERROR_WORD = "genesis_fn.kernels.language.error_word"
_START = PRELUDE.replace("\n\n\n@", f"\nfrom {_ERROR_WORD} import flag_error\n\n\n@")


# Equal texts give one object, since a kernel's digest is computed once for each object.
@functools.lru_cache(maxsize=4096)
def source_kernel(name: str, parameters: str, body: str, module: str = "") -> SourceKernel:
    """The kernel of this text, which may use the functions of one more `module`; equal texts give
    the same object."""
    start, modules = _START, (*MODULES, _ERROR_WORD)
    if module:
        start = start.replace("\n\n\n@", f"\nfrom {module} import *\n\n\n@")
        modules = (*modules, module)
    return SourceKernel(name, f"{start}def {name}({parameters}):\n{body}", modules)


def add_elements(
    builder: PlanBuilder,
    name: str,
    buffers: Mapping[str, BufferArg],
    count: int,
    lines: Sequence[str],
    *,
    scalars: Mapping[str, Scalar] | None = None,
    wide: bool = False,
) -> None:
    """Append an elementwise kernel: it runs `lines` for blocks of indices `i`; `inside` is the mask
    of those below `count`.

    `buffers` and `scalars` are its parameters by name; indices have 64 bits if `wide`.
    """
    # The last block's indices go beyond `count` before the mask applies.
    wide = wide or count > INT32_MAX - BLOCK
    start = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
    body = [f"i = {start} * BLOCK + tl.arange(0, BLOCK)", "inside = i < N", *lines]
    scalars = scalars or {}
    parameters = ", ".join([*buffers, *scalars, "N", "BLOCK: tl.constexpr"])
    kernel = source_kernel(name, parameters, indented(body))
    arguments: dict[str, Argument] = {**buffers, **scalars}
    arguments["N"] = Scalar(count, "i64" if wide else "i32")
    builder.launch(kernel, (cdiv(count, BLOCK),), arguments, {"BLOCK": BLOCK})


def indented(lines: Sequence[str]) -> str:
    """The lines as the body of a function."""
    return "".join([f"    {line}\n" for line in lines])


def coordinates(index: str, shape: Sequence[int], prefix: str) -> tuple[list[str], list[str]]:
    """(lines, names): the coordinates in `shape` of the row-major index `index`."""
    names, lines = ["0"] * len(shape), []
    axes = [d for d, n in enumerate(shape) if n != 1]
    rest = index
    for d in reversed(axes):
        name = names[d] = f"{prefix}{d}"
        if d == axes[0]:
            lines.append(f"{name} = {rest}")
        else:
            lines.append(f"{name} = {rest} % {shape[d]}")
            lines.append(f"{prefix}rest = {rest} // {shape[d]}")
            rest = f"{prefix}rest"
    return lines, names


def offset(names: Sequence[str], strides: Sequence[int]) -> str:
    """The text of sum(names * strides)."""
    terms = [
        n if s == 1 else f"{n} * {s}" for n, s in zip(names, strides, strict=True) if n != "0" and s
    ]
    return " + ".join(terms) or "0"


def collapsed(shape: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """`shape` and strides over it with adjacent axes merged where all strides allow."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(s[-1] == given[d] * n for s, given in zip(steps, strides)):
            sizes[-1] *= n
            for s, given in zip(steps, strides):
                s[-1] = given[d]
        else:
            sizes.append(n)
            for s, given in zip(steps, strides):
                s.append(given[d])
    return sizes, steps


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The largest offset of an element of a view from its first."""
    return sum([abs(s) * (n - 1) for n, s in zip(shape, strides)])


class Strided:
    """Text and scalars that compute offsets in views whose sizes and strides are run-time numbers,
    so that one kernel serves all shapes of a rank."""

    def __init__(self, prefix: str, sizes: Sequence[int], *strides: Sequence[int]) -> None:
        self.prefix, self.sizes, self.strides = prefix, list(sizes), [list(s) for s in strides]

    def scalars(self, kind: str) -> dict[str, Scalar]:
        """The scalars by parameter name: all sizes but the first, strides other than 1."""
        found = {f"{self.prefix}n{d}": Scalar(n, kind) for d, n in enumerate(self.sizes) if d}
        for k, steps in enumerate(self.strides):
            for d, s in enumerate(steps):
                if s != 1:
                    found[f"{self.prefix}s{k}_{d}"] = Scalar(s, kind)
        return found

    def lines(self, index: str) -> list[str]:
        """Lines that define `{prefix}o{k}`: the offset of element `index` by strides k."""
        p, lines, rest = self.prefix, [], index
        for d in range(len(self.sizes) - 1, -1, -1):
            if d == 0:
                lines.append(f"{p}c0 = {rest}")
            else:
                lines.append(f"{p}c{d} = {rest} % {p}n{d}")
                lines.append(f"{p}rest = {rest} // {p}n{d}")
                rest = f"{p}rest"
        for k, steps in enumerate(self.strides):
            terms = [
                f"{p}c{d}" if s == 1 else f"{p}c{d} * {p}s{k}_{d}" for d, s in enumerate(steps)
            ]
            lines.append(f"{p}o{k} = {' + '.join(terms) or index + ' * 0'}")
        return lines


def _add_tiled_copy(
    builder: PlanBuilder,
    source: BufferArg,
    target: BufferArg,
    sizes: list[int],
    read: list[int],
    write: list[int],
    turned: int,
    first: int,
    target_offset: int,
    kind: str,
) -> None:
    """A transposing copy: the source is contiguous along axis `turned`, the target along the last
    one. Square tiles keep both sides' accesses consecutive."""
    axes = [d for d in range(len(sizes) - 1) if d != turned]
    rest = Strided("v", [sizes[d] for d in axes], [read[d] for d in axes], [write[d] for d in axes])
    rows, columns = sizes[turned], sizes[-1]
    across, down = cdiv(columns, TILE), cdiv(rows, TILE)
    lines = [
        f"q = tl.program_id(0){'.to(tl.int64)' if kind == 'i64' else ''}",
        "b = (q % across) * TILE + tl.arange(0, TILE)",
        "q = q // across",
        "a = (q % down) * TILE + tl.arange(0, TILE)",
        "q = q // down",
        *rest.lines("q"),
        "inside = (a < rows)[:, None] & (b < columns)[None, :]",
        "v = tl.load(x + first + vo0 + a[:, None] + (b * step)[None, :], inside)",
        "tl.store(y + target_offset + vo1 + (a * jump)[:, None] + b[None, :], v, inside)",
    ]
    scalars = {
        **rest.scalars(kind),
        "rows": Scalar(rows, kind),
        "columns": Scalar(columns, kind),
        "across": Scalar(across, kind),
        "down": Scalar(down, kind),
        "step": Scalar(read[-1], kind),
        "jump": Scalar(write[turned], kind),
        "first": Scalar(first, kind),
        "target_offset": Scalar(target_offset, kind),
    }
    arguments: dict[str, Argument] = {"x": source, "y": target, **scalars}
    kernel = source_kernel(
        "turn_tiles", ", ".join([*arguments, "TILE: tl.constexpr"]), indented(lines)
    )
    programs = across * down * math.prod(rest.sizes)
    builder.launch(kernel, (programs,), arguments, {"TILE": TILE}, num_warps=8)


def add_copy(
    builder: PlanBuilder,
    source: BufferArg,
    target: BufferArg,
    shape: Sequence[int],
    source_strides: Sequence[int],
    target_strides: Sequence[int] | None = None,
    source_offset: int = 0,
    target_offset: int = 0,
) -> None:
    """Append target[view] = source[view] for two views of one shape, offsets and strides in
    elements (a dense target if not given); sizes are run-time numbers."""
    count = math.prod(shape)
    whole = dense(shape)
    sizes, (read, write) = collapsed(shape, source_strides, target_strides or whole)
    farthest = max(extent(sizes, read) + source_offset, extent(sizes, write) + target_offset, count)
    wide = farthest > INT32_MAX - BLOCK
    kind = "i64" if wide else "i32"
    # A transposing copy: consecutive reads along one axis, consecutive writes along another. Tiles
    # are worth it from half a tile on.
    turned = [d for d, s in enumerate(read[:-1]) if s == 1 and sizes[d] >= TILE // 2]
    if turned and read[-1] != 1 and write[-1] == 1 and sizes[-1] >= TILE // 2:
        _add_tiled_copy(
            builder,
            source,
            target,
            sizes,
            read,
            write,
            turned[0],
            source_offset,
            target_offset,
            kind,
        )
        return
    # A dense target needs no strides: element i goes to offset i.
    packed = list(dense(sizes)) == write
    view = Strided("v", sizes, read) if packed else Strided("v", sizes, read, write)
    scalars = {
        **view.scalars(kind),
        "first": Scalar(source_offset, kind),
        "target_offset": Scalar(target_offset, kind),
    }
    to = "i" if packed else "vo1"
    add_elements(
        builder,
        "copy_view",
        {"x": source, "y": target},
        count,
        [
            *view.lines("i"),
            f"tl.store(y + target_offset + {to}, tl.load(x + first + vo0, inside), inside)",
        ],
        scalars=scalars,
        wide=wide,
    )
