"""Large products whose operands' rows no descriptor can describe read rows that lie apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
import targets

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn.backends.cuda.lower import pitched_products
from genesis_fn.backends.cuda.lower.steps import BufferTable
from genesis_fn.backends.cuda.pipeline import schedule
from genesis_fn.compiler.loop_ir.layouts import pitched_p, pitched_product_p
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200, TARGETS
from genesis_fn.core import tree
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import BF16, F16, F32, I32
from genesis_fn.transforms.staging.stage_trace import stage

pytestmark = pytest.mark.interpreted
rng = np.random.default_rng(3)
KINDS = {"bfloat16": BF16, "float16": F16, "float32": F32}


@pytest.fixture
def always(monkeypatch):
    """Small products are worth it, too."""
    monkeypatch.setattr(pitched_products, "_MARGIN", 0.0)
    monkeypatch.setattr(pitched_products, "_LARGE", 0)


def drawn(*shape: int, kind: str = "bfloat16") -> np.ndarray:
    return rng.standard_normal(shape).astype(KINDS[kind])


def made(f, *args, apart: bool = True) -> list[np.ndarray]:
    """The results of a program with a product on rows that lie apart, or with none."""
    jaxpr, given = programs.traced(f, *args)
    found = pitched_products.pitched_products(simplify_jaxpr(jaxpr), H200)
    assert any([e.prim is pitched_product_p for e in found.eqns]) == apart
    executable = programs.compile_jaxpr(jaxpr, programs.PLACE)
    return [programs.get(v) for v in executable(*map(programs.put, given))]


def planned(f, *avals) -> list[str]:
    """The names of the kernels that compute `f` on an H200."""
    jaxpr = simplify_jaxpr(stage(lambda *xs: tree.leaves(f(*xs)), list(avals))[0])
    table = BufferTable(H200)
    inputs = [table.new(v.aval.nbytes) for v in jaxpr.invars]
    steps = schedule(table, jaxpr, inputs, [None] * len(jaxpr.outs)).steps
    return [_name(x.kernel) for x in targets._launches(steps)]


def _name(kernel) -> str:
    return kernel.name if hasattr(kernel, "name") else kernel.__name__


def rewritten(f, *avals, target=H200) -> list[str]:
    """The primitives of the program that the pass makes of `f`."""
    jaxpr = simplify_jaxpr(stage(lambda *xs: tree.leaves(f(*xs)), list(avals))[0])
    return [e.prim.name for e in pitched_products.pitched_products(jaxpr, target).eqns]


def half(*shape: int):
    return aval(shape, BF16)


LAYOUTS = {
    "nn": lambda x, y: (x, y),
    "nt": lambda x, y: (x, y.T),
    "tn": lambda x, y: (x.T, y),
    "tt": lambda x, y: (x.T, y.T),
}
SIZES = [(131, 129, 137), (129, 67, 71), (265, 259, 263)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(always, layout, sizes, kind):
    m, k, n = sizes
    seen = LAYOUTS[layout]
    x, y = drawn(m, k, kind=kind), drawn(k, n, kind=kind)
    held = [np.ascontiguousarray(v) for v in seen(x, y)]
    # Operands of 32 bits are copied with rows of the contracted axis where they have others.
    apart = kind != "float32" or layout != "tn" or min(sizes) < 128
    (got,) = made(lambda x, y: gnp.matmul(*seen(x, y)), *held, apart=apart)
    want = x.astype(np.float64) @ y.astype(np.float64)
    assert (got.shape, got.dtype) == ((m, n), x.dtype)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=0.1)


@pytest.mark.parametrize("sizes", [((3, 70, 67), (3, 67, 72)), ((2, 3, 66, 33), (2, 3, 33, 65))])
def test_batches(always, sizes):
    x, y = [drawn(*s) for s in sizes]
    (got,) = made(gnp.matmul, x, y)
    want = np.matmul(x.astype(np.float64), y.astype(np.float64))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=0.1)


def test_values_that_are_not_finite_reach_their_rows_and_columns_only(always):
    x, y = drawn(130, 133), drawn(133, 67)
    x[5, 132], x[129, 0], y[132, 66], y[0, 3] = np.inf, np.nan, np.nan, -np.inf
    (got,) = made(gnp.matmul, x, y)
    want = (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float64)
    assert np.isfinite(got.astype(np.float64)).sum() == np.isfinite(want).sum() > 0
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=0.1)


def loss(xp, x, w, labels):
    logits = (x @ w.T).astype(xp.float32)
    top = xp.max(logits, -1, keepdims=True)
    logs = logits - top - xp.log(xp.sum(xp.exp(logits - top), -1, keepdims=True))
    return -xp.mean(xp.take_along_axis(logs, labels[:, None], -1))


@pytest.mark.parametrize("words", [257, 1100])
def test_derivatives_of_a_loss_over_an_odd_number_of_words(always, words):
    x, w = [(0.5 * drawn(n, 64)).astype(BF16) for n in (130, words)]
    labels = rng.integers(0, words, 130).astype(np.int32)
    f = gf.value_and_grad(lambda x, w: loss(gnp, x, w, labels), (0, 1))
    value, dx, dw = made(f, x, w)
    want = jax.value_and_grad(lambda x, w: loss(jnp, x, w, labels), (0, 1))(x, w)
    np.testing.assert_allclose(value, np.asarray(want[0]), rtol=2e-3)
    for got, expected in zip((dx, dw), want[1]):
        expected = np.asarray(expected).astype(np.float64)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2e-2, atol=2e-2 * scale)


def test_what_else_reads_an_operand_reads_it_where_it_is_stored(always):
    x, y, w = drawn(130, 67), drawn(130, 67), drawn(67, 72)

    def f(x, y, w):
        z = x * y + 1
        return z @ w, z.T @ x, gnp.sum(z.astype(gnp.float32), 0), gnp.max(z, 1)

    got = made(f, x, y, w)
    z = (x.astype(np.float32) * y + 1).astype(BF16).astype(np.float64)
    want = z @ w.astype(np.float64), z.T @ x.astype(np.float64), z.sum(0), z.max(1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=3e-2, atol=0.3)
    avals = half(8192, 4097), half(8192, 4097), half(4097, 768)
    assert rewritten(f, *avals).count(pitched_p.name) == 2  # z, which two products read, and x


def test_one_array_serves_both_products_of_a_loss():
    f = gf.grad(lambda x, w, y: loss(gnp, x, w, y), (0, 1))
    avals = half(8192, 768), half(50257, 768), aval((8192,), I32)
    names = rewritten(f, *avals)
    assert names.count(pitched_product_p.name) == 3 and names.count(pitched_p.name) == 1
    kernels = planned(f, *avals)
    assert [k for k in kernels if k.startswith("matmul")] == ["matmul_tma_bf16_bf16"] * 3 + [
        "matmul_reduce"
    ]
    # One pass over the logits makes the loss and the gradient, and nothing copies that.
    assert kernels.count("loop") == 1


def test_an_epilogue_stays_one(always):
    w, b = drawn(67, 72), drawn(72)
    f = lambda x, w, b: gnp.maximum(x @ w + b, 0)
    x = drawn(136, 67)
    (got,) = made(f, x, w, b)
    want = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b.astype(np.float64), 0)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=0.1)
    assert (
        "pointwise"
        not in planned(lambda x, w: gnp.maximum(x * 2 @ w, 0), half(8192, 4097), half(4097, 4096))[
            1:
        ]
    )


def test_results_that_kernels_reduce_have_rows_apart(always):
    x, y, z = drawn(130, 64), drawn(64, 67), drawn(64, 5, 9)

    def f(x, y, z):
        a, b = x @ y, gnp.tensordot(x, z, 1)
        return gnp.max(a, -1), gnp.sum(gnp.exp(a / 8), 0), gnp.sum(b, -1), gnp.max(b, (0, 1))

    avals = half(130, 64), half(64, 67), half(64, 5, 9)
    # Of the second one, columns are two axes, whose rows cannot both lie apart.
    assert rewritten(lambda x, y, z: f(x, y, z)[:2], *avals).count(pitched_product_p.name) == 1
    assert pitched_product_p.name not in rewritten(lambda x, y, z: f(x, y, z)[2:], *avals)
    got = made(f, x, y, z)
    a = (x.astype(np.float32) @ y.astype(np.float32)).astype(BF16).astype(np.float64)
    b = np.tensordot(x.astype(np.float32), z.astype(np.float32), 1).astype(BF16)
    b = b.astype(np.float64)
    want = a.max(-1), np.exp(a / 8).sum(0), b.sum(-1), b.max((0, 1))
    for v, w in zip(got, want, strict=True):
        np.testing.assert_allclose(v.astype(np.float64), w, rtol=3e-2, atol=0.3)


def test_a_result_that_is_not_reduced_keeps_its_epilogue(always):
    def gate(x, w):
        z = x @ w.T
        return gnp.tanh(z) * z

    avals = half(8192, 768), half(4097, 768)
    assert pitched_product_p.name not in rewritten(gate, *avals)
    assert [k[:6] for k in planned(gate, *avals)] == ["matmul"]


def test_products_that_stay_as_they_are():
    matmul = lambda x, y: gnp.matmul(x, y)
    assert pitched_product_p.name in rewritten(matmul, half(8192, 50257), half(50257, 768))
    same = ["dot_general"]
    # Aligned, small, of few rows, of an operand that would take longer to copy, of other targets.
    assert rewritten(matmul, half(8192, 50264), half(50264, 768)) == same
    assert rewritten(matmul, half(512, 513), half(513, 512)) == same
    assert rewritten(matmul, half(8, 768), half(768, 50257)) == same
    assert rewritten(matmul, half(1 << 20, 65), half(65, 64)) == same
    big = half(8192, 50257), half(50257, 768)
    assert rewritten(matmul, *big, target=TARGETS["A100"]) == same
    # Rows of several axes, which would not lie at one stride.
    both = lambda x, y: gnp.tensordot(x, y, 2)
    assert pitched_p.name not in rewritten(both, half(8192, 50, 1001), half(50, 1001, 768))


def test_empty_arrays(always):
    for m, k, n in ((0, 67, 65), (130, 0, 65), (130, 67, 0)):
        jaxpr, given = programs.traced(gnp.matmul, drawn(m, k), drawn(k, n))
        (out,) = programs.compile_jaxpr(jaxpr, programs.PLACE)(*map(programs.put, given))
        np.testing.assert_array_equal(programs.get(out), np.zeros((m, n), BF16))
