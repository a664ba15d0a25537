"""`jit` in two tiers.

A call like an earlier one runs a function that was generated for such calls (`call_codegen`):
flatten, guard, run, unflatten. Any other call takes the full path (`function`): bind the arguments,
look up or trace the program, look up or compile the executable, generate the function, call it.

In reading order: `function` (the path of a call), `argspec` (static and donated arguments, keys),
`jit_cache` (what is kept and shared), `guards` (what a program read besides its arguments),
`call_codegen` (the generated functions); then `aot`, `captures` and `retrace` (what users are
told).
"""

from genesis_fn.transforms.jitting.function import (
    JitFunction as JitFunction,
    clear_caches as clear_caches,
    jit as jit,
)
