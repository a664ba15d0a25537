"""fused: a function with a reference over primitives, for which backends may have a kernel.

    @fused("rms_norm", static=("eps",), rows=(True, False))
    def rms_norm(x, weight, *, eps): ...

Tracing never depends on the device. The reference is staged once per (avals, static parameters);
the forward pass with residuals and the backward pass are fused functions themselves. A backend that
has a kernel of that name runs it instead of the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.convert import as_array
from genesis_fn.core.jaxpr import Jaxpr, memoized
from genesis_fn.core.primitive import Primitive, bind, ctx, trace_context_key, typeof
from genesis_fn.core.static import Frozen, Reader
from genesis_fn.primitives.factories import instantiate, move_batch
from genesis_fn.transforms.custom.custom_call import linear_call, push_program
from genesis_fn.transforms.sharding.varying import matched
from genesis_fn.transforms.staging.api_util import FlatFunction
from genesis_fn.transforms.staging.call import batch_call, jvp_call, linearize_call
from genesis_fn.transforms.staging.stage_trace import stage, stage_closed

P = ParamSpec("P")
R = TypeVar("R")

FUSED: dict[str, Fused[..., Any]] = {}
Dims: TypeAlias = str | Callable[..., str] | None


class Fused(Generic[P, R]):
    """A fused function. Call it with arrays by position and static parameters by keyword.

    * `static`: the names of the static parameters. Raises TypeError for others.
    * `rows[i]`: whether argument i may have any leading dimensions (vmap then adds one); arguments
      that may not, such as weights, are shared by all rows. Or `batch(size, xs, dims, **static)`.
    * `vjp = (forward, backward)`: fused functions. forward(*args) returns (outputs, residuals), as
      tuples; backward(residuals, cts, *, needs, **static) a cotangent per differentiable argument
      (what it returns where `needs` is False is ignored), or one per argument.
    * `precision`: the amp class of the whole; `exact`: positions of operands that keep their
      dtypes.
    * `dims`: which dimensions of the flat operands and results belong together, in the manner of
      einsum: "... d, d -> ... d". Those with capital letters, and the leading ones `...`, may be
      divided among devices; a result that lacks such a letter, or has it with length 1, is a sum
      over it, or an operand as it is where it is written "=d". In an operand "~d" the results are
      linear, but such operands: it may be a term of a sum that is taken of the results. Or a
      function of (operand avals, static parameters) that gives this.
    * `of_parts(axes, *operands, **static)`: the flat results on one device where `axes` of a mesh
      divide a dimension that `dims` does not let be divided, or None. It may use collectives; its
      partitioning rule says which dimension that is.
    """

    def __init__(
        self,
        name: str,
        reference: Callable[P, R],
        static: Sequence[str],
        rows: Sequence[bool] | None,
        precision: str,
        batch: Callable[..., Any] | None,
        exact: Sequence[int] = (),
        dims: Dims = None,
    ) -> None:
        if name in FUSED:
            raise ValueError(f"fused function {name!r} is defined twice")
        FUSED[name] = self
        functools.update_wrapper(self, reference)
        self.name, self.reference, self.static_names = name, reference, frozenset(static)
        self.rows, self.precision, self.batch = rows, precision, batch
        self.exact, self.dims = frozenset(exact), dims
        self.vjp: tuple[Fused[..., Any], Fused[..., Any]] | None = None
        self.of_parts: Callable[..., list[Any]] | None = None
        self.programs: dict[Any, Jaxpr] = {}

    def __repr__(self) -> str:
        return f"<fused {self.name}>"

    def __call__(self, *args: P.args, **static: P.kwargs) -> R:
        if not static.keys() <= self.static_names:
            unknown = ", ".join(sorted(static.keys() - self.static_names))
            known = ", ".join(sorted(self.static_names)) or "none"
            raise TypeError(
                f"fused function {self.name!r} has no static parameter {unknown} (it has {known}); "
                "arrays are given by position, and `fused(..., static=)` names what is not"
            )
        return self.apply(args, static)

    def apply(self, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Apply the function to a tuple of arguments, which may be trees."""
        leaves, in_tree = tree.flatten(args)
        leaves = [as_array(x) for x in leaves]
        out, out_tree = self.bind(leaves, in_tree, tuple(sorted(static.items())))
        return tree.unflatten(out_tree, out)

    def bind(
        self, leaves: Sequence[Any], in_tree: tree.PyTreeDef, static: tuple[Any, ...]
    ) -> tuple[list[Any], Any]:
        """Apply the function to flat arrays: (flat outputs, their structure)."""
        if ctx.match is not None:
            leaves = matched(leaves)
        jaxpr = self.program(tuple([typeof(x) for x in leaves]), in_tree, static)
        outs = bind(fused_p, *leaves, op=self, static=static, jaxpr=jaxpr)
        return outs, jaxpr.cache["out_tree"]

    def program(
        self, avals: tuple[Aval, ...], in_tree: tree.PyTreeDef, static: tuple[Any, ...]
    ) -> Jaxpr:
        """Stage the reference for operands of these avals, once; its cache has the structures."""
        key = (avals, in_tree, Reader().read(static), trace_context_key())
        program = self.programs.get(key)
        if program is None:
            flat = FlatFunction(self.reference, in_tree, kwargs=dict(static))
            program, captured = stage(flat, avals, name=self.name)
            if captured:
                arrays = ", ".join(str(typeof(x)) for x in captured)
                raise TypeError(
                    f"fused function {self.name!r} closes over {arrays}, which a kernel in its "
                    "place would not see: give it as an argument"
                )
            self.programs[key] = program
            program.cache.update(in_tree=in_tree, out_tree=flat.out_tree)
        return program

    def defvjp(self, forward: Fused[..., Any], backward: Fused[..., Any]) -> None:
        """Set the fused functions that compute the derivative."""
        self.vjp = forward, backward


def fused(
    name: str,
    *,
    static: Sequence[str] = (),
    rows: Sequence[bool] | None = None,
    precision: str = "follow",
    batch: Callable[..., Any] | None = None,
    exact: Sequence[int] = (),
    dims: Dims = None,
) -> Callable[[Callable[P, R]], Fused[P, R]]:
    """Decorator that makes one operation of a function, for which backends may have a kernel.

    The function is the reference: what runs where no backend has a kernel of that name, and what
    is differentiated unless `defvjp` gives rules. It may not close over arrays.

    Args:
        name: unique name, by which backends find their kernels.
        static: names of the keyword parameters that are Python values; all others are arrays.
        rows: for each argument, whether it may have any leading dimensions (`vmap` then adds one);
            those that may not, such as weights, are shared by all rows. None: `vmap` maps the
            reference.
        precision: the class of the operation under `amp`: "low", "high" or "follow"; "each" for a
            function whose operations have classes of their own.
        batch: batching rule `batch(size, xs, dims, **static)` that returns (outputs, out dims), or
            None to leave the case to the others.
        exact: positions of the arrays, in the flattened arguments, that `amp` leaves in their
            dtype whatever the class, such as weights of a sum.
        dims: which dimensions of the flattened arrays and results belong together, as in einsum:
            "... d, d -> ... d". Capital letters and leading dimensions `...` may be divided among
            the devices of a mesh; a result without such a letter is a sum over it, but one written
            "=d" an operand as it is. In an operand "~d" the results are linear. None: of arrays
            that are divided, the reference is run.

    Returns:
        The decorator, which gives a `Fused` function of the reference's signature.

    Raises:
        ValueError: `name` is taken.

    >>> @fused("docs_scaled_square", static=("scale",))
    ... def scaled_square(x, *, scale):
    ...     return scale * x * x
    >>> scaled_square(jnp.array([1.0, 2.0]), scale=3.0)
    Array([ 3., 12.], dtype=float32)
    """

    def decorate(reference: Callable[P, R]) -> Fused[P, R]:
        return Fused(name, reference, static, rows, precision, batch, exact, dims)

    return decorate


def _shape(*avals: Aval, op: Fused[..., Any], static: tuple[Any, ...], jaxpr: Jaxpr) -> list[Aval]:
    return jaxpr.out_avals


def _linearize(
    nonzero: Sequence[bool], *xs: Any, op: Fused[..., Any], static: tuple[Any, ...], jaxpr: Jaxpr
) -> Any:
    if op.vjp is None:
        return linearize_call(nonzero, xs, jaxpr)
    forward, backward = op.vjp
    outs, out_tree = forward.bind(xs, jaxpr.cache["in_tree"], static)
    primals, saved = outs[: len(jaxpr.outs)], outs[len(jaxpr.outs) :]
    mask, saved_avals = tuple(nonzero), tuple([typeof(s) for s in saved])
    # Forward mode differentiates the reference; reverse mode runs the backward function.
    push = push_program(jaxpr, saved_avals, mask)
    back = _backward_program(
        jaxpr,
        backward,
        saved_avals,
        out_tree.children()[1],
        Frozen(static),
        mask,
        trace_context_key(),
    )

    def apply(*ts: Any) -> list[Any]:
        return linear_call(
            [*xs, *saved],
            [t for t in ts if t is not None],
            forward=push,
            backward=back,
            out_avals=jaxpr.out_avals,
            name=op.name,
        )

    return primals, apply


@memoized
def _backward_program(
    jaxpr: Jaxpr,
    backward: Fused[..., Any],
    saved: tuple[Aval, ...],
    saved_tree: Any,
    static: Frozen,
    nonzero: tuple[bool, ...],
    context: tuple[Any, ...],
) -> Jaxpr:
    """[arguments, residuals, cts] -> cotangents of the arguments with a tangent.

    `context` is there to key the memo: what the backward function traces to depends on it.
    """
    args, count = jaxpr.in_avals, len(jaxpr.invars)
    inexact = [(a, n) for a, n in zip(args, nonzero) if dtypes.is_inexact(a.dtype)]
    needs = tuple([n for _, n in inexact])

    def f(*xs: Any) -> list[Any]:
        res = tree.unflatten(saved_tree, xs[count : count + len(saved)])
        cts = tree.unflatten(jaxpr.cache["out_tree"], xs[count + len(saved) :])
        returned = backward.apply((res, cts), {"needs": needs, **dict(static.value)})
        cotangents = tree.leaves(returned, is_leaf=lambda x: x is None)
        if len(cotangents) == len(args):  # one per argument, not per differentiable one
            cotangents = [g for g, a in zip(cotangents, args) if dtypes.is_inexact(a.dtype)]
        return [instantiate(g, a) for g, (a, n) in zip(cotangents, inexact, strict=True) if n]

    return stage_closed(f, [*args, *saved, *jaxpr.out_avals], backward.name)


def _batch(
    size: int,
    xs: Sequence[Any],
    dims: Sequence[Any],
    *,
    op: Fused[..., Any],
    static: tuple[Any, ...],
    jaxpr: Jaxpr,
    axis_name: Any = None,
) -> Any:
    if op.batch is not None:
        result = op.batch(size, xs, dims, **dict(static))
        if result is not None:
            return result
    # Rows take the batch as one more leading dimension, as long as no shared argument is batched.
    shared = [d is None for d, row in zip(dims, op.rows or ()) if not row]
    if op.rows is not None and len(op.rows) == len(xs) and all(shared):
        moved = [move_batch(x, d, 0, size) if row else x for x, d, row in zip(xs, dims, op.rows)]
        outs, _ = op.bind(moved, jaxpr.cache["in_tree"], static)
        return outs, [0] * len(outs)
    return batch_call(size, xs, dims, jaxpr, axis_name)


fused_p = Primitive(
    "fused",
    _shape,
    multi=True,
    program="jaxpr",
    linearize=_linearize,
    batch=_batch,
    jvp=lambda primals, tangents, *, jaxpr, **_: jvp_call(primals, tangents, jaxpr),
)
fused_p.takes = lambda *, jaxpr, **_: jaxpr.in_avals
