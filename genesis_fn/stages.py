"""What `jit(f).trace`, `.lower` and `.compile` return."""

from genesis_fn.transforms.ahead import Compiled, Traced, Traced as Lowered
from genesis_fn.transforms.jit import JitFunction as Wrapped

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
