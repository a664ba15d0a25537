"""From arrays to Python and NumPy values, and the errors for values that are traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl, live, words_of
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.diagnostics.source_info import where as user_line, where_read
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.types.annotations import Array
from genesis_fn.core.types.extended import is_key

# How a value can be read: (the error, what it is called, what to write where it is traced).
_READING = {
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
        "float() of a traced value, as math's functions ask for",
        "use jnp's functions or .astype(float), or mark the argument static (static_argnums)",
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
    "tobytes": (
        errors.ConcretizationTypeError,
        ".tobytes() of a traced value",
        "return the array and call .tobytes() outside",
    ),
    "numpy": (
        errors.TracerArrayConversionError,
        "a traced value was handed to NumPy",
        "use the function of genesis_fn.numpy, or pure_callback for host code",
    ),
    "dlpack": (
        errors.TracerArrayConversionError,
        "a traced value was handed to another library (DLPack)",
        "use the function of genesis_fn.numpy, torch_call for torch's, or return the array first",
    ),
    "memory": (
        errors.ConcretizationTypeError,
        "the memory of a traced value",
        "return the array and look at its memory outside",
    ),
    "pickle": (
        errors.ConcretizationTypeError,
        "pickling of a traced value",
        "return the array from the traced function and pickle it outside",
    ),
    "number": (
        errors.ConcretizationTypeError,
        "a traced value where a Python number is needed",
        "pass a Python number, or mark the argument static (static_argnums)",
    ),
}
# Uses whose copy loses no derivative: a branch, an index, a printed text.
_PLAIN = frozenset(("bool", "index", "text"))


def concrete(x: Array, use: str) -> ArrayImpl:
    """The Array behind `x`. Raises the tracer error for `use` where the value is not known, or
    where it is known but carries a tangent that the copy would lose."""
    if type(x) is ArrayImpl:
        return live(x)
    assert isinstance(x, Tracer)
    if x.owner.ended():
        raise traced_error(x, use)
    found = x.concrete()
    if found is None or (use not in _PLAIN and x.carrier() is not None):
        raise traced_error(x, use)
    return live(found)


def traced_error(x: Tracer, use: str) -> errors.ConcretizationTypeError:
    """The error for a value that is abstract while tracing, or that is being differentiated."""
    if not x.owner.alive:
        return x.owner.leaked(x)  # type: ignore[return-value]
    kind, what, instead = _READING[use]
    carrier = x.carrier() if x.concrete() is not None else None
    if carrier is not None:
        x = carrier
        what = what.replace("a traced value", "a value that is being differentiated")
        instead = (
            "its derivative would be lost: compute with genesis_fn.numpy, or read "
            "lax.stop_gradient(x), whose derivative is zero"
        )
    called = x.owner.called
    inside = f"{called.function} under {called.transform}" if called else x.owner.name
    lines = [f"{what}: {x.aval} in {inside or 'a traced function'}"]
    origin = _origin(x)
    is_line = not origin.startswith(("argument ", "an argument ", "a line "))
    lines.append(f"  made at {origin}" if is_line else f"  it is {origin}")
    names = arguments(x)
    if names:
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"  depends on {shown}")
    lines.append(f"  used at {where_read().describe()}")
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


def host(x: Array, use: str = "numpy") -> np.ndarray:
    """The values as a read-only ndarray, over the array's own memory where that is the host's."""
    if is_key(x.aval.dtype):
        asked = {"numpy": "an ndarray", "tolist": "a list"}.get(use, f"a Python {use}")
        raise TypeError(
            f"random keys, {x.aval}, do not become {asked}\n  at {user_line(depth=4).describe()}\n"
            f"  {dtypes.KEY_REMEDY}"
        )
    x = concrete(x, use)
    if x.sig.device.kind != "cpu":
        transfer_guard.check("device_to_host", x.aval, x.sig.device)
    view = x.sig.device.backend.to_numpy(x)
    if view.flags.writeable:
        view = view.view()
        view.flags.writeable = False
    return view


def number(x: Array, use: str) -> Any:
    """The Python number that an array of one element holds."""
    if x.aval.size != 1:
        if use == "bool":
            raise ValueError(
                f"the truth value of {x.aval} is ambiguous: use .any() or .all()\n"
                f"  at {user_line(depth=4).describe()}"
            )
        raise (errors.ArgumentError if use == "item" else TypeError)(
            f"only an array of one element converts to a Python {use}, got {x.aval}"
            if use != "item"
            else f"item() without an index needs an array of one element, got {x.aval}"
        )
    if use != "item" and x.aval.shape and use != "bool":
        raise TypeError(f"only scalars convert to a Python {use}, got {x.aval}; use .item()")
    return host(x, use).reshape(()).item()


def text(x: ArrayImpl) -> str:
    """`Array([1., 2.], dtype=float32)`; what is known of an array whose memory is gone."""
    if x.is_deleted():
        return f"Array({x.aval}, deleted)"
    if is_key(x.dtype):
        return f"Array({x.shape}, dtype={x.dtype.name}) overlaying:\n{host(words_of(x))}"
    values = host(x)
    if values.dtype in (dtypes.BF16, dtypes.F8E4, dtypes.F8E5):
        values = values.astype(np.float32)
    if values.size == 0:
        return f"Array([], shape={x.aval.shape}, dtype={x.aval.dtype.name})"
    body = np.array2string(values, separator=", ", prefix="Array(", threshold=1000)
    return f"Array({body}, dtype={x.aval.dtype.name})"
