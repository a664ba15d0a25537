"""Inspect the program of a function (make_jaxpr, eval_shape), and control tracing."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from genesis_fn.core import dtypes, errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.jaxpr import Eqn, Jaxpr
from genesis_fn.core.primitive import Primitive, Trace, Tracer, bind, ctx, running
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.transforms.batching.batch import named_axis
from genesis_fn.transforms.jitting import JitFunction, jit
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, name_of
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
from genesis_fn.transforms.staging.stage_trace import evaluate, stage

P = ParamSpec("P")
R = TypeVar("R")


class ClosedJaxpr:
    """A program with the values that it captured (`consts`, its first inputs); callable."""

    __slots__ = ("jaxpr", "consts")

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> None:
        self.jaxpr, self.consts = jaxpr, list(consts)

    @property
    def eqns(self) -> Sequence[Eqn]:
        """The equations."""
        return self.jaxpr.eqns

    @property
    def in_avals(self) -> list[Aval]:
        """The avals of the arguments, without the captured values."""
        return self.jaxpr.in_avals[len(self.consts) :]

    @property
    def out_avals(self) -> list[Aval]:
        """The avals of the outputs."""
        return self.jaxpr.out_avals

    def __call__(self, *args: ArrayLike) -> list[Array]:
        return evaluate(self.jaxpr, *self.consts, *[as_array(x) for x in args])

    def __repr__(self) -> str:
        return repr(self.jaxpr)


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[ArrayLike], *args: ArrayLike) -> list[Array]:
    """Run a program, one operation after the other, under whatever transform is running.

    Args:
        jaxpr: program, `make_jaxpr(f)(x).jaxpr`.
        consts: the values that it captured, its first inputs: `make_jaxpr(f)(x).consts`.
        *args: its other inputs.

    Returns:
        Its outputs.

    Raises:
        ShapeError: there are more or fewer inputs than the program has, or one has another shape or
            dtype.

    >>> closed = gf.make_jaxpr(lambda x: jnp.sin(x) * 2.0)(0.0)
    >>> gf.core.eval_jaxpr(closed.jaxpr, closed.consts, 0.0)
    [Array(0., dtype=float32)]
    """
    xs = [as_array(x) for x in (*consts, *args)]
    if [x.aval for x in xs] != jaxpr.in_avals:
        raise errors.ShapeError(
            f"eval_jaxpr: the program {jaxpr.name} takes {jaxpr.in_avals}, got "
            f"{[x.aval for x in xs]}"
        )
    return evaluate(jaxpr, *xs)


@overload
def make_jaxpr(
    fun: Callable[P, Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: Literal[False] = False,
    *,
    static_argnames: str | Sequence[str] = (),
) -> Callable[P, ClosedJaxpr]: ...
@overload
def make_jaxpr(
    fun: Callable[P, Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    *,
    return_shape: Literal[True],
    static_argnames: str | Sequence[str] = (),
) -> Callable[P, tuple[ClosedJaxpr, PyTree]]: ...
def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: bool = False,
    *,
    static_argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """Make a function that returns the program that `fun` runs on its arguments, without running
    it.

    Args:
        fun: function of pytrees of arrays.
        static_argnums: positions of arguments that are constants of the program.
        axis_env: (name, size) of axes that collectives in `fun` may refer to.
        return_shape: whether to return shapes and dtypes of the output too.
        static_argnames: names of arguments that are constants of the program.

    Returns:
        A function with the parameters of `fun` (ShapeDtypeStructs may stand for arrays) that
        returns a `ClosedJaxpr`, or (ClosedJaxpr, pytree of ShapeDtypeStructs).

    >>> closed = gf.make_jaxpr(lambda x: jnp.sin(x) * 2.0)(jnp.ones(3))
    >>> [str(e.prim.name) for e in closed.eqns]
    ['sin', 'mul']
    """
    traced = jit(fun, static_argnums=static_argnums, static_argnames=static_argnames)

    @functools.wraps(fun)
    def jaxpr_of(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as axes:
            for name, size in axis_env or ():
                axes.enter_context(named_axis(name, size))
            result = traced.trace(*args, **kwargs)
        closed = ClosedJaxpr(result.jaxpr, result.program.captured)
        return (closed, result.out_info) if return_shape else closed

    return jaxpr_of


# Arguments may be shapes in place of arrays, which the signature of `fun` does not say; the first
# overload is there for editors, which show its parameters.
@overload
def eval_shape(fun: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> PyTree: ...
@overload
def eval_shape(fun: Callable[..., Any], *args: PyTree, **kwargs: PyTree) -> PyTree: ...
def eval_shape(fun: Callable[..., Any], *args: PyTree, **kwargs: PyTree) -> PyTree:
    """The shapes and dtypes that a function would return, without computing anything.

    Args:
        fun: function of pytrees of arrays.
        args, kwargs: its arguments: arrays, numbers, or anything with `shape` and `dtype`.

    Returns:
        The output with a ShapeDtypeStruct for each array.

    Raises:
        TreeError: `fun` returns something that is no array or number.

    >>> gf.eval_shape(jnp.dot, gf.ShapeDtypeStruct((2, 3), "float32"), jnp.ones((3, 4)))
    ShapeDtypeStruct(shape=(2, 4), dtype=float32)
    """
    traced = fun if isinstance(fun, JitFunction) else jit(fun)
    return traced.eval_shape(*args, **kwargs)


def typeof(x: ArrayLike | ShapeDtypeStruct) -> Aval:
    """The shape and dtype of a value, inside of transformed functions too.

    Args:
        x: array, tracer, number, ndarray or ShapeDtypeStruct.

    Returns:
        Its `Aval`, with `shape` and `dtype`.

    >>> str(gf.typeof(jnp.zeros((2, 3))))
    'f32[2,3]'
    """
    return x.aval if isinstance(x, ShapeDtypeStruct) else as_array(x).aval


# ---- when operations run ----


class _EvalTrace(Trace):
    """Runs operations on known values at once, and passes others to the enclosing trace."""

    __slots__ = ("parent",)

    def __init__(self, parent: Trace) -> None:
        super().__init__(parent.name)
        self.parent = parent

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        known = not any(isinstance(a, Tracer) for a in args)
        if known and prim.inline is not None:
            return prim.inline(*args, **params)
        with running(None if known else self.parent):
            return bind(prim, *args, **params)


@contextlib.contextmanager
def ensure_compile_time_eval() -> Generator[None]:
    """Run operations on known values at once within the block, instead of recording them.

    Operations on traced values are recorded as usual.

    Yields:
        None.

    >>> @gf.jit
    ... def f(x):
    ...     with gf.ensure_compile_time_eval():
    ...         n = int(jnp.arange(4).sum())  # a Python number, while tracing
    ...     return x * n
    >>> f(2.0)
    Array(12., dtype=float32)
    """
    if ctx.trace is None:
        yield
        return
    with running(_EvalTrace(ctx.trace)):
        yield


@contextlib.contextmanager
def no_tracing() -> Generator[None]:
    """Refuse to trace within the block: to be sure that a loop compiles nothing.

    Yields:
        None.

    Raises:
        GenesisError: a jitted function is called that would have to be traced.

    >>> step = gf.jit(lambda x: x + 1)
    >>> x = step(jnp.zeros(2))
    >>> with gf.no_tracing():
    ...     step(x)
    Array([2., 2.], dtype=float32)
    """
    before, ctx.no_tracing = ctx.no_tracing, True
    try:
        yield
    finally:
        ctx.no_tracing = before


@contextlib.contextmanager
def checking_leaks() -> Generator[None]:
    """Check at the end of the block that no tracer outlived its trace.

    A leaked tracer always raises where it is used; this finds those that nobody uses. It looks at
    every object of the process, which is slow: for tests.

    Yields:
        None.

    Raises:
        UnexpectedTracerError: a tracer of a trace within the block is still referred to.

    >>> with gf.checking_leaks():
    ...     gf.jit(jnp.sin)(jnp.zeros(2))
    Array([0., 0.], dtype=float32)
    """
    known = {id(t) for t in _dead_tracers()}
    yield
    gc.collect()
    leaked = [t for t in _dead_tracers() if id(t) not in known]
    if leaked:
        t = leaked[0]
        raise errors.UnexpectedTracerError(
            f"leaked tracer: a value of type {t.aval} made while tracing "
            f"{t.owner.name or 'a function'} outlived that trace ({len(leaked)} in all)\n"
            f"  made at {t.origin()}\n"
            "  return the value from the traced function instead of storing it outside"
        )


def _dead_tracers() -> list[Tracer]:
    # By type: isinstance asks an object for its class, which some answer with a warning.
    return [t for t in gc.get_objects() if issubclass(type(t), Tracer) and not t.owner.alive]


# ---- closures ----


def closure_convert(
    fun: Callable[..., R], *example_args: PyTree
) -> tuple[Callable[..., R], list[Array]]:
    """Make the traced values that a function closes over arguments of it.

    For a rule of `custom_vjp` that is given functions as arguments: their captured values must have
    gradients, so that they must be arguments.

    Args:
        fun: function of pytrees of arrays.
        example_args: arguments with the shapes and dtypes of later calls.

    Returns:
        (converted, consts): `converted(*args, *consts)` computes `fun(*args)`; `consts` are the
        captured values that are being traced and are floating. Others stay captured.

    Raises:
        TreeError: `converted` is called with arguments of another structure.

    >>> def f(w):
    ...     converted, consts = gf.closure_convert(lambda x: w * x, 1.0)
    ...     return converted(3.0, *consts)
    >>> gf.grad(f)(2.0)
    Array(3., dtype=float32)
    """
    leaves, in_tree, weak = flatten_arrays(example_args, f"an argument of {name_of(fun)}: ")
    flat = FlatFunction(fun, in_tree)
    jaxpr, captured = stage(flat, [x.aval for x in leaves], name=name_of(fun), weak=weak)
    hoisted = [isinstance(x, Tracer) and dtypes.is_inexact(x.aval.dtype) for x in captured]
    consts = [x for x, h in zip(captured, hoisted) if h]

    def converted(*args: Any) -> Any:
        count = len(args) - len(consts)
        args, values = args[:count], iter(args[count:])
        xs, found, _ = flatten_arrays(args, f"an argument of {name_of(fun)}: ")
        if found != in_tree:
            raise errors.TreeError(
                f"{name_of(fun)} was converted for arguments of structure {in_tree}, got {found}"
            )
        outs = evaluate(jaxpr, *[next(values) if h else x for x, h in zip(captured, hoisted)], *xs)
        return flat.called(outs)

    return converted, consts


# ---- names ----


class named_scope(contextlib.ContextDecorator):
    """Name the operations of a block, for programs, profiles and error messages; also a decorator.

    Args:
        name: the name; names of nested scopes are joined by `/`.

    Raises:
        TypeError: `name` is no string.

    >>> with gf.named_scope("attention"):
    ...     y = jnp.sin(jnp.zeros(2))
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # @named_scope
            raise TypeError(f"named_scope takes a string, got {name!r}")
        self.name = name
        self.before: list[str] = []

    def __enter__(self) -> named_scope:
        self.before.append(ctx.scope)
        ctx.scope = f"{ctx.scope}/{self.name}" if ctx.scope else self.name
        return self

    def __exit__(self, *exc: Any) -> None:
        ctx.scope = self.before.pop()


def named_call(fun: Callable[P, R], *, name: str | None = None) -> Callable[P, R]:
    """Run a function in a `named_scope`.

    Args:
        fun: any function.
        name: the scope's name; None: the function's own.

    Returns:
        A function with the signature of `fun`.

    >>> gf.named_call(jnp.square, name="power")(3.0)
    Array(9., dtype=float32)
    """

    @functools.wraps(fun)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with named_scope(name or name_of(fun)):
            return fun(*args, **kwargs)

    return call
