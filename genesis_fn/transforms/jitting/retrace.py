"""Why a function was traced again: the difference between the keys of two programs, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.dtypes import kind_rank
from genesis_fn.core.static import Frozen
from genesis_fn.transforms.jitting.argspec import ArgSpec
from genesis_fn.transforms.jitting.jit_cache import Program


class RecompilationWarning(UserWarning):
    """A jitted function was traced again; the message says what changed."""


def show_key(key: Any) -> str:
    """A `leaf_key` in words; None means that there is no such leaf."""
    if key is None:
        return "not given"
    if isinstance(key, Aval):
        return str(key)
    if isinstance(key, tuple) and isinstance(key[0], Aval):
        aval = key[0]
        name = ("bool", "int", "float", "complex")[kind_rank(aval.dtype)]
        return f"{aval} (weak)" if aval.shape else f"Python {name}"
    return repr(key)


def _context_difference(before: tuple[Any, ...], now: tuple[Any, ...]) -> list[str]:
    """What differs between two values of `trace_context_key()`."""
    names = (
        "named axes",
        "safe_zero",
        "within a backward pass",
        "within a jvp rule",
        "within checkify",
        "mesh",
    )
    changes = [f"{n}: {a} -> {b}" for n, a, b in zip(names, before, now) if a != b]
    return changes + [
        f"setting {n}: {getattr(before[-1], n)} -> {getattr(now[-1], n)}"
        for n in config.names()
        if getattr(before[-1], n) != getattr(now[-1], n)
    ]


def _structures(before: Program, now: Program, spec: ArgSpec) -> list[str]:
    """How the containers of the arguments differ."""
    try:
        (args0, kwargs0), (args, kwargs) = [
            tree.unflatten(p.key.treedef, p.paths) for p in (before, now)
        ]
    except Exception:  # a node of the user's that refuses to hold texts
        return []
    pairs = [(spec.label(i), *ab) for i, ab in enumerate(zip(args0, args))]
    pairs += [(k, kwargs0[k], kwargs[k]) for k in kwargs if k in kwargs0]
    changes = [tree.first_difference(a, b, name) for name, a, b in pairs]
    # "at p: expected a list of 2, got a tuple of 2", in the words of this module
    return [
        f.removeprefix("at ").replace(": expected ", ": ").replace(", got ", " -> ")
        for f in changes
        if f
    ]


def _change(name: str, before: Any, now: Any, static: bool) -> str:
    """How a leaf differs, and what the user may do about it."""
    remedy = ""
    if isinstance(now, Frozen) and now.is_int:
        remedy = "; pass it as an array to trace it once"
    elif isinstance(now, Frozen) and now.lonely:
        remedy = "; such objects equal only themselves: make it once"
    return f"{'static ' * static}{name}: {show_key(before)} -> {show_key(now)}{remedy}"


def difference(program: Program, earlier: Sequence[Program], spec: ArgSpec) -> str:
    """What distinguishes a program from the most similar of the earlier ones."""
    best: list[str] | None = None
    static = {spec.label(p) for p in spec.static}
    now = dict(zip(program.paths, program.key.leaves))
    for other in earlier:
        before = dict(zip(other.paths, other.key.leaves))
        changes = [f"new leaf {p}" for p in now if p not in before and p not in static][:2]
        changes += [f"missing leaf {p}" for p in before if p not in now and p not in static][:2]
        changes += [
            _change(p, before.get(p), now.get(p), p in static)
            for p in {**before, **now}
            if before.get(p) != now.get(p) and (p in static or (p in before and p in now))
        ]
        if not changes and program.key.treedef != other.key.treedef:
            changes = _structures(other, program, spec) or ["the argument structure changed"]
        changes += _context_difference(other.key.trace_context, program.key.trace_context)
        changes += [
            f"{type(g.x).__name__}.{g.name} is another value now"
            for g in other.guards
            if g.name is not None and not g.holds()
        ]
        if best is None or len(changes) <= len(best):
            best = changes
    if not best:
        return "another program of equal arguments was dropped from the cache"
    return "; ".join(best[:3]) + (f"; and {len(best) - 3} more" if len(best) > 3 else "")
