"""Operands of lax functions: arrays, ndarrays and numbers in one dtype and one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, Literal, Protocol, overload

from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.convert import as_array
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import SCALARS, Primitive, Tracer, with_weak
from genesis_fn.core.types.annotations import Array, ArrayLike
from genesis_fn.lax import accuracy as accuracies
from genesis_fn.lax.promotion import broadcast, python_type, scalar_as
from genesis_fn.primitives.elementwise import convert


def array(x: ArrayLike, known: dtypes.DType | None = None) -> Array:
    """`x` as an Array or tracer. 64-bit NumPy values become 32-bit ones unless their dtype is
    `known`."""
    if type(x) is ArrayImpl or isinstance(x, Tracer):
        return x
    return as_array(x, known if known is not None and getattr(x, "dtype", None) == known else None)


def arrays(name: str, xs: Sequence[Any], scalars: bool = True) -> list[Any]:
    """`xs` in one shape, ready for an elementwise primitive.

    Python numbers take the dtype of the arrays and stay numbers if `scalars`; weak tracers take it
    too. Arrays without dimensions and axes of length 1 are repeated. Raises DTypeError for a number
    of a higher kind.
    """
    known = [x for x in xs if isinstance(x, Array) and not x.weak]
    wide = known[0].aval.dtype if known else None
    xs = [x if type(x) in SCALARS else array(x, wide) for x in xs]
    if all(type(x) in SCALARS for x in xs):
        kinds = frozenset(dtypes.scalar_dtype(type(x)) for x in xs)
        if len(kinds) > 1:
            raise errors.DTypeError(
                f"{name} takes operands of one dtype, got {', '.join(map(repr, xs))}\n"
                f"  at {where(depth=4).describe()}"
            )
        d, weak = dtypes.promote(frozenset(), kinds)
        xs[0] = with_weak(as_array(xs[0], d), weak)
    given = [x for x in xs if type(x) not in SCALARS]
    firm = [x for x in given if not x.weak]
    d = (firm or given)[0].aval.dtype
    shapes = {x.aval.shape for x in given if x.aval.shape}
    shape = shapes.pop() if len(shapes) == 1 else _broadcast_shape(shapes)
    return [_fitted(name, x, d, shape, scalars) for x in xs]


def _broadcast_shape(shapes: set[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape in which axes of length 1 are repeated; () where shapes differ otherwise."""
    if len(set(map(len, shapes))) != 1:
        return ()
    lengths = [set(axis) - {1} for axis in zip(*shapes)]
    if any(len(n) > 1 for n in lengths):
        return ()
    return tuple([n.pop() if n else 1 for n in lengths])


def _fitted(name: str, x: Any, d: dtypes.DType, shape: tuple[int, ...], scalars: bool) -> Array:
    number = type(x) in SCALARS
    if number or x.weak:
        kind = type(x) if number else python_type(x.aval.dtype)
        if (bool, int, float, complex).index(kind) > dtypes.kind_rank(d):
            raise errors.DTypeError(
                f"{name}: a Python {kind.__name__} does not fit {d.name} operands; convert them "
                f"with .astype(...)\n  at {where(depth=5).describe()}"
            )
        if number and scalars:
            return scalar_as(x, d)
        x = as_array(scalar_as(x, d), d) if number else convert(x, d)
    return broadcast(x, shape) if shape and x.aval.shape != shape else x


class UnaryOperation(Protocol):
    """A lax function of one operand, elementwise."""

    __name__: str
    prim: Primitive

    def __call__(self, x: ArrayLike) -> Array:
        """The result for `x`, in its shape."""
        ...


class BinaryOperation(Protocol):
    """A lax function of two operands of one shape and dtype, elementwise."""

    __name__: str
    prim: Primitive

    def __call__(self, x: ArrayLike, y: ArrayLike) -> Array:
        """The result for `x` and `y`, in their shape."""
        ...


@overload
def on_operands(
    name: str,
    f: Callable[..., Array],
    doc: str,
    names: Literal["x"] = "x",
    scalars: bool = True,
    accuracy: bool = False,
) -> UnaryOperation: ...


@overload
def on_operands(
    name: str, f: Callable[..., Array], doc: str, names: Literal["x y"], scalars: bool = True
) -> BinaryOperation: ...


@overload
def on_operands(
    name: str, f: Callable[..., Array], doc: str, names: str, scalars: bool = True
) -> Callable[..., Array]: ...


def on_operands(
    name: str,
    f: Callable[..., Any],
    doc: str,
    names: str = "x",
    scalars: bool = True,
    accuracy: bool = False,
) -> Callable[..., Any]:
    """`f` of operands in one shape and dtype, named and documented; `names` are its parameters.
    With `accuracy` it has the parameter of that name, which changes nothing: what the function does
    not keep to is refused."""

    @named(name, names, doc, accuracy)
    def call(*operands: Any) -> Any:
        return f(*arrays(name, operands, scalars))

    if hasattr(f, "prim"):
        call.prim = f.prim  # pyright: ignore[reportFunctionMemberAccess]
    return call


def named(
    name: str, names: str, doc: str, accuracy: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a function of operands becomes one of the parameters `names`, which may be given
    by name."""
    parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in names.split()]
    count = len(parameters)
    if accuracy:
        parameters.append(Parameter("accuracy", Parameter.KEYWORD_ONLY, default=None))
    signature = Signature(parameters)

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*operands: Any, **by_name: Any) -> Any:
            if by_name or len(operands) != count:
                try:
                    operands = signature.bind(*operands, **by_name).args
                except TypeError as error:
                    raise errors.ArgumentError(f"{name}{signature}: {error}") from None
                if accuracy:
                    accuracies.check(name, by_name.get("accuracy"), operands[0])
            return f(*operands)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = doc
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
