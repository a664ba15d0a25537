"""Gathers, rows of tables and dynamic slices that generated kernels do themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.loop_ir.kernel import KernelIR
from genesis_fn.compiler.options import without
from genesis_fn.kernels.plan import Launch
from tests.cuda import programs


def results(f: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    jaxpr, inputs = programs.traced(f, *args)
    executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
    return [programs.get(y) for y in executable(*map(programs.put, inputs))]


def launched(f: Callable[..., Any], *args: Any) -> list[str]:
    """The names of a program's launches."""
    jaxpr, _ = programs.traced(f, *args)
    executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
    found: list[str] = []
    for step in executable.schedule.steps:
        inner = step.steps if isinstance(step, SubProgram) else (step,)
        found += [getattr(s.kernel, "name", "kernel") for s in inner if isinstance(s, Launch)]
    return found


def normal(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(kind)


def integers(high: int, *shape: int, low: int = 0, kind: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(1).integers(low, high, shape).astype(kind)


# ---- what is looked up, against JAX ----

FORMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "rows": (lambda np_, x, i: np_.sin(x[i]) * 2, lambda: (normal(50, 12), integers(50, 7))),
    "rows from the end": (
        lambda np_, x, i: np_.sin(x[i]) * 2, lambda: (normal(50, 12), integers(50, 9, low=-50)),
    ),
    "sums over bags": (
        lambda np_, x, i: np_.sum(x[i], axis=1), lambda: (normal(50, 12), integers(50, 7, 3)),
    ),
    "long sums": (
        lambda np_, x, i: np_.sum(x[i] * x[i], axis=0),
        lambda: (normal(50, 12), integers(50, 700)),
    ),
    "means of rows": (
        lambda np_, x, i: x[i] - np_.mean(x[i], axis=-1, keepdims=True),
        lambda: (normal(50, 300), integers(50, 7)),
    ),
    "columns": (
        lambda np_, x, i: x[:, i] * np_.arange(3), lambda: (normal(40, 9), integers(9, 3)),
    ),
    "one column": (lambda np_, x, i: x[:, i] * 2 + 1, lambda: (normal(40, 9), np.int32(4))),
    "pairs": (
        lambda np_, x, i, j: np_.exp(x[i, :, j]),
        lambda: (normal(7, 5, 8), integers(7, 6), integers(8, 6)),
    ),
    "along an axis": (
        lambda np_, x, i: np_.take_along_axis(x, i, axis=1) + 1,
        lambda: (normal(11, 9), integers(9, 11, 4)),
    ),
    "of a padded array": (
        lambda np_, x, i: np_.take(np_.pad(x, ((0, 0), (3, 4))) * 2, i, axis=1) + 1,
        lambda: (normal(5, 20), integers(27, 6)),
    ),
    "of lookups": (
        lambda np_, x, i, j: x[i[j]] * 3,
        lambda: (normal(30), integers(30, 20), integers(20, 9)),
    ),
    "small integers": (
        lambda np_, x, i: x[i] + 1, lambda: (normal(100), integers(100, 9, low=-100, kind=np.int8)),
    ),
    "unsigned": (lambda np_, x, i: x[i] + 1, lambda: (normal(30), integers(30, 9, kind=np.uint32))),
    "of integers": (
        lambda np_, x, i: x[i] * 3, lambda: (integers(99, 30, 4, low=-99), integers(30, 9)),
    ),
    "of booleans": (
        lambda np_, x, i: np_.where(x[i], 2.5, -1.0), lambda: (normal(30) > 0, integers(30, 9)),
    ),
    "of halves": (
        lambda np_, x, i: x[i] * 3,
        lambda: (normal(30, 4, kind=ml_dtypes.bfloat16), integers(30, 9)),
    ),
    "joined": (
        lambda np_, x, i, j: np_.concatenate([x[i] + 1, x[j] * 2]),
        lambda: (normal(30, 4), integers(30, 9), integers(30, 5)),
    ),
    "turned": (
        lambda np_, x, i: np_.tanh(x[i]).T, lambda: (normal(200, 70), integers(200, 130)),
    ),
    "computed places": (
        lambda np_, x, y: x[np_.abs(y).astype(np.int32) % 30] * 2,
        lambda: (normal(30), 9 * normal(50)),
    ),
    "frames": (
        lambda np_, x: x[:, 4 * np_.arange(9)[:, None] + np_.arange(8)] * np_.arange(8),
        lambda: (normal(3, 40),),
    ),
    "fills": (
        lambda np_, x, i: x.at[i].get(mode="fill", fill_value=7.0) * 2,
        lambda: (normal(30, 4), integers(60, 20, low=-60)),
    ),
    "fills with NaN": (
        lambda np_, x, i: x.at[i].get(mode="fill") * 2, lambda: (normal(30, 4), integers(60, 20)),
    ),
    "clips": (
        lambda np_, x, i: x.at[i].get(mode="clip") * 2,
        lambda: (normal(30, 4), integers(90, 20, low=-60)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, bodies: list[KernelIR]) -> None:
    f, inputs = FORMS[form]
    args = inputs()
    got = results(lambda *xs: f(gnp, *xs), *args)
    want = f(jnp, *[jnp.asarray(x) for x in args])
    np.testing.assert_allclose(
        got[0].astype(np.float64), np.asarray(want, np.float64), rtol=2e-5, atol=1e-5
    )
    assert len(bodies) <= 2


@pytest.mark.parametrize("form", [n for n in FORMS if n not in ("means of rows", "of lookups")])
def test_one_launch(form: str) -> None:
    f, inputs = FORMS[form]
    args, call = inputs(), lambda *xs: f(gnp, *xs)
    assert len(launched(call, *args)) == 1
    with without("lookups"):
        assert len(launched(call, *args)) > 1


def test_frames_are_plain_loads(bodies: list[KernelIR]) -> None:
    f, inputs = FORMS["frames"]
    results(lambda *xs: f(gnp, *xs), *inputs())
    assert not bodies[0].starts


def sliced(np_: Any, lax_: Any, x: Any, i: Any, j: Any) -> Any:
    return np_.sum(lax_.dynamic_slice(np_.tanh(x), (i, j), (5, x.shape[1] - 2)) ** 2, axis=-1)


@pytest.mark.parametrize("start", [(0, 0), (3, 1), (-2, -1), (99, 99), (-99, -99)], ids=str)
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.uint8], ids=str)
def test_dynamic_slices(start: tuple[int, int], kind: Any) -> None:
    x, (i, j) = normal(17, 150), np.asarray(start).astype(kind)
    (got,) = results(lambda *xs: sliced(gnp, lax, *xs), x, i, j)
    # JAX adds the length to a negative start in the start's dtype, where 150 is no int8.
    want = sliced(jnp, jax.lax, jnp.asarray(x), jnp.asarray(i, np.int32), jnp.asarray(j, np.int32))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    assert len(launched(lambda *xs: sliced(gnp, lax, *xs), x, i, j)) == 1


def test_a_loop_slices_in_its_kernels() -> None:
    x = normal(9, 64)

    def f(xp: Any, lax_: Any, x: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            row = lax_.dynamic_index_in_dim(x, i, keepdims=False)
            return c - (row @ c) * row / 64

        return lax_.fori_loop(0, 9, body, xp.ones(64, np.float32))

    (got,) = results(lambda x: f(gnp, lax, x), x)
    np.testing.assert_allclose(got, f(jnp, jax.lax, jnp.asarray(x)), rtol=1e-4, atol=1e-5)


def test_gradients() -> None:
    x, i, w = normal(30, 8), integers(30, 12), normal(12, 8)

    def f(xp: Any, x: Any, i: Any, w: Any) -> Any:
        y = xp.tanh(x[i] * w)
        return xp.sum(y * y) + xp.sum(x[:, 3] ** 2)

    got = results(
        lambda x, i, w: gf.grad(lambda x, w: f(gnp, x, i, w), argnums=(0, 1))(x, w), x, i, w
    )
    want = jax.grad(lambda x, w: f(jnp, x, i, w), argnums=(0, 1))(jnp.asarray(x), jnp.asarray(w))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


# ---- starts out of bounds ----


@pytest.mark.parametrize("bad", [30, -31, 10**6], ids=str)
@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: gnp.sin(x[i]) * 2,
        lambda x, i: gnp.sum(x[i], axis=0),
        lambda x, i: gnp.concatenate([x[i] + 1, gnp.zeros((3, 4))]),
        lambda x, i: x[i].T * 2,
        lambda x, i: gnp.sum(x[i, 1]),
        lambda x, i: (x[i] * 2)[:2],
    ],
    ids=["map", "sum", "joined", "turned", "pairs", "partly read"],
)
def test_checks(f: Callable[..., Any], bad: int) -> None:
    x, i = normal(30, 4), integers(30, 70)
    i[61] = bad
    with pytest.raises(IndexError, match=re.escape(f"{bad}")):
        results(f, x, i)
    i[61] = 0
    results(f, x, i)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[:1][i] * 2,
        lambda x, i: x[:1][i].sum(-1),
        lambda x, i: x[:1].T[:, i].max(0),
        lambda x, i: gnp.broadcast_to(x[0], (1, 4))[i].sum(-1),
        lambda x, i: gnp.broadcast_to(x[0], (3, 4))[3 * i].sum(-1),
        lambda x, i: gnp.broadcast_to(2.0, (2, 4))[2 * i].sum(-1),
        lambda x, i: gnp.broadcast_to(x[0], (3, 4))[3 * i, i].sum(),
    ],
)
def test_what_does_not_depend_on_its_index_is_checked(f: Callable[..., Any]) -> None:
    x, i = normal(3, 4), np.zeros(70, np.int32)
    want = f(gnp.asarray(x), gnp.asarray(i))
    np.testing.assert_allclose(results(f, x, i)[0], want, rtol=1e-6)
    i[9] = 1
    with pytest.raises(IndexError):
        results(f, x, i)


def test_checks_of_equal_kernels_have_sites_of_their_own() -> None:
    x, i = normal(30, 4), integers(30, 2, 8)

    def f(x: Any, i: Any) -> Any:
        first = gnp.sort(x[i[0]] * 2, axis=0)
        return first, gnp.sort(x[i[1]] * 2, axis=0)

    found = []
    for k in range(2):
        wrong = i.copy()
        wrong[k, 3] = 77
        with pytest.raises(IndexError, match="77") as raised:
            results(f, x, wrong)
        found.append(str(raised.value))
    assert found[0] != found[1]


# ---- who gathers ----


def test_products_read_rows_that_are_gathered() -> None:
    x, i, w = normal(300, 64), integers(300, 70), normal(64, 32)
    f = lambda x, i, w: x[i] @ w
    names = launched(f, x, i, w)
    with without("lookups"):
        assert names == launched(f, x, i, w)


def test_sums_by_segment_gather_themselves() -> None:
    x, i, j, w = normal(30, 8), integers(30, 90), integers(20, 90), normal(90)

    def f(x: Any, i: Any, j: Any, w: Any) -> Any:
        return gf.ops.segment_sum(x[i] * w[:, None], j, 20)

    names = launched(f, x, i, j, w)
    with without("lookups"):
        assert names == launched(f, x, i, j, w)


def test_a_table_that_is_dear_is_computed_once(bodies: list[KernelIR]) -> None:
    x, i = normal(64), integers(64, 1 << 16)
    results(lambda x, i: gnp.exp(gnp.sin(gnp.tanh(x)))[i] * 2, x, i)
    assert len(bodies) == 2


def ratings(np_: Any, grad: Callable[..., Any]) -> Callable[..., Any]:
    """The error of a factorisation, and its derivatives by the rows: each reads them twice."""

    def loss(u: Any, v: Any, r: Any) -> Any:
        error = np_.sum(u * v, -1) - r
        return np_.sum(error * error + 0.1 * np_.sum(u * u + v * v, -1))

    def f(x: Any, i: Any, y: Any, j: Any, r: Any) -> Any:
        return grad(loss, argnums=(0, 1))(x[i], y[j], r)

    return f


def rated() -> tuple[Any, ...]:
    return (
        normal(3000, 64), integers(3000, 20000), normal(500, 64), integers(500, 20000, low=-500),
        normal(20000),
    )  # fmt: skip


def test_rows_that_one_merged_kernel_reads_are_not_stored() -> None:
    given = rated()
    got = results(ratings(gnp, gf.value_and_grad), *given)
    want = jax.tree.leaves(ratings(jnp, jax.value_and_grad)(*given))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    for a, b in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)
    names = launched(ratings(gnp, gf.value_and_grad), *given)
    with without("recompute"):
        assert len(names) == len(launched(ratings(gnp, gf.value_and_grad), *given)) - 2


def test_rows_of_a_merged_kernel_are_checked() -> None:
    given = rated()
    given[3][777] = 500
    with pytest.raises(IndexError, match="500"):
        results(ratings(gnp, gf.value_and_grad), *given)


def test_rows_that_several_kernels_read_are_stored() -> None:
    x, i, w = normal(3000, 64), integers(3000, 20000), normal(64, 64)

    def f(x: Any, i: Any, w: Any) -> Any:
        rows = x[i]
        scaled = rows / gnp.sqrt(gnp.mean(rows * rows, -1, keepdims=True) + 1e-6)
        return rows + gnp.tanh(scaled @ w)

    names = launched(f, x, i, w)
    with without("lookups"):
        assert names == launched(f, x, i, w)


def test_attention_along_the_edges_of_a_graph() -> None:
    """Rows that sums read, and others, in both directions; extremes and sums by row."""
    n, m = 1100, 1500
    x, w, a = normal(n, 16), normal(16, 8), normal(2, 8)
    s, d = integers(n, m), np.random.default_rng(8).integers(0, n, m).astype(np.int32)

    def f(np_: Any, lax_: Any, w: Any, a: Any) -> Any:
        h = np_.tanh(x @ w * 0.1)
        e = (h @ a[0])[s] + (h @ a[1])[d]
        e = np_.where(e > 0, e, 0.2 * e)
        most = np_.full((n,), -1e9, np.float32).at[d].max(lax_.stop_gradient(e))
        z = np_.exp(e - most[d])
        total = np_.zeros((n,), np.float32).at[d].add(z)
        out = np_.zeros((n, 8), np.float32).at[d].add(h[s] * (z / total[d])[:, None])
        return np_.sum(out * out)

    got = results(gf.value_and_grad(lambda w, a: f(gnp, lax, w, a), argnums=(0, 1)), w, a)
    want = jax.tree.leaves(
        jax.value_and_grad(lambda w, a: f(jnp, jax.lax, w, a), argnums=(0, 1))(w, a)
    )
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=5e-3, atol=5e-3 * np.abs(other).max())
