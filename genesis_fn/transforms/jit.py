"""jit: trace a function once per signature, compile it, and run the executable from then on.

A call takes its leaves out by generated code, looks the executable up by the interned signatures of
the leaves, runs it, and puts the outputs together by generated code. Arrays and numbers are traced;
leaves of other types are static by themselves, by type and content.

What a function reads beside its arguments (globals, closures) is as it was when it was traced;
what a bound method or a partial brings along, and attributes of objects among the arguments, are
looked at in every call (see `reads.py`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from genesis_fn.core import config, device as devices, errors, tree
from genesis_fn.core.array import Array, Deleted, from_numpy, like, live, stored
from genesis_fn.core.aval import sig
from genesis_fn.core.collector import no_collection
from genesis_fn.core.convert import as_array, fitted, is_value
from genesis_fn.core.dtypes import scalar_dtype
from genesis_fn.core.executable import Executable
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import SCALARS, Tracer, beside, ctx, marked, surroundings
from genesis_fn.core.source import warn, where
from genesis_fn.core.static import Frozen, NotStatic, meaning
from genesis_fn.core.traceback import trimmed
from genesis_fn.transforms.abstract import abstract_of
from genesis_fn.transforms.ahead import Traced
from genesis_fn.transforms.arguments import Donation, Static, not_static, static_key
from genesis_fn.transforms.call import jit_p
from genesis_fn.transforms.captured import Captured, captures_of
from genesis_fn.transforms.copies import Copied
from genesis_fn.transforms.flat import FlatFunction, name_of
from genesis_fn.transforms.guard import MISS, Donated, caller, puller
from genesis_fn.transforms.key_uses import after_call, before_call, user_call
from genesis_fn.transforms.programs import (
    CAPACITY,
    LARGE,
    Cache,
    Entry,
    Program,
    Shelf,
    forget,
    forget_all,
    shelf_of,
)
from genesis_fn.transforms.reads import owners, reads_of
from genesis_fn.transforms.retrace import RecompilationWarning, difference, program_key, show_key
from genesis_fn.transforms.stage import stage

log = logging.getLogger("genesis_fn")


_VARIANTS = 4  # programs of one signature whose surroundings differed
_FAST = 8  # signatures that are tried in turn before the table of all is asked
_live: weakref.WeakSet[JitFunction] = weakref.WeakSet()


def _leaf_key(x: Any) -> Any:
    kind = type(x)
    if kind is Array:
        return x.sig
    if kind in SCALARS:
        return kind
    if isinstance(x, Tracer):
        return (x.aval, x.weak)
    return x if kind is Frozen else Frozen(x)


class JitFunction(Copied):
    """The callable that `jit` returns."""

    def __init__(self, fun: Callable, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fun)
        self.fun, self.options = fun, options
        self.static = Static(fun, options["static_argnums"], options["static_argnames"])
        self.donate = Donation(fun, options["donate_argnums"], options["donate_argnames"])
        self.cache = Cache()
        # Whether it brings along what may change: a method's object, a partial's arguments.
        self.owned = any(True for _ in owners(fun))
        _live.add(self)

    def _parts(self) -> tuple[Callable, tuple]:
        return JitFunction, (self.fun, self.options)

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
        if program.key_uses is not None:
            before_call(program.key_uses, leaves)
        try:
            outs = entry.executable(*program.captured, *leaves)
        except Exception as error:
            raise _explained(error, [*program.captured, *leaves]) from None
        if program.key_uses is not None:
            after_call(program.key_uses, leaves, outs)
        if entry.donated:
            line = where(depth=4)
            for i in entry.donated:
                path = program.paths[entry.dynamic[i]]
                leaves[i].data = Donated(path, name_of(self.fun), line, leaves[i].aval)
        if replay:
            from genesis_fn.transforms.nan_trace import check_outputs

            check_outputs(program.jaxpr, held, outs)  # pyright: ignore[reportArgumentType]
        return program.build(marked(outs, program.outs_weak) if program.weak else outs)

    def _slow(self, args: tuple, kwargs: dict[str, Any], settings: config.Config) -> Any:
        if settings.disable_jit:
            return self.fun(*args, **kwargs)
        call = args, kwargs
        args, kwargs, given = self.static.bind(args, kwargs)
        values = self.static.without(args, kwargs)
        leaves, treedef = tree.flatten(values)
        place = next((x.device for x in leaves if type(x) is Array), None)
        leaves = [
            x
            if type(x) is Array or type(x) in SCALARS or isinstance(x, Tracer)
            else as_array(x, device=place)
            if is_value(x)
            else self._static(x, i, values)
            for i, x in enumerate(leaves)
        ]
        statics = self._statics(given)
        keys = (*[_leaf_key(x) for x in leaves], *_odd_keys(treedef))
        if ctx.trace is not None:
            shelf = self._shelf(statics, leaves)
            _, program = self._program(leaves, treedef, values, statics, shelf, settings)
            dynamic = [as_array(x) for x in leaves if is_value(x)]
            outs = user_call(jit_p, *program.captured, *dynamic, jaxpr=program.jaxpr)
            return program.build(marked(outs, program.outs_weak))
        entry = self._entry(leaves, treedef, values, statics, keys, settings, call)
        return self._run(entry, leaves)

    # ---- tracing and compiling ----

    def _statics(self, given: list[tuple[Any, Any]]) -> tuple:
        label = self.static.label
        for n, v in given:
            if isinstance(v, (list, dict, set, bytearray)):
                raise not_static(NotStatic(v, ""), f"static argument {label(n)!r}", self.fun)
        return tuple(
            [(n, static_key(v, f"static argument {label(n)!r}", self.fun)) for n, v in given]
        )

    def _static(self, x: Any, i: int, values: tuple) -> Frozen:
        try:
            return Frozen(x)
        except NotStatic as error:
            raise not_static(error, self._paths(values)[i], self.fun) from None

    def _paths(self, values: tuple) -> list[str]:
        return self.static.paths(values)

    def _program(
        self, leaves: list, treedef: Any, values: tuple, statics: tuple, shelf: Shelf | None,
        settings: config.Config,
    ) -> tuple[tuple, Program]:  # fmt: skip
        """(key, program)."""
        # Devices do not change a program, only avals and weakness do.
        shapes = tuple([program_key(x) for x in leaves])
        # What is captured while tracing is made beside the arguments.
        near = beside(leaves)
        key = (treedef, _odd_keys(treedef), statics, shapes, surroundings(), near.place)
        cache = self.cache
        with cache.lock:
            # Of what was traced while an object was another, some is kept, newest first.
            for variant in range(_VARIANTS):
                found = cache.programs.get((key, variant))
                if found is None:
                    break
                if found.current():
                    cache.programs.move_to_end((key, variant))
                    return key, found
            kept = shelf.get(key) if shelf is not None else None
            found = kept and kept.taken(None)
            if found is not None:
                cache.programs[key, 0] = found
                return key, found
            paths = self._paths(values)
            with near, no_collection():
                program = self._trace(leaves, treedef, statics, shapes, paths)
            if program.cacheable:
                for k in range(_VARIANTS - 1, 0, -1):
                    if (key, k - 1) in cache.programs:
                        cache.programs[key, k] = cache.programs[key, k - 1]
                cache.programs[key, 0] = program
                cache.programs.move_to_end((key, 0))
                if len(cache.programs) > CAPACITY:
                    cache.programs.popitem(last=False)
                self._explain_retrace(program, settings)
                # What the trace itself changed it would have to change for others too.
                if shelf is not None and shelf is self._shelf(statics, leaves):
                    shelf.put(key, key, program)
            return key, program

    def _shelf(self, statics: tuple, leaves: Iterable[Any]) -> Shelf | None:
        """Where programs for these static values are shared with functions of the same meaning.
        Asked for whenever the function would be traced: what it reads may have changed since."""
        given = [v for _, v in statics] + [x for x in leaves if type(x) is Frozen]
        if self.owned or not all(v.fixed and not v.weak for v in given):
            return None
        known = meaning(self.fun)
        if known is None:
            return None
        return shelf_of(known, tuple(map(repr, self.options.values())))

    def _trace(
        self, leaves: list, treedef: Any, statics: tuple, shapes: tuple, paths: list[str]
    ) -> Program:
        if ctx.no_tracing:
            raise errors.GenesisError(
                f"{name_of(self.fun)} would have to be traced within no_tracing()\n"
                f"  called at {where(depth=4).describe()}"
            )
        dynamic = [i for i, x in enumerate(leaves) if is_value(x)]
        names = {n: v.value for n, v in statics}
        fixed = [x.value if type(x) is Frozen else x for x in leaves]
        frozen = [v for v in (*[v for _, v in statics], *shapes) if type(v) is Frozen]
        reads = None
        if self.owned or any(v.objects for v in frozen):
            reads = reads_of(self.fun, [x for v in frozen for x in v.objects])

        def f(args: tuple, kwargs: dict) -> Any:
            return self.static.call(self.fun, args, kwargs, names)

        flat = FlatFunction(f, treedef)
        flat.f.__name__ = name_of(self.fun)

        def body(*tracers: Any) -> list[Any]:
            filled = list(fixed)
            for i, t in zip(dynamic, tracers):
                filled[i] = t
            return flat(*filled)

        kinds = [as_array(leaves[i]) for i in dynamic]
        with contextlib.nullcontext() if reads is None else reads:
            jaxpr, captured = stage(
                body, [k.aval for k in kinds], name=name_of(self.fun),
                labels=[paths[i] for i in dynamic], weak=[k.weak for k in kinds],
            )  # fmt: skip
        _warn_captures(self.fun, jaxpr, captured)
        for v in frozen:
            v.settle()
        return Program(jaxpr, captured, flat, (statics, shapes, surroundings()), paths, reads)

    def _entry(
        self, leaves: list, treedef: Any, values: tuple, statics: tuple, keys: tuple,
        settings: config.Config, call: tuple[tuple, dict],
    ) -> Entry:  # fmt: skip
        cache = self.cache
        with cache.lock:
            slow_key = (treedef, statics, surroundings(), keys)
            entry = cache.entries.get(slow_key)
            if entry is not None and entry.program.current():
                cache.entries.move_to_end(slow_key)
                return entry
            for x in leaves:
                if type(x) is Array:
                    live(x)
                elif isinstance(x, Tracer):
                    raise x._trace.leaked(x)
            shelf = self._shelf(statics, leaves)
            entry = self._kept(shelf, slow_key)
            if entry is not None:
                self._add_fast(entry, *call, settings)
                return entry
            key, program = self._program(leaves, treedef, values, statics, shelf, settings)
            place = _common_device(leaves, program, self.fun)
            dynamic = [i for i, x in enumerate(leaves) if is_value(x)]
            donated = self.donate.leaves(values, self.static)
            mask = [False] * len(program.captured) + [i in donated for i in dynamic]
            if settings.log_compiles:
                log.warning("compiling %s for %s", name_of(self.fun), program.jaxpr.in_avals)
            with no_collection():
                executable = place.backend.compile(
                    program.jaxpr, place, mask if any(mask) else (), self.options["compiler"]
                )
            self._check_donation(executable, program)
            entry = Entry(
                program, executable, dynamic, all(type(x) is Array for x in leaves),
                [p for p, i in enumerate(dynamic) if i in donated], place,
            )  # fmt: skip
            self._keep(entry, slow_key, statics, keys, call, settings)
            if shelf is not None and shelf.get(key) is not None:
                shelf.put(slow_key, key, program, entry)
            return entry

    def _kept(self, shelf: Shelf | None, slow_key: tuple) -> Entry | None:
        """The compiled program that another function of the same meaning had."""
        kept = shelf.get(slow_key) if shelf is not None else None
        if kept is None:
            return None
        program = kept.taken(self.cache.programs.get((kept.program_key, 0)))
        if program is None:
            return None
        entry = kept.entry_of(program)
        self.cache.programs[kept.program_key, 0] = program
        if entry is not None:
            self.cache.entries[slow_key] = entry
        return entry

    def _keep(
        self, entry: Entry, slow_key: tuple, statics: tuple, keys: tuple,
        call: tuple[tuple, dict], settings: config.Config,
    ) -> None:  # fmt: skip
        """Remember a compiled program, by the key and by the form of the call."""
        cache = self.cache
        cache.entries[slow_key] = entry
        if not statics and entry.program.reads is None and not _odd_keys(slow_key[0]):
            order = self.static.order(*call)
            pull = self._guard(*call, order)
            if pull is not None:
                cache.entries[(pull, surroundings(), keys)] = entry
        while len(cache.entries) > 2 * CAPACITY:
            cache.entries.popitem(last=False)
        self._add_fast(entry, *call, settings)

    def _add_fast(self, entry: Entry, args: tuple, kwargs: dict, settings: config.Config) -> None:
        """Remember a function generated for calls like this one, if it can be had."""
        executable, program = entry.executable, entry.program
        debugging = settings.debug_nans or settings.debug_infs or ctx.watch is not None
        if debugging or ctx.axes:
            return
        form = tree.structure((args, kwargs))
        if entry.call is not None and entry.call[0] is settings and entry.call[2] == form:
            self.cache.fast.insert(0, entry.call[:2])
            del self.cache.fast[_FAST:]
            return
        place = entry.device  # what is generated must not hold the entry, which holds it

        def failed(error: Exception, arrays: list) -> Exception:
            return _explained(executable.explained(error), arrays)

        call = caller(
            args, kwargs, self.static.order, static=self.static.given(args, kwargs),
            captured=program.captured, executable=executable,
            sigs=[sig(s.aval, s.device, s.dense, w)
                  for s, w in zip(executable.sigs, program.outs_weak, strict=True)],
            out_tree=program.out_tree, donated=entry.donated,
            paths=[program.paths[i] for i in entry.dynamic], name=name_of(self.fun),
            number=lambda x: _runtime(x, place), failed=failed,
            place=place, key_uses=program.key_uses,
            reads=program.reads,
        )  # fmt: skip
        if call is not None:
            entry.call = (settings, call, form)
            self.cache.fast.insert(0, entry.call[:2])
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

    def _check_donation(self, executable: Executable, program: Program) -> None:
        unused = executable.unused_donations
        action = self.options.get("on_unusable_donation", "warn")
        if not unused or action == "ignore":
            return
        labels = program.jaxpr.labels
        text = "; ".join(f"{labels[i]} ({why})" for i, why in unused[:4])
        text += f"; and {len(unused) - 4} more" if len(unused) > 4 else ""
        message = (
            f"{name_of(self.fun)}: {len(unused)} donated inputs cannot be reused: {text}\n"
            f"  called at {where(depth=4).describe()}\n"
            "  donate only what the function returns in updated form, or pass "
            'on_unusable_donation="ignore"'
        )
        if action == "error":
            raise errors.DonatedError(message)
        warn(message)

    def _explain_retrace(self, program: Program, settings: config.Config) -> None:
        cache = self.cache
        count, limit = len(cache.programs), self.options.get("max_traces")
        if limit is not None and count > limit:
            reason = self._difference(program)
            cache.programs.popitem()
            raise errors.GenesisError(
                f"{name_of(self.fun)} was traced {count} times, but max_traces={limit}\n  {reason}"
                f"\n  called at {where(depth=4).describe()}\n"
                "  keep shapes, dtypes and static values the same, or raise max_traces"
            )
        if (
            count >= 3
            and settings.explain_cache_misses
            and (count & (count - 1) == 0 or count == 3)
        ):
            warn(
                f"{name_of(self.fun)} has been traced {count} times"
                f"\n  {self._difference(program)}\n  called at {where(depth=4).describe()}",
                RecompilationWarning,
            )

    def _difference(self, program: Program) -> str:
        return difference(program, list(self.cache.programs.values())[:-1], self.static)

    # ---- inspection ----

    @property
    def traces(self) -> list[dict[str, str]]:
        """What the function has been traced for: one {leaf path: type or static value} a
        program."""
        return [
            {
                **dict(zip(p.paths, map(show_key, p.keys[1]))),
                **{self.static.label(n): repr(v) for n, v in p.keys[0]},
            }
            for p in self.cache.programs.values()
        ]

    @property
    def captures(self) -> list[Captured]:
        """(name, type, nbytes, line that reads it first) of every array that the traced programs
        captured from outside."""
        programs = [(p.jaxpr, p.captured) for p in self.cache.programs.values()]
        return captures_of(self.fun, programs)

    def cache_size(self) -> int:
        """How many signatures are compiled."""
        return len({id(e) for e in self.cache.entries.values()})

    _cache_size = cache_size

    def clear_cache(self) -> None:
        """Forget all programs and executables of this function."""
        forget(self.cache)
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
        return [as_array(x) for x in leaves if is_value(x)]

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The output's shapes and dtypes, without computing it."""
        return self._stage(args, kwargs).out_info

    def _stage(self, args: tuple, kwargs: dict[str, Any]) -> Traced:
        args, kwargs, given = self.static.bind(args, kwargs)
        values = self.static.without(args, kwargs)
        leaves, treedef = tree.flatten(values)
        leaves = [
            x if is_value(x) else self._static(x, i, values)
            for i, x in enumerate(map(abstract_of, leaves))
        ]
        statics = self._statics(given)
        shapes = tuple([program_key(x) for x in leaves])
        program = self._trace(leaves, treedef, statics, shapes, self._paths(values))
        donated = self.donate.leaves(values, self.static)
        mask = [is_value(x) for x in leaves]
        lent = [i in donated for i, m in enumerate(mask) if m]
        return Traced(self.fun, self.static, program, treedef, mask, lent)


def _odd_keys(treedef: tree.PyTreeDef) -> tuple:
    """What tells the keys of dicts apart that are equal but of several types, such as 1 and True:
    structures are compared by equality."""
    return tuple(
        [
            (i, j, Frozen(k))
            for i, path in enumerate(treedef.paths())
            for j, k in enumerate(path)
            if type(k) is not str and type(k) is not int
        ]
    )


def _copy(x: Array) -> Array:
    return like(x, from_numpy(x.device.backend.to_numpy(stored(live(x))), x.device))


def _runtime(x: Any, place: devices.Device) -> Array:
    if type(x) is Array:
        return x
    return from_numpy(fitted(x, scalar_dtype(type(x))), place)


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


def _warn_captures(fun: Callable, jaxpr: Jaxpr, captured: Sequence[Any]) -> None:
    large = sum(x.nbytes for x in captured if type(x) is Array)
    if large > LARGE:
        most = max(captures_of(fun, [(jaxpr, captured)]), key=lambda c: c.nbytes)
        warn(
            f"{name_of(fun)} captured {large >> 20} MiB of arrays from outside; they stay alive "
            f"with its compiled programs\n  called at {where(depth=4).describe()}\n"
            f"  the largest is {most}, first read at {most.line}\n"
            "  pass them as arguments; .captures lists them"
        )


def _explained(error: Exception, arrays: Sequence[Any]) -> Exception:
    for x in arrays:
        if type(x) is Array and isinstance(x.data, Deleted):
            return x.data.error()
    return error


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

    Arrays, those of NumPy and torch too, and numbers are traced; leaves of other types are static
    by themselves, by type and content as they are at each call (ints by `static_argnums` or
    `static_argnames`). Globals and closures are read while tracing, and never again. Donated
    arguments lend their memory to the outputs and cannot be used afterwards;
    `on_unusable_donation` is "warn", "error" or "ignore". `max_traces` turns retracing beyond it
    into an error. `compiler="inductor"` compiles by TorchInductor on CPU.
    """
    options = {
        "static_argnums": static_argnums, "static_argnames": static_argnames,
        "donate_argnums": donate_argnums, "donate_argnames": donate_argnames,
        "on_unusable_donation": on_unusable_donation, "max_traces": max_traces,
        "compiler": compiler,
    }  # fmt: skip
    unknown = set(ignored) - {"inline", "keep_unused", "device", "backend"}
    if unknown:
        raise TypeError(
            f"jit has no option {sorted(unknown)}; it has {', '.join(options)}; what a call may "
            "overwrite is named by donate_argnums and donate_argnames"
        )
    if on_unusable_donation not in ("warn", "error", "ignore"):
        raise ValueError('on_unusable_donation is "warn", "error" or "ignore"')
    if fun is None:
        return lambda f: jit(f, **{k: v for k, v in options.items()})
    if not callable(fun):
        raise TypeError(f"jit takes a function, got {fun!r}")
    return JitFunction(fun, options)


def clear_caches() -> None:
    """Forget every traced program and executable of the process."""
    forget_all()
    for f in list(_live):
        f.cache.clear()


__all__ = ["JitFunction", "clear_caches", "jit"]
