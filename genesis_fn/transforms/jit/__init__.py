"""`jit` in two tiers.

A call that is like an earlier one is a function generated for it (`call_codegen`): check, take the
leaves out, run, put the results together. Any other call takes the one full path, which names its
passes (`function`).
"""

from genesis_fn.transforms.jit.function import JitFunction, clear_caches, jit

__all__ = ["JitFunction", "clear_caches", "jit"]
