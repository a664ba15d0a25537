"""Steps that a library or the user's code runs on complex arrays: they take packed values, whose
bytes are those of the arrays that they know.

The equation keeps the primitive and its complex avals as parameters, so that lowerings plan it as
if it stood in the program itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.compiler.complex_parts.values import Complex, of_packed, packed_aval
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Var
from genesis_fn.core.primitive import Primitive, bind


def _results(prim: Primitive, avals: tuple[Any, ...], given: tuple[Any, ...]) -> list[Aval]:
    found = prim.abstract(avals, dict(given))
    return list(found) if prim.multi else [found]


def _shape(
    *_: Any, of: Primitive, avals: tuple[Any, ...], given: tuple[tuple[str, Any], ...]
) -> list[Aval]:
    return [packed_aval(a) for a in _results(of, avals, given)]


packed_step_p = Primitive("packed_step", _shape, multi=True, listed=False)
packed_effect_p = Primitive("packed_effect", _shape, multi=True, effect=True, listed=False)
"""The primitive `of` on operands of `avals`, which are packed where these are complex, with the
parameters `given`; one with a side effect."""

STEPS = packed_step_p, packed_effect_p


def on_packed(prim: Primitive, xs: Sequence[Any], params: dict[str, Any], avals: Any) -> Any:
    """The equation of a step that keeps complex arrays, and its results."""
    step = packed_effect_p if prim.effect else packed_step_p
    given = tuple(params.items())
    operands = [x.packed if type(x) is Complex else x for x in xs]
    outs = bind(step, *operands, of=prim, avals=tuple(avals), given=given)
    kinds = _results(prim, tuple(avals), given)
    made = [of_packed(o) if dtypes.is_complex(k.dtype) else o for o, k in zip(outs, kinds)]
    return made if prim.multi else made[0]


def called(e: Eqn) -> tuple[Primitive, list[Any], dict[str, Any]]:
    """(primitive, avals of the operands, parameters) of an equation: those of the step on complex
    arrays where it is one."""
    if e.prim in STEPS:
        return e.params["of"], list(e.params["avals"]), dict(e.params["given"])
    return e.prim, [i.aval if type(i) is Var else i for i in e.ins], e.params
