"""Several matrix products in one launch: all weight gradients of a layer, for instance.

Each weight gradient alone has too few output tiles to fill the GPU (32 to 96 for the 132
multiprocessors of an H200); together they fill 97 % of whole waves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.language.source import kernel_from_source
from genesis_fn.kernels.matmul.matmul import (
    arguments_of,
    buffers_of,
    out_kind,
    plan_matmul,
    segmented,
    tiles_of,
)
from genesis_fn.kernels.matmul.source import MatmulSource, persistent_source
from genesis_fn.kernels.matmul.spec import FEW_ROWS, MatmulConfig, MatmulSpec
from genesis_fn.kernels.matmul.tuning import configs, seconds, skinny_configs, takes_descriptors
from genesis_fn.kernels.plan import Argument, BufferArg, Launch, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder


def plan_grouped_matmul(
    specs: Sequence[MatmulSpec], target: Target, config: MatmulConfig | None = None
) -> Plan:
    """The plan of independent products of equal element types in one launch.

    Inputs are each product's inputs in turn, outputs its outputs in turn. Products whose operands
    cannot be read through descriptors, and single ones, are launches of their own.
    """
    types = {(s.lhs_dtype, s.rhs_dtype, s.out_dtype, s.precision) for s in specs}
    if len(types) != 1:
        raise ValueError(f"grouped products must share element types and precision, got {types}")
    fit = all(takes_descriptors(s, target) for s in specs)
    fit = fit and all(segmented(s, target) for s in specs if s.segments)
    if len(specs) == 1 or not fit:
        return _in_sequence([plan_matmul(s, target) for s in specs])
    config = config or grouped_configs(specs, target)[0]
    return _one_launch(specs, config, target)


def grouped_configs(specs: Sequence[MatmulSpec], target: Target) -> list[MatmulConfig]:
    """Configurations worth timing for the group, the best by the machine model first."""
    # One tile size for all: they share registers and shared memory of the same programs.
    candidates: dict[MatmulConfig, None] = {}
    first = specs[0]
    if first.m <= FEW_ROWS and all((s.m, s.k) == (first.m, first.k) for s in specs):
        # As one product of all columns: its time is that of reading them.
        wide = replace(first, n=sum(s.n for s in specs), out_strides=None)
        return [c for c in skinny_configs(wide, target) if c.family == "tma" and c.split_k == 1]
    for spec in specs:
        for config in configs(replace(spec, batch=(), **_no_strides()), target):
            if config.family == "tma" and not (config.swap or config.prepared):
                candidates[replace(config, split_k=1, residents=1)] = None
    if not candidates:
        candidates[MatmulConfig("tma", 64, 64, 64, 4, 3)] = None
    return sorted(candidates, key=lambda config: _group_seconds(specs, config, target))


def _no_strides() -> dict[str, None]:
    return {f"{operand}_strides": None for operand in ("lhs", "rhs", "out")}


def _group_seconds(specs: Sequence[MatmulSpec], config: MatmulConfig, target: Target) -> float:
    # The time of a wave of each product, weighted by its tiles, for the waves of all together.
    tiles = sum(tiles_of(s, config) for s in specs)
    work = 0.0
    for spec in specs:
        own = tiles_of(spec, config)
        work += own * seconds(spec, config, target) / math.ceil(own / target.processors)
    return work / tiles * math.ceil(tiles / target.processors)


def _one_launch(specs: Sequence[MatmulSpec], config: MatmulConfig, target: Target) -> Plan:
    texts = [MatmulSource(s, config, out_kind(s, config), f"_{i}") for i, s in enumerate(specs)]
    arguments: dict[str, Argument] = {}
    numbers: dict[str, int] = {}
    own = [buffers_of(spec) for spec in specs]
    # The output comes last in each product's buffers: its index is the number of inputs.
    counts = [buffers["out"].index for buffers in own]
    for i, (text, buffers) in enumerate(zip(texts, own, strict=True)):
        moved = {
            name: _moved(b, counts[i], sum(counts[:i]), sum(counts) + i)
            for name, b in buffers.items()
        }
        arguments |= arguments_of(text, moved)
        numbers |= text.numbers()
    parameters = [*arguments, *(f"{name}: tl.constexpr" for name in numbers)]
    name = f"matmul_grouped_{specs[0].lhs_dtype}_{specs[0].rhs_dtype}"
    source = persistent_source(name, parameters, texts)
    tiles = sum(tiles_of(s, config) for s in specs)
    programs = min(tiles, target.processors)
    launch = Launch(
        kernel_from_source(source),
        (programs, 1, 1),
        arguments,
        {**numbers, "PROGRAMS": programs, "CHUNK": 0},
        config.warps,
        config.stages,
        tiles=tiles,
    )
    return Plan(sum(counts), len(specs), (launch,))


def _moved(buffer: BufferArg, inputs: int, first_input: int, output: int) -> BufferArg:
    index = first_input + buffer.index if buffer.index < inputs else output
    return replace(buffer, index=index)


def _in_sequence(plans: Sequence[Plan]) -> Plan:
    builder = PlanBuilder(sum(p.inputs for p in plans), sum(p.outputs for p in plans))
    inputs, outputs = count(), count(builder.inputs)
    for plan in plans:
        numbers = [*islice(inputs, plan.inputs), *islice(outputs, plan.outputs)]
        builder.include(plan, [BufferArg(i, "i8") for i in numbers])
    return builder.build()
