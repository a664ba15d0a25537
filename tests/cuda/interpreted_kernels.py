"""Triton functions for the driver tests, as text so that each test process may choose a mode."""

from __future__ import annotations

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.kernels.plan import BufferArg, Descriptor, Launch, Scalar

_HEADER = "import triton\nimport triton.language as tl\n\n@triton.jit\n"


def source(name: str, body: str) -> SourceKernel:
    return SourceKernel(name, _HEADER + body, modules=())


AXPY = source(
    "axpy",
    """\
def axpy(x, y, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    tl.store(out + i, scale * tl.load(x + i, keep) + tl.load(y + i, keep), keep)
""",
)
DOUBLE_TILE = source(
    "double_tile",
    """\
def double_tile(x, out, M: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0) * M
    out.store([row, 0], x.load([row, 0]) * 2)
""",
)
ADD_ONE = source(
    "add_one",
    """\
def add_one(x, AMOUNT: tl.constexpr):
    tl.store(x, tl.load(x) + AMOUNT)
""",
)
BELOW = source(
    "below",
    """\
def below(x, flag, limit):
    tl.store(flag, (tl.load(x) < limit).to(tl.int8))
""",
)
RECORD = source(
    "record",
    """\
def record(counter, out, SCALE: tl.constexpr):
    i = tl.load(counter)
    tl.store(out + i, i * SCALE)
""",
)
CHECK = source(
    "check",
    """\
def check(x, word, limit, SITE: tl.constexpr):
    value = tl.load(x)
    if value >= limit:
        tl.atomic_max(word, (SITE << 40) | (value.to(tl.int64) & 0xFFFFFFFFFF), sem="relaxed")
""",
)


def axpy(n: int, scale: float, x: int = 0, y: int = 1, out: int = 2, block: int = 64) -> Launch:
    arguments = {
        "x": BufferArg(x, "fp32"),
        "y": BufferArg(y, "fp32"),
        "out": BufferArg(out, "fp32"),
        "n": Scalar(n),
        "scale": Scalar(scale, "fp32"),
    }
    return Launch(AXPY, (-(-n // block), 1, 1), arguments, {"BLOCK": block})


def double_tile(rows: int, columns: int, tile: int, dtype: str = "fp32") -> Launch:
    view = {"shape": (rows, columns), "strides": (columns, 1), "block": (tile, columns)}
    arguments = {
        "x": Descriptor(BufferArg(0, dtype), **view),
        "out": Descriptor(BufferArg(1, dtype), **view),
    }
    grid = (-(-rows // tile), 1, 1)
    return Launch(DOUBLE_TILE, grid, arguments, {"M": tile, "N": columns})


def add_one(buffer: int, amount: int = 1, offset: int = 0) -> Launch:
    return Launch(ADD_ONE, (1, 1, 1), {"x": BufferArg(buffer, "i32", offset)}, {"AMOUNT": amount})


def below(buffer: int, flag: int, limit: int) -> Launch:
    arguments = {
        "x": BufferArg(buffer, "i32"),
        "flag": BufferArg(flag, "i8"),
        "limit": Scalar(limit),
    }
    return Launch(BELOW, (1, 1, 1), arguments)


def record(counter: int, out: int, scale: int = 10) -> Launch:
    arguments = {"counter": BufferArg(counter, "i32"), "out": BufferArg(out, "i32")}
    return Launch(RECORD, (1, 1, 1), arguments, {"SCALE": scale})


def check(buffer: int, word: int, limit: int, site: int) -> Launch:
    arguments = {
        "x": BufferArg(buffer, "i32"),
        "word": BufferArg(word, "i64"),
        "limit": Scalar(limit),
    }
    return Launch(CHECK, (1, 1, 1), arguments, {"SITE": site})
