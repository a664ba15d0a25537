"""Factories of primitives: most definitions are one call to `elementwise` or `linear`.

`elementwise` returns the function that binds the primitive, which is its `.prim`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend.lowering import Elementwise, Source
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import SCALARS, Primitive, bind, ctx, typeof
from genesis_fn.core.types.annotations import Array, ArrayLike, Scalar

T = TypeVar("T")


class PrimitiveFunction(Protocol):
    """A function that binds one primitive, `prim`, to operands of one shape and dtype.

    Of Python scalars alone it gives a Python scalar, if the primitive has a function for them.
    """

    __name__: str
    __qualname__: str
    prim: Primitive

    def __call__(self, *operands: ArrayLike) -> Array:
        """The result for these operands."""
        ...


# Partial derivatives that are constant, so that no multiplication is emitted.
ONE: Any = object()
NEG: Any = object()

DTYPE_CLASSES: dict[str, tuple[Callable[[DType], bool], str]] = {
    "any": (lambda d: True, "any dtype"),
    "number": (lambda d: d != dtypes.BOOL, "numbers"),
    "real": (lambda d: d != dtypes.BOOL and not dtypes.is_complex(d), "real numbers"),
    "ordered": (lambda d: not dtypes.is_complex(d), "real numbers or booleans"),
    "float": (dtypes.is_float, "floats"),
    "inexact": (dtypes.is_inexact, "floats or complex numbers"),
    "integer": (dtypes.is_integer, "integers"),
    "bits": (lambda d: d == dtypes.BOOL or dtypes.is_integer(d), "integers or booleans"),
    "complex": (dtypes.is_complex, "complex numbers"),
}


def describe(operands: Sequence[Any]) -> str:
    """Describe operands in a message: `f32[3,4], 2.0`."""
    return ", ".join(str(a) for a in operands)


# ---- elementwise ----


def elementwise(
    name: str,
    partials: Sequence[Any] | None = None,
    *,
    tangent: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | None = None,
    save: bool = False,
    accepts: str = "number",
    result: Callable[[DType], DType] | None = None,
    precision: str = "follow",
    torch: Callable[..., Any] | None = None,
    triton: str | Callable[..., str] | None = None,
    cost: int = 1,
    fold: Callable[..., Any] | None = None,
    scalars: tuple[int, ...] = (),
    numpy: Callable[..., Any] | None = None,
    python: Callable[..., Any] | None = None,
    wraps: bool = False,
    bounded: bool = False,
    flops: Callable[..., Any] | None = None,
    transcendental: bool = False,
) -> PrimitiveFunction:
    """Define an elementwise primitive on operands of one shape and dtype, and return its function.

    * `partials[i](y, *operands)`: the derivative of the result y by operand i; ONE, NEG, or None
      for zero. They are evaluated in the backward pass, or at once (and kept) with `save=True`.
    * `tangent(ts, y, *operands)` instead of partials, where a product with a partial will not do.
    * `accepts`: a key of DTYPE_CLASSES, the dtypes it takes; `result` maps the operand dtype.
    * `bounded`, `flops`, `transcendental`: see `core.primitive.Primitive`.
    * `python`: the function for operands that are all Python scalars.
    * `triton`: an expression in {0}, {1}, ... (narrow floats arrive and leave as float32); `torch`,
      `numpy`, `wraps`, `cost`, `fold` and `scalars`: see `Elementwise`.
    """

    def shape(*operands: Any) -> Aval:
        arrays = [a for a in operands if type(a) is Aval]
        first = arrays[0]
        admits, words = DTYPE_CLASSES[accepts]
        for a in arrays:
            if a.shape != first.shape:
                raise errors.ShapeError(f"{name}: shapes differ: {describe(operands)}")
            if a.dtype != first.dtype:
                raise errors.DTypeError(f"{name}: dtypes differ: {describe(operands)}")
        if not admits(first.dtype):
            raise errors.DTypeError(f"{name} takes {words}, got {describe(operands)}")
        return first if result is None else first.update(dtype=result(first.dtype))

    prim = Primitive(
        name,
        shape,
        transpose=transpose,
        precision=precision,
        bounded=bounded or (partials is None and tangent is None),
        flops=flops,
        transcendental=transcendental,
        lowering=Elementwise(
            triton, torch=torch, numpy=numpy, wraps=wraps, cost=cost, fold=fold, scalars=scalars
        ),
    )
    prim.batch = functools.partial(batch_elementwise, prim)
    prim.linearize = _linearize_elementwise(prim, partials, tangent, save)

    def call(*operands: Any) -> Any:
        if python is not None and all([type(a) in SCALARS for a in operands]):
            return python(*operands)
        return bind(prim, *operands)

    return named(call, prim)


def named(call: Callable[..., Any], prim: Primitive) -> PrimitiveFunction:
    """Give `call` the name of `prim`, and `prim` as its attribute."""
    function = cast(PrimitiveFunction, call)
    function.__name__ = function.__qualname__ = prim.name
    function.prim = prim
    return function


def _linearize_elementwise(
    prim: Primitive, partials: Sequence[Any] | None, tangent: Callable[..., Any] | None, save: bool
) -> Callable[..., Any]:
    if tangent is not None:

        def rule(nonzero: Any, *xs: Any) -> Any:
            y = bind(prim, *xs)
            return y, lambda *ts: tangent(ts, y, *xs)

        return rule
    if partials is None:
        return lambda nonzero, *xs: (bind(prim, *xs), lambda *ts: None)

    def rule(nonzero: Any, *xs: Any) -> Any:
        y = bind(prim, *xs)
        saved: list[Any] | None = None
        if save:
            saved = [p(y, *xs) if n and callable(p) else p for p, n in zip(partials, nonzero)]

        def apply(*ts: Any) -> Any:
            total = None
            for i, t in enumerate(ts):
                if t is None or partials[i] is None:
                    continue
                p = partials[i]
                if p is ONE:
                    term = t
                elif p is NEG:
                    term = bind(PRIM["neg"], t)
                else:
                    term = scale(t, p(y, *xs) if saved is None else saved[i])
                total = term if total is None else bind(PRIM["add"], total, term)
            return total

        return y, apply

    return rule


# Primitives that rules in other modules bind, by name; filled by the modules that define them, so
# that those need no imports of each other.
PRIM: dict[str, Primitive] = {}


def scale(t: Array, d: ArrayLike) -> Array:
    """t * d, or where(t == 0, 0, t * d) under `grad(..., safe_zero=True)`."""
    return bind(PRIM["safe_mul" if ctx.safe_zero else "mul"], t, d)


def batch_elementwise(
    prim: Primitive, size: int, xs: Sequence[Any], dims: Sequence[Any], **params: object
) -> tuple[Any, int | None]:
    """The batching rule of elementwise operations."""
    d = None
    for d in dims:  # a loop is faster than next() here, and vmap calls this for every operation
        if d is not None:
            break
    return bind(
        prim,
        *[
            x if type(x) in SCALARS or xd == d else move_batch(x, xd, d, size)  # pyright: ignore[reportArgumentType]
            for x, xd in zip(xs, dims)
        ],
        **params,
    ), d


def move_batch(x: Array, source: int | None, target: int, size: int) -> Array:
    """Move the batch dimension of `x` to `target`; repeat an unbatched `x` (source None)."""
    shape = typeof(x).shape
    if source is None:
        new = (*shape[:target], size, *shape[target:])
        kept = tuple([i for i in range(len(new)) if i != target])
        return bind(PRIM["broadcast_in_dim"], x, shape=new, dims=kept)
    if source == target:
        return x
    order = [i for i in range(len(shape)) if i != source]
    order.insert(target, source)
    return bind(PRIM["transpose"], x, permutation=tuple(order))


# ---- linear in one operand ----


def linear(
    name: str,
    shape: Callable[..., Aval],
    *,
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    **traits: Any,
) -> Primitive:
    """Define a primitive that is linear in its one operand; its derivatives are bounded.

    `transpose(ct, aval, **params)` maps the cotangent to the operand's; `batch(size, x, dim,
    **params)` gets one value with its batch dimension. Integer and boolean operands carry no
    tangent.
    """
    prim = Primitive(name, shape, bounded=True, **traits)

    prim.linearize = linear_rule(prim)
    prim.transpose = lambda ct, x, /, **params: [transpose(ct, x.aval, **params)]
    prim.batch = lambda size, xs, dims, /, **params: batch(size, xs[0], dims[0], **params)
    return prim


def each_operand(ins: Sequence[Aval], outs: Sequence[Aval], **_: object) -> float:
    """The `flops` of a reduction: one operation for each element of its operand."""
    return ins[0].size


def linear_rule(prim: Primitive) -> Callable[..., Any]:
    """The linearize rule of an operation that is linear in its one operand: itself."""
    return lambda nonzero, x, /, **params: (
        bind(prim, x, **params),
        lambda t: bind(prim, t, **params),
    )


def no_tangent(prim: Primitive) -> Callable[..., Any]:
    """The linearize rule of an operation whose derivative is zero or meaningless."""
    if prim.multi:
        return lambda nonzero, *xs, **params: (
            outs := bind(prim, *xs, **params),
            lambda *ts: [None] * len(outs),
        )
    return lambda nonzero, *xs, **params: (bind(prim, *xs, **params), lambda *ts: None)


# ---- no operand ----


full_p = Primitive(
    "full",
    lambda *, value, shape, dtype: aval(shape, dtype),
    lowering=Source(lambda at, *, value, **_: value),
)
full_p.linearize = no_tangent(full_p)
full_p.batch = lambda size, xs, dims, **params: (bind(full_p, **params), None)


def full(shape: Sequence[int], value: Scalar, dtype: DType) -> Array:
    """Make an array of one value, a Python number."""
    return bind(full_p, value=value, shape=tuple(shape), dtype=dtype)


def zeros(kind: Aval) -> Array:
    """Make zeros of an aval."""
    made = bind(full_p, value=zero(kind.dtype), shape=kind.shape, dtype=kind.dtype)
    return varying_as(made, kind) if kind.varying else made


def varying_as(x: Array, kind: Aval) -> Array:
    """`x` as a value that may differ between devices along the axes along which `kind` varies."""
    if ctx.match is None:  # one program for all devices, in which types say nothing of this
        return x
    for name in sorted(kind.varying - typeof(x).varying, key=str):
        x = bind(PRIM["pvary"], x, axis_name=axis_in_scope(name))
    return x


def axis_in_scope(name: Hashable) -> Hashable:
    """The axis of a name, which a vmap or a mesh around has."""
    # Where one process computes for all devices, it maps over the axes of the mesh themselves.
    return next(a.axis for a in ctx.axes if name in (a.name, getattr(a.axis, "name", None)))


def zero(d: DType) -> Scalar:
    """Zero as a Python number of the kind of a dtype."""
    if dtypes.is_key(d):
        return 0
    return (False, 0, 0.0, 0j)[dtypes.kind_rank(d)]


def zero_of(x: Array) -> Scalar:
    """Zero as a Python number that can be an operand together with `x`."""
    return zero(typeof(x).dtype)


def instantiate(x: Array | None, kind: Aval) -> Array:
    """Return `x`, or zeros of an aval where `x` is None (a symbolic zero)."""
    if x is None:
        return zeros(kind)
    return varying_as(x, kind) if kind.varying else x


def filled(present: Sequence[bool], xs: Iterable[T]) -> list[T | None]:
    """Put `xs` at the positions that are `present`, and None, a symbolic zero, at the others."""
    rest = iter(xs)
    return [next(rest) if g else None for g in present]


def axes_except(ndim: int, axes: Sequence[int]) -> tuple[int, ...]:
    """The axes of an array of `ndim` dimensions that are not in `axes`."""
    return tuple([i for i in range(ndim) if i not in axes])
