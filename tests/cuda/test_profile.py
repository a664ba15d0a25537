"""What is known of a compiled program, and the time of its kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.core.device import using_device


@pytest.fixture(autouse=True)
def gpu():
    with using_device(gf.cuda(0)) as device:
        yield device


def loss(w, x):
    h = jnp.tanh(x @ w)  # the hidden values
    return jnp.sum(h**2)


def step(w, x):
    value, g = gf.value_and_grad(loss)(w, x)
    return w - 0.1 * g, value


X, W = np.ones((32, 16), np.float32), np.full((16, 16), 0.1, np.float32)


def test_kernels_with_lines_bytes_and_operations(tmp_path):
    x, w = jnp.asarray(X), jnp.asarray(W)
    found = gf.profile(gf.jit(step, donate_argnums=0), repeats=2)(w, x)
    expected = step(w, x)
    for a, b in zip(found.result, expected):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(w), W)  # a profile donates nothing
    products = [line for line in found.lines if line.primitive == "dot_general"]
    assert sum(line.flops for line in products) == 2 * (2 * 32 * 16 * 16)
    assert any("# the hidden values" in line.source for line in products)
    assert all(line.bytes > 0 and line.roofline > 0 and line.seconds >= 0 for line in found.lines)
    assert found.program_seconds > 0 and "as one program" in str(found)
    assert abs(sum(s.seconds for s in found.spans) - found.seconds) < 1e-9
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events] == [s.name for s in found.spans]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in zip(events, events[1:]))
    pytest.importorskip("matplotlib")
    found.save_png(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_loops_and_host_functions_are_steps():
    def f(x):
        y = gf.lax.scan(lambda c, r: (jnp.cumsum(c + jnp.sin(r)) * 1, None), jnp.zeros(3), x)[0]
        z = gf.pure_callback(lambda v: np.asarray(v) * 2, y.aval, y)
        return jnp.exp(z)

    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
    found = gf.profile(f, repeats=1)(jnp.asarray(x))
    want = np.zeros(3)
    for row in x:
        want = np.cumsum(want + np.sin(row))
    np.testing.assert_allclose(found.result, np.exp(2 * want), rtol=1e-5)
    assert {"repeat", "host"} <= {s.name for s in found.spans}


def test_what_a_compiled_program_shows():
    shapes = [gf.ShapeDtypeStruct(v.shape, v.dtype) for v in (W, X)]
    compiled = gf.jit(step, donate_argnums=0).lower(*shapes).compile()
    text = compiled.as_text()
    for part in ("tanh", "dot_general", "at the roofline", "GFLOP", "def ", "tl.load", "arena"):
        assert part in text, part
    memory = compiled.memory_analysis()
    assert memory["argument_size_in_bytes"] == W.nbytes + X.nbytes
    assert memory["alias_size_in_bytes"] == W.nbytes, "the donated weights are updated in place"
    assert compiled.cost_analysis()["flops"] >= 2 * (2 * 32 * 16 * 16)
    w = jnp.asarray(W)
    compiled(w, jnp.asarray(X))
    assert w.is_deleted()


def test_every_launch_has_the_name_of_what_it_computes():
    """Products with an epilogue, in a shared launch, in a gate; small kernels that run at once."""

    def f(x, q, k, gate, up):
        y = jnp.tanh(x @ q), x @ k
        return y, jnp.exp(x @ gate) * (x @ up), jnp.sort(x), jnp.cos(q[0])

    for rows in (1, 5, 200):
        shapes = (rows, 32), (32, 48), (32, 24), (32, 24), (32, 24)
        draw = np.random.default_rng(rows)
        arrays = [jnp.asarray(draw.standard_normal(s), jnp.bfloat16) for s in shapes]
        found = gf.profile(f, repeats=1)(*arrays)
        names = [line.primitive for line in found.lines]
        assert "copy" not in names, names
        assert sum(line.flops for line in found.lines) >= 2 * rows * 32 * (48 + 3 * 24)


def test_an_input_that_another_result_replaces_is_there_in_every_run():
    """The place of `n` is that of the sums, which are no positions."""

    def f(x, n):
        gf.transforms.assert_(n < 4, "n is a position")
        return jnp.sum(x, 1) * 100, jnp.exp(x)

    x, n = jnp.ones((4, 3), jnp.int32), jnp.arange(4)
    compiled = gf.jit(f, donate_argnames="n")
    found = gf.profile(compiled, repeats=3)(x, n)
    assert found.result[0].tolist() == [300] * 4 and n.tolist() == [0, 1, 2, 3]
    memory = compiled.lower(x, n).compile().memory_analysis()
    assert memory["alias_size_in_bytes"] == 16
