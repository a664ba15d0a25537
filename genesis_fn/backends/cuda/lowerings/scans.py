"""Cumulative reductions, and scans by a formula: `lax.associative_scan`, linear recurrences.

Scans by a formula read each array once, and write it once. A program has some lines, and walks
along them: tiles are scanned in registers, by Triton's scan of the formula, and the last step of
each is combined with all of the next one. Few lines are cut into chunks: a first kernel finds the
total of each, the second begins each with the totals before it. Steps beyond the end come last, and
nothing depends on them: no identity is needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.codegen.kernel_text import indented
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import add_convert, converted
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.dtypes import DType
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.dtypes import MEMORY, NAMES
from genesis_fn.kernels.language.expressions import MODULES, PRELUDE, expression, loaded, stored
from genesis_fn.kernels.plan import Argument, Plan, Scalar
from genesis_fn.kernels.plan_builder import INT32_MAX, PlanBuilder, cdiv, next_power_of_two
from genesis_fn.kernels.rows.scan import Scan, plan_scan
from genesis_fn.primitives.reductions.cumulative import (
    cumlogsumexp_p,
    cummax_p,
    cummin_p,
    cumprod_p,
    cumsum_p,
    linear_recurrence_p,
)
from genesis_fn.transforms.control_flow.associative import Formula, formula_of

# Their sums and products wrap in 8 or 16 bits, which registers do not have.
_NARROW_INTEGERS = (dtypes.I8, dtypes.U8, dtypes.I16, dtypes.U16)
_TILE = 16384  # bytes of the registers that a tile of all arrays takes
_PROGRAMS = 4  # for each processor, where lines are cut into chunks: fewer programs than those
_MOST_CHUNKS = 128
_MOST_ARRAYS = 8


# ---- cumulative reductions ----


@lowers(cumsum_p, operation="add")
@lowers(cumprod_p, operation="mul")
@lowers(cummax_p, operation="max")
@lowers(cummin_p, operation="min")
@lowers(cumlogsumexp_p, operation="logaddexp")
def _cumulative(call: Call, operation: str) -> Lowered:
    x, axis = call.operands[0], call.params["axis"]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if x.size == 0:
        return PlanBuilder(1, 1).build()
    kind = "u8" if x.dtype == dtypes.BOOL else NAMES[x.dtype]
    eight_bits = x.dtype in (dtypes.F8E4, dtypes.F8E5)
    plan = plan_scan(
        Scan(
            outer,
            x.shape[axis],
            inner,
            "fp32" if eight_bits else kind,
            operation,
            call.params["reverse"],
        ),
        call.target,
    )
    if not eight_bits:
        return plan
    builder = PlanBuilder(1, 1)
    held = builder.workspace(x.size, "fp32")
    builder.include(plan, [converted(builder, call.read(0), x, dtypes.F32), held])
    add_convert(builder, held, x.update(dtype=dtypes.F32), call.write(), x.dtype)
    return builder.build()


# ---- scans by a formula ----


def plan_prefixes(
    call: Call,
    results: Sequence[Aval],
    *,
    formula: Formula,
    axis: int,
    reverse: bool,
    kept: tuple[int, ...],
) -> Plan | None:
    """The plan of a scan by a formula; None for arrays or functions that kernels do not take."""
    arrays = call.operands
    if len(results) != len(kept) or len(arrays) > _MOST_ARRAYS:
        return None
    if any([x.dtype in _NARROW_INTEGERS for x in arrays]) or not _has_expressions(formula):
        return None
    return _plan(call, formula, axis, reverse, kept)


@lowers(linear_recurrence_p)
def _recurrence(call: Call) -> Lowered:
    """The composition of the maps h -> a h + b: the first step's is that of the state zero."""
    if call.operands[1].size == 0:
        return PlanBuilder(2, 1).build()
    kind = call.operands[0].update(())
    formula = formula_of(lambda p, q: [p[0] * q[0], q[0] * p[1] + q[1]], [kind, kind])
    assert formula is not None
    return _plan(call, formula, call.params["axis"], call.params["reverse"], (1,))


def _plan(call: Call, formula: Formula, axis: int, reverse: bool, kept: tuple[int, ...]) -> Plan:
    arrays = call.operands
    shape, kinds = arrays[0].shape, tuple([x.dtype for x in arrays])
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    lines = outer * inner
    across, along, warps = _tile(lines, length, inner, kinds, call.target.processors)
    programs = cdiv(lines, across)
    chunks = 1
    if programs < call.target.processors:
        chunks = min(_PROGRAMS * call.target.processors // programs, _MOST_CHUNKS)
        chunks = max(1, min(chunks, cdiv(length, 4 * along)))
    span = cdiv(cdiv(length, along), chunks) * along
    chunks = cdiv(length, span)
    builder = PlanBuilder(len(arrays), len(kept))
    reads: dict[str, Argument] = {f"x{i}": call.read(i) for i in range(len(arrays))}
    writes: dict[str, Argument] = {f"y{i}": call.write(n) for n, i in enumerate(kept)}
    sizes = {"lines": lines, "inner": inner, "length": length, "span": span}
    constants, totals = {"ACROSS": across, "ALONG": along}, {}
    if chunks > 1:
        constants["CHUNKS_PADDED"] = next_power_of_two(chunks)
        for i, d in enumerate(kinds):
            totals[f"t{i}"] = builder.workspace(lines * chunks, NAMES[_held(d)])
    scalars = {name: Scalar(n) for name, n in sizes.items()}
    wide = lines * length + along * inner > INT32_MAX
    for only in (True, False) if chunks > 1 else (False,):
        kernel = _kernel(formula, kinds, kept, inner == 1, reverse, wide, chunks > 1, only)
        grid = (programs, chunks - 1 if only else chunks)
        arguments = reads | ({} if only else writes) | totals | scalars
        builder.launch(kernel, grid, arguments, constants, num_warps=warps)
    return builder.build()


def _has_expressions(formula: Formula) -> bool:
    rules = [e.prim.lowering for e in formula.program.eqns]
    return all([type(x) is Elementwise and x.triton is not None for x in rules])


def _tile(
    lines: int, length: int, inner: int, kinds: Sequence[DType], processors: int
) -> tuple[int, int, int]:
    """(lines, steps, warps) of a tile."""
    most = max(128, _TILE // sum([max(d.itemsize, 4) for d in kinds]))
    if inner == 1:
        along = min(next_power_of_two(length), most // min(next_power_of_two(lines), 4))
        across = min(next_power_of_two(lines), max(1, most // along))
        while across > 1 and cdiv(lines, across) < 2 * processors:
            across //= 2
    else:
        # Lines that lie beside each other, at least as many as memory reads at once.
        across = min(next_power_of_two(lines), 64)
        while across > 16 and cdiv(lines, across) < 2 * processors:
            across //= 2
        along = min(next_power_of_two(length), max(16, most // across))
    along = max(along, 2)
    return across, along, max(1, min(8, across * along // 512))


# ---- the text ----


def _held(d: DType) -> DType:
    """The dtype in which values are scanned: booleans are integers, since threads exchange none of
    one bit."""
    return dtypes.I32 if d == dtypes.BOOL else dtypes.widened(d)


def _type(d: DType) -> str:
    return MEMORY[_held(d)]


def _combining(formula: Formula, kinds: Sequence[DType]) -> list[str]:
    """The lines of the function that combines two elements of all arrays."""
    program, count = formula.program, len(kinds)
    name = {v: f"{'ab'[i >= count]}{i % count}" for i, v in enumerate(program.invars)}
    lines = [f"{name[v]} = {name[v]} != 0" for v in program.invars if v.aval.dtype == dtypes.BOOL]
    for n, e in enumerate(program.eqns):
        operands = [aval((), i.aval.dtype) if type(i) is Var else i for i in e.ins]
        names = [name[i] if type(i) is Var else "" for i in e.ins]
        text = expression(e.prim, names, operands, e.params, e.numerics.precise)
        name[e.outs[0]] = f"v{n}"
        lines.append(f"v{n} = {text}")
    results = [f"{name[o]}.to({_type(d)})" for o, d in zip(program.outs, kinds)]
    return [*lines, f"return {', '.join(results)}"]


@functools.lru_cache(1024)
def _kernel(
    formula: Formula,
    kinds: tuple[DType, ...],
    kept: tuple[int, ...],
    rows: bool,
    reverse: bool,
    wide: bool,
    cut: bool,
    totals_only: bool,
) -> SourceKernel:
    """The kernel. `rows`: steps lie beside each other in memory, lines do not; `cut`: into chunks;
    `totals_only`: it finds the totals of chunks."""
    numbers = range(len(kinds))
    shape, axis = ("(ACROSS, ALONG)", 1) if rows else ("(ALONG, ACROSS)", 0)
    by_line, by_step = ("[:, None]", "[None, :]") if rows else ("[None, :]", "[:, None]")
    listed = lambda letter: ", ".join([f"{letter}{i}" for i in numbers])

    def scan(letter: str, axis: int) -> str:
        names = listed(letter)
        operand = f"({names})" if len(kinds) > 1 else names
        return f"{names} = tl.associative_scan({operand}, {axis}, both)"

    def picked(letter: str, where: str, axis: int) -> list[str]:
        # By its bits: sums of numbers would lose the sign of a zero.
        lines = []
        for i, d in zip(numbers, kinds):
            x, bits, back = f"{letter}{i}", _type(d), ""
            if dtypes.is_float(d):
                bits = "tl.int64" if d == dtypes.F64 else "tl.int32"
                x, back = f"{x}.to({bits}, bitcast=True)", f".to({_type(d)}, bitcast=True)"
            lines.append(f"c{i} = tl.sum(tl.where({where}, {x}, 0), {axis}).to({bits}){back}")
        return lines

    def loads(begin: str) -> list[str]:
        lines = [
            f"step = {begin} + tl.arange(0, ALONG)",
            f"here = (step < end){by_step} & exists{by_line}",
            f"at = base{by_line} + {_position(reverse, wide)}{by_step}" + " * inner" * (not rows),
        ]
        return lines + [f"n{i} = tl.load(x{i} + at, here)" for i in numbers]

    line = f"tl.program_id(0){'.to(tl.int64)' if wide else ''} * ACROSS + tl.arange(0, ACROSS)"
    first = "line * length" if rows else "line // inner * (inner * length) + line % inner"
    body = [
        f"line = {line}",
        "exists = line < lines",
        f"base = {first}",
        "begin = tl.program_id(1) * span",
        "end = tl.minimum(begin + span, length)",
    ]
    body += [f"c{i} = tl.zeros((ACROSS,), {_type(d)})" for i, d in zip(numbers, kinds)]
    if cut and not totals_only:
        body += [
            "chunk = tl.arange(0, CHUNKS_PADDED)[:, None]",
            "before = (chunk < tl.program_id(1)) & exists[None, :]",
            *[f"w{i} = tl.load(t{i} + (chunk * lines + line[None, :]), before)"
              for i in numbers],
            scan("w", 0),
            *picked("w", "chunk == tl.program_id(1) - 1", 0),
        ]  # fmt: skip
    body += loads("begin")
    repeated = ["was_here = here", "was_at = at"]
    repeated += [f"v{i} = {_value(f'n{i}', d)}" for i, d in zip(numbers, kinds)]
    # The next tile is loaded while this one is combined.
    repeated += [*loads("start + ALONG"), scan("v", axis)]
    carried = ", ".join([f"tl.broadcast_to(c{i}{by_line}, {shape})" for i in numbers])
    repeated += [
        f"if start > {'begin' if totals_only else '0'}:",
        f"    {listed('v')} = both({carried}, {listed('v')})",
    ]
    if not totals_only:
        for i in kept:
            value = f"v{i} != 0" if kinds[i] == dtypes.BOOL else stored(f"v{i}", kinds[i])
            repeated.append(f"tl.store(y{i} + was_at, {value}, was_here)")
    repeated += picked("v", f"(tl.arange(0, ALONG) == ALONG - 1){by_step}", axis)
    body += ["for start in range(begin, end, ALONG):", *[f"    {x}" for x in repeated]]
    if totals_only:
        total = "tl.program_id(1) * lines + line"
        body += [f"tl.store(t{i} + ({total}), c{i}, exists)" for i in numbers]
    pointers = [f"x{i}" for i in numbers]
    pointers += [] if totals_only else [f"y{i}" for i in kept]
    pointers += [f"t{i}" for i in numbers] if cut else []
    sizes = ["lines", "inner", "length", "span", "ACROSS: tl.constexpr", "ALONG: tl.constexpr"]
    sizes += ["CHUNKS_PADDED: tl.constexpr"] if cut else []
    name = "prefix_totals" if totals_only else "prefixes"
    text = f"{PRELUDE}def both({listed('a')}, {listed('b')}):\n"
    text += indented(_combining(formula, kinds))
    text += f"\n\n@triton.jit\ndef {name}({', '.join([*pointers, *sizes])}):\n{indented(body)}"
    return SourceKernel(name, text, MODULES)


def _position(reverse: bool, wide: bool) -> str:
    at = "(length - 1 - step)" if reverse else "step"
    return f"{at}.to(tl.int64)" if wide else at


def _value(name: str, d: DType) -> str:
    return f"{name}.to(tl.int32)" if d == dtypes.BOOL else loaded(name, d)
