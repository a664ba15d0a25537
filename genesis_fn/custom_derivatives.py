"""Functions with derivative rules of their own."""

from genesis_fn.transforms.custom.derivative_rules import (
    CustomVJPPrimal as CustomVJPPrimal,
    SymbolicZero as SymbolicZero,
    custom_gradient as custom_gradient,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
    custom_vjp_primal_tree_values as custom_vjp_primal_tree_values,
    linear_call as linear_call,
    zero_from_primal as zero_from_primal,
)
from genesis_fn.transforms.staging.tracing import closure_convert as closure_convert
