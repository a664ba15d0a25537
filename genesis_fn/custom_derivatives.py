"""Functions with derivative rules of their own."""

from genesis_fn.transforms.custom.derivative_rules import (
    CustomVJPPrimal,
    SymbolicZero,
    custom_gradient,
    custom_jvp,
    custom_vjp,
    zero_from_primal,
)
from genesis_fn.transforms.staging.tracing import closure_convert

__all__ = [
    "CustomVJPPrimal", "SymbolicZero", "closure_convert", "custom_gradient", "custom_jvp",
    "custom_vjp", "zero_from_primal",
]  # fmt: skip
