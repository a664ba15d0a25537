"""Where the functions and rules of custom_jvp and custom_vjp run as Python on concrete values.

JAX is the reference: wherever a look at a value (`if`, `float`, NumPy, print) inside the function
or a rule works there, it works here, sees the same as often, and leaves the same derivative. (Under
two derivatives this library knows values that JAX's tracers do not tell.)
"""

from __future__ import annotations

import numpy as np
import pytest

from genesis_fn import ShapeDtypeStruct
from genesis_fn.transforms.custom.callback import debug_print, pure_callback
from tests.transforms.both import OURS, THEIRS, agree, normal, ours

LOOKS = {
    "if": lambda x: "positive" if x > 0 else "negative",
    "value": lambda x: (float(x), float(np.asarray(x)), "race" in f"{x}"),
}
STACKS = {
    "value": lambda m, f: f(1.5),
    "jvp": lambda m, f: m.jvp(f, (1.5,), (1.0,))[1],
    "grad": lambda m, f: m.grad(f)(1.5),
    "grad(grad)": lambda m, f: m.grad(m.grad(f))(1.5),
    "jvp(grad)": lambda m, f: m.jvp(m.grad(f), (1.5,), (1.0,))[1],
    "vmap(grad)": lambda m, f: m.vmap(m.grad(f))(m.np.ones(2)),
    "grad(vmap)": lambda m, f: m.grad(lambda v: m.vmap(f)(v).sum())(m.np.ones(2)),
    "grad(vmap of another)": lambda m, f: m.grad(
        lambda v: m.vmap(lambda k: f(v) * k)(m.np.ones(2)).sum()
    )(1.5),
    "jit(grad)": lambda m, f: m.jit(m.grad(f))(1.5),
    "grad(jit)": lambda m, f: m.grad(m.jit(f))(1.5),
}


def with_rules(m, kind, place, look, seen):
    """sin with rules of twice its derivative, which look at what they get at one place."""

    def at(here, x):
        if here == place:
            seen.append(look(x))

    if kind == "custom_jvp":
        f = m.custom_jvp(lambda x: at("function", x) or m.np.sin(x))

        @f.defjvp
        def rule(primals, tangents):
            at("primal", primals[0])
            at("tangent", tangents[0])
            return m.np.sin(primals[0]), tangents[0] * m.np.cos(primals[0]) * 2

        return f
    f = m.custom_vjp(lambda x: at("function", x) or m.np.sin(x))

    def bwd(res, ct):
        at("residual", res)
        at("cotangent", ct)
        return (ct * m.np.cos(res) * 2,)

    f.defvjp(lambda x: at("fwd", x) or (m.np.sin(x), x), bwd)
    return f


def outcome(m, stack, kind, place, look):
    """(value, what was seen), or None where the value cannot be looked at."""
    seen = []
    try:
        value = stack(m, with_rules(m, kind, place, look, seen))
    except TypeError:  # both libraries' errors for values that are not known, and for no rule
        return None
    return np.asarray(value), seen


@pytest.mark.parametrize("kind, place", [
    ("custom_jvp", "function"), ("custom_jvp", "primal"), ("custom_jvp", "tangent"),
    ("custom_vjp", "function"), ("custom_vjp", "fwd"), ("custom_vjp", "residual"),
    ("custom_vjp", "cotangent"),
])  # fmt: skip
def test_python_sees_what_jax_shows(kind, place):
    shown = 0
    for name, stack in STACKS.items():
        for probe, look in LOOKS.items():
            expected = outcome(THEIRS, stack, kind, place, look)
            if expected is None:
                continue
            found = outcome(OURS, stack, kind, place, look)
            assert found is not None, (name, probe)
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, err_msg=name)
            assert found[1] == expected[1], (name, probe)
            shown += len(found[1])
    assert shown >= 2


def scaled(m, kind, k):
    """sin(x) * y * k, three times its derivative in x; `k` is closed over."""
    f = getattr(m, kind)(lambda x, y: m.np.sin(x) * y * k)
    if kind == "custom_jvp":
        f.defjvp(
            lambda p, t: (
                m.np.sin(p[0]) * p[1] * k,
                3 * t[0] * m.np.cos(p[0]) * p[1] * k + t[1] * m.np.sin(p[0]) * k,
            )
        )
    else:
        f.defvjp(
            lambda x, y: (m.np.sin(x) * y * k, (x, y)),
            lambda r, ct: (3 * ct * m.np.cos(r[0]) * r[1] * k, ct * m.np.sin(r[0]) * k),
        )
    return f


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_shared_and_closed_over_values_under_vmap(kind):
    x, y, ks = normal(3, 4), normal(4, seed=1), np.array([1.0, 2.0, 3.0])
    shared = lambda m, x, y: m.grad(
        lambda x, y: m.vmap(lambda row: scaled(m, kind, 1.0)(row, y))(x).sum(), (0, 1)
    )(x, y)
    agree(shared, x, y)
    agree(lambda m, x, y: m.jit(lambda x, y: shared(m, x, y))(x, y), x, y)
    closed = lambda m, k, x, y: scaled(m, kind, k)(x, y).sum()
    # The rule runs once vmap has ended, and may still use what it closed over there.
    got = OURS.grad(lambda x: OURS.vmap(lambda k, r: closed(OURS, k, r, r))(ours(ks), x).sum())
    want = 3 * ks[:, None] * np.cos(x) * x + ks[:, None] * np.sin(x)
    np.testing.assert_allclose(np.asarray(got(ours(x))), want, rtol=1e-12)


def test_callbacks_inside(capsys):
    f = OURS.custom_vjp(lambda x: OURS.np.sin(x))
    like = ShapeDtypeStruct((), "float32")

    def fwd(x):
        debug_print("fwd {x}", x=x)
        return pure_callback(np.sin, like, x), x

    def bwd(x, ct):
        debug_print("bwd {x} {ct}", x=x, ct=ct)
        return (ct * pure_callback(np.cos, like, x),)

    f.defvjp(fwd, bwd)
    for run in (OURS.grad(f), OURS.jit(OURS.grad(f))):
        np.testing.assert_allclose(float(run(0.5)), np.cos(0.5), rtol=1e-6)
        assert capsys.readouterr().out == "fwd 0.5\nbwd 0.5 1.0\n"
