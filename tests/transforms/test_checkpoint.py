"""checkpoint: the same derivatives, and only what the policy names is saved."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.primitive import typeof
from genesis_fn.transforms.autodiff.checkpointing import (
    checkpoint,
    checkpoint_name,
    checkpoint_policies as keep,
)
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.autodiff.linearize import linearize_flat
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import stage
from tests.transforms.both import OURS, agree_under, normal, ours

W, V = normal(4, 4), normal(4, seed=2)


def block(m, w, x, **options):
    def f(w, x):
        h = m.checkpoint_name(m.np.sin(w @ x), "hidden")
        return m.np.tanh(w @ m.np.exp(h * 0.1)) + x

    return m.checkpoint(f, **options)(w, x)


def test_same_derivatives_under_every_stack():
    agree_under(lambda m, w, x: block(m, w, block(m, w, x)), W, V)


POLICIES = {
    "everything": lambda p: p.everything_saveable,
    "nothing": lambda p: p.nothing_saveable,
    "dots": lambda p: p.dots_saveable,
    "plain dots": lambda p: p.dots_with_no_batch_dims_saveable,
    "names": lambda p: p.save_only_these_names("hidden"),
    "either": lambda p: p.save_from_both_policies(
        p.dots_saveable, p.save_only_these_names("hidden")
    ),
    "any but": lambda p: p.save_any_names_but_these("hidden"),
    "anything except": lambda p: p.save_anything_except_these_names("hidden"),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_policies_do_not_change_values(name):
    policy = POLICIES[name]
    program = lambda m, w, x: block(m, w, x, policy=policy(m.policies))
    agree_under(program, W, V, stacks=("grad", "vmap(grad)", "forward over reverse"))


def saved(policy) -> list[tuple]:
    """The shapes that the forward pass of `block` saves beyond its inputs."""

    def f(w, x):
        h = checkpoint_name(jnp.sin(w @ x), "hidden")
        return [jnp.tanh(jnp.outer(w @ jnp.exp(h), h)).sum()]

    def forward(*xs):
        outs, _, _, residuals = linearize_flat(checkpoint_list(f, policy), xs, [True, True])
        return [*outs, *(r for r in residuals if r is not xs[0] and r is not xs[1])]

    jaxpr, _ = stage(forward, [typeof(ours(W)), typeof(ours(V))])
    return sorted(o.aval.shape for o in jaxpr.outs[1:])


def checkpoint_list(f, policy):
    return lambda *xs: checkpoint(lambda *ys: f(*ys), policy=policy)(*xs)


def test_what_is_saved():
    assert saved(None) == [] and saved(keep.nothing_saveable) == []
    assert saved(keep.dots_saveable) == [(4,), (4,)]
    assert saved(keep.save_only_these_names("hidden")) == [(4,)]
    assert saved(keep.save_only_these_names("other")) == []
    assert saved(keep.save_any_names_but_these("other")) == [(4,)]
    assert len(saved(keep.everything_saveable)) > 4
    assert (
        len(saved(keep.save_anything_except_these_names("hidden")))
        == len(saved(keep.everything_saveable)) - 1
    )


def test_backward_recomputes():
    """The gradient's program contains the product again, behind a barrier."""
    f = lambda w, x: checkpoint(lambda v: jnp.sin(jnp.sin(w @ v)))(x).sum()
    text = str(jit(grad(f, 1)).trace(ours(W), ours(V)).jaxpr)
    assert "checkpoint" in text and "linear_call" in text or "optimization_barrier" in text


def test_eager_checkpoint_runs_the_function():
    ran = []
    f = checkpoint(lambda x, n: ran.append(n) or x * n, static_argnums=1)
    np.testing.assert_allclose(np.asarray(f(ours(V), 3)), V * 3)
    np.testing.assert_allclose(np.asarray(grad(lambda x: f(x, 4).sum())(ours(V))), V * 0 + 4)
    assert ran[0] == 3 and set(ran[1:]) == {4}


def test_options_and_keywords():
    @checkpoint(policy=keep.dots_saveable, prevent_cse=False, static_argnums=(1,))
    def f(x, kind, *, scale):
        assert kind == "sum"
        return (x * scale).sum()

    np.testing.assert_allclose(
        np.asarray(grad(lambda x: f(x, "sum", scale=3.0))(ours(V))), V * 0 + 3
    )


def test_negative_static_argnums_count_from_the_end():
    f = checkpoint(lambda x, n: x * [1, 2][n], static_argnums=-1)
    assert grad(lambda x: f(x, 1))(3.0) == 2


def test_captured_values_are_differentiated():
    f = lambda w: checkpoint(lambda v: jnp.sin(w @ v))(ours(V)).sum()
    plain = lambda w: jnp.sin(w @ ours(V)).sum()
    np.testing.assert_allclose(np.asarray(grad(f)(ours(W))), np.asarray(grad(plain)(ours(W))))


def test_names_on_trees():
    tree = checkpoint_name({"a": ours(V), "b": 1.0}, "t")
    np.testing.assert_array_equal(np.asarray(tree["a"]), V)


def reverse_only(m):
    """A function whose rule, twice its derivative, has no forward mode."""
    f = m.custom_vjp(lambda x: m.np.sin(x))
    f.defvjp(lambda x: (m.np.sin(x), m.np.cos(x)), lambda cos, ct: (2 * ct * cos,))
    return f


PLACES = {
    "at the top": lambda m, f, x: m.checkpoint(lambda y: m.np.sin(f(y)))(x),
    "in a checkpoint": lambda m, f, x: m.checkpoint(lambda y: m.checkpoint(f)(y) * y)(x),
    "in a scan": lambda m, f, x: m.checkpoint(
        lambda y: m.scan(lambda c, r: (c + m.np.sum(m.checkpoint(f)(r * y)), r), 0.0 * y[0], y)[0]
    )(x),
    "saved": lambda m, f, x: m.checkpoint(
        lambda y: m.np.sin(f(y)) * f(y), policy=m.policies.everything_saveable
    )(x),
}


@pytest.mark.parametrize("place", PLACES)
def test_rules_without_forward_mode(place):
    stacks = (
        "grad",
        "jit(grad)",
        "grad(jit)",
        "forward over reverse",
        "reverse over reverse",
        "vmap(grad)",
        "grad(vmap)",
    )
    agree_under(lambda m, x: PLACES[place](m, reverse_only(m), x), normal(3), stacks=stacks)


def test_forward_mode_of_a_rule_without_one_says_so():
    f = OURS.checkpoint(reverse_only(OURS))
    with pytest.raises(errors.NotDifferentiableError, match="def_jvp"):
        OURS.jvp(f, (ours(V),), (ours(V),))
