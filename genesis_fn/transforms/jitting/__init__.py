"""`jit` in two tiers.

A call that is like an earlier one is a function generated for it (`call_codegen`): flatten, guard,
run, unflatten. Any other call takes the one full path, which names its passes (`function`) and ends
in the function that it generated.
"""

from genesis_fn.transforms.jitting.function import (
    JitFunction as JitFunction,
    clear_caches as clear_caches,
    jit as jit,
)
