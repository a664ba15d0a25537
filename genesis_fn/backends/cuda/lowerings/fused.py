"""Plans of fused functions, by name, for the dtypes and shapes that their kernels support.

A plan writes only the results that the function's program computes (`computed`). Results that are
operands, or repeat an earlier result, share that buffer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from genesis_fn.backends.cuda.codegen.loops import SITES
from genesis_fn.backends.cuda.lowerings.call import Call, lowers
from genesis_fn.backends.cuda.lowerings.elementwise import add_convert, converted
from genesis_fn.backends.cuda.lowerings.scans import plan_prefixes
from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Jaxpr, Var
from genesis_fn.kernels.attention.select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention.spec import MAX_HEAD_DIM, AttentionSpec, Shape4
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.plan import BufferArg, Plan
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.kernels.rows.cross_entropy import (
    CrossEntropy,
    plan_cross_entropy_backward,
    plan_cross_entropy_forward,
)
from genesis_fn.kernels.rows.linear_cross_entropy import (
    LinearCrossEntropy,
    plan_linear_cross_entropy,
)
from genesis_fn.kernels.rows.norm import Norm, plan_norm_backward, plan_norm_forward
from genesis_fn.kernels.rows.softmax import Softmax, plan_softmax_backward, plan_softmax_forward
from genesis_fn.transforms.custom.fused_functions import fused_p

Rule = Callable[..., "Plan | None"]


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """How a fused function is planned.

    * `generated`: compiled programs fuse the reference program with the casts and sums around it
      instead; the kernel is for eager calls only.
    * `casts`: it computes in float32 whatever dtypes it reads and writes, so that casts to and from
      float32 can be absorbed (`lower/fused_casts.py`).
    * `classes`: the number of classes that a checked label must be one of.
    """

    plan: Rule
    generated: bool = False
    casts: bool = False
    classes: Callable[[Call], int] | None = None


KERNELS: dict[str, FusedKernel] = {}
_HALF_OR_SINGLE = (dtypes.BF16, dtypes.F16, dtypes.F32)
_WIDE_ENOUGH = (*_HALF_OR_SINGLE, dtypes.F64)


def computed(jaxpr: Jaxpr) -> list[Var]:
    """The distinct results of a program that are not its operands."""
    given = set(jaxpr.invars)
    return list(dict.fromkeys([v for v in jaxpr.outs if v not in given]))


def fused_kernel(
    *names: str,
    generated: bool = False,
    casts: bool = False,
    classes: Callable[[Call], int] | None = None,
    **given: object,
) -> Callable[[Rule], Rule]:
    """Decorator: the function plans fused functions of these names, or returns None; it gets
    `given` as further arguments. See `FusedKernel`."""

    def register(rule: Rule) -> Rule:
        plan = functools.partial(rule, **given) if given else rule
        KERNELS.update(dict.fromkeys(names, FusedKernel(plan, generated, casts, classes)))
        return rule

    return register


@lowers(fused_p)
def _fused(call: Call) -> Plan | None:
    known = KERNELS.get(call.params["op"].name)
    if known is None or any(a.size == 0 for a in (*call.operands, *call.outs)):
        return None
    jaxpr = call.params["jaxpr"]
    found = computed(jaxpr)
    plan = known.plan(call, [v.aval for v in found], **dict(call.params["static"]))
    if plan is None or found == jaxpr.outs:
        return plan
    count, checked = len(jaxpr.outs), plan.outputs > len(found)
    builder = PlanBuilder(plan.inputs, count + checked)
    positions = [jaxpr.outs.index(v) for v in found] + [count] * checked
    buffers = [*range(plan.inputs), *[plan.inputs + i for i in positions]]
    builder.include(plan, [BufferArg(i, "i8") for i in buffers])
    return builder.build()


def _ordered(plan: Plan, order: Sequence[int], results: Sequence[int]) -> Plan:
    """`plan` with its input i read from operand order[i], its output j being result results[j]."""
    builder = PlanBuilder(max(order) + 1, plan.outputs)
    inputs = [BufferArg(i, "i8") for i in order]
    builder.include(plan, [*inputs, *[BufferArg(builder.inputs + j, "i8") for j in results]])
    return builder.build()


def _matrix(kind: Aval) -> tuple[int, int]:
    return kind.size // kind.shape[-1], kind.shape[-1]


fused_kernel("prefixes")(plan_prefixes)


# ---- softmax and its relatives ----


def _softmax_spec(kind: Aval, name: str) -> Softmax | None:
    if not dtypes.is_float(kind.dtype) or not kind.ndim:
        return None
    return Softmax(*_matrix(kind), NAMES[kind.dtype], name)


@fused_kernel("softmax", "softmax_forward", generated=True, kind="softmax")
@fused_kernel("log_softmax", "log_softmax_forward", generated=True, kind="log_softmax")
@fused_kernel("logsumexp", "logsumexp_forward", generated=True, kind="logsumexp")
def _softmax(call: Call, results: Sequence[Aval], *, kind: str, **_: Any) -> Plan | None:
    spec = _softmax_spec(call.operands[0], kind)
    return None if spec is None else plan_softmax_forward(spec, call.target)


@fused_kernel("softmax_backward", generated=True, kind="softmax")
@fused_kernel("log_softmax_backward", generated=True, kind="log_softmax")
def _softmax_backward(call: Call, results: Sequence[Aval], *, kind: str, **_: Any) -> Plan | None:
    y, ct = call.operands
    spec = _softmax_spec(y, kind)
    if spec is None or y.dtype != ct.dtype:
        return None
    return _ordered(plan_softmax_backward(spec, call.target), (1, 0), (0,))


@fused_kernel("logsumexp_backward", generated=True)
def _logsumexp_backward(call: Call, results: Sequence[Aval], **_: Any) -> Plan | None:
    x, y, ct = call.operands
    spec = _softmax_spec(x, "logsumexp")
    if spec is None or not x.dtype == y.dtype == ct.dtype:
        return None
    return _ordered(plan_softmax_backward(spec, call.target), (2, 0, 1), (0,))


# ---- norms ----


def _norm_spec(
    x: Aval, eps: float, weight: Aval, bias: Aval | None = None, statistics: bool = True
) -> Norm | None:
    kinds = [a.dtype for a in (x, weight, bias) if a is not None]
    if not x.ndim or any(k not in _WIDE_ENOUGH for k in kinds):
        return None
    bias_dtype = None if bias is None else NAMES[bias.dtype]
    return Norm(*_matrix(x), NAMES[x.dtype], eps, NAMES[weight.dtype], bias_dtype, statistics)


@fused_kernel("rms_norm", "rms_norm_forward", generated=True)
def _rms_norm(call: Call, results: Sequence[Aval], *, eps: float) -> Plan | None:
    x, weight = call.operands
    spec = _norm_spec(x, eps, weight, statistics=len(results) > 1)
    return None if spec is None else plan_norm_forward(spec, call.target)


@fused_kernel("rms_norm_backward", generated=True)
def _rms_norm_backward(
    call: Call, results: Sequence[Aval], *, eps: float, needs: Any
) -> Plan | None:
    x, weight, _, ct = call.operands
    spec = _norm_spec(x, eps, weight)
    if spec is None or ct.dtype != x.dtype:
        return None
    return _ordered(plan_norm_backward(spec, call.target), (3, 0, 1, 2), (0, 1))


@fused_kernel("layer_norm", "layer_norm_forward", generated=True)
def _layer_norm(call: Call, results: Sequence[Aval], *, eps: float) -> Plan | None:
    x, weight, bias = call.operands
    spec = _norm_spec(x, eps, weight, bias, len(results) > 1)
    if spec is None:
        return None
    plan = plan_norm_forward(spec, call.target)
    # The kernel writes rstd before mean.
    return _ordered(plan, (0, 1, 2), (0, 2, 1)) if spec.statistics else plan


@fused_kernel("layer_norm_backward", generated=True)
def _layer_norm_backward(
    call: Call, results: Sequence[Aval], *, eps: float, needs: Any
) -> Plan | None:
    x, weight, bias, _, _, ct = call.operands
    spec = _norm_spec(x, eps, weight, bias)
    if spec is None or ct.dtype != x.dtype:
        return None
    return _ordered(plan_norm_backward(spec, call.target), (5, 0, 1, 4, 3), (0, 1, 2))


# ---- attention ----


def _attention_spec(
    operands: Sequence[Aval],
    has: tuple[bool, ...],
    precision: str,
    *,
    scale: float,
    causal: bool,
    window: Any,
    softcap: float,
    lse: bool,
) -> AttentionSpec | None:
    q, k, v = operands[:3]
    if q.dtype not in _HALF_OR_SINGLE or max(q.shape[3], v.shape[3]) > MAX_HEAD_DIM:
        return None
    extras = iter(operands[3:])
    bias, mask, *_ = [next(extras) if h else None for h in has]
    if bias is not None and bias.dtype not in _HALF_OR_SINGLE:
        return None
    return AttentionSpec(
        q.shape[0],
        q.shape[2],
        k.shape[2],
        q.shape[1],
        k.shape[1],
        q.shape[3],
        value_dim=v.shape[3],
        dtype=NAMES[q.dtype],
        scale=scale,
        causal=causal,
        window=tuple(window) if window is not None else None,
        bias=_four(bias),
        bias_dtype="fp32" if bias is None else NAMES[bias.dtype],
        mask=_four(mask),
        kv_lengths=has[2],
        segments="separate" if has[4] else "shared" if has[3] else None,
        softcap=softcap,
        precision={"default": "tf32", "highest": "ieee"}.get(precision, precision),
        return_lse=lse,
    )


def _four(kind: Aval | None) -> Shape4 | None:
    if kind is None:
        return None
    b, n, t, s = kind.shape
    return b, n, t, s


@fused_kernel("attention", "attention_forward")
def _attention(
    call: Call, results: Sequence[Aval], *, has: tuple[Any, ...], **static: Any
) -> Plan | None:
    spec = _attention_spec(
        call.operands, has, call.numerics.matmul_precision, lse=len(results) > 1, **static
    )
    return None if spec is None else plan_attention(spec, call.target)


@fused_kernel("attention_backward")
def _attention_backward(
    call: Call, results: Sequence[Aval], *, has: tuple[Any, ...], needs: Any, **static: Any
) -> Plan | None:
    extras = sum(has)
    operands = call.operands
    spec = _attention_spec(
        operands[: 3 + extras], has, call.numerics.matmul_precision, lse=True, **static
    )
    _, lse, ct = operands[3 + extras :]
    if spec is None or ct.dtype != operands[0].dtype or lse.dtype != dtypes.F32:
        return None
    plan = plan_attention_backward(spec, call.target)
    last = 3 + extras
    order = [0, 1, 2, last, last + 1, last + 2, *range(3, last)]
    return _ordered(plan, order, range(plan.outputs))


# ---- cross-entropy ----


def _labelled(labels: Aval) -> bool:
    return labels.dtype in (dtypes.I32, dtypes.I64)


@fused_kernel(
    "cross_entropy", "cross_entropy_forward", casts=True,
    classes=lambda call: math.prod(call.operands[0].shape[-1:]),
)  # fmt: skip
def _cross_entropy(call: Call, results: Sequence[Aval]) -> Plan | None:
    logits, labels = call.operands
    if logits.dtype not in _WIDE_ENOUGH or not _labelled(labels):
        return None
    rows, classes = _matrix(logits)
    spec = CrossEntropy(
        rows, classes, NAMES[logits.dtype], NAMES[labels.dtype], site=call.site * SITES
    )
    builder = PlanBuilder(2, len(results) + 1)
    statistic = dtypes.F64 if logits.dtype == dtypes.F64 else dtypes.F32
    loss = BufferArg(2, NAMES[statistic])
    if results[0].dtype != statistic:
        loss = builder.workspace(rows, NAMES[statistic])
    lse = BufferArg(3, "i8") if len(results) > 1 else builder.workspace(rows, NAMES[statistic])
    error = BufferArg(2 + len(results), "i64")
    plan = plan_cross_entropy_forward(spec, call.target)
    builder.include(plan, [BufferArg(0, "i8"), BufferArg(1, "i8"), loss, lse, error])
    if results[0].dtype != statistic:
        kind = results[0].update(dtype=statistic)
        add_convert(builder, loss, kind, BufferArg(2, "i8"), results[0].dtype)
    return builder.build()


@fused_kernel("cross_entropy_backward", casts=True)
def _cross_entropy_backward(call: Call, results: Sequence[Aval], *, needs: Any) -> Plan | None:
    logits, labels, _, ct = call.operands
    served = logits.dtype in _WIDE_ENOUGH and results[0].dtype == logits.dtype
    if not served or not _labelled(labels):
        return None
    rows, classes = _matrix(logits)
    spec = CrossEntropy(rows, classes, NAMES[logits.dtype], NAMES[labels.dtype])
    builder = PlanBuilder(4, 1)
    statistic = dtypes.F64 if logits.dtype == dtypes.F64 else dtypes.F32
    cotangent = converted(builder, call.read(3), ct, statistic)
    buffers = [
        BufferArg(0, "i8"),
        BufferArg(1, "i8"),
        BufferArg(2, "i8"),
        cotangent,
        BufferArg(4, "i8"),
    ]
    builder.include(plan_cross_entropy_backward(spec, call.target), buffers)
    return builder.build()


def _linear_cross_entropy_plan(
    call: Call,
    options: dict[str, Any],
    *,
    reduction: str,
    gradients: bool,
    row_weights: bool = False,
    class_weights: bool = False,
    site: int = 0,
) -> Plan | None:
    x, weight, labels, *_ = call.operands
    if x.dtype not in _WIDE_ENOUGH or weight.dtype != x.dtype or not _labelled(labels):
        return None
    loss = CrossEntropy(
        x.shape[0],
        weight.shape[0],
        NAMES[x.dtype],
        NAMES[labels.dtype],
        ignore_index=options["ignore_index"],
        label_smoothing=options["label_smoothing"],
        z_loss=options["z_loss"],
        soft_cap=options["softcap"],
        class_weights=class_weights,
        site=site,
    )
    precision = call.numerics.matmul_precision
    return plan_linear_cross_entropy(
        LinearCrossEntropy(
            loss,
            x.shape[1],
            reduction,
            gradients,
            precision={"highest": "ieee"}.get(precision, precision),
            row_weights=row_weights,
        ),
        call.target,
    )


@fused_kernel(
    "linear_cross_entropy", "linear_cross_entropy_forward",
    classes=lambda call: call.operands[1].shape[0],
)  # fmt: skip
def _linear_cross_entropy(
    call: Call, results: Sequence[Aval], *, reduction: str, **options: Any
) -> Plan | None:
    return _linear_cross_entropy_plan(
        call, options, reduction=reduction, gradients=len(results) > 1, site=call.site * SITES
    )


@fused_kernel(
    "linear_cross_entropy_rows", "linear_cross_entropy_rows_forward",
    classes=lambda call: call.operands[1].shape[0],
)  # fmt: skip
def _linear_cross_entropy_rows(call: Call, results: Sequence[Aval], **options: Any) -> Plan | None:
    return _linear_cross_entropy_plan(
        call,
        options,
        reduction="none",
        gradients=False,
        class_weights=len(call.operands) > 3,
        site=call.site * SITES,
    )


@fused_kernel("linear_cross_entropy_rows_backward", classes=lambda call: call.operands[1].shape[0])
def _linear_cross_entropy_rows_backward(
    call: Call, results: Sequence[Aval], *, needs: Any, **options: Any
) -> Plan | None:
    *operands, ct = range(len(call.operands))
    class_weights = len(operands) > 3
    statistic = dtypes.F64 if call.operands[0].dtype == dtypes.F64 else dtypes.F32
    if (class_weights and needs[2]) or call.operands[ct].dtype != statistic:
        return None  # nothing but the reference has the gradient by class weights
    plan = _linear_cross_entropy_plan(
        call,
        options,
        reduction="none",
        gradients=True,
        row_weights=True,
        class_weights=class_weights,
        # A gradient alone leaves the forward pass out, which would check the labels.
        site=call.site * SITES,
    )
    order = [*operands[:3], ct, *operands[3:]]
    return plan and _ordered(plan, order, range(plan.outputs))


@fused_kernel(
    "linear_cross_entropy_weighted", "linear_cross_entropy_weighted_forward",
    classes=lambda call: call.operands[1].shape[0],
)  # fmt: skip
def _linear_cross_entropy_weighted(
    call: Call, results: Sequence[Aval], **options: Any
) -> Plan | None:
    return _linear_cross_entropy_plan(
        call,
        options,
        reduction="sum",
        gradients=len(results) > 1,
        row_weights=True,
        class_weights=len(call.operands) > 4,
        site=call.site * SITES,
    )


def label_error(call: Call, index: int) -> errors.IndexOutOfRange:
    """The error for a label of a fused cross-entropy that names no class."""
    counted = KERNELS[call.params["op"].name].classes
    assert counted is not None
    classes = counted(call)
    return errors.IndexOutOfRange(
        f"label {index} is out of range for {classes} classes", None, classes, index
    )
