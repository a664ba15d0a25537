"""Looking at what a function traces to, and steering when tracing happens."""

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
from genesis_fn.transforms.staging.stage import evaluate, stage

P = ParamSpec("P")
R = TypeVar("R")


class ClosedJaxpr:
    """A program with the values it captured (`consts`, its first inputs)."""

    __slots__ = ("jaxpr", "consts")

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> None:
        self.jaxpr, self.consts = jaxpr, list(consts)

    @property
    def eqns(self) -> Sequence[Eqn]:
        """The equations."""
        return self.jaxpr.eqns

    @property
    def in_avals(self) -> list[Aval]:
        """The avals of the arguments."""
        return self.jaxpr.in_avals[len(self.consts) :]

    @property
    def out_avals(self) -> list[Aval]:
        """The avals of the outputs."""
        return self.jaxpr.out_avals

    def __call__(self, *args: ArrayLike) -> list[Array]:
        return evaluate(self.jaxpr, *self.consts, *[as_array(x) for x in args])

    def __repr__(self) -> str:
        return repr(self.jaxpr)


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
) -> Any:
    """A function from arguments (arrays or ShapeDtypeStructs) to the program `fun` runs on them.

    With `return_shape`, to (program, pytree of output shapes and dtypes). `axis_env` names axes
    that collectives may refer to.
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
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> PyTree: ...
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> PyTree:
    """The pytree of ShapeDtypeStructs that `fun` returns, without computing anything.

    Arguments are arrays, numbers, or anything with `shape` and `dtype`.
    """
    traced = fun if isinstance(fun, JitFunction) else jit(fun)
    return traced.eval_shape(*args, **kwargs)


def typeof(x: ArrayLike | ShapeDtypeStruct) -> Aval:
    """Shape and dtype of an array, tracer, number or ShapeDtypeStruct."""
    return x.aval if isinstance(x, ShapeDtypeStruct) else as_array(x).aval


# ---- when operations run ----


class _EvalTrace(Trace):
    """Runs operations on known values at once, and leaves the others to the trace around."""

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
    """Within the block, operations on known values run while tracing instead of being recorded."""
    if ctx.trace is None:
        yield
        return
    with running(_EvalTrace(ctx.trace)):
        yield


@contextlib.contextmanager
def no_tracing() -> Generator[None]:
    """Within the block, a jitted function that would have to be traced raises GenesisError."""
    before, ctx.no_tracing = ctx.no_tracing, True
    try:
        yield
    finally:
        ctx.no_tracing = before


@contextlib.contextmanager
def checking_leaks() -> Generator[None]:
    """Raise UnexpectedTracerError at the end of the block for a tracer that is still referred to.

    A leak is always found where it is used; this finds one that nobody uses.
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
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """(function of the arguments and the values that `fun` closes over, those values).

    Only captured values that are being traced and carry derivatives are taken out. The function is
    the program for arguments of these shapes.
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
    """`with named_scope("attention"):` equations made inside carry the name; also a decorator."""

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
    """`fun`, run in a `named_scope` of its name."""

    @functools.wraps(fun)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with named_scope(name or name_of(fun)):
            return fun(*args, **kwargs)

    return call
