"""cond and switch against JAX, under transforms and with every kind of index."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.core.jaxpr import check
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond, switch
from genesis_fn.transforms.jitting import jit
from tests.transforms.both import agree, agree_under, normal, ours

X, V = normal(4, 3), normal(3, seed=2)

PROGRAMS = {
    "one side": lambda m, x: m.cond(m.np.sum(x) > 0, m.np.sin, lambda v: v * v, x),
    "other side": lambda m, x: m.cond(m.np.sum(x) < -9, m.np.sin, lambda v: v * v, x),
    "closures": lambda m, x: m.cond(x[0] > 0, lambda: x * 2, lambda: m.np.exp(x) * x[1]),
    "constant branch": lambda m, x: m.cond(
        x[0] > 5, lambda v: (v * v, v), lambda v: (m.np.ones_like(v), v * 0 + 1), x
    ),
    "nested": lambda m, x: m.cond(
        x[0] > 0,
        lambda v: m.cond(x[1] > 0, m.np.sin, m.np.cos, v),
        lambda v: m.cond(x[2] > 0, m.np.tanh, m.np.exp, v),
        x,
    ),
    "residuals of different shapes": lambda m, x: m.switch(
        m.np.where(x[0] > 0, 1, 2),
        [lambda v: v, lambda v: m.np.outer(m.np.sin(v), m.np.exp(v)).sum(1), lambda v: v.sum() * v],
        x,
    ),
    "trees": lambda m, x: m.cond(
        x[0] > 0, lambda p: {"a": p[0] * 2, "b": p[1]}, lambda p: {"a": p[1], "b": p[0]}, (x, x * x)
    ),
    "in a scan": lambda m, x: m.scan(
        lambda h, v: (m.cond(v > 0, lambda u: u * v, lambda u: m.np.sin(u) + v, h), h), x[0], x
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    stacks = (
        "value",
        "jit",
        "jvp",
        "grad",
        "reverse over reverse",
        "forward over reverse",
        "vmap",
        "vmap(grad)",
    )
    agree_under(PROGRAMS[name], V, stacks=stacks)


@pytest.mark.parametrize("index", [-2, 0, 1, 2, 7])
def test_switch_clamps(index):
    f = lambda m, i, x: m.switch(i, [lambda v: v, lambda v: v * 2, lambda v: v * 3], x)
    agree(f, np.array(index), V)
    agree(lambda m, i, x: m.vmap(lambda k: f(m, k, x))(i), np.arange(-2, 5), V)
    agree(lambda m, x: f(m, index, x), V)
    agree(
        lambda m, i, x: m.grad(lambda v: m.vmap(lambda k: f(m, k, v))(i).sum())(x),
        np.arange(-2, 5),
        V,
    )


def test_batched_operands_with_a_shared_index():
    f = lambda m, i, x: m.cond(i, lambda v: v * 2, lambda v: m.np.ones_like(v), x)
    agree(lambda m, x: m.vmap(lambda v: f(m, True, v))(x), X)
    agree(lambda m, x: m.vmap(lambda v: f(m, x[0, 0] > 0, v))(x), X)


def test_predicates_of_other_types():
    for pred in (1, 0.0, np.int8(2), True, np.array(False)):
        agree(lambda m, x, pred=pred: m.cond(pred, m.np.sin, m.np.cos, x), V)
    np.testing.assert_allclose(np.asarray(cond(True, jnp.sin, jnp.cos, operand=ours(V))), np.sin(V))


def test_one_branch():
    agree(lambda m, i, x: m.switch(i, [m.np.sin], x), np.array(5), V)


def test_only_the_chosen_branch_runs():
    """The index is out of range only in the branch that is not taken."""
    f = jit(lambda p, i: cond(p, lambda: jnp.arange(4)[i], lambda: jnp.arange(4)[0]))
    assert int(f(False, 9)) == 0
    with pytest.raises(IndexError):
        int(f(True, 9))
    lanes = vmap(
        lambda p, i: cond(p, lambda: jnp.arange(4)[i], lambda: jnp.arange(4)[0]), (0, None)
    )
    assert not np.asarray(lanes(jnp.array([False, False]), jnp.array(9))).any()


def test_gradient_does_not_leak_from_the_other_branch():
    f = lambda x: cond(x > 0, lambda: jnp.sqrt(x), lambda: x * 0.0)
    assert float(grad(f)(0.0)) == 0.0
    check(jit(grad(f)).trace(1.0).jaxpr)


def test_disable_jit_runs_python():
    ran = []
    with config.override(disable_jit=True):
        cond(True, lambda x: ran.append("true") or x, lambda x: ran.append("false") or x, 1.0)
        switch(1, [lambda: ran.append(0) or 0.0, lambda: ran.append(1) or 1.0])
    assert ran == ["true", 1]


@pytest.mark.parametrize("call, kind, match", [
    (lambda: cond(True, 1, 2), TypeError, "cond takes"),
    (lambda: cond(ours(V) > 0, jnp.sin, jnp.cos, 1.0), TypeError, r"use where\(pred, x, y\)"),
    (lambda: cond(True, lambda: (1.0, 2.0), lambda: 1.0), errors.TreeError, "different structures"),
    (lambda: cond(True, lambda x: x[:2], lambda x: x, ours(V)), TypeError,
     r"output is f64\[3\] from <lambda> but f64\[2\]"),
    (lambda: cond(True, lambda x: {"a": x}, lambda x: {"a": x.sum()}, ours(V)), TypeError,
     r"output\['a'\]"),
    (lambda: switch(0, []), ValueError, "at least one branch"),
    (lambda: switch(1.0, [jnp.sin, jnp.cos], 1.0), TypeError, "integer scalar"),
])  # fmt: skip
def test_refusals(call, kind, match):
    with pytest.raises(kind, match=match) as error:
        call()
    assert len(str(error.value).splitlines()) <= 6
