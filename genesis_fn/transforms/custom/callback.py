"""Host callbacks: Python functions of NumPy arrays, called while a compiled program runs.

`pure_callback` computes a value, `io_callback` has side effects, `debug_callback` only looks. They
run in program order, once per call (under vmap once per example unless told otherwise), and a
checkpoint's recomputation does not repeat what has side effects.
"""

from __future__ import annotations

import functools
import logging
import string
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl, from_numpy, keys_over
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.convert import as_array, is_value, narrowed
from genesis_fn.core.device import cpu
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.primitive import SCALARS, Primitive, bind
from genesis_fn.core.static import Same, aux_key
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.core.types.extended import is_key
from genesis_fn.primitives.factories import move_batch
from genesis_fn.primitives.random_bits import unwrap
from genesis_fn.primitives.shape import expand_dims
from genesis_fn.transforms.control_flow.scanning import map_sequentially
from genesis_fn.transforms.staging.api_util import name_of

METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")


class HostFunction:
    """A callback on flat arrays, which builds the pytrees that the user's function takes.

    Two are equal if function, structure and fixed leaves are, so that their programs are shared.
    """

    __slots__ = ("f", "in_tree", "fixed", "out_tree", "key")

    def __init__(
        self, f: Callable[..., Any], in_tree: Any, fixed: tuple[Any, ...], out_tree: Any
    ) -> None:
        self.f, self.in_tree, self.fixed, self.out_tree = f, in_tree, fixed, out_tree
        # By identity: a program calls the function object, whatever it computes by then.
        if isinstance(f, Formatted):  # nothing changes what these do
            owner: Any = f
        else:
            owner = (f.__func__, Same(f.__self__)) if isinstance(f, MethodType) else Same(f)
        try:
            self.key = (owner, in_tree, aux_key(fixed)[0], out_tree)
            hash(self.key)
        except TypeError:
            self.key = (id(self),)

    @property
    def __name__(self) -> str:
        return name_of(self.f)

    def __eq__(self, other: Any) -> bool:
        return type(other) is HostFunction and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def called(self, values: Sequence[np.ndarray]) -> Any:
        """Call the function with these values for its arrays, and return what it returns."""
        leaves, arrays = dict(self.fixed), iter(values)
        keys = {i: x for i, x in leaves.items() if type(x) is _KeyPlaceholder}
        count = len(values) + len(leaves) - len(keys)
        leaves |= {i: _wrap_keys(next(arrays), kind) for i, kind in keys.items()}
        if not isinstance(self.f, Formatted):  # what prints shows a number as it was given
            leaves |= {i: _host_number(x) for i, x in leaves.items() if type(x) in SCALARS}
        args, kwargs = tree.unflatten(
            self.in_tree, [leaves[i] if i in leaves else next(arrays) for i in range(count)]
        )
        return self.f(*args, **kwargs)

    def run(self, values: Sequence[np.ndarray], out_avals: Sequence[Aval]) -> list[np.ndarray]:
        """Call the function, and return its outputs as NumPy arrays of `out_avals`. Raises
        CallbackResultError where the function returns something else."""
        out = self.called(values)
        if self.out_tree is None:
            return []
        flat, structure = tree.flatten(out)
        if structure != self.out_tree:
            raise errors.CallbackResultError(
                f"the host callback {name_of(self.f)} returned structure {structure}, it was "
                f"declared to return {self.out_tree}"
            )
        return [self._fitted(x, a) for x, a in zip(flat, out_avals, strict=True)]

    def _fitted(self, x: Any, declared: Aval) -> np.ndarray:
        weak = type(x) in SCALARS
        x = np.asarray(x)
        if x.shape != declared.shape:
            raise errors.CallbackResultError(
                f"the host callback {name_of(self.f)} returned shape {x.shape}, it was declared to "
                f"return {declared}"
            )
        if x.dtype != declared.dtype:
            wide = {dtypes.F64: dtypes.F32, dtypes.I64: dtypes.I32, dtypes.C128: dtypes.C64}
            if not weak and wide.get(x.dtype) != declared.dtype:
                raise errors.CallbackResultError(
                    f"the host callback {name_of(self.f)} returned {x.dtype.name}, it was declared "
                    f"to return {declared}"
                )
            x = narrowed(x, declared.dtype)
        return x


def _host_number(x: Any) -> Any:
    """A Python number as NumPy's of its default dtype, which has the methods of an array; one that
    the dtype does not hold as it is."""
    try:
        return np.asarray(x, dtypes.scalar_dtype(type(x)))[()]
    except OverflowError:
        return x


class _KeyPlaceholder(NamedTuple):
    """A fixed leaf in place of random keys of a dtype, whose words are operands."""

    dtype: Any


def _wrap_keys(words: np.ndarray, placeholder: _KeyPlaceholder) -> ArrayImpl:
    """Make random keys on the host, for the user's function, from their words."""
    return keys_over(from_numpy(words, cpu()), aval(words.shape[:-1], placeholder.dtype))


def split_arrays(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...], Any]:
    """Split a call's arguments: (arrays, (position, leaf) of what is no array, structure).

    Of random keys the words are arrays, the first ones, and a placeholder with the dtype is a leaf.
    """
    leaves, treedef = tree.flatten((args, kwargs))
    arrays, words, fixed = [], [], []
    for i, x in enumerate(leaves):
        if type(x) in SCALARS or not is_value(x):
            fixed.append((i, x))
        elif is_key((x := as_array(x)).aval.dtype):
            fixed.append((i, _KeyPlaceholder(x.dtype)))
            words.append(unwrap(x))
        else:
            arrays.append(x)
    return [*words, *arrays], tuple(fixed), treedef


# ---- rules ----


def _shape(*avals: Any, out_avals: tuple[Aval, ...], **_: Any) -> list[Aval]:
    return list(out_avals)


def _no_derivative(what: str) -> Callable[..., Any]:
    def linearize(nonzero: Any, *xs: Any, function: HostFunction, **_: Any) -> Any:
        raise errors.NotDifferentiableError(
            f"the derivative of a host function is not known: {what} of {name_of(function.f)}\n"
            f"  at {where().describe()}\n"
            "  give the function around it a rule (custom_vjp or custom_jvp), or pass "
            "stop_gradient(x) to it"
        )

    return linearize


def batch_sequentially(
    prim: Primitive,
    size: int,
    xs: Sequence[Array],
    dims: Sequence[int | None],
    params: dict[str, Any],
    unroll: bool = False,
) -> tuple[list[Array], list[int]]:
    """The batching rule of one call per example: (outputs, stacked, their batch dimensions)."""
    outs = map_sequentially(functools.partial(bind, prim, **params), size, xs, dims, unroll)
    return outs, [0] * len(outs)


def _batch_pure(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    function: HostFunction,
    out_avals: tuple[Aval, ...],
    vmap_method: str | None,
) -> Any:
    params = {"function": function, "out_avals": out_avals, "vmap_method": vmap_method}
    if vmap_method is None:
        raise ValueError(
            f"vmap of a pure_callback to {name_of(function.f)} needs to know how to call it\n"
            f"  at {where().describe()}\n  pass pure_callback(..., vmap_method=) one of "
            + ", ".join(map(repr, METHODS))
        )
    if vmap_method.startswith("sequential"):
        unroll = vmap_method.endswith("unrolled")
        return batch_sequentially(pure_callback_p, size, xs, dims, params, unroll)
    operands = []
    for x, d in zip(xs, dims):
        if d is None and vmap_method == "expand_dims":
            operands.append(expand_dims(x, (0,)))
        else:
            operands.append(move_batch(x, d, 0, size))
    params["out_avals"] = tuple([aval((size, *a.shape), a.dtype) for a in out_avals])
    outs = bind(pure_callback_p, *operands, **params)
    return outs, [0] * len(outs)


pure_callback_p = Primitive(
    "pure_callback",
    _shape,
    multi=True,
    linearize=_no_derivative("pure_callback"),
    batch=_batch_pure,
)


def _batch_io(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    ordered: bool,
    function: HostFunction,
    out_avals: tuple[Aval, ...],
) -> Any:
    if ordered:
        raise ValueError(
            f"vmap of an ordered io_callback ({name_of(function.f)}): the examples of a batch have "
            f"no order\n  at {where().describe()}\n  pass ordered=False"
        )
    params = {"function": function, "out_avals": out_avals, "ordered": ordered}
    return batch_sequentially(io_callback_p, size, xs, dims, params)


io_callback_p = Primitive(
    "io_callback",
    _shape,
    multi=True,
    effect=True,
    batch=_batch_io,
    linearize=_no_derivative("io_callback"),
)


def _batch_debug(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, function: HostFunction
) -> Any:
    return batch_sequentially(debug_callback_p, size, xs, dims, {"function": function})


debug_callback_p = Primitive(
    "debug_callback",
    lambda *avals, function: [],
    multi=True,
    effect=True,
    linearize=lambda nonzero, *xs, function: (
        bind(debug_callback_p, *xs, function=function),
        lambda *ts: [],
    ),
    batch=_batch_debug,
)


# ---- what users call ----


def declared_outputs(result: PyTree) -> tuple[tuple[Aval, ...], Any]:
    """(avals, structure) of a declaration. Raises TypeError for what has no shape and dtype."""
    leaves, out_tree = tree.flatten(result)
    for x in leaves:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            raise TypeError(
                f"result_shape_dtypes: {x!r} has no shape and dtype\n"
                f"  at {where(depth=4).describe()}\n  pass ShapeDtypeStruct(shape, dtype)s"
            )
    return tuple([aval(tuple(x.shape), dtypes.dtype(x.dtype)) for x in leaves]), out_tree


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: PyTree,
    *args: PyTree,
    sharding: None = None,
    vmap_method: str | None = None,
    **kwargs: PyTree,
) -> PyTree:
    """Compute `callback(*args, **kwargs)` on the host, from NumPy arrays.

    The call may be dropped, repeated or reordered, so `callback` must be a pure function. Not
    differentiable: wrap it in a function with `custom_jvp` or `custom_vjp`.

    Args:
        callback: function of pytrees like the arguments, with ndarrays for arrays.
        result_shape_dtypes: what it returns, a pytree of ShapeDtypeStructs or arrays.
        *args, **kwargs: pytrees; Python numbers reach `callback` as NumPy scalars, and leaves that
            are neither arrays nor numbers unchanged.
        sharding: ignored, as JAX's argument.
        vmap_method: how `vmap` calls it. "sequential": once per example, in a loop
            ("sequential_unrolled": without a loop); "expand_dims" or "broadcast_all": once, on
            batches, where unbatched arguments get a leading axis of 1 or of the batch's length.
            None: `vmap` raises ValueError.

    Returns:
        The result, of the declared structure, shapes and dtypes.

    Raises:
        ValueError: `vmap_method` is unknown.
        TypeError: a leaf of `result_shape_dtypes` has no shape or dtype.
        TreeError, ShapeError, DTypeError: when it runs, `callback` returns something else.

    >>> x = jnp.array([4.0, 9.0])
    >>> gf.jit(lambda x: gf.pure_callback(np.sqrt, x, x))(x)
    Array([2., 3.], dtype=float32)
    """
    if vmap_method is not None and vmap_method not in METHODS:
        raise ValueError(f"vmap_method is one of {', '.join(METHODS)}, got {vmap_method!r}")
    out_avals, out_tree = declared_outputs(result_shape_dtypes)
    arrays, fixed, in_tree = split_arrays(args, kwargs)
    outs = bind(
        pure_callback_p,
        *arrays,
        function=HostFunction(callback, in_tree, fixed, out_tree),
        out_avals=out_avals,
        vmap_method=vmap_method,
    )
    return tree.unflatten(out_tree, outs)


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: PyTree,
    *args: PyTree,
    sharding: None = None,
    ordered: bool = False,
    **kwargs: PyTree,
) -> PyTree:
    """Call `callback(*args, **kwargs)` on the host for its side effects, exactly once per run.

    Calls happen in the order of the program. Not differentiable.

    Args:
        callback: function of pytrees like the arguments, with ndarrays for arrays.
        result_shape_dtypes: what it returns, a pytree of ShapeDtypeStructs or arrays; None for
            nothing.
        *args, **kwargs: pytrees; Python numbers reach `callback` as NumPy scalars, and leaves that
            are neither arrays nor numbers unchanged.
        sharding: ignored, as JAX's argument.
        ordered: whether `vmap` is refused; without it, `vmap` calls once per example.

    Returns:
        The result, of the declared structure, shapes and dtypes.

    Raises:
        TypeError: a leaf of `result_shape_dtypes` has no shape or dtype.

    >>> seen = []
    >>> gf.jit(lambda x: gf.io_callback(lambda v: seen.append(float(v)), None, x))(jnp.array(2.0))
    >>> seen
    [2.0]
    """
    out_avals, out_tree = declared_outputs(result_shape_dtypes)
    arrays, fixed, in_tree = split_arrays(args, kwargs)
    outs = bind(
        io_callback_p,
        *arrays,
        function=HostFunction(callback, in_tree, fixed, out_tree),
        out_avals=out_avals,
        ordered=ordered,
    )
    return tree.unflatten(out_tree, outs)


def debug_callback(
    callback: Callable[..., Any],
    *args: PyTree,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: PyTree,
) -> None:
    """Call `callback(*args, **kwargs)` with NumPy arrays when the program gets there.

    The result is ignored, and derivatives pass the call by. Under `vmap` it is called once per
    example.

    Args:
        callback: function of pytrees like the arguments, with ndarrays for arrays.
        *args, **kwargs: pytrees; Python numbers reach `callback` as NumPy scalars, and leaves that
            are neither arrays nor numbers unchanged.
        ordered, partitioned: ignored, as JAX's arguments; calls are always in order.

    >>> gf.jit(lambda x: gf.debug.callback(lambda v: print("x is", v), x))(jnp.array(2.0))
    x is 2.0
    """
    arrays, fixed, in_tree = split_arrays(args, kwargs)
    bind(debug_callback_p, *arrays, function=HostFunction(callback, in_tree, fixed, None))


class Formatted:
    """A callback that formats a message with values; two of equal formats are equal. `error` is
    what a condition with this message raises."""

    __slots__ = ("format",)
    error: type[errors.AssertionFailed] = errors.AssertionFailed

    def __init__(self, text: str) -> None:
        self.format = text

    def __eq__(self, other: Any) -> bool:
        return type(other) is type(self) and self.format == other.format

    def __hash__(self) -> int:
        return hash((type(self), self.format))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree.map(_printable, (args, kwargs))
        return self.format.format(*args, **kwargs)


class _Print(Formatted):
    """The callback of `debug.print`."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        print(super().__call__(*args, **kwargs))


class _Log(Formatted):
    """The callback of `debug.log`."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        logging.getLogger("genesis_fn").info(super().__call__(*args, **kwargs))


def _printable(x: Any) -> Any:
    """Narrow floats as float32: NumPy cannot format their dtypes."""
    narrow = isinstance(x, np.ndarray) and x.dtype in (dtypes.BF16, dtypes.F8E4, dtypes.F8E5)
    return x.astype(np.float32) if narrow else x


def check_format(
    fmt: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: str = "debug.print('x = {x}', x=x)",
) -> None:
    """Raise ValueError unless the format uses each argument, and each of its fields has one.

    `call` is a right call of the function that took them, for the message.
    """
    used, todo, automatic = set(), [fmt], 0
    while todo:
        for _, field, spec, _ in string.Formatter().parse(todo.pop()):
            if field is None:
                continue
            first = field.split(".")[0].split("[")[0]
            if first == "":
                first, automatic = str(automatic), automatic + 1
            used.add(int(first) if first.isdigit() else first)
            if spec:
                todo.append(spec)
    known = {*range(len(args)), *kwargs}
    missing, unused = sorted(map(str, used - known)), sorted(map(str, known - used))
    if missing or unused:
        raise ValueError(
            f"{call.partition('(')[0]}: the format {fmt!r} "
            + " and ".join(
                [f"has no argument for {', '.join(missing)}"] * bool(missing)
                + [f"does not use {', '.join(unused)}"] * bool(unused)
            )
            + f"\n  at {where(depth=4).describe()}\n"
            f"  write {call}; an f-string would be filled in while tracing"
        )


def debug_print(
    fmt: str,
    *args: PyTree,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: PyTree,
) -> None:
    """Print `fmt.format(*args, **kwargs)` with the arguments' values, when the program gets there.

    Works under `jit`, `grad`, `vmap` (once per example) and in loops.

    Args:
        fmt: format string, not an f-string: that would print tracers.
        *args, **kwargs: pytrees that the format's fields name.
        ordered, partitioned: ignored, as JAX's arguments; calls are always in order.
        skip_format_check: whether fields and arguments need not fit each other.

    Raises:
        ValueError: a field has no argument, or an argument no field.
        TypeError: `fmt` is no string.

    >>> gf.jit(lambda x: gf.debug.print("x is {}, twice {y}", x, y=2 * x))(jnp.array(2.0))
    x is 2.0, twice 4.0
    """
    if not isinstance(fmt, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass values
        raise TypeError(f"debug.print takes a format string first, got {type(fmt).__name__}")
    if not skip_format_check:
        check_format(fmt, args, kwargs)
    debug_callback(_Print(fmt), *args, **kwargs)


def debug_log(
    fmt: str,
    *args: PyTree,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: PyTree,
) -> None:
    """Log what `debug.print` would print: at level INFO, to the logger "genesis_fn" of `logging`.

    Args:
        fmt: format string, not an f-string: that would show tracers.
        *args, **kwargs: pytrees that the format's fields name.
        ordered, partitioned: ignored, as JAX's arguments; calls are always in order.
        skip_format_check: whether fields and arguments need not fit each other.

    Raises:
        ValueError: a field has no argument, or an argument no field.
        TypeError: `fmt` is no string.

    >>> import logging
    >>> logging.getLogger("genesis_fn").setLevel(logging.INFO)
    >>> gf.jit(lambda x: gf.debug.log("x is {}", x))(jnp.array(2.0))
    """
    if not isinstance(fmt, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass values
        raise TypeError(f"debug.log takes a format string first, got {type(fmt).__name__}")
    if not skip_format_check:
        check_format(fmt, args, kwargs, "debug.log('x = {x}', x=x)")
    debug_callback(_Log(fmt), *args, **kwargs)
