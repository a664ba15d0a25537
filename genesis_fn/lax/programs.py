"""Composites, dispatch by platform, and the shapes of convolutions' results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core import device as devices, dtypes, tree
from genesis_fn.core.primitive import ctx, default_device_of
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.lax.operands import array
from genesis_fn.primitives.conv import (
    ConvDimensionNumbersLike,
    conv_dimension_numbers,
    conv_p,
    padtype_to_pads,
)
from genesis_fn.primitives.shape import optimization_barrier
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.tracing import named_call


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """`decomposition`, kept together in programs as one call under a name."""

    body = named_call(decomposition, name=name)
    body.__name__ = body.__qualname__ = name

    def call(*args: Any, **kwargs: Any) -> Any:
        return jit(body, static_argnames=tuple(kwargs))(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = decomposition.__doc__
    return call


def dce_sink(val: PyTree, *, prevent_mlir_dce: bool = False) -> None:
    """Keep the computation of `val` in the traced program although nothing uses its result."""
    from genesis_fn.transforms.custom.callback import debug_callback

    if ctx.trace is not None:
        debug_callback(_ignore, val)


def _ignore(*_: Any) -> None:
    """Does nothing: as an argument of a callback, the value is computed."""


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """`per_platform[kind](*args)` for the kind of device in use ("cpu" or "cuda"), else `default`.

    The device is that of the first array among the arguments, inside `grad` and `vmap` too. While
    a function is traced it is the device that the program will run on: that of the function's
    arguments, else the default device.
    """
    with default_device_of(tree.leaves(args)):
        kind = devices.default_device().kind
    names = (kind, "gpu") if kind == "cuda" else (kind,)
    chosen = next((per_platform[n] for n in names if n in per_platform), default)
    if chosen is None:
        raise ValueError(
            f"platform_dependent: nothing for {kind!r} among {sorted(per_platform)}, and no default"
        )
    return chosen(*args)


def stage(x: ArrayLike, /) -> Array:
    """`x` as a value of the program that is being traced, even if it is a known number."""
    return optimization_barrier([array(x)])[0]


# ---- shapes of convolutions ----


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The layouts of operand, kernel and result as permutations: (batch, features, space...)."""
    rank = len(dimension_numbers[0])
    return tuple(conv_dimension_numbers((1,) * rank, (1,) * rank, tuple(dimension_numbers)))


def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dimension_numbers: ConvDimensionNumbersLike,
) -> tuple[int, ...]:
    """The shape of a convolution's result; a batch of unknown length is -1."""
    from genesis_fn.core.aval import aval

    numbers = conv_dimension_numbers(lhs_shape, rhs_shape, dimension_numbers)
    if isinstance(padding, str):
        space = [lhs_shape[i] for i in numbers.lhs_spec[2:]]
        window = [rhs_shape[i] for i in numbers.rhs_spec[2:]]
        padding = padtype_to_pads(space, window, window_strides, padding)
    ones = (1,) * (len(lhs_shape) - 2)
    batch = numbers.lhs_spec[0]
    unknown = lhs_shape[batch] == -1
    lhs_shape = [1 if unknown and i == batch else n for i, n in enumerate(lhs_shape)]
    out = conv_p.shape(
        aval(tuple(lhs_shape), dtypes.F32),
        aval(tuple(rhs_shape), dtypes.F32),
        window_strides=tuple(window_strides),
        padding=tuple([tuple(p) for p in padding]),
        lhs_dilation=ones,
        rhs_dilation=ones,
        dimension_numbers=numbers,
        feature_group_count=1,
        batch_group_count=1,
        precision="default",
        preferred_element_type=None,
    )
    out_batch = numbers.out_spec[0]
    return tuple([-1 if unknown and i == out_batch else n for i, n in enumerate(out.shape)])


def conv_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    strides: Sequence[int],
    pads: str | Sequence[tuple[int, int]],
    batch_group_count: int = 1,
) -> tuple[int, ...]:
    """The shape of a convolution's result in the layout (batch, features, space...)."""
    shape = conv_general_shape_tuple(lhs_shape, rhs_shape, strides, pads, None)
    return (shape[0] // batch_group_count, *shape[1:])


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dimension_numbers: ConvDimensionNumbersLike,
) -> tuple[int, ...]:
    """The shape of a transposed convolution's result."""
    from genesis_fn.lax.products import conv_transpose
    from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
    from genesis_fn.transforms.staging.tracing import eval_shape

    out = eval_shape(
        lambda x, w: conv_transpose(
            x, w, tuple(window_strides), padding, dimension_numbers=dimension_numbers
        ),
        ShapeDtypeStruct(lhs_shape, "float32"),
        ShapeDtypeStruct(rhs_shape, "float32"),
    )
    return out.shape
