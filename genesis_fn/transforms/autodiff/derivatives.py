"""Derivatives of functions of pytrees: grad, vjp, jvp, linearize, linear_transpose.

Each flattens the arguments, calls `linearize_flat` or `jvp_flat` on the flat function, and puts the
results into pytrees again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import numpy as np

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.convert import as_array, is_value
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.diagnostics.traceback import boundary
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import (
    CallSite,
    LinearOperand,
    ctx,
    default_device_of,
    typeof,
    with_weak,
)
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.primitives.factories import filled, full, instantiate, zeros
from genesis_fn.transforms.autodiff.arguments import (
    argument_labels,
    differentiable_leaves,
    on_arguments,
    without_tuple,
)
from genesis_fn.transforms.autodiff.linearize import differentiable, jvp_flat, linearize_flat
from genesis_fn.transforms.autodiff.transpose import transpose_flat
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, labels_of, name_of
from genesis_fn.transforms.staging.dependency import dependent
from genesis_fn.transforms.staging.stage_trace import evaluate, stage

P = ParamSpec("P")
R = TypeVar("R")
Aux = TypeVar("Aux")


class safe_zeros:
    """`with safe_zeros(on):` derivatives taken within the block treat 0 * inf as 0."""

    __slots__ = ("on", "before")

    def __init__(self, on: bool) -> None:
        self.on = on

    def __enter__(self) -> None:
        self.before, ctx.safe_zero = ctx.safe_zero, self.on or ctx.safe_zero

    def __exit__(self, *exc: Any) -> None:
        ctx.safe_zero = self.before


def value_and_grad(
    fun: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    safe_zero: bool = False,
    nonfloat: Literal["raise", "none", "zeros"] = "raise",
) -> Callable[P, tuple[R, PyTree]]:
    """Make a function that computes the value of a scalar function and its gradient at once.

    Reverse mode: one pass forward, one backward, at a few times the cost of `fun`, whatever the
    number of parameters. For a complex argument z = x + iy the gradient is df/dx - i df/dy (as in
    JAX); descent follows its conjugate.

    Args:
        fun: function that returns one real floating scalar, the loss; with `has_aux`,
            (loss, aux).
        argnums: position of the argument to differentiate by, or a sequence of positions.
        has_aux: whether `fun` returns a pair whose second part, any pytree, is passed through.
        holomorphic: whether `fun` is holomorphic: complex arguments, complex output.
        allow_int: whether integer leaves are allowed; their gradients are zeros
            (`nonfloat="zeros"`).
        safe_zero: whether 0 * inf counts as 0 in derivatives, as at `where(x > 0, sqrt(x), 0)`.
        nonfloat: what becomes of leaves of `argnums` that are not floating: "raise" an error,
            "none" gives None for them, "zeros" zeros.

    Returns:
        A function with the parameters of `fun` that returns (value, gradient), or
        ((value, aux), gradient). The gradient has the structure, shapes and dtypes of the argument;
        it is a tuple where `argnums` is a sequence.

    Raises:
        TypeError: the output is no scalar or not floating, or an argument is not; when called.
        ValueError: `nonfloat` is unknown.

    >>> loss = lambda w, x: jnp.sum((w * x) ** 2)
    >>> gf.value_and_grad(loss)(jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0]))
    (Array(13., dtype=float32), Array([18.,  4.], dtype=float32))
    """
    if nonfloat not in ("raise", "none", "zeros"):
        raise ValueError(
            f'nonfloat is "raise", "none" or "zeros", got {nonfloat!r}\n  at {where().describe()}'
        )
    nonfloat = "zeros" if allow_int else nonfloat

    @boundary(fun)
    def value_and_grad_f(*args: P.args, **kwargs: P.kwargs) -> Any:
        chosen, f, picked = on_arguments(fun, argnums, args, kwargs)
        leaves, in_tree, _ = flatten_arrays(
            picked, f"an argument of {name_of(fun)}: ", lambda: argument_labels(fun, args, chosen)
        )

        def label(i: int) -> str:
            paths = [tree.paths(p) for p in picked]
            flat = [f"argument {chosen[k]}{p}" for k, ps in enumerate(paths) for p in ps]
            return flat[i]

        mask = differentiable_leaves(leaves, label, nonfloat, holomorphic)
        flat = FlatFunction(f, in_tree, has_aux=has_aux)
        with safe_zeros(safe_zero):
            labels = lambda: argument_labels(fun, args, chosen)
            called = CallSite("grad", name_of(fun), leaves, labels)
            outs, nonzero, jaxpr, residuals = linearize_flat(flat, leaves, mask, called)
            value = _scalar_loss(outs, flat, fun, holomorphic)
            if nonzero[0]:  # else the loss does not depend on the arguments: all gradients are zero
                with default_device_of(leaves):
                    grads = _pull(jaxpr, residuals, [full((), 1, typeof(value).dtype)], nonzero)
            else:
                grads = [None] * sum(mask)
        got = iter(grads)
        result = []
        with default_device_of(leaves):
            for x, m in zip(leaves, mask):
                if m:
                    result.append(with_weak(instantiate(next(got), typeof(x)), x.weak))
                else:
                    result.append(None if nonfloat == "none" else zeros(typeof(x)))
        gradient = without_tuple(tree.unflatten(in_tree, result), argnums)
        return ((value, flat.aux(outs)) if has_aux else value), gradient

    return value_and_grad_f


def _pull(
    jaxpr: Jaxpr, residuals: Sequence[Any], cts: Sequence[Any], nonzero: Sequence[bool]
) -> list[Any]:
    linear = jaxpr.invars[len(residuals) :]
    used = [ct for ct, n in zip(cts, nonzero) if n]
    used += [None] * (len(jaxpr.outs) - len(used))
    operands = [*residuals, *(LinearOperand(v.aval) for v in linear)]
    return transpose_flat(jaxpr, operands, used)[len(residuals) :]


def _scalar_loss(
    outs: Sequence[Any], flat: FlatFunction, fun: Callable[..., Any], holomorphic: bool
) -> Any:
    if flat.out_tree == tree.structure(None):
        raise TypeError(
            f"{name_of(fun)} returned None: is a return missing?\n"
            f"  at {where().describe()}\n  grad needs it to return one scalar, the loss"
        )
    if flat.out_count != 1:
        raise TypeError(
            f"grad needs {name_of(fun)} to return one scalar, it returned a pytree of "
            f"{flat.out_count} leaves\n  at {where().describe()}\n"
            "  for (loss, extras) pass has_aux=True"
        )
    value = outs[0]
    result = typeof(value)
    allowed = dtypes.is_complex(result.dtype) if holomorphic else dtypes.is_float(result.dtype)
    if result.shape != () or not allowed:
        wanted = "complex scalar (holomorphic=True)" if holomorphic else "real floating scalar"
        remedy = "reduce it, for example by .sum() or .mean(), or use jacrev or vjp"
        if result.shape == () and dtypes.is_complex(result.dtype):
            remedy = "take its .real or abs; pass holomorphic=True if it is holomorphic"
        raise TypeError(
            f"grad needs {name_of(fun)} to return a {wanted}, it returned {result}\n"
            f"  at {where().describe()}\n  {remedy}"
        )
    return value


@overload
def grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    safe_zero: bool = False,
    nonfloat: Literal["raise", "none", "zeros"] = "raise",
) -> Callable[P, PyTree]: ...
@overload
def grad(
    fun: Callable[P, tuple[Any, Aux]],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[True] = ...,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    safe_zero: bool = False,
    nonfloat: Literal["raise", "none", "zeros"] = "raise",
) -> Callable[P, tuple[PyTree, Aux]]: ...
def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    safe_zero: bool = False,
    nonfloat: Literal["raise", "none", "zeros"] = "raise",
) -> Callable[..., PyTree]:
    """Make a function that computes the gradient of a scalar function, in reverse mode.

    Args:
        fun: function that returns one real floating scalar, the loss; with `has_aux`,
            (loss, aux).
        argnums: position of the argument to differentiate by, or a sequence of positions.
        has_aux: whether `fun` returns a pair whose second part, any pytree, is passed through.
        holomorphic: whether `fun` is holomorphic: complex arguments, complex output.
        allow_int: whether integer leaves are allowed; their gradients are zeros
            (`nonfloat="zeros"`).
        safe_zero: whether 0 * inf counts as 0 in derivatives, as at `where(x > 0, sqrt(x), 0)`.
        nonfloat: what becomes of leaves of `argnums` that are not floating: "raise" an error,
            "none" gives None for them, "zeros" zeros.

    Returns:
        A function with the parameters of `fun` that returns the gradient, or (gradient, aux). The
        gradient has the structure, shapes and dtypes of the argument; it is a tuple where `argnums`
        is a sequence.

    Raises:
        TypeError: the output is no scalar or not floating, or an argument is not; when called.
        ValueError: `nonfloat` is unknown.

    >>> gf.grad(lambda x: x**3)(2.0)
    Array(12., dtype=float32)
    >>> loss = lambda params, x: jnp.sum(params["w"] * x + params["b"])
    >>> gf.grad(loss)({"w": jnp.ones(2), "b": 0.5}, jnp.array([3.0, 4.0]))
    {'w': Array([3., 4.], dtype=float32), 'b': Array(2., dtype=float32)}
    """
    both = value_and_grad(
        fun, argnums, has_aux, holomorphic, allow_int, safe_zero=safe_zero, nonfloat=nonfloat
    )

    @boundary(fun)
    def grad_f(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return grad_f


class LinearMap:
    """The derivative of a function at a point, recorded as a linear program with its residuals.

    It is a pytree of the residuals, so that `jit` may take and return it. `push` maps tangents,
    `pull` cotangents. `static` is (program, nonzero outputs, differentiable inputs, ...).
    """

    __slots__ = ("residuals", "static")

    def __init__(self, residuals: Any, static: tuple[Any, ...]) -> None:
        self.residuals, self.static = residuals, static

    def pull(self, cts: Sequence[Any]) -> list[Any]:
        """Map cotangents of the outputs to those of the inputs, both flat; None is zero."""
        jaxpr, nonzero, mask = self.static[:3]
        with default_device_of([*cts, *self.residuals]):
            return filled(mask, _pull(jaxpr, self.residuals, cts, nonzero))

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Map tangents of the inputs to those of the outputs, both flat; None is zero."""
        jaxpr, nonzero, mask = self.static[:3]
        dense = [
            instantiate(t, v.aval)
            for t, v in zip(
                [t for t, m in zip(tangents, mask) if m], jaxpr.invars[len(self.residuals) :]
            )
        ]
        return filled(nonzero, evaluate(jaxpr, *self.residuals, *dense))


class VJP(LinearMap):
    """The function from output cotangents to input cotangents that `vjp` returns."""

    __slots__ = ()

    def __call__(self, ct: PyTree) -> tuple[PyTree, ...]:
        in_tree, in_avals, out_tree, out_avals, weak = self.static[3:]
        cts = _matching(ct, out_tree, out_avals, "the cotangent", "the output")
        back = self.pull(cts)
        full = [instantiate(c, a) for c, a in zip(back, in_avals, strict=True)]
        return tree.unflatten(in_tree, [with_weak(c, w) for c, w in zip(full, weak)])


class JVPMap(LinearMap, Generic[R]):
    """The function from input tangents to output tangents that `linearize` returns."""

    __slots__ = ()

    def __call__(self, *tangents: PyTree) -> R:
        in_tree, in_avals, out_tree, out_avals, _ = self.static[3:]
        ts = _matching(tangents, in_tree, in_avals, "the tangents", "the primals")
        outs = self.push(ts)
        return tree.unflatten(
            out_tree, [instantiate(t, a) for t, a in zip(outs, out_avals, strict=True)]
        )


for _kind in (VJP, JVPMap):
    tree.register_node(
        _kind,
        lambda m: ((list(m.residuals),), m.static),
        functools.partial(lambda kind, static, kids: kind(next(iter(kids)), static), _kind),
    )


def _matching(
    value: Any, treedef: tree.PyTreeDef, avals: Sequence[Aval], what: str, other: str
) -> list[Any]:
    """The leaves of `value`, which must have this structure and these avals. None stands for zero
    instead of a leaf or a subtree, and for itself where the structure has None."""
    try:
        leaves = tree.leaves_or_none(value, treedef)
    except errors.TreeError:
        raise errors.TreeError(
            f"{what} has structure {tree.structure(value)}, but {other} has {treedef}\n"
            f"  at {where().describe()}"
        ) from None
    return [_fitting(x, a, f"{what}, leaf {i}") for i, (x, a) in enumerate(zip(leaves, avals))]


def _fitting(x: Any, expected: Aval, what: str) -> Any:
    """A tangent or cotangent as an array of this aval; None where it is zero, as it is for values
    of integer dtypes (JAX writes it with dtype float0)."""
    if x is None:
        return None
    float0 = getattr(x, "dtype", None) == dtypes.FLOAT0
    if not float0:
        x = as_array(x, expected.dtype if _is_meant_as(x, expected.dtype) else None)
    if x.shape != expected.shape:
        raise errors.ShapeError(
            f"{what}: {list(x.shape) if float0 else typeof(x)} does not fit {expected}\n"
            f"  at {where().describe()}"
        )
    if dtypes.is_key(expected.dtype) and not float0:
        raise errors.DTypeError(
            f"{what}: random keys, {expected}, have no derivative, got {typeof(x)}\n"
            f"  at {where().describe()}\n  pass None, or zeros of dtype float0"
        )
    if not dtypes.is_inexact(expected.dtype):
        return None
    if float0 or typeof(x).dtype != expected.dtype:
        raise errors.DTypeError(
            f"{what}: {'float0' if float0 else typeof(x)} must have the dtype of {expected}\n"
            f"  at {where().describe()}"
        )
    return x


def _is_meant_as(x: Any, kind: dtypes.DType) -> bool:
    """Whether an ndarray has this dtype, or a Python number is of its kind (float, complex)."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype == kind
    return (type(x) is float and dtypes.is_float(kind)) or (
        type(x) is complex and dtypes.is_complex(kind)
    )


def _at(
    what: str, fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool
) -> tuple[FlatFunction, list[Any], CallSite]:
    """(flat function, leaves of the primals, call site for messages) of a derivative at a point."""
    labels = functools.partial(labels_of, fun, primals)
    leaves, in_tree, _ = flatten_arrays(primals, "a primal: ", labels)
    flat = FlatFunction(fun, in_tree, has_aux=has_aux)
    return flat, leaves, CallSite(what, name_of(fun), leaves, labels)


def _linearized(
    what: str, kind: type, fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool
) -> Any:
    """(outputs, the linear map at that point, of class `kind`), and aux if there is any."""
    flat, leaves, called = _at(what, fun, primals, has_aux)
    mask = tuple([differentiable(x) for x in leaves])
    outs, nonzero, jaxpr, residuals = linearize_flat(flat, leaves, mask, called)
    # Leaves of aux follow the outputs; their tangents are not part of the map.
    nonzero = tuple(nonzero[: flat.out_count])
    jaxpr = Jaxpr(jaxpr.invars, jaxpr.eqns, jaxpr.outs[: sum(nonzero)], (), jaxpr.name)
    static = (
        jaxpr,
        nonzero,
        mask,
        flat.in_tree,
        tuple([typeof(x) for x in leaves]),
        flat.out_tree,
        tuple([typeof(o) for o in outs[: flat.out_count]]),
        tuple([x.weak for x in leaves]),
    )
    result = flat.output(outs), kind(residuals, static)
    return (*result, flat.aux(outs)) if has_aux else result


@overload
def vjp(
    fun: Callable[..., R], *primals: PyTree, has_aux: Literal[False] = False
) -> tuple[R, VJP]: ...
@overload
def vjp(
    fun: Callable[..., tuple[R, Aux]], *primals: PyTree, has_aux: Literal[True]
) -> tuple[R, VJP, Aux]: ...
def vjp(fun: Callable[..., Any], *primals: PyTree, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluate a function and return its vector-Jacobian product at that point.

        out, pull = vjp(f, x):  pull(ct) = ct^T J,  J = df/dx at x

    Args:
        fun: function of pytrees of arrays; with `has_aux` it returns (output, aux).
        primals: the arguments, positional, at which to differentiate.
        has_aux: whether `fun` returns a pair whose second part is passed through.

    Returns:
        (output, pull), or (output, pull, aux). `pull` maps a cotangent with the structure of the
        output to a tuple of cotangents, one for each primal; None stands for zero. It may be called
        many times, and is a pytree that `jit` may return or take.

    >>> out, pull = gf.vjp(lambda x, y: x * y, jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))
    >>> pull(jnp.ones(2))
    (Array([3., 4.], dtype=float32), Array([1., 2.], dtype=float32))
    """
    return _linearized("vjp", VJP, fun, primals, has_aux)


@overload
def linearize(
    fun: Callable[..., R], *primals: PyTree, has_aux: Literal[False] = False
) -> tuple[R, JVPMap[R]]: ...
@overload
def linearize(
    fun: Callable[..., tuple[R, Aux]], *primals: PyTree, has_aux: Literal[True]
) -> tuple[R, JVPMap[R], Aux]: ...
def linearize(fun: Callable[..., Any], *primals: PyTree, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluate a function and return its derivative at that point as a linear function.

    Unlike `jvp`, `fun` runs once, for any number of tangents.

    Args:
        fun: function of pytrees of arrays; with `has_aux` it returns (output, aux).
        primals: the arguments, positional, at which to differentiate.
        has_aux: whether `fun` returns a pair whose second part is passed through.

    Returns:
        (output, push), or (output, push, aux). `push` maps tangents, one for each primal, to the
        tangent of the output; it is a pytree that `jit` may return or take.

    >>> out, push = gf.linearize(jnp.square, jnp.array([1.0, 2.0]))
    >>> push(jnp.array([1.0, 0.0])), push(jnp.array([0.0, 1.0]))
    (Array([2., 0.], dtype=float32), Array([0., 4.], dtype=float32))
    """
    return _linearized("linearize", JVPMap, fun, primals, has_aux)


@overload
def jvp(
    fun: Callable[..., R],
    primals: Sequence[PyTree],
    tangents: Sequence[PyTree],
    has_aux: Literal[False] = False,
) -> tuple[R, R]: ...
@overload
def jvp(
    fun: Callable[..., tuple[R, Aux]],
    primals: Sequence[PyTree],
    tangents: Sequence[PyTree],
    has_aux: Literal[True],
) -> tuple[R, R, Aux]: ...
def jvp(
    fun: Callable[..., Any],
    primals: Sequence[PyTree],
    tangents: Sequence[PyTree],
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """Evaluate a function and its directional derivative at once, in forward mode.

        jvp(f, (x,), (t,)) = f(x), J t,  J = df/dx at x

    Args:
        fun: function of pytrees of arrays; with `has_aux` it returns (output, aux).
        primals: tuple or list of the positional arguments.
        tangents: their tangents, with the structure, shapes and dtypes of `primals`; None stands
            for zero, as for integer leaves.
        has_aux: whether `fun` returns a pair whose second part is passed through.

    Returns:
        (output, tangent of the output), or (output, tangent, aux).

    Raises:
        TreeError, ShapeError, DTypeError: the tangents do not fit the primals.
        TypeError: `primals` or `tangents` is neither a tuple nor a list.

    >>> gf.jvp(jnp.square, (jnp.array([1.0, 2.0]),), (jnp.array([1.0, 0.5]),))
    (Array([1., 4.], dtype=float32), Array([2., 2.], dtype=float32))
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError("jvp takes tuples or lists of primals and tangents")
    flat, leaves, called = _at("jvp", fun, tuple(primals), has_aux)
    avals = [typeof(x) for x in leaves]
    ts = _matching(tuple(tangents), flat.in_tree, avals, "the tangents", "the primals")
    outs, out_ts = jvp_flat(flat, leaves, ts, called)
    dense = [instantiate(t, typeof(o)) for t, o in zip(out_ts, outs)]
    dense = [
        with_weak(t, o.weak) if dtypes.is_inexact(typeof(o).dtype) else t
        for t, o in zip(dense, outs)
    ]
    out, tangent = flat.output(outs), flat.output(dense)
    return (out, tangent, flat.aux(outs)) if has_aux else (out, tangent)


def linear_transpose(
    fun: Callable[..., Any], *primals: PyTree
) -> Callable[[PyTree], tuple[PyTree, ...]]:
    """Transpose a linear function: of x -> A x make ct -> A^T ct.

    Args:
        fun: linear function of pytrees of arrays.
        primals: its arguments, of which shapes and dtypes count alone; anything with `shape` and
            `dtype` will do, as a ShapeDtypeStruct.

    Returns:
        A function from a cotangent with the structure of the output to a tuple of cotangents, one
        for each primal.

    Raises:
        TypeError: the derivative of `fun` depends on the point, so that it is not linear.

    >>> total = gf.linear_transpose(jnp.sum, gf.ShapeDtypeStruct((3,), "float32"))
    >>> total(2.0)
    (Array([2., 2., 2.], dtype=float32),)
    """
    leaves, in_tree = tree.flatten(primals)
    avals = [_described(x) for x in leaves]
    flat = FlatFunction(fun, in_tree)
    out_avals = stage(flat, avals, name=name_of(fun))[0].out_avals
    mask = tuple([dtypes.is_inexact(a.dtype) for a in avals])

    def pull(*values: Any) -> list[Any]:
        point, cts = values[: len(avals)], values[len(avals) :]
        outs, nonzero, jaxpr, residuals = linearize_flat(flat, point, mask)
        back = LinearMap(residuals, (jaxpr, nonzero[: len(outs)], mask)).pull(cts)
        return [instantiate(c, a) for c, a in zip(back, avals, strict=True)]

    # Stage the derivative with the point as an input: a linear function's does not depend on it.
    in_avals = [*avals, *out_avals]
    program, captured = stage(pull, in_avals, name=name_of(fun))
    first, rest = [False] * len(captured), [False] * len(out_avals)
    for i, path in enumerate(tree.paths(primals)):
        if any(dependent(program, [*first, *(k == i for k in range(len(avals))), *rest])):
            raise TypeError(
                f"linear_transpose: {name_of(fun)} is not linear: its derivative depends on the "
                f"value of argument {path}\n  at {where().describe()}\n"
                "  use vjp(f, *primals) for the derivative at a point"
            )

    def transposed(ct: PyTree) -> tuple[PyTree, ...]:
        cts = _matching(ct, flat.out_tree, out_avals, "the cotangent", "the output")
        with default_device_of([*captured, *cts]):
            dense = [instantiate(c, a) for c, a in zip([None] * len(avals) + cts, in_avals)]
            return tree.unflatten(in_tree, evaluate(program, *captured, *dense))

    return transposed


def _described(x: Any) -> Aval:
    """The aval of an array, a number, or anything that has a shape and a dtype."""
    if is_value(x):
        return typeof(as_array(x))
    return aval(tuple(x.shape), dtypes.dtype(x.dtype))


def fwd_and_bwd(
    fun: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> tuple[Callable[P, tuple[Any, ...]], Callable[[VJP, PyTree], PyTree]]:
    """Split the derivative of a function in two: a forward pass and a backward pass.

    Each of them may be jitted and called on its own, the residuals going from one to the other.

    Args:
        fun: function of pytrees of arrays; with `has_aux` it returns (output, aux).
        argnums: position of the argument to differentiate by, or a sequence of positions.
        has_aux: whether `fun` returns a pair whose second part is passed through.

    Returns:
        (forward, backward): forward(*args) -> (output, residuals), with aux third;
        backward(residuals, cotangent) -> cotangent of the argument, a tuple where `argnums` is a
        sequence.

    >>> forward, backward = gf.fwd_and_bwd(lambda w, x: w * x)
    >>> out, residuals = forward(jnp.array([2.0]), jnp.array([3.0]))
    >>> backward(residuals, jnp.ones(1))
    Array([3.], dtype=float32)
    """

    def forward(*args: P.args, **kwargs: P.kwargs) -> tuple[Any, ...]:
        _, f, picked = on_arguments(fun, argnums, args, kwargs)
        return vjp(f, *picked, has_aux=has_aux)

    def backward(pull: VJP, ct: PyTree) -> PyTree:
        return without_tuple(pull(ct), argnums)

    return forward, backward
