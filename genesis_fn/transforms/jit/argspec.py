"""Static and donated arguments of a jitted function, and its calls in the one form that all ways of
writing a call share."""

from __future__ import annotations

import dataclasses
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

from genesis_fn.core import errors, tree
from genesis_fn.core.array import Array
from genesis_fn.core.aval import aval
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.dtypes import scalar_dtype
from genesis_fn.core.primitive import SCALARS, Tracer
from genesis_fn.core.static import Frozen, NotStatic, is_array
from genesis_fn.transforms.staging.api_util import name_of
from genesis_fn.transforms.staging.shape_dtype_struct import Abstract, abstract_of


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
    own = type(fun) is types.FunctionType and vars(fun)
    if own is False or "__wrapped__" in own or "__signature__" in own:
        return _Form(fun)
    found = _forms.get(fun.__code__)
    if found is None:
        found = _forms[fun.__code__] = _Form(fun)
    return found


def _as_tuple(x: Any) -> tuple:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


@dataclasses.dataclass(slots=True, eq=False)
class Arguments:
    """A call in its one form.

    `values` are (args, kwargs) with `Frozen` in place of static arguments, `given` their leaves as
    they came, `leaves` what they are to a program: arrays, numbers, tracers, shapes, or `Frozen`.
    """

    values: tuple[tuple, dict[str, Any]]
    given: list[Any]
    leaves: list[Any]
    treedef: tree.PyTreeDef

    def key(self) -> tuple:
        """What programs are told apart by: the structure, (the keys of dicts in it that are neither
        text nor ints: structures are compared by equality, to which 1 and True are the same), and
        what each leaf is traced as."""
        odd = [
            (i, j, Frozen(k))
            for i, path in enumerate(self.treedef.paths())
            for j, k in enumerate(path)
            if type(k) is not str and type(k) is not int
        ]
        return self.treedef, tuple(odd), self.shapes()

    def shapes(self) -> tuple:
        """What each leaf is traced as."""
        return tuple([leaf_key(x) for x in self.leaves])

    def kinds(self) -> list[Any]:
        """What generated calls tell leaves apart by."""
        return [x.sig if type(x) is Array else type(x) for x in self.given]

    def frozen(self) -> list[Frozen]:
        """All static values."""
        return [x for x in self.leaves if type(x) is Frozen]

    def arrays(self, device: Device | None = None) -> list[Any]:
        """The inputs of the program after the captured ones; numbers go to `device`."""
        return [
            x if type(x) is Array else as_array(x, None, device)
            for x in self.leaves if type(x) is not Frozen
        ]  # fmt: skip


def leaf_key(x: Any) -> Any:
    """What a leaf of the arguments contributes to the key of a program. Devices do not change a
    program, only avals and weakness do."""
    kind = type(x)
    if kind is Array:
        return (x.sig.aval, True) if x.sig.weak else x.sig.aval
    if kind in SCALARS:
        return aval((), scalar_dtype(kind)), True
    if kind is Frozen:
        return x
    return (x.aval, True) if x.weak else x.aval


_TAKEN = frozenset((Array, Frozen, *SCALARS))


class ArgSpec:
    """Which arguments of a function are static, and which lend it their memory, by position and by
    name."""

    def __init__(self, fun: Callable, options: dict[str, Any]) -> None:
        self.fun, self.name, form = fun, name_of(fun), _form_of(fun)
        self.positional, self.either = form.positional, form.either
        nums, names = self._chosen(form, "static", options)
        self.nums = {n % len(self.positional) if n < 0 and self.positional else n for n in nums}
        self.nums |= {self.positional.index(n) for n in names if n in self.positional}
        self.names = {*names, *[self.positional[n] for n in self.nums if n < len(self.positional)]}
        self.donated_nums, self.donated_names = self._chosen(form, "donate", options)

    def _chosen(self, form: _Form, verb: str, options: dict[str, Any]) -> tuple[tuple, tuple]:
        """The positions and names of an option. Raises ValueError for what cannot be an
        argument."""
        nums, names = options[f"{verb}_argnums"], options[f"{verb}_argnames"]
        if nums is None and names is None:
            return (), ()
        nums, names, known, count = (
            _as_tuple(nums),
            _as_tuple(names),
            form.known,
            len(form.positional),
        )
        for n in nums:
            if known is not None and not form.varargs and not -count <= n < count:
                raise ValueError(
                    f"{verb}_argnums={n}: {self.name} has {count} positional arguments\n"
                    f"  at {where().describe()}"
                )
        for name in names:
            if known is not None and not form.varkw and name not in known:
                raise ValueError(
                    f"{verb}_argnames: {self.name} has no argument {name!r}; it has "
                    f"{', '.join(known)}\n  at {where().describe()}"
                )
        return nums, names

    def bind(self, args: tuple, kwargs: dict[str, Any], shapes: bool = False) -> Arguments:
        """A call in the one form: an argument given by name stands at its position if all before it
        do. With `shapes`, leaves may be shapes and dtypes. Raises TypeError for static values that
        cannot be part of a program."""
        values = self.with_frozen(*self.placed(args, kwargs))
        given, treedef = tree.flatten(values)
        place = next((x.sig.device for x in given if type(x) is Array), None)
        leaves = [
            x
            if type(x) in _TAKEN or isinstance(x, Tracer)
            else as_array(x, None, place)
            if is_value(x)
            else self._frozen(x, lambda i=i: self.paths(values)[i])
            for i, x in enumerate(map(abstract_of, given) if shapes else given)
        ]
        return Arguments(values, given, leaves, treedef)

    def placed(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """(args, kwargs) in the one form."""
        if not kwargs:
            return args, kwargs
        rest = dict(kwargs)
        for name in self.either[len(args) :]:
            if name not in rest:
                break
            args = (*args, rest.pop(name))
        return args, rest

    def with_frozen(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments with static ones as single leaves."""
        if not self.nums and not self.names:
            return args, kwargs
        return (
            tuple([self._static(i, a) if i in self.nums else a for i, a in enumerate(args)]),
            {k: self._static(k, v) if k in self.names else v for k, v in kwargs.items()},
        )

    def donated(self, given: Arguments) -> tuple[int, ...]:
        """The positions of donated arrays among those of a call. Raises DonatedError for one buffer
        donated twice."""
        if not self.donated_nums and not self.donated_names:
            return ()
        args, kwargs = given.values
        named = [(i, self.label(i), a) for i, a in enumerate(args)]
        named += [(None, k, kwargs[k]) for k in sorted(kwargs)]
        lent: list[str | None] = []  # what donated leaves are called
        for i, label, value in named:
            asked = label in self.donated_names or (
                i is not None and not {i, i - len(args)}.isdisjoint(self.donated_nums)
            )
            lent += [label + p if asked else None for p in tree.paths(value)]
        found, seen = [], {}
        rows = zip(given.given, given.leaves, lent)
        dynamic = [(x, name) for x, leaf, name in rows if type(leaf) is not Frozen]
        for position, (x, name) in enumerate(dynamic):
            if name is None or not isinstance(x, (Array, Abstract)):
                continue
            if type(x) is Array and seen.setdefault(id(x), name) != name:
                raise errors.DonatedError(
                    f"one array is donated twice, as {seen[id(x)]} and as {name}\n"
                    f"  at {where().describe()}\n  pass a copy: x.copy()"
                )
            found.append(position)
        return tuple(found)

    def label(self, place: int | str) -> str:
        """The name of an argument by its position (or name)."""
        if isinstance(place, str):
            return place
        return self.positional[place] if place < len(self.positional) else f"argument {place}"

    def paths(self, values: tuple[tuple, dict[str, Any]]) -> list[str]:
        """What to call each leaf: `params['w']`, `batch[0]`."""
        args, kwargs = values
        named = [f"{self.label(i)}{p}" for i, a in enumerate(args) for p in tree.paths(a)]
        return named + [f"{k}{p}" for k in sorted(kwargs) for p in tree.paths(kwargs[k])]

    def _static(self, place: int | str, x: Any) -> Frozen:
        name = lambda: f"static argument {self.label(place)!r}"
        if isinstance(x, (list, dict, set, bytearray)):
            raise self._refusal(NotStatic(x, ""), name())
        return self._frozen(x, name)

    def _frozen(self, x: Any, what: Callable[[], str]) -> Frozen:
        try:
            return Frozen(x)
        except NotStatic as error:
            raise self._refusal(error, what()) from None

    def _refusal(self, error: NotStatic, what: str) -> TypeError:
        """The error for a value in the argument `what` that cannot be part of a program."""
        kind, path = type(error.value).__name__, error.path
        if is_array(error.value):
            shown = f"an array ({kind})" if path else "an array"
            why = f"is {shown}; static values are part of the program"
            remedy = (
                "make what holds it a pytree (tree.dataclass, tree_util.register_pytree_node), or "
                "pass the array as an argument of its own"
                if path
                else "leave it out of static_argnums and static_argnames: arrays are traced"
            )
        else:
            reason = f", {error.why}" if path or error.why.startswith("of a type") else ""
            why = f"is {error.value!r:.60} of type {kind}"
            why += reason or ", which is neither an array nor hashable"
            remedy = (
                "pass arrays, numbers, or static values such as tuples and frozen dataclasses "
                "(ints by static_argnames), or make its class a pytree"
            )
        inside = f": {path} in it" if path else ""
        return TypeError(
            f"{what} of {self.name}{inside} {why}\n  at {where().describe()}\n  {remedy}"
        )
