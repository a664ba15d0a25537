"""The kernel of a few operations in one frame, with run-time sizes and scalars.

Operations without a reduction are computed for blocks of elements of the frame. With reductions, a
program takes some of the kept places, and goes along the reduced elements once for each reduction,
with what the reductions before it gave: what is computed of elements is computed again, never
stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from genesis_fn.backends.cuda.codegen.kernel_text import (
    BLOCK,
    Strided,
    add_elements,
    collapsed,
    indented,
    source_kernel,
)
from genesis_fn.backends.cuda.in_one.early_views import with_early_views
from genesis_fn.backends.cuda.in_one.frames import Frame, Reading, framed
from genesis_fn.backends.cuda.lowerings import has_lowering
from genesis_fn.backends.cuda.lowerings.elementwise import run_time_scalar
from genesis_fn.backends.cuda.lowerings.reductions import (
    TILE,
    accumulation,
    reduction_spec,
    splits,
    total_text,
)
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Reduce
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.language.expressions import (
    expression,
    literal,
    loaded,
    register,
    rounded,
    stored,
)
from genesis_fn.kernels.plan import Argument, BufferArg, Plan, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, dense, next_power_of_two
from genesis_fn.primitives.shape import reshape_p

# Steps along the reduced axis that take as long as a launch without jit: a load that waits for its
# memory takes most of a microsecond, the host five and more for a launch.
_STEPS_OF_A_LAUNCH = 6


def plan_in_one(program: Jaxpr, target: Target) -> Plan | None:
    """A plan of one kernel that computes the program's only result; None if there is none, or if
    it would not be faster than the operations one by one."""
    kinds = [v.aval.dtype for v in program.invars]
    kinds += [v.aval.dtype for e in program.eqns for v in e.outs]
    if any([dtypes.is_key(d) or dtypes.is_complex(d) or target.lacks(d) for d in kinds]):
        return None
    # One by one, all but reshapes are launches.
    operations = sum([e.prim is not reshape_p for e in program.eqns])
    if operations < 2 or not all([has_lowering(e.prim) for e in program.eqns]):
        return None
    program = with_early_views(program)
    frame = framed(program)
    if frame is None:
        return None
    size = math.prod(frame.shape)
    if not 0 < size <= INT32_MAX - TILE * BLOCK:
        return None
    text = _KernelText(frame, program)
    return text.reduction(target, operations) if frame.axes else text.elements()


class _KernelText:
    """The names of a program's values in its kernel, and the kernel's parameters."""

    def __init__(self, frame: Frame, program: Jaxpr) -> None:
        self.frame, self.program = frame, program
        self.names: dict[Var, str] = {}
        self.scalars: dict[str, Scalar] = {}
        self.texts: dict[Var, str] = {}  # the lines that compute full and kept values
        for e in frame.computed:
            self.names[e.outs[0]] = f"v{len(self.names)}"
        for e in frame.computed:
            if type(e.prim.lowering) is not Reduce:
                self.texts[e.outs[0]] = self._line(e)
        (self.out,) = program.outs
        self.buffers = {
            f"x{i}": BufferArg(i, NAMES[v.aval.dtype]) for i, v in enumerate(program.invars)
        }
        self.buffers["y"] = BufferArg(len(program.invars), NAMES[self.out.aval.dtype])
        # Every way in which an input is read, in the order of offsets.
        spanning = [r for v, r in frame.readings.items() if frame.spans(v)]
        self.ways: list[Reading] = list(dict.fromkeys(spanning))

    def _line(self, e: Eqn) -> str:
        """The line that computes an elementwise equation, whose scalars become parameters."""
        kind = next(x.aval for x in reversed(e.ins) if type(x) is Var)
        of_elements = e.outs[0] in self.frame.full
        names, avals = [], []
        for x in e.ins:
            if type(x) is Var:
                names.append(self.name(x, of_elements))
                avals.append(x.aval)
            else:
                scalar, text = run_time_scalar(x, kind.dtype)
                self.scalars[f"s{len(self.scalars)}"] = scalar
                names.append(text.format(f"s{len(self.scalars) - 1}"))
                avals.append(kind)
        out = e.outs[0]
        value = expression(e.prim, names, avals, e.params, e.numerics.precise)
        return f"{self.names[out]} = {rounded(value, out.aval.dtype)}"

    def name(self, v: Var, of_elements: bool) -> str:
        """What a value is called where elements, or kept places, are computed."""
        frame = self.frame
        if v in frame.readings:
            reading = frame.readings[v]
            source = reading.operand if reading.counts is None else f"n{NAMES[reading.counts]}"
            return f"r{source}_{'_'.join(map(str, self._steps(reading)))}"
        if v in frame.repeated:
            return f"{self.names[frame.repeated[v]]}[:, None]"
        return self.names[frame.same.get(v, v)]

    def _steps(self, reading: Reading) -> list[int]:
        """Which axes a reading moves along: all that names need to tell readings apart."""
        return [d for d, s in enumerate(reading.strides) if s]

    def needed(self, v: Var) -> list[Var]:
        """The full values that `v` is computed of, itself included, in order."""
        frame, wanted = self.frame, {v}
        for e in reversed(frame.computed):
            if e.outs[0] in wanted and e.outs[0] in frame.full:
                wanted.update([x for x in e.ins if type(x) is Var])
        readings = [x for x in frame.readings if x in wanted]
        return [*readings, *[e.outs[0] for e in frame.computed if e.outs[0] in wanted & frame.full]]

    def lines_of(self, values: Iterable[Var], offsets: dict[Reading, str], mask: str) -> list[str]:
        """The lines that load and compute full values."""
        lines: dict[str, None] = {}
        for v in values:
            if v in self.frame.readings:
                reading = self.frame.readings[v]
                at, d = offsets[reading], v.aval.dtype
                if reading.operand is None:
                    text = rounded(f"({at}).to({register(d)})", d)
                else:
                    text = loaded(f"tl.load(x{reading.operand} + {at}, {mask})", d)
                lines[f"{self.name(v, True)} = {text}"] = None
            else:
                lines[self.texts[v]] = None
        return list(lines)

    def elements(self) -> Plan:
        """The kernel of a program without reductions."""
        shape = self.frame.shape
        apart = [r for r in self.ways if r.strides != dense(shape)]
        sizes, steps = collapsed(shape, *[r.strides for r in apart])
        view = Strided("v", sizes, *steps)
        offsets = dict.fromkeys(self.ways, "i") | {r: f"vo{k}" for k, r in enumerate(apart)}
        result = self.name(self.out, True)
        lines = [
            *(view.lines("i") if apart else ()),
            *self.lines_of(self.needed(self.out), offsets, "inside"),
            f"tl.store(y + i, {stored(result, self.out.aval.dtype)}, inside)",
        ]
        scalars = self.scalars | (view.scalars("i32") if apart else {})
        builder = PlanBuilder(len(self.program.invars), 1)
        add_elements(
            builder, "few_elements", self.buffers, math.prod(shape), lines, scalars=scalars
        )
        return builder.build()

    def reduction(self, target: Target, operations: int) -> Plan | None:
        """The kernel of a program with reductions; None if `operations` launches, that split the
        reduced axis, are faster."""
        frame = self.frame
        kept_shape = [frame.shape[d] for d in frame.kept_axes]
        axes = sorted(frame.axes)
        kept, reduced = math.prod(kept_shape), math.prod([frame.shape[d] for d in axes])
        ways = self.ways
        if self.out in frame.full:  # where it is written, as one more
            ways = [*ways, Reading(len(self.program.invars), dense(frame.shape))]
        columns, column_steps = collapsed(
            kept_shape, *[[r.strides[d] for d in frame.kept_axes] for r in ways]
        )
        rows, row_steps = collapsed(
            [frame.shape[d] for d in axes], *[[r.strides[d] for d in axes] for r in ways]
        )
        along = axes[-1:] == [len(frame.shape) - 1]
        if along:
            br = min(TILE, max(16, next_power_of_two(reduced)))
            bk = max(1, min(TILE // br, next_power_of_two(kept)))
        else:
            bk = min(32, max(16, next_power_of_two(kept)))
            br = max(1, min(TILE // bk, next_power_of_two(reduced)))
        passes = sum([type(e.prim.lowering) is Reduce for e in frame.computed])
        steps = (passes + (self.out in frame.full)) * cdiv(reduced, br)
        # One by one, a reduction that is split is two launches.
        longest = _STEPS_OF_A_LAUNCH * (operations + passes - 1)
        if steps > longest and splits(kept, reduced, along, target):
            return None
        column, row = Strided("k", columns, *column_steps), Strided("r", rows, *row_steps)
        offsets = {r: f"ko{j}[:, None] + ro{j}[None, :]" for j, r in enumerate(ways)}
        lines = ["k = tl.program_id(0) * BK + tl.arange(0, BK)", "kin = k < K", *column.lines("k")]
        start = [
            "for r0 in range(0, R, BR):",
            "    r = r0 + tl.arange(0, BR)",
            "    here = kin[:, None] & (r < R)[None, :]",
            *[f"    {line}" for line in row.lines("r")],
        ]
        for e in frame.computed:
            if type(e.prim.lowering) is Reduce:
                lines += self._pass(e, e.prim.lowering, start, offsets)
            elif e.outs[0] in frame.kept:
                lines.append(self.texts[e.outs[0]])
        result = stored(self.name(self.out, True), self.out.aval.dtype)
        if self.out in frame.full:
            body = self.lines_of(self.needed(self.out), offsets, "here")
            body.append(f"tl.store(y + {offsets[ways[-1]]}, {result}, here)")
            lines += [*start, *[f"    {line}" for line in body]]
        else:
            lines.append(f"tl.store(y + k, {result}, kin)")
        scalars = {
            **self.scalars,
            **column.scalars("i32"),
            **row.scalars("i32"),
            "K": Scalar(kept, "i32"),
            "R": Scalar(reduced, "i32"),
        }
        names = ", ".join([*self.buffers, *scalars, "BK: tl.constexpr", "BR: tl.constexpr"])
        arguments: dict[str, Argument] = {**self.buffers, **scalars}
        builder = PlanBuilder(len(self.program.invars), 1)
        kernel = source_kernel("few_reductions", names, indented(lines))
        builder.launch(kernel, (cdiv(kept, bk),), arguments, {"BK": bk, "BR": br})
        return builder.build()

    def _pass(
        self, e: Eqn, how: Reduce, start: list[str], offsets: dict[Reading, str]
    ) -> list[str]:
        """The lines of one reduction: a loop along the reduced elements."""
        (x,), (y,) = e.ins, e.outs
        spec = reduction_spec(how, x.aval.dtype)
        value, identity = self.name(x, True), literal(spec.identity, spec.accumulator)
        if register(x.aval.dtype) != MEMORY[spec.accumulator]:
            value = f"({value}).to({MEMORY[spec.accumulator]})"
        body = [
            *self.lines_of(self.needed(x), offsets, "here"),
            f"v = tl.where(here, {value}, {identity})",
            f"acc = {accumulation(spec)}",
        ]
        return [
            f"acc = tl.full((BK, BR), 0, {MEMORY[spec.accumulator]}) + {identity}",
            *start,
            *[f"    {line}" for line in body],
            f"{self.names[y]} = {rounded(total_text(spec, y.aval.dtype), y.aval.dtype)}",
        ]
