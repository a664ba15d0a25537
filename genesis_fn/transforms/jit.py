"""jit: trace a function once per signature, compile it, and run the executable from then on.

A call takes its leaves out by generated code, looks the executable up by the interned signatures of
the leaves, runs it, and puts the outputs together by generated code. Arrays and numbers are traced;
hashable leaves of other types are static by themselves.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from genesis_fn.core import config, device as devices, errors, tree
from genesis_fn.core.array import Array, Deleted, from_numpy, live
from genesis_fn.core.aval import Aval, aval, sig
from genesis_fn.core.convert import as_argument, fitted, is_value
from genesis_fn.core.dtypes import kind_rank, scalar_dtype
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import SCALARS, Tracer, beside, bind, ctx, marked, surroundings
from genesis_fn.core.source import Where, where
from genesis_fn.core.traceback import trimmed
from genesis_fn.transforms.call import jit_p
from genesis_fn.transforms.flat import FlatFunction, name_of
from genesis_fn.transforms.guard import MISS, Donated, builder, caller, puller
from genesis_fn.transforms.stage import stage

log = logging.getLogger("genesis_fn")


class Program:
    """One trace of a function: its jaxpr, captured values, output structure, and what it was
    for."""

    __slots__ = ("jaxpr", "captured", "flat", "weak", "build", "keys", "paths", "cacheable")

    def __init__(
        self, jaxpr: Jaxpr, captured: list, flat: FlatFunction, keys: tuple, paths: list[str]
    ) -> None:
        self.jaxpr, self.captured, self.flat = jaxpr, captured, flat
        self.keys, self.paths = keys, paths
        self.weak = any(flat.weak)
        self.build = builder(flat.out_tree)
        # A program that captured a tracer is good for the trace it was made under only.
        self.cacheable = not any(isinstance(x, Tracer) for x in captured)


class Entry:
    """A compiled program for one signature."""

    __slots__ = ("program", "executable", "dynamic", "plain", "donated", "device")

    def __init__(
        self, program: Program, executable: Any, dynamic: list[int], plain: bool,
        donated: list[int], device: devices.Device,
    ) -> None:  # fmt: skip
        self.program, self.executable, self.device = program, executable, device
        self.dynamic, self.plain, self.donated = dynamic, plain, donated


class Cache:
    """Programs and executables of one function; shared by `jit`s of equal functions."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fast: list[tuple[Any, Callable]] = []  # (settings, what `caller` made), newest first
        self.guards: list[tuple[Callable, Any]] = []  # (pull, treedef), most recently hit first
        self.entries: OrderedDict[Any, Entry] = OrderedDict()
        self.programs: OrderedDict[Any, Program] = OrderedDict()
        self.keep: Any = None  # what keys by id refer to

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.programs.clear()
        self.guards.clear()
        self.fast.clear()


_CAPACITY = 256  # signatures per function
_FAST = 8  # of them that are tried in turn before the table of all is asked
_shared: OrderedDict[Any, Cache] = OrderedDict()
_live: weakref.WeakSet[JitFunction] = weakref.WeakSet()


def _leaf_key(x: Any) -> Any:
    kind = type(x)
    if kind is Array:
        return x.sig
    if kind in SCALARS:
        return kind
    if isinstance(x, Tracer):
        return (x.aval, x.weak)
    return (kind, x)


class JitFunction:
    """The callable that `jit` returns."""

    def __init__(self, fun: Callable, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fun)
        self.fun, self.options = fun, options
        self.static = _Static(fun, options["static_argnums"], options["static_argnames"])
        self.donate = _Donated(fun, options["donate_argnums"], options["donate_argnames"])
        self.cache = _cache_for(fun, options)
        _live.add(self)

    def __repr__(self) -> str:
        return f"<jit of {name_of(self.fun)}: {len(self.cache.programs)} programs>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # A jitted method: `self` is an argument like any other.
        return self if instance is None else functools.partial(self, instance)

    # ---- the call ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            settings = config.current()
            if ctx.trace is None and not settings.disable_jit:
                if ctx.watch is None and not ctx.axes:
                    for known, call in self.cache.fast:
                        if known is settings:
                            result = call(args, kwargs)
                            if result is not MISS:
                                return result
                for pull, _ in self.cache.guards:
                    leaves = pull(args, kwargs)
                    if leaves is not None:
                        try:
                            key = tuple(
                                [x.sig if type(x) is Array else _leaf_key(x) for x in leaves]
                            )
                            entry = self.cache.entries.get((pull, surroundings(), key))
                        except TypeError:
                            break  # an unhashable static leaf, or an ndarray: the slow path says
                        if entry is None:
                            break
                        return self._run(entry, leaves)
            return self._slow(args, kwargs, settings)
        except Exception as error:
            raise trimmed(error)  # noqa: B904

    def _run(self, entry: Entry, leaves: list[Any]) -> Any:
        if not entry.plain:
            leaves = [_runtime(leaves[i], entry.device) for i in entry.dynamic]
        program = entry.program
        settings = config.current()
        replay = ctx.watch or settings.debug_nans or settings.debug_infs
        held = [*program.captured, *leaves] if replay else None
        if held and entry.donated:  # the inputs are needed again
            held = [_copy(x) for x in held]
        try:
            outs = entry.executable(*program.captured, *leaves)
        except Exception as error:
            raise _explained(error, program, leaves) from None
        if entry.donated:
            line = where(depth=4)
            for i in entry.donated:
                path = program.paths[entry.dynamic[i]]
                leaves[i].data = Donated(path, name_of(self.fun), line, leaves[i].aval)
        if replay:
            from genesis_fn.transforms.nan_trace import check_outputs

            check_outputs(program.jaxpr, held, outs)  # pyright: ignore[reportArgumentType]
        return program.build(marked(outs, program.flat.weak) if program.weak else outs)

    def _slow(self, args: tuple, kwargs: dict[str, Any], settings: config.Config) -> Any:
        if settings.disable_jit:
            return self.fun(*args, **kwargs)
        call = args, kwargs
        args, kwargs, given = self.static.bind(args, kwargs)
        values = self.static.without(args, kwargs)
        leaves, treedef = tree.flatten(values)
        place = next((x.device for x in leaves if type(x) is Array), None)
        leaves = [
            as_argument(x, place)
            if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__genesis_array__")
            else x
            for x in leaves
        ]
        statics = tuple(
            (n, _hashable(v, f"static argument {self.static.label(n)!r}", self)) for n, v in given
        )
        keys = tuple([_leaf_key(x) for x in leaves])
        try:
            hash(keys)
        except TypeError:
            for x, path in zip(leaves, self._paths(values)):
                if not is_value(x):
                    _hashable(x, path, self)
        if ctx.trace is not None:
            program = self._program(leaves, treedef, values, statics, keys, settings)
            dynamic = [as_argument(x) for x in leaves if is_value(x)]
            outs = bind(jit_p, *program.captured, *dynamic, jaxpr=program.jaxpr)
            return program.build(marked(outs, program.flat.weak))
        entry = self._entry(leaves, treedef, values, statics, keys, settings, call)
        return self._run(entry, leaves)

    # ---- tracing and compiling ----

    def _paths(self, values: tuple) -> list[str]:
        return self.static.paths(values)

    def _program(
        self, leaves: list, treedef: Any, values: tuple, statics: tuple, keys: tuple,
        settings: config.Config,
    ) -> Program:  # fmt: skip
        # Devices do not change a program, only avals and weakness do.
        shapes = tuple([_program_key(x) for x in leaves])
        # What is captured while tracing is made beside the arguments.
        near = beside(leaves)
        key = (treedef, statics, shapes, surroundings(), near.place)
        cache = self.cache
        with cache.lock:
            found = cache.programs.get(key)
            if found is not None:
                cache.programs.move_to_end(key)
                return found
            paths = self._paths(values)
            with near:
                program = self._trace(leaves, treedef, statics, shapes, paths)
            if program.cacheable:
                cache.programs[key] = program
                if len(cache.programs) > _CAPACITY:
                    cache.programs.popitem(last=False)
                self._explain_retrace(program, settings)
            return program

    def _trace(
        self, leaves: list, treedef: Any, statics: tuple, shapes: tuple, paths: list[str]
    ) -> Program:
        if ctx.no_tracing:
            raise errors.GenesisError(
                f"{name_of(self.fun)} would have to be traced within no_tracing()\n"
                f"  called at {where(depth=4).describe()}"
            )
        dynamic = [i for i, x in enumerate(leaves) if is_value(x)]
        names = dict(statics)
        fixed = list(leaves)

        def f(args: tuple, kwargs: dict) -> Any:
            return self.static.call(self.fun, args, kwargs, names)

        flat = FlatFunction(f, treedef)
        flat.f.__name__ = name_of(self.fun)

        def body(*tracers: Any) -> list[Any]:
            filled = list(fixed)
            for i, t in zip(dynamic, tracers):
                filled[i] = t
            return flat(*filled)

        kinds = [as_argument(leaves[i]) for i in dynamic]
        jaxpr, captured = stage(
            body, [k.aval for k in kinds], name=name_of(self.fun),
            labels=[paths[i] for i in dynamic], weak=[k.weak for k in kinds],
        )  # fmt: skip
        _warn_captures(self.fun, captured)
        return Program(jaxpr, captured, flat, (statics, shapes, surroundings()), paths)

    def _entry(
        self, leaves: list, treedef: Any, values: tuple, statics: tuple, keys: tuple,
        settings: config.Config, call: tuple[tuple, dict],
    ) -> Entry:  # fmt: skip
        cache = self.cache
        with cache.lock:
            slow_key = (treedef, statics, surroundings(), keys)
            entry = cache.entries.get(slow_key)
            if entry is not None:
                cache.entries.move_to_end(slow_key)
                return entry
            for x in leaves:
                if type(x) is Array:
                    live(x)
            program = self._program(leaves, treedef, values, statics, keys, settings)
            place = _common_device(leaves, program, self.fun)
            dynamic = [i for i, x in enumerate(leaves) if is_value(x)]
            donated = self.donate.leaves(values, self.static)
            mask = [False] * len(program.captured) + [i in donated for i in dynamic]
            if settings.log_compiles:
                log.warning("compiling %s for %s", name_of(self.fun), program.jaxpr.in_avals)
            options = {"donated": mask} if any(mask) else {}
            if self.options.get("compiler"):
                options["compiler"] = self.options["compiler"]
            executable = place.backend.compile(program.jaxpr, place, **options)
            self._check_donation(executable, program)
            entry = Entry(
                program, executable, dynamic, all(type(x) is Array for x in leaves),
                [p for p, i in enumerate(dynamic) if i in donated], place,
            )  # fmt: skip
            cache.entries[slow_key] = entry
            order = self.static.order(*call)
            pull = self._guard(*call, order) if not statics else None
            if pull is not None:
                cache.entries[(pull, surroundings(), keys)] = entry
            while len(cache.entries) > 2 * _CAPACITY:
                cache.entries.popitem(last=False)
            self._add_fast(entry, *call, settings)
            return entry

    def _add_fast(self, entry: Entry, args: tuple, kwargs: dict, settings: config.Config) -> None:
        """Remember a function generated for calls like this one, if it can be had."""
        executable, program = entry.executable, entry.program
        debugging = settings.debug_nans or settings.debug_infs or ctx.watch is not None
        known = hasattr(executable, "run") or hasattr(executable, "run_list")
        if debugging or ctx.axes or not known:
            return

        def failed(error: Exception, leaves: list) -> Exception:
            return _explained(executable.explained(error), program, leaves)

        call = caller(
            args, kwargs, self.static.order, static=self.static.given(args, kwargs),
            captured=program.captured, executable=executable,
            sigs=[sig(s.aval, s.device, s.dense, w)
                  for s, w in zip(executable.sigs, program.flat.weak, strict=True)],
            out_tree=program.flat.out_tree, donated=entry.donated,
            paths=[program.paths[i] for i in entry.dynamic], name=name_of(self.fun),
            number=lambda x: _runtime(x, entry.device), failed=failed,
            place=entry.device,
        )  # fmt: skip
        if call is not None:
            self.cache.fast.insert(0, (settings, call))
            del self.cache.fast[_FAST:]

    def _guard(self, args: tuple, kwargs: dict, order: list[int] | None) -> Callable | None:
        treedef = tree.structure((args, kwargs))
        for pull, known in self.cache.guards:
            if known == treedef:
                return pull
        if len(self.cache.guards) >= 8:
            return None
        pull = puller(args, kwargs, order)
        if pull is not None:
            self.cache.guards.insert(0, (pull, treedef))
        return pull

    def _check_donation(self, executable: Any, program: Program) -> None:
        unused = getattr(executable, "unused_donations", ())
        action = self.options.get("on_unusable_donation", "warn")
        if not unused or action == "ignore":
            return
        labels = program.jaxpr.labels
        text = "; ".join(f"{labels[i]} ({why})" for i, why in unused[:4])
        message = (
            f"{name_of(self.fun)}: {len(unused)} donated inputs cannot be reused: {text}\n"
            "  donate only what the function returns in updated form, or pass "
            'on_unusable_donation="ignore"'
        )
        if action == "error":
            raise errors.DonatedError(message)
        warnings.warn(message, stacklevel=5)

    def _explain_retrace(self, program: Program, settings: config.Config) -> None:
        cache = self.cache
        count, limit = len(cache.programs), self.options.get("max_traces")
        if limit is not None and count > limit:
            reason = self._difference(program)
            cache.programs.popitem()
            raise errors.GenesisError(
                f"{name_of(self.fun)} was traced {count} times, but max_traces={limit}\n  {reason}"
            )
        if (
            count >= 3
            and settings.explain_cache_misses
            and (count & (count - 1) == 0 or count == 3)
        ):
            warnings.warn(
                f"{name_of(self.fun)} has been traced {count} times"
                f"\n  {self._difference(program)}\n  called at {where(depth=4).describe()}",
                RecompilationWarning,
                stacklevel=6,
            )

    def _difference(self, program: Program) -> str:
        """What distinguishes a program from the most similar earlier one."""
        best: list[str] | None = None
        (statics, shapes, around), now = program.keys, dict(zip(program.paths, program.keys[1]))
        shown = lambda given, n: repr(given[n]) if n in given else "not given"
        for other in list(self.cache.programs.values())[:-1]:
            (statics0, shapes0, around0), before = other.keys, dict(zip(other.paths, other.keys[1]))
            found = [f"new leaf {p}" for p in now if p not in before][:2]
            found += [f"missing leaf {p}" for p in before if p not in now][:2]
            found += [
                f"{p}: {_show_key(before[p])} -> {_show_key(now[p])}"
                for p in now if p in before and before[p] != now[p]
            ]  # fmt: skip
            if not found and (program.paths != other.paths or shapes != shapes0):
                found = ["the argument structure changed"]
            given0, given = dict(statics0), dict(statics)
            found += [
                f"static {self.static.label(n)}: {shown(given0, n)} -> {shown(given, n)}; pass "
                "it as an array to trace it once"
                for n in {**given0, **given}
                if shown(given0, n) != shown(given, n)
            ]
            found += _around_difference(around0, around)
            if best is None or len(found) <= len(best):
                best = found
        if not best:
            return "another program of equal arguments was dropped from the cache"
        return "; ".join(best[:3]) + (f"; and {len(best) - 3} more" if len(best) > 3 else "")

    # ---- inspection ----

    @property
    def traces(self) -> list[dict[str, str]]:
        """What the function has been traced for: one {leaf path: type or static value} a
        program."""
        return [
            {
                **dict(zip(p.paths, map(_show_key, p.keys[1]))),
                **{self.static.label(n): repr(v) for n, v in p.keys[0]},
            }
            for p in self.cache.programs.values()
        ]

    @property
    def captures(self) -> list[tuple[str, int]]:
        """(type, bytes) of every array that the traced programs captured from outside."""
        return [(str(x.aval), x.nbytes) for p in self.cache.programs.values() for x in p.captured]

    def cache_size(self) -> int:
        """How many signatures are compiled."""
        return len({id(e) for e in self.cache.entries.values()})

    _cache_size = cache_size

    def clear_cache(self) -> None:
        """Forget all programs and executables of this function."""
        self.cache.clear()

    # ---- ahead of time ----

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The program for these arguments (arrays or ShapeDtypeStructs), not yet compiled."""
        return self._stage(args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Traced:
        """The program for these arguments, ready to `.compile()`."""
        return self._stage(args, kwargs)

    def arrays(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """The inputs that a call gives to the program, after the captured ones."""
        args, kwargs, _ = self.static.bind(args, kwargs)
        leaves = tree.leaves(self.static.without(args, kwargs))
        return [as_argument(x) for x in leaves if is_value(x)]

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The output's shapes and dtypes, without computing it."""
        return self._stage(args, kwargs).out_info

    def _stage(self, args: tuple, kwargs: dict[str, Any]) -> Traced:
        args, kwargs, given = self.static.bind(args, kwargs)
        values = self.static.without(args, kwargs)
        leaves, treedef = tree.flatten(values)
        leaves = [_abstract(x) for x in leaves]
        statics = tuple(
            (n, _hashable(v, f"static argument {self.static.label(n)!r}", self)) for n, v in given
        )
        shapes = tuple([_program_key(x) for x in leaves])
        program = self._trace(leaves, treedef, statics, shapes, self._paths(values))
        donated = self.donate.leaves(values, self.static)
        mask = [is_value(x) for x in leaves]
        return Traced(self, program, treedef, mask, [i in donated for i, m in enumerate(mask) if m])


class RecompilationWarning(UserWarning):
    """A jitted function was traced again; the message says what changed."""


def _program_key(x: Any) -> Any:
    kind = type(x)
    if kind is Array:
        return (x.sig.aval, True) if x.sig.weak else x.sig.aval
    if kind in SCALARS:
        return (aval((), scalar_dtype(kind)), True)
    if isinstance(x, (Tracer, Abstract)):
        return (x.aval, True) if x.weak else x.aval
    return (kind, x)


def _show_key(key: Any) -> str:
    if isinstance(key, Aval):
        return str(key)
    if isinstance(key, tuple) and isinstance(key[0], Aval):
        kind = key[0]
        name = ("bool", "int", "float", "complex")[kind_rank(kind.dtype)]
        return f"{kind} (weak)" if kind.shape else f"Python {name}"
    return repr(key[1])


def _around_difference(before: tuple, now: tuple) -> list[str]:
    """What differs between two values of `surroundings()`."""
    names = ("named axes", "safe_zero", "within a backward pass")
    found = [f"{n}: {a} -> {b}" for n, a, b in zip(names, before, now) if a != b]
    return found + [
        f"setting {n}: {getattr(before[-1], n)} -> {getattr(now[-1], n)}"
        for n in config.names()
        if getattr(before[-1], n) != getattr(now[-1], n)
    ]


def _copy(x: Array) -> Array:
    return from_numpy(x.device.backend.to_numpy(live(x)), x.device)


def _runtime(x: Any, place: devices.Device) -> Array:
    if type(x) is Array:
        return x
    return from_numpy(fitted(x, scalar_dtype(type(x))), place)


def _hashable(x: Any, what: str, f: JitFunction) -> Any:
    try:
        hash(x)
    except TypeError:
        raise TypeError(
            f"{what} of {name_of(f.fun)} is {x!r:.60} of type {type(x).__name__}, which is neither "
            f"an array nor hashable\n  at {where(depth=4).describe()}\n"
            "  pass arrays, numbers, or hashable values such as tuples and frozen dataclasses"
        ) from None
    return x


def _common_device(leaves: Sequence[Any], program: Program, fun: Callable) -> devices.Device:
    found: dict[devices.Device, int] = {}
    for i, x in enumerate(leaves):
        if type(x) is Array:
            found.setdefault(x.device, i)
    if not found:
        for x in program.captured:
            return x.device
        return devices.default_device()
    if len(found) > 1:
        places = ", ".join(f"{program.paths[i]} on {d}" for d, i in list(found.items())[:4])
        raise errors.DeviceError(
            f"{name_of(fun)}: arguments on several devices: {places}\n"
            f"  at {where(depth=4).describe()}\n  move them with device_put(x, device)"
        )
    return next(iter(found))


def _warn_captures(fun: Callable, captured: Sequence[Any]) -> None:
    large = sum(x.nbytes for x in captured if type(x) is Array)
    if large > 64 << 20:
        warnings.warn(
            f"{name_of(fun)} captured {large >> 20} MiB of arrays from outside; they stay alive "
            "with its compiled programs. Pass them as arguments, or see .captures",
            stacklevel=6,
        )


def _explained(error: Exception, program: Program, leaves: Sequence[Any]) -> Exception:
    for x in [*program.captured, *leaves]:
        if type(x) is Array and isinstance(x.data, Deleted):
            return x.data.error()
    return error


# ---- static and donated arguments ----


def _parameters(fun: Callable, follow_wrapped: bool = True) -> list[inspect.Parameter] | None:
    try:
        signature = inspect.signature(fun, follow_wrapped=follow_wrapped)
        return list(signature.parameters.values())
    except (TypeError, ValueError):
        return None


def _as_tuple(x: Any) -> tuple:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


class _Static:
    """Which arguments of a function are static, by position and by name."""

    def __init__(self, fun: Callable, nums: Any, names: Any) -> None:
        self.fun, self.parameters = fun, _parameters(fun)
        nums, names = _as_tuple(nums), _as_tuple(names)
        known = [p.name for p in self.parameters or ()]
        positional = [
            p.name
            for p in self.parameters or ()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        varargs = any(p.kind == p.VAR_POSITIONAL for p in self.parameters or ())
        for n in nums:
            if (
                self.parameters is not None
                and not varargs
                and not (-len(positional) <= n < len(positional))
            ):
                raise ValueError(
                    f"static_argnums={n}: {name_of(fun)} has {len(positional)} positional arguments"
                )
        varkw = any(p.kind == p.VAR_KEYWORD for p in self.parameters or ())
        for name in names:
            if self.parameters is not None and not varkw and name not in known:
                raise ValueError(f"static_argnames: {name_of(fun)} has no argument {name!r}")
        self.nums = {n % len(positional) if n < 0 and positional else n for n in nums}
        self.nums |= {positional.index(n) for n in names if n in positional}
        self.names = {*names, *(positional[n] for n in self.nums if n < len(positional))}
        self.positional = positional
        # By the function's own signature: what it wraps may take what it does not.
        own = _parameters(fun, follow_wrapped=False) or ()
        self.either = [
            p.name if p.kind == p.POSITIONAL_OR_KEYWORD else None
            for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip

    def bind(self, args: tuple, kwargs: dict) -> tuple[tuple, dict, list[tuple[Any, Any]]]:
        """(args, kwargs, [(name or position, static value)]) in the form that all ways of writing
        one call share: an argument given by name stands at its position if all before it do."""
        args, kwargs = self._placed(args, kwargs)
        return args, kwargs, list(self.given(args, kwargs).items())

    def given(self, args: tuple, kwargs: dict) -> dict[Any, Any]:
        """The static arguments of a call by position or name, as they are written."""
        found: dict[Any, Any] = {i: args[i] for i in sorted(self.nums) if i < len(args)}
        return found | {n: kwargs[n] for n in sorted(self.names) if n in kwargs}

    def _placed(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not kwargs:
            return args, kwargs
        rest = dict(kwargs)
        for name in self.either[len(args) :]:
            if name not in rest:
                break
            args = (*args, rest.pop(name))
        return args, rest

    def order(self, args: tuple, kwargs: dict) -> list[int] | None:
        """Where each leaf of `bind`'s form is among the leaves of the call as written; None if they
        stand in one order."""
        if len(self._placed(args, kwargs)[0]) == len(args):
            return None
        blank = (
            tuple([None if i in self.nums else a for i, a in enumerate(args)]),
            {k: None if k in self.names else v for k, v in kwargs.items()},
        )
        leaves, treedef = tree.flatten(blank)
        return tree.leaves(self._placed(*tree.unflatten(treedef, range(len(leaves)))))

    def without(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with static ones replaced by None (an empty subtree)."""
        if not self.nums and not self.names:
            return args, kwargs
        return (
            tuple([None if i in self.nums else a for i, a in enumerate(args)]),
            {k: v for k, v in kwargs.items() if k not in self.names},
        )

    def call(self, fun: Callable, args: tuple, kwargs: dict, given: dict[Any, Any]) -> Any:
        """Call with the static values put back."""
        if not given:
            return fun(*args, **kwargs)
        filled = [given[i] if i in given else a for i, a in enumerate(args)]
        named = {n: v for n, v in given.items() if isinstance(n, str)}
        return fun(*filled, **kwargs, **named)

    def label(self, place: int | str) -> str:
        """The name of an argument by its position (or name)."""
        if isinstance(place, str):
            return place
        return self.positional[place] if place < len(self.positional) else f"argument {place}"

    def paths(self, values: tuple[tuple, dict]) -> list[str]:
        """What to call each leaf: `params['w']`, `batch[0]`."""
        args, kwargs = values
        named = [f"{self.label(i)}{p}" for i, a in enumerate(args) for p in tree.paths(a)]
        return named + [f"{k}{p}" for k in sorted(kwargs) for p in tree.paths(kwargs[k])]


class _Donated:
    """Which arguments' memory a call may take over."""

    def __init__(self, fun: Callable, nums: Any, names: Any) -> None:
        self.nums, self.names = set(_as_tuple(nums)), set(_as_tuple(names))
        known = [p.name for p in _parameters(fun) or ()]
        for name in self.names:
            if known and name not in known:
                raise ValueError(f"donate_argnames: {name_of(fun)} has no argument {name!r}")

    def leaves(self, values: tuple[tuple, dict], static: _Static) -> set[int]:
        """The positions of donated leaves. Raises DonatedError for one buffer donated twice."""
        if not self.nums and not self.names:
            return set()
        args, kwargs = values
        found, position, seen = set(), 0, {}
        items = [(i, static.label(i), a) for i, a in enumerate(args)]
        items += [(None, k, kwargs[k]) for k in sorted(kwargs)]
        for i, label, value in items:
            flat = tree.leaves_with_path(value)
            donated = label in self.names or (
                i is not None and (i in self.nums or i - len(args) in self.nums)
            )
            for path, x in flat:
                if donated and isinstance(x, Abstract):
                    found.add(position)
                elif donated and type(x) is Array:
                    name = label + tree.keystr(path)
                    if id(x) in seen:
                        raise errors.DonatedError(
                            f"one array is donated twice, as {seen[id(x)]} and as {name}\n"
                            f"  at {where(depth=5).describe()}\n  pass a copy: x.copy()"
                        )
                    seen[id(x)] = name
                    found.add(position)
                position += 1
        return found


def _cache_for(fun: Callable, options: dict[str, Any]) -> Cache:
    """The cache for a function; a new function object of the same code, closure and defaults (a
    lambda made in a loop) gets the one it had before."""
    code = getattr(fun, "__code__", None)
    if code is None:
        return Cache()
    cells = [c.cell_contents for c in fun.__closure__ or () if _filled(c)]
    keep = (cells, fun.__globals__, fun.__defaults__, fun.__kwdefaults__)
    kwdefaults = tuple(sorted((k, id(v)) for k, v in (fun.__kwdefaults__ or {}).items()))
    key = (
        code, tuple(map(id, cells)), id(fun.__globals__), tuple(map(id, fun.__defaults__ or ())),
        kwdefaults, tuple(sorted((k, repr(v)) for k, v in options.items())),
    )  # fmt: skip
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Cache()
        found.keep = keep
        while len(_shared) > 512:
            _shared.popitem(last=False)
    else:
        _shared.move_to_end(key)
    return found


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def jit(
    fun: Callable | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    on_unusable_donation: str = "warn",
    max_traces: int | None = None,
    compiler: str | None = None,
    **ignored: Any,
) -> Any:
    """`fun`, traced once per signature of its arguments and compiled.

    Arrays and numbers are traced; leaves of other hashable types are static by themselves, ints by
    `static_argnums` or `static_argnames`. Donated arguments lend their memory to the outputs and
    cannot be used afterwards; `on_unusable_donation` is "warn", "error" or "ignore". `max_traces`
    turns retracing beyond it into an error. `compiler="inductor"` compiles by TorchInductor on CPU.
    """
    options = {
        "static_argnums": static_argnums, "static_argnames": static_argnames,
        "donate_argnums": donate_argnums, "donate_argnames": donate_argnames,
        "on_unusable_donation": on_unusable_donation, "max_traces": max_traces,
        "compiler": compiler,
    }  # fmt: skip
    unknown = set(ignored) - {"inline", "keep_unused", "device", "backend"}
    if unknown:
        raise TypeError(f"jit has no option {sorted(unknown)}")
    if on_unusable_donation not in ("warn", "error", "ignore"):
        raise ValueError('on_unusable_donation is "warn", "error" or "ignore"')
    if fun is None:
        return lambda f: jit(f, **{k: v for k, v in options.items()})
    if not callable(fun):
        raise TypeError(f"jit takes a function, got {fun!r}")
    return JitFunction(fun, options)


def clear_caches() -> None:
    """Forget every traced program and executable of the process."""
    _shared.clear()
    for f in list(_live):
        f.cache.clear()


# ---- ahead of time ----


class Abstract:
    """Shape and dtype standing for an array: what `eval_shape` returns and `lower` accepts."""

    __slots__ = ("aval", "weak")

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        from genesis_fn.core import dtypes
        from genesis_fn.core.aval import aval

        self.aval, self.weak = aval(tuple(shape), dtypes.dtype(dtype)), False

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """The bytes of a dense array of this kind."""
        return self.aval.nbytes

    def __repr__(self) -> str:
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Abstract) and other.aval is self.aval

    def __hash__(self) -> int:
        return hash(self.aval)

    def __genesis_array__(self) -> Any:
        return self


def _abstract(x: Any) -> Any:
    if type(x) is Array or isinstance(x, (Tracer, Abstract)) or type(x) in SCALARS:
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return as_argument(x)
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return Abstract(x.shape, x.dtype)
    return x


class Traced:
    """A program for given argument shapes: printable, and ready to compile."""

    def __init__(
        self, f: JitFunction, program: Program, in_tree: Any, mask: list[bool], donated: list[bool]
    ) -> None:
        self.fun, self.program, self.in_tree, self.mask = f, program, in_tree, mask
        self.donated = donated

    @property
    def jaxpr(self) -> Jaxpr:
        """The program."""
        return self.program.jaxpr

    @property
    def out_info(self) -> Any:
        """The output's pytree of shapes and dtypes."""
        return self.program.build([Abstract(a.shape, a.dtype) for a in self.jaxpr.out_avals])

    def as_text(self) -> str:
        """The program as text."""
        return str(self.jaxpr)

    def lower(self) -> Traced:
        """Itself: tracing and lowering are one step here."""
        return self

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes that the program needs at least."""
        from genesis_fn.transforms.cost import cost

        return cost(self.jaxpr)

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, outputs, and the peak of what lives between them."""
        from genesis_fn.transforms.cost import memory

        return memory(self.jaxpr)

    def compile(self) -> Compiled:
        """The executable on the default device."""
        place = devices.default_device()
        return Compiled(self, self.executable(place), place)

    def executable(self, place: devices.Device) -> Any:
        """The program compiled for a device, which may reuse the memory of donated arguments."""
        if not any(self.donated):
            return place.backend.compile(self.jaxpr, place)
        mask = [False] * len(self.program.captured) + self.donated
        return place.backend.compile(self.jaxpr, place, donated=mask)


class Compiled:
    """An executable for fixed argument shapes."""

    def __init__(self, traced: Traced, executable: Any, place: devices.Device) -> None:
        self.traced, self.executable, self.device = traced, executable, place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fun = self.traced.fun
        args, kwargs, _ = fun.static.bind(args, kwargs)
        leaves, treedef = tree.flatten(fun.static.without(args, kwargs))
        if treedef != self.traced.in_tree:
            raise errors.TreeError(
                f"a compiled {name_of(fun.fun)} was called with arguments of structure {treedef}, "
                f"it was compiled for {self.traced.in_tree}"
            )
        arrays = [as_argument(x) for x, m in zip(leaves, self.traced.mask) if m]
        program = self.traced.program
        expected = program.jaxpr.in_avals[len(program.captured) :]
        for x, a, label in zip(arrays, expected, program.jaxpr.labels[len(program.captured) :]):
            if x.aval is not a:
                raise errors.ShapeError(
                    f"a compiled {name_of(fun.fun)} takes {a} for {label}, got {x.aval}"
                )
        outs = self.executable(*program.captured, *arrays)
        paths = program.jaxpr.labels[len(program.captured) :]
        for x, path, donated in zip(arrays, paths, self.traced.donated):
            if donated:
                x.data = Donated(path, name_of(fun.fun), where(), x.aval)
        return program.build(outs)

    def as_text(self) -> str:
        """The program as text."""
        return getattr(self.executable, "as_text", self.traced.as_text)()

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes."""
        return self.traced.cost_analysis()

    def memory_analysis(self) -> dict[str, int]:
        """Bytes of arguments, outputs and temporaries: as planned where the backend says so, else
        as the program needs them."""
        found = getattr(self.executable, "memory_analysis", self.traced.memory_analysis)
        return found()


__all__ = [
    "Abstract", "Compiled", "JitFunction", "RecompilationWarning", "Traced", "Where",
    "clear_caches", "jit",
]  # fmt: skip
