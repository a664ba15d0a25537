"""What a program costs before it runs: floating-point operations, bytes, peak memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, e_jaxprs, memoized

# Values move, nothing is computed.
_MOVES = frozenset((
    "bitcast_convert_type", "broadcast_in_dim", "complex", "concatenate", "convert_element_type",
    "copy", "dynamic_slice", "dynamic_update_slice", "full", "gather", "imag", "iota", "name",
    "optimization_barrier", "pad", "real", "reshape", "rev", "select", "slice", "split",
    "stop_gradient", "take_rows", "transpose", "debug_callback", "io_callback", "pure_callback",
    "assert", "axis_index", "all_gather", "all_to_all", "ppermute",
))  # fmt: skip
_TRANSCENDENTAL = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh",
    "cumlogsumexp", "digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma", "log",
    "log1p", "logistic", "polygamma", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
))  # fmt: skip
# The result shares the operand's memory.
_SHARES = frozenset((
    "broadcast_in_dim", "name", "optimization_barrier", "reshape", "slice", "split",
    "stop_gradient", "transpose",
))  # fmt: skip


def _avals(atoms: Sequence) -> list[Aval]:
    return [v.aval for v in atoms if type(v) is Var]


def _bytes(atoms: Sequence) -> int:
    return sum(a.nbytes for a in _avals(atoms))


def _flops(e: Eqn) -> float:
    """The floating-point operations of a first-order equation (2 for a multiply-add)."""
    name, ins, outs = e.prim.name, _avals(e.ins), _avals(e.outs)
    if name in _MOVES or not outs:
        return 0
    out = outs[0]
    if name == "dot_general":
        (contract, _), _ = e.params["dimension_numbers"]
        return 2 * out.size * math.prod(ins[0].shape[i] for i in contract)
    if name == "conv_general_dilated":
        spec = e.params["dimension_numbers"].rhs_spec
        kernel = math.prod(ins[1].shape[i] for i in spec[1:])
        return 2 * out.size * kernel
    if name.startswith("reduce_window"):
        return out.size * math.prod(e.params["window"].lengths)
    if name in ("scatter", "segment_sum"):
        return ins[-1].size if name == "scatter" else ins[0].size
    if name.startswith(("reduce_", "cum", "arg")):
        return ins[0].size
    if name in ("sort", "top_k"):
        return ins[0].size * max(math.log2((ins[0].shape[-1:] or (1,))[0] + 1), 1)
    if name == "fft":
        n = max(ins[0].shape[-1:] or (1,))
        return 5 * out.size * math.log2(max(n, 2))
    if name in ("cholesky", "lu", "qr", "eigh", "svd", "solve", "triangular_solve"):
        return _decomposition(name, ins)
    if name in ("add_n",):
        return out.size * (len(e.ins) - 1)
    if name in ("random_bits", "key_hash"):
        return 0  # integer work
    return sum(o.size for o in outs)


# Golub and Van Loan, "Matrix Computations", as multiples of n^3.
_CUBIC = {"cholesky": 1 / 3, "lu": 2 / 3, "qr": 4 / 3, "eigh": 9, "svd": 22, "solve": 2 / 3}


def _decomposition(name: str, ins: Sequence[Aval]) -> float:
    *batch, rows, columns = ins[0].shape
    each = math.prod(batch)
    if name == "triangular_solve":
        return ins[1].size * rows
    return each * _CUBIC[name] * max(rows, columns) * min(rows, columns) ** 2


class _Count:
    """Sums over a program."""

    def __init__(self) -> None:
        self.flops = self.transcendentals = self.moved = 0.0
        self.unbounded = 0

    def add(self, other: _Count, times: int) -> None:
        self.flops += times * other.flops
        self.transcendentals += times * other.transcendentals
        self.moved += times * other.moved
        self.unbounded += other.unbounded


@memoized
def _count(jaxpr: Jaxpr) -> _Count:
    total = _Count()
    for e in jaxpr.eqns:
        inner = [_count(j) for j in e_jaxprs(e)]
        if e.prim.name == "cond":
            total.add(max(inner, key=lambda c: (c.flops, c.moved)), 1)
        elif e.prim.name == "linear_call":
            total.add(_count(e.params["forward"] or e.params["backward"]), 1)
        elif inner:
            for c in inner:
                total.add(c, e.params["length"] if e.prim.name == "scan" else 1)
            total.unbounded += e.prim.name == "while"
        else:
            n = _flops(e)
            total.flops += n
            total.transcendentals += n if e.prim.name in _TRANSCENDENTAL else 0
            if e.prim.name not in _SHARES:
                total.moved += _bytes(e.ins) + _bytes(e.outs)
    return total


def cost(jaxpr: Jaxpr) -> dict[str, float]:
    """Floating-point operations and bytes of a program.

    "bytes accessed" is what any execution must move: inputs read and outputs written once; "bytes
    accessed unfused" sums every equation's. A branch counts as its dearest case, a while loop as
    one step ("while loops" says how many there are).
    """
    total = _count(jaxpr)
    result = {
        "flops": float(total.flops),
        "transcendentals": float(total.transcendentals),
        "bytes accessed": float(_bytes(jaxpr.invars) + _bytes(list(dict.fromkeys(jaxpr.outs)))),
        "bytes accessed unfused": float(total.moved),
    }
    if total.unbounded:
        result["while loops"] = float(total.unbounded)
    return result


@memoized
def _temporary(jaxpr: Jaxpr) -> int:
    """The peak bytes of values that are neither inputs nor outputs, run in order and freed at their
    last use; views share the memory of what they show."""
    owner: dict[Var, Var] = {v: v for v in jaxpr.invars}
    for e in jaxpr.eqns:
        for o in e.outs:
            source = e.ins[0] if e.ins and e.prim.name in _SHARES else None
            owner[o] = owner[source] if type(source) is Var else o
    last: dict[Var, int] = {}
    for n, e in enumerate(jaxpr.eqns):
        for v in (*e.ins, *e.outs):
            if type(v) is Var:
                last[owner[v]] = n
    kept = {*jaxpr.invars, *(owner[o] for o in jaxpr.outs)}
    ends: dict[int, list[Var]] = {}
    for v, n in last.items():
        ends.setdefault(n, []).append(v)
    now = peak = 0
    for n, e in enumerate(jaxpr.eqns):
        now += sum(o.aval.nbytes for o in e.outs if owner[o] is o and o not in kept)
        inside = max([_inner_peak(e, j) for j in e_jaxprs(e)], default=0)
        peak = max(peak, now + inside)
        now -= sum(v.aval.nbytes for v in ends.get(n, ()) if v not in kept)
    return peak


def _inner_peak(e: Eqn, j: Jaxpr) -> int:
    """Temporary bytes of a sub-program; a loop's step also makes its outputs anew."""
    return _temporary(j) + (_bytes(j.outs) if e.prim.name in ("scan", "while") else 0)


def memory(jaxpr: Jaxpr) -> dict[str, int]:
    """Bytes of a program's arguments, outputs, and the peak of what lives between them.

    Values are freed after their last use and views share memory; fusion and in-place updates need
    less.
    """
    arguments = _bytes(jaxpr.invars)
    outputs = _bytes([o for o in dict.fromkeys(jaxpr.outs) if o not in set(jaxpr.invars)])
    temporary = _temporary(jaxpr)
    return {
        "argument_size_in_bytes": arguments,
        "output_size_in_bytes": outputs,
        "temp_size_in_bytes": temporary,
        "peak_memory_in_bytes": arguments + outputs + temporary,
    }


__all__ = ["cost", "memory"]
