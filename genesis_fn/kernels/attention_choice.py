"""The fastest attention plan for a problem, as measured on an H200.

The kernels with specialised warps win where heads are wide; narrow heads, and every option that
they lack, run on the general kernels.
"""

from __future__ import annotations

from genesis_fn.kernels.attention import AttentionConfig, plan_attention_forward
from genesis_fn.kernels.attention_backward import BackwardConfig, plan_attention_backward
from genesis_fn.kernels.attention_spec import AttentionSpec, serves_descriptors
from genesis_fn.kernels.attention_specialized import plan_attention_specialized, serves_specialized
from genesis_fn.kernels.attention_specialized_backward import (
    plan_attention_backward_specialized,
    serves_specialized_backward,
)
from genesis_fn.kernels.attention_specialized_dkdv import DkdvConfig
from genesis_fn.kernels.launch import Plan

NARROW = 64
LONG = 8192
LITTLE_SHARED = (86, 89, 120)  # about 100 KB for a program: the wide tiles' stages do not fit
SMALL = BackwardConfig(AttentionConfig(32, 64, 4, 2), AttentionConfig(64, 32, 4, 2))


def forward_plan(spec: AttentionSpec, *, arch: int = 90) -> Plan:
    """`plan_attention_forward`'s plan, by the kernel that is fastest on `arch`.

    `arch` is the compute capability, 90 for Hopper, or 0 for the interpreter.
    """
    if arch == 90 and serves_specialized(spec) and spec.head_dim > NARROW:
        return plan_attention_specialized(spec, section=4)
    return plan_attention_forward(spec)


def backward_plan(spec: AttentionSpec, *, arch: int = 90, lse_cotangent: bool = False) -> Plan:
    """`plan_attention_backward`'s plan, by the kernels that are fastest on `arch`."""
    if arch == 90 and serves_specialized_backward(spec) and spec.head_dim > NARROW:
        return plan_attention_backward_specialized(
            spec,
            stages=3,
            section=16 if spec.kv_len < LONG else 8,
            lse_cotangent=lse_cotangent,
            dkdv=DkdvConfig(),
        )
    small = arch in LITTLE_SHARED and spec.dtype != "fp32" and serves_descriptors(spec)
    if small and NARROW < max(spec.head_dim, spec.v_dim) <= 128:
        return plan_attention_backward(spec, SMALL, lse_cotangent=lse_cotangent)
    return plan_attention_backward(spec, lse_cotangent=lse_cotangent)
