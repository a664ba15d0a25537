"""Whole programs on the interpreting driver: derivatives, control flow, donation, many calls."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.core import errors
from genesis_fn.core.device import using_device
from tests.test_backends import check

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def mlp_loss(p, x, y):
    h = gnp.tanh(lax.dot(x, p["w1"], precision="highest") + p["b1"])
    return gnp.mean((lax.dot(h, p["w2"], precision="highest") + p["b2"] - y) ** 2)


MLP = {"w1": normal(8, 16), "b1": normal(16), "w2": normal(16, 4), "b2": normal(4)}


def test_gradients_of_an_mlp() -> None:
    programs.compare(g.value_and_grad(mlp_loss), MLP, normal(32, 8), normal(32, 4), tolerance=1e-4)


def block(p, x):
    b, t, d = x.shape
    heads = 2

    def norm(x, w):
        centred = x - gnp.mean(x, -1, keepdims=True)
        return centred * lax.rsqrt(gnp.mean(centred**2, -1, keepdims=True) + 1e-5) * w

    def dot(a, b):
        return gnp.matmul(a, b, precision="highest")

    h = norm(x, p["n1"])
    q, k, v = [dot(h, p[n]).reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for n in "qkv"]
    scores = dot(q, k.transpose(0, 1, 3, 2)) * 0.3
    scores = gnp.where(gnp.tril(gnp.ones((t, t), bool)), scores, -1e9)
    e = gnp.exp(scores - gnp.max(scores, -1, keepdims=True))
    mixed = dot(e / gnp.sum(e, -1, keepdims=True), v).transpose(0, 2, 1, 3).reshape(b, t, d)
    x = x + dot(mixed, p["o"])
    u = dot(norm(x, p["n2"]), p["w1"])
    return x + dot(u * lax.logistic(u), p["w2"])


BLOCK = {
    "n1": normal(8), "n2": normal(8), **{n: normal(8, 8) * 0.3 for n in "qkvo"},
    "w1": normal(8, 16) * 0.3, "w2": normal(16, 8) * 0.3,
}  # fmt: skip


def test_gradients_of_a_transformer_block() -> None:
    def loss(p, x):
        return gnp.sum(block(p, x) ** 2)

    programs.compare(g.value_and_grad(loss), BLOCK, normal(2, 6, 8), tolerance=1e-3)


def test_gradients_under_checkpoint() -> None:
    def loss(p, x):
        return gnp.sum(g.checkpoint(block)(p, x) ** 2)

    programs.compare(g.grad(loss), BLOCK, normal(1, 4, 8), tolerance=1e-3)


def step(c, x):
    c = gnp.tanh(c * 0.5 + x)
    return c, c * 2


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    programs.compare(lambda c, xs: lax.scan(step, c, xs, reverse=reverse), normal(4), normal(6, 4))


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_scans_slice_and_stack_complex_rows(kind: type) -> None:
    xs = (normal(5, 3) + 1j * normal(5, 3)).astype(kind)

    def rotated(c, x):
        return c * 1j + x, c - x

    programs.compare(lambda c, xs: lax.scan(rotated, c, xs), xs[0], xs, tolerance=1e-6)
    programs.compare(lambda xs: lax.scan(lambda c, x: (c, x), 0, xs, reverse=True)[1], xs)


def test_gradient_of_scan() -> None:
    def loss(w, c, xs):
        return gnp.sum(lax.scan(lambda c, x: (gnp.tanh(c * w + x), c), c, xs)[1] ** 2)

    programs.compare(g.grad(loss, argnums=(0, 1, 2)), normal(4), normal(4), normal(6, 4))


def test_scan_of_length_zero_and_nested_loops() -> None:
    programs.compare(lambda c, xs: lax.scan(step, c, xs), normal(4), normal(0, 4))

    def outer(c, x):
        return lax.fori_loop(0, 3, lambda i, v: v * 0.5 + x, c), c

    programs.compare(lambda c, xs: lax.scan(outer, c, xs), normal(4), normal(5, 4))


def test_carry_that_changes_places() -> None:
    programs.compare(
        lambda a, b: lax.fori_loop(0, 3, lambda i, s: (s[1], s[0] + 1, s[2]), (a, b, a)),
        normal(3),
        normal(3),
    )


def test_while_loop() -> None:
    programs.compare(
        lambda n, x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5), (n, x)),
        np.int32(1),
        normal(3),
    )


@pytest.mark.parametrize("i", [-1, 1])
def test_cond(i: int) -> None:
    programs.compare(
        lambda i, x: lax.cond(i > 0, lambda x: (x * 2, x), lambda x: (-x, x + 1), x),
        np.int32(i),
        normal(3),
    )
    branches = [lambda x: x, lambda x: x * 3, gnp.sin]
    programs.compare(lambda i, x: lax.switch(i, branches, x), np.int32(i), normal(3))


def test_outputs_that_are_inputs_views_and_each_other() -> None:
    def f(x, y):
        z = x + y
        return x, z, z, z.reshape(-1), x.reshape(-1), z[0], gnp.broadcast_to(x[0, 0], (4,))

    programs.compare(f, normal(3, 4), normal(3, 4))


def test_no_outputs_of_no_elements() -> None:
    programs.compare(
        lambda x: (x * 2, gnp.sum(x, 1), gnp.sum(x, 0), gnp.concatenate([x, x], 0)), normal(0, 3)
    )


def test_host_steps_split_the_graph() -> None:
    def f(a):
        a = a @ a.T + 3 * gnp.eye(3, dtype=gnp.float32)
        return gnp.linalg.cholesky(a) * 2

    programs.compare(f, normal(3, 3), tolerance=1e-2)
    programs.compare(
        lambda a: lax.fori_loop(0, 2, lambda i, v: gnp.linalg.cholesky(v * v + 9 * gnp.eye(3)), a),
        np.eye(3, dtype=np.float32) * 2,
        tolerance=1e-4,
    )


# ---- through jit ----


@pytest.fixture
def place():
    with using_device(programs.PLACE):
        yield programs.PLACE


def test_donated_state_is_updated_in_place(place) -> None:
    @g.jit(donate_argnums=0)
    def update(state, gradient):
        return {"p": state["p"] - 0.1 * gradient, "m": state["m"] * 0.9 + gradient}

    p, gradient = normal(300), normal(300)
    state = {"p": gnp.array(p), "m": gnp.zeros(300)}
    addresses = {k: v.data.address for k, v in state.items()}
    for _ in range(3):
        old, state = state, update(state, gnp.array(gradient))
        assert {k: v.data.address for k, v in state.items()} == addresses
        with pytest.raises(errors.DonatedError):
            np.asarray(old["p"])
    np.testing.assert_allclose(np.asarray(state["p"]), p - 0.3 * gradient, rtol=1e-5, atol=1e-6)


def test_results_survive_later_calls(place) -> None:
    f = g.jit(lambda x: (x * 2, gnp.sum(x)))
    xs = [normal(400, 800) for _ in range(4)]  # large enough to be handed out without a copy
    outs = [f(gnp.array(x)) for x in xs]
    for x, (y, s) in zip(xs, outs, strict=True):
        np.testing.assert_array_equal(np.asarray(y), x * 2)
        np.testing.assert_allclose(float(s), x.sum(), rtol=1e-3, atol=0.1)


def test_small_results_of_every_size_survive_later_calls(place) -> None:
    """They are copied out of fixed memory by one launch, the largest by themselves."""
    draw = np.random.default_rng(21)
    sizes = [1, 3, 16, 255, 4096, 4097, 70001, 300001, *range(30, 95)]
    given = [draw.integers(-100, 100, n).astype(np.int8 if n % 2 else np.int32) for n in sizes]
    run = g.jit(lambda xs, a: [x * a for x in xs])
    held = []
    for a in range(1, 5):
        # New inputs each time: they are copied to fixed memory in the same way.
        held.append(run([g.device_put(a + x, place) for x in given], np.int8(a)))
    for a, results in enumerate(held, 1):
        for x, y in zip(given, results, strict=True):
            np.testing.assert_array_equal(np.asarray(y), (x + a) * np.int8(a))


def test_moving_inputs_do_not_capture_forever(place) -> None:
    f = g.jit(lambda w, x: w + x)
    w = gnp.array(normal(64))
    held = []
    for _ in range(12):
        x = normal(64)
        held.append(gnp.array(x))
        np.testing.assert_allclose(np.asarray(f(w, held[-1])), np.asarray(w) + x, rtol=1e-6)


def test_out_of_bounds_names_the_line(place) -> None:
    f = g.jit(lambda x, i: x[i] + 1)
    x = gnp.array(normal(5))
    np.testing.assert_allclose(np.asarray(f(x, gnp.array(3))), np.asarray(x)[3] + 1)
    with pytest.raises(errors.IndexOutOfRange, match="test_executable.py"):
        np.asarray(f(x, gnp.array(9)))
    np.testing.assert_allclose(np.asarray(f(x, gnp.array(4))), np.asarray(x)[4] + 1)


def test_text_shows_everything(place) -> None:
    compiled = g.jit(lambda x: gnp.sum(gnp.sin(x) * 2)).lower(gnp.array(normal(64))).compile()
    text = compiled.as_text()
    for part in ("reduce_sum", "def rows", "roofline", "arena", "sin"):
        assert part in text


def test_alike_updates_share_a_launch() -> None:
    def update(ps, gs):
        norm = gnp.sqrt(sum(gnp.sum(g * g) for g in gs))
        return [p - g / norm for p, g in zip(ps, gs, strict=True)]

    ps, gs = [[normal(40, 900) for _ in range(6)] for _ in range(2)]
    executable = programs.compare(update, ps, gs, tolerance=1e-4, donated=[True] * 6 + [False] * 6)
    assert "6 x " in executable.report() and "_of_many" in executable.as_text()
    assert len(executable.schedule.steps) <= 4


def test_a_donation_that_no_output_can_take_is_said(place) -> None:
    f = g.jit(lambda x: gnp.sum(x), donate_argnums=0, on_unusable_donation="error")
    with pytest.raises(errors.DonatedError, match=r"f32\[7\]"):
        f(gnp.array(normal(7)))


def test_donated_memory_that_others_hold_is_copied(place) -> None:
    values = normal(50)
    x = gnp.array(values)
    same = g.jit(lambda x: x.reshape(5, 10))(x)
    update = g.jit(lambda x: x + 1, donate_argnums=0)
    np.testing.assert_array_equal(np.asarray(update(same)), values.reshape(5, 10) + 1)
    np.testing.assert_array_equal(np.asarray(x), values)
    alone = gnp.array(values)
    address = alone.data.address
    assert update(alone).data.address == address


def test_donated_memory_of_which_part_is_shown_elsewhere_is_copied(place) -> None:
    update = g.jit(lambda state: [x + 1 for x in state], donate_argnums=0)
    values = normal(50)
    x = gnp.array(values)
    part = x[:25]
    for _ in range(3):
        state = update([gnp.array(values), x])
        np.testing.assert_array_equal(np.asarray(state[1]), values + 1)
        np.testing.assert_array_equal(np.asarray(part), values[:25])
        # What the part's own array gives up is memory of another's, which stays as it is.
        whole = gnp.array(values)
        first = whole[:25]
        assert np.asarray(update([first, first + 1])[0]).tolist() == (values[:25] + 1).tolist()
        np.testing.assert_array_equal(np.asarray(whole), values)
        x = gnp.array(values)
        part = x[:25]


@pytest.mark.parametrize("donate", [(), (0,)])
def test_it_offers_what_the_protocol_says(place, donate) -> None:
    xs = [gnp.full((3,), 2.0), gnp.ones((3,))]
    lowered = g.jit(lambda x, y: (x * y + 1, x), donate_argnums=donate).lower(*xs)
    executable = lowered.executable(place)
    assert isinstance(executable, CudaExecutable)
    check(executable, xs)
