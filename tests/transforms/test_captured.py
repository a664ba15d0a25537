"""`.captures`: what a jitted function took from outside, by name, size, and line."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax

WEIGHTS = {"wte": jnp.ones((5, 3)), "layers": [jnp.ones(3), jnp.ones(3)]}


class Scale:
    def __init__(self):
        self.params = {"scale": jnp.ones(3)}

    def __call__(self, x):
        return jnp.sin(x * self.params["scale"])


scale = Scale()


def body(c, i):
    row = WEIGHTS["wte"][i]  # the table
    return scale(c) + row, None


def loss(x, bias=jnp.ones(3)):  # noqa: B008
    h = lax.scan(body, x, jnp.arange(2))[0]
    return jnp.sum(jnp.sin(h * WEIGHTS["layers"][1] + bias))  # the layer


LINES = {
    "WEIGHTS['wte']": "# the table", "WEIGHTS['layers'][1]": "# the layer", "bias": "# the layer",
    "scale.params['scale']": 'jnp.sin(x * self.params["scale"])',
}  # fmt: skip
BYTES = {"WEIGHTS['wte']": 60}


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "vmap of grad of checkpoint"])
def test_names_sizes_and_lines(transform):
    f, x = {
        "jit": (loss, jnp.ones(3)),
        "grad": (gf.grad(loss), jnp.ones(3)),
        "vmap": (gf.vmap(loss), jnp.ones((2, 3))),
        "vmap of grad of checkpoint": (gf.vmap(gf.grad(gf.checkpoint(loss))), jnp.ones((2, 3))),
    }[transform]
    jitted = gf.jit(f)
    np.testing.assert_allclose(np.asarray(jitted(x)), np.asarray(f(x)), rtol=1e-5)
    found = {c.name: c for c in jitted.captures if c.name}
    assert set(found) == set(LINES)
    for name, c in found.items():
        assert LINES[name] in c.line and "test_captured.py:" in c.line, c
        assert c.nbytes == BYTES.get(name, 12) and c.type == (
            "f32[5,3]" if c.nbytes > 12 else "f32[3]"
        )


def test_each_array_is_listed_once_and_before_a_call_there_are_none():
    table = jnp.ones((4, 2))
    f = gf.jit(lambda x: x + table[0, 0])
    assert f.captures == []
    for n in (1, 2):
        f(jnp.ones(n))
    ((name, kind, size, line),) = f.captures
    assert (name, kind, size) == ("table", "f32[4,2]", 32) and "x + table[0, 0]" in line
    same = gf.jit(lambda: table)
    same()
    assert [(c.name, c.line) for c in same.captures] == [("table", "returned as it is")]


def test_the_warning_names_the_largest():
    small, large = jnp.ones(3), jnp.zeros((65, 1 << 18))
    with pytest.warns(UserWarning) as caught:
        gf.jit(lambda x: x + small + large[0, 0])(1.0)
    text = str(caught[0].message)
    assert "captured 65 MiB" in text and len(text.splitlines()) <= 6
    assert "the largest is large, f32[65,262144] (68,157,440 bytes), first read at" in text
    assert caught[0].filename == __file__
