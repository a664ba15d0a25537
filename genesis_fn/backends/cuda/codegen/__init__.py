"""Generates Triton source: `KernelIR` -> launches.

In order of reading:

* `launches`: from a body to a plan; calls everything else.
* `loops`: what one kernel computes, instructions over rows and elements.
* `split_reduction`: one kernel, or two where a reduction is split.
* `tiling`: how a kernel's loops are divided among programs, one of five kinds.
* `loop_nests`: writes the loops of each kind; `emit` and `reductions` write what is inside.
* `source`: kernels from text, and the multi-tensor and combo kernels of horizontal fusion.
* `kernel_text`: kernels of lowerings that are written as text, outside of `KernelIR`.

Shapes are part of the text, and names come in order of appearance, so that equal structures give
equal texts and compile once. 16-bit floats are float32 in registers. Offsets have 32 bits where
they fit.
"""

from genesis_fn.backends.cuda.codegen.launches import (
    GeneratedKernels as GeneratedKernels,
    KernelCache as KernelCache,
    generate as generate,
    generate_once as generate_once,
)
from genesis_fn.backends.cuda.codegen.source import kernel as kernel
