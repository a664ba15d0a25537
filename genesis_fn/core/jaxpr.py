"""The program: a flat, typed list of equations in single-assignment form.

Inputs come in one list: captured arrays first, then the arguments. An operand is a `Var` or a
Python scalar. Sub-programs of higher-order primitives are parameters, compared by identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from genesis_fn.core import errors
from genesis_fn.core.aval import Aval
from genesis_fn.core.configuration import config
from genesis_fn.core.diagnostics.source_info import SourceLocation, where
from genesis_fn.core.primitive import Primitive, ctx


class Var:
    """A value of a program; equality is identity."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var:{self.aval}"


Atom: TypeAlias = Any  # Var | bool | int | float | complex


class Eqn:
    """`outs = prim[params] ins`, with the user's line, whether a backward pass made it, and how
    exactly it is computed: by default as the settings say now."""

    __slots__ = ("prim", "ins", "params", "outs", "where", "backward", "numerics")

    def __init__(
        self,
        prim: Primitive,
        ins: Sequence[Atom],
        params: dict[str, Any],
        outs: Sequence[Var],
        where: SourceLocation | None = None,
        backward: bool = False,
        numerics: config.Numerics | None = None,
    ) -> None:
        self.prim, self.ins, self.params, self.outs = prim, ins, params, outs
        self.where, self.backward = where, backward
        self.numerics = config.current().numerics if numerics is None else numerics

    @property
    def primitive(self) -> Primitive:
        """`prim`, by JAX's name."""
        return self.prim

    def replace(self, **changes: Any) -> Eqn:
        """A copy with some fields changed."""
        return Eqn(**{name: changes.get(name, getattr(self, name)) for name in self.__slots__})

    def __repr__(self) -> str:
        return _format_eqn(self, _Names())


class Jaxpr:
    """A program: `invars` to `outs` by `eqns`. `labels` names the inputs for people (or is
    empty)."""

    __slots__ = ("invars", "eqns", "outs", "labels", "name", "_facts", "cache", "__weakref__")

    def __init__(
        self,
        invars: Sequence[Var],
        eqns: Sequence[Eqn],
        outs: Sequence[Var],
        labels: Sequence[str] = (),
        name: str = "",
    ) -> None:
        self.invars, self.eqns, self.outs = list(invars), list(eqns), list(outs)
        self.labels, self.name = labels, name
        self._facts: tuple[bool, frozenset[str]] | None = None
        self.cache: dict[Any, Any] = {}  # results of program transforms, kept as long as this

    def label_of(self, v: object) -> str:
        """What people call an input; "" for another value, and for what was captured."""
        for known, label in zip(self.invars, self.labels):
            if known is v and not label.startswith("captured "):
                return label
        return ""

    @property
    def in_avals(self) -> list[Aval]:
        """The avals of the inputs."""
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[Aval]:
        """The avals of the outputs."""
        return [v.aval for v in self.outs]

    @property
    def effect(self) -> bool:
        """Whether any equation has a side effect and must be kept."""
        return self._collect()[0]

    @property
    def axes(self) -> frozenset[str]:
        """The named axes that collectives in here refer to."""
        return self._collect()[1]

    def _collect(self) -> tuple[bool, frozenset[str]]:
        if self._facts is None:
            effect, axes = False, frozenset()
            for e in self.eqns:
                effect = effect or e.prim.effect
                if e.prim.collective:
                    axes |= {e.params["axis_name"]}
                for sub in e_jaxprs(e):
                    effect, axes = effect or sub.effect, axes | sub.axes
            self._facts = effect, axes
        return self._facts

    def __repr__(self) -> str:
        return "\n".join(_format(self, _Names(), ""))


def jaxprs_in(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The sub-programs among the parameters of an equation."""
    for value in params.values():
        if type(value) is Jaxpr:
            yield value
        elif type(value) is tuple:
            yield from (v for v in value if type(v) is Jaxpr)


def e_jaxprs(eqn: Eqn) -> Iterator[Jaxpr]:
    """The sub-programs of an equation."""
    return jaxprs_in(eqn.params)


# Stands for a program in its own cache: a reference to itself would be a cycle, which only the
# cyclic collector frees.
ITSELF = object()


def memoized(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Remember a program transform's results on the program (first argument) it was applied to."""

    def call(jaxpr: Jaxpr, *args: Any) -> Any:
        # `safe_zero` changes what derivative rules make of the same program.
        key = (transform, ctx.safe_zero, *args)
        found = jaxpr.cache.get(key)
        if found is None:
            found = transform(jaxpr, *args)
            jaxpr.cache[key] = ITSELF if found is jaxpr else found
        return jaxpr if found is ITSELF else found

    return functools.update_wrapper(call, transform, ("__doc__", "__name__"), ())


def of_one_equation(prim: Primitive, given: Sequence[Any], params: dict[str, Any]) -> Jaxpr:
    """The program of one operation, on operands of these avals; Python scalars are part of it."""
    ins = [Var(a) if type(a) is Aval else a for a in given]
    found = prim.abstract(tuple(given), params)
    outs = [Var(a) for a in (found if prim.multi else [found])]
    eqn = Eqn(prim, ins, params, outs, where())
    return Jaxpr([i for i in ins if type(i) is Var], [eqn], outs, name=prim.name)


def dead_code(eqns: Sequence[Eqn], outs: Sequence[Atom]) -> tuple[list[Eqn], set[Atom]]:
    """(equations that `outs` or side effects need, every operand those read, and `outs`)."""
    live: set[Atom] = {o for o in outs if type(o) is Var}
    kept = []
    # Backwards: when an equation is reached, all of its users have been.
    for e in reversed(eqns):
        if e.prim.effect or not live.isdisjoint(e.outs) or any(j.effect for j in e_jaxprs(e)):
            live.update(i for i in e.ins if type(i) is Var)
            kept.append(e)
    kept.reverse()
    return kept, live


# ---- checking ----


def check(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr`, if every operand is bound once before use and every type follows its shape rule.

    Raises JaxprTypeError naming the equation otherwise.
    """
    bound: set[Var] = set()
    for v in jaxpr.invars:
        _bind(bound, v, None)
    for e in jaxpr.eqns:
        for i in e.ins:
            if type(i) is Var and i not in bound:
                raise errors.JaxprTypeError(f"unbound operand {i} in equation {e}")
            if type(i) is not Var and type(i) not in (bool, int, float, complex):
                raise errors.JaxprTypeError(
                    f"operand {i!r} of equation {e} is neither a Var nor a scalar"
                )
        avals = tuple([i.aval if type(i) is Var else i for i in e.ins])
        expected = e.prim.abstract(avals, e.params)
        expected = list(expected) if e.prim.multi else [expected]
        if [o.aval for o in e.outs] != expected:
            raise errors.JaxprTypeError(f"equation {e} should produce {expected}")
        for o in e.outs:
            _bind(bound, o, e)
        for sub in e_jaxprs(e):
            check(sub)
    for o in jaxpr.outs:
        if o not in bound:
            raise errors.JaxprTypeError(f"unbound output {o!r}")
    return jaxpr


def _bind(bound: set[Var], v: Var, e: Eqn | None) -> None:
    if v in bound:
        raise errors.JaxprTypeError(
            f"{v!r} is bound twice" + (f", again by {e}" if e else " among the inputs")
        )
    bound.add(v)


# ---- printing ----


class _Names:
    """Letters for variables in order of appearance: a .. z, aa .."""

    def __init__(self) -> None:
        self.of: dict[Var, str] = {}

    def __call__(self, atom: Atom) -> str:
        if type(atom) is not Var:
            return repr(atom)
        if atom not in self.of:
            n, text = len(self.of), ""
            while n >= 0:
                text, n = chr(97 + n % 26) + text, n // 26 - 1
            self.of[atom] = text
        return self.of[atom]

    def typed(self, v: Var) -> str:
        return f"{self(v)}:{v.aval}"


def _format_param(value: Any) -> str:
    if type(value) is Jaxpr:
        return value.name or "{..}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    name = None if isinstance(value, type) else getattr(value, "name", None)
    if name is not None:
        return str(name)
    return "(" + ",".join(map(_format_param, value)) + ")" if type(value) is tuple else str(value)  # pyright: ignore[reportArgumentType]


def _format_eqn(e: Eqn, name: _Names) -> str:
    params = " ".join(f"{k}={_format_param(v)}" for k, v in e.params.items() if v is not None)
    text = f"{' '.join(map(name.typed, e.outs))} = {e.prim.name}{f'[{params}]' if params else ''} "
    return (text + " ".join(map(name, e.ins))).rstrip()


def _format(jaxpr: Jaxpr, name: _Names, indent: str) -> Iterator[str]:
    yield f"{indent}{{ {' '.join(map(name.typed, jaxpr.invars))} ->"
    for e in jaxpr.eqns:
        line = f"{indent}  {_format_eqn(e, name)}"
        yield f"{line:<70}  # {e.where}" if e.where else line
        for sub in e_jaxprs(e):
            yield from _format(sub, _Names(), indent + "    ")
    yield f"{indent}  return {' '.join(map(name, jaxpr.outs))} }}"


# ---- what staging (transforms/staging/stage_trace.py) raises for bad outputs


def output_error(value: object, name: str) -> Exception:
    """The error for an output of a traced function that is not an array."""
    return errors.TreeError(
        f"{name or 'the function'} returned {value!r} of type {type(value).__name__}; traced "
        "functions return pytrees of arrays and numbers"
    )
