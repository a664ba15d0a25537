"""Functions with derivative rules of their own."""

from genesis_fn.transforms.custom import custom_gradient, custom_jvp, custom_vjp
from genesis_fn.transforms.tracing import closure_convert

__all__ = ["closure_convert", "custom_gradient", "custom_jvp", "custom_vjp"]
