"""Configurations of matrix products: those worth trying, and the one chosen by a machine model.

Nothing is timed on the device: a plan depends on the spec and the target alone, so that programs
are the same from run to run and can be compiled without a GPU. `benchmarks/kernels/matmul_bench.py`
times them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import FLOAT8, ITEMSIZE
from genesis_fn.kernels.matmul.latency import latency_configs
from genesis_fn.kernels.matmul.operand_layout import copies, prepared_spec
from genesis_fn.kernels.matmul.source import MatmulSource, gemv_steps
from genesis_fn.kernels.matmul.spec import FEW_ROWS, Hooks, MatmulConfig, MatmulSpec

# Of a wide product's tile, that a generated epilogue works on at once: with more the kernel spills.
_EPILOGUE_COLUMNS = 32
TENSOR_CORE_DTYPES = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv", "fp8e5", "i8")
_MOST_DEEP = 256  # rows and columns of a product that takes as long as reading both operands
_NARROW = 64  # columns of a product whose time is that of reading the left operand
_SMALL = 4  # configurations of small products that are listed
_LAUNCH_SECONDS = 2.0e-6
_TILE_SECONDS = 1.2e-6
_LATENCY_SECONDS = 0.8e-6
_SKINNY_LATENCY_SECONDS = 1.4e-6
_SKINNY_TILE_SECONDS = 0.15e-6


def on_tensor_cores(spec: MatmulSpec, target: Target) -> bool:
    """Whether the target's tensor cores multiply such operands.

    They multiply float64 ones that come from memory as such: Triton 3.6 fails on narrower floats
    that are widened in registers.
    """
    kind = spec.operand_dtype
    if kind == "fp64":
        return target.double_tensor_cores and spec.lhs_dtype == spec.rhs_dtype == kind
    return kind in TENSOR_CORE_DTYPES


def takes_descriptors(spec: MatmulSpec, target: Target) -> bool:
    """Whether both operands can be read through TMA descriptors (the "tma" family).

    An operand needs one inner stride of one, every other stride a multiple of 16 bytes, and no
    empty axis.
    """
    if not target.descriptors or 0 in (spec.m, spec.n, spec.k, *spec.batch) or len(spec.batch) > 3:
        return False
    if spec.operand_dtype not in TENSOR_CORE_DTYPES or spec.operand_dtype == "fp64":
        return False
    return _describable(spec, "lhs") and _describable(spec, "rhs")


def stores_descriptor(spec: MatmulSpec) -> bool:
    """Whether the output can be written through a TMA descriptor."""
    if spec.out_dtype in ("fp64", "i1", "i64", "u64"):
        return False
    return spec.contiguous_axis("out") == 1 and _describable(spec, "out")


def _describable(spec: MatmulSpec, operand: str) -> bool:
    steps, axis = spec.strides(operand), spec.contiguous_axis(operand)
    if axis is None:
        return False
    size = ITEMSIZE[getattr(spec, f"{operand}_dtype")]
    others = [s for i, s in enumerate(steps) if i != len(spec.batch) + axis]
    return 0 not in others[-1:] and all(s * size % 16 == 0 for s in others)


def chosen_config(spec: MatmulSpec, target: Target) -> MatmulConfig:
    """The configuration that a product runs with: the first of `configs` that serves its hooks.

    Products of one or two rows are gemvs, which can share a launch with others of their kind,
    unless they are too long for that and the columns of their right operand are contiguous.
    """
    menu, hooks = configs(spec, target), spec.hooks
    gemv = [c for c in menu if c.family == "gemv"]
    short = spec.n * spec.k * ITEMSIZE[spec.rhs_dtype] <= target.launch_bytes
    short = short or spec.contiguous_axis("rhs") == 0
    if gemv and (hooks.lhs or (spec.m <= 2 and not spec.batch and short)):
        early = spec.steady and gemv[0].split_k == 1
        return replace(
            gemv[0], early=early and gemv_steps(MatmulSource(spec, gemv[0], "pointer")) > 0
        )
    if hooks.epilogue and spec.m > FEW_ROWS:
        config = menu[0]
        if config.family == "tma" and config.bn > _EPILOGUE_COLUMNS:
            # Next to the accumulator there is room for few columns of the other tiles.
            subtiles = config.bn // _EPILOGUE_COLUMNS
            config = replace(config, halves=False, epilogue_subtiles=subtiles, stages=4)
        return fitted(spec, config, target)
    return menu[0]


@functools.lru_cache(512)
def configs(spec: MatmulSpec, target: Target) -> tuple[MatmulConfig, ...]:
    """Up to ten configurations worth timing, the best by a model of the machine first.

    All of one list with the same `split_k` and `bk` add up in one order.
    """
    if 0 in (spec.m, spec.n, *spec.batch):
        return (MatmulConfig("pointer", 16, 16, 16),)
    if not on_tensor_cores(spec, target):
        return (MatmulConfig("pointer", 32, 32, 8, warps=4, stages=2, tensor_cores=False),)
    if deep := _deep_menu(spec, target):
        return tuple(deep)
    small = latency_configs(spec, _kind(spec), target)[:_SMALL]
    small = [fitted(spec, config, target) for config in small]
    return (*small, *_throughput_configs(spec, target))[:10]


def _throughput_configs(spec: MatmulSpec, target: Target) -> tuple[MatmulConfig, ...]:
    """The configurations for which latency does not count, the best first."""
    if spec.m <= FEW_ROWS:
        menu = skinny_configs(spec, target)
        if spec.m <= 8 and spec.operand_dtype not in ("fp64", "i8"):
            gemv = _gemv_menu(spec, target)[:7]
            # From three rows on, and down columns, the tensor cores' tiles read faster.
            deep = spec.contiguous_axis("rhs") == 0
            fast = menu[0].family == "tma" and (spec.m > 2 or not deep)
            menu = menu[:4] + gemv[:4] if fast else gemv + menu[:3]
        return tuple(menu[:10])
    narrow = _narrow_menu(spec, target)
    menu = _fitting(spec, narrow or _wide_menu(spec, target), target)
    if spec.segments or spec.hooks.epilogue:
        menu = [c for c in menu if c.split_k == c.residents == 1]
    if spec.segments:
        menu = [c for c in menu if c.family == "tma"]
    model = narrow_seconds if narrow else seconds
    menu.sort(key=lambda config: model(spec, config, target))
    if prepares(spec, target):
        ready = configs(prepared_spec(spec), target)
        menu = [replace(config, prepared=True) for config in ready[:6]] + menu
    return tuple(menu[:10])


def skinny_configs(spec: MatmulSpec, target: Target) -> list[MatmulConfig]:
    """The configurations in tiles of a product of few rows, the best by its model first."""

    def order(c: MatmulConfig) -> tuple[float, ...]:
        # Of equals, four stages at least, then as much of k under way as there is room for.
        return skinny_seconds(spec, c, target), c.stages < 4, -c.bk * c.stages, -c.bk

    return sorted(_fitting(spec, _skinny_menu(spec, target), target), key=order)


def prepares(spec: MatmulSpec, target: Target) -> bool:
    """Whether copies of the operands with k contiguous are worth their time.

    Hopper's tensor cores want k contiguous in 32-bit operands, and "tf32x3" costs less if operands
    are cut in two once instead of in every tile.
    """
    if not target.contiguous_depth or _kind(spec) not in ("tf32", "tf32x3"):
        return False
    if spec.segments or min(spec.m, spec.n, spec.k) < 128:
        return False
    if {spec.lhs_dtype, spec.rhs_dtype} != {"fp32"}:
        return False
    return copies(spec, "lhs") or copies(spec, "rhs")


@dataclass(frozen=True, slots=True)
class OperandReads:
    """How the kernel of a product reads its operands on a target."""

    spec: MatmulSpec
    target: Target

    @property
    def through_descriptors(self) -> bool:
        """Whether both operands, or the copies that are made of them, can be read so."""
        spec = self.spec
        if spec.operand_dtype == "fp32" and spec.precision not in ("default", "tf32"):
            return False
        ready = prepared_spec(spec) if prepares(spec, self.target) else spec
        return takes_descriptors(ready, self.target)


def seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of the product: whole waves of tiles, each at its tile's rate."""
    tiles = math.ceil(spec.m / config.bm) * math.ceil(spec.n / config.bn) * spec.batches
    waves = math.ceil(tiles * config.split_k / target.processors)
    size = ITEMSIZE[spec.operand_dtype]
    # A target's rate is that of whole products, with the starts and ends of their tiles.
    peak = target.matrix_rate(size) * 38 / 35
    peak /= 3 if spec.precision == "tf32x3" and size == 4 else 1
    area = config.bm * config.bn
    rate = peak / target.processors * _tile_rate(config, area)
    rate *= {1: 0.55, 2: 0.8, 3: 0.985}.get(config.stages, 1.0)
    depth = math.ceil(spec.depth / config.split_k / config.bk) * config.bk
    tile = _TILE_SECONDS + 2 * area * depth / rate
    read = size * spec.batches * spec.depth * (spec.m + spec.n)
    busy = min(1.0, tiles * config.split_k / target.processors)
    total = max(waves * tile, read / (target.bandwidth * busy))
    if config.split_k > 1:
        partial = 8 * spec.batches * spec.m * spec.n * config.split_k
        total += _LAUNCH_SECONDS + partial / target.bandwidth
    return total


def _tile_rate(config: MatmulConfig, area: int) -> float:
    """The share of the peak that a tile reaches, as measured on an H200."""
    rate = min(1.0, 0.42 + 0.145 * math.log2(area / 2048))
    if config.bm > config.bn and area >= 128 * 256:
        return 0.95 * rate
    if 128 * 128 <= area < 128 * 256:
        return 0.91 if config.warps == 8 or config.bm < 128 else 0.93
    return rate


def skinny_seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of a product of few rows: as many bytes of the right operand are under way at
    once as the stages hold, and every tile and a second launch cost something."""
    size = ITEMSIZE[spec.operand_dtype] * (2 if spec.gated else 1)
    tiles = math.ceil(spec.n / config.bn) * config.split_k * spec.batches
    programs = min(tiles, target.processors)
    under_way = programs * config.stages * config.bk * min(config.bn, spec.n) * size
    rate = min(target.bandwidth, under_way / _SKINNY_LATENCY_SECONDS)
    total = size * spec.batches * spec.n * spec.k / rate
    total += math.ceil(tiles / programs) * _SKINNY_TILE_SECONDS
    if config.split_k > 1:
        partial = 8 * spec.batches * spec.m * spec.n * config.split_k
        total += _LAUNCH_SECONDS + partial / target.bandwidth
    # With few columns, too, the time may be that of multiplying.
    return max(total, seconds(spec, config, target)) if spec.n <= _NARROW else total


def narrow_seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of a product of few columns: reading the left operand, as far as enough of it is
    under way and enough processors, about half of them, take part."""
    size = ITEMSIZE[spec.operand_dtype]
    programs = math.ceil(spec.m / config.bm) * config.split_k * spec.batches
    resident = min(programs, target.processors)
    under_way = resident * config.stages * config.bk * config.bm * size
    share = min(1.0, 2 * resident / target.processors)
    rate = min(share * target.bandwidth, under_way / _SKINNY_LATENCY_SECONDS)
    total = size * spec.batches * spec.m * spec.depth / rate
    total += math.ceil(programs / resident) * _TILE_SECONDS
    if config.split_k > 1:
        partial = 8 * spec.batches * spec.m * spec.n * config.split_k
        total += _LAUNCH_SECONDS + partial / target.bandwidth
    return total


def _depth_strides(spec: MatmulSpec) -> tuple[int, int]:
    """The strides of the contracted axis in both operands."""
    left = spec.lhs_strides[-1] if spec.lhs_strides else (spec.m if spec.lhs_transposed else 1)
    right = spec.rhs_strides[-2] if spec.rhs_strides else (1 if spec.rhs_transposed else spec.n)
    return left, right


def shared_bytes(spec: MatmulSpec, config: MatmulConfig, target: Target) -> int:
    """Shared memory of a pipelined kernel: the stages, the staged output tile, and the tile through
    which values that the epilogue reads change their layout."""
    size = ITEMSIZE[spec.operand_dtype]
    products = 2 if spec.gated else 1
    stages = config.stages * size * config.bk * (config.bm + config.bn * products)
    area = config.bm * config.bn // config.subtiles
    # On sm_100 accumulators leave tensor memory, and operands turn, through shared memory: more of
    # it where neither operand has the contracted axis contiguous.
    turned = 8 if target.tensor_memory and size == 4 else 0
    if turned and 1 not in _depth_strides(spec):
        turned = 16
    stages += 4 * area * config.slices if config.slices > 1 else 0
    if config.split_k > 1:
        return stages + area * (4 + turned) + 1024
    read = [spec.residual] if spec.residual else []
    if spec.accumulate and spec.out_dtype != "fp32":
        read.append(spec.out_dtype)
    read += [dtype for name, dtype in spec.hooks.inputs if name in spec.hooks.epilogue]
    scratch = max([turned, *(ITEMSIZE[dtype] for dtype in read)])
    return stages + area * (ITEMSIZE[spec.out_dtype] + scratch) + 1024


def _gemv_menu(spec: MatmulSpec, target: Target) -> list[MatmulConfig]:
    rows = 1 << (spec.m - 1).bit_length()
    depth = max(16, 1 << max(spec.k - 1, 1).bit_length())
    if spec.contiguous_axis("rhs") == 0:
        shapes = [(8, 1024, 4), (4, 1024, 4), (2, 1024, 2), (8, 512, 4), (16, 256, 4)]
        shapes += [(8, 1024, 8), (16, 512, 8)]
    else:
        shapes = [(128, 32, 4), (128, 64, 8), (64, 64, 4), (256, 16, 4), (64, 128, 8)]
    # Every row, and the gate, has an accumulator of the tile's size.
    shrink = max(1, rows * (1 + spec.gated) // 2)
    menu = set()
    for bn, bk, warps in shapes:
        bn, bk, splits = max(1, bn // shrink), min(bk, depth), _splits(spec, 128)[:4]
        # Few columns of great depth, as the gradient of a vector has them, are split among all
        # processors: 64 columns of 2^16 took 200 us in the four programs of a split of four (H200).
        if spec.k >= 32 * spec.n:
            splits = splits + _many_splits(spec, rows, bn, bk, target)
        menu |= {MatmulConfig("gemv", rows, bn, bk, warps, 1, split) for split in splits}

    def order(config: MatmulConfig) -> tuple[float, ...]:
        # Of equals, small programs; with many rounds over k, large ones.
        rounds = config.bn * config.warps * (-1 if spec.m == 1 and spec.k > 2048 else 1)
        rough = round(1e8 * gemv_seconds(spec, config, target))
        return rough, config.split_k, rounds, config.bn, config.bk

    return sorted(menu, key=order)


def gemv_seconds(spec: MatmulSpec, config: MatmulConfig, target: Target) -> float:
    """A rough time of a product of few rows: reading the right operand, as far as the loads that
    are under way at once hide the memory's latency."""
    size = ITEMSIZE[spec.rhs_dtype] * (1 + spec.gated)
    programs = math.ceil(spec.n / config.bn) * config.split_k * spec.batches
    resident = min(programs / target.processors, 32 / config.warps)
    under_way = resident * min(config.bn, spec.n) * config.bk * size
    rate = min(target.bandwidth, target.processors * under_way / _LATENCY_SECONDS)
    depth = math.ceil(spec.k / config.split_k / config.bk) * config.bk * config.split_k
    total = size * spec.batches * spec.n * depth / rate
    return total + (_LAUNCH_SECONDS if config.split_k > 1 else 0.0)


def _skinny_menu(spec: MatmulSpec, target: Target) -> list[MatmulConfig]:
    rows = max(16, 1 << (spec.m - 1).bit_length())
    described = takes_descriptors(spec, target) and _kind(spec) != "ieee"
    family = "tma" if described else "pointer"
    size = ITEMSIZE[spec.operand_dtype]
    menu = []
    for bn in (64, 128):
        for bk in (128 // size, 256 // size, 512 // size):
            for split in (1, 2, 4, 8, *_many_splits(spec, rows, bn, bk, target)):
                if split > 1 and spec.k < 2 * split * bk:
                    continue
                if bk > 128 // size and bk > spec.k:
                    continue
                menu.append(
                    MatmulConfig(
                        family,
                        rows,
                        bn,
                        bk,
                        4,
                        min(8, 2048 // (bk * size)) if family == "tma" else 4,
                        split,
                        swap=_swaps(spec),
                        flatten=not spec.gated,
                    )
                )
    if family == "tma" and spec.m > 16 and size == 2 and not spec.gated:
        # Narrow tiles occupy every processor, and all of a short k is under way at once.
        for bk, stages in ((128, 8), (128, 6), (256, 4), (64, 8)):
            menu.append(MatmulConfig(family, 64, 32, bk, 4, stages))
    return menu


def _swaps(spec: MatmulSpec) -> bool:
    # Only 16-bit operands can be read by the tensor cores with either axis contiguous.
    return ITEMSIZE[spec.operand_dtype] == 2


def _wide_menu(spec: MatmulSpec, target: Target) -> list[MatmulConfig]:
    # With exact float32 there are no tensor cores to feed, and staging in shared memory only costs.
    described = takes_descriptors(spec, target) and _kind(spec) != "ieee"
    family = "tma" if described else "pointer"
    menu = []
    shapes = _SHAPES[_kind(spec) if described else _pointer_kind(spec)]
    fitting = [
        shape
        for shape in shapes
        if not (shape[0] >= 128 and shape[0] >= 2 * spec.m)
        and not (shape[1] >= 128 and shape[1] >= 2 * spec.n)
    ]
    if not fitting:
        # Few columns, narrower than any tile that serves wide products.
        columns = 64 if spec.n > 32 else 32
        fitting = [(128, columns, 64, 4, 4), (64, columns, 64, 4, 4)]
    for bm, bn, bk, warps, stages in fitting:
        halves = described and bm * bn >= 128 * 256
        for split in _splits(spec, bk) + _many_splits(spec, bm, bn, bk, target):
            config = MatmulConfig(family, bm, bn, bk, warps, stages, split, halves=halves)
            menu.append(config)
            if _kind(spec) == "fp8" and described and warps == 4 and split == 1:
                # Promotion to float32 stalls a program: others may use the tensor cores meanwhile.
                menu += [replace(config, residents=count) for count in (2, 3)]
            if halves and stages == 3 and split == 1:
                menu.append(replace(config, halves=False))
    return menu


def _deep_menu(spec: MatmulSpec, target: Target) -> list[MatmulConfig]:
    """The configurations of a small product of great depth whose operands both lie across it, such
    as the float32 gradient of a layer's parameters. Empty for other products.

    Hopper's products of warp groups would have both operands turned in shared memory. On an H200,
    64 x 64 of depth 2^18 took 40 us with these warps' products, 57 at best with those, and
    256 x 256 of depth 2^16 106 and 132.
    """
    alone = not (spec.batch or spec.segments or spec.gated or spec.hooks != Hooks())
    if not alone or _kind(spec) != "tf32" or not target.contiguous_depth:
        return []
    across = copies(spec, "lhs") and copies(spec, "rhs")
    if not across or max(spec.m, spec.n) > _MOST_DEEP or spec.k < 32 * max(spec.m, spec.n):
        return []
    side = 16 if max(spec.m, spec.n) <= 16 else 32
    tiles = math.ceil(spec.m / side) * math.ceil(spec.n / side)
    split = min(4 * target.processors // tiles, 2 * target.processors, spec.k // 256)
    warps = side // 16
    shapes = [(64, 3), (32, 4)] if warps == 2 else [(32, 4), (64, 3)]
    return [
        MatmulConfig("pointer", side, side, bk, warps, stages, max(split, 1))
        for bk, stages in shapes
    ]


def _narrow_menu(spec: MatmulSpec, target: Target) -> list[MatmulConfig]:
    """The configurations of few columns, such as those of low-rank adapters, in 16 bits: as much of
    the left operand as there is room for is under way. Empty for other products.

    On an H200, tiles of 128 x 16 x 128 took a half to four fifths of the time of 64 x 32 x 64.
    """
    if spec.n > _NARROW or _kind(spec) != "half" or not takes_descriptors(spec, target):
        return []
    columns = max(16, 1 << (spec.n - 1).bit_length())
    return [
        MatmulConfig("tma", 128, columns, bk, 4, 8, split)
        for bk in (128, 64)
        for split in _splits(spec, bk)
    ]


def _splits(spec: MatmulSpec, depth: int) -> list[int]:
    return [s for s in (1, 2, 3, 4, 6, 8) if s == 1 or spec.k >= 8 * s * depth]


def _many_splits(spec: MatmulSpec, bm: int, bn: int, bk: int, target: Target) -> list[int]:
    """The splits of a small product of great depth, such as the gradient of a layer's parameters:
    as many as occupy all processors."""
    tiles = math.ceil(spec.m / bm) * math.ceil(spec.n / bn) * spec.batches
    most = 2 * target.processors // tiles
    counts = {16, 32, 64, 128, most // 2, most}
    # As deep as the menus' other splits at least, which a second launch adds.
    return sorted(s for s in counts if 8 < s <= most and spec.k >= 2 * s * bk)


def _kind(spec: MatmulSpec) -> str:
    operand = spec.operand_dtype
    if operand == "fp32":
        return spec.precision if spec.precision in ("ieee", "tf32x3") else "tf32"
    if operand in FLOAT8:
        return "fp8"
    return {"fp16": "half", "bf16": "half", "i8": "int8"}.get(operand, operand)


def _pointer_kind(spec: MatmulSpec) -> str:
    kind = _kind(spec)
    if kind in ("half", "int8", "fp8"):
        # A copy into shared memory moves at least four bytes; narrower ones pass through registers.
        size = ITEMSIZE[spec.operand_dtype]
        steps = [s for x in ("lhs", "rhs") for s in spec.strides(x) if s > 1]
        return "narrow" if any(s * size % 4 for s in steps) else "half pointer"
    return kind


_SHAPES = {
    "half": [
        (128, 256, 64, 8, 4),
        (256, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (128, 128, 64, 4, 4),
        (128, 128, 64, 8, 4),
        (64, 256, 64, 4, 4),
        (64, 128, 64, 4, 4),
    ],
    "half pointer": [
        (128, 256, 64, 8, 3),
        (128, 128, 64, 8, 3),
        (128, 128, 32, 4, 4),
        (128, 64, 64, 4, 3),
        (64, 64, 64, 4, 3),
    ],
    "narrow": [(128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (64, 64, 64, 4, 3)],
    "tf32": [
        (128, 256, 32, 8, 3),
        (128, 128, 32, 8, 4),
        (128, 128, 32, 4, 4),
        (128, 64, 32, 4, 4),
        (64, 64, 32, 4, 4),
    ],
    "tf32x3": [(128, 128, 32, 8, 3), (64, 64, 32, 4, 3)],
    "ieee": [(128, 128, 16, 8, 3), (64, 64, 16, 4, 3), (32, 32, 32, 4, 3)],
    "fp64": [(64, 64, 16, 8, 3), (32, 32, 16, 4, 3)],
    "fp8": [
        (128, 128, 128, 8, 4),
        (64, 128, 128, 4, 4),
        (128, 64, 128, 4, 4),
        (128, 128, 256, 8, 3),
    ],
    "int8": [(128, 256, 128, 8, 3), (128, 128, 128, 8, 4), (128, 64, 128, 4, 4)],
}
"""(rows, columns, depth, warps, stages) of the tiles worth trying; none of them spills."""


def fitted(spec: MatmulSpec, config: MatmulConfig, target: Target) -> MatmulConfig:
    """The configuration with as many of its stages as fit in shared memory for this product."""
    limit = target.shared_memory // config.residents - 1024 * (config.residents - 1)
    while config.stages > 1 and shared_bytes(spec, config, target) > limit:
        config = replace(config, stages=config.stages - 1)
    return config


def _fitting(spec: MatmulSpec, menu: list[MatmulConfig], target: Target) -> list[MatmulConfig]:
    fitting = []
    for config in menu:
        config = fitted(spec, config, target)
        if config not in fitting:
            fitting.append(config)
    return [config for config in fitting if config.stages > 1] or fitting
