"""Triton source of generated kernels: `KernelIR` -> launches.

Shapes are part of the text, names come in order of appearance, so equal structures give equal texts
and compile once. 16-bit floats are float32 in registers. Offsets are 32-bit where they fit.

A body becomes `loops`, which are split into several kernels where one would not do
(`split_reduction`). Each kernel is cut up in one of five forms (`tiling`), whose loops
(`loop_nests`) stand around its instructions (`emit`) and reductions (`reductions`). Of the texts,
`launches` makes launches.
"""

from genesis_fn.backends.cuda.codegen.launches import (
    Generated as Generated,
    Known as Known,
    generate as generate,
    generate_once as generate_once,
)
from genesis_fn.backends.cuda.codegen.source import kernel as kernel
