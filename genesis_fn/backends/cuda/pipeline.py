"""The passes of the CUDA backend, in order: start here.

    program          physical -> represented -> contiguous_collectives        compile_jaxpr
                     -> simplify -> fuse_attention -> laid_convolutions -> rematerialise
                     -> donations
    body by body     known_indices -> products_outside -> row_loops           schedule
                     -> joined_iterations -> absorb_casts -> shallow_products
                     -> vectors_left -> inner_products -> pitched_products
                     -> group_matmuls -> row_sums -> share_sorts -> random_words -> rotations
                     -> overlays -> computed_reductions -> row_factors
                     -> reductions_by_columns -> fuse -> lower
                     -> fuse_horizontally -> overlap_collectives -> pack_arena
    executable       ProgramBinding, IOBuffers, CudaExecutable                compile_jaxpr

`compile_jaxpr` runs the passes of a whole program, and makes the executable. `schedule` runs those
of one body: the program itself, and each body of a loop or branch when lowering meets it. Passes
are functions from program to program, or from steps to steps; their modules are `compiler/` where
they know nothing of CUDA, and `backends/cuda/lower/` where they do. Nothing here runs on a device:
kernels are compiled, and graphs captured, by the first call of the executable.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from genesis_fn.backends.cuda.lower.fused_casts import absorb_casts
from genesis_fn.backends.cuda.lower.fused_sums import takes_updates
from genesis_fn.backends.cuda.lower.horizontal_fusion import fuse_horizontally
from genesis_fn.backends.cuda.lower.joined_sums import joined_sums
from genesis_fn.backends.cuda.lower.overlap import overlap_collectives
from genesis_fn.backends.cuda.lower.pitched_products import pitched_products
from genesis_fn.backends.cuda.lower.shared_sorts import share_sorts
from genesis_fn.backends.cuda.lower.stacked_sums import stacked_sums
from genesis_fn.backends.cuda.lower.steps import (
    BufferTable,
    ProgramLowering,
    Schedule,
    check_error,
    keeps_fused,
    pack_arena,
)
from genesis_fn.backends.cuda.lowerings.conv import convolution_layout
from genesis_fn.backends.cuda.run.executable import CudaExecutable, ProgramBinding
from genesis_fn.backends.cuda.run.io_buffers import IOBuffers, OutputBuffer
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.backends.cuda.run.steps import exchanged_buffers
from genesis_fn.compiler.attention.rewrite import fuse_attention
from genesis_fn.compiler.complex_parts.represent import represented
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.loop_steps import joined_iterations
from genesis_fn.compiler.fusion.matmul_grouping import group_matmuls
from genesis_fn.compiler.loop_ir.kernel import SliceStore
from genesis_fn.compiler.memory.inplace import donations
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.rewrites.by_columns import reductions_by_columns
from genesis_fn.compiler.rewrites.computed import computed_reductions
from genesis_fn.compiler.rewrites.known_indices import known_indices
from genesis_fn.compiler.rewrites.overlays import overlays
from genesis_fn.compiler.rewrites.random_words import random_words
from genesis_fn.compiler.rewrites.rotations import rotations
from genesis_fn.compiler.rewrites.row_factors import row_factors
from genesis_fn.compiler.rewrites.row_sums import row_sums
from genesis_fn.compiler.rewrites.shallow import shallow_products
from genesis_fn.compiler.rewrites.vectors import inner_products, vectors_left
from genesis_fn.compiler.row_loops.row_loops import row_loops
from genesis_fn.compiler.scans.counted import counted_scans
from genesis_fn.compiler.scans.products import products_outside
from genesis_fn.compiler.simplify.collectives import contiguous_collectives
from genesis_fn.compiler.simplify.convolutions import laid_convolutions
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
    BackendError if a `compiler` is named: programs for a GPU have the library's own."""
    if compiler is not None:
        raise BackendError(
            f"compiler={compiler!r} is for the CPU, and the program runs on {device}; leave it "
            "out, or move the arguments with device_put(x, cpu())"
        )
    runtime = device_runtime(device.index)
    target = runtime.driver.info.target
    donated = tuple(donated) or (False,) * len(jaxpr.invars)
    site = f"outputs of {jaxpr.name or 'a program'}"

    # Represent extended dtypes (random keys) by the words that they consist of.
    keyless = physical(jaxpr)

    # Represent complex numbers by their parts.
    named = represented(keyless)

    # Exchange contiguous memory with other processes, of dtypes that can be added.
    named = contiguous_collectives(named)

    # Inline calls except fused functions with a kernel; remove repetition, no-ops and dead code.
    program = simplify_jaxpr(named, keeps_fused(target))

    # Attention that is written out becomes the fused functions that have kernels.
    program = fuse_attention(program, keeps_fused(target))

    # Convolutions have the layouts that a library or a kernel wants, or are products of matrices.
    layout = functools.partial(convolution_layout, target)
    program = laid_convolutions(program, layout, keeps_fused(target))

    # Recompute in the backward pass what costs less than keeping it.
    program = rematerialise_jaxpr(program)

    # Decide which results take the memory of which donated inputs.
    replaced = donations(program, donated)
    unused = [
        (i, f"no output is left that is {v.aval}")
        for i, (v, d) in enumerate(zip(jaxpr.invars, donated))
        if d and i not in replaced.values()
    ]

    # Schedule: equations become steps over numbered buffers. A result that replaces an input must
    # end in that input's buffer (its target).
    table = BufferTable(target)
    inputs = [table.new(v.aval.nbytes) for v in program.invars]
    table.read_only = {b for i, b in enumerate(inputs) if i not in replaced.values()}
    targets = [inputs[replaced[k]] if k in replaced else None for k in range(len(program.outs))]
    steps = schedule(table, program, inputs, targets)

    # The other results get output buffers, which are allocated before each run. Results that are
    # the same value share one.
    number = {b: i for i, b in enumerate(inputs)}
    outputs: dict[int, tuple[list[int], OutputBuffer]] = {}
    for k, (b, v) in enumerate(zip(steps.outputs, program.outs, strict=True)):
        if b not in number:
            outputs.setdefault(b, ([], OutputBuffer(v.aval.nbytes)))[0].append(k)

    # The executable: captures the steps into graphs (`run/graph.py`) for the addresses that calls
    # bring, and compiles kernels when it does.
    programmatic = target.programmatic_launch and config.current().programmatic_launch
    binding = ProgramBinding(runtime, table, steps, [*inputs, *outputs], site, programmatic)
    if table.error_word is not None:
        describe = lambda site, index: check_error(table, keyless, named, site, index)
        binding.word = runtime.errors.register(binding, describe)
    updated = [number.get(b) for b in steps.outputs]
    io = IOBuffers(runtime, site, donated, updated, list(outputs.values()), binding.capture)
    sigs = [sig(v.aval, device) for v in jaxpr.outs]
    exchanged = sorted(
        {number[b] for b in map(table.root, exchanged_buffers(steps.steps)) if b in number}
    )
    return CudaExecutable(program, binding, io, sigs, replaced, unused, exchanged)


def schedule(
    table: BufferTable,
    jaxpr: Jaxpr,
    inputs: Sequence[int],
    targets: Sequence[int | None],
    placed: dict[Var, SliceStore] | None = None,
    extra: dict[Var, int] | None = None,
    depth: int = 0,
    turns: bool = False,
) -> Schedule:
    """Schedule one body: the whole program, or the body of a loop or branch. `ProgramLowering`
    describes the arguments, and calls this function for the bodies that it meets."""
    # What is indexed by constants is a slice, or needs no sort and no atomics.
    jaxpr = known_indices(jaxpr)

    # What a loop's counter decides is nothing that it carries.
    jaxpr = counted_scans(jaxpr)

    # Multiply the rows of all steps at once, where a step need not.
    jaxpr = products_outside(jaxpr)

    # Run loops whose rows do not wait for each other as one kernel each.
    jaxpr = row_loops(jaxpr, table.target)

    # Run several iterations of a loop in one kernel, where computing some values again is cheaper.
    jaxpr = joined_iterations(jaxpr, table.target)

    # Absorb casts into the kernels of fused functions that compute in float32 anyway.
    jaxpr = absorb_casts(jaxpr, table.target)

    # Products of few terms are written out, and fuse.
    jaxpr = shallow_products(jaxpr)

    # Multiply vectors from the left, as the kernels of few rows do.
    jaxpr = vectors_left(jaxpr)

    # Products of two vectors are sums, which fuse.
    jaxpr = inner_products(jaxpr)

    # Rows of large products lie apart where descriptors can describe such alone.
    jaxpr = pitched_products(jaxpr, table.target)

    # Group matrix products that are too small to fill the GPU alone, or whose results are summed.
    jaxpr = group_matmuls(jaxpr, table.target)

    # What adds whole rows to zeros is a sum by segment.
    jaxpr = row_sums(jaxpr)

    # Sums by segment that are added are one sum.
    jaxpr = joined_sums(jaxpr, table.target)

    # Sums by segment of several tables are one sort and one sum.
    jaxpr = stacked_sums(jaxpr)

    # Sort the ids of sums by segment once for all that have the same.
    jaxpr = share_sorts(jaxpr)

    # New keys, and few random bits, are arithmetic, which fuses.
    jaxpr = random_words(jaxpr)

    # Rotated arrays are read at an index modulo their length.
    jaxpr = rotations(jaxpr)

    # What an update replaces most of is computed where it is read.
    jaxpr = overlays(jaxpr)

    # Reductions of arrays that are computed and never read take the form of one cheap kernel.
    jaxpr = computed_reductions(jaxpr)

    # Sums of rows do not wait for a factor of the row that comes of other sums.
    jaxpr = row_factors(jaxpr)

    # Reductions over split axes go by columns first, in one pass with others that read the same.
    jaxpr = reductions_by_columns(jaxpr, table.target)

    # Fuse equations into groups, each the loops of one kernel. A value that only its own group
    # reads is never stored.
    fusion = fuse_jaxpr(jaxpr, table.target, placed, takes_updates)

    # Lower groups to launches: loops become generated Triton source, other equations plans of
    # hand-written kernels. Values get buffers, those that are updated in place the same one.
    base = table.new(0)
    lowering = ProgramLowering(
        table, jaxpr, fusion, inputs, targets, schedule, placed, extra, depth, turns
    )
    items, outputs = lowering.lower()

    # Fuse horizontally: small launches that do not depend on each other become one.
    items = fuse_horizontally(items, table, lowering.fixed)

    # Collectives of the whole program run beside what needs nothing of them. In the bodies of
    # loops, which are unrolled, they stay where they are.
    if not depth:
        items = overlap_collectives(items, table)

    # Pack temporaries into an arena, each alive from its first step to its last. Last, since the
    # order of the steps is final only now.
    arena = pack_arena(items, outputs, table, lowering.fixed, base)
    return Schedule(items, outputs, base, arena)
