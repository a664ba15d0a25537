"""Parameters of public functions say what they take: few are `Any`, which tells editors nothing.

What a function makes (`jnp.add = binary(...)`) has the type that its assignment declares, so that
it is not walked here; `user_program.py` holds such types.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from genesis_fn.core.types.array_interface import ArrayInterface
from tests.public.names import PUBLIC, exported, module_of


def callables() -> Iterator[tuple[str, Any]]:
    """(name, function) of every public function, and of public methods of classes and arrays."""
    yield from methods("Array", ArrayInterface)
    seen: set[int] = set()
    for space in PUBLIC:
        for name in sorted(exported(space)):
            x = getattr(module_of(space), name)
            if id(x) in seen or not callable(x):
                continue
            seen.add(id(x))
            if inspect.isclass(x):
                if x.__module__.startswith("genesis_fn.") and name not in ("Array", "ArrayImpl"):
                    yield from methods(f"{space}.{name}", x)
            elif not is_made(x):
                yield f"{space}.{name}", x


def methods(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    for method, f in vars(cls).items():
        if inspect.isfunction(f) and (method == "__init__" or method[0] != "_"):
            if f.__module__.startswith("genesis_fn.") and not is_made(f):
                yield f"{name}.{method}", f


def is_made(f: Any) -> bool:
    """Whether a function inside another one is what is called."""
    return "<locals>" in getattr(getattr(f, "__code__", None), "co_qualname", "")


def parameters() -> Iterator[tuple[str, str]]:
    """(name, annotation or "") of the parameters that users pass."""
    for name, f in callables():
        try:
            found = inspect.signature(f).parameters
        except (TypeError, ValueError):
            continue
        for p in found.values():
            if p.name not in ("self", "cls"):
                said = "" if p.annotation is p.empty else p.annotation
                yield f"{name}({p.name})", said if isinstance(said, str) else repr(said)


def test_at_most_a_twentieth_of_public_parameters_are_any() -> None:
    found = dict(parameters())
    assert len(found) > 2500
    untold = [n for n, said in found.items() if re.fullmatch(r"|(typing\.)?_?Any( \| None)?", said)]
    assert len(untold) <= 0.05 * len(found), untold
