"""Derivatives as JAX gives them: those of integers and booleans are NumPy arrays of dtype float0.

The library itself gives zeros of the integer's own dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis_fn as gf
from genesis_fn import tree_util
from genesis_fn.core import dtypes


def float0_zeros(shape: Any) -> np.ndarray:
    """The zeros that stand for the derivative of integers."""
    return np.zeros(shape, dtypes.FLOAT0)


def as_float0(tangents: Any) -> Any:
    """Tangents or gradients, with float0 for those that belong to no floating-point values."""

    def leaf(x: Any) -> Any:
        found = getattr(x, "dtype", None)
        if found is None or found == dtypes.FLOAT0 or dtypes.is_inexact(found):
            return x
        return float0_zeros(x.shape)

    return gf.tree.map(leaf, tangents)


@functools.wraps(gf.value_and_grad)
def value_and_grad(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """`genesis_fn.value_and_grad`, whose gradient by integers is of dtype float0."""
    both = gf.value_and_grad(fun, *args, **kwargs)

    @functools.wraps(fun)
    def value_and_grad_f(*xs: Any, **named: Any) -> Any:
        value, gradient = both(*xs, **named)
        return value, as_float0(gradient)

    return value_and_grad_f


@functools.wraps(gf.grad)
def grad(
    fun: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *args: Any, **kwargs: Any
) -> Callable[..., Any]:
    """`genesis_fn.grad`, whose gradient by integers is of dtype float0."""
    plain = gf.grad(fun, argnums, has_aux, *args, **kwargs)

    @functools.wraps(fun)
    def grad_f(*xs: Any, **named: Any) -> Any:
        found = plain(*xs, **named)
        return (as_float0(found[0]), found[1]) if has_aux else as_float0(found)

    return grad_f


@functools.wraps(gf.jvp)
def jvp(
    fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """`genesis_fn.jvp`, whose tangents of integers are of dtype float0."""
    out, tangent, *aux = gf.jvp(fun, primals, tangents, has_aux)
    return (out, as_float0(tangent), *aux)


def _applied(linear: Any, *args: Any) -> Any:
    return as_float0(linear(*args))


def _has_integers(avals: Any) -> bool:
    return any(not dtypes.is_inexact(a.dtype) for a in avals)


@functools.wraps(gf.vjp)
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """`genesis_fn.vjp`, whose cotangents of integers are of dtype float0."""
    out, pull, *aux = gf.vjp(fun, *primals, has_aux=has_aux)
    if _has_integers(pull.static[4]):
        pull = tree_util.Partial(_applied, pull)
    return (out, pull, *aux)


@functools.wraps(gf.linearize)
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """`genesis_fn.linearize`, whose tangents of integers are of dtype float0."""
    out, push, *aux = gf.linearize(fun, *primals, has_aux=has_aux)
    if _has_integers(push.static[6]):
        push = tree_util.Partial(_applied, push)
    return (out, push, *aux)
