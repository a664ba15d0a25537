"""Jacobians and Hessians: derivatives in every direction of a basis, by `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import Aval
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.diagnostics.traceback import boundary
from genesis_fn.core.primitive import CallSite, default_device_of, typeof, with_weak
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.factories import instantiate
from genesis_fn.primitives.shape import iota, reshape, slice_in_dim, transpose
from genesis_fn.transforms.autodiff.arguments import (
    argument_labels,
    differentiable_leaves,
    on_arguments,
    without_tuple,
)
from genesis_fn.transforms.autodiff.derivatives import vjp
from genesis_fn.transforms.autodiff.linearize import jvp_flat
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, name_of

P = ParamSpec("P")
Aux = TypeVar("Aux")


def _check_outputs(
    outs: Sequence[Any], fun: Callable[..., Any], holomorphic: bool, what: str
) -> None:
    """Raise TypeError for an output whose Jacobian is not defined."""
    for i, aval in enumerate(map(typeof, outs)):
        if holomorphic and not dtypes.is_complex(aval.dtype):
            wanted, remedy = "complex outputs (holomorphic=True)", "leave holomorphic=True out"
        elif what == "jacrev" and not holomorphic and not dtypes.is_float(aval.dtype):
            wanted, remedy = "real floating outputs", "use vjp for others"
            if dtypes.is_complex(aval.dtype):
                remedy = "pass holomorphic=True for a holomorphic function, use vjp for others"
        else:
            continue
        raise TypeError(
            f"{what} needs {name_of(fun)} to return {wanted}, leaf {i} of its output is {aval}\n"
            f"  at {where().describe()}\n  {remedy}"
        )


def _basis(aval: Aval, offset: int, count: int) -> Any:
    """[count, *shape]: rows `offset` ... of the identity over all elements, reshaped to this
    leaf."""
    rows = iota(dtypes.I32, (count, aval.size), 0)
    columns = ops.add(iota(dtypes.I32, (count, aval.size), 1), offset)
    return reshape(ops.convert(ops.eq(rows, columns), aval.dtype), (count, *aval.shape))


def _bases(avals: Sequence[Aval]) -> list[Any]:
    count, offset, result = sum(a.size for a in avals), 0, []
    for a in avals:
        result.append(_basis(a, offset, count))
        offset += a.size
    return result


def _rows(x: Any, avals: Sequence[Aval]) -> list[Any]:
    """Split a leading axis over all elements into one block per leaf, with the leaf's shape."""
    result, offset = [], 0
    for a in avals:
        block = slice_in_dim(x, offset, offset + a.size, axis=0)
        result.append(reshape(block, (*a.shape, *typeof(x).shape[1:])))
        offset += a.size
    return result


def _last(x: Any, lead: int) -> Any:
    """Move the first `lead` axes of `x` behind the others."""
    n = typeof(x).ndim
    return transpose(x, (*range(lead, n), *range(lead)))


@overload
def jacfwd(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> Callable[P, PyTree]: ...
@overload
def jacfwd(
    fun: Callable[P, tuple[Any, Aux]],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[True] = ...,
    holomorphic: bool = False,
) -> Callable[P, tuple[PyTree, Aux]]: ...
def jacfwd(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Make a function that computes the Jacobian, column by column in forward mode.

    One pass for all columns (by `vmap`): for functions with no more inputs than outputs.

    Args:
        fun: function of pytrees of arrays; with `has_aux` it returns (output, aux).
        argnums: position of the argument to differentiate by, or a sequence of positions.
        has_aux: whether `fun` returns a pair whose second part is passed through.
        holomorphic: whether `fun` is holomorphic; complex arguments need it.

    Returns:
        A function with the parameters of `fun` that returns the Jacobian, or (Jacobian, aux): a
        pytree with the structure of the output, at whose leaves are pytrees with the structure of
        the argument (or tuples of them); a block has shape [*output shape, *input shape].

    Raises:
        TypeError: an argument is not floating, or complex without `holomorphic`; when called.

    >>> gf.jacfwd(lambda x: x**2)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    @boundary(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen, f, picked = on_arguments(fun, argnums, args, kwargs)
        leaves, in_tree, _ = flatten_arrays(
            picked, f"an argument of {name_of(fun)}: ", lambda: argument_labels(fun, args, chosen)
        )
        label = lambda i: f"argument {argument_labels(fun, args, chosen)[i]}"
        differentiable_leaves(leaves, label, "raise", holomorphic, "jacfwd")
        avals = [typeof(x) for x in leaves]
        flat = FlatFunction(f, in_tree, has_aux=has_aux)
        kept: list[Any] = []
        labels = lambda: argument_labels(fun, args, chosen)
        called = CallSite("jacfwd", name_of(fun), leaves, labels)

        # Aux does not depend on the tangent: out_axes=None takes it out of the batch.
        def column(*tangents: Any) -> tuple[list[Any], list[Any]]:
            outs, ts = jvp_flat(flat, leaves, tangents, called)
            kept.append(outs)
            _check_outputs(outs[: flat.out_count], fun, holomorphic, "jacfwd")
            dense = [instantiate(t, typeof(o)) for t, o in zip(ts, outs)]
            return dense[: flat.out_count], outs[flat.out_count :]

        with default_device_of(leaves):
            bases = _bases(avals)
        blocks, aux = vmap(column, out_axes=(0, None))(*bases)
        table = [
            tree.unflatten(in_tree, [_last(r, a.ndim) for r, a in zip(_rows(block, avals), avals)])
            for block in blocks
        ]
        result = tree.unflatten(flat.out_tree, [without_tuple(t, argnums) for t in table])
        return (result, flat.aux([None] * flat.out_count + list(aux))) if has_aux else result

    return jacobian


@overload
def jacrev(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, PyTree]: ...
@overload
def jacrev(
    fun: Callable[P, tuple[Any, Aux]],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[True] = ...,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[PyTree, Aux]]: ...
def jacrev(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Make a function that computes the Jacobian, row by row in reverse mode.

    One pass for all rows (by `vmap`): for functions with more inputs than outputs. `jacobian` is
    another name of it.

    Args:
        fun: function of pytrees of arrays with real output; with `has_aux` it returns
            (output, aux).
        argnums: position of the argument to differentiate by, or a sequence of positions.
        has_aux: whether `fun` returns a pair whose second part is passed through.
        holomorphic: whether `fun` is holomorphic: complex arguments, complex output.
        allow_int: whether integer arguments are allowed; their blocks are zeros.

    Returns:
        A function with the parameters of `fun` that returns the Jacobian, or (Jacobian, aux): a
        pytree with the structure of the output, at whose leaves are pytrees with the structure of
        the argument (or tuples of them); a block has shape [*output shape, *input shape].

    Raises:
        TypeError: an argument or an output is not floating; when called.

    >>> gf.jacrev(jnp.sum)(jnp.array([1.0, 2.0, 3.0]))
    Array([1., 1., 1.], dtype=float32)
    """

    @boundary(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen, f, picked = on_arguments(fun, argnums, args, kwargs)
        leaves, in_tree, _ = flatten_arrays(
            picked, f"an argument of {name_of(fun)}: ", lambda: argument_labels(fun, args, chosen)
        )
        label = lambda i: f"argument {argument_labels(fun, args, chosen)[i]}"
        nonfloat = "zeros" if allow_int else "raise"
        differentiable_leaves(leaves, label, nonfloat, holomorphic, "jacrev")
        out, pull, *aux = vjp(f, *picked, has_aux=has_aux)
        outs, out_tree = tree.flatten(out)
        _check_outputs(outs, fun, holomorphic, "jacrev")
        avals = [typeof(o) for o in outs]
        with default_device_of(outs):
            bases = _bases(avals)
        rows = tree.leaves(vmap(lambda *cts: pull(tree.unflatten(out_tree, cts)))(*bases))
        per_output: list[list[Any]] = [[] for _ in avals]
        for row, x in zip(rows, leaves):
            for blocks, block in zip(per_output, _rows(row, avals)):
                blocks.append(with_weak(block, x.weak))
        result = tree.unflatten(
            out_tree,
            [without_tuple(tree.unflatten(in_tree, blocks), argnums) for blocks in per_output],
        )
        return (result, aux[0]) if has_aux else result

    return jacobian


jacobian = jacrev


@overload
def hessian(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[False] = False,
    holomorphic: bool = False,
) -> Callable[P, PyTree]: ...
@overload
def hessian(
    fun: Callable[P, tuple[Any, Aux]],
    argnums: int | Sequence[int] = 0,
    has_aux: Literal[True] = ...,
    holomorphic: bool = False,
) -> Callable[P, tuple[PyTree, Aux]]: ...
def hessian(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Make a function that computes all second derivatives: forward mode over reverse mode.

    It takes memory for all n**2 of them; for the product with one vector differentiate the gradient
    instead: `jvp(grad(f), (x,), (v,))`.

    Args:
        fun: function of pytrees of arrays; with `has_aux` it returns (output, aux).
        argnums: position of the argument to differentiate by, or a sequence of positions.
        has_aux: whether `fun` returns a pair whose second part is passed through.
        holomorphic: whether `fun` is holomorphic: complex arguments, complex output.

    Returns:
        A function with the parameters of `fun` that returns the Hessian, or (Hessian, aux); a block
        has shape [*output shape, *input shape, *input shape].

    Raises:
        TypeError: an argument or an output is not floating; when called.

    >>> gf.hessian(lambda x: x[0] ** 2 * x[1])(jnp.array([1.0, 3.0]))
    Array([[6., 2.],
           [2., 0.]], dtype=float32)
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)
