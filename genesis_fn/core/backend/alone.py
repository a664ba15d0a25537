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


def as_set(prim: Primitive, build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """What `build` makes, built for each state of the settings that say how exactly `prim` is
    computed: callers keep one function for operands of given types, whatever the settings are."""
    # Products have their precision among their parameters, programs among their equations.
    if type(prim.lowering) is not Elementwise:
        return build()
    made: dict[config.Numerics, Callable[..., Any]] = {}
    last: tuple[Any, Any] = None, None  # replaced as one: other threads may have other settings
    current = config.current

    def run(*args: Any) -> Any:
        nonlocal last
        set_now, function = last
        numerics = current().numerics
        if numerics is not set_now:  # numerics exist once each
            function = made.get(numerics)
            if function is None:
                function = made[numerics] = build()
            last = numerics, function
        return function(*args)

    return run


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
