"""Emits an equation as a line of Python over torch tensors.

A `Statement` is one line: an expression, the expressions that write the result into an operand's
memory instead, and what is known of the result's memory. A primitive without a form below calls the
function that `lower_primitive` makes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from genesis_fn.backends.cpu.lower import FRESH_RESULTS, OF_COMPLEX, lower_primitive
from genesis_fn.backends.cpu.lowerings.contraction import compute_dtype, matrix_plan, product_shape
from genesis_fn.backends.cpu.lowerings.indexing import window_of
from genesis_fn.backends.cpu.storage import NARROW_FLOATS, SIGNED_STORAGE, TORCH_DTYPE
from genesis_fn.core import dtypes
from genesis_fn.core.dtypes import BOOL
from genesis_fn.core.jaxpr import Atom, Eqn, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.core.types.annotations import Scalar
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general_p
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice_p
from genesis_fn.primitives.reductions.reduce import reduce_max_p, reduce_min_p, reduce_sum_p
from genesis_fn.primitives.shape import concatenate_p, reshape_p, slice_p, split_p, transpose_p
from genesis_fn.transforms.custom.fused_functions import fused_p

FRESH, VIEW, UNKNOWN = "fresh", "view", "unknown"


@dataclasses.dataclass(slots=True)
class Statement:
    """The line `outs = text`, where {i} in `text` stands for operand `ins[i]`.

    * `in_place[i]`: text that leaves the result in the memory of operand i instead, which must have
      the result's shape and dtype.
    * `memory`: FRESH, newly allocated and dense; VIEW, that of its one operand (`dense` if every
      element once); UNKNOWN, possibly that of any operand.
    * `broadcasts`: operands may be smaller than the result and are broadcast by torch, if at least
      one has its shape.
    * `elementwise`: each result element depends on the operands' elements at its position only, so
      an operand may be overwritten even if it comes twice.
    """

    eqn: Eqn
    outs: Sequence[Var]
    ins: list[Var]
    text: str
    in_place: dict[int, str] = dataclasses.field(default_factory=dict)
    memory: str = FRESH
    dense: bool = True
    broadcasts: bool = False
    elementwise: bool = False
    contiguous: bool = False  # the result is row-major, whatever the operands are
    row_major_operands: tuple[int, ...] = ()  # must be row-major to be overwritten


class Namespace:
    """The global names of a generated function."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {"inf": math.inf, "nan": math.nan, **_TORCH}
        self.constants: dict[Any, str] = {}

    def add(self, value: object, prefix: str = "f") -> str:
        """A name for `value`."""
        text = f"{prefix}{len(self.space)}"
        self.space[text] = value
        return text

    def number(self, value: Scalar, dtype: dtypes.DType) -> str:
        """The text of a Python number as an operand of an operation in `dtype`: a 0-d tensor
        where that gives the same result, since torch takes it in half the time."""
        # A 16-bit tensor would be rounded, where torch computes with the exact number.
        if dtype.itemsize < 4 and dtype != BOOL:
            return self.literal(value)
        # By text: 0.0 and -0.0 are equal.
        key = (type(value), repr(value), dtype)
        found = self.constants.get(key)
        if found is None:
            try:
                found = self.add(torch.tensor(value, dtype=TORCH_DTYPE[dtype]), "k")
            except (OverflowError, RuntimeError, TypeError):
                found = self.literal(value)
            self.constants[key] = found
        return found

    def literal(self, value: Scalar) -> str:
        """The text of a Python number."""
        return f"({value!r})" if isinstance(value, complex) or value < 0 else repr(value)


_TORCH: dict[str, Any] = {
    f.__name__: f
    for f in (
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        torch.maximum,
        torch.minimum,
        torch.atan2,
        torch.where,
        torch.mm,
        torch.addmm,
        torch.addcmul,
        torch.addcdiv,
        torch.cat,
    )
}
for _name in dir(torch):
    if _name.startswith("_foreach_") and not _name.endswith("_"):
        _TORCH[_name[1:]] = getattr(torch, _name)
# Names that generated functions may use.
_TORCH["row_major"] = torch.contiguous_format
_TORCH["silu"] = torch.nn.functional.silu
_TORCH["silu_backward"] = torch.ops.aten.silu_backward.default
_TORCH["silu_backward_out"] = torch.ops.aten.silu_backward.grad_input


class _Infix(NamedTuple):
    """How a binary primitive is written: its operator, the torch function that takes `out=`, the
    method that updates the first operand in place, and whether it is commutative."""

    sign: str = ""
    function: str = ""
    method: str = ""
    commutes: bool = False


_BINARY = {
    ops.add.prim: _Infix("+", "add", "add_", True), ops.sub.prim: _Infix("-", "sub", "sub_"),
    ops.mul.prim: _Infix("*", "mul", "mul_", True), ops.div.prim: _Infix("/", "div", "div_"),
    ops.pow.prim: _Infix("**", "", "pow_"),
    ops.bitwise_and.prim: _Infix("&", "", "bitwise_and_", True),
    ops.bitwise_or.prim: _Infix("|", "", "bitwise_or_", True),
    ops.bitwise_xor.prim: _Infix("^", "", "bitwise_xor_", True),
    ops.eq.prim: _Infix("=="), ops.ne.prim: _Infix("!="), ops.lt.prim: _Infix("<"),
    ops.le.prim: _Infix("<="), ops.gt.prim: _Infix(">"), ops.ge.prim: _Infix(">="),
    ops.max.prim: _Infix("", "maximum"), ops.min.prim: _Infix("", "minimum"),
    ops.atan2.prim: _Infix("", "atan2"),
}  # fmt: skip


def placeholders(e: Eqn, names: Namespace) -> tuple[list[Var], list[str]]:
    """(array operands, the text of every operand)."""
    # A scalar operand has the dtype of the array operands, of which there is always one.
    arrays = [i for i in e.ins if type(i) is Var]
    count = itertools.count()
    texts = [
        f"{{{next(count)}}}" if type(i) is Var else names.number(i, arrays[-1].aval.dtype)
        for i in e.ins
    ]
    return arrays, texts


def has_native_dtype(x: Atom) -> bool:
    """Whether torch computes in the dtype of `x` on the CPU; else `lower_primitive` wraps."""
    return type(x) is not Var or not (
        x.aval.dtype in SIGNED_STORAGE or x.aval.dtype in NARROW_FLOATS
    )


def statement_of(e: Eqn, names: Namespace) -> Statement:
    """The statement of an equation."""
    write = _FORMS.get(e.prim)
    if write is None and len(e.ins) == 1 and not e.params and _method(e.prim):
        write = _unary
    if (
        write is not None
        and all(map(has_native_dtype, e.ins))
        and all(map(has_native_dtype, e.outs))
    ):
        found = write(e, names)
        if found is not None:
            return found
    return _call(e, names)


def _call(e: Eqn, names: Namespace) -> Statement:
    avals = [i.aval if type(i) is Var else i for i in e.ins]
    f = names.add(lower_primitive(e.prim, avals, e.params))
    ins = [i for i in e.ins if type(i) is Var]
    count = iter(range(len(ins)))
    texts = [f"{{{next(count)}}}" if type(i) is Var else repr(i) for i in e.ins]
    fresh = e.prim in FRESH_RESULTS and all(map(has_native_dtype, e.outs))
    if e.prim is fused_p:
        # The library's fused functions return new memory, except for operands and repeated results,
        # which the simplifier has removed from the equation's results.
        fresh = e.params["op"].reference.__module__.startswith("genesis_fn.lax.")
    memory = FRESH if fresh else UNKNOWN
    return Statement(e, e.outs, ins, f"{f}({', '.join(texts)})", memory=memory)


_FORMS: dict[Primitive, Callable[[Eqn, Namespace], Statement | None]] = {}


def _form(*prims: Primitive) -> Callable[..., Any]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        _FORMS.update(dict.fromkeys(prims, f))
        return f

    return register


# ---- elementwise ----


@functools.cache
def _method(prim: Primitive) -> str:
    """The name of torch's method for a unary primitive, if it has an in-place form too."""
    name = getattr(getattr(prim.lowering, "torch", None), "__name__", "")
    return name if hasattr(torch.Tensor, f"{name}_") else ""


def _unary(e: Eqn, names: Namespace) -> Statement | None:
    (x,), out = e.ins, e.outs[0]
    if type(x) is not Var or (dtypes.is_complex(x.aval.dtype) and e.prim in OF_COMPLEX):
        return None
    name = _method(e.prim)
    in_place = {0: f"{{0}}.{name}_()"} if x.aval is out.aval else {}
    return Statement(e, e.outs, [x], f"{{0}}.{name}()", in_place, elementwise=True)


@_form(*_BINARY)
def _binary(e: Eqn, names: Namespace) -> Statement | None:
    prim, out = e.prim, e.outs[0]
    sign, function, method, commutes = _BINARY[prim]
    ins, (x, y) = placeholders(e, names)
    # Integer division truncates, and needs care with zero (`lowerings/elementwise.py`).
    if not ins or (prim is ops.div.prim and not dtypes.is_inexact(out.aval.dtype)):
        return None
    if prim in OF_COMPLEX and dtypes.is_complex(out.aval.dtype):
        return None
    if prim is ops.pow.prim and len(ins) == 1:
        return None  # torch has special kernels for constant exponents
    if sign:
        text = f"{x} {sign} {y}"
    else:
        # torch.maximum, minimum and atan2 take tensors only.
        if "{" not in x + y or any(t[0] not in "{k" for t in (x, y)):
            return None
        text = f"{function}({x}, {y})"
    in_place = {}
    for operand, v in enumerate(ins):
        if v.aval is not out.aval:  # another shape or dtype: it cannot hold the result
            continue
        mine = f"{{{operand}}}"
        if method and mine == x:
            in_place[operand] = f"{mine}.{method}({y})"
        elif commutes and mine == y:
            in_place[operand] = f"{mine}.{method}({x})"
        elif function and (not sign or x[0] in "{k"):
            in_place[operand] = f"{function}({x}, {y}, out={mine})"
    return Statement(e, e.outs, ins, text, in_place, broadcasts=len(ins) == 2, elementwise=True)


@_form(ops.integer_pow_p)
def _integer_pow(e: Eqn, names: Namespace) -> Statement | None:
    (x,), y = e.ins, e.params["y"]
    if type(x) is not Var:
        return None
    if y == 2:
        return Statement(e, e.outs, [x], "{0} * {0}", {0: "{0}.mul_({0})"}, elementwise=True)
    if y == -1 and dtypes.is_inexact(x.aval.dtype):
        return Statement(
            e, e.outs, [x], "{0}.reciprocal()", {0: "{0}.reciprocal_()"}, elementwise=True
        )
    return None


@_form(ops.select_p)
def _select(e: Eqn, names: Namespace) -> Statement | None:
    c, *cases = e.ins
    ins, texts = [c], []
    for x in cases:
        if type(x) is Var:
            texts.append(f"{{{len(ins)}}}")
            ins.append(x)
        else:
            k = names.number(x, e.outs[0].aval.dtype)
            if k[0] != "k":  # torch.where with `out=` takes tensors only
                k = names.add(torch.tensor(x, dtype=TORCH_DTYPE[e.outs[0].aval.dtype]), "k")
            texts.append(k)
    inside = f"{{0}}, {', '.join(texts)}"
    in_place = {p: f"where({inside}, out={{{p}}})" for p in range(1, len(ins))}
    broadcasts = len(ins) > 1
    return Statement(
        e, e.outs, ins, f"where({inside})", in_place, broadcasts=broadcasts, elementwise=True
    )


@_form(ops.add_n.prim)
def _add_n(e: Eqn, names: Namespace) -> Statement | None:
    # Narrow floats are summed in float32, complex numbers as pairs (`lowerings/elementwise.py`).
    if e.outs[0].aval.dtype.itemsize < 4 or dtypes.is_complex(e.outs[0].aval.dtype):
        return None
    ins = list(e.ins)
    operands = [f"{{{i}}}" for i in range(len(ins))]

    def text(first: int, head: str) -> str:
        rest = [p for i, p in enumerate(operands) if i != first]
        return head + "".join([f".add_({p})" for p in rest])

    in_place = {i: text(i, operands[i]) for i in range(len(ins))}
    start = f"({operands[0]} + {operands[1]})" + "".join([f".add_({p})" for p in operands[2:]])
    # In place, an operand that comes twice would be added the second time after it has changed.
    twice = len(set(ins)) < len(ins)
    return Statement(e, e.outs, ins, start, {} if twice else in_place, elementwise=True)


@_form(ops.convert_p)
def _convert(e: Eqn, names: Namespace) -> Statement | None:
    (x,), target = e.ins, e.params["dtype"]
    if type(x) is not Var:
        return None
    source = x.aval.dtype
    # torch leaves floats out of an integer's range undefined; the lowering saturates them.
    if source == target or (dtypes.is_inexact(source) and not dtypes.is_inexact(target)):
        return None
    if dtypes.is_complex(source) and not dtypes.is_complex(target):
        return None
    kind = names.add(TORCH_DTYPE[target], "d")
    return Statement(e, e.outs, [x], f"{{0}}.to({kind})", elementwise=True)


_TWO_LISTS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
# What `foreach_of` recognises: two tensors and an operator, a product with a constant, a method.
_FORM = re.compile(r"(\{0\}) ([-+*/]) (\{1\})|(?:\{0\} \* (k\d+)|(k\d+) \* \{0\})|\{0\}\.(\w+)\(\)")


@functools.cache
def foreach_of(text: str) -> tuple[str, list[str]] | None:
    """(torch's `_foreach_` function that computes `text` for lists of operands, other operands)."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    _, sign, _, right, left, method = found.groups()
    if sign:
        return f"foreach_{_TWO_LISTS[sign]}", []
    if method:
        return (f"foreach_{method}", []) if f"foreach_{method}" in _TORCH else None
    return "foreach_mul", [right or left]


# ---- shapes ----


@_form(reshape_p)
def _reshape(e: Eqn, names: Namespace) -> Statement:
    return Statement(e, e.outs, list(e.ins), f"{{0}}.reshape({e.params['shape']})", memory=VIEW)


@_form(transpose_p)
def _transpose(e: Eqn, names: Namespace) -> Statement:
    order = e.params["permutation"]
    moved = [i for i, p in enumerate(order) if i != p]
    text = f"{{0}}.permute({order})"
    if len(moved) == 2:
        text = f"{{0}}.transpose({moved[0]}, {moved[1]})"
    return Statement(e, e.outs, list(e.ins), text, memory=VIEW)


@_form(slice_p)
def _slice(e: Eqn, names: Namespace) -> Statement:
    p, (x,) = e.params, e.ins
    cut = [
        d
        for d, (low, high, step, n) in enumerate(
            zip(p["start"], p["limit"], p["strides"], x.aval.shape)
        )
        if (low, high, step) != (0, n, 1)
    ]
    if len(cut) == 1 and p["strides"][cut[0]] == 1:
        d = cut[0]
        low = p["start"][d]
        text = f"{{0}}.narrow({d}, {low}, {p['limit'][d] - low})"
    else:
        taken = tuple([slice(*each) for each in zip(p["start"], p["limit"], p["strides"])])
        text = f"{{0}}[{names.add(taken, 's')}]"
    return Statement(e, e.outs, [x], text, memory=VIEW, dense=False)


@_form(split_p)
def _split(e: Eqn, names: Namespace) -> Statement:
    p = e.params
    text = f"{{0}}.split({list(p['sizes'])}, {p['axis']})"
    return Statement(e, e.outs, list(e.ins), text, memory=VIEW, dense=False)


def broadcast_shape(e: Eqn) -> tuple[int, ...] | None:
    """The shape to which a broadcast's operand must be reshaped so that torch broadcasts it right;
    None if it need not be reshaped."""
    # torch aligns shapes at their last axes: from the first dimension on, axes of 1 fill the gaps.
    shape, dims, (x,) = e.params["shape"], e.params["dims"], e.ins
    first = dims[0] if dims else len(shape)
    if dims == tuple(range(len(shape) - len(dims), len(shape))):
        return None
    sizes = [1] * (len(shape) - first)
    for n, d in zip(x.aval.shape, dims):
        sizes[d - first] = n
    return tuple(sizes)


@_form(concatenate_p)
def _concatenate(e: Eqn, names: Namespace) -> Statement:
    ins = list(e.ins)
    inside = ", ".join([f"{{{i}}}" for i in range(len(ins))])
    return Statement(e, e.outs, ins, f"cat(({inside}), {e.params['dimension']})", contiguous=True)


@_form(dynamic_update_slice_p)
def _update(e: Eqn, names: Namespace) -> Statement:
    statement = _call(e, names)
    x, u, *starts = e.ins
    avals = [i.aval if type(i) is Var else i for i in starts]
    window = window_of(x.aval, avals, u.aval.shape)

    def write(x: torch.Tensor, u: torch.Tensor, *starts: Any) -> torch.Tensor:
        window(x, starts).copy_(u)
        return x

    # The operands of the call that copies, for the function that does not.
    statement.in_place = {0: f"{names.add(write)}({statement.text.split('(', 1)[1]}"}
    statement.contiguous = True
    return statement


# ---- reductions and contractions ----


@_form(reduce_sum_p)
def _sum(e: Eqn, names: Namespace) -> Statement | None:
    # torch would widen the sum of integers to int64.
    if not dtypes.is_inexact(e.outs[0].aval.dtype):
        return None
    return Statement(e, e.outs, list(e.ins), f"{{0}}.sum({e.params['axes']})")


@_form(reduce_max_p, reduce_min_p)
def _extreme(e: Eqn, names: Namespace) -> Statement | None:
    if e.ins[0].aval.size == 0:  # torch raises, where the lowering has the extreme of the dtype
        return None
    name = "amax" if e.prim is reduce_max_p else "amin"
    return Statement(e, e.outs, list(e.ins), f"{{0}}.{name}({e.params['axes']})")


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """A product of two matrices: the text of both operands, and the result's shape."""

    left: str
    right: str
    shape: tuple[int, int]


def matrix_product(e: Eqn) -> MatrixProduct | None:
    """The contraction as one product of two matrices of float32 or float64, if it is one."""
    x, y = e.ins
    (xc, yc), (xb, _) = e.params["dimension_numbers"]
    kinds = {x.aval.dtype, y.aval.dtype, e.outs[0].aval.dtype}
    if xb or len(kinds) > 1 or x.aval.dtype not in (dtypes.F32, dtypes.F64):
        return None
    terms = math.prod([x.aval.shape[i] for i in xc])
    # Outer products are multiplications (`lowerings/contraction.py`).
    if terms < 2 or compute_dtype((x.aval.dtype,) * 2, x.aval.dtype, terms) is None:
        return None
    pairs = sorted(zip(xc, yc))
    xc, yc = [i for i, _ in pairs], [j for _, j in pairs]
    left = matrix_plan(x.aval.shape, (), xc, contract_last=True)
    right = matrix_plan(y.aval.shape, (), yc, contract_last=False)
    return MatrixProduct(
        _matrix_text("{0}", left, x.aval.shape),
        _matrix_text("{1}", right, y.aval.shape),
        product_shape(left, right),
    )


def _matrix_text(name: str, plan: tuple[Any, ...], shape: tuple[int, ...]) -> str:
    order, matrix, swap = plan
    if order is not None:
        name += f".permute({order})"
        shape = tuple([shape[i] for i in order])
    if shape != matrix:
        name += f".reshape({matrix})"
    return name + (".t()" if swap else "")


@_form(dot_general_p)
def _dot(e: Eqn, names: Namespace) -> Statement | None:
    found = matrix_product(e)
    if found is None:
        return None
    text, shape = f"mm({found.left}, {found.right})", e.outs[0].aval.shape
    if shape != found.shape:
        text += f".view({shape})"
    return Statement(e, e.outs, list(e.ins), text, contiguous=True)
