"""What `jit(f).trace`, `.lower` and `.compile` return."""

from genesis_fn.transforms.jitting.aot import Compiled as Compiled, Traced as Traced
from genesis_fn.transforms.jitting.function import JitFunction as _JitFunction

Lowered, Wrapped = Traced, _JitFunction
