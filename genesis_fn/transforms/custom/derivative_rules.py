"""custom_jvp and custom_vjp: functions with derivative rules of the user's.

A call binds `custom_call` with a `_UserCall`, a record (`custom_call.py`) whose functions are the
user's with their pytrees; `recorded.py` stages it where a program is being recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval, Described
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.diagnostics.source_info import SourceLocation, is_internal, where
from genesis_fn.core.primitive import Tracer, bind, ctx, typeof
from genesis_fn.core.static import NotStatic, aux_key, fingerprint_of, is_array
from genesis_fn.core.tree import map as tree_map
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import instantiate, zeros
from genesis_fn.transforms.batching.collectives import psum
from genesis_fn.transforms.custom.custom_call import CustomCall, custom_call_p
from genesis_fn.transforms.custom.recorded import Recording
from genesis_fn.transforms.staging.api_util import (
    Static,
    as_taken,
    flatten_arrays,
    flatten_output,
    missing,
    name_of,
)
from genesis_fn.transforms.staging.copies import Copied

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class SymbolicZero(Described):
    """A tangent or cotangent that is zero, with the aval that it would have as an array.

    Rules set with `symbolic_zeros=True` get it, and may return it.
    """

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval})"


class CustomVJPPrimal:
    """An argument of a fwd rule set with `symbolic_zeros=True`: its `value`, and whether it is
    `perturbed`, that is, differentiated.
    """

    __slots__ = ("value", "perturbed")

    def __init__(self, value: Any, perturbed: bool) -> None:
        self.value, self.perturbed = value, perturbed

    def __repr__(self) -> str:
        return f"CustomVJPPrimal({self.value!r}, perturbed={self.perturbed})"


def zero_from_primal(val: ArrayLike, symbolic_zeros: bool = False) -> Array | SymbolicZero:
    """The zero tangent of a value.

    Args:
        val: array or number.
        symbolic_zeros: whether to give a SymbolicZero instead of an array of zeros.

    Returns:
        The zero, of the shape and dtype of `val`.

    >>> gf.custom_derivatives.zero_from_primal(jnp.ones(2))
    Array([0., 0.], dtype=float32)
    """
    kind = typeof(as_array(val))
    return SymbolicZero(kind) if symbolic_zeros else zeros(kind)


def custom_vjp_primal_tree_values(tree: PyTree) -> PyTree:
    """The values of the arguments that a fwd rule set with `symbolic_zeros=True` gets.

    Args:
        tree: pytree of CustomVJPPrimals.

    Returns:
        The pytree with the `value` of each.

    Raises:
        TypeError: a leaf is something else.

    >>> from genesis_fn.custom_derivatives import CustomVJPPrimal, custom_vjp_primal_tree_values
    >>> custom_vjp_primal_tree_values({"w": CustomVJPPrimal(2.0, True)})
    {'w': 2.0}
    """

    def value(leaf: Any) -> Any:
        if type(leaf) is not CustomVJPPrimal:
            raise TypeError(
                f"custom_vjp_primal_tree_values takes CustomVJPPrimals, got {type(leaf).__name__}"
            )
        return leaf.value

    return tree_map(value, tree)


class _UserCall(CustomCall):
    """A call of a user's function on flat arrays. `output_info` is the structure of its output.

    `static` are the positions of arguments without derivatives, which the rules take first; those
    of a `custom_jvp` that hold arrays are operands all the same.
    """

    __slots__ = (
        "owner",
        "name",
        "symbolic_zeros",
        "forward",
        "reverse",
        "static",
        "in_tree",
        "in_avals",
        "weak",
        "output_info",
    )

    def __init__(
        self,
        owner: _Differentiated[..., Any],
        static: Sequence[int],
        in_tree: Any,
        xs: Sequence[Any],
    ) -> None:
        self.owner, self.name, self.symbolic_zeros = owner, owner.name, owner.symbolic_zeros
        self.forward, self.reverse = owner.jvp is not None, owner.fwd is not None
        self.static, self.in_tree = static, in_tree
        self.in_avals = tuple([typeof(x) for x in xs])
        self.weak = tuple([x.weak for x in xs])
        self.output_info: Any = None

    def key(self) -> tuple[Any, ...]:
        return self.in_avals, self.weak, self.in_tree

    def _arguments(self, leaves: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """(static arguments, the others)."""
        args = list(enumerate(tree.unflatten(self.in_tree, leaves)))
        static = [a for i, a in args if i in self.static]
        return static, tuple([a for i, a in args if i not in self.static])

    def _zeros(self, ts: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
        """Tangents or cotangents with the zeros that the rules take."""
        zero = SymbolicZero if self.symbolic_zeros else zeros
        return [zero(k) if t is None else t for t, k in zip(ts, avals, strict=True)]

    def fun(self, *xs: Any) -> list[Any]:
        out = self.owner.fun(*tree.unflatten(self.in_tree, xs))
        outs, self.output_info = flatten_output(out, self.name)
        return outs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        owner = self.owner
        static, values = self._arguments(primals)
        _, derivatives = self._arguments(self._zeros(tangents, self.in_avals))
        out, tangent = owner.pair(owner.jvp(*static, values, derivatives), "jvp", "tangent")
        outs, self.output_info = flatten_output(out, self.name)
        zero = [type(t) is SymbolicZero for t in tree.leaves(tangent)]
        given, t_tree = flatten_output(tree.map(_dense, tangent), self.name)
        ts: list[Any] = [instantiate(t, typeof(o)) for t, o in zip(given, outs)]
        if t_tree != self.output_info:
            difference = tree.first_difference(out, tangent, "the output")
            what = f"returned a tangent of another structure than its output: {difference}"
            raise owner.rule_error(errors.TreeError, "jvp", what)
        for i, (t, o) in enumerate(zip(ts, outs)):
            if not dtypes.is_inexact(o.dtype) and t.shape == o.shape:
                ts[i] = None  # an integer output has no tangent, of whichever dtype the rule's is
            elif typeof(t) is not typeof(o):
                what = f"returned {typeof(t)} where {typeof(o)} is expected"
                raise owner.rule_error(errors.ShapeError, "jvp", what)
            elif zero[i]:
                ts[i] = None
        return outs, ts

    def fwd(
        self, nonzero: Sequence[bool], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any], Callable[..., Any]]:
        inputs: Sequence[Any] = xs
        if self.symbolic_zeros:
            inputs = [
                CustomVJPPrimal(x, n and dtypes.is_inexact(k.dtype))
                for x, n, k in zip(xs, nonzero, self.in_avals, strict=True)
            ]
        owner, args = self.owner, tree.unflatten(self.in_tree, inputs)
        out, saved = owner.pair(owner.fwd(*args), "fwd", "residuals")
        outs, out_tree = flatten_output(out, self.name)
        saved, saved_tree = flatten_output(saved, self.name)
        self.output_info, out_kinds = out_tree, [typeof(o) for o in outs]

        def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            static, avals = self._arguments(self.in_avals)
            res = tree.unflatten(saved_tree, residuals)
            ct = tree.unflatten(out_tree, self._zeros(cts, out_kinds))
            line, ctx.line = ctx.line, None  # operations of the rule have lines of their own
            try:
                return self._cotangents(owner.bwd(*static, res, ct), avals)
            finally:
                ctx.line = line

        return outs, saved, pull

    def _cotangents(self, cotangents: Any, avals: tuple[Any, ...]) -> list[Any]:
        """Check what bwd returned against the arguments: one cotangent per leaf, None for leaves
        without derivatives."""
        owner = self.owner
        if not isinstance(cotangents, (tuple, list)) or len(cotangents) != len(avals):
            what = f"must return a tuple of {len(avals)} cotangents, got {cotangents!r:.80}"
            raise owner.rule_error(errors.TreeError, "bwd", what, missing(cotangents))
        positions = [i for i in range(len(self.static) + len(avals)) if i not in self.static]
        result: list[Any] = []
        for i, ct, argument in zip(positions, cotangents, avals):
            name = f"argument {repr(owner.names[i]) if i < len(owner.names) else i}"
            structure = tree.structure(argument)
            if structure.num_leaves == 1 and (is_value(ct) or type(ct) is SymbolicZero):
                ct = tree.unflatten(structure, [ct])  # what a box holds, without the box
            try:
                flat = tree.leaves_or_none(ct, structure)
            except errors.TreeError:
                difference = tree.first_difference(argument, ct)
                what = f"returned a cotangent of another structure for {name}: {difference}"
                raise owner.rule_error(errors.TreeError, "bwd", what) from None
            for g, aval, path in zip(flat, tree.leaves(argument), tree.paths(argument)):
                inexact = dtypes.is_inexact(aval.dtype)
                what = f"{name}{path and ' at '}{path}"
                result.append(self._cotangent(g, aval, what) if inexact else None)
        return result

    def _cotangent(self, ct: Any, kind: Aval, argument: str) -> Any:
        """Check and convert the cotangent of one leaf of an argument."""
        remedy = "a cotangent has the shape and dtype of its argument, or is None for zero"
        if ct is None or type(ct) is SymbolicZero:
            if ct is not None and ct.aval.shape != kind.shape:
                what = f"returned the zero of {ct.aval} for {argument}, which is {kind}"
                raise self.owner.rule_error(errors.ShapeError, "bwd", what, f"\n  {remedy}")
            return zeros(kind)
        if not is_value(ct):
            what = f"returned {ct!r:.60} of type {type(ct).__name__} for {argument}"
            raise self.owner.rule_error(TypeError, "bwd", what)
        ct = as_array(ct)
        # Of an argument that devices share, a rule returns the sum over them, or what each adds.
        if shares := typeof(ct).varying - kind.varying:
            ct = psum(ct, sorted(shares, key=str))
        ct = instantiate(ct, kind)
        if typeof(ct) is not kind:
            what = f"returned {typeof(ct)} for {argument}, which is {kind}"
            raise self.owner.rule_error(errors.ShapeError, "bwd", what, f"\n  {remedy}")
        return ct


def _dense(t: Any) -> Any:
    """Convert a tangent that a rule returned to an array."""
    if type(t) is SymbolicZero:
        return zeros(t.aval)
    return np.zeros(t.shape, np.int32) if getattr(t, "dtype", None) == dtypes.FLOAT0 else t


class CustomFunction(Copied, Generic[P, R]):
    """A function with rules of the user's, attributes named in `rules`."""

    rules: tuple[str, ...]
    fun: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        # What sets rules of another kind is that of the function with rules inside.
        inner = vars(self).get("fun")
        if name.startswith("def") and isinstance(inner, CustomFunction):
            return getattr(inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __init__(self, fun: Callable[P, R]) -> None:
        functools.update_wrapper(self, fun)  # pyright: ignore[reportArgumentType]
        self.fun, self.name = fun, name_of(fun)

    def _parts(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        rules = {k: v for k, v in vars(self).items() if k in self.rules}
        return _rebuild, (type(self), self.fun, rules)


def signature_of(fun: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None where Python does not know it."""
    try:
        return inspect.signature(fun)
    except (TypeError, ValueError):
        return None


def by_position(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], what: str
) -> tuple[Any, ...]:
    """The arguments of a call by position, with defaults filled in. Raises TypeError, of `what`,
    for those that can only be named."""
    if signature is None:
        raise TypeError(
            f"{what} takes positional arguments only, as its signature is not known: "
            f"{sorted(kwargs)}\n  at {where().describe()}"
        )
    bound = signature.bind(*args, **kwargs)
    named = sorted(bound.kwargs)  # those left out have defaults, which the function knows itself
    bound.apply_defaults()
    if named:
        raise TypeError(
            f"{what} takes no keyword-only arguments: {named}\n  at {where().describe()}"
        )
    return bound.args


def _rebuild(kind: type, fun: Callable[..., Any], rules: dict[str, Any]) -> Any:
    """Make a function with rules again, for a copy or unpickling."""
    copy = kind(fun)
    vars(copy).update(rules)
    return copy


class _Differentiated(CustomFunction[P, R]):
    """What `custom_jvp` and `custom_vjp` share: rules, static arguments, calls."""

    rules = "static", "jvp", "fwd", "bwd", "symbolic_zeros"
    jvp: Callable[..., Any] | None = None
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    symbolic_zeros = False  # whether the rules tell zeros apart

    def __init__(
        self,
        fun: Callable[P, R],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        super().__init__(fun)
        self.signature = signature_of(fun)
        self.names = list(self.signature.parameters) if self.signature else []
        # How many arguments a call has that gives all of them by position; -1: it depends.
        kinds = [p.kind for p in self.signature.parameters.values()] if self.signature else []
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.count = len(kinds) if kinds and all([k in plain for k in kinds]) else -1
        for n in nondiff_argnames:
            if n not in self.names:
                raise ValueError(f"nondiff_argnames: {self.name} has no argument {n!r}")
        positions = [p + len(self.names) if p < 0 else p for p in nondiff_argnums]
        self.static = {*positions, *(self.names.index(n) for n in nondiff_argnames)}
        self.kept: dict[Any, Recording] = {}  # filled by `recorded.py`

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)  # pyright: ignore[reportArgumentType]

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, with defaults filled in."""
        if not kwargs and (self.signature is None or len(args) == self.count):
            return args
        what = f"{self.name} has a custom derivative and"
        return by_position(self.signature, args, kwargs, what)

    def array_or_static(self, i: int, value: Any) -> Any:
        """Return an argument, as Static if it holds anything but arrays, or is declared so and
        holds none. Raises TypeError for a static one that is not hashable."""
        if type(value) is ArrayImpl and i not in self.static:
            return value
        leaves = tree.leaves(value)
        arrays = all(is_value(x) for x in leaves)
        if i not in self.static and arrays:
            return value
        if i in self.static:
            if arrays and any(is_array(x) for x in leaves):
                return self._without_derivative(i, value)
            value = tree.map(lambda x: x, value)  # containers of its own, which nobody changes
        try:
            changes = isinstance(value, (list, dict)) and i not in self.static
            if changes or is_array(value) or isinstance(value, (set, bytearray)):
                raise NotStatic(value, "neither arrays nor hashable")
            hash(aux_key(value)[0])
        except TypeError:
            raise TypeError(
                f"argument {i} of {self.name} is {value!r:.60}, neither arrays nor hashable\n"
                f"  at {where().describe()}"
            ) from None
        return Static(value)

    def _without_derivative(self, i: int, value: Any) -> Any:
        """A static argument of arrays. Raises UnexpectedTracerError for traced ones where a reverse
        rule would have to keep them."""
        if self.fwd is not None and any(isinstance(x, Tracer) for x in tree.leaves(value)):
            raise errors.UnexpectedTracerError(
                f"{self.name} is a custom_vjp whose argument {i} is declared static, but got "
                f"{value!r:.60}, which is traced\n  at {where().describe()}\n"
                "  leave it out of nondiff_argnums, and return None as its cotangent"
            )

        value = tree.map(lambda x: as_array(x) if is_array(x) else x, value)
        if self.fwd is not None:  # as it is, even where the forward rule is staged
            return Static(value)
        constant = lambda x: is_array(x) and dtypes.is_inexact(typeof(x).dtype)
        return tree.map(lambda x: ops.stop_gradient(x) if constant(x) else x, value)

    def set_rules(self, **rules: Any) -> None:
        """Set some of `jvp`, `fwd`, `bwd` and `symbolic_zeros`."""
        vars(self).update(rules)
        self.kept.clear()

    def missing_rules(self) -> str:
        """The problem that a message names if rules were not given; "" if there is none."""
        return ""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if problem := self.missing_rules():
            what = f"{self.name}: {problem}\n  at {where().describe()}"
            raise errors.MissingRuleError(what)
        arguments: Any = self.positional(args, kwargs)
        if ctx.trace is None:  # nothing differentiates, batches or records: the rules do not matter
            return self.fun(*as_taken(arguments))
        arguments = tuple([self.array_or_static(i, a) for i, a in enumerate(arguments)])
        leaves, in_tree, _ = flatten_arrays(arguments, f"an argument of {self.name}: ")
        static = [i for i, a in enumerate(arguments) if type(a) is Static or i in self.static]
        call = _UserCall(self, static, in_tree, leaves)
        outs = bind(custom_call_p, *leaves, call=call, jaxpr=None)
        return tree.unflatten(call.output_info, outs)

    def fingerprint(self) -> tuple[Any, ...] | None:
        """What the function and its rules do now, with all that they read; None where that cannot
        be told, so that no program may be kept."""
        known = [fingerprint_of(f) for f in (self.fun, self.jvp, self.fwd, self.bwd)]
        if any(m is None for m in known):
            return None
        return tuple([m.key for m in known if m is not None])

    def location_lines(self, rule: str) -> str:
        """The lines of a message on where the user's code and the rule are."""
        code = getattr(inspect.unwrap(getattr(self, rule)), "__code__", None)
        here = f"\n  at {where().describe()}"
        if code is None or is_internal(code):
            return here
        return f"{here}\n  the rule is at {SourceLocation(code, code.co_firstlineno).describe()}"

    def rule_error(self, kind: type[Exception], rule: str, what: str, more: str = "") -> Exception:
        """The error for something wrong that a rule returned."""
        return kind(f"the {rule} rule of {self.name} {what}{self.location_lines(rule)}{more}")

    def pair(self, out: Any, rule: str, what: str) -> tuple[Any, Any]:
        """Return what a rule returned, if it is a pair. Raises TreeError otherwise."""
        if isinstance(out, tuple) and len(out) == 2:
            return out
        problem = f"must return (output, {what}), got {out!r:.80}"
        raise self.rule_error(errors.TreeError, rule, problem, missing(out))


class custom_jvp(_Differentiated[P, R]):
    """A function with a forward-mode derivative rule of the user's, given by `defjvp`.

        rule(primals, tangents) -> (output, output tangent)

    The rule must be linear in the tangents: reverse mode transposes it. It is used wherever the
    function is differentiated; elsewhere `fun` runs. No keyword-only arguments.

    Args:
        fun: function of pytrees of arrays, and of static arguments.
        nondiff_argnums: positions of static arguments, Python values that come first in the rule:
            rule(*static, primals, tangents). Negative ones count from the end.
        nondiff_argnames: names of further static arguments.

    >>> @gf.custom_jvp
    ... def log1pexp(x):
    ...     return jnp.log(1 + jnp.exp(x))
    >>> @log1pexp.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), t * (1 - 1 / (1 + jnp.exp(x)))
    >>> gf.grad(log1pexp)(0.0)
    Array(0.5, dtype=float32)
    """

    def defjvp(self, rule: F, symbolic_zeros: bool = False) -> F:
        """Set the rule; usable as a decorator.

        Args:
            rule: function of (*static, primals, tangents) that returns (output, output tangent).
            symbolic_zeros: whether the rule gets a SymbolicZero for a tangent that is zero, and may
                return one; otherwise arrays of zeros.

        Returns:
            `rule`.
        """
        self.set_rules(jvp=rule, symbolic_zeros=symbolic_zeros)
        return rule

    def_jvp = defjvp

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Set one rule for each argument; their tangents are added up.

        Args:
            *rules: functions `rule(tangent, output, *args)` to the output's tangent; None for an
                argument of which the derivative is zero.
        """

        call = cast(Callable[..., Any], self)

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
            out = call(*primals)
            terms = [r(t, out, *primals) for r, t in zip(rules, tangents) if r is not None]
            total = tree.map(lambda o: zeros(typeof(o)), out)
            for term in terms:
                total = tree.map(ops.add, total, term)
            return out, total

        self.defjvp(rule)

    def missing_rules(self) -> str:
        return "" if self.jvp is not None else "no rule was given by defjvp"


class custom_vjp(_Differentiated[P, R]):
    """A function with a reverse-mode derivative rule of the user's, given by `defvjp(fwd, bwd)`.

        fwd(*args) -> (output, residuals)
        bwd(*static, residuals, ct) -> tuple of cotangents, one for each argument that is not static

    A cotangent has the shape and dtype of its argument, or is None for zero. Forward mode raises
    NotDifferentiableError unless `def_jvp` gives a rule for it. No keyword-only arguments.

    Args:
        fun: function of pytrees of arrays, and of static arguments.
        nondiff_argnums: positions of static arguments, Python values that come first in `bwd`;
            negative ones count from the end.
        nondiff_argnames: names of further static arguments.

    >>> @gf.custom_vjp
    ... def clipped_gradient(x):
    ...     return x
    >>> clipped_gradient.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -1, 1),))
    >>> gf.grad(lambda x: 5 * clipped_gradient(x))(2.0)
    Array(1., dtype=float32)
    """

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the forward and the backward rule.

        Args:
            fwd: function of the arguments that returns (output, residuals).
            bwd: function of (*static, residuals, cotangent of the output) that returns a tuple of
                cotangents.
            symbolic_zeros: whether `fwd` gets objects with `.value` and `.perturbed` for the leaves
                of its arguments, and `bwd` may get a SymbolicZero for a cotangent and return one.
            optimize_remat: ignored, as JAX's argument; what nothing needs is always left out.
        """
        self.set_rules(fwd=fwd, bwd=bwd, symbolic_zeros=symbolic_zeros)

    def def_fwd(self, fwd: F) -> F:
        """Set the forward rule; usable as a decorator."""
        self.set_rules(fwd=fwd)
        return fwd

    def def_bwd(self, bwd: F) -> F:
        """Set the backward rule; usable as a decorator."""
        self.set_rules(bwd=bwd)
        return bwd

    def def_jvp(self, rule: F) -> F:
        """Set a forward-mode rule `rule(primals, tangents)`; usable as a decorator."""
        self.set_rules(jvp=rule)
        return rule

    def missing_rules(self) -> str:
        return "no rules were given by defvjp" if self.fwd is None or self.bwd is None else ""


def custom_gradient(fun: Callable[P, tuple[R, Callable[..., PyTree]]]) -> custom_vjp[P, R]:
    """Make a differentiable function of one that returns its output and its vjp.

    Args:
        fun: function of pytrees of arrays that returns (output, vjp), where vjp(ct) gives a
            cotangent for each argument: a tuple, or one alone for a single argument.

    Returns:
        The function of the output, a `custom_vjp`. The backward pass runs `fun` again.

    >>> @gf.custom_gradient
    ... def half_gradient(x):
    ...     return x ** 2, lambda ct: (ct * x,)
    >>> half_gradient(3.0), gf.grad(half_gradient)(3.0)
    (9.0, Array(3., dtype=float32))
    """

    call: Callable[..., Any] = fun

    def primal(*args: Any) -> Any:
        return call(*args)[0]

    functools.update_wrapper(primal, fun)
    wrapped = custom_vjp(cast(Callable[P, R], primal))

    def fwd(*args: Any) -> Any:
        return call(*args)[0], args

    def bwd(args: Any, ct: Any) -> tuple[Any, ...]:
        back = call(*args)[1](ct)
        return back if isinstance(back, tuple) else (back,)

    wrapped.defvjp(fwd, bwd)
    return wrapped


def linear_call(
    fun: Callable[[PyTree, PyTree], PyTree],
    fun_transpose: Callable[[PyTree, PyTree], PyTree],
    residual_args: PyTree,
    linear_args: PyTree,
) -> PyTree:
    """Call a linear function that has a transpose of its own.

    Reverse mode runs `fun_transpose` on cotangents; forward mode runs `fun` on tangents. Where the
    jvp rule of a `custom_jvp` calls it on tangents, the operations of `fun` are transposed.

    Args:
        fun: function (residuals, x), linear in x, that returns a pytree of arrays.
        fun_transpose: function (residuals, ct), linear in ct, which has the structure of what `fun`
            returns; it returns the structure of x.
        residual_args: pytree of arrays, which is not differentiated.
        linear_args: pytree of floating arrays, x.

    Returns:
        fun(residual_args, linear_args).

    Raises:
        NotDifferentiableError: a derivative by `residual_args` is asked for.

    >>> from genesis_fn.custom_derivatives import linear_call
    >>> halves = lambda x: linear_call(lambda r, x: x / r, lambda r, ct: ct * r, 2.0, x)
    >>> halves(3.0), gf.grad(halves)(3.0)
    (Array(1.5, dtype=float32), Array(2., dtype=float32))
    """
    name = f"linear_call of {name_of(fun)}"

    # The residuals are closed over: a derivative by them is refused, as any function's with rules.
    def call(xs: Any) -> Any:
        return tree.map(as_array, fun(residual_args, xs))

    call.__name__ = name
    linear = custom_vjp(call)
    linear.defvjp(lambda xs: (call(xs), None), lambda _, ct: (fun_transpose(residual_args, ct),))
    linear.def_jvp(lambda primals, tangents: (call(*primals), call(*tangents)))
    return linear(linear_args)
