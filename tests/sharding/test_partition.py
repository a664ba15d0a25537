"""Programs on whole arrays that are laid out over a mesh: whatever the program and the layouts, the
values and gradients are those of the program without any."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn
from tests.sharding.both import our_mesh

SHAPE = (4, 8)
MESHES = ((8,), (4, 2), (2, 2, 2))


def _laid_out(rng, mesh, shape):
    """A sharding of an array that the mesh allows, drawn."""
    free, entries = list(mesh.axis_names), []
    rng.shuffle(free)
    for n in shape:
        taken = []
        while free and rng.random() < 0.6 and n % mesh.shape[free[-1]] == 0:
            n //= mesh.shape[free[-1]]
            taken.append(free.pop())
        entries.append(tuple(taken) or None)
    return gf.NamedSharding(mesh, gf.P(*entries))


@gf.custom_vjp
def _clipped(x):
    return jnp.sin(x) * 2.0


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, ct: (ct * jnp.cos(x) * 2.0,))


@gf.custom_jvp
def _bent(x):
    return jnp.tanh(x)


_bent.defjvp(lambda xs, ts: (_bent(xs[0]), ts[0] * (1.0 - _bent(xs[0]) ** 2)))


def _scanned(x, y):
    def step(c, row):
        c = jnp.tanh(c + row)
        return c, c * row

    c, ys = lax.scan(step, jnp.zeros_like(x[0]), x)
    return ys * c + y[:1]


def _scanned_const(x, y):
    step = lambda c, _: (jnp.sin(c @ y.T @ y * 0.1 + x), c[0])
    c, rows = lax.scan(step, x, None, length=3)
    return c + rows.sum(0)


def _looped(x, y):
    return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c * y + x.sum(0)), x)


def _while(x, y):
    stop = lax.stop_gradient
    n = lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) > 1.0, lambda c: c * 0.5, stop(y))
    return x * jnp.sum(n) + y


# Functions of two arrays to one, all of SHAPE.
STEPS = {
    "add": lambda x, y: x + y * 0.5,
    "mul": lambda x, y: jnp.tanh(x) * y,
    "where": lambda x, y: jnp.where(x > y, x, -y),
    "maximum": lambda x, y: jnp.maximum(x, y) - 0.3,
    "scalar": lambda x, y: x * jnp.sum(jnp.sin(y)) * 0.1,
    "rows": lambda x, y: x - y.mean(1, keepdims=True),
    "columns": lambda x, y: x * y.max(0) + y.min(axis=0),
    "var": lambda x, y: (x - x.mean()) / (1.0 + y.var()),
    "prod": lambda x, y: x + jnp.prod(jnp.tanh(y) + 1.1, axis=1, keepdims=True) * 0.1,
    "transpose": lambda x, y: (x.T * 2.0).T + y,
    "reshape": lambda x, y: (x.reshape(32) + y.reshape(2, 16).reshape(-1)).reshape(SHAPE),
    "reshape3": lambda x, y: (
        x.reshape(4, 2, 4) * y.reshape(2, 2, 8).reshape(4, 2, 4)).reshape(SHAPE),
    "reshape1": lambda x, y: x.reshape(1, 4, 1, 8)[0, :, 0] + y.reshape(8, 4).T,
    "broadcast": lambda x, y: jnp.broadcast_to(x[:, :1], SHAPE) + y[0],
    "broadcast3": lambda x, y: (x[:, None, :] * y[None, :, :]).sum(1),
    "dot": lambda x, y: jnp.tanh(x @ y.T) @ x,
    "dot2": lambda x, y: x @ (y.T @ y) * 0.1,
    "einsum": lambda x, y: jnp.einsum("ij,kj->ik", x, y) @ y * 0.1,
    "batched": lambda x, y: jnp.einsum(
        "bij,bjk->bik", x.reshape(4, 2, 4), y.reshape(4, 4, 2)).reshape(4, 4) @ x * 0.1,
    "batched2": lambda x, y: jnp.einsum("ij,ij->i", x, y)[:, None] * x,
    "outer": lambda x, y: jnp.einsum("i,j->ij", x[:, 0], y[1]),
    "concatenate": lambda x, y: jnp.concatenate([x[:, 4:], y[:, :4]], 1),
    "concatenate0": lambda x, y: jnp.concatenate([x, y], 0)[2:6],
    "slice": lambda x, y: jnp.pad(x[1:, 2:], ((0, 1), (2, 0))) + y[::-1],
    "strided": lambda x, y: jnp.repeat(x[::2], 2, 0) + y,
    "dynamic": lambda x, y: lax.dynamic_update_slice(
        x, lax.dynamic_slice(y, (1, 2), (2, 3)), (2, 1)),
    "gather": lambda x, y: x[jnp.array([3, 0, 0, 2])] + y[:, jnp.arange(8)[::-1]],
    "take": lambda x, y: jnp.take_along_axis(x, jnp.argsort(y, 1), 1),
    "scatter": lambda x, y: x.at[jnp.array([1, 1])].add(y[:2]).at[0, 3].set(y[1, 1]),
    "cumsum": lambda x, y: jnp.cumsum(x, 1) + jnp.cumsum(y, 0),
    "cumprod": lambda x, y: jnp.cumprod(jnp.cos(x), 0) * y,
    "sort": lambda x, y: jnp.sort(x, 0) + jnp.sort(y, 1),
    "argmax": lambda x, y: x * (jnp.argmax(y, 1)[:, None] + 1),
    "softmax": lambda x, y: nn.softmax(x, 1) * y + nn.softmax(y, 0),
    "logsumexp": lambda x, y: x + nn.logsumexp(y, axis=1, keepdims=True),
    "norm": lambda x, y: nn.silu(x) / jnp.linalg.norm(y, axis=1, keepdims=True),
    "attention": lambda x, y: nn.dot_product_attention(
        x.reshape(1, 4, 2, 4), y.reshape(1, 4, 2, 4), x.reshape(1, 4, 2, 4)).reshape(SHAPE),
    "cond": lambda x, y: lax.cond(
        jnp.sum(x) > 0, lambda x, y: x * y, lambda x, y: y - x.sum(), x, y),
    "switch": lambda x, y: lax.switch(
        jnp.argmax(y[:3, 0]), [lambda x: x @ y.T @ y, jnp.sin, lambda x: x.sum(0) + x], x),
    "scan": _scanned,
    "scan_const": _scanned_const,
    "fori": _looped,
    "vmap": lambda x, y: gf.vmap(lambda r, s: jnp.outer(r, s).sum(0) * 0.1)(x, y),
    "map": lambda x, y: lax.map(lambda r: r * r[0], x) + y,
    "jit": lambda x, y: gf.jit(lambda x, y: jnp.tanh(x - y) @ y.T @ x)(x, y) * 0.1,
    "checkpoint": lambda x, y: gf.checkpoint(lambda x, y: jnp.sin(x @ y.T) @ y)(x, y) * 0.3,
    "custom_vjp": lambda x, y: _clipped(x) + y,
    "custom_jvp": lambda x, y: _bent(x * y),
    "triangle": lambda x, y: jnp.tril(x) + jnp.triu(y, 1),
    "roll": lambda x, y: jnp.roll(x, 1, 0) + jnp.roll(y, 3, 1),
    "stack": lambda x, y: jnp.stack([x, y], 1)[:, 1] + jnp.stack([x, y], 2).sum(2),
    "astype": lambda x, y: (x * 3).astype("int32").astype("float64") + y,
    "iota": lambda x, y: x + lax.broadcasted_iota("float64", SHAPE, 1) * y * 0.1,
    "split": lambda x, y: sum(jnp.split(x, 2, 1)).sum(1, keepdims=True) + y,
    "complex": lambda x, y: jnp.real(jnp.exp(1j * x)) + jnp.abs(x + 1j * y),
    "integers": lambda x, y: x * ((y > 0).astype("int32").sum(0) // 2 + jnp.sum(y > 0)),
    "while": _while,
}  # fmt: skip
WITHOUT_REVERSE = {"while"}


def check(rng, shape, f, reverse=True):
    """`f` of arrays laid out at random, against `f` of plain arrays: values, gradients, layouts."""
    mesh = our_mesh(*shape)
    x, y = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    plain = [gf.device_put(v) for v in (jnp.array(x, "float64"), jnp.array(y, "float64"))]
    where = [_laid_out(rng, mesh, SHAPE) for _ in range(3)]
    placed = [gf.device_put(v, s) for v, s in zip(plain, where)]
    loss = lambda x, y: jnp.sum(jnp.sin(f(x, y)))

    wanted = f(*plain)
    got = gf.jit(f, out_shardings=where[2])(*placed)
    assert got.sharding == where[2]
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10, err_msg=f"{where}")
    for d, index in where[2].devices_indices_map(SHAPE).items():
        part = next(s for s in got.addressable_shards if s.device is d)
        np.testing.assert_array_equal(part.data, np.asarray(got)[index])
    if reverse:
        grads = gf.jit(gf.grad(loss, argnums=(0, 1)), out_shardings=(where[0], where[2]))(*placed)
        assert [g.sharding for g in grads] == [where[0], where[2]]
        for a, b in zip(grads, gf.grad(loss, argnums=(0, 1))(*plain)):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{where}")


@pytest.mark.parametrize("name", STEPS)
def test_each_kind_of_operation(name):
    for i, shape in enumerate(MESHES):
        rng = np.random.default_rng([i, *map(ord, name)])
        check(rng, shape, STEPS[name], name not in WITHOUT_REVERSE)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    rng = np.random.default_rng(seed)
    names = [n for n in STEPS if n not in WITHOUT_REVERSE]
    chosen = [(names[rng.integers(len(names))], *rng.integers(0, i + 2, 2)) for i in range(4)]

    def f(x, y):
        values = [x, y]
        for name, i, j in chosen:
            v = jnp.tanh(STEPS[name](values[i], values[j]))
            values.append(v)
        return values[-1] + values[-2]

    check(rng, MESHES[seed % 3], f)


@pytest.mark.parametrize("name", [n for n in STEPS if n not in ("scan", "scan_const")])
def test_eager_operations(name):
    rng = np.random.default_rng([9, *map(ord, name)])
    mesh = our_mesh(4, 2)
    x, y = [jnp.array(rng.normal(size=SHAPE), "float64") for _ in range(2)]
    placed = [gf.device_put(v, _laid_out(rng, mesh, SHAPE)) for v in (x, y)]
    got = STEPS[name](*placed)
    assert type(got.sharding) is gf.NamedSharding and got.sharding.mesh == mesh
    np.testing.assert_allclose(got, STEPS[name](x, y), rtol=1e-10, atol=1e-10)
