"""Primitives, tracers, and `bind`, which every operation goes through.

There is one thread-local *current trace*; `None` means eager. `bind` reads it and hands it the
operation. A tracer belongs to a trace by identity, so nested transforms cannot be confused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from genesis_fn.core import device as devices, dtypes, errors
from genesis_fn.core.array import Array, ArrayImpl, Deleted
from genesis_fn.core.aval import Aval, Signature, sig
from genesis_fn.core.backend.lowering import Lowering
from genesis_fn.core.configuration import config
from genesis_fn.core.diagnostics.source_info import line_of, where
from genesis_fn.core.sharding.mesh import Mesh, MeshAxis, current
from genesis_fn.core.sharding.placement import placement_of


class NamedAxis(NamedTuple):
    """A name that collectives may refer to. `axis` is what their `axis_name` is then: the name, for
    an axis of `vmap`; a `MeshAxis`, whose values are typed by it if `checked`."""

    name: Hashable
    size: int
    axis: Hashable
    checked: bool = True


class Context(threading.local):
    """What is current in this thread."""

    trace: Trace | None = None  # None: eager
    backward: bool = False  # equations made now belong to a backward pass
    axes: tuple[NamedAxis, ...] = ()  # those of enclosing vmaps and meshes, by name
    match: Callable[..., Any] | None = None  # within shard_map: see `bind`
    scope: str = ""  # `named_scope`
    safe_zero: bool = False  # derivatives treat 0 * inf as 0
    apart: bool = False  # in a jvp rule: see `separate_tangents`
    checked: bool = False  # `checkify` records this function, whose debug checks count
    no_tracing: bool = False  # a jitted function must not be traced
    watch: Any = None  # what `nan_trace` looks for
    line: Any = None  # the line of the equation that is being transformed, if one is

    def __reduce__(self) -> str:
        return "ctx"  # there is one in each process


ctx = Context()


def _user_line() -> str:
    return (ctx.line or where(depth=4)).describe()


errors.user_line = _user_line


class default_device_of:
    """`with default_device_of(xs):` new arrays go to the device of the first array among `xs` that
    is concrete or stands for one; `device` is that device, None if it is the default one."""

    __slots__ = ("device", "block")

    def __init__(self, xs: Sequence[Any]) -> None:
        self.device = self.block = None
        for x in xs:
            known = x.nearby() if isinstance(x, Tracer) else x
            if type(known) is ArrayImpl:
                device = known.sig.device.home
                self.device = None if device is devices.default_device() else device
                break

    def __enter__(self) -> None:
        if self.device is not None:
            self.block = devices.using_device(self.device)
            self.block.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self.block is not None:
            self.block.__exit__(*exc)


def trace_context_key() -> tuple[Any, ...]:
    """What decides what a function traces to, apart from its arguments: part of the key of every
    cache of staged programs. (The rest of the context is only reported, or raises at once.)"""
    settings = config.current().traced
    return ctx.axes, ctx.safe_zero, ctx.backward, ctx.apart, ctx.checked, current.mesh, settings


class Primitive:
    """An operation: its name and every rule that the transforms and backends know of it.

    Rules, in the order in which definitions give them (see `primitives/elementwise.py`):

    * `shape(*avals, **params)` -> Aval (a list of them if `multi`). A Python scalar operand reaches
      every rule as itself: it has the dtype of the array operands and no shape of its own.
    * `linearize(nonzero, *primals, **params)` -> (out, tangent): `tangent(*ts)` maps tangents (None
      is zero) to the output's tangent. What the rule computes outside `tangent` is saved for the
      backward pass; what `tangent` computes is recomputed there.
    * `jvp(primals, tangents, **params)` -> (out, tangent): forward mode, where doing both at once
      is better than `linearize` (loops, calls); tangents are None for zero.
    * `transpose(ct, *operands, **params)` -> a cotangent per operand or None; linear operands are
      `LinearOperand` markers. A `multi` primitive gets a list of cotangents, None for zero.
    * `batch(size, values, dims, **params)` -> (out, out dim); lists if `multi`.
    * `precision`: "low", "high" or "follow", for `amp`.
    * `lowering`: what a compiler may do with it (see `core/backend/lowering.py`); None for an
      operation that is a step of its own.
    * `updates`: the operand of which the result is a copy with a part changed; the result may take
      its memory.
    * `visits(*avals, **params)` -> (aval, [(axis, size), ...]): the components of an index, in
      operand 1, are where a window of these sizes starts in an array of this aval. Its parameter
      `mode` may be "check".
    * `program`: the parameter that holds what a call runs, once, on all of its operands.
    * `effect`: it has a side effect: it is kept, and in order, though nobody uses its results.
    * `collective`: it runs along an axis that a `vmap` or `shard_map` around names. `reduces`: its
      results are equal for all along the axis.
    * `weak`: which operands decide whether the result is weak (all of them); None: it never is.
    * `bounded`: its derivatives are bounded whatever the operands are.
    * `flops(ins, outs, **params)`: the floating-point operations of a call by its avals; None: one
      for each element of the results, none where elements only move. `transcendental`: they are
      exponentials, roots and the like.

    Rules of primitives that run programs (loops, branches, calls), each for one transform:

    * `plain`: it only runs `jaxpr` on its operands, so that the call may be inlined.
    * `takes(**params)`: the avals of its operands as its programs have them (None: any), which say
      what varies between devices in its results. Without it, all results vary as all operands do.
    * `depends(ins, **params)`: which outputs depend on the operands marked in `ins`.
    * `key_uses(**params)`: how it uses the random keys among its operands.
    * `guard(ins, active, **params)`: the operands, with `active` in front of those of each program.

    * `words(prim, values, avals, params)`: the operation on random keys, done on their words:
      values (those of keys as uint32[..., 2]) to outputs. Primitives without it refuse keys.

    PRIMITIVES lists it but for operations of a compiler's own programs (`listed=False`).

    A primitive that runs Python functions given as parameters has `inline(*operands, **params)`,
    which does so under the current trace, and `stage` (see `transforms/custom/recorded.py`).
    """

    __slots__ = (
        "name",
        "multi",
        "shape",
        "linearize",
        "jvp",
        "transpose",
        "batch",
        "precision",
        "lowering",
        "updates",
        "visits",
        "program",
        "effect",
        "collective",
        "reduces",
        "weak",
        "bounded",
        "flops",
        "transcendental",
        "plain",
        "takes",
        "depends",
        "key_uses",
        "guard",
        "inline",
        "stage",
        "words",
        "abstract_cache",
        "eager_cache",
    )

    def __init__(
        self,
        name: str,
        shape: Callable[..., Any],
        *,
        multi: bool = False,
        linearize: Callable[..., Any] | None = None,
        jvp: Callable[..., Any] | None = None,
        transpose: Callable[..., Any] | None = None,
        batch: Callable[..., Any] | None = None,
        precision: str = "follow",
        lowering: Lowering | None = None,
        updates: int | None = None,
        visits: Callable[..., Any] | None = None,
        program: str | None = None,
        effect: bool = False,
        collective: bool = False,
        reduces: bool = False,
        weak: slice | None = slice(None),
        bounded: bool = False,
        flops: Callable[..., Any] | None = None,
        transcendental: bool = False,
        listed: bool = True,
    ) -> None:
        if name in PRIMITIVES:
            raise ValueError(f"primitive {name!r} is defined twice")
        if listed:
            PRIMITIVES[name] = self
        self.name, self.shape, self.multi = name, shape, multi
        self.linearize, self.jvp = linearize, jvp
        self.transpose, self.batch = transpose, batch
        self.precision, self.lowering, self.updates = precision, lowering, updates
        self.visits, self.program = visits, program
        self.effect, self.collective, self.reduces = effect, collective, reduces
        self.weak = None if multi else weak
        self.bounded, self.flops, self.transcendental = bounded, flops, transcendental
        self.plain = False
        self.takes: Callable[..., Any] | None = None
        self.depends: Callable[..., Any] | None = None
        self.key_uses: Callable[..., Any] | None = None
        self.guard: Callable[..., Any] | None = None
        self.inline: Callable[..., Any] | None = None
        self.stage: Callable[..., Any] | None = None
        self.words: Callable[..., Any] | None = None
        self.abstract_cache: dict[Any, Any] = {}
        self.eager_cache: dict[Any, Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return _of_name, (self.name,)

    def abstract(self, avals: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """The output aval (or avals), by the shape rule, remembered per (avals, params)."""
        # The same parameters in another order are another entry: sorting would cost every call.
        key = (avals, tuple(params.items())) if params else avals
        try:
            return self.abstract_cache[key]
        except KeyError:
            pass
        if self.words is None:
            self._refuse_keys(avals, params)
        result = self._typed(avals, params)
        if len(self.abstract_cache) >= 8192:  # shapes that vary must not fill the memory
            self.abstract_cache.clear()
        self.abstract_cache[key] = result
        return result

    def _typed(self, avals: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """The output avals: by the shape rule, varying over the axes that any operand varies over.
        A collective along an axis of a mesh gives what varies along it, or does not any more."""
        varying = frozenset().union(*[a.varying for a in avals if type(a) is Aval])
        axis = params.get("axis_name") if self.collective else None
        along = type(axis) is MeshAxis
        if self.takes is not None or not (varying or along):
            return self.shape(*avals, **params)
        plain = [a.update(varying=frozenset()) if type(a) is Aval else a for a in avals]
        outs = self.shape(*plain, **params)
        if along:
            varying = varying - {axis.name} if self.reduces else varying | {axis.name}
        if self.multi:
            return [a.update(varying=varying) for a in outs]
        return outs.update(varying=varying)

    def _refuse_keys(self, avals: tuple[Any, ...], params: dict[str, Any]) -> None:
        keys = any([type(a) is Aval and dtypes.is_key(a.dtype) for a in avals])
        if keys or any([dtypes.is_key(v) for v in params.values()]):
            raise errors.DTypeError(
                f"{self.name} is not for random keys, got "
                f"{', '.join(map(str, [*avals, *filter(dtypes.is_key, params.values())]))}"
                f"\n  at {(ctx.line or where(depth=5)).describe()}\n  {dtypes.KEY_REMEDY}"
            )

    def eager(self, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Run on concrete arrays, through the backend of the device they are on."""
        # Signatures are interned, one object for each aval and device: hashing them is by identity.
        # A scalar counts by its type, as a prepared function takes its value at the call.
        if params or not args:
            key: Any = [a.sig if type(a) is ArrayImpl else type(a) for a in args]
            key.extend(params.items())
            if not args:
                key.append(devices.default_device())
                key.append(repr(params.get("value")))  # zeros of two signs are equal
            elif "fill_value" in params:
                key.append(repr(params["fill_value"]))
            key = tuple(key)
        else:
            key = tuple([a.sig if type(a) is ArrayImpl else type(a) for a in args])
        run = self.eager_cache.get(key)
        if run is None:
            run = self._prepare(args, params)
            if len(self.eager_cache) >= 4096:
                self.eager_cache.clear()
            self.eager_cache[key] = run
        return run(*args)

    def _prepare(self, args: tuple[Any, ...], params: dict[str, Any]) -> Callable[..., Any]:
        sigs = [a.sig for a in args if type(a) is ArrayImpl]
        for a in args:
            if type(a) is not ArrayImpl and type(a) not in SCALARS:
                raise TypeError(
                    f"{self.name} takes arrays and Python numbers, got {a!r} of type "
                    f"{type(a).__name__}\n  at {where().describe()}"
                )
        avals = tuple([a.sig.aval if type(a) is ArrayImpl else a for a in args])
        mesh = mesh_in(params) if mesh_in and params else None
        if mesh is not None or any([s.device.kind == "mesh" for s in sigs]):
            return self._on_mesh(mesh, sigs, args, avals, params)
        device = sigs[0].device if sigs else devices.default_device()
        for s in sigs:
            if s.device is not device:
                raise errors.DeviceError(
                    f"{self.name}: operands on two devices, "
                    + ", ".join(str(s) for s in sigs)
                    + f"\n  at {where().describe()}\n  move one with device_put(x, {device})"
                )
        out = self.abstract(avals, params)
        on_words = by_words(self, avals, params) if self.words is not None and by_words else None
        if on_words is not None:
            return on_words
        run = device.backend.eager(self, avals, params, device)
        if not gives_weak(self, args, out):
            return run
        return lambda *args: with_weak(run(*args), True)

    def _on_mesh(
        self,
        mesh: Mesh | None,
        sigs: Sequence[Signature],
        args: Sequence[Any],
        avals: tuple[Any, ...],
        params: dict[str, Any],
    ) -> Callable[..., Any]:
        """What runs it on arrays that are laid out over a mesh, or that it lays out."""
        placement: Any = placement_of([s.device for s in sigs], mesh, self.name)
        out = self.abstract(avals, params)
        run = placement.backend.eager(self, avals, params, placement)
        if not gives_weak(self, args, out):
            return run
        return lambda *args: with_weak(run(*args), True)


# (parameters of an operation) -> the mesh that they refer to, None where they refer to none.
mesh_in: Callable[[dict[str, Any]], Mesh | None] | None = None
# (primitive, avals, params) -> what runs it on arrays where keys are involved, None where none are.
by_words: Callable[..., Any] | None = None

PRIMITIVES: dict[str, Primitive] = {}


def no_flops(ins: Sequence[Aval], outs: Sequence[Aval], **params: Any) -> float:
    """The `flops` of an operation that only moves elements, or computes none with floats."""
    return 0


def _of_name(name: str) -> Primitive:
    """The primitive called `name`: how pickles refer to one."""
    return PRIMITIVES[name]


SCALARS = frozenset((bool, int, float, complex))


class _EagerState:
    """Whether nothing stands in the place of `Primitive.eager`."""

    plain = True


_state = _EagerState()


def run_eagerly_by(run: Callable[..., Any]) -> None:
    """Put a function of (primitive, args, params) in the place of `Primitive.eager`, for good."""
    _state.plain = False
    Primitive.eager = run  # type: ignore[method-assign]


def bind(prim: Primitive, *args: Any, **params: Any) -> Any:
    """Apply `prim` to arrays, tracers and Python scalars under the current trace.

    Within `shard_map` the operands are made to vary over the same axes first.
    """
    trace = ctx.trace
    if trace is not None:
        if ctx.match is not None:
            given = ctx.match(prim, args, params)
            if given is None:  # a cast of a value that varies already
                return args[0]
            args = given
        return trace.process(prim, args, params)
    try:
        # `eager`, inlined for operations without parameters: most of what is called without jit.
        if not params and args and _state.plain:
            key: Any
            if len(args) == 2:  # half the cost of what follows
                x, y = args
                key = (
                    x.sig if type(x) is ArrayImpl else type(x),
                    y.sig if type(y) is ArrayImpl else type(y),
                )
            else:
                key = tuple([a.sig if type(a) is ArrayImpl else type(a) for a in args])
            run = prim.eager_cache.get(key)
            if run is not None:
                return run(*args)
        return prim.eager(args, params)
    except Exception as error:
        raise explain(error, args) from None


def explain(error: Exception, args: Sequence[Any]) -> Exception:
    """`error` made useful: a leaked tracer or a deleted array among `args`, or the user's line."""
    for a in args:
        if isinstance(a, Tracer):
            return a.owner.leaked(a)
        if type(a) is ArrayImpl and isinstance(a.data, Deleted):
            return a.data.error()
    return located(error)


def located(error: Exception) -> Exception:
    """`error` with the user's line added to a shape, dtype or index error that lacks it."""
    if isinstance(error, (errors.ShapeError, errors.DTypeError, errors.IndexOutOfRange)):
        return errors.at_line(error, line_of(error) or ctx.line or where(depth=4))
    return error


class CallSite:
    """A call of a transform, as messages tell of the values in it: `transform` was called at `line`
    with `inputs` for `function`; `labels()` names the inputs."""

    __slots__ = ("transform", "function", "line", "inputs", "labels")

    def __init__(
        self,
        transform: str,
        function: str,
        inputs: Sequence[Any],
        labels: Callable[[], Sequence[str]],
    ) -> None:
        self.transform, self.function, self.inputs = transform, function, inputs
        self.labels, self.line = labels, where()

    def origin(self, value: object) -> str:
        """Where a value came from: an input, or the function."""
        label = self.label(value)
        source = f"argument {label} of {self.function}" if label else f"a line of {self.function}"
        return f"{source}, {self.transform} called at {self.line.describe()}"

    def label(self, value: object) -> str:
        """What messages call an input; "" for other values."""
        for x, label in zip(self.inputs, self.labels()):
            if x is value:
                return label
        return ""


class Trace:
    """An interpreter of primitives: what `bind` does while a transform is running. `called` is the
    user's call behind it, where one is known. `at_once`: operations on arrays alone run when they
    are called, as they do without a trace."""

    __slots__ = ("alive", "name", "called", "at_once")

    def __init__(
        self, name: str = "", called: CallSite | None = None, at_once: bool = False
    ) -> None:
        self.alive, self.name, self.called, self.at_once = True, name, called, at_once

    def process(self, prim: Primitive, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Apply a primitive to tracers of this trace, and constants."""
        raise TypeError(f"{type(self).__name__} does not interpret primitives")

    def ended(self) -> bool:
        """Whether no function runs under this trace any more, so that its tracers are leaked."""
        return not self.alive

    def leaked(self, tracer: Tracer) -> Exception:
        """The error for a tracer of this trace met where the trace is not running."""
        name, origin = self.name or "a function", tracer.origin()
        if self.called is not None:
            name = f"{self.called.function} under {self.called.transform}"
        return errors.UnexpectedTracerError(
            f"leaked tracer: a value of type {tracer.aval} made while tracing "
            f"{name} was used after that trace ended\n"
            f"  made at {origin}\n  used at {where(depth=4).describe()}\n"
            "  return the value from the traced function instead of storing it outside"
        )


def shown(x: object) -> str:
    """An operand in a message: its type, after its name where it is an argument being traced."""
    label = x.label() if isinstance(x, Tracer) else ""
    return f"{label} {getattr(x, 'aval', x)}".lstrip()


class Tracer(Array):
    """A stand-in for an array while a transform runs. `weak` is as an Array's. What a tracer keeps
    has no name of an array's method: it would hide it (`x.trace()`, `x.var()`)."""

    __slots__ = ("owner", "aval", "weak", "__weakref__")

    owner: Trace
    aval: Aval
    weak: bool

    def label(self) -> str:
        """The name of the traced function's argument that this value is; "" for others."""
        for name in ("primal", "value"):
            inner = getattr(self, name, None)
            if isinstance(inner, Tracer):
                return inner.label()
            if inner is not None and self.owner.called is not None:
                return self.owner.called.label(inner)
        return ""

    def __repr__(self) -> str:
        return f"Traced<{self.aval}> in {self.owner.name or type(self.owner).__name__}"

    def origin(self) -> str:
        """The line that made this value, or what is known instead."""
        return "an argument of the traced function"

    def concrete(self) -> ArrayImpl | None:
        """The Array behind this tracer where one is known (eager derivatives), else None."""
        return None

    def carrier(self) -> Tracer | None:
        """The tracer, this or one inside, whose tangent a plain copy of the value would lose."""
        return None

    def nearby(self) -> ArrayImpl | None:
        """An Array on the device where this value is, if one is known, else None."""
        return self.concrete()

    @property
    def weak_type(self) -> bool:
        """Whether the value comes of Python scalars only: JAX's name of `weak`."""
        return self.weak

    def with_weak_type(self, weak: bool) -> Tracer:
        """This value, weak or not."""
        raise TypeError(f"{type(self).__name__} cannot be marked weak")

    def __hash__(self) -> int:
        raise TypeError("traced arrays are not hashable; key by id() or by a name")


def gives_weak(prim: Primitive, args: Sequence[Any], out: Any) -> bool:
    """Whether `prim` on `args` gives a weak result: all that decides its dtype came of scalars."""
    if prim.weak is None or not args:
        return False
    for a in args[prim.weak]:
        if type(a) not in SCALARS and not a.weak:
            return False
    return out.dtype in dtypes.WEAK


def with_weak(x: Any, weak: bool) -> Any:
    """An Array or tracer, marked weak (if its dtype may be) or strong."""
    if x.weak is weak or (weak and x.aval.dtype not in dtypes.WEAK):
        return x
    if type(x) is ArrayImpl:
        s = x.sig
        return ArrayImpl(x.data, sig(s.aval, s.device, s.dense, weak))
    return x.with_weak_type(weak)


def with_weak_types(xs: Sequence[Any], weak: Sequence[bool]) -> list[Any]:
    """Arrays and tracers, each marked weak or strong."""
    return [x if x.weak is w else with_weak(x, w) for x, w in zip(xs, weak, strict=True)]


def typeof(x: Array) -> Aval:
    """The aval of an array or tracer."""
    return x.aval


class LinearOperand:
    """Marks, in a transpose rule, an operand whose cotangent is asked for."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Linear({self.aval})"


def is_linear(x: object) -> bool:
    """Whether `x` is the marker of a linear operand."""
    return type(x) is LinearOperand


class running:
    """`with running(trace):` makes it the current trace (a class: contextlib costs four times
    more)."""

    __slots__ = ("trace", "before")

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace

    def __enter__(self) -> Trace | None:
        self.before = ctx.trace
        ctx.trace = self.trace
        return self.trace

    def __exit__(self, *exc: Any) -> None:
        ctx.trace = self.before


def install_array_methods(table: dict[str, Any], *, tracer_only: bool = False) -> None:
    """Give arrays and tracers operators and methods; called by the floor that defines them."""
    target = Tracer if tracer_only else Array
    for name, method in table.items():
        setattr(target, name, method)
