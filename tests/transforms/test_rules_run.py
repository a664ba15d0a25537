"""Where the functions and rules of custom_jvp and custom_vjp run as Python on concrete values.

JAX is the reference: wherever a look at a value (`if`, `float`, NumPy, print) inside the function
or a rule works there, it works here, sees the same as often, and leaves the same derivative. (Under
two derivatives this library knows values that JAX's tracers do not tell.)
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.transforms.both import OURS, THEIRS

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
