"""Which arguments of a jitted function are static, and which lend it their memory."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.array import Array
from genesis_fn.core.source import where
from genesis_fn.core.static import Frozen, NotStatic, is_array
from genesis_fn.transforms.abstract import Abstract
from genesis_fn.transforms.flat import name_of


def _parameters(fun: Callable, follow_wrapped: bool = True) -> list[inspect.Parameter] | None:
    try:
        signature = inspect.signature(fun, follow_wrapped=follow_wrapped)
        return list(signature.parameters.values())
    except (TypeError, ValueError):
        return None


class _Form:
    """What the signature of a function says of how it is called; `known` is None without one."""

    __slots__ = ("known", "positional", "varargs", "varkw", "either")

    def __init__(self, fun: Callable) -> None:
        parameters = _parameters(fun)
        found = parameters or ()
        self.known = None if parameters is None else [p.name for p in parameters]
        self.positional = [
            p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self.varargs = any([p.kind == p.VAR_POSITIONAL for p in found])
        self.varkw = any([p.kind == p.VAR_KEYWORD for p in found])
        # By the function's own signature: what it wraps may take what it does not.
        own = _parameters(fun, follow_wrapped=False) or ()
        self.either = [
            p.name if p.kind == p.POSITIONAL_OR_KEYWORD else None
            for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip


_forms: weakref.WeakKeyDictionary[types.CodeType, _Form] = weakref.WeakKeyDictionary()


def _form_of(fun: Callable) -> _Form:
    """The form of a function, read once for all functions of one code."""
    if type(fun) is not types.FunctionType or "__wrapped__" in vars(fun):
        return _Form(fun)
    if "__signature__" in vars(fun):
        return _Form(fun)
    found = _forms.get(fun.__code__)
    if found is None:
        found = _forms[fun.__code__] = _Form(fun)
    return found


def _as_tuple(x: Any) -> tuple:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


class Static:
    """Which arguments of a function are static, by position and by name."""

    def __init__(self, fun: Callable, nums: Any, names: Any) -> None:
        self.fun, form = fun, _form_of(fun)
        self.positional, self.either = form.positional, form.either
        self.nums: set[int] = set()
        self.names: set[str] = set()
        if nums is not None or names is not None:
            self._choose(form, _as_tuple(nums), _as_tuple(names))

    def _choose(self, form: _Form, nums: tuple, names: tuple) -> None:
        known, positional = form.known, form.positional
        for n in nums:
            if (
                known is not None
                and not form.varargs
                and not (-len(positional) <= n < len(positional))
            ):
                raise ValueError(
                    f"static_argnums={n}: {name_of(self.fun)} has {len(positional)} positional "
                    "arguments"
                )
        for name in names:
            if known is not None and not form.varkw and name not in known:
                raise ValueError(f"static_argnames: {name_of(self.fun)} has no argument {name!r}")
        self.nums = {n % len(positional) if n < 0 and positional else n for n in nums}
        self.nums |= {positional.index(n) for n in names if n in positional}
        self.names = {*names, *(positional[n] for n in self.nums if n < len(positional))}

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
        if not self.nums and not self.names:
            return
        form = _form_of(fun)
        known, count = form.known, len(form.positional)
        for n in self.nums:
            if known and not form.varargs and not -count <= n < count:
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


def static_key(x: Any, what: str, fun: Callable) -> Frozen:
    """What `x`, which is `what` among the arguments of `fun`, is as part of a program. Raises
    TypeError for what cannot be."""
    try:
        return Frozen(x)
    except NotStatic as error:
        raise not_static(error, what, fun) from None


def not_static(error: NotStatic, what: str, fun: Callable) -> TypeError:
    """The error for a value in `what` that cannot be part of a program."""
    kind, path = type(error.value).__name__, error.path
    if is_array(error.value):
        shown = f"an array ({kind})" if path else "an array"
        remedy = (
            "make what holds it a pytree (tree.dataclass, tree_util.register_pytree_node), or pass "
            "the array as an argument of its own"
            if path
            else "leave it out of static_argnums and static_argnames: arrays are traced"
        )
        why = f"is {shown}; static values are part of the program"
    else:
        reason = f", {error.why}" if path or error.why.startswith("of a type") else ""
        why = f"is {error.value!r:.60} of type {kind}"
        why += reason or ", which is neither an array nor hashable"
        remedy = (
            "pass arrays, numbers, or static values such as tuples and frozen dataclasses (ints by "
            "static_argnames), or make its class a pytree"
        )
    inside = f"{path} in it " if path else ""
    return TypeError(
        f"{what} of {name_of(fun)}: {inside}{why}\n  at {where(depth=5).describe()}\n  {remedy}"
        if path
        else f"{what} of {name_of(fun)} {why}\n  at {where(depth=5).describe()}\n  {remedy}"
    )


__all__ = ["Donation", "Static", "not_static", "static_key"]
