"""From arrays to Python and NumPy values, and the errors for values that are traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors, transfer
from genesis_fn.core.array import Array, live
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.source import where as user_line

_INSTEAD = {
    "bool": (
        errors.TracerBoolConversionError,
        "bool() of a traced value, as Python's if, while, and, or and not ask for",
        "use lax.cond or jnp.where for a choice, lax.while_loop for a loop, & | ~ for logic; "
        "or mark the argument static (static_argnums)",
    ),
    "int": (
        errors.TracerIntegerConversionError,
        "int() of a traced value",
        "use .astype(int), or mark the argument static (static_argnums)",
    ),
    "index": (
        errors.TracerIntegerConversionError,
        "a traced value where Python needs an integer (a shape, a range or a list index)",
        "mark the argument static (static_argnums), or index an array: jnp.asarray(list)[i]",
    ),
    "float": (
        errors.ConcretizationTypeError,
        "float() of a traced value",
        "use .astype(float), or mark the argument static (static_argnums)",
    ),
    "complex": (
        errors.ConcretizationTypeError,
        "complex() of a traced value",
        "use .astype(complex), or mark the argument static (static_argnums)",
    ),
    "item": (
        errors.ConcretizationTypeError,
        ".item() of a traced value",
        "return the array and call .item() outside, or use debug.print to look at it",
    ),
    "tolist": (
        errors.ConcretizationTypeError,
        ".tolist() of a traced value",
        "return the array and call .tolist() outside",
    ),
    "numpy": (
        errors.TracerArrayConversionError,
        "a traced value was handed to NumPy",
        "use the function of genesis_fn.numpy, or pure_callback for host code",
    ),
}


def concrete(x: Any, use: str) -> Array:
    """The Array behind `x`. Raises the tracer error for `use` where the value is not known."""
    if type(x) is Array:
        return live(x)
    found = x.concrete() if isinstance(x, Tracer) else None
    if found is None:
        raise traced_error(x, use)
    return live(found)


def traced_error(x: Tracer, use: str) -> errors.ConcretizationTypeError:
    """The error for a value that is abstract while tracing."""
    if not x._trace.alive:
        return x._trace.leaked(x)  # type: ignore[return-value]
    kind, what, instead = _INSTEAD[use]
    lines = [f"{what}: {x.aval} in {x._trace.name or 'a traced function'}"]
    origin = _origin(x)
    lines.append(f"  made at {origin}" if ":" in origin else f"  it is {origin}")
    names = arguments(x)
    if names:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"  depends on {shown}")
    lines.append(f"  used at {user_line(depth=4).describe()}")
    lines.append(f"  {instead}")
    return kind("\n".join(lines))


def _origin(x: Tracer) -> str:
    while not hasattr(x, "arguments") and _inner(x) is not None:
        x = _inner(x)
    return x.origin()


def arguments(x: Any) -> list[str]:
    """The arguments of the traced function that a tracer depends on."""
    while x is not None and not hasattr(x, "arguments"):
        x = _inner(x)
    return [] if x is None else x.arguments()


def _inner(x: Any) -> Any:
    for name in ("primal", "value"):
        found = getattr(x, name, None)
        if isinstance(found, Tracer):
            return found
    return None


def host(x: Any, use: str = "numpy") -> np.ndarray:
    """The values as a read-only ndarray, over the array's own memory where that is the host's."""
    x = concrete(x, use)
    if x.sig.device.kind != "cpu":
        transfer.check("device_to_host", x.aval, x.sig.device)
    view = x.sig.device.backend.to_numpy(x)
    if view.flags.writeable:
        view = view.view()
        view.flags.writeable = False
    return view


def number(x: Any, use: str) -> Any:
    """The Python number that an array of one element holds."""
    if x.aval.size != 1:
        if use == "bool":
            raise ValueError(
                f"the truth value of {x.aval} is ambiguous: use .any() or .all()\n"
                f"  at {user_line(depth=4).describe()}"
            )
        raise TypeError(
            f"only an array of one element converts to a Python {use}, got {x.aval}"
            if use != "item"
            else f"item() without an index needs an array of one element, got {x.aval}"
        )
    if use != "item" and x.aval.shape and use != "bool":
        raise TypeError(f"only scalars convert to a Python {use}, got {x.aval}; use .item()")
    return host(x, use).reshape(()).item()


def text(x: Array) -> str:
    """`Array([1., 2.], dtype=float32)`; what is known of an array whose memory is gone."""
    if x.is_deleted():
        return f"Array({x.aval}, deleted)"
    values = host(x)
    if values.dtype in (dtypes.BF16, dtypes.F8E4, dtypes.F8E5):
        values = values.astype(np.float32)
    if values.size == 0:
        return f"Array([], shape={x.aval.shape}, dtype={x.aval.dtype.name})"
    body = np.array2string(values, separator=", ", prefix="Array(", threshold=1000)
    return f"Array({body}, dtype={x.aval.dtype.name})"
