"""The names of `jax.api_util` that libraries import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.linear_util import WrappedFun

from genesis_fn.as_jax.stubs import stub
from genesis_fn.core import tree

argnums_partial = stub("jax.api_util.argnums_partial", "functools.partial")


def debug_info(what: str, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """What JAX's messages call a function that is traced."""
    return f"{what} of {getattr(fun, '__name__', fun)}"


def flatten_fun(fun: WrappedFun, in_tree: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """(the function of the leaves of (args, kwargs), what gives its structure after a call)."""
    return _flattened(lambda xs: fun.f(*xs[0], **xs[1]), in_tree, fun.debug_info)


def flatten_fun_nokwargs(fun: WrappedFun, in_tree: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """(the function of the leaves of args, what gives its structure after a call)."""
    return _flattened(lambda args: fun.f(*args), in_tree, fun.debug_info)


def _flattened(
    f: Callable[[Any], Any], in_tree: Any, info: Any
) -> tuple[WrappedFun, Callable[[], Any]]:
    structures = []

    def flat(*leaves: Any) -> list[Any]:
        outs, structure = tree.flatten(f(tree.unflatten(in_tree, leaves)))
        structures.append(structure)
        return outs

    return WrappedFun(flat, info), lambda: structures[-1]
