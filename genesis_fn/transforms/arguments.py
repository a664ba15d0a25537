"""Which arguments of a jitted function are static, and which lend it their memory."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from genesis_fn.core import errors, tree
from genesis_fn.core.array import Array
from genesis_fn.core.primitive import Tracer
from genesis_fn.core.source import where
from genesis_fn.transforms.abstract import Abstract
from genesis_fn.transforms.flat import name_of


def _parameters(fun: Callable, follow_wrapped: bool = True) -> list[inspect.Parameter] | None:
    try:
        signature = inspect.signature(fun, follow_wrapped=follow_wrapped)
        return list(signature.parameters.values())
    except (TypeError, ValueError):
        return None


def _as_tuple(x: Any) -> tuple:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


class Static:
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


class Donation:
    """Which arguments' memory a call may take over."""

    def __init__(self, fun: Callable, nums: Any, names: Any) -> None:
        self.nums, self.names = set(_as_tuple(nums)), set(_as_tuple(names))
        parameters = _parameters(fun) or []
        known = [p.name for p in parameters]
        kinds = {p.kind for p in parameters}
        count = sum(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
        )  # fmt: skip
        for n in self.nums:
            if known and inspect.Parameter.VAR_POSITIONAL not in kinds and not -count <= n < count:
                raise ValueError(
                    f"donate_argnums={n}: {name_of(fun)} has {count} positional arguments\n"
                    f"  at {where().describe()}"
                )
        for name in self.names:
            if known and name not in known:
                raise ValueError(
                    f"donate_argnames: {name_of(fun)} has no argument {name!r}; it has "
                    f"{', '.join(known)}\n  at {where().describe()}"
                )

    def leaves(self, values: tuple[tuple, dict], static: Static) -> set[int]:
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


class ByValue:
    """A static value that has no hash and is compared by what it holds: a slice, or an instance of
    a dataclass that may change. A changed one is another value, so that it is traced again."""

    __slots__ = ("value", "key")

    def __init__(self, value: Any, key: tuple) -> None:
        self.value, self.key = value, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return type(other) is ByValue and other.key == self.key

    def __repr__(self) -> str:
        return repr(self.value)


def by_value(x: Any) -> Any:
    """`x`, or a ByValue of it where it has no hash but is a slice or a dataclass of hashables."""
    if type(x) is slice:
        parts = (slice, x.start, x.stop, x.step)
    elif dataclasses.is_dataclass(x) and not isinstance(x, type) and type(x).__hash__ is None:
        parts = (type(x), *[by_value(getattr(x, f.name)) for f in dataclasses.fields(x)])
    else:
        return x
    try:
        hash(parts)
    except TypeError:
        return x
    return ByValue(x if type(x) is slice else copy.copy(x), parts)


def hashable(x: Any, what: str, fun: Callable) -> Any:
    """`x` (or its `by_value`), which is `what` among the arguments of `fun`. Raises TypeError if it
    has no hash."""
    x = by_value(x)
    try:
        hash(x)
    except TypeError:
        if isinstance(x, (Array, Tracer, np.ndarray)):
            raise TypeError(
                f"{what} of {name_of(fun)} is an array; static values are part of the program\n"
                f"  at {where(depth=4).describe()}\n"
                "  leave it out of static_argnums and static_argnames: arrays are traced"
            ) from None
        raise TypeError(
            f"{what} of {name_of(fun)} is {x!r:.60} of type {type(x).__name__}, which is neither "
            f"an array nor hashable\n  at {where(depth=4).describe()}\n"
            "  pass arrays, numbers, or hashable values such as tuples and frozen dataclasses"
        ) from None
    return x


__all__ = ["ByValue", "Donation", "Static", "by_value", "hashable"]
