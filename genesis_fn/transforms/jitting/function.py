"""jit: trace a function once per signature, compile it, and run the executable from then on.

Arrays and numbers are traced; leaves of other types are static by themselves, by type and content.
What a function reads besides its arguments (globals, closures) keeps the value that it had while
tracing. Attributes of the object of a bound method, of the arguments of a partial and of static
objects are compared in every call (`guards.py`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from genesis_fn.core import device as devices, errors, tree
from genesis_fn.core.array import ArrayImpl, Deleted, from_numpy, like, stored
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.configuration import config
from genesis_fn.core.configuration.gc_pause import no_collection
from genesis_fn.core.diagnostics.source_info import warn, where
from genesis_fn.core.diagnostics.traceback import trimmed
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import Tracer, ctx, default_device_of
from genesis_fn.core.sharding.layout import NamedSharding, SingleDeviceSharding
from genesis_fn.core.sharding.mesh import current
from genesis_fn.core.sharding.placement import placement_of
from genesis_fn.core.static import Fingerprint, Frozen, fingerprint_of
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.transforms.jitting.aot import Traced
from genesis_fn.transforms.jitting.argspec import ArgSpec, BoundArguments, ProgramKey
from genesis_fn.transforms.jitting.call_codegen import MISS, bind_captured, fast_call
from genesis_fn.transforms.jitting.captures import Captured, captures_of
from genesis_fn.transforms.jitting.guards import guards_of, owners
from genesis_fn.transforms.jitting.jit_cache import (
    FAST,
    LARGE,
    Cache,
    Program,
    forget,
    forget_all,
    share,
    shared,
)
from genesis_fn.transforms.jitting.layouts import laid_out, results_laid_out
from genesis_fn.transforms.jitting.retrace import RecompilationWarning, difference, show_key
from genesis_fn.transforms.keys.key_uses import of_arguments, user_call
from genesis_fn.transforms.sharding.meshes import mesh_of
from genesis_fn.transforms.staging.api_util import FlatFunction
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.copies import Copied
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
from genesis_fn.transforms.staging.stage_trace import stage

log = logging.getLogger("genesis_fn")

P = ParamSpec("P")
R = TypeVar("R")
_Owner = TypeVar("_Owner")
_Rest = ParamSpec("_Rest")

_live: weakref.WeakSet[JitFunction[..., Any]] = weakref.WeakSet()


class JitFunction(Copied, Generic[P, R]):
    """The callable that `jit` returns: it takes and returns what the function does.

    A bound method of it passes its object as the first argument. `trace` (or `lower`) stops before
    compiling; `traces`, `captures` and `cache_size()` tell what the function was compiled for.
    """

    __wrapped__: Callable[P, R]

    def __init__(self, fun: Callable[P, R], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fun)
        self.fun, self.options = fun, options
        self.spec = ArgSpec(fun, options)
        self.cache = Cache()
        _live.add(self)

    def _parts(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return JitFunction, (self.fun, self.options)

    def __repr__(self) -> str:
        return f"<jit of {self.spec.name}: {len(self.cache.programs)} programs>"

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(
        self: JitFunction[Concatenate[_Owner, _Rest], R],
        instance: _Owner,
        owner: type[Any] | None = None,
    ) -> Callable[_Rest, R]: ...
    # Of a static method: Python does not ask, checkers do. The instance is no first argument.
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self: ...
    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        # A jitted method: `self` is an argument like any other.
        return self if instance is None else functools.partial(self, instance)

    # ---- the call ----

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # The fast path, for calls like an earlier one: generated functions are tried, newest first,
        # and each returns MISS for arguments that it is not for. A trace, watching for NaNs or a
        # named axis means another program, which only the full path looks up.
        try:
            if self.options["in_shardings"] is not None:
                args = laid_out(args, kwargs, self.options["in_shardings"], self.spec)  # pyright: ignore[reportAssignmentType]
            settings = config.current()
            if ctx.trace is None and ctx.watch is None and not ctx.axes:
                mesh = current.mesh
                for known, over, call in self.cache.fast:
                    # They are immutable: identity is enough.
                    if known is settings and over is mesh:
                        result = call(args, kwargs)
                        if result is not MISS:
                            return result
            return self._full(args, kwargs, settings)
        except Exception as error:
            # Without `from`: the user's own cause and context stay as they are.
            raise trimmed(error)  # noqa: B904

    def _full(self, args: tuple[Any, ...], kwargs: dict[str, Any], settings: config.Config) -> Any:
        """The full path, for any call. It looks up what the call needs; what is missing is made by
        three passes: `_trace` (the program), `compile_program` (the executable), `_generate` (the
        function for calls like this one)."""
        if settings.disable_jit:
            with self._numerics(settings):
                return self.fun(*args, **kwargs)
        bound = self.spec.bind(args, kwargs)
        if ctx.trace is not None:  # under a transform: the call becomes one operation of its trace
            program = self._program(bound)
            outs = user_call(jit_p, *program.captured, *bound.arrays(), jaxpr=program.jaxpr)
            return program.output(outs)
        for x in bound.leaves:
            if isinstance(x, Tracer):
                raise x.owner.leaked(x)
            if type(x) is ArrayImpl and isinstance(x.data, Deleted):
                raise x.data.error()
        # One thread makes what is missing, others wait for it; the program runs without the lock.
        with self.cache.lock:
            program = self._program(bound)
            device, donated = self._device(bound, program), self.spec.donations(bound)
            call = self._generate(bound, program, device, donated)
            if not (_replays() or ctx.axes):  # as the fast path, which does not look at them
                self.cache.fast = [(settings, current.mesh, call), *self.cache.fast][:FAST]
        return self._run(call, bound, program, device, donated)

    def _run(
        self,
        call: Callable[..., Any],
        bound: BoundArguments,
        program: Program,
        device: devices.Device,
        donated: tuple[int, ...],
    ) -> Any:
        """Run a generated call; with `debug_nans` and its like, check the values it returns."""
        replay = _replays()
        inputs = [*program.captured, *bound.arrays(device.home)] if replay else []
        if donated:  # a replay needs them after the call has overwritten them
            inputs = list(map(_copy, inputs))
        result = call(*bound.written)
        if result is MISS:  # a static value that does not equal itself: compare nothing
            call = self._generate(bound, program, device, donated, guarded=False)
            result = call(*bound.written)
        if replay:
            from genesis_fn.transforms.debugging.nan_tracing import check_outputs

            check_outputs(program.jaxpr, inputs, tree.leaves(result))
        return result

    def run_program(
        self,
        bound: BoundArguments,
        program: Program,
        device: devices.Device,
        donated: tuple[int, ...],
    ) -> Any:
        """Run a program that need not be looked up, as a `Compiled` does."""
        call = self._generate(bound, program, device, donated)
        return self._run(call, bound, program, device, donated)

    def _program(self, bound: BoundArguments) -> Program:
        # Arrays created while tracing go to the device of the arguments.
        near = default_device_of(bound.leaves)
        key = bound.key(near.device)
        with self.cache.lock, near:
            for program in self.cache.variants.get(key, ()):
                if all([g.holds() for g in program.guards]):
                    self.cache.variants.move_to_end(key)
                    return program
            return self._trace(key, bound)

    def _device(self, bound: BoundArguments, program: Program) -> devices.Device:
        """The device that a call runs on: that of its arrays, or else of the captured ones; on a
        mesh, the places of all."""
        mesh = program.mesh
        given = [*program.captured, *(x for x in bound.leaves if type(x) is not Frozen)]
        places = [_place(x) for x in given]
        if mesh is not None or any([type(d) is NamedSharding for d in places]):
            return cast(devices.Device, placement_of(places, mesh, self.spec.name))
        positions = {d: i for i, x in enumerate(bound.leaves) if (d := _place(x)) is not None}
        if len(positions) > 1:
            listed = ", ".join(f"{program.paths[i]} on {d}" for d, i in list(positions.items())[:4])
            raise errors.DeviceError(
                f"{self.spec.name}: arguments on several devices: {listed}\n"
                f"  at {where().describe()}\n  move them with device_put(x, device)"
            )
        if not positions:
            # Inside of another function some are its tracers, which are on no device yet.
            known = [x for x in program.captured if not isinstance(x, Tracer)]
            return known[0].device if known else devices.default_device()
        return next(iter(positions))

    def _numerics(self, settings: config.Config) -> config.computing:
        """The block in which the function runs: that of the settings but for what its options say.
        Equations keep it, so that nothing else need know of the options."""
        numerics, precise = settings.numerics, self.options["precise"]
        if precise is not None:
            numerics = config.numerics_of(numerics.matmul_precision, precise)
        return config.computing(numerics)

    # ---- the passes ----

    def _trace(self, key: ProgramKey, bound: BoundArguments) -> Program:
        """The program for a new key: that of another function with the same fingerprint, or else a
        trace of this one, which is kept for others with its fingerprint."""
        known = self._fingerprint(bound)
        program = None if known is None else shared(known, key)
        if program is None:
            program = self._staged(key, bound)
            # A program that captured a tracer is valid within the trace around it only.
            if any(isinstance(x, Tracer) for x in program.captured):
                return program
            self._explain_retrace(program)
            # A trace that changed what the function reads (a counter, say) would have to change it
            # for other functions too: then the fingerprint differs now, and nothing is shared.
            again = None if known is None else self._fingerprint(bound)
            if known is not None and again is not None and again.key == known.key:
                share(again, program)
        self.cache.put(program)
        return program

    def _fingerprint(self, bound: BoundArguments) -> Fingerprint | None:
        """The fingerprint of the function with these static values; None where its programs must
        not be shared. Computed anew whenever it would be traced: what it reads may have changed."""
        # The object of a method and the arguments of a partial may change without a new function.
        owned = any(True for _ in owners(self.fun)) or self.options["out_shardings"] is not None
        if owned or not all(v.fixed and not v.weak for v in bound.frozen()):
            return None
        known = fingerprint_of(self.fun)
        if known is None or known.keeps:
            return None
        rest = [v for k, v in self.options.items() if "_arg" not in k and "shard" not in k]
        key = known.key, self.spec.static, self.spec.donated, *rest
        return Fingerprint(key, known.lent, known.keeps)

    def _staged(self, key: ProgramKey, bound: BoundArguments) -> Program:
        spec = self.spec
        if ctx.no_tracing:
            raise errors.TracingError(
                f"{spec.name} would have to be traced within no_tracing()\n"
                f"  called at {where().describe()}"
            )
        paths, frozen = spec.paths(bound.values), bound.frozen()
        objects = [x for v in frozen for x in v.objects]

        def f(args: tuple[Any, ...], kwargs: dict[Any, Any]) -> Any:
            return self.fun(*args, **kwargs)

        flat = FlatFunction(f, bound.treedef)
        flat.f.__name__ = spec.name

        def body(*tracers: Any) -> list[Any]:
            remaining = iter(tracers)
            outs = flat(*[x.value if type(x) is Frozen else next(remaining) for x in bound.leaves])
            wanted = self.options["out_shardings"]
            return outs if wanted is None else results_laid_out(outs, flat.out_tree, wanted)

        labels = [p for p, x in zip(paths, bound.leaves) if type(x) is not Frozen]
        arrays = bound.arrays()
        # `no_collection`: tracing allocates many objects that live on, no garbage.
        numerics = self._numerics(config.current())
        with guards_of(self.fun, objects) as guards, no_collection(), numerics:
            jaxpr, captured = stage(
                body,
                [k.aval for k in arrays],
                name=spec.name,
                labels=labels,
                weak=[k.weak for k in arrays],
            )
        for v in frozen:
            v.settle()
        self._warn_captures(jaxpr, captured)
        key_uses = of_arguments(jaxpr, len(captured))
        mesh = mesh_of(jaxpr)
        return Program(
            jaxpr, captured, key, paths, flat.out_tree, flat.weak, guards, key_uses, mesh
        )

    def compile_program(
        self, program: Program, device: devices.Device, donated: tuple[int, ...]
    ) -> Executable:
        """The executable of a program for a device; it may reuse the memory of donated inputs."""
        executable = program.executables.get((device, donated))
        if executable is not None:
            return executable
        jaxpr, first = program.jaxpr, len(program.captured)
        if config.current().log_compiles:
            log.warning("compiling %s for %s", self.spec.name, jaxpr.in_avals)
        mask = [i - first in donated for i in range(len(jaxpr.invars))] if donated else []
        with no_collection():
            executable = device.backend.compile(jaxpr, device, mask, self.options["compiler"])
        self._check_donation(executable, jaxpr.labels)
        program.executables[device, donated] = executable
        return executable

    def _generate(
        self,
        bound: BoundArguments,
        program: Program,
        device: devices.Device,
        donated: tuple[int, ...],
        guarded: bool = True,
    ) -> Callable[..., Any]:
        """The function for calls of this form; without `guarded`, it is for this call only."""
        # Generated functions are kept with the program, without its captured arrays: functions that
        # share the program bind their own.
        form = device, donated, *bound.form()
        call = program.calls.get(form) if guarded else None
        if call is None:
            executable = self.compile_program(program, device, donated)
            call = fast_call(self.spec, bound, program, executable, device.home, donated, guarded)
            if guarded:
                program.add_call(form, call)
        return bind_captured(call, program.captured)

    # ---- warnings and inspection ----

    def _check_donation(self, executable: Executable, labels: Sequence[str]) -> None:
        unused, action = executable.unused_donations, self.options["on_unusable_donation"]
        if not unused or action == "ignore":
            return
        text = "; ".join(f"{labels[i]} ({why})" for i, why in unused[:4])
        text += f"; and {len(unused) - 4} more" if len(unused) > 4 else ""
        message = (
            f"{self.spec.name}: {len(unused)} donated inputs cannot be reused: {text}\n"
            f"  called at {where().describe()}\n"
            "  donate only what the function returns in updated form, or pass "
            'on_unusable_donation="ignore"'
        )
        if action == "error":
            raise errors.DonatedError(message)
        warn(message)

    def _explain_retrace(self, program: Program) -> None:
        """Raise if a new program exceeds `max_traces`; warn where retracing repeats."""
        earlier = self.cache.programs
        count, limit = len(earlier) + 1, self.options["max_traces"]
        if limit is not None and count > limit:
            raise errors.GenesisError(
                f"{self.spec.name} was traced {count} times, but max_traces={limit}\n"
                f"  {difference(program, earlier, self.spec)}\n  called at {where().describe()}\n"
                "  keep shapes, dtypes and static values the same, or raise max_traces"
            )
        if config.current().explain_cache_misses and (
            # The third program, then at each power of two: a warning that repeats is not read.
            count == 3 or (count > 3 and not count & (count - 1))
        ):
            warn(
                f"{self.spec.name} has been traced {count} times\n"
                f"  {difference(program, earlier, self.spec)}\n  called at {where().describe()}",
                RecompilationWarning,
            )

    def _warn_captures(self, jaxpr: Jaxpr, captured: Sequence[Any]) -> None:
        large = sum(x.nbytes for x in captured if type(x) is ArrayImpl)
        if large <= LARGE:
            return
        listed = captures_of(self.fun, [(jaxpr, captured)])
        most = max(listed, key=lambda c: c.nbytes)
        warn(
            f"{self.spec.name} captured {large >> 20} MiB of arrays from outside; they stay alive "
            f"with its compiled programs\n  called at {where().describe()}\n"
            f"  the largest is {most}, first read at {most.line}\n"
            "  pass them as arguments; .captures lists them"
        )

    @property
    def traces(self) -> list[dict[str, str]]:
        """What the function has been traced for: one {leaf path: type or static value} a
        program."""
        programs = self.cache.programs
        return [dict(zip(p.paths, map(show_key, p.key.leaves), strict=True)) for p in programs]

    @property
    def captures(self) -> list[Captured]:
        """(name, type, nbytes, line that reads it first) of every array that the traced programs
        captured from outside."""
        return captures_of(self.fun, [(p.jaxpr, p.captured) for p in self.cache.programs])

    def cache_size(self) -> int:
        """How many executables this function has."""
        return sum(len(p.executables) for p in self.cache.programs)

    _cache_size = cache_size

    def clear_cache(self) -> None:
        """Forget all programs and executables of this function."""
        forget(self.cache)
        self.cache.clear()

    # ---- ahead of time ----

    # Arguments may be shapes in place of arrays, which the function's own signature does not say;
    # the first overload is there for editors, which show the parameters.
    @overload
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced[P, R]: ...
    @overload
    def trace(self, *args: PyTree, **kwargs: PyTree) -> Traced[P, R]: ...
    def trace(self, *args: PyTree, **kwargs: PyTree) -> Traced[P, R]:
        """Trace the program for these arguments (arrays or ShapeDtypeStructs), without compiling
        it.

        Args:
            args, kwargs: arguments of the function; ShapeDtypeStructs may stand for arrays. Their
                shardings, or `in_shardings`, say what `compile()` compiles for.

        Returns:
            The `Traced` program; its `compile()` gives an executable.

        >>> gf.jit(jnp.sin).trace(jnp.ones(3)).out_info
        ShapeDtypeStruct(shape=(3,), dtype=float32)
        """
        bound, program = self._described(args, kwargs)
        return Traced(self, program, self.spec.donations(bound), self._device(bound, program))

    lower = trace

    def _described(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundArguments, Program]:
        """The arguments, of which ShapeDtypeStructs may be some, and the program for them."""
        if self.options["in_shardings"] is not None:
            shardings = self.options["in_shardings"]
            args = laid_out(args, kwargs, shardings, self.spec, described=True)
        bound = self.spec.bind(args, kwargs, shapes=True)
        near = default_device_of(bound.leaves)
        with near:
            return bound, self._staged(bound.key(near.device), bound)

    def eval_shape(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The shapes and dtypes of the output for these arguments, without computing it."""
        bound, program = self._described(args, kwargs)
        # Not where it would run: what it captures may be traced, on a device that nothing knows.
        device = devices.default_device()
        return Traced(self, program, self.spec.donations(bound), device).out_info


def _place(x: Any) -> Any:
    """Where an array is, or that which a ShapeDtypeStruct stands for; None where nothing says so:
    a sharding over a mesh, or a device."""
    if type(x) is ArrayImpl:
        return x.sig.device
    given = x.sharding if isinstance(x, ShapeDtypeStruct) else None
    return next(iter(given.device_set)) if isinstance(given, SingleDeviceSharding) else given


def _replays() -> Any:
    """Whether a call may be replayed, to find where values become NaN or infinite."""
    settings = config.current()
    return ctx.watch or settings.debug_nans or settings.debug_infs


def _copy(x: ArrayImpl) -> ArrayImpl:
    """The array in memory of its own."""
    return like(x, from_numpy(x.device.backend.to_numpy(stored(x)), x.device))


# The overloads name JAX's options, which are ignored, so that checkers report any other name.
@overload
def jit(
    fun: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    on_unusable_donation: Literal["warn", "error", "ignore"] = "warn",
    max_traces: int | None = None,
    compiler: Literal["inductor"] | None = None,
    precise: bool | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    inline: bool = False,
    keep_unused: bool = False,
    device: object = None,
    backend: str | None = None,
) -> JitFunction[P, R]: ...
@overload
def jit(
    fun: None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    on_unusable_donation: Literal["warn", "error", "ignore"] = "warn",
    max_traces: int | None = None,
    compiler: Literal["inductor"] | None = None,
    precise: bool | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    inline: bool = False,
    keep_unused: bool = False,
    device: object = None,
    backend: str | None = None,
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    on_unusable_donation: Literal["warn", "error", "ignore"] = "warn",
    max_traces: int | None = None,
    compiler: Literal["inductor"] | None = None,
    precise: bool | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    **ignored: object,
) -> Callable[..., Any]:
    """Compile a function: trace it once per signature of its arguments, run the program afterwards.

    The first call with arguments of new structure, shapes, dtypes or static values traces `fun`:
    it runs on tracers and what it computes is recorded, optimized and compiled. Calls like an
    earlier one run the compiled program; `fun` itself is not called, so its side effects (prints,
    appends, globals that it reads) happen while tracing only.

    Arrays, those of NumPy and torch too, and numbers are traced. Leaves of other types (strings,
    functions, frozen dataclasses) are static by themselves: another value is another program.

    Args:
        fun: function of pytrees; None to get a decorator with these options.
        static_argnums: positions of arguments that are constants of the program although they are
            numbers; each value is traced anew. Negative ones count from the end.
        static_argnames: the same by name. One of the two is enough.
        donate_argnums: positions of arguments whose memory the outputs may reuse, as the old
            parameters of a training step; they cannot be used afterwards.
        donate_argnames: the same by name.
        on_unusable_donation: "warn", "error" or "ignore" where no output fits a donated array.
        max_traces: how many programs the function may have before tracing raises; None: any number.
        compiler: "inductor" compiles by TorchInductor on CPU; None is the library's own compiler.
        precise: whether division, square roots and reciprocals of float32 are rounded correctly on
            a GPU, where they are good to 2 units in the last place without; None: as the setting
            `precise` says. Functions that `fun` calls follow, but jitted ones that say otherwise.
        in_shardings: how arguments are laid out: a sharding for each leaf, as a pytree that is a
            prefix of the tuple of arguments that are not static; a PartitionSpec is one over the
            current mesh, None leaves a leaf as it is. Numbers, ndarrays and arrays on one device
            are laid out so; an array that is laid out otherwise is an error.
        out_shardings: how the output is laid out: a pytree of shardings that is a prefix of it.
        ignored: `inline`, `keep_unused`, `device`, `backend`, `compiler_options`, which JAX's jit
            has; without effect.

    Returns:
        A `JitFunction` with the signature of `fun`, or a decorator that makes one.

    Raises:
        TypeError: `fun` cannot be called, an option does not exist, or `precise` is no truth value.
        ValueError: an option names an argument that `fun` does not have, or
            `on_unusable_donation` is unknown.
        GenesisError: a call would need more than `max_traces` programs.
        ShardingError: an array is laid out otherwise than `in_shardings` says, or cannot be laid
            out so.

    >>> @gf.jit
    ... def scaled(x, factor):
    ...     return x * factor
    >>> scaled(jnp.arange(3.0), 2.0)
    Array([0., 2., 4.], dtype=float32)
    >>> power = gf.jit(lambda x, n: x**n, static_argnums=1)
    >>> power(jnp.arange(3.0), 2)
    Array([0., 1., 4.], dtype=float32)
    """
    options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "on_unusable_donation": on_unusable_donation,
        "max_traces": max_traces,
        "compiler": compiler,
        "precise": precise,
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
    }
    unknown = set(ignored) - {"inline", "keep_unused", "device", "backend", "compiler_options"}
    if unknown:
        raise TypeError(
            f"jit has no option {sorted(unknown)}; it has {', '.join(options)}; what a call may "
            "overwrite is named by donate_argnums and donate_argnames"
        )
    if on_unusable_donation not in ("warn", "error", "ignore"):
        raise ValueError('on_unusable_donation is "warn", "error" or "ignore"')
    if precise not in (None, True, False):
        raise TypeError(f"precise is True, False or None (as the setting says), got {precise!r}")
    if fun is None:
        return functools.partial(jit, **options)
    if not callable(fun) or isinstance(fun, staticmethod):
        raise TypeError(f"jit takes a function, got {fun!r}")
    if inspect.isgeneratorfunction(fun):
        raise TypeError(
            f"jit takes a function that returns arrays; {fun!r} is a generator function"
        )
    return JitFunction(fun, options)


def clear_caches() -> None:
    """Forget every traced program and executable of the process.

    >>> double = gf.jit(lambda x: 2 * x)
    >>> double(1.0)
    Array(2., dtype=float32)
    >>> gf.clear_caches()
    >>> double.cache_size()
    0
    """
    forget_all()
    for f in list(_live):
        f.cache.clear()
