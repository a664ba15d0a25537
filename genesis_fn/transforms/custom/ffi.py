"""torch functions and Triton kernels as operations of traced programs.

torch differentiates a torch function: its derivative is a torch function again, so any order works.
A Triton kernel gets its derivative from the user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.convert import as_array, of_torch
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.dtypes import DType
from genesis_fn.core.primitive import SCALARS, Primitive, bind, typeof
from genesis_fn.core.static import aux_key
from genesis_fn.core.types.annotations import ArrayLike, PyTree
from genesis_fn.primitives.factories import move_batch, zeros
from genesis_fn.transforms.custom.callback import batch_sequentially, declared_outputs
from genesis_fn.transforms.custom.custom_call import linear_call
from genesis_fn.transforms.custom.derivative_rules import custom_vjp
from genesis_fn.transforms.staging.api_util import flatten_arrays, name_of
from genesis_fn.transforms.staging.stage_trace import stage_closed


def torch_type(d: DType) -> torch.dtype:
    """The torch.dtype of dtype `d`."""
    return getattr(torch, d.name)


# ---- torch functions of flat tensors; equal ones share programs ----


class _Function:
    """A function of tensors, equal to others of the same class and fields."""

    __slots__ = ("fields",)

    def __init__(self, *fields: Any) -> None:
        self.fields = fields

    def __eq__(self, other: Any) -> bool:
        return type(other) is type(self) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash((type(self), self.fields))

    @property
    def __name__(self) -> str:
        return name_of(self.fields[0])

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        raise TypeError(f"{type(self).__name__} is not called itself")


class _UserFunction(_Function):
    """The user's function of pytrees; fields are (function, structure)."""

    __slots__ = ()

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        f, in_tree = self.fields
        args, kwargs = tree.unflatten(in_tree, xs)
        out = tree.leaves(f(*args, **kwargs))
        for o in out:
            if not isinstance(o, torch.Tensor):
                raise TypeError(
                    f"torch_call: {name_of(f)} returned {o!r:.60}; it must return tensors"
                )
        return out


def _tracked(xs: Sequence[torch.Tensor], at: Sequence[int], again: bool) -> list[torch.Tensor]:
    """Mark operands at some positions as differentiated. Those that an outer derivative tracks are
    kept in its graph if `again`, and detached otherwise."""
    return [
        x if i not in at or (again and x.requires_grad) else x.detach().requires_grad_(True)
        for i, x in enumerate(xs)
    ]


def _grad(
    outs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cts: Sequence[torch.Tensor],
    again: bool,
) -> Sequence[torch.Tensor | None]:
    """The cotangents of `inputs`, None for one that `outs` do not depend on; differentiable
    themselves if `again`."""
    return torch.autograd.grad(outs, inputs, cts, create_graph=again, allow_unused=True)


class _TorchVJP(_Function):
    """(arguments, cotangents) -> cotangents of the arguments at some positions."""

    __slots__ = ()

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        f, count, positions = self.fields
        again = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
        with torch.enable_grad():
            args = _tracked(xs[:count], positions, again)
            pairs = [(o, ct) for o, ct in zip(f(*args), xs[count:], strict=True) if o.requires_grad]
            inputs = [args[i] for i in positions]
            if not pairs:  # no output depends on these arguments
                return [torch.zeros_like(a) for a in inputs]
            outs, cts = zip(*pairs)
            grads = _grad(outs, inputs, cts, again)
        return [torch.zeros_like(a) if g is None else g for g, a in zip(grads, inputs)]


class _TorchJVP(_Function):
    """(arguments, tangents of those at some positions) -> tangents of the outputs.

    torch.autograd has only reverse mode: a vjp is linear in its cotangent u, so the gradient of
    <vjp(u), t> by u is the jvp of t.
    """

    __slots__ = ()

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        f, count, positions, kept = self.fields
        args, tangents = xs[:count], xs[count:]
        again = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
        with torch.enable_grad():
            args = _tracked(args, positions, again)
            outs = [f_out for i, f_out in enumerate(f(*args)) if i in kept]
            probes = [torch.zeros_like(o, requires_grad=True) for o in outs]
            pairs = [(o, u) for o, u in zip(outs, probes) if o.requires_grad]
            if not pairs:
                return [torch.zeros_like(o) for o in outs]
            inputs = [args[i] for i in positions]
            back = _grad([o for o, _ in pairs], inputs, [u for _, u in pairs], True)
            terms = [(b, t) for b, t in zip(back, tangents) if b is not None and b.requires_grad]
            if not terms:
                return [torch.zeros_like(o) for o in outs]
            grads = _grad([b for b, _ in terms], probes, [t for _, t in terms], again)
        return [torch.zeros_like(o) if g is None else g for g, o in zip(grads, outs)]


class _TorchVmap(_Function):
    """The function over batches: all operands and results have them as leading axis."""

    __slots__ = ()

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.func.vmap(self.fields[0])(*xs))


def _vmapped(f: _Function) -> _Function:
    """Batch `f`. A derivative becomes the derivative of the batched function, since autograd does
    not run inside torch's vmap."""
    if type(f) in (_TorchVJP, _TorchJVP):
        return type(f)(_vmapped(f.fields[0]), *f.fields[1:])
    return _TorchVmap(f)


# ---- the primitive ----


def _output_avals(f: _Function, avals: Sequence[Aval]) -> tuple[Aval, ...]:
    """The avals that the function returns: from a run on torch's meta device, else on ones."""
    try:
        outs = _run(f, avals, "meta")
    except Exception:
        outs = _run(f, avals, "cpu")
    avals_out = []
    for o in outs:
        dtype = of_torch(o.dtype)
        if dtype is None:
            raise errors.DTypeError(
                f"torch_call: {name_of(f)} returns {o.dtype}, not a data type of this library"
            )
        avals_out.append(aval(tuple(o.shape), dtype))
    return tuple(avals_out)


def _run(f: _Function, avals: Sequence[Aval], device: str) -> list[torch.Tensor]:
    make = torch.empty if device == "meta" else torch.ones
    with torch.no_grad():
        return f(*[make(a.shape, dtype=torch_type(a.dtype), device=device) for a in avals])


@functools.lru_cache(maxsize=1024)
def _derivatives(
    f: _Function, avals: tuple[Aval, ...], positions: tuple[int, ...], outs: tuple[Any, ...]
) -> Any:
    """(program [arguments, tangents] -> tangents, program [arguments, cotangents] -> cotangents,
    which outputs have derivatives)."""
    count = len(avals)
    kept = tuple([i for i, a in enumerate(outs) if dtypes.is_inexact(a.dtype)])
    push, pull = _TorchJVP(f, count, positions, kept), _TorchVJP(f, count, positions)
    tangent_avals, cotangent_avals = (
        tuple([outs[i] for i in kept]),
        tuple([avals[i] for i in positions]),
    )

    def forward(*xs: Any) -> list[Any]:
        return bind(torch_call_p, *xs, f=push, out_avals=tangent_avals)

    def backward(*xs: Any) -> list[Any]:
        cts = dict(zip(kept, xs[count:]))
        full = [cts[i] if i in cts else zeros(a) for i, a in enumerate(outs)]
        return bind(torch_call_p, *xs[:count], *full, f=pull, out_avals=cotangent_avals)

    name = name_of(f)
    return (
        stage_closed(forward, [*avals, *cotangent_avals], name),
        stage_closed(backward, [*avals, *tangent_avals], name),
        kept,
    )


def _linearize(nonzero: Sequence[bool], *xs: Any, f: _Function, out_avals: tuple[Aval, ...]) -> Any:
    outs = bind(torch_call_p, *xs, f=f, out_avals=out_avals)
    positions = tuple([i for i, n in enumerate(nonzero) if n])
    avals = tuple([typeof(x) for x in xs])
    forward, backward, kept = _derivatives(f, avals, positions, out_avals)

    def apply(*ts: Any) -> list[Any]:
        moved = linear_call(
            xs,
            [ts[i] for i in positions],
            forward=forward,
            backward=backward,
            out_avals=tuple([out_avals[i] for i in kept]),
            name=name_of(f),
        )
        found = dict(zip(kept, moved))
        return [found.get(i) for i in range(len(out_avals))]

    return outs, apply


def _batch(
    size: int, xs: Sequence[Any], dims: Sequence[Any], *, f: _Function, out_avals: tuple[Any, ...]
) -> Any:
    moved = [move_batch(x, d, 0, size) for x, d in zip(xs, dims)]
    batched = tuple([aval((size, *a.shape), a.dtype) for a in out_avals])
    outs = bind(torch_call_p, *moved, f=_vmapped(f), out_avals=batched)
    return outs, [0] * len(outs)


torch_call_p = Primitive(
    "torch_call",
    lambda *avals, f, out_avals: list(out_avals),
    multi=True,
    linearize=_linearize,
    batch=_batch,
)


def torch_call(fn: Callable[..., Any], *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Call a function of torch tensors as an operation of traced code.

    torch's autograd differentiates it, to any order, and torch.func.vmap batches it.

    Args:
        fn: pure function of pytrees of tensors that returns a pytree of tensors. To learn its
            shapes, it is called with meta tensors, and where that fails with tensors of ones.
        *args, **kwargs: pytrees of arrays.

    Returns:
        What `fn` returns, with arrays for tensors.

    Raises:
        TypeError: `fn` returns something that is no tensor.
        DTypeError: a result has a dtype that the library lacks.

    >>> import torch
    >>> gf.jit(lambda x: gf.torch_call(torch.square, x))(jnp.array([1.0, 3.0]))
    Array([1., 9.], dtype=float32)
    >>> gf.grad(lambda x: gf.torch_call(torch.square, x))(3.0)
    Array(6., dtype=float32)
    """
    leaves, in_tree, _ = flatten_arrays((args, kwargs), f"an argument of {name_of(fn)}: ")
    f = _UserFunction(fn, in_tree)
    avals = tuple([typeof(x) for x in leaves])
    out_avals, out_tree = _outputs(f, avals)
    return tree.unflatten(out_tree, bind(torch_call_p, *leaves, f=f, out_avals=out_avals))


@functools.lru_cache(maxsize=1024)
def _outputs(f: _UserFunction, avals: tuple[Aval, ...]) -> tuple[tuple[Aval, ...], Any]:
    fn, in_tree = f.fields
    structures: list[Any] = []

    def remember(*args: Any, **kwargs: Any) -> Any:
        out = fn(*args, **kwargs)
        structures.append(tree.structure(out))
        return out

    functools.update_wrapper(remember, fn)
    return _output_avals(_UserFunction(remember, in_tree), avals), structures[-1]


# ---- Triton ----


def _no_rule(nonzero: Any, *xs: Any, kernel: Any, **_: Any) -> Any:
    raise errors.NotDifferentiableError(
        f"the derivative of the Triton kernel {name_of(kernel)} is not known\n"
        f"  at {where().describe()}\n  pass triton_call(..., vjp=lambda args, out, ct: cotangents)"
    )


def _batch_kernel(size: int, xs: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    return batch_sequentially(triton_call_p, size, xs, dims, params)


triton_call_p = Primitive(
    "triton_call",
    lambda *avals, out_avals, **_: list(out_avals),
    multi=True,
    linearize=_no_rule,
    batch=_batch_kernel,
)


def triton_call(
    kernel: Callable[..., Any],
    *args: ArrayLike,
    grid: int | Sequence[int] | Callable[..., Sequence[int]],
    out_shape: PyTree,
    vjp: Callable[..., Any] | None = None,
    **constants: object,
) -> PyTree:
    """Call a Triton kernel in traced code: `kernel[grid](*args, *outputs, **constants)`.

    The outputs are zero before the kernel runs. On a CPU it needs TRITON_INTERPRET=1. Under `vmap`
    the kernel is launched once per example.

    Args:
        kernel: `triton.jit` function of pointers to the arrays, of Python numbers, and of pointers
            to the outputs, in this order.
        *args: arrays, and Python numbers that the kernel takes as they are.
        grid: the number of programs: an int, a tuple of up to three, or a function of the constants
            that gives one.
        out_shape: pytree of ShapeDtypeStructs, the outputs.
        vjp: `vjp(args, out, ct)` gives a cotangent (or None) for each array argument; without it
            the call is not differentiable.
        **constants: the kernel's `tl.constexpr` parameters.

    Returns:
        The outputs, a pytree like `out_shape`.

    Raises:
        NotDifferentiableError: it is differentiated without `vjp`.

    >>> def double(x_ptr, out_ptr, N): ...  # in earnest, a triton.jit function
    >>> struct = gf.ShapeDtypeStruct((8,), "float32")
    >>> f = lambda x: gf.triton_call(double, x, grid=(1,), out_shape=struct, N=8)
    >>> gf.eval_shape(f, jnp.ones(8)).shape
    (8,)
    """
    out_avals, out_tree = declared_outputs(out_shape)
    scalars = tuple([(i, x) for i, x in enumerate(args) if type(x) in SCALARS])
    arrays = [as_array(x) for x in args if type(x) not in SCALARS]
    grid = tuple(grid) if isinstance(grid, list) else grid
    settings = (
        ("kernel", kernel),
        ("grid", grid),
        ("out_avals", out_avals),
        ("constants", tuple(sorted(constants.items()))),
        ("scalars", scalars),
        ("kinds", aux_key((constants, scalars))[0]),  # 1 and True are two constants
    )
    if vjp is None:
        return tree.unflatten(out_tree, bind(triton_call_p, *arrays, **dict(settings)))
    return _with_vjp(settings, out_tree, vjp)(*arrays)


# Kept by its arguments: a new custom_vjp at every call would stage its rules again.
@functools.lru_cache(maxsize=256)
def _with_vjp(
    settings: tuple[Any, ...], out_tree: Any, vjp: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*xs: Any) -> Any:
        return tree.unflatten(out_tree, bind(triton_call_p, *xs, **dict(settings)))

    call.__name__ = name_of(dict(settings)["kernel"])
    wrapped = custom_vjp(call)

    def forward(*xs: Any) -> Any:
        out = wrapped(*xs)
        return out, (xs, out)

    def backward(saved: tuple[Any, ...], ct: Any) -> tuple[Any, ...]:
        back = vjp(*saved, ct)
        return tuple(back) if isinstance(back, (tuple, list)) else (back,)

    wrapped.defvjp(forward, backward)
    return wrapped
