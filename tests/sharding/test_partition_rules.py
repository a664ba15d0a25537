"""Each rule of the partitioner, for operands laid out at random: the values of one device. Where
rows are divided and an operation takes rows by themselves, no device communicates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import P, errors, lax, nn, random, tree
from genesis_fn.extend import take_rows
from tests.sharding.test_partition_models import collectives

RNG = np.random.default_rng(0)
X, M = RNG.normal(size=(8, 16, 8)).astype("f4"), RNG.normal(size=(16, 8)).astype("f4")
V, I = RNG.normal(size=(8, 8, 8)).astype("f4"), RNG.integers(0, 16, (8, 8)).astype("i4")
S = X @ X.transpose(0, 2, 1) + 20 * np.eye(16, dtype="f4")
TABLE, ROWS = RNG.normal(size=(512, 8)).astype("f4"), RNG.integers(0, 512, (8, 8)).astype("i4")


def _conv(x: Any, m: Any) -> Any:
    kernel = m[:8, :, None] * jnp.ones((1, 1, 3))
    return lax.conv_general_dilated(jnp.swapaxes(x, 1, 2), kernel, (1,), "SAME")


def _pooled(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")


def _loop(x: Any, m: Any) -> Any:
    return lax.scan(lambda c, v: (jnp.tanh(c @ m.T @ m + v), c), jnp.zeros((16, 8)), x)


def _squares(f: Callable[..., Any], *at: int) -> Callable[..., Any]:
    """The gradient of the sum of the squares of what `f` gives."""
    return gf.grad(lambda *xs: jnp.sum(jnp.square(tree.leaves(f(*xs))[-1])), at)


# What takes rows of its operands by themselves, the first dimension of each.
BY_ROWS: dict[str, tuple[Any, ...]] = {
    "slice": (lambda x: x[:, 2:10:2], X),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 0))), X),
    "concatenate": (lambda x, v: jnp.concatenate([x, v], 1), X, V),
    "split": (lambda x: jnp.split(x, 2, 1), X),
    "rev": (lambda x: x[:, ::-1], X),
    "elements": (gf.vmap(lambda x, i: x[i]), X, I),
    "gradient of elements": (
        lambda x, i: _squares(lambda x: gf.vmap(lambda x, i: x[i])(x, i), 0)(x), X, I,
    ),
    "cumsum": (lambda x: jnp.cumsum(x, 1), X),
    "cummax": (lambda x: lax.cummax(x, 2), X),
    "sort": (lambda x: jnp.sort(x, 1), X),
    "top_k": (lambda x: lax.top_k(x, 3), X),
    "prod": (lambda x: jnp.prod(x, 1), X),
    "argmax": (lambda x: jnp.argmax(x, 1), X),
    "any": (lambda x: (x > 1).any(1), X),
    "reshape": (lambda x: jnp.reshape(jnp.reshape(x, (128, 8)) + 1, (8, 4, 32)), X),
    "counts": (lambda x: x + jnp.arange(8.0)[:, None, None] + jnp.arange(16)[:, None], X),
    "fft": (lambda x: jnp.fft.fft(x, axis=1).real, X),
    "windows": (_pooled, X),
    "gradient of windows": (lambda x: _squares(_pooled, 0)(x), X),
    "cholesky": (jnp.linalg.cholesky, S),
    "solve": (jnp.linalg.solve, S, X),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int16), X),
    "softmax": (lambda x: nn.softmax(x, 1), X),
    "dot": (lambda x, v: jnp.einsum("btd,bud->btu", x, v), X, V),
    "while": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, jnp.ones(x.shape))
        ),
        X,
    ),
}  # fmt: skip

OTHERS: dict[str, tuple[Any, ...]] = {
    "slice rows": (lambda x: x[1:3, ::2, :4], X),
    "take along": (lambda x, i: jnp.take_along_axis(x, i[..., None], 1), X, I),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (0, i[0, 0], 0), (8, 4, 8)), X, I),
    "dynamic_update_slice": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i[0, 0], 0)), X, V, I,
    ),
    "take": (lambda t, i: jnp.take(t, i, axis=0), M, I),
    "take clip": (lambda t, i: jnp.take(t, i * 3 - 8, axis=0, mode="clip"), M, I),
    "take fill": (lambda t, i: jnp.take(t, i * 3 - 8, axis=0, mode="fill", fill_value=7), M, I),
    "gradient of take": (lambda t, i: _squares(lambda t: jnp.take(t, i, axis=0), 0)(t), M, I),
    "few of a table": (lambda t, i: take_rows(jnp.reshape(t, (128, 8)), i[0, :4]), X, I),
    "rows of a long table": (take_rows, TABLE, ROWS),
    "gradient of rows of a long table": (_squares(lambda t, i: take_rows(t, i), 0), TABLE, ROWS),
    "take at known indices": (lambda t: t[np.arange(1, 16, 2)] * 2, M),
    "add at": (lambda m, i, v: m.at[i].add(v), M, I, V),
    "set at": (lambda m, i: m.at[i[0]].set(0.0), M, I),
    "max at": (lambda m, i, v: m.at[i].max(v), M, I, V),
    "all": (lambda x: (x > -1).all((0, 2)), X),
    "xor": (lambda i: lax.reduce(i, 0, lax.bitwise_xor, (0,)), I),
    "max": (lambda x: jnp.max(x, (0, 1)), X),
    "variance": (lambda x: jnp.var(x, 1), X),
    "dot of two": (lambda x, m: jnp.einsum("btd,td->bt", x, m), X, M),
    "dot from the right": (lambda m, x: jnp.einsum("ud,btd->utb", m, x), M, X),
    "split rows": (lambda x: jnp.reshape(x, (2, 4, 2, 8, 8)), X),
    "where": (lambda x, m: jnp.where(m > 0, x, 0.0), X, M),
    "conv": (_conv, X, M),
    "gradient of conv": (_squares(_conv, 0, 1), X, M),
    "scan": (_loop, X, M),
    "gradient of scan": (_squares(_loop, 0, 1), X, M),
    "cond": (lambda x, m: lax.cond(m[0, 0] > 0, lambda: x * 2, lambda: jnp.zeros(x.shape)), X, M),
    "random": (lambda x: x + random.normal(random.key(0), x.shape), X),
    "ragged": (lambda x, m: lax.ragged_dot(m, x[:, :8], jnp.full((8,), 2, jnp.int32)), X, M),
    "sums added": (lambda x, m: jnp.sum(x, 0) + m @ m.T @ m + jnp.zeros((16, 8)), X, M),
    "sum less": (lambda x, m: jnp.sum(x, 0) - m, X, M),
    "sum used often": (lambda x: (lambda s: s * s + s * 2 - s / 3)(jnp.sum(x, 0)), X),
    "sum moved": (lambda x: jnp.sum(x, 0).reshape(4, 4, 8).transpose(2, 0, 1) + 1, X),
}  # fmt: skip


def layouts(mesh: Any, x: np.ndarray) -> list[gf.NamedSharding]:
    """All layouts of an array over a mesh of two axes."""
    found = []
    for axes in itertools.product([(), ("a",), ("b",), ("a", "b"), ("b", "a")], repeat=x.ndim):
        names = [n for each in axes for n in each]
        sizes = [math.prod(mesh.shape[n] for n in each) for each in axes]
        if len(set(names)) == len(names) and not any(n % k for n, k in zip(x.shape, sizes)):
            found.append(gf.NamedSharding(mesh, P(*axes)))
    return found


@pytest.mark.parametrize("name", [*BY_ROWS, *OTHERS])
def test_values(name: str) -> None:
    f, *args = (BY_ROWS | OTHERS)[name]
    mesh, rng = gf.make_mesh((4, 2), ("a", "b")), np.random.default_rng(len(name))
    wanted = tree.leaves(gf.jit(f)(*args))
    for _ in range(4):
        at = [rng.choice(np.array(layouts(mesh, x), object)) for x in args]
        found = tree.leaves(gf.jit(f)(*map(gf.device_put, args, at)))
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4, err_msg=str(at))


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_stay_where_they_are(name: str) -> None:
    f, *args = BY_ROWS[name]
    rows = gf.NamedSharding(gf.make_mesh((8,), ("a",)), P("a"))
    args = [gf.device_put(x, rows) for x in args]
    assert not collectives(f, *args)
    assert all(x.sharding == rows for x in tree.leaves(gf.jit(f)(*args)) if x.ndim)


def test_rows_of_a_table_that_is_divided_as_the_indices_are_sent_alone() -> None:
    rows = gf.NamedSharding(gf.make_mesh((8,), ("a",)), P("a"))
    table, indices = gf.device_put(TABLE, rows), gf.device_put(ROWS, rows)
    assert list(collectives(take_rows, table, indices)) == [
        "forward all_gather a parameters", "forward psum_scatter a parameters",
    ]  # fmt: skip
    np.testing.assert_array_equal(gf.jit(take_rows)(table, indices), TABLE[ROWS])
    short = gf.device_put(TABLE[:64], rows)
    assert list(collectives(take_rows, short, indices)) == ["forward all_gather a parameters"]


def test_indices_into_a_divided_table_are_checked() -> None:
    rows = gf.NamedSharding(gf.make_mesh((8,), ("a",)), P("a"))
    table = gf.device_put(np.arange(1600.0, dtype="f4").reshape(200, 8), rows)
    take = gf.jit(take_rows)
    np.testing.assert_array_equal(take(table, jnp.array([3, 199]))[:, 0], [24, 1592])
    assert list(collectives(take_rows, table, gf.device_put(I, gf.NamedSharding(rows.mesh)))) == [
        "forward psum a parameters"
    ]
    for bad in (200, -1):
        with pytest.raises(errors.IndexOutOfRange):
            take(table, jnp.array([3, bad]))
