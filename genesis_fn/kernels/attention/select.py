"""Entry points of the attention kernels: they choose the family that computes a problem.

The choice is what was fastest on an H200 (`benchmarks/results/kernels-h200.md`): the kernels with
specialised warps where they serve, the general ones for every other option, size and GPU, and for
few queries against a long cache the one that cuts the keys.
"""

from __future__ import annotations

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.attention.backward import general_backward_plan
from genesis_fn.kernels.attention.decode import decode_plan
from genesis_fn.kernels.attention.forward import general_plan
from genesis_fn.kernels.attention.spec import AttentionSpec
from genesis_fn.kernels.attention.specialized import serves_specialized, specialized_plan
from genesis_fn.kernels.attention.specialized_dq import (
    serves_specialized_backward,
    specialized_backward_plan,
)
from genesis_fn.kernels.plan import Plan

FEW_ROWS = 16  # queries times the heads that share a key head: one tile of tensor cores


def plan_attention(spec: AttentionSpec, target: Target) -> Plan:
    """The plan (query, key, value, *options) -> (out [B, T, N, V][, lse [B, N, T] float32]).

    Options follow in the order of `option_inputs(spec)`; lse, in natural logarithm, is there with
    `spec.return_lse`.
    """
    # Few queries leave most of the GPU idle unless the keys are split, whatever else would serve.
    if _decodes(spec):
        return decode_plan(spec, target)
    if serves_specialized(spec, target):
        return specialized_plan(spec)
    return general_plan(spec, target)


def plan_attention_backward(spec: AttentionSpec, target: Target) -> Plan:
    """The plan (query, key, value, out, lse, dout, *options) -> (dq, dk, dv[, dbias]).

    `out` and `lse` are the forward's, `dout` is dense like `out`. With a bias its gradient follows,
    in the bias's shape and dtype, rounded once.
    """
    if serves_specialized_backward(spec, target):
        return specialized_backward_plan(spec)
    return general_backward_plan(spec, target)


def _decodes(spec: AttentionSpec) -> bool:
    return spec.q_len * spec.group <= FEW_ROWS and not spec.return_lse
