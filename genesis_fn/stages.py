"""What `jit(f).trace`, `.lower` and `.compile` return."""

from genesis_fn.transforms.jit import Compiled, JitFunction as Wrapped, Traced, Traced as Lowered

__all__ = ["Compiled", "Lowered", "Traced", "Wrapped"]
