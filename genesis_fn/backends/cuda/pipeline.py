"""From a program to launches: the passes of the CUDA backend, in order."""

from __future__ import annotations

from collections.abc import Sequence

from genesis_fn.backends.cuda.lower.fused_casts import absorb_casts
from genesis_fn.backends.cuda.lower.horizontal_fusion import fuse_horizontally
from genesis_fn.backends.cuda.lower.steps import (
    BufferTable,
    ProgramLowering,
    Schedule,
    check_error,
    keeps_fused,
    packed,
)
from genesis_fn.backends.cuda.run.executable import Binding, CudaExecutable
from genesis_fn.backends.cuda.run.io_buffers import IOBuffers, Output
from genesis_fn.backends.cuda.run.runtime import runtime
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.matmul_grouping import group_matmuls
from genesis_fn.compiler.loop_ir.kernel import SliceStore
from genesis_fn.compiler.memory.inplace import donations
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core.aval import sig
from genesis_fn.core.configuration import config
from genesis_fn.core.device import Device
from genesis_fn.core.errors import BackendError
from genesis_fn.core.jaxpr import Jaxpr, Var
from genesis_fn.transforms.keys.words import physical


def compile_jaxpr(
    jaxpr: Jaxpr, device: Device, donated: Sequence[bool] = (), compiler: str | None = None
) -> CudaExecutable:
    """An executable for `jaxpr`; `donated` marks inputs whose memory outputs may take. Raises
    BackendError for a `compiler`: programs for a GPU have the library's own."""
    if compiler is not None:
        raise BackendError(
            f"compiler={compiler!r} is for the CPU, and the program runs on {device}; leave it "
            "out, or move the arguments with device_put(x, cpu())"
        )
    place = runtime(device.index)
    target = place.driver.info.target
    donated = tuple(donated) or (False,) * len(jaxpr.invars)
    site = f"outputs of {jaxpr.name or 'a program'}"

    # Values of extended dtypes, such as random keys, become the words that they consist of.
    named = physical(jaxpr)

    # Calls are inlined, but for functions with a kernel; what repeats or does nothing goes.
    program = simplify_jaxpr(named, keeps_fused(target))

    # Values that the backward pass can make again for less than keeping them are not kept.
    program = rematerialise_jaxpr(program)

    # Results take the memory of donated inputs.
    replaced = donations(program, donated)
    unused = [
        (i, f"no output is left that is {v.aval}")
        for i, (v, d) in enumerate(zip(program.invars, donated))
        if d and i not in replaced.values()
    ]

    # Equations become steps over numbered buffers: the passes of `schedule`.
    table = BufferTable(target)
    inputs = [table.new(v.aval.nbytes) for v in program.invars]
    table.steady = {b for i, b in enumerate(inputs) if i not in replaced.values()}
    targets = [inputs[replaced[k]] if k in replaced else None for k in range(len(program.outs))]
    steps = schedule(table, program, inputs, targets)

    # Results that are no input's memory get theirs before each run.
    number = {b: i for i, b in enumerate(inputs)}
    made: dict[int, tuple[list[int], Output]] = {}
    for k, (b, v) in enumerate(zip(steps.outputs, program.outs, strict=True)):
        if b not in number:
            made.setdefault(b, ([], Output(v.aval.nbytes)))[0].append(k)

    # Steps become graphs (`graph.py`) at the addresses that calls bring, launches binaries then.
    programmatic = target.programmatic_launch and config.current().programmatic_launch
    binding = Binding(place, table, steps, [*inputs, *made], site, programmatic)
    if table.word is not None:
        describe = lambda site, index: check_error(table, named, site, index)
        binding.word = place.errors.register(binding, describe)
    updated = [number.get(b) for b in steps.outputs]
    places = IOBuffers(place, site, donated, updated, list(made.values()), binding.capture)
    sigs = [sig(v.aval, device) for v in jaxpr.outs]
    return CudaExecutable(program, binding, places, sigs, replaced, unused)


def schedule(
    table: BufferTable,
    jaxpr: Jaxpr,
    inputs: Sequence[int],
    targets: Sequence[int | None],
    placed: dict[Var, SliceStore] | None = None,
    extra: dict[Var, int] | None = None,
    depth: int = 0,
) -> Schedule:
    """The steps of a program between buffers; see `ProgramLowering` for what the arguments are.
    Bodies of loops and branches go through the same passes where they are met."""
    # Casts around functions that compute in float32 anyway become part of their kernels.
    jaxpr = absorb_casts(jaxpr, table.target)

    # Matrix products that are too small for the machine, or are summed, become one.
    jaxpr = group_matmuls(jaxpr, table.target)

    # Equations form groups, each one kernel's loops; what stands only inside of one is not stored.
    fusion = fuse_jaxpr(jaxpr, table.target, placed)

    # Loops become Triton source, other equations the plans of kernels, results get buffers.
    base = table.new(0)
    scope = ProgramLowering(table, jaxpr, fusion, inputs, targets, schedule, placed, extra, depth)
    items, outputs = scope.lowered()

    # Small launches that do not wait for each other become one.
    items = fuse_horizontally(items, table, scope.fixed)

    # Temporaries share an arena, each from its first step to its last.
    arena = packed(items, outputs, table, scope.fixed, base)
    return Schedule(items, outputs, base, arena)
