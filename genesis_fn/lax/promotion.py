"""One dtype and one shape for the operands of an operation: NumPy's broadcasting, JAX's lattice.

Python scalars follow the arrays that they meet, as does an array or tracer marked `weak`: one whose
dtype came of Python scalars (a scalar argument of `jit`, an integer array times 0.5). The result is
weak if the lattice says so: the array operands are then marked, and every primitive's result is
weak where its operands are. NumPy's scalars and arrays have their own dtype, a 64-bit one that of
32 bits; where the common dtype is wider, their values are not rounded on the way. Scalars of either
kind stay Python scalars, so that `x + 1.0` is one primitive.

Strict promotion of dtypes and ranks is about the operations that a program writes. What the
library's functions are composed of promotes as always: there its user has nothing to convert.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import Array, ArrayImpl, from_numpy, offers_array
from genesis_fn.core.configuration import config
from genesis_fn.core.convert import as_array, fitted, is_value
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import warn, where as user_line, within_library
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import SCALARS, Tracer, shown, with_weak
from genesis_fn.core.types.annotations import ArrayLike, DTypeLike, Scalar
from genesis_fn.primitives.elementwise import convert
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.shape import broadcast_in_dim

_PYTHON_TYPE = (bool, int, float, complex)  # by dtypes.kind_rank
_BOUNDS = {d: (int(np.iinfo(d).min), int(np.iinfo(d).max)) for d in dtypes.INTEGERS}
_CONFIG = config.current


def is_operand(x: object) -> bool:
    """Whether operators accept `x`: an array of any library, a tracer or a number (no lists)."""
    return type(x) is ArrayImpl or type(x) in SCALARS or is_value(x)


def python_type(d: DType) -> type:
    """The Python scalar type of a dtype's kind."""
    return _PYTHON_TYPE[dtypes.kind_rank(d)]


def device_among(xs: Sequence[Any]) -> Device | None:
    """The device of the first concrete array, which NumPy operands follow; None without one."""
    for x in xs:
        if type(x) is ArrayImpl:
            return x.sig.device.home
    return None


def _values(name: str, xs: Sequence[Any]) -> list[Any]:
    """`xs` as arrays, tracers, Python scalars and NumPy values."""
    found = list(xs)
    for i, x in enumerate(xs):
        if type(x) is ArrayImpl or type(x) in SCALARS or isinstance(x, Tracer):
            continue
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype in dtypes.SHORT:
            continue
        if isinstance(x, (list, tuple)):
            raise TypeError(
                f"{name or 'this function'} takes arrays and numbers, got a {type(x).__name__}\n"
                f"  at {user_line(depth=4).describe()}\n  make an array of it with asarray(...)"
            )
        found[i] = as_array(x, device=device_among(xs))
    return found


def _kinds(xs: Sequence[Any]) -> tuple[frozenset[DType], frozenset[DType]]:
    """(dtypes of strong operands, dtypes of the weak ones)."""
    strong, weak = set(), set()
    for x in xs:
        if type(x) in SCALARS:
            weak.add(dtypes.scalar_dtype(type(x)))
        elif isinstance(x, (np.ndarray, np.generic)):
            strong.add(dtypes.counted(x.dtype))
        else:
            (weak if x.weak else strong).add(x.aval.dtype)
    return frozenset(strong), frozenset(weak)


def common_type(name: str, xs: Sequence[Any], inexact: bool = False) -> tuple[DType, bool]:
    """(the common dtype of operands, whether it is weak): arrays, tracers, Python scalars, NumPy
    values.

    With `inexact`, integers and booleans go to float32. Raises TypePromotionError under strict
    promotion where an implicit conversion of an array would be needed.
    """
    strong, weak = _kinds(xs)
    result, is_weak = dtypes.promote(strong, weak)
    if (
        strong
        and _CONFIG().numpy_dtype_promotion == "strict"
        and strong != frozenset((result,))
        and not within_library()
    ):
        shown = ", ".join(
            sorted(d.name for d in strong) + sorted(python_type(d).__name__ for d in weak)
        )
        raise errors.TypePromotionError(
            f"{name or 'an operation'} on {shown} needs an implicit conversion to {result.name}, "
            "which numpy_dtype_promotion='strict' forbids; convert with .astype(...)"
        )
    return inexact_dtype(result) if inexact else result, is_weak


def inexact_dtype(d: DType) -> DType:
    """`d` if floating or complex, else the float of its integers: where mathematical functions take
    integers."""
    return dtypes.inexact_of(d)


def scalar_as(x: Any, d: DType) -> Any:
    """A Python scalar as the Python type of dtype `d`. Raises OverflowError for an int that does
    not fit; an unsigned value that signed storage lacks becomes an Array."""
    rank = dtypes.kind_rank(d)
    if rank == 1:
        low, high = _BOUNDS[d]
        x = int(x)
        if not low <= x <= high:
            raise OverflowError(
                f"Python integer {x} is out of bounds for {d.name}\n  at {user_line().describe()}"
            )
        if d in dtypes.WIDE_UNSIGNED and x > high // 2:
            return from_numpy(fitted(x, d))
        return x
    kind = _PYTHON_TYPE[rank]
    return x if type(x) is kind else kind(x)


def cast(x: Any, d: DType, weak: bool = False, device: Device | None = None) -> Any:
    """An operand in dtype `d`: an array or tracer, `weak` or not, or a Python scalar for a scalar.
    NumPy arrays go to `device`."""
    if type(x) in SCALARS:
        return scalar_as(x, d)
    if isinstance(x, np.generic):
        return scalar_as(python_type(x.dtype)(x), d)
    if isinstance(x, np.ndarray):
        return with_weak(as_array(x, d, device), weak)
    return with_weak(convert(x, d), weak)


def promoted(x: Array, d: DType) -> Array:
    """An array or tracer in dtype `d`, weak if it was: the conversion that promotion implies."""
    return with_weak(convert(x, d), x.weak)


def is_weak(x: ArrayLike) -> bool:
    """Whether an operand is weak: a Python number (but a bool), a weak array or tracer."""
    if isinstance(x, Array):
        return x.weak
    return type(x) in SCALARS and type(x) is not bool


def strong(x: Array) -> Array:
    """`x` whose dtype no longer yields to others, as after an explicit conversion."""
    return with_weak(x, False)


def strong_array(x: Array) -> Array:
    """`x`, the result of combining an array with a constant, weak only if it is a scalar: JAX
    broadcasts the constant to the array's shape as a strong array."""
    return with_weak(x, x.weak and not x.aval.shape)


def broadcast_shapes(*shapes: Sequence[int] | int) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to. Raises ShapeError where there is none."""
    given = [(s,) if isinstance(s, int) else tuple([operator.index(n) for n in s]) for s in shapes]
    if any(n < 0 for s in given for n in s):
        raise errors.ShapeError(f"broadcast: lengths must not be negative, got {list(given)}")
    return _broadcast_shape("broadcast", given)


def _broadcast_shape(name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for s in shapes:
        offset = ndim - len(s)
        for i, n in enumerate(s):
            if n != 1:
                if result[offset + i] not in (1, n):
                    shown = " and ".join(str(list(s)) for s in dict.fromkeys(shapes))
                    raise errors.ShapeError(
                        f"{name}: shapes {shown} do not broadcast: {result[offset + i]} and {n} "
                        f"meet in axis {offset + i - ndim}"
                    )
                result[offset + i] = n
    return tuple(result)


def check_ranks(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Warn or raise, as the setting says, where broadcasting these shapes adds leading axes."""
    setting = _CONFIG().numpy_rank_promotion
    if setting == "allow" or len({len(s) for s in shapes if s}) < 2 or within_library():
        return
    message = (
        f"{name or 'an operation'} on shapes {', '.join(str(list(s)) for s in shapes)} adds "
        "leading axes implicitly; write them with x[None, ...]"
    )
    if setting == "raise":
        raise errors.ShapeError(f"{message} (numpy_rank_promotion='raise')")
    warn(message)


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """An array or tracer repeated to `shape`, which it must broadcast to."""
    own = x.aval.shape
    if own == shape:
        return x
    return broadcast_in_dim(x, shape, range(len(shape) - len(own), len(shape)))


def operands(
    name: str, xs: Sequence[Any], inexact: bool = False, scalars: bool = True, ranks: bool = True
) -> list[Any]:
    """`xs` in one dtype and one shape, ready for an elementwise primitive called `name`.

    Python scalars stay so where at least one operand is an array and `scalars` is true. `ranks`
    says whether the setting about leading axes holds.
    """
    xs = _values(name, xs)
    d, weak = common_type(name, xs, inexact)
    device = device_among(xs)
    shapes = [_shape(x) for x in xs if not _is_scalar(x)]
    if not shapes:
        # Only scalars: they decide the dtype, and the first becomes an array for the primitive.
        xs[0] = as_array(xs[0], d, device)
        shapes = [()]
    shape = shapes[0]
    if any(s != shape for s in shapes):
        try:
            shape = _broadcast_shape(name, shapes)
        except errors.ShapeError:
            kinds = ", ".join(map(shown, xs))
            raise errors.ShapeError(
                f"{name}: operands {kinds} do not broadcast to one shape"
            ) from None
        if ranks:
            check_ranks(name, shapes)
    result = []
    for x in xs:
        x = cast(x, d, weak, device)
        if type(x) not in SCALARS:
            result.append(broadcast(x, shape))
        elif scalars:
            result.append(x)
        elif any([isinstance(o, Tracer) for o in xs]):
            # A number that the program knows, and no array that is handed to it.
            fitted(x, d)
            result.append(with_weak(full(shape, x, d), weak))
        else:
            result.append(broadcast(with_weak(as_array(x, d, device), weak), shape))
    return result


def _is_scalar(x: Any) -> bool:
    return type(x) in SCALARS or isinstance(x, np.generic)


def _shape(x: Any) -> tuple[int, ...]:
    return x.shape if isinstance(x, np.ndarray) else x.aval.shape


def promote_arrays(name: str, xs: Sequence[Any], inexact: bool = False) -> list[Array]:
    """`xs` as arrays or tracers of one dtype, shapes unchanged."""
    xs = _values(name, xs)
    d, weak = common_type(name, xs, inexact)
    device = device_among(xs)
    cast_to = [cast(x, d, weak, device) for x in xs]
    return [with_weak(as_array(x, d, device), weak) for x in cast_to]


def value(x: ArrayLike, name: str = "") -> Array:
    """`x` as an Array or tracer. Raises TypeError for a list or tuple, as JAX does."""
    if type(x) is ArrayImpl or isinstance(x, Tracer):
        return x
    if isinstance(x, (list, tuple)):
        raise TypeError(
            f"{name or 'this function'} takes arrays and numbers, got a {type(x).__name__}\n"
            f"  at {user_line().describe()}\n  make an array of it with asarray(...)"
        )
    return as_array(x)


def inexact_value(x: ArrayLike, name: str = "") -> Array:
    """`x` as an Array or tracer of a floating or complex dtype."""
    x = value(x, name)
    d = x.aval.dtype
    return x if dtypes.is_inexact(d) else promoted(x, dtypes.inexact_of(d))


def promoted_with_number(x: ArrayLike, number: Scalar, inexact: bool = False) -> Array:
    """`x` as an array in the dtype that it and a Python number promote to."""
    x = value(x)
    return cast(x, *common_type("", (x, number), inexact))


def result_type(*args: ArrayLike | DTypeLike) -> DType:
    """The dtype that operands, dtypes and Python scalars promote to, by the library's lattice."""
    if not args:
        raise ValueError("result_type needs at least one operand")
    strong, weak = set(), set()
    operands_: tuple[Any, ...] = args
    for a in operands_:
        if type(a) in SCALARS:
            weak.add(dtypes.scalar_dtype(type(a)))
        elif isinstance(a, Array):
            (weak if a.weak else strong).add(a.aval.dtype)
        elif isinstance(a, type) and a in SCALARS:
            weak.add(dtypes.scalar_dtype(a))
        elif isinstance(a, (np.generic, np.ndarray)):
            strong.add(dtypes.counted(dtypes.dtype(a.dtype)))
        elif offers_array(type(a)):
            strong.add(as_array(a).aval.dtype)
        elif getattr(a, "weak_type", False):  # a ShapeDtypeStruct
            weak.add(dtypes.dtype(a))
        else:
            strong.add(dtypes.dtype(a))
    return dtypes.promote(frozenset(strong), frozenset(weak))[0]
