"""Static and donated arguments of `jit`, and the canonical form of a call.

`f(1, 2)`, `f(1, b=2)` and `f(b=2, a=1)` are one call: `ArgSpec.bind` makes positional arguments of
keywords where it can, wraps static arguments in `Frozen`, and flattens. The key of a program is
made of the result.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from genesis_fn.core import errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import aval
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.dtypes import scalar_dtype
from genesis_fn.core.primitive import SCALARS, Tracer, trace_context_key
from genesis_fn.core.static import Frozen, NotStatic, is_array
from genesis_fn.transforms.staging.api_util import name_of
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct, abstract_of

# A parameter's name and kind. Not its default, which may be large.
_Parameter: TypeAlias = tuple[str, Any]
_NAMED, _ANY, _ANY_NAMED = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)
# {code: parameters} of plain functions: read once for all functions that are made of one code.
_read: weakref.WeakKeyDictionary[types.CodeType, Any] = weakref.WeakKeyDictionary()


def _parameters(fun: Callable[..., Any]) -> tuple[list[_Parameter] | None, list[_Parameter] | None]:
    """(parameters of the function that `fun` wraps, those of `fun` itself, which may be fewer);
    None for what has no signature."""
    plain = type(fun) is types.FunctionType
    plain = plain and vars(fun).keys().isdisjoint(("__wrapped__", "__signature__"))
    result = _read.get(fun.__code__) if plain else None
    if result is None:
        result = _signature(fun, follow_wrapped=True), _signature(fun, follow_wrapped=False)
        if plain:
            _read[fun.__code__] = result
    return result


def _signature(fun: Callable[..., Any], follow_wrapped: bool) -> list[_Parameter] | None:
    try:
        signature = inspect.signature(fun, follow_wrapped=follow_wrapped)
        return [(p.name, p.kind) for p in signature.parameters.values()]
    except (TypeError, ValueError):
        return None


def _positional(parameters: Sequence[_Parameter] | None) -> list[_Parameter]:
    return [p for p in parameters or () if p[1] < _ANY]


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


class ProgramKey(NamedTuple):
    """The key of a program: the structure of the arguments, the keys of dicts in it that are
    neither strings nor ints (structures compare by equality, by which 1 and True are the same),
    what each leaf is traced as, `trace_context_key()`, and the device of arrays created while
    tracing."""

    treedef: tree.PyTreeDef
    dict_keys: tuple[Any, ...]
    leaves: tuple[Any, ...]
    trace_context: tuple[Any, ...]
    device: Device | None


@dataclasses.dataclass(slots=True, eq=False)
class BoundArguments:
    """A call in canonical form.

    `written` are (args, kwargs) as the caller wrote them; `values` are these in canonical form,
    with `Frozen` in place of static arguments; `raw_leaves` are the leaves of `values`, and
    `leaves` the same as a program takes them: arrays, numbers, tracers, ShapeDtypeStructs, or
    `Frozen`.
    """

    written: tuple[tuple[Any, ...], dict[str, Any]]
    values: tuple[tuple[Any, ...], dict[str, Any]]
    raw_leaves: list[Any]
    leaves: list[Any]
    treedef: tree.PyTreeDef

    def key(self, device: Device | None) -> ProgramKey:
        """The key of a program for these arguments, traced now with `device` as the default."""
        dict_keys = [
            (i, j, Frozen(k))
            for i, path in enumerate(self.treedef.paths())
            for j, k in enumerate(path)
            if type(k) is not str and type(k) is not int
        ]
        leaves = tuple([leaf_key(x) for x in self.leaves])
        return ProgramKey(self.treedef, tuple(dict_keys), leaves, trace_context_key(), device)

    def form(self) -> tuple[Any, ...]:
        """The key of a generated call among those of one program: how the arguments are written,
        and the type of each leaf before it is converted to an array."""
        args, kwargs = self.written
        leaf_types = [x.sig if type(x) is ArrayImpl else type(x) for x in self.raw_leaves]
        return len(args), *sorted(kwargs), *leaf_types

    def frozen(self) -> list[Frozen]:
        """All static values."""
        return [x for x in self.leaves if type(x) is Frozen]

    def arrays(self, device: Device | None = None) -> list[Any]:
        """The inputs of the program after the captured ones; numbers go to `device`."""
        return [
            x if type(x) is ArrayImpl else as_array(x, None, device)
            for x in self.leaves
            if type(x) is not Frozen
        ]


def leaf_key(x: Any) -> Any:
    """The part of a leaf in the key of a program: its aval and weakness, or its static value. Not
    its device, which does not change the program."""
    kind = type(x)
    if kind is ArrayImpl:
        return (x.sig.aval, True) if x.sig.weak else x.sig.aval
    if kind in SCALARS:
        return aval((), scalar_dtype(kind)), True
    if kind is Frozen:
        return x
    return (x.aval, True) if x.weak else x.aval


# Types of leaves that a program takes without conversion.
_TAKEN = frozenset((ArrayImpl, Frozen, *SCALARS))


def _numbered(values: tuple[tuple[Any, ...], dict[str, Any]]) -> list[tuple[int | str, Any]]:
    """(position or name, value) of each argument, in the order of their leaves."""
    args, kwargs = values
    return [*enumerate(args), *[(k, kwargs[k]) for k in sorted(kwargs)]]


def _is_chosen(arg: int | str, args: tuple[Any, ...], chosen: frozenset[int | str]) -> bool:
    """Whether an argument is among those that an option names."""
    return arg in chosen or (type(arg) is int and arg - len(args) in chosen)


class ArgSpec:
    """Which arguments of a function are static and which are donated: sets of positions and names,
    both for an argument that has both, since a call may use either."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]) -> None:
        self.name = name_of(fun)
        parameters, own = _parameters(fun)
        self.positional = [name for name, _ in _positional(parameters)]
        # Of the function's own signature: a wrapper may not take all that the wrapped function
        # takes.
        self.keywords = [name if kind is _NAMED else None for name, kind in _positional(own)]
        self.static = self._chosen("static", options, parameters)
        self.donated = self._chosen("donate", options, parameters)
        if both := self.static & self.donated:
            named = ", ".join([repr(x) for x in sorted(both, key=str)])
            raise ValueError(
                f"jit of {self.name}: {named} cannot be static and donated at once\n"
                f"  at {where().describe()}"
            )

    def _chosen(
        self, verb: str, options: dict[str, Any], parameters: Sequence[_Parameter] | None
    ) -> frozenset[int | str]:
        """The arguments that an option names. Raises ValueError for what cannot be one."""
        nums, names = _as_tuple(options[f"{verb}_argnums"]), _as_tuple(options[f"{verb}_argnames"])
        if not nums and not names:
            return frozenset()
        known, count = dict(parameters or ()), len(self.positional)
        open_end = parameters is None or _ANY in known.values()
        open_names = parameters is None or _ANY_NAMED in known.values()
        for n in nums:
            if not open_end and not -count <= n < count:
                raise ValueError(
                    f"{verb}_argnums={n}: {self.name} has {count} positional arguments\n"
                    f"  at {where().describe()}"
                )
        for name in names:
            # With **kwargs, a name that a parameter has may still be none that a call can write.
            unnamed = name in known and known[name] in (inspect.Parameter.POSITIONAL_ONLY, _ANY)
            if unnamed or (not open_names and name not in known):
                raise ValueError(
                    f"{verb}_argnames: {self.name} has no argument {name!r}; it has "
                    f"{', '.join(known)}\n  at {where().describe()}"
                )
        # With *args the count is known at a call only: negative positions stay, see `_is_chosen`.
        positions = {n if open_end else n % count for n in nums}
        positions |= {self.positional.index(n) for n in names if n in self.positional}
        return frozenset(
            (*positions, *names, *[self.positional[n] for n in positions if 0 <= n < count])
        )

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: bool = False
    ) -> BoundArguments:
        """A call in canonical form: a keyword argument becomes positional if all before it are.
        With `shapes`, leaves may be ShapeDtypeStructs. Raises TypeError for static values that
        cannot be part of a program."""
        # Freeze first, by the positions and names that the caller wrote: so does generated code.
        values = self.in_order(*self.with_frozen(args, kwargs))
        given, treedef = tree.flatten(values)
        # Arrays of other libraries and numbers go to the device of the first array.
        device = next((x.sig.device.home for x in given if type(x) is ArrayImpl), None)
        leaves = [
            x
            if type(x) in _TAKEN or isinstance(x, Tracer)
            else as_array(x, None, device)
            if is_value(x)
            else self._frozen(x, lambda i=i: self.paths(values)[i])
            for i, x in enumerate(map(abstract_of, given) if shapes else given)
        ]
        return BoundArguments((args, kwargs), values, given, leaves, treedef)

    def in_order(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) in canonical form."""
        rest = dict(kwargs)
        for name in self.keywords[len(args) :] if rest else ():
            if name not in rest:
                break
            args = (*args, rest.pop(name))
        return args, rest

    def with_frozen(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with each static one as a single `Frozen` leaf."""
        if not self.static:
            return args, kwargs
        freeze = lambda arg, x: self._static(arg, x) if _is_chosen(arg, args, self.static) else x
        frozen = tuple([freeze(i, x) for i, x in enumerate(args)])
        return frozen, {k: freeze(k, x) for k, x in kwargs.items()}

    def donations(self, bound: BoundArguments) -> tuple[int, ...]:
        """The positions of donated arrays among those of a call. Raises DonatedError for one buffer
        donated twice."""
        if not self.donated:
            return ()
        donated = [
            _is_chosen(arg, bound.values[0], self.donated)
            for arg, x in _numbered(bound.values)
            for _ in range(tree.structure(x).num_leaves)
        ]
        positions, first, position = [], {}, 0
        for i, (x, leaf) in enumerate(zip(bound.raw_leaves, bound.leaves)):
            if donated[i] and isinstance(x, (ArrayImpl, ShapeDtypeStruct)):
                positions.append(position)
                if type(x) is ArrayImpl and first.setdefault(id(x), i) != i:
                    paths = self.paths(bound.values)
                    raise errors.DonatedError(
                        f"one array is donated twice, as {paths[first[id(x)]]} and as {paths[i]}\n"
                        f"  at {where().describe()}\n  pass a copy: x.copy()"
                    )
            position += type(leaf) is not Frozen  # static leaves are no inputs of the program
        return tuple(positions)

    def label(self, arg: int | str) -> str:
        """The name of an argument by its position (or name)."""
        if isinstance(arg, str):
            return arg
        return self.positional[arg] if 0 <= arg < len(self.positional) else f"argument {arg}"

    def paths(self, values: tuple[tuple[Any, ...], dict[str, Any]]) -> list[str]:
        """The name of each leaf for messages: `params['w']`, `batch[0]`."""
        return [f"{self.label(arg)}{p}" for arg, x in _numbered(values) for p in tree.paths(x)]

    def _static(self, arg: int | str, x: Any) -> Frozen:
        # As by JAX, whose static arguments must be hashable.
        name = lambda: f"static argument {self.label(arg)!r}"
        if isinstance(x, (list, dict, set, bytearray)):
            raise self._refusal(NotStatic(x, ""), name())
        return self._frozen(x, name)

    def _frozen(self, x: Any, what: Callable[[], str]) -> Frozen:
        try:
            return Frozen(x)
        except NotStatic as error:
            raise self._refusal(error, what()) from None

    def _refusal(self, error: NotStatic, what: str) -> errors.ArgumentError:
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
        return errors.ArgumentError(
            f"{what} of {self.name}{inside} {why}\n  at {where().describe()}\n  {remedy}"
        )
