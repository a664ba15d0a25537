"""What everything stands on: dtypes, avals, arrays, trees, primitives, programs, errors.

The modules are the library's own. The package has, besides, the names of jax.core that a program
asks of its values, as in `isinstance(x, core.Tracer)`; each is imported when it is first used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any as _Any

if TYPE_CHECKING:
    from genesis_fn.core.aval import AbstractValue as AbstractValue, ShapedArray as ShapedArray
    from genesis_fn.core.jaxpr import Atom as Atom, Jaxpr as Jaxpr
    from genesis_fn.core.primitive import Trace as Trace, Tracer as Tracer
    from genesis_fn.transforms.staging.tracing import (
        ensure_compile_time_eval as ensure_compile_time_eval,
        eval_jaxpr as eval_jaxpr,
    )

_HOME = {
    "AbstractValue": "core.aval", "Atom": "core.jaxpr", "Jaxpr": "core.jaxpr",
    "ShapedArray": "core.aval", "Trace": "core.primitive", "Tracer": "core.primitive",
    "ensure_compile_time_eval": "transforms.staging.tracing",
    "eval_jaxpr": "transforms.staging.tracing",
}  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"genesis_fn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({n for n in globals() if n[0] != "_"} | {*_HOME})
