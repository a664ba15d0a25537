"""The simplifier: inlining, common subexpressions, identities, constant folding, dead code.

Every rewrite is exact, signs of zeros and NaNs included, but for three: a sum over axes of length 1
keeps the sign of zero, nested sums of cotangents become one sum, and a product that reads or writes
a transposed matrix in place may add in another order. Loops and branches are simplified inside and
out.

`rewriter` has the passes, `rules` and `loop_rules` what they do to each primitive.
"""

from __future__ import annotations

from collections.abc import Callable

from genesis_fn.compiler.simplify import loop_rules, rules
from genesis_fn.compiler.simplify.rewriter import is_fused, simplified
from genesis_fn.core.jaxpr import Eqn, Jaxpr

# Imported for what they register.
RULES = (rules, loop_rules)


def simplify_jaxpr(jaxpr: Jaxpr, opaque: Callable[[Eqn], bool] = is_fused) -> Jaxpr:
    """`jaxpr` simplified. `opaque(equation)` says which calls stay as they are; others are inlined.

    Inputs and outputs keep their number, order and types; an output may become an input. The result
    is cached on the program, for each `opaque`.
    """
    return simplified(jaxpr, opaque)
