"""One program, run by this library and by JAX in its 64-bit mode, and the results compared.

A program is a function `f(m, *args)` of a namespace `m`: `OURS` or `THEIRS`, which hold the same
names (`m.np`, `m.lax`, `m.grad`, `m.scan` ...).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.ad_checkpoint
import numpy as np

import genesis_fn.lax as lax
import genesis_fn.nn as nn
import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.primitives.elementwise import stop_gradient
from genesis_fn.transforms import jitting as jit
from genesis_fn.transforms.autodiff import (
    checkpointing as checkpoints,
    derivatives as grad,
    jacobians,
)
from genesis_fn.transforms.batching import mapped_axes as vmap
from genesis_fn.transforms.control_flow import (
    associative,
    conditionals as cond,
    loops,
    scanning as scan,
)
from genesis_fn.transforms.custom import derivative_rules as derivatives

jax.config.update("jax_platforms", "cpu")

OURS = SimpleNamespace(
    np=jnp,
    lax=lax,
    nn=nn,
    random=random,
    tree=tree,
    grad=grad.grad,
    value_and_grad=grad.value_and_grad,
    jvp=grad.jvp,
    vjp=grad.vjp,
    linearize=grad.linearize,
    jacfwd=jacobians.jacfwd,
    jacrev=jacobians.jacrev,
    hessian=jacobians.hessian,
    linear_transpose=grad.linear_transpose,
    jit=jit.jit,
    vmap=vmap.vmap,
    scan=scan.scan,
    while_loop=loops.while_loop,
    fori_loop=loops.fori_loop,
    map=loops.map,
    associative_scan=associative.associative_scan,
    cond=cond.cond,
    switch=cond.switch,
    checkpoint=checkpoints.checkpoint,
    checkpoint_name=checkpoints.checkpoint_name,
    policies=checkpoints.checkpoint_policies,
    custom_jvp=derivatives.custom_jvp,
    custom_vjp=derivatives.custom_vjp,
    custom_gradient=derivatives.custom_gradient,
    stop_gradient=stop_gradient,
)

THEIRS = SimpleNamespace(
    np=jax.numpy,
    lax=jax.lax,
    nn=jax.nn,
    random=jax.random,
    tree=jax.tree,
    grad=jax.grad,
    value_and_grad=jax.value_and_grad,
    jvp=jax.jvp,
    vjp=jax.vjp,
    linearize=jax.linearize,
    jacfwd=jax.jacfwd,
    jacrev=jax.jacrev,
    hessian=jax.hessian,
    linear_transpose=jax.linear_transpose,
    jit=jax.jit,
    vmap=jax.vmap,
    scan=jax.lax.scan,
    while_loop=jax.lax.while_loop,
    fori_loop=jax.lax.fori_loop,
    map=jax.lax.map,
    associative_scan=jax.lax.associative_scan,
    cond=jax.lax.cond,
    switch=jax.lax.switch,
    checkpoint=jax.checkpoint,
    checkpoint_name=jax.ad_checkpoint.checkpoint_name,
    policies=jax.checkpoint_policies,
    custom_jvp=jax.custom_jvp,
    custom_vjp=jax.custom_vjp,
    custom_gradient=jax.custom_gradient,
    stop_gradient=jax.lax.stop_gradient,
)


def ours(x: Any) -> Any:
    """A pytree with its ndarrays as arrays of this library, dtypes kept."""
    return tree.map(lambda v: from_numpy(v) if isinstance(v, np.ndarray) else v, x)


def theirs(x: Any) -> Any:
    """A pytree with its ndarrays as JAX arrays."""
    return jax.tree.map(lambda v: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v, x)


def values(x: Any) -> Any:
    """A pytree of arrays as one of ndarrays."""
    return tree.map(np.asarray, x)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal float64 values."""
    return np.asarray(np.random.default_rng(seed + 7 * len(shape)).normal(size=shape))


def same(
    mine: Any, reference: Any, rtol: float = 1e-9, atol: float = 1e-11, what: str = ""
) -> None:
    """Assert that two results have the same leaves: shapes, dtypes, values."""
    a, b = tree.leaves(mine), jax.tree.leaves(reference)
    assert len(a) == len(b), f"{what}: {len(a)} leaves, JAX has {len(b)}"
    for i, (x, y) in enumerate(zip(a, b)):
        y = np.asarray(y)
        if type(x) is ArrayImpl:
            assert x.shape == y.shape, f"{what}, leaf {i}: shape {x.shape}, JAX has {y.shape}"
            kinds = (x.dtype, y.dtype)
            # Integers that nobody gave a dtype are int32 here, int64 in JAX's 64-bit mode.
            assert x.dtype == y.dtype or kinds == (np.int32, np.int64), f"{what}, leaf {i}: {kinds}"
        np.testing.assert_allclose(
            np.asarray(x), y, rtol=rtol, atol=atol, err_msg=f"{what}, leaf {i}"
        )


def agree(program: Callable, *args: Any, rtol: float = 1e-9, atol: float = 1e-11, what: str = ""):
    """Assert that `program(m, *args)` gives the same with OURS as with THEIRS; returns ours."""
    with jax.enable_x64(True):
        expected = program(THEIRS, *theirs(args))
        got = program(OURS, *ours(args))
        same(got, expected, rtol, atol, what)
    return got


def total(m: Any, x: Any) -> Any:
    """A scalar that every element of every leaf has its own part in."""
    result = 0.0
    for k, v in enumerate(m.tree.leaves(x)):
        weights = np.cos(np.arange(v.size, dtype=np.float64) + k).reshape(v.shape)
        weights = ours(weights) if m is OURS else theirs(weights)
        result = result + m.np.sum(m.np.sin(v) * weights)
    return result


STACKS: dict[str, Callable] = {
    "value": lambda m, f, xs: f(*xs),
    "jit": lambda m, f, xs: m.jit(f)(*xs),
    "jvp": lambda m, f, xs: m.jvp(f, xs, tuple(m.np.cos(x) for x in xs)),
    "grad": lambda m, f, xs: _grad(m, f, xs)(*xs),
    "jit(grad)": lambda m, f, xs: m.jit(_grad(m, f, xs))(*xs),
    "grad(jit)": lambda m, f, xs: _grad(m, m.jit(f), xs)(*xs),
    "forward over reverse": lambda m, f, xs: m.jvp(
        _grad(m, f, xs), xs, tuple(m.np.cos(x) for x in xs)
    )[1],
    "reverse over reverse": lambda m, f, xs: _grad(m, _grad(m, f, xs), xs)(*xs),
    "reverse over forward": lambda m, f, xs: _grad(
        m, lambda *ys: m.jvp(f, ys, tuple(m.np.cos(y) for y in ys))[1], xs
    )(*xs),
    "vmap": lambda m, f, xs: m.vmap(f)(*_stacked(m, xs)),
    "vmap one": lambda m, f, xs: m.vmap(f, (0, *(None,) * (len(xs) - 1)))(
        _stacked(m, xs)[0], *xs[1:]
    ),
    "vmap(grad)": lambda m, f, xs: m.vmap(_grad(m, f, xs))(*_stacked(m, xs)),
    "grad(vmap)": lambda m, f, xs: _grad(m, m.vmap(f), xs)(*_stacked(m, xs)),
    "jit(vmap(jvp))": lambda m, f, xs: m.jit(
        m.vmap(lambda *ys: m.jvp(f, ys, tuple(m.np.cos(y) for y in ys))[1])
    )(*_stacked(m, xs)),
}
FORWARD = ("value", "jit", "jvp", "vmap", "vmap one", "jit(vmap(jvp))")
REVERSE = tuple(k for k in STACKS if "jvp" not in k and "forward" not in k)


def _grad(m: Any, f: Callable, xs: tuple) -> Callable:
    return m.grad(lambda *ys: total(m, f(*ys)), tuple(range(len(xs))))


def _stacked(m: Any, xs: tuple) -> tuple:
    return tuple(m.np.stack([x, x * 0.7, x * -0.4]) for x in xs)


def agree_under(program: Callable, *xs: np.ndarray, stacks: Any = tuple(STACKS), **bounds: Any):
    """`agree` for the program under every stack of transforms named; all inputs are float64."""
    for name in stacks:
        agree(
            lambda m, *ys, name=name: STACKS[name](m, lambda *zs: program(m, *zs), ys),
            *xs,
            what=name,
            **bounds,
        )
