"""What `jit(f).trace`, `.lower` and `.compile` return."""

from genesis_fn.transforms.jitting import JitFunction as Wrapped
from genesis_fn.transforms.jitting.aot import Compiled, Traced, Traced as Lowered

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
