"""Plans of matrix products: which kernel, which arguments, which scratch.

    plan = plan_matmul(MatmulSpec(m=4096, n=4096, k=1024, rhs_transposed=True), target)

Buffers are the left operand, the right one, the gate's right operand, the residual and the hooks'
inputs; then the output and the hooks' outputs. An accumulating output is read before it is written.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.element_types import FLOAT8, ITEMSIZE
from genesis_fn.kernels.language.source import kernel_from_source
from genesis_fn.kernels.matmul.operand_layout import add_prepared, copies, prepared_spec
from genesis_fn.kernels.matmul.source import (
    MAX_WRITTEN_OUT,
    MatmulSource,
    adds_in_place,
    partial_descriptor,
    persistent_source,
    reduction_source,
    tiled_source,
)
from genesis_fn.kernels.matmul.spec import FEW_ROWS, Hooks, MatmulConfig, MatmulSpec
from genesis_fn.kernels.matmul.tuning import (
    TENSOR_CORE_DTYPES,
    chosen_config,
    configs,
    shared_bytes,
    stores_descriptor,
    takes_descriptors,
)
from genesis_fn.kernels.plan import Argument, BufferArg, Descriptor, Launch, Plan, Workspace
from genesis_fn.kernels.plan_builder import PlanBuilder, next_power_of_two


@functools.lru_cache(512)
def plan_matmul(spec: MatmulSpec, target: Target, config: MatmulConfig | None = None) -> Plan:
    """The plan of one (batched) product: one launch, or two if k is split.

    Without `config` the configuration is chosen by `tuning.chosen_config`. Raises `ValueError` for
    a `config` that cannot serve the spec's layout or types.
    """
    # Cached: equal layers ask for equal plans, and a plan writes and parses its source.
    buffers = buffers_of(spec)
    outputs = 1 + len(spec.hooks.outputs)
    inputs = buffers["out"].index
    if spec.hooks.lhs and config is not None and config.family != "gemv":
        raise ValueError(f"only a gemv makes its left operand, not family {config.family!r}")
    if 0 in (spec.m, spec.n, *spec.batch):
        return Plan(inputs, outputs, ())
    if spec.segments and not segmented(spec, target):
        return _separate_segments(spec, target)
    config = config or chosen_config(spec, target)
    if config.prepared:
        return _prepared(spec, config, target)
    _check(spec, config, target)
    text = MatmulSource(spec, config, out_kind(spec, config))
    if config.split_k == 1:
        return Plan(inputs, outputs, (_launch(text, buffers, target),))
    # Each split stores its own partial tile, which a second launch adds: no atomics, so that the
    # order of additions is fixed.
    planes = config.split_k * (2 if spec.gated else 1)
    size = planes * spec.batches * spec.m * spec.n * ITEMSIZE[spec.acc_dtype]
    buffers |= {"partial": BufferArg(inputs + outputs, spec.acc_dtype)}
    steps = (_launch(text, buffers, target), _reduction(text, buffers, target))
    return Plan(inputs, outputs, steps, (Workspace(size),))


def segmented(spec: MatmulSpec, target: Target) -> bool:
    """Whether one loop can run through the segments of a product: it selects a descriptor by the
    step, so all need descriptors of one layout."""
    return spec.m > FEW_ROWS and all(
        takes_descriptors(piece, target)
        and all(
            piece.contiguous_axis(side) == spec.contiguous_axis(side) for side in ("lhs", "rhs")
        )
        for piece in spec.products
    )


def _separate_segments(spec: MatmulSpec, target: Target) -> Plan:
    """The segments as products of their own, added in a workspace."""
    builder = PlanBuilder(2 * len(spec.products), 1)
    wide = spec.acc_dtype
    partial_sum = builder.workspace(spec.m * spec.n, wide)
    pieces = spec.products
    if spec.residual or spec.hooks != Hooks():
        raise ValueError("segments that are not added in one loop take no epilogue")
    for i, piece in enumerate(pieces):
        operands = [BufferArg(2 * i, piece.lhs_dtype), BufferArg(2 * i + 1, piece.rhs_dtype)]
        if i < len(pieces) - 1:
            part = replace(piece, out_dtype=wide, out_strides=None, accumulate=i > 0, rounded=None)
            builder.include(plan_matmul(part, target), [*operands, partial_sum])
        else:
            # The last one adds the sum of the others as its residual, and rounds once.
            last = replace(piece, residual=wide)
            out = BufferArg(2 * len(pieces), spec.out_dtype)
            builder.include(plan_matmul(last, target), [*operands, partial_sum, out])
    return builder.build()


def _prepared(spec: MatmulSpec, config: MatmulConfig, target: Target) -> Plan:
    """The product of copies of its operands, as `operand_layout` lays them out."""
    ready = prepared_spec(spec)
    inner = plan_matmul(ready, target, replace(config, prepared=False))
    builder = PlanBuilder(inner.inputs, inner.outputs)
    buffers = [BufferArg(i, "i8") for i in range(inner.inputs + inner.outputs)]
    for i, operand in enumerate(("lhs", "rhs")):
        if copies(spec, operand):
            buffers[i] = add_prepared(builder, spec, operand)
    builder.include(inner, buffers)
    return builder.build()


def buffers_of(spec: MatmulSpec) -> dict[str, BufferArg]:
    """The pointer arguments of a product by name, buffers numbered in the plan's order."""
    buffers = {"lhs": BufferArg(0, spec.lhs_dtype), "rhs": BufferArg(1, spec.rhs_dtype)}
    for i in range(1, len(spec.segments) + 1):
        buffers[f"lhs_s{i}"] = BufferArg(2 * i, spec.lhs_dtype)
        buffers[f"rhs_s{i}"] = BufferArg(2 * i + 1, spec.rhs_dtype)
    following = [("rhs1", spec.rhs_dtype)] * spec.gated
    if spec.residual:
        following.append(("residual", spec.residual))
    following += [*spec.hooks.inputs, ("out", spec.out_dtype), *spec.hooks.outputs]
    for i, (name, dtype) in enumerate(following, len(buffers)):
        buffers[name] = BufferArg(i, dtype)
    if spec.accumulate:
        buffers["held"] = buffers["out"]
    return buffers


def out_kind(spec: MatmulSpec, config: MatmulConfig) -> str:
    """The way in which a kernel stores its tiles: "partial", "descriptor" or "pointer"."""
    if config.split_k > 1:
        return "partial"
    return "descriptor" if config.family == "tma" and stores_descriptor(spec) else "pointer"


def arguments_of(text: MatmulSource, buffers: dict[str, BufferArg]) -> dict[str, Argument]:
    """The launch's pointer and descriptor arguments by name."""
    spec, arguments = text.spec, {}
    # A partial launch stores plain sums: the epilogue and its pointers are the second launch's.
    partial = text.out == "partial"
    for name, buffer in buffers.items():
        if partial and name not in ("lhs", "rhs", "rhs1", "partial", *_loop_names(spec.hooks)):
            continue
        if name == "lhs" and spec.hooks.lhs:
            continue
        if name in ("lhs", "rhs", "rhs1") and text.config.family == "tma":
            arguments[text.name(name)] = _operand_descriptor(text, name[:3], buffer)
        elif name.startswith(("lhs_s", "rhs_s")):
            piece = replace(text, spec=spec.products[int(name[5:])])
            arguments[text.name(name)] = _operand_descriptor(piece, name[:3], buffer)
        elif name == "out" and text.out == "descriptor":
            width = text.config.bn // text.config.subtiles
            shape, steps = (*spec.batch, spec.m, spec.n), spec.strides("out")
            block = (*[1] * len(spec.batch), text.config.bm, width)
            arguments[text.name(name)] = Descriptor(buffer, shape, steps, block)
        elif name == "held" and adds_in_place(text):
            continue  # the stores add, nothing reads the output
        elif name == "partial" and partial_descriptor(text):
            planes = text.config.split_k * (2 if spec.gated else 1) * spec.batches
            width = text.config.bn // text.config.subtiles
            shape, steps = (planes, spec.m, spec.n), (spec.m * spec.n, spec.n, 1)
            arguments[name] = Descriptor(buffer, shape, steps, (1, text.config.bm, width))
        elif name != "partial" or partial:
            arguments[text.name(name)] = buffer
    return arguments


def _loop_names(hooks: Hooks) -> list[str]:
    used = hooks.lhs + hooks.setup
    return [name for name, _ in (*hooks.inputs, *hooks.outputs) if name in used]


def _operand_descriptor(text: MatmulSource, operand: str, buffer: BufferArg) -> Descriptor:
    spec, config = text.spec, text.config
    steps = spec.strides(operand)
    # Axes that the operand broadcasts along have no stride, and no axis of the descriptor.
    kept = [i for i in range(len(spec.batch)) if steps[i]]
    shape = (spec.m, spec.k) if operand == "lhs" else (spec.k, spec.n)
    block = (config.bm, config.bk) if operand == "lhs" else (config.bk, config.bn)
    inner = steps[-2:]
    # TMA wants the contiguous axis last.
    if spec.contiguous_axis(operand) == 0:
        shape, block, inner = shape[::-1], block[::-1], inner[::-1]
    return Descriptor(
        buffer,
        (*(spec.batch[i] for i in kept), *shape),
        (*(steps[i] for i in kept), *inner),
        (*[1] * len(kept), *block),
    )


def _source(text: MatmulSource, arguments: list[str], numbers: dict[str, int]) -> str:
    parameters = [*arguments, *(f"{name}: tl.constexpr" for name in numbers)]
    parameters += ["EARLY: tl.constexpr"] * text.config.early
    name = f"matmul_{text.config.family}_{text.spec.lhs_dtype}_{text.spec.rhs_dtype}"
    if text.config.family == "tma":
        return persistent_source(name, parameters, [text])
    return tiled_source(name, parameters, text)


def _launch(text: MatmulSource, buffers: dict[str, BufferArg], target: Target) -> Launch:
    spec, config = text.spec, text.config
    arguments, numbers = arguments_of(text, buffers), text.numbers()
    kernel = kernel_from_source(_source(text, list(arguments), numbers))
    constants: dict[str, int | bool] = {**numbers}
    programs = tiles_of(spec, config)
    tiles = 0
    # Persistent: no more programs than run at once, each walks several tiles.
    if config.family == "tma":
        tiles = programs
        programs = min(tiles, target.processors * config.residents)
        constants |= {"PROGRAMS": programs, "CHUNK": 0}
    if config.early:
        constants["EARLY"] = False
    shared = 0
    if config.family != "gemv" and config.tensor_cores:
        # A loop of one step is none, and has no stages.
        once = spec.depth <= config.bk
        shared = shared_bytes(spec, replace(config, stages=1) if once else config, target)
    grid = (programs, 1, 1)
    return Launch(
        kernel, grid, arguments, constants, config.warps, config.stages, shared=shared, tiles=tiles
    )


def tiles_of(spec: MatmulSpec, config: MatmulConfig) -> int:
    """The number of tiles of the output, every split of k counted."""
    tiles = math.ceil(spec.m / config.bm) * math.ceil(spec.n / config.bn)
    return tiles * spec.batches * config.split_k


def _reduction(text: MatmulSource, buffers: dict[str, BufferArg], target: Target) -> Launch:
    spec, config = text.spec, text.config
    rows, columns = min(16, next_power_of_two(spec.m)), 128
    # A small result is shared by as many programs as have an element for each thread.
    while rows > 1 and spec.m * spec.n * spec.batches < target.processors * rows * columns:
        rows //= 2
    if config.split_k > MAX_WRITTEN_OUT:
        # All partial tiles are loaded at once, so that what they share is small.
        elements = max(32, 8192 // next_power_of_two(config.split_k))
        columns = min(elements, next_power_of_two(spec.n))
        rows = min(elements // columns, rows)
    tile = replace(
        config, bm=rows, bn=columns, halves=False, epilogue_subtiles=None, family="pointer"
    )
    text = replace(text, config=tile, out="pointer")
    arguments: dict[str, Argument] = {
        name: buffer for name, buffer in buffers.items() if name not in ("lhs", "rhs", "rhs1")
    }
    numbers = text.numbers()
    parameters = [*arguments, *(f"{name}: tl.constexpr" for name in numbers)]
    kernel = kernel_from_source(reduction_source("matmul_reduce", parameters, text))
    grid = (math.ceil(spec.m / tile.bm), math.ceil(spec.n / tile.bn), spec.batches)
    return Launch(kernel, grid, arguments, numbers, 4, 1)


def _check(spec: MatmulSpec, config: MatmulConfig, target: Target) -> None:
    if not target.float8 and {spec.lhs_dtype, spec.rhs_dtype, spec.out_dtype} & set(FLOAT8):
        raise ValueError(
            f"float8 needs compute capability 8.9, the device has sm_{target.architecture}"
        )
    if config.tensor_cores and spec.operand_dtype not in TENSOR_CORE_DTYPES:
        raise ValueError(f"tensor cores cannot multiply {spec.operand_dtype}: tensor_cores=False")
    if config.family == "tma" and not takes_descriptors(spec, target):
        raise ValueError(
            f"{spec} cannot be read through descriptors on sm_{target.architecture}: "
            "use family 'pointer'"
        )
    if config.family not in ("tma", "pointer", "gemv"):
        raise ValueError(f"family must be 'tma', 'pointer' or 'gemv', got {config.family!r}")
    if config.family == "gemv" and spec.hooks.lhs and spec.m > config.bm:
        raise ValueError(f"a gemv that makes its left operand holds {config.bm} rows, not {spec.m}")
    if config.slices > 1 and (config.family != "pointer" or config.swap):
        raise ValueError(f"only family 'pointer' without swap cuts its steps, got {config}")


__all__ = ["Hooks", "MatmulConfig", "MatmulSpec", "configs", "plan_matmul"]
