"""Why a function was traced again: keys of programs and the difference between two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis_fn.core import config, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.dtypes import kind_rank
from genesis_fn.core.static import Frozen
from genesis_fn.transforms.jit.argspec import ArgSpec
from genesis_fn.transforms.jit.jit_cache import Program


class RecompilationWarning(UserWarning):
    """A jitted function was traced again; the message says what changed."""


def show_key(key: Any) -> str:
    """A `leaf_key` in words."""
    if isinstance(key, Aval):
        return str(key)
    if isinstance(key, tuple) and isinstance(key[0], Aval):
        kind = key[0]
        name = ("bool", "int", "float", "complex")[kind_rank(kind.dtype)]
        return f"{kind} (weak)" if kind.shape else f"Python {name}"
    return repr(key)


def _around_difference(before: tuple, now: tuple) -> list[str]:
    """What differs between two values of `surroundings()`."""
    names = ("named axes", "safe_zero", "within a backward pass", "within a jvp rule")
    found = [f"{n}: {a} -> {b}" for n, a, b in zip(names, before, now) if a != b]
    return found + [
        f"setting {n}: {getattr(before[-1], n)} -> {getattr(now[-1], n)}"
        for n in config.names()
        if getattr(before[-1], n) != getattr(now[-1], n)
    ]


def _structures(before: Program, now: Program, spec: ArgSpec) -> list[str]:
    """How the containers of the arguments differ."""
    try:
        (args0, kwargs0), (args, kwargs) = [
            tree.unflatten(p.in_tree, p.paths) for p in (before, now)
        ]
    except Exception:  # a node of the user's that refuses to hold texts
        return []
    pairs = [(spec.label(i), *ab) for i, ab in enumerate(zip(args0, args))]
    pairs += [(k, kwargs0[k], kwargs[k]) for k in kwargs if k in kwargs0]
    found = [tree.first_difference(a, b, name) for name, a, b in pairs]
    # "at p: expected a list of 2, got a tuple of 2", in the words of this module
    return [
        f.removeprefix("at ").replace(": expected ", ": ").replace(", got ", " -> ")
        for f in found if f
    ]  # fmt: skip


def _advice(key: Any) -> str:
    """What to do where a static value differs because it is another object."""
    if isinstance(key, Frozen) and key.lonely:
        return "; such objects equal only themselves: make it once"
    return ""


def difference(program: Program, earlier: Sequence[Program], spec: ArgSpec) -> str:
    """What distinguishes a program from the most similar of the earlier ones."""
    best: list[str] | None = None
    (statics, _, around), now = program.keys, dict(zip(program.paths, program.keys[1]))
    shown = lambda given, n: repr(given[n]) if n in given else "not given"
    for other in earlier:
        (statics0, _, around0), before = other.keys, dict(zip(other.paths, other.keys[1]))
        found = [f"new leaf {p}" for p in now if p not in before][:2]
        found += [f"missing leaf {p}" for p in before if p not in now][:2]
        found += [
            f"{p}: {show_key(before[p])} -> {show_key(now[p])}{_advice(now[p])}"
            for p in now if p in before and before[p] != now[p]
        ]  # fmt: skip
        if not found and program.in_tree != other.in_tree:
            found = _structures(other, program, spec) or ["the argument structure changed"]
        given0, given = dict(statics0), dict(statics)
        found += [
            f"static {spec.label(n)}: {shown(given0, n)} -> {shown(given, n)}"
            + ("; pass it as an array to trace it once" if n in given and given[n].is_int else "")
            for n in {**given0, **given}
            if shown(given0, n) != shown(given, n)
        ]
        found += _around_difference(around0, around)
        if other.reads is not None:
            found += [f"{name} is another value now" for name in other.reads.changed()]
        if best is None or len(found) <= len(best):
            best = found
    if not best:
        return "another program of equal arguments was dropped from the cache"
    return "; ".join(best[:3]) + (f"; and {len(best) - 3} more" if len(best) > 3 else "")


__all__ = ["RecompilationWarning", "difference", "show_key"]
