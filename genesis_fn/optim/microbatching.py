"""Functions of a batch, run on parts of it one after another: in the memory of one part."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree, dtypes, eval_shape, lax, tree, value_and_grad, vmap
from genesis_fn.errors import ArgumentError, DTypeError, ShapeError
from genesis_fn.extend import Tracer, as_array
from genesis_fn.optim.tree_map_updates import wide_dtype


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """A way to put the results of the microbatches together, as these functions say:

        carry = init(shapes of the first result)
        carry = update(carry, result, i)  for each microbatch i
        finalize(carry)

    Args:
        init: function of a tree of ShapeDtypeStruct that gives the first carry.
        update: function (carry, result, index of the microbatch) -> carry of the same shapes.
        finalize: function of the last carry that gives the result of the whole batch.
        aggregate: function that does the same within a microbatch, over the leading axis of the
            mapped results; `micro_vmap` alone uses it.

    >>> largest = optim.microbatching.Accumulator(
    ...     init=lambda x: jnp.full(x.shape, -jnp.inf, x.dtype),
    ...     update=lambda carry, x, i: jnp.maximum(carry, x),
    ...     finalize=lambda carry: carry,
    ...     aggregate=lambda xs: jnp.max(xs, axis=0),
    ... )
    >>> optim.microbatch(jnp.max, 0, 2, largest)(jnp.array([1.0, 4.0, 2.0, 3.0]))
    Array(4., dtype=float32)
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree, Any], PyTree]
    finalize: Callable[[PyTree], PyTree]
    aggregate: Callable[[PyTree], PyTree]


class AccumulationType(enum.Enum):
    """The usual ways to put the results of microbatches together.

    Sums and means are added in float32 or wider, and returned in the dtype of the results.
    """

    MEAN = enum.auto()
    """The mean over all microbatches."""
    SUM = enum.auto()
    """The sum."""
    RUNNING_MEAN = enum.auto()
    """The mean over the microbatches that are run: `num_real_microbatches` may be fewer."""
    CONCAT = enum.auto()
    """The results joined along axis 0, in the order of the batch."""


# An Accumulator or AccumulationType, or a tree of them that is a prefix of the results.
Accumulators: TypeAlias = PyTree


def _split(x: Array, microbatch_size: int, axis: int) -> Array:
    """Returns x with its batch axis made two: of a microbatch's rows, and of the microbatches.

    Microbatch i of n has the rows i, i + n, i + 2 n, ...: each device of a sharded batch has a part
    of every microbatch.
    """
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"microbatches of axis {axis} of an array of shape {x.shape}")
    axis = axis % x.ndim
    size = x.shape[axis]
    if size % microbatch_size:
        raise ShapeError(
            f"a batch of {size} is no whole number of microbatches of {microbatch_size}\n"
            "  choose a microbatch_size that divides the batch, or pad the batch"
        )
    parts = (microbatch_size, size // microbatch_size)
    return x.reshape((*x.shape[:axis], *parts, *x.shape[axis + 1 :]))


def reshape_batch_axis(tree: PyTree, microbatch_size: int, axis: int = 0) -> PyTree:
    """Splits the batch axis of every leaf in two: (number of microbatches, microbatch_size).

    Microbatch i of n has the rows i, i + n, i + 2 n, ...

    Args:
        tree: tree of arrays of one batch size.
        microbatch_size: positive number of rows of a microbatch; it divides the batch size.
        axis: the batch axis.

    Returns:
        A tree like `tree`, of arrays with one more dimension.

    Raises:
        ArgumentError: `microbatch_size` is no positive integer.
        ShapeError: `microbatch_size` does not divide a batch, or a leaf has no such axis.

    >>> optim.microbatching.reshape_batch_axis(jnp.arange(6), 2)
    Array([[0, 3],
           [1, 4],
           [2, 5]], dtype=int32)
    """
    _require_size(microbatch_size)

    def leaf(x: Any) -> Array:
        x = as_array(x)
        parts = _split(x, microbatch_size, axis)
        return jnp.swapaxes(parts, axis % x.ndim, axis % x.ndim + 1)

    return _map(leaf, tree)


_map = tree.map  # by its name the functions above and below have a parameter


def _require_size(microbatch_size: Any) -> None:
    if not isinstance(microbatch_size, int) or microbatch_size < 1:
        raise ArgumentError(f"microbatch_size must be a positive integer, got {microbatch_size!r}")


# ---- accumulators ----


def _zeros(x: Any) -> Array:
    return jnp.zeros(x.shape, wide_dtype(dtypes.dtype(x.dtype)))


def _require_inexact(kind: AccumulationType, x: Any) -> None:
    if not dtypes.is_inexact(dtypes.dtype(x.dtype)):
        raise DTypeError(
            f"AccumulationType.{kind.name} of microbatches takes floating results, got {x.dtype}\n"
            "  convert them in the function, or take AccumulationType.SUM"
        )


def _running(carry: Array, x: Array, i: Any) -> Array:
    share = (1.0 / (as_array(i) + 1).astype("float32")).astype(carry.dtype)
    return carry + (x - carry) * share


def _leafwise(kind: AccumulationType, count: int) -> Accumulator:
    """Returns the accumulator of `count` results that are single arrays."""

    def zeros(x: Any) -> Array:
        _require_inexact(kind, x)
        return _zeros(x)

    def joined(carry: Array) -> Array:
        # Row j of microbatch i is row j count + i of the batch.
        if carry.ndim == 1:
            return carry
        return jnp.swapaxes(carry, 0, 1).reshape((-1, *carry.shape[2:]))

    match kind:
        case AccumulationType.SUM:
            return Accumulator(_zeros, lambda c, x, i: c + x, lambda c: c, _total)
        case AccumulationType.MEAN:
            return Accumulator(zeros, lambda c, x, i: c + x, lambda c: c / count, _mean)
        case AccumulationType.RUNNING_MEAN:
            return Accumulator(zeros, _running, lambda c: c, _mean)
        case AccumulationType.CONCAT:
            return Accumulator(
                lambda x: jnp.zeros((count, *x.shape), x.dtype),
                lambda c, x, i: c.at[i].set(x),
                joined,
                lambda xs: xs,
            )


def _total(xs: Array) -> Array:
    return jnp.sum(xs, axis=0)


def _mean(xs: Array) -> Array:
    return jnp.mean(xs, axis=0)


def _lifted(part: Any, count: int) -> Accumulator:
    """Returns the accumulator of trees of arrays that a user's `part` stands for."""
    if isinstance(part, Accumulator):
        return part
    if not isinstance(part, AccumulationType):
        raise ArgumentError(
            f"an accumulator is an Accumulator, an AccumulationType or a tree of them, got {part!r}"
        )
    leaf = _leafwise(part, count)
    return Accumulator(
        lambda shapes: _map(leaf.init, shapes),
        lambda carry, result, i: _map(lambda c, x: leaf.update(c, x, i), carry, result),
        lambda carry: _map(leaf.finalize, carry),
        lambda results: _map(leaf.aggregate, results),
    )


def _finalized(part: Any, accumulator: Accumulator, carry: PyTree, shapes: PyTree) -> PyTree:
    """Returns the final result; those of an AccumulationType have the dtypes of the results."""
    result = accumulator.finalize(carry)
    if isinstance(part, Accumulator):
        return result
    return _map(lambda x, like: x.astype(like.dtype), result, shapes)


# ---- functions ----


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Accumulators = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: int | Array | None = None,
) -> Callable[..., Any]:
    """Runs a function on microbatches, one after another, and puts the results together.

        finalize(... update(update(init, fun(part 0), 0), fun(part 1), 1) ...)

    Only one microbatch's intermediate values are in memory at a time. Microbatch i of n has the
    rows i, i + n, i + 2 n, ... of the batch. Reverse mode through the result keeps what each
    microbatch needs, unless `fun` is rematerialized (`checkpoint`): take derivatives inside `fun`.

    Args:
        fun: function whose arguments `argnums` and `argnames` have a batch axis.
        argnums: positions of the arguments with a batch axis.
        microbatch_size: positive number of rows of a microbatch, which divides the batch size; None
            returns `fun` itself.
        accumulator: how results are put together: an AccumulationType or Accumulator, or a tree of
            them that is a prefix of what `fun` returns.
        argnames: names of the keyword arguments with a batch axis.
        in_axes: the batch axis of each of `argnums` and then of `argnames`, or one for all.
        num_real_microbatches: number of microbatches that are run, the first ones; None: all. It
            may be traced: a padded batch then takes no time, and there is no reverse mode.

    Returns:
        A function of the arguments of `fun`.

    Raises:
        ArgumentError: `microbatch_size` is no positive integer, `in_axes` are not as many as the
            arguments, or there are fewer microbatches than `num_real_microbatches`.
        ShapeError: the function is called with arguments of several batch sizes, or of one that
            `microbatch_size` does not divide.
        DTypeError: the results that are averaged are not floating.

    >>> kinds = optim.microbatching.AccumulationType
    >>> f = lambda x: (x + 1, jnp.sum(3 * x))
    >>> optim.microbatch(f, 0, 2, (kinds.CONCAT, kinds.SUM))(jnp.array([1, 2, 3, 4]))
    (Array([2, 3, 4, 5], dtype=int32), Array(30, dtype=int32))
    """
    if microbatch_size is None:
        return fun
    _require_size(microbatch_size)
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    given = len(positions) + len(names)
    axes = (in_axes,) * given if isinstance(in_axes, int) else tuple(in_axes)
    if len(axes) != given or not given:
        raise ArgumentError(f"microbatch: {len(axes)} in_axes for {given} arguments with a batch")

    def run(*args: Any, **kwargs: Any) -> Any:
        absent = [f"position {i}" for i in positions if not -len(args) <= i < len(args)]
        absent += [f"{n}=" for n in names if n not in kwargs]
        if absent:
            raise ArgumentError(
                f"microbatch: the call has no argument at {', '.join(absent)}, which has a batch; "
                "pass those of argnums by position and those of argnames by name"
            )
        count = _count(
            [args[i] for i in positions] + [kwargs[n] for n in names], axes, microbatch_size
        )

        def part(i: Any) -> Any:
            def of(argument: PyTree, axis: int) -> PyTree:
                return _map(lambda x: _microbatch(as_array(x), i, microbatch_size, axis), argument)

            some, named = list(args), dict(kwargs)
            for position, axis in zip(positions, axes, strict=False):
                some[position] = of(args[position], axis)
            for name, axis in zip(names, axes[len(positions) :], strict=True):
                named[name] = of(kwargs[name], axis)
            return fun(*some, **named)

        shapes = eval_shape(part, 0)
        parts = _map(lambda part: _lifted(part, count), accumulator)
        first = _map(lambda a, like: a.init(like), parts, shapes)

        def step(i: Any, carry: PyTree) -> PyTree:
            return _map(lambda a, c, x: a.update(c, x, i), parts, carry, part(i))

        last = lax.fori_loop(0, _number(num_real_microbatches, count), step, first)
        return _map(_finalized, accumulator, parts, last, shapes)

    return run


def _count(arguments: list[PyTree], axes: tuple[int, ...], microbatch_size: int) -> int:
    """Returns the number of microbatches of the arguments with a batch."""
    sizes = {
        _split(as_array(x), microbatch_size, axis).shape[axis % as_array(x).ndim + 1]
        for argument, axis in zip(arguments, axes, strict=True)
        for x in tree.leaves(argument)
    }
    if len(sizes) != 1:
        batches = sorted(n * microbatch_size for n in sizes)
        raise ShapeError(f"the arguments with a batch have batches of {batches or 'no arrays'}")
    return sizes.pop()


def _microbatch(x: Array, i: Any, microbatch_size: int, axis: int) -> Array:
    """Returns the rows i, i + n, i + 2 n, ... along an axis."""
    parts = _split(x, microbatch_size, axis)
    return lax.dynamic_index_in_dim(parts, i, axis % x.ndim + 1, keepdims=False)


def _number(num_real_microbatches: Any, count: int) -> Any:
    """Returns how many microbatches are run, of `count`."""
    if num_real_microbatches is None:
        return count
    if isinstance(num_real_microbatches, Tracer):
        return jnp.minimum(num_real_microbatches, count)
    number = int(num_real_microbatches)
    if not 0 <= number <= count:
        raise ArgumentError(f"num_real_microbatches is {number}, of {count} microbatches")
    return number


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Callable[..., Any]] = vmap,
    accumulator: Accumulators = AccumulationType.CONCAT,
    num_real_microbatches: int | Array | None = None,
) -> Callable[..., Any]:
    """Maps a function over a batch axis as `vmap` does, a microbatch at a time.

        accumulate(vmap(fun)(part 0), vmap(fun)(part 1), ...), see `microbatch`

    Args:
        fun: function of single examples.
        in_axes: the mapped axis of each argument, None for one that is shared, or one axis for all.
            Keyword arguments are mapped along axis 0.
        out_axes: 0; others are not supported.
        microbatch_size: positive number of examples that are mapped at once, which divides the
            batch size; None: all.
        vmap_fn: function (fun, in_axes, out_axes) -> mapped function.
        accumulator: what is done with the mapped results: CONCAT returns them as `vmap` does,
            others reduce them; a tree is a prefix of what `fun` returns.
        num_real_microbatches: number of microbatches that are run, the first ones; None: all.

    Returns:
        A function of the arguments of `fun`, those that are mapped with one more axis.

    Raises:
        ArgumentError: `out_axes` is not 0; or as of `microbatch`.
        ShapeError: the function is called with arguments of several batch sizes, or of one that
            `microbatch_size` does not divide.

    >>> optim.microbatching.micro_vmap(lambda x: x**2, microbatch_size=2)(jnp.arange(6))
    Array([ 0,  1,  4,  9, 16, 25], dtype=int32)
    """
    if out_axes != 0:
        raise ArgumentError(
            f"micro_vmap: out_axes is 0, got {out_axes!r}: move the axis of the result afterwards"
        )

    def run(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)
        axes += (None,) * (len(args) - len(axes))

        def mapped(*some: Any, named: dict[str, Any]) -> Any:
            results = vmap_fn(fun, axes, out_axes)(*some, **named)
            return _map(lambda part, x: _lifted(part, 1).aggregate(x), accumulator, results)

        batched = [i for i, axis in enumerate(axes) if axis is not None]
        return microbatch(
            mapped,
            batched,
            microbatch_size,
            accumulator,
            argnames="named",
            in_axes=[*(axis for axis in axes if axis is not None), 0],
            num_real_microbatches=num_real_microbatches,
        )(*args, named=kwargs)

    return run


class IndividualOutputs(NamedTuple):
    """What `micro_grad` knows of each example: its value, metrics and auxiliary output."""

    values: Any
    metrics: Any
    aux: Any


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: Accumulators = AccumulationType.SUM,
    transform_fn: Callable[[PyTree], PyTree] = lambda grads: grads,
    metrics_fn: Callable[[PyTree], PyTree] = lambda grads: None,
    num_real_microbatches: int | Array | None = None,
) -> Callable[..., tuple[PyTree, IndividualOutputs]]:
    """Computes, transforms and accumulates the gradients of single examples.

        accumulate over examples i of transform_fn(gradient of fun(params, example i))

    Source: Roulet & Agarwala, "Per-example gradients: a new frontier for understanding and
    improving optimizers", 2025.

    Args:
        fun: function (params, batch, ...) that gives a scalar, or (scalar, aux) with `has_aux`.
        has_aux: whether `fun` returns an auxiliary output too.
        argnums: positions of the arguments that are differentiated.
        batch_argnums: positions of the arguments with a batch, along axis 0. Keyword arguments have
            one too.
        keep_batch_dim: whether `fun` is given examples as batches of 1, or without the batch axis.
        microbatch_size: positive number of examples whose gradients are in memory at once, which
            divides the batch size; None: all.
        accumulator: how the transformed gradients are put together; a tree is a prefix of them.
        transform_fn: function of an example's gradients, such as a clipping.
        metrics_fn: function of an example's gradients, before they are transformed, that gives
            something small, such as a norm.
        num_real_microbatches: number of microbatches that are run, the first ones; None: all.

    Returns:
        A function of the arguments of `fun` that gives (accumulated gradients,
        IndividualOutputs(values, metrics, aux)), whose leaves have an entry for each example.

    Raises:
        ArgumentError: as of `microbatch`.
        ShapeError: the function is called with arguments of several batch sizes, or of one that
            `microbatch_size` does not divide.

    >>> loss = lambda w, x, y: 0.5 * jnp.mean((x @ w - y) ** 2)
    >>> f = optim.microbatching.micro_grad(
    ...     loss, batch_argnums=(1, 2), microbatch_size=2, metrics_fn=jnp.linalg.norm
    ... )
    >>> grads, each = f(jnp.zeros(1), jnp.ones((4, 1)), jnp.array([0.0, 2.0, 4.0, 6.0]))
    >>> grads, each.values, each.metrics
    (Array([-12.], dtype=float32), Array([ 0.,  2.,  8., 18.], dtype=float32),
     Array([0., 2., 4., 6.], dtype=float32))
    """
    batched = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    derivative = value_and_grad(fun, argnums, has_aux=has_aux)

    def one(*args: Any, **kwargs: Any) -> tuple[PyTree, IndividualOutputs]:
        outputs, grads = derivative(*args, **kwargs)
        value, aux = outputs if has_aux else (outputs, None)
        return transform_fn(grads), IndividualOutputs(value, metrics_fn(grads), aux)

    in_axes = [0 if i in batched else None for i in range(max(batched) + 1)]
    mapped = micro_vmap(
        one,
        in_axes,
        accumulator=(accumulator, AccumulationType.CONCAT),
        microbatch_size=microbatch_size,
        num_real_microbatches=num_real_microbatches,
    )
    if not keep_batch_dim:
        return mapped

    def run(*args: Any, **kwargs: Any) -> tuple[PyTree, IndividualOutputs]:
        some = [
            _map(lambda x: jnp.expand_dims(as_array(x), 1), a) if i in batched else a
            for i, a in enumerate(args)
        ]
        return mapped(*some, **kwargs)

    return run
