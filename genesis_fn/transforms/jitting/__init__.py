"""`jit` in two tiers.

A call that is like an earlier one is a function generated for it (`call_codegen`): flatten, guard,
run, unflatten. Any other call takes the one full path, which names its passes (`function`) and ends
in the function that it generated.
"""

from genesis_fn.transforms.jitting.function import JitFunction, clear_caches, jit

__all__ = ["JitFunction", "clear_caches", "jit"]
