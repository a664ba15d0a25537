"""Operations that a backend runs one at a time by compiling them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import Jaxpr, of_one_equation
from genesis_fn.core.primitive import Primitive


def as_set(
    prim: Primitive,
    build: Callable[[], Callable[..., Any]],
    guarded: Callable[[Callable[..., Any]], Callable[..., Any] | None] | None = None,
) -> Callable[..., Any]:
    """What `build` makes, built for each state of the settings that say how exactly `prim` is
    computed: callers keep one function for operands of given types, whatever the settings are.

    `guarded(elsewhere)` may make a function for the settings of now, which leaves to `elsewhere`
    what it is called with under others; None if it cannot.
    """
    # Products have their precision among their parameters, programs among their equations.
    if type(prim.lowering) is not Elementwise:
        return build()
    made: dict[config.Numerics, Callable[..., Any]] = {}

    def run(*args: Any) -> Any:
        numerics = config.current().numerics
        function = made.get(numerics)
        if function is None:
            function = made[numerics] = build()
        return function(*args)

    return (guarded(run) if guarded is not None else None) or run


def compiled_alone(
    compile: Callable[[Jaxpr], Executable],
    prim: Primitive,
    avals: Sequence[Any],
    params: dict[str, Any],
) -> Callable[..., Any]:
    """A function that runs a primitive as a program of one equation, which is compiled again for
    each combination of scalars."""

    def build(given: Sequence[Any]) -> Callable[..., Any]:
        run = compile(of_one_equation(prim, given, params))
        return run if prim.multi else lambda *args: run(*args)[0]

    if all(type(a) is Aval for a in avals):
        return build(avals)
    made: dict[str, Callable[..., Any]] = {}

    def run(*args: Any) -> Any:
        arrays = [a for a in args if type(a) is ArrayImpl]
        key = repr([a for a in args if type(a) is not ArrayImpl])
        if key not in made:
            made[key] = build([a.aval if type(a) is ArrayImpl else a for a in args])
        return made[key](*arrays)

    return run
