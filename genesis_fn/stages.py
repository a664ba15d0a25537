"""What `jit(f).trace`, `.lower` and `.compile` return."""

from typing import TypeAlias as _TypeAlias

from genesis_fn.transforms.jitting.aot import (
    ArgInfo as ArgInfo,
    Compiled as Compiled,
    Traced as Traced,
)
from genesis_fn.transforms.jitting.function import JitFunction as _JitFunction

Lowered, Wrapped = Traced, _JitFunction
CompilerOptions: _TypeAlias = dict[str, str | bool]
