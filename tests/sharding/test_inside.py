"""Transforms, loops, branches and fused functions within shard_map, against JAX's."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
from tests.sharding.both import OURS, agree, arrays, varying

NAMES = ("a", "b")


def _rows(m, w, x):
    return m.vmap(lambda r: m.psum(m.np.tanh(r * w), "a"))(x)


def _rows_named(m, w, x):
    """JAX checks no types where axes of vmap and of the mesh are mixed."""
    if m.name == "ours":
        return m.vmap(lambda r: r * m.psum(r * w, ("i", "a")), axis_name="i")(x)
    return x[:, None] * m.psum((x[:, None] * w).sum(0), "a")


def _columns(m, w, x):
    return m.vmap(lambda r, v: m.all_gather(r * v, "b"), (1, None), 1)(x, w[0, 0])


def _scan(m, w, x):
    def step(c, row):
        c = m.np.tanh(c + m.psum(row @ w, "a"))
        return c, m.pmean(c * row, ("a", "b"))

    return m.scan(step, varying(m, m.np.zeros_like(x[0]), ("b",)), x)


def _scan_with_parts(m, w, x):
    def step(c, row):
        return m.np.sin(m.ppermute(c, "a", [(i, (i + 1) % 4) for i in range(4)]) + row @ w), c

    return m.scan(step, x[0], x)


def _fori(m, w, x):
    return m.fori_loop(0, 3, lambda i, c: m.np.tanh(m.psum(c @ w, "a") + x), x)


def _while(m, w, x):
    """A number of steps that differs between devices, without communication."""

    def test(c):
        return m.np.sum(m.np.abs(c)) > 1.0

    return m.while_loop(test, lambda c: c * 0.5, m.stop_gradient(x * (1 + m.axis_index("a"))))


def _while_in_step(m, w, x):
    def test(c):
        return m.psum(m.np.sum(m.np.abs(c)), NAMES) > 9.0

    return m.while_loop(test, lambda c: 0.5 * c - 0.1 * m.pmean(c, "a"), m.stop_gradient(x))


def _cond(m, w, x):
    up = m.psum(m.np.sum(x), NAMES) > 0
    return m.cond(up, lambda x: m.psum(x @ w, "a"), lambda x: m.psum(x, "a") * 3.0, x)


def _before_branches(m, w):
    """JAX's derivative of a branch that uses what does not vary communicates within the branch, and
    waits for ever where devices decide differently."""
    return w if m.name == "ours" else varying(m, w, NAMES)


def _cond_apart(m, w, x):
    w = _before_branches(m, w)
    return m.cond(m.axis_index("a") > 1, lambda x: m.np.sin(x @ w), lambda x: x * x, x)


def _switch(m, w, x):
    w = _before_branches(m, w)
    branches = [lambda x: x @ w, m.np.sin, lambda x: x * x, lambda x: x - 1.0]
    return m.switch(m.axis_index("a"), branches, x)


def _jit(m, w, x):
    f = m.jit(lambda x, w: m.psum(m.np.tanh(x @ w), "a"))
    return f(x, w) + f(2.0 * x, w)


def _checkpoint(policy):
    def f(m, w, x):
        def block(x, w):
            h = m.checkpoint_name(m.psum(m.np.sin(x @ w), "a"), "h")
            return m.np.tanh(h @ w) * x

        keep = {
            None: None,
            "nothing": m.policies.nothing_saveable,
            "dots": m.policies.dots_saveable,
            "names": m.policies.save_only_these_names("h"),
        }[policy]
        return m.checkpoint(block, policy=keep)(x, w)

    return f


def _custom_vjp(m, w, x):
    @m.custom_vjp
    def f(x, w):
        return m.psum(x @ w, "a")

    # A rule of its own: not the derivative.
    f.defvjp(
        lambda x, w: (f(x, w), (x, w)),
        lambda saved, ct: (varying(m, 2.0 * ct @ saved[1].T, ("a", "b")),
                           3.0 * m.psum(saved[0].T @ varying(m, ct, NAMES), NAMES)),
    )  # fmt: skip
    return f(x, w)


def _custom_vjp_of_parts(m, w, x):
    """A rule that knows nothing of devices: what each adds to a shared gradient is summed. JAX
    would have the rule say so."""

    @m.custom_vjp
    def f(x, w):
        return m.np.tanh(x @ w)

    def back(saved, ct):
        x, w, y = saved
        ct = ct * (1.0 - y * y)
        gw = x.T @ ct
        return ct @ w.T, gw if m.name == "ours" else m.psum(gw, NAMES)

    f.defvjp(lambda x, w: (f(x, w), (x, w, f(x, w))), back)
    return f(x, w)


def _custom_jvp(m, w, x):
    @m.custom_jvp
    def f(x):
        return m.psum(m.np.sin(x), "a")

    f.defjvp(lambda xs, ts: (f(xs[0]), m.psum(2.0 * m.np.cos(xs[0]) * ts[0], "a")))
    return f(x @ w)


def _softmax(m, w, x):
    return m.nn.softmax(m.psum(x @ w, "a")) + m.nn.log_softmax(x) * m.nn.silu(x @ w)


def _logsumexp(m, w, x):
    """A softmax over the parts of a dimension."""
    top = m.stop_gradient(m.np.max(x @ w, -1, keepdims=True))
    top = m.all_gather(top, "b").max(0)
    e = m.np.exp(x @ w - top)
    return e / m.psum(m.np.sum(e, -1, keepdims=True), "b")


def _attention(m, w, x):
    q = (x @ w).reshape(1, 2, 2, 2)
    return m.nn.dot_product_attention(q, m.psum(q, "a"), q * w[0, 0]).reshape(2, 4)


def _linearize(m, w, x):
    y, apply = m.linearize(lambda x: m.psum(m.np.sin(x @ w), "a"), x)
    return varying(m, y, NAMES) + varying(m, apply(x * 2.0), NAMES)


def _linear_transpose(m, w, x):
    example = m.np.concatenate([x, x])
    back = m.linear_transpose(lambda x: m.psum_scatter(x @ w, "a", tiled=True), example)
    return back(x[:1] * w[0])[0]


def _grad(m, w, x):
    loss = lambda x, w: m.psum(m.np.sum(m.np.sin(x @ w)), NAMES)
    gx, gw = m.grad(loss, argnums=(0, 1))(x, w)
    return gx @ gw


def _sorted(m, w, x):
    y = m.np.sort(x @ w, axis=1) + m.np.cumsum(x, axis=0)
    return y[:, ::-1] * x[m.np.array([1, 0])] + m.np.where(x > 0, y, w[:2])


def _ring(m, w, x):
    """A product with a matrix of which every device has rows, which go round."""
    n, here = 4, m.axis_index("a")

    def step(state, i):
        rows, total = state
        total = total + x * rows[0, 0] * (1.0 + (here - i) % n)
        return (m.ppermute(rows, "a", [(j, (j + 1) % n) for j in range(n)]), total), None

    start = m.np.sin(x @ w), m.np.zeros_like(x)
    (_, total), _ = m.scan(step, start, m.np.arange(n))
    return total


PROGRAMS = {k[1:]: v for k, v in globals().items() if k.startswith("_") and k[1] != "_"
            and callable(v) and k not in ("_checkpoint", "_before_branches")}  # fmt: skip
PROGRAMS |= {f"checkpoint {p}": _checkpoint(p) for p in (None, "nothing", "dots", "names")}
WITHOUT_REVERSE = {"while", "while_in_step"}


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_inside(name, checked):
    if name.startswith("custom_vjp") and not checked:
        pytest.skip("the rule says what it sums by the types of checked programs")
    rng = np.random.default_rng(sum(map(ord, name)))
    w, x = rng.normal(size=(4, 4)), rng.normal(size=(8 * 2, 4))

    def program(m, w, x):
        def part(w, x):
            return m.tree.map(lambda y: varying(m, y, NAMES)[None], PROGRAMS[name](m, w, x))

        f = m.shard_map(
            part, mesh=m.mesh(4, 2), in_specs=(m.P(), m.P(NAMES)), out_specs=m.P(NAMES),
            check_vma=checked,
        )  # fmt: skip
        loss = lambda w, x: sum(m.np.sum(m.np.sin(y)) for y in m.tree.leaves(f(w, x)))
        if name in WITHOUT_REVERSE:
            return f(w, x)
        return f(w, x), m.grad(loss, argnums=(0, 1))(w, x)

    # JAX computes an attention's weights as float32.
    mine = agree(program, w, x, tolerance=1e-5 if name == "attention" else 1e-10)
    jitted = OURS.jit(lambda *xs: program(OURS, *xs))(*arrays((w, x)))
    for a, b in zip(gf.tree.leaves(jitted), gf.tree.leaves(mine), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
