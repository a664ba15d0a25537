"""What `jit(f).trace`, `.lower` and `.compile` return."""

from genesis_fn.transforms.jitting.aot import Compiled as Compiled
