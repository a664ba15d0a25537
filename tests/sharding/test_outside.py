"""shard_map and arrays on meshes within and beside everything else."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, optim
from genesis_fn.transforms.keys.key_reuse import KeyReuseWarning
from tests.sharding.both import OURS, agree, arrays, our_mesh

P = gf.P


def parts(m, checked=True):
    """x of rows @ w, normalized over all rows; a loss per device group besides."""

    def f(w, x):
        h = m.np.tanh(x @ w)
        return h - m.pmean(h.mean(0), "a"), m.psum(m.np.sum(h * h), ("a", "b"))

    return m.shard_map(
        f, mesh=m.mesh(4, 2), in_specs=(m.P(), m.P(("a", "b"))),
        out_specs=(m.P(("a", "b")), m.P()), check_vma=checked,
    )  # fmt: skip


def loss_of(m, outs):
    y, total = outs
    return m.np.sum(m.np.sin(y)) + 0.1 * total


OUTSIDE = {
    "plain": lambda m, f, w, x: f(w, x),
    "jit": lambda m, f, w, x: m.jit(f)(w, x),
    "vmap": lambda m, f, w, x: m.vmap(f, (None, 0))(w, m.np.stack([x, x * 2.0])),
    "vmap both": lambda m, f, w, x: m.vmap(f)(m.np.stack([w, -w]), m.np.stack([x, x * 2.0])),
    "vmap of w": lambda m, f, w, x: m.vmap(f, (0, None))(m.np.stack([w, -w]), x),
    "scan": lambda m, f, w, x: m.scan(lambda c, _: (f(w, c)[0], f(w, c)[1]), x, None, length=2),
    "fori": lambda m, f, w, x: m.fori_loop(0, 2, lambda i, c: f(w, c[0]), f(w, x)),
    "cond": lambda m, f, w, x: m.cond(m.np.sum(x) > 0, f, lambda w, x: (x, m.np.sum(w)), w, x),
    "checkpoint": lambda m, f, w, x: m.checkpoint(f)(w, x),
    "twice": lambda m, f, w, x: f(w, f(w, x)[0]),
    "gradient": lambda m, f, w, x: m.grad(lambda w: loss_of(m, f(w, x)))(w),
    "linearize": lambda m, f, w, x: m.linearize(f, w, x)[1](w * 0.5, x),
}


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name, checked):
    rng = np.random.default_rng(sum(map(ord, name)))
    w, x = rng.normal(size=(3, 3)), rng.normal(size=(16, 3))

    def program(m, w, x):
        f = lambda w, x: OUTSIDE[name](m, parts(m, checked), w, x)
        loss = lambda w, x: sum(m.np.sum(m.np.sin(y)) for y in m.tree.leaves(f(w, x)))
        return f(w, x), m.grad(loss, argnums=(0, 1))(w, x), m.jvp(f, (w, x), (w, x))

    mine = agree(program, w, x, tolerance=1e-10)
    mesh = our_mesh(4, 2)
    ours, rows = arrays((w, x)), gf.NamedSharding(mesh, P("a"))
    placed = ours[0], gf.device_put(ours[1], rows)
    for f in (lambda *xs: program(OURS, *xs), gf.jit(lambda *xs: program(OURS, *xs))):
        for a, b in zip(gf.tree.leaves(f(*placed)), gf.tree.leaves(mine), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_a_parameter_that_is_closed_over():
    rng = np.random.default_rng(0)
    w, x = arrays((rng.normal(size=(3, 3)), rng.normal(size=(16, 3))))

    def loss(w, closed):
        h = lambda w, x: lax.psum(jnp.sum(jnp.sin(x @ w)), ("a", "b"))
        spec = P(("a", "b"))
        if closed:
            f = gf.shard_map(lambda x: h(w, x), mesh=our_mesh(4, 2), in_specs=spec, out_specs=P())
            return f(x)
        f = gf.shard_map(h, mesh=our_mesh(4, 2), in_specs=(P(), spec), out_specs=P())
        return f(w, x)

    single = lambda w: jnp.sum(jnp.sin(x @ w))
    for transform in (gf.grad, lambda f: gf.jit(gf.grad(f)), gf.hessian, gf.jacfwd):
        for closed in (True, False):
            got = transform(lambda w: loss(w, closed))(w)
            np.testing.assert_allclose(got, transform(single)(w), rtol=1e-10, atol=1e-10)


def test_linear_transpose_and_shapes():
    f = gf.shard_map(
        lambda x: lax.psum(x * 2.0, "a"), mesh=our_mesh(4, 2), in_specs=P("a"), out_specs=P()
    )
    x = jnp.arange(8.0)
    np.testing.assert_array_equal(gf.linear_transpose(f, x)(jnp.ones(2))[0], 2 * np.ones(8))
    assert gf.eval_shape(f, x).shape == (2,)
    text = str(gf.make_jaxpr(f)(x))
    assert "shard_map" in text and "psum_invariant" in text and "{V:a}" in text


def test_amp_inside_and_outside():
    rng = np.random.default_rng(1)
    w, x = [jnp.array(v, "float32") for v in (rng.normal(size=(8, 8)), rng.normal(size=(16, 8)))]
    h = lambda w, x: lax.psum(jnp.sum(jnp.tanh(x @ w), 0), "a")
    over = lambda f: gf.shard_map(f, mesh=our_mesh(8), in_specs=(P(), P("a")), out_specs=P())
    plain = gf.amp(lambda w, x: jnp.sum(jnp.tanh(x @ w), 0))(w, x)
    for f in (gf.amp(over(h)), over(gf.amp(h)), gf.jit(gf.amp(over(h)))):
        np.testing.assert_allclose(f(w, x), plain, rtol=3e-2, atol=3e-2)
        g = gf.grad(lambda w: jnp.sum(f(w, x).astype("float32") ** 2))(w)
        assert g.dtype == np.float32 and g.shape == w.shape


def test_keys_of_each_device():
    key = gf.random.key(5)

    def f(key):
        mine = gf.random.fold_in(key, lax.axis_index("a"))
        return gf.random.normal(mine, (3,))[None]

    for wrap in (lambda f: f, gf.jit):
        got = wrap(gf.shard_map(f, mesh=our_mesh(4, 2), in_specs=P(), out_specs=P("a")))(key.copy())
        wanted = [gf.random.normal(gf.random.fold_in(key.copy(), i), (3,)) for i in range(4)]
        np.testing.assert_array_equal(got, np.stack(wanted))


def test_keys_that_are_laid_out():
    keys = gf.random.split(gf.random.key(0), 8)
    rows = gf.NamedSharding(our_mesh(8), P("a"))
    f = gf.shard_map(lambda k: gf.random.uniform(k[0], (2,))[None], mesh=our_mesh(8),
                     in_specs=P("a"), out_specs=P("a"))  # fmt: skip
    wanted = np.stack([gf.random.uniform(k.copy(), (2,)) for k in keys])
    placed = gf.device_put(keys, rows)
    assert placed.sharding == rows and placed.addressable_shards[3].data.shape == (1,)
    np.testing.assert_array_equal(f(placed), wanted)
    with pytest.warns(KeyReuseWarning):
        f(placed)


def test_a_callback_sees_parts():
    seen = []

    def host(x):
        seen.append(np.shape(x))
        return np.asarray(x) * 2

    def f(x):
        return gf.pure_callback(
            host, gf.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
        )

    x = np.arange(16.0, dtype=np.float32).reshape(16)
    got = gf.shard_map(f, mesh=our_mesh(8), in_specs=P("a"), out_specs=P("a"))(x)
    np.testing.assert_array_equal(got, 2 * x)
    assert set(seen) == {(2,)}


@pytest.mark.parametrize("layout", [P(), P("a"), P("a", "b"), P(None, ("b", "a"))], ids=str)
def test_arrays(layout):
    x = np.random.default_rng(2).normal(size=(8, 8)).astype(np.float32)
    mesh = our_mesh(4, 2)
    where = gf.NamedSharding(mesh, layout)
    y = gf.device_put(x, where)
    np.testing.assert_array_equal(np.asarray(y), x)
    assert repr(y) == repr(jnp.array(x)) and f"{y[0, 0]:.3f}" == f"{x[0, 0]:.3f}"
    assert copy.deepcopy(y).sharding == where
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(y)), x)  # on the default device
    for other in (P("b"), P(("a", "b")), P("b", "a"), P()):
        z = gf.device_put(y, gf.NamedSharding(mesh, other))
        assert z.sharding.spec == other
        np.testing.assert_array_equal(z, x)
    elsewhere = gf.NamedSharding(our_mesh(2, 2, 2), P("c", "a"))
    z = gf.device_put(y, elsewhere)
    assert z.sharding == elsewhere
    np.testing.assert_array_equal(z, x)
    back = gf.device_put(y, gf.cpu())
    assert back.device is gf.cpu()
    np.testing.assert_array_equal(back, x)
    for index in (0, (slice(None), 1), (slice(1, 5), slice(None, None, 2)), np.array([3, 0]),
                  x[:, 0] > 0, (..., None)):  # fmt: skip
        np.testing.assert_array_equal(y[index], x[index])
    assert len(y.addressable_shards) == 8
    for s in y.addressable_shards:
        np.testing.assert_array_equal(s.data, x[s.index])
    assert [float(v) for v in y[0]] == [float(v) for v in x[0]]
    assert y.sum().item() == pytest.approx(x.sum(), rel=1e-5) and len(y) == 8
    again = gf.sharding.make_array_from_callback((8, 8), where, lambda index: x[index])
    np.testing.assert_array_equal(again, x)
    shards = [gf.device_put(s.data, s.device) for s in y.addressable_shards]
    again = gf.sharding.make_array_from_single_device_arrays((8, 8), where, shards)
    np.testing.assert_array_equal(again, x)
    both = gf.tree.map(lambda a, b: a + b, {"x": y}, {"x": y})
    assert both["x"].sharding == where


def test_donation():
    where = gf.NamedSharding(our_mesh(8), P("a"))
    f = gf.jit(lambda x, y: (x + y, y * 2.0), donate_argnums=0)
    x, y = [gf.device_put(np.ones((8, 4), np.float32), where) for _ in range(2)]
    new, _ = f(x, y)
    np.testing.assert_array_equal(new, 2 * np.ones((8, 4)))
    assert x.is_deleted() and not y.is_deleted()


def test_training_is_that_of_one_device():
    rng = np.random.default_rng(3)
    x, t = [rng.normal(size=s).astype(np.float32) for s in ((16, 4), (16, 2))]
    mesh = our_mesh(4, 2)
    params = {"w": jnp.array(rng.normal(size=(4, 2)), "float32"), "b": jnp.zeros(2)}
    layouts = {"w": gf.NamedSharding(mesh, P("a", "b")), "b": gf.NamedSharding(mesh, P("b"))}
    rows = gf.NamedSharding(mesh, P(("a", "b")))
    update = optim.adam(0.1)

    def step(params, state, x, t):
        loss = lambda p: jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - t) ** 2)
        value, grads = gf.value_and_grad(loss)(params)
        updates, state = update.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    results = []
    for place in (False, True):
        p = gf.device_put(params, layouts) if place else params
        batch = gf.device_put((x, t), rows) if place else (jnp.array(x), jnp.array(t))
        state, values = update.init(p), []
        for _ in range(5):
            p, state, value = gf.jit(step)(p, state, *batch)
            values.append(float(value))
        results.append((values, gf.tree.map(np.asarray, p)))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    for k in params:
        np.testing.assert_allclose(results[0][1][k], results[1][1][k], rtol=1e-4, atol=1e-6)
