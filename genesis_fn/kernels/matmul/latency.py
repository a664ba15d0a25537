"""Small products, whose time is latency: their configurations, and what each takes.

Such a product is over before a persistent kernel has fetched its descriptors and walked down k
alone. What counts is how many programs share the reading, how much of it each has under way at
once, and how long its warps' chains of products are. The model's numbers are fitted to 1,800
kernels of 24 products, each timed in a CUDA graph of 48 on an H200; what it chooses of them takes
5 % longer than the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import ITEMSIZE
from genesis_fn.kernels.matmul.spec import FEW_ROWS, MatmulConfig, MatmulSpec

# Longer ones have configurations of their own, which were measured for them. In 16 bits those of
# warp groups are as fast sooner.
_MOST_SECONDS = {"tf32": 7.0e-6, "ieee": 7.0e-6, "half": 2.5e-6}
_LAUNCH = 1.1e-6  # of a kernel of a graph that does nothing
_REDUCTION = 1.5e-6  # a second launch, which adds the parts of a split k
_READ = 0.3e-6  # until the first bytes are there
_PROGRAM = 0.3e-9  # to start each one
_PROCESSOR_RATE = 60e9  # bytes per second that one multiprocessor reads from the L2 cache
_SECTOR = 32  # bytes that are read together
# Of tiles on tensor cores:
_STEP = 0.04e-6  # of the loop over k
_CHAIN = 0.75e-6 / 4000  # for each byte of k that a warp multiplies a 16 x 8 part of its tile by
_SLICED = 0.1e-6  # the sum of the slices
_ISSUE = 0.05e-6 / 100  # for each element that a thread loads
# Of tiles without them:
_PRODUCT = 1 / 25e9  # a multiplication and addition, and loading what it takes
_ROUND = 0.33e-6  # a step whose loads wait for those before it
_ROW = 0.06e-6  # the sum of one row's parts over the warps

_TILES = ((16, 8), (16, 16), (16, 32), (32, 16), (32, 32), (32, 64))
_WARPS = ((1, 2), (1, 4), (2, 2), (4, 4))  # (slices, warps)
_SPLITS = (1, 2, 4, 8, 16)
_STAGES = 4
_SHORTEST_PART = 256  # of k, that a split leaves
# 17 million, of 2048 x 32 x 256, took 6 us more in such tiles than in larger ones.
_EXACT_PRODUCTS = 1 << 22  # multiplications of theirs
_EXACT_DEPTH = 128  # of tiles of full float32 without tensor cores, which are one step
_MOST_LOADED = 48  # elements of the right operand that a thread of a gemv holds
_MOST_SUMS = 128  # accumulators of a thread of a gemv


def latency_configs(spec: MatmulSpec, kind: str, target: Target) -> list[MatmulConfig]:
    """The configurations of a small product, the best first; empty for other products.

    `kind` is what is multiplied ("tf32", "half", "ieee"; others have none). Few rows of 16 bits
    belong to weights, and are left to the menus that were measured for them.
    """
    traffic = _bytes(spec)
    if kind not in _MOST_SECONDS or traffic > target.launch_bytes:
        return []
    if spec.gated or spec.segments or spec.hooks.lhs:
        return []
    timed: list[tuple[float, MatmulConfig]] = []
    splits = _splits(spec)
    if kind == "tf32" or (kind == "half" and spec.m > FEW_ROWS):
        timed += [(tile_seconds(spec, c, target), c) for c in _tiles(spec, splits)]
    few = spec.batches * spec.m * spec.n * spec.k <= _EXACT_PRODUCTS
    if kind == "ieee" and spec.m > 8 and spec.k <= _EXACT_DEPTH and few:
        timed += [(exact_seconds(spec, c, target), c) for c in _exact_tiles(spec)]
    rows = {"tf32": 8, "ieee": 8, "half": 2}.get(kind, 0)
    # Of one or two rows also those that memory bounds: 256 columns of 4,096 took 7.9 us in the 16
    # programs that a menu without latency gives them (H200).
    most = target.launch_bytes // (2 if spec.m <= 2 and kind != "half" else 8)
    if spec.m <= rows and traffic <= most:
        timed += [(gemv_seconds(spec, c, target), c) for c in _gemvs(spec, splits)]
    # Of equals, fewer warps and smaller tiles.
    timed.sort(key=lambda t: (round(t[0] * 1e9), t[1].split_k, t[1].warps, t[1].bm * t[1].bn))
    return [config for seconds, config in timed if seconds <= _MOST_SECONDS[kind]]


def tile_seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of a product in small tiles on tensor cores."""
    size = ITEMSIZE[spec.operand_dtype]
    resident = _resident(spec, config, target)
    steps = math.ceil(spec.k / config.split_k / config.bk)
    ahead = min(steps, config.stages - 1) if steps > 1 else 1
    row_bytes = (min(config.bm, spec.m) + min(config.bn, spec.n)) * size
    depth = steps * config.bk
    # A processor reads no faster than what it has under way arrives.
    rate = min(_PROCESSOR_RATE, resident * ahead * config.bk * row_bytes / _READ)
    total = _READ + max(resident * depth * row_bytes / rate, _bytes(spec) / target.bandwidth)
    # Each warp has parts of 16 x 8; more warps than parts repeat them.
    parts = config.bm * config.bn * config.slices / 128
    busy = min(config.warps, max(1.0, parts))
    chain = depth * size * parts / config.slices / busy * max(1.0, resident * busy / 4)
    loaded = (config.bm + config.bn) * depth / (32 * config.warps)
    total += _STEP * steps + _CHAIN * chain + _ISSUE * loaded
    return total + (_SLICED if config.slices > 1 else 0.0) + _launches(spec, config, target)


def exact_seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of a product of float32 in one step without tensor cores."""
    resident = _resident(spec, config, target)
    read = resident * config.bk * 4 * (min(config.bm, spec.m) + min(config.bn, spec.n))
    # 35 products a nanosecond of each warp, its operands' loads from shared memory included.
    work = config.bm * config.bn * config.bk / config.warps / 35e9 * max(1.0, resident / 4)
    return _READ + read / _PROCESSOR_RATE + work + _launches(spec, config, target)


def gemv_seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of a product of few rows by multiplying and adding."""
    size, resident = ITEMSIZE[spec.rhs_dtype], _resident(spec, config, target)
    rows, columns = min(config.bm, spec.m), min(config.bn, spec.n)
    steps = math.ceil(spec.k / config.split_k / config.bk)
    depth = steps * config.bk
    read = columns if spec.contiguous_axis("rhs") == 0 else max(columns, _SECTOR // size)
    total = resident * depth * (rows + read) * size / _PROCESSOR_RATE
    total = max(total, _bytes(spec) / target.bandwidth)
    total += resident * rows * columns * depth * _PRODUCT
    return total + _ROUND * (steps - 1) + _ROW * rows + _launches(spec, config, target)


def _launches(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """Of starting the kernel and its programs, and of the second one that adds the parts."""
    total = _LAUNCH + _PROGRAM * _programs(spec, config)
    if config.split_k > 1:
        parts = 8 * spec.batches * spec.m * spec.n * config.split_k
        total += _REDUCTION + parts / target.bandwidth
    return total


def _programs(spec: MatmulSpec, config: MatmulConfig) -> int:
    tiles = math.ceil(spec.m / config.bm) * math.ceil(spec.n / config.bn)
    return tiles * config.split_k * spec.batches


def _resident(spec: MatmulSpec, config: MatmulConfig, target: Target) -> int:
    """The programs that one multiprocessor runs."""
    return math.ceil(_programs(spec, config) / target.processors)


def _bytes(spec: MatmulSpec) -> int:
    """What is read and written at least."""
    sizes = [(spec.m * spec.k, spec.lhs_dtype), (spec.k * spec.n, spec.rhs_dtype)]
    sizes.append((spec.m * spec.n, spec.out_dtype))
    return spec.batches * sum(count * ITEMSIZE[dtype] for count, dtype in sizes)


def _splits(spec: MatmulSpec) -> list[int]:
    # An epilogue of many rows may store, too: it runs in the kernel that multiplies.
    alone = spec.m > FEW_ROWS and spec.hooks.epilogue
    return [s for s in _SPLITS if s == 1 or (not alone and spec.k >= s * _SHORTEST_PART)]


def _tiles(spec: MatmulSpec, splits: list[int]) -> Iterator[MatmulConfig]:
    size = ITEMSIZE[spec.operand_dtype]
    for bm, bn in _TILES:
        if bm > 16 and bm >= 2 * spec.m:
            continue
        for split in splits:
            part = max(16, _power_of_two(math.ceil(spec.k / split)))
            for bk in sorted({min(part, 256 // size), min(part, 512 // size)}):
                stages = _STAGES if bk < part else 1
                for slices, warps in _WARPS:
                    # Tensor cores take 16 elements of k at least.
                    if bk >= 16 * slices and bm * bn * slices <= 1024 * warps:
                        yield MatmulConfig(
                            "pointer", bm, bn, bk, warps, stages, split, slices=slices
                        )


def _exact_tiles(spec: MatmulSpec) -> Iterator[MatmulConfig]:
    depth = max(16, _power_of_two(spec.k))
    for bm, bn in ((4, 32), (8, 16), (8, 32), (16, 32)):
        if bm < 2 * spec.m:
            yield MatmulConfig("pointer", bm, bn, depth, 4, 1)


def _gemvs(spec: MatmulSpec, splits: list[int]) -> Iterator[MatmulConfig]:
    for split in splits:
        depth = _power_of_two(math.ceil(spec.k / split))
        for steps in (1, 2, 4):
            bk = depth // steps
            if steps > 1 and bk < _SHORTEST_PART:
                continue
            for bm in (1, 2, 4, 8):
                for bn in (2, 4, 8, 16, 32):
                    for warps in (2, 4, 8, 16):
                        loaded = bk * bn / (32 * warps)
                        fits = 1 <= loaded <= _MOST_LOADED / steps and loaded * bm <= _MOST_SUMS
                        if fits and bm < 2 * spec.m and bn < 2 * max(spec.n, 2):
                            yield MatmulConfig("gemv", bm, bn, bk, warps, 1, split)


def _power_of_two(size: int) -> int:
    return 1 << (max(size, 1) - 1).bit_length()
