"""saved_residuals: what reverse mode keeps of the forward pass, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.transforms.autodiff.checkpointing import name_p
from genesis_fn.transforms.autodiff.linearize import differentiable, linearize_jaxpr
from genesis_fn.transforms.staging.api_util import FlatFunction, flatten_arrays, labels_of, name_of
from genesis_fn.transforms.staging.stage_trace import stage


def saved_residuals(
    f: Callable[..., Any], *args: PyTree, **kwargs: PyTree
) -> list[tuple[Aval, str]]:
    """List what reverse mode saves for the backward pass of a function.

    Values that the backward pass computes anew are not among them: those of a `checkpoint`, and
    those that are cheap. One that is saved for several operations is listed once.

    Args:
        f: function of pytrees of arrays that returns arrays, of which all are differentiated.
        *args, **kwargs: its arguments.

    Returns:
        [(type, origin)]: captured values first, then arguments, then results in their order.
        Origins read "from the argument x", "from a constant", "output of tanh from file.py:12
        (f)", "named 'scores' from file.py:12 (f)".

    >>> gf.ad_checkpoint.saved_residuals(lambda x, y: jnp.exp(x) * y, 1.0, 2.0)[0]
    (f32[], 'from the argument y')
    """
    labels = labels_of(f, args, kwargs)
    leaves, in_tree, weak = flatten_arrays(
        (args, kwargs), f"an argument of {name_of(f)}: ", lambda: labels
    )
    flat = FlatFunction(lambda a, k: f(*a, **k), in_tree)
    avals = [x.aval for x in leaves]
    jaxpr, captured = stage(flat, avals, name=name_of(f), weak=weak, labels=labels)
    nonzero = (*[False] * len(captured), *map(differentiable, leaves))
    outs = len(jaxpr.outs)
    forward, *_ = linearize_jaxpr(jaxpr, nonzero, (False,) * outs)
    sources = {id(s.variable): s for s in [_source(forward, v) for v in forward.outs[outs:]]}
    inputs = {id(v): i for i, v in enumerate(forward.invars)}
    order = {id(o): len(inputs) + i for i, e in enumerate(forward.eqns) for o in e.outs}
    places = inputs | order
    found = sorted(sources.values(), key=lambda s: places[id(s.outer)])
    return [(s.variable.aval, s.describe(inputs, len(captured), labels)) for s in found]


def print_saved_residuals(f: Callable[..., Any], *args: PyTree, **kwargs: PyTree) -> None:
    """Print what reverse mode saves for the backward pass of a function, a line for each value.

    Args:
        f: function of pytrees of arrays that returns arrays, of which all are differentiated.
        *args, **kwargs: its arguments.

    >>> gf.ad_checkpoint.print_saved_residuals(lambda x, y: x * y, jnp.ones(3), jnp.ones(3))
    f32[3] from the argument x
    f32[3] from the argument y
    >>> f = gf.checkpoint(lambda x: jnp.sin(jnp.exp(x)))
    >>> gf.ad_checkpoint.print_saved_residuals(f, jnp.ones(3))
    f32[3] from the argument x
    """
    for kind, origin in saved_residuals(f, *args, **kwargs):
        print(kind, origin)


class _Source:
    """Where a residual was made: a variable of the program or of one that it calls, and the
    equation of it, if it is no input. `outer` is the program's own variable."""

    __slots__ = ("variable", "outer", "eqn")

    def __init__(self, variable: Var, outer: Var, eqn: Eqn | None) -> None:
        self.variable, self.outer, self.eqn = variable, outer, eqn

    def describe(self, inputs: dict[int, int], captured: int, labels: list[str]) -> str:
        """The origin in words; `labels` name the inputs behind the first `captured` ones."""
        if self.eqn is None:
            at = inputs[id(self.variable)] - captured
            return "from a constant" if at < 0 else f"from the argument {labels[at]}"
        line = self.eqn.where
        at = "" if line is None else f" from {line} ({line.function})"
        if self.eqn.prim is name_p:
            return f"named {self.eqn.params['name']!r}{at}"
        return f"output of {self.eqn.prim}{at}"


def _source(jaxpr: Jaxpr, v: Var) -> _Source:
    """Where `v` comes from, looking into calls that only run a program."""
    e = next((e for e in jaxpr.eqns if v in e.outs), None)
    if e is None or not e.prim.plain:
        return _Source(v, v, e)
    inner = e.params["jaxpr"]
    found = _source(inner, inner.outs[list(e.outs).index(v)])
    if found.eqn is None:  # the call returns an operand as it is
        operand = e.ins[inner.invars.index(found.variable)]
        return _source(jaxpr, operand)
    return _Source(found.variable, v, found.eqn)
