"""saved_residuals: what reverse mode keeps, held against what it returns and against JAX's list."""

from __future__ import annotations

import re

import jax
import jax.ad_checkpoint
import jax.numpy as jjnp
import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.ad_checkpoint import print_saved_residuals, saved_residuals


def origins(f, *args, **kwargs) -> list[tuple[str, str]]:
    """(type, origin without line numbers) of what is saved."""
    found = saved_residuals(f, *args, **kwargs)
    return [(str(kind), re.sub(r" from [^ ]*:\d+", "", text)) for kind, text in found]


X = jnp.arange(6.0).reshape(2, 3)


def test_arguments_results_constants_and_names():
    w = jnp.ones((3, 4))

    def f(p, x):
        h = jnp.tanh(x @ p["w"])
        h = gf.checkpoint_name(jnp.exp(h @ jnp.ones((4, 4))), "hidden")
        return jnp.sin(h) * X.sum()

    found = origins(f, {"w": w}, x=X)
    assert ("f32[3,4]", "from the argument p['w']") in found
    assert ("f32[2,3]", "from the argument x") in found
    assert (
        "f32[2,4]",
        "output of tanh (test_arguments_results_constants_and_names.<locals>.f)",
    ) in found
    assert any(text.startswith("named 'hidden'") for _, text in found)
    assert origins(lambda x: x * X, jnp.ones((2, 3))) == [("f32[2,3]", "from a constant")]
    assert origins(lambda x: 2 * x, 1.0) == [] == origins(lambda x: x + 1, 1.0)


def test_each_value_is_listed_once():
    assert origins(lambda x: jnp.sin(x) + jnp.cos(x) + x * x, X) == [
        ("f32[2,3]", "from the argument x")
    ]


def test_lines_are_the_users(capsys):
    print_saved_residuals(lambda x: jnp.tanh(x), X)
    line = test_lines_are_the_users.__code__.co_firstlineno + 1
    out = capsys.readouterr().out
    assert re.fullmatch(rf"f32\[2,3\] output of tanh from .*test_residuals.py:{line} \(.*\)\n", out)


def test_jitted_functions_are_looked_into():
    inner = gf.jit(lambda v: jnp.tanh(jnp.exp(v)))
    found = origins(lambda x: inner(x).sum(), X)
    assert [text.split(" (")[0] for _, text in found] == ["output of exp", "output of tanh"]
    same = gf.jit(lambda v: (v, v * v))
    assert origins(lambda x: same(x)[1], X) == [("f32[2,3]", "from the argument x")]


def test_checkpoints_save_their_inputs_and_what_the_policy_says():
    f = lambda w, x: jnp.sin(jnp.exp(x @ w)).sum()
    w = jnp.ones((3, 3))
    inputs = [("f32[3,3]", "from the argument w"), ("f32[2,3]", "from the argument x")]
    assert origins(gf.checkpoint(f), w, X) == inputs
    saved = origins(gf.checkpoint(f, policy=gf.checkpoint_policies.dots_saveable), w, X)
    assert saved[:2] == inputs and saved[2][1].startswith("output of checkpoint")
    assert len(origins(f, w, X)) > 2
    keep_all = gf.checkpoint(f, policy=lambda *_, **__: gf.ad_checkpoint.Saveable)
    keep_none = gf.checkpoint(f, policy=lambda *_, **__: gf.ad_checkpoint.Recompute)
    assert len(saved_residuals(keep_all, w, X)) > len(saved_residuals(keep_none, w, X)) == 2


def test_custom_rules_save_what_they_say():
    @gf.custom_vjp
    def f(x):
        return jnp.exp(x)

    f.defvjp(lambda x: (jnp.exp(x), jnp.cos(x)), lambda saved, ct: (saved * ct,))
    assert [t.split(" (")[0] for _, t in origins(f, X)] == ["output of cos"]


def test_scans_stack_what_they_save():
    def f(x):
        return gf.lax.scan(lambda c, _: (jnp.tanh(c), None), x, None, length=5)[0]

    (found,) = origins(f, X)
    assert found[0] == "f32[5,2,3]" and found[1].startswith("output of scan")


def test_integers_are_saved_as_what_they_were_converted_to():
    ((kind, text),) = origins(lambda x, n: x * n, 2.0, jnp.arange(3))
    assert kind == "f32[3]" and text.startswith("output of convert_element_type")


def test_as_much_is_saved_as_vjp_keeps():
    """The bytes listed are those of the residuals in what `vjp` returns."""

    def f(x, w):
        h = jnp.tanh(x @ w)
        return gf.nn.softmax(h * jnp.exp(h)).sum()

    w = jnp.ones((3, 5))
    _, pull = gf.vjp(f, X, w)
    kept = {id(v): v for v in gf.tree.leaves(pull)}
    held = sorted(v.nbytes for v in kept.values())
    assert held == sorted(kind.nbytes for kind, _ in saved_residuals(f, X, w))


def test_jax_saves_the_same_inputs():
    """Where derivatives are products, both save the factors."""
    x, y = np.ones(3, np.float32), np.ones(3, np.float32)
    from jax._src.ad_checkpoint import saved_residuals as theirs

    want = theirs(lambda x, y: jjnp.multiply(x, y) * y, x, y)
    mine = saved_residuals(lambda x, y: jnp.multiply(x, y) * y, x, y)
    assert [t.split(" from /")[0] for _, t in want][:2] == [t for _, t in mine][:2]
    assert len(mine) == len(want)
    assert jax.ad_checkpoint.print_saved_residuals is not None
