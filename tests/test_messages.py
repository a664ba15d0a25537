"""Mistakes in loops, branches, custom rules and arguments: each is named by path and line, eagerly,
under jit and under vmap alike."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax

INIT = {"h": jnp.zeros(4), "n": jnp.zeros((), "int32")}
X = jnp.ones((5, 4))


def half(c):
    return {**c, "h": c["h"].astype("bfloat16")}


def short(c):
    return {**c, "h": c["h"][:2]}


def product(p, x):
    return jnp.sum(p["w"] * x) + p["b"]


def with_vjp(bwd, fwd=lambda p, x: (product(p, x), (p, x))):
    f = gf.custom_vjp(lambda p, x: product(p, x))
    f.defvjp(fwd, bwd)
    return lambda i, x: gf.grad(f)({"w": x[0], "b": i["h"][0]}, x[0])


def with_jvp(rule):
    f = gf.custom_jvp(lambda p, x: product(p, x))
    f.defjvp(rule)
    return lambda i, x: gf.grad(f)({"w": x[0], "b": i["h"][0]}, x[0])


NAMED = {"w": jnp.ones(3), "n": [jnp.arange(2)]}
# (function of INIT and X, what its message says)
CASES = {
    "scan: dtype": (lambda i, x: lax.scan(lambda c, y: (half(c), None), i, x),
        ["scan: the carry['h'] goes in as f32[4]", "bf16[4]", 'carry="cast"']),
    "scan: shape": (lambda i, x: lax.scan(lambda c, y: (short(c), None), i, x),
        ["the carry['h']", "f32[2]", "its shape must stay"]),
    "scan: structure": (lambda i, x: lax.scan(lambda c, y: ({"h": c["h"]}, None), i, x),
        ["another structure", "missing the carry['n']"]),
    "scan: a text in the carry": (lambda i, x: lax.scan(lambda c, y: ({**c, "h": "t"}, 0), i, x),
        ["scan: the carry['h'] comes out of <lambda> as 't' of type str"]),
    "scan: a text in y": (lambda i, x: lax.scan(lambda c, y: (c, {"a": "t"}), i, x),
        ["scan: y['a'] comes out of <lambda> as 't'"]),
    "scan: lengths": (lambda i, x: lax.scan(lambda c, y: (c, y), i, {"a": x, "b": x[:3]}),
        ["xs['b'] has length 3, expected 5"]),
    "while_loop: dtype": (lambda i, x: lax.while_loop(lambda c: c["n"] < 3, half, i),
        ["while_loop: the value['h'] goes in as f32[4]", "start with .astype('bfloat16')"]),
    "while_loop: shape": (lambda i, x: lax.while_loop(lambda c: c["n"] < 3, short, i),
        ["while_loop: the value['h']", "comes out of short as f32[2]", "its shape must stay"]),
    "while_loop: structure": (
        lambda i, x: lax.while_loop(lambda c: c["n"] < 3, lambda c: {"h": c["h"]}, i),
        ["while_loop: <lambda> returned another structure", "missing the value['n']"]),
    "fori_loop: dtype": (lambda i, x: lax.fori_loop(0, 3, lambda k, c: half(c), i),
        ["fori_loop: the value['h']", "bf16[4]"]),
    "fori_loop to a traced bound: dtype": (
        lambda i, x: lax.fori_loop(0, i["n"], lambda k, c: half(c), i),
        ["fori_loop: the value['h'] goes in as f32[4]", "bf16[4]"]),
    "fori_loop: structure": (lambda i, x: lax.fori_loop(0, 3, lambda k, c: {"h": c["h"]}, i),
        ["fori_loop: <lambda> returned another structure", "missing the value['n']"]),
    "fori_loop to a traced bound: structure": (
        lambda i, x: lax.fori_loop(0, i["n"], lambda k, c: {"h": c["h"]}, i),
        ["fori_loop: <lambda> returned another structure", "missing the value['n']"]),
    "cond: dtype": (lambda i, x: lax.cond(i["n"] > 0, lambda c: c, half, i),
        ["cond: output['h'] is bf16[4] from half but f32[4]", "by .astype"]),
    "cond: shape": (lambda i, x: lax.cond(i["n"] > 0, lambda c: c, short, i),
        ["cond: output['h'] is f32[2] from short but f32[4]", "the same in shape"]),
    "cond: structure": (lambda i, x: lax.cond(i["n"] > 0, lambda c: c, lambda c: c["h"], i),
        ["the branches return different structures: at output: expected a leaf, got a dict of 2"]),
    "associative_scan: dtype": (
        lambda i, x: lax.associative_scan(lambda a, b: half({"h": b["h"]}), {"h": x}),
        ["associative_scan: the elements['h'] go in as f32[2,4]", "bf16[2,4]"]),
    "associative_scan: structure": (
        lambda i, x: lax.associative_scan(lambda a, b: b["h"], {"h": x}),
        ["must keep the structure: at the elements: expected a dict of 1"]),
    "bwd: how many": (with_vjp(lambda r, g: (r[0],)),
        ["the bwd rule of <lambda> must return a tuple of 2 cotangents", "the rule is at"]),
    "bwd: structure": (with_vjp(lambda r, g: ({"w": r[1]}, r[1])),
        ["another structure for argument 'p'", "missing ['b']", "the rule is at"]),
    "bwd: shape": (with_vjp(lambda r, g: ({"w": g, "b": g}, r[1])),
        ["returned f32[] for argument 'p' at ['w'], which is f32[4]", "the rule is at"]),
    "bwd: dtype": (with_vjp(lambda r, g: ({"w": r[1].astype("f2"), "b": g}, r[1])),
        ["returned f16[4] for argument 'p' at ['w']", "the rule is at"]),
    "bwd: a text": (with_vjp(lambda r, g: ({"w": "t", "b": g}, r[1])),
        ["returned 't' of type str for argument 'p' at ['w']", "the rule is at"]),
    "fwd: no pair": (with_vjp(lambda r, g: (r[0], r[1]), lambda p, x: product(p, x)),
        ["the fwd rule of <lambda> must return (output, residuals)", "the rule is at"]),
    "jvp: shape": (with_jvp(lambda p, t: (product(*p), t[1])),
        ["the jvp rule of <lambda> returned f32[4] where f32[] is expected", "the rule is at"]),
    "jvp: structure": (with_jvp(lambda p, t: (product(*p), {"a": t[0]["b"]})),
        ["another structure than its output: at the output: expected a leaf", "the rule is at"]),
    "grad of integers": (
        lambda i, x: gf.grad(lambda p: jnp.sum(p["w"]))({"w": x, "n": [i["n"]]}),
        ["argument 0['n'][0] is i32[]", 'nonfloat="none"']),
    "jacrev of integers": (
        lambda i, x: gf.jacrev(lambda p: p["w"])({"w": x, "n": [i["n"]]}),
        ["jacrev needs floating-point inputs, but argument p['n'][0] is i32[]", "allow_int=True"]),
    "jacfwd of integers": (
        lambda i, x: gf.jacfwd(lambda p: p["w"])({"w": x, "n": [i["n"]]}),
        ["jacfwd needs floating-point inputs, but argument p['n'][0] is i32[]", "keep it out"]),
    "grad of a text": (
        lambda i, x: gf.grad(lambda p: jnp.sum(p["w"]))({"w": x, "mode": "t"}),
        ["an argument of <lambda>: p['mode'] is 't' of type str"]),
    "vmap of a text": (lambda i, x: gf.vmap(lambda a, mode: a, (0, 0))(x, {"m": "t"}),
        ["an argument of <lambda>: mode['m'] is 't' of type str"]),
    "nonfloat": (lambda i, x: gf.grad(lambda v: v, nonfloat="None")(1.0),
        ["nonfloat is", "got 'None'"]),
    "an output that is no array": (lambda i, x: gf.vmap(lambda v: {"a": "t"})(x),
        ["returned 't' of type str at ['a']"]),
    "an axis": (lambda i, x: jnp.sum(x, axis=5), ["sum: axis 5 does not exist in 2 dimensions"]),
    "axes that repeat": (lambda i, x: jnp.transpose(x, (0, 0)), ["axes [0, 0] repeat"]),
    "shapes of where": (lambda i, x: jnp.where(x[0] > 0, x, jnp.ones(3)), ["do not broadcast"]),
    "a negative length": (lambda i, x: jnp.zeros((2, -3)), ["negative lengths: [2, -3]"]),
    "a dtype": (lambda i, x: x.astype("float99"), ["'float99' is not a data type"]),
    "out_axes": (lambda i, x: gf.vmap(lambda v: v, out_axes=7)(x), ["out_axes", "axis 7"]),
    "out_axes of None": (lambda i, x: gf.vmap(lambda v: v, out_axes=None)(x),
        ["differs", "f32[4]"]),
    "in_axes": (lambda i, x: gf.vmap(lambda v: v, in_axes=({"a": 0},))(x),
        ["in_axes for argument 0"]),
    "trees": (lambda i, x: gf.tree.map(lambda a, b: a, i, {"h": x}), ["missing ['n']"]),
    "an integer that does not fit": (lambda i, x: i["n"] + 2**40, ["out of bounds for int32"]),
    "integers that do not fit": (lambda i, x: jnp.asarray(np.array([2**40])),
        ["do not fit int32", "pass dtype='int64'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_named_by_path_and_line(name):
    f, words = CASES[name]
    batch = gf.tree.map(lambda v: jnp.stack([v, v]), INIT)
    for call in (
        lambda: f(INIT, X),
        lambda: gf.jit(lambda i, x: f(i, x))(INIT, X),
        lambda: gf.vmap(lambda i, x: f(i, x))(batch, jnp.stack([X, X])),
        lambda: gf.jit(gf.vmap(lambda i, x: f(i, x)))(batch, jnp.stack([X, X])),
    ):
        with pytest.raises((TypeError, ValueError, OverflowError)) as error:
            call()
        text = str(error.value)
        assert len(text.splitlines()) <= 6 and "test_messages.py:" in text, text
        for word in words:
            assert word in text, text


def test_operands_that_are_arguments_have_names_in_eager_transforms_too():
    def loss(params, x):
        return jnp.sum(x @ params["w"])

    params, x = {"w": jnp.ones((3, 4))}, jnp.ones((2, 5))
    batch = {"w": jnp.ones((6, 3, 4))}, jnp.ones((6, 2, 5))
    for call in (
        lambda: gf.grad(loss, (0, 1))(params, x),
        lambda: gf.vmap(loss)(*batch),
        lambda: gf.vmap(gf.grad(loss, (0, 1)))(*batch),
        lambda: gf.jvp(loss, (params, x), (params, x)),
        lambda: gf.jit(gf.grad(gf.vmap(loss)))(*batch),
    ):
        with pytest.raises(gf.errors.ShapeError) as error:
            call()
        assert "x f32[2,5] @ params['w'] f32[3,4]" in str(error.value), error.value
        assert 'x @ params["w"]' in str(error.value)


def test_donation_says_where_and_what():
    state = {"w": jnp.ones(3), "m": jnp.ones((2, 2))}
    f = gf.jit(lambda state: {"w": state["w"] * 2}, donate_argnames="state")
    with pytest.warns(UserWarning, match=r"state\['m'\] \(no output is left") as caught:
        f(state)
    assert "called at" in str(caught[0].message) and "test_messages.py:" in str(caught[0].message)
    for use in (jnp.sin, gf.jit(jnp.sin), gf.vmap(jnp.sin), gf.grad(lambda v: jnp.sum(v))):
        with pytest.raises(gf.errors.DonatedError, match=r"state\['w'\] was donated to <lambda>"):
            use(state["w"])
    strict = gf.jit(lambda s: jnp.sum(s), donate_argnums=0, on_unusable_donation="error")
    with pytest.raises(gf.errors.DonatedError, match=r"s \(no output.*\n  called at .*test_mess"):
        strict(jnp.ones(3))
    with pytest.raises(ValueError, match="donate_argnums=4: <lambda> has 1 positional"):
        gf.jit(lambda s: s, donate_argnums=4)
    with pytest.raises(ValueError, match="no argument 't'; it has s"):
        gf.jit(lambda s: s, donate_argnames="t")


def test_the_eager_backward_pass_blames_the_line_it_differentiates():
    def loss(x):
        y = jnp.sqrt(x * 0.0)  # the root
        return y * 0.0

    with gf.debug_nans(True), pytest.raises(gf.errors.NanError) as error:
        gf.grad(loss)(1.0)
    assert "in the backward pass" in str(error.value) and "# the root" in str(error.value)
