"""while_loop, fori_loop, map and associative_scan against JAX."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.core.configuration.settings import disable_jit
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, linearize
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.associative import associative_scan
from genesis_fn.transforms.control_flow.loops import fori_loop, map as map_, while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp
from tests.transforms.both import FORWARD, OURS, agree, agree_under, normal, ours

X, V = normal(5, 3), np.abs(normal(4, seed=2)) + 0.5

WHILES = {
    "doubling": lambda m, x: m.while_loop(lambda v: m.np.sum(m.np.abs(v)) < 50, lambda v: v * 2, x),
    "counter": lambda m, x: m.while_loop(
        lambda c: c[0] < 4, lambda c: (c[0] + 1, m.np.sin(c[1]) * x), (0, x)
    )[1],
    "never": lambda m, x: m.while_loop(lambda v: v[0] > 1e9, lambda v: v * 2, x),
    "closure in the condition": lambda m, x: m.while_loop(
        lambda v: m.np.sum(v) < m.np.sum(x) + 9, lambda v: v + m.np.abs(x) * 0.5, m.np.zeros_like(x)
    ),
    "tangent reaches late": lambda m, x: m.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[2], x * c[1] + c[2]),
        (0, m.np.ones_like(x), m.np.ones_like(x)),
    )[1:],
    "dictionary": lambda m, x: m.while_loop(
        lambda d: d["n"] < 3, lambda d: {"n": d["n"] + 1, "v": m.np.cos(d["v"])}, {"n": 0, "v": x}
    )["v"],
}  # fmt: skip


@pytest.mark.parametrize("name", WHILES)
def test_while_loops(name):
    agree_under(WHILES[name], V, stacks=FORWARD)


def test_batched_predicates():
    def newton(m, x):
        """Square roots, each to its own number of steps."""
        return m.while_loop(
            lambda c: m.np.abs(c[0] * c[0] - x) > 1e-9,
            lambda c: (0.5 * (c[0] + x / c[0]), c[1] + 1),
            (x, 0),
        )

    agree(lambda m, x: m.vmap(lambda v: newton(m, v))(x), V * 10)
    agree(lambda m, x: m.vmap(lambda v: m.jvp(lambda u: newton(m, u)[0], (v,), (v,)))(x), V * 10)
    agree(lambda m, x: m.jit(m.vmap(m.vmap(lambda v: newton(m, v))))(x), np.abs(X) + 0.1)

    def limits(m, n, x):
        f = lambda k, v: m.while_loop(lambda c: c[0] < k, lambda c: (c[0] + 1, c[1] * v), (0, v))
        return m.vmap(f, (0, None))(n, x)

    agree(limits, np.array([0, 3, 1]), V)


def test_carry_becomes_batched_by_the_body():
    def f(m, x, y):
        body = lambda c: (c[0] + 1, c[2] * y, c[1] + x)
        return m.while_loop(lambda c: c[0] < 3, body, (0, x, x))

    agree(lambda m, x, y: m.vmap(lambda v: f(m, x[0], v))(y), V, V)


def test_reverse_mode_says_what_to_use():
    f = lambda x: while_loop(lambda v: v < 9, lambda v: v * 2, x)
    with pytest.raises(errors.NotDifferentiableError, match="use scan, or fori_loop"):
        grad(f)(1.0)
    assert float(jvp(f, (1.0,), (1.0,))[1]) == 16.0


FORIS = {
    "static": lambda m, x: m.fori_loop(0, 4, lambda i, v: m.np.sin(v) * x + i, x),
    "empty": lambda m, x: m.fori_loop(3, 3, lambda i, v: v * 2, x),
    "backwards": lambda m, x: m.fori_loop(3, 0, lambda i, v: v * 2, x),
    "offset": lambda m, x: m.fori_loop(2, 5, lambda i, v: v + x[i - 2] * i, x),
    "unrolled": lambda m, x: m.fori_loop(0, 3, lambda i, v: v * x + i, x, unroll=True),
    "nested": lambda m, x: m.fori_loop(
        0, 2, lambda i, v: m.fori_loop(0, 3, lambda j, u: u * 0.9 + i * j, v), x
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORIS)
def test_fori_loops(name):
    stacks = ("value", "jvp", "grad", "reverse over reverse", "vmap(grad)")
    agree_under(FORIS[name], V, stacks=stacks)


def test_fori_with_traced_bounds():
    f = lambda m, n, x: m.jit(lambda k: m.fori_loop(0, k, lambda i, v: v * 2 + i, x))(n)
    agree(f, np.array(4), V)
    agree(
        lambda m, n, x: m.vmap(lambda k: m.fori_loop(0, k, lambda i, v: v * 2, x))(n),
        np.array([0, 1, 5]),
        V,
    )
    agree(
        lambda m, n, x: m.jvp(lambda v: m.fori_loop(0, n, lambda i, u: u * v, v), (x,), (x,)),
        np.array(3),
        V,
    )


def test_maps():
    f = lambda m: lambda v: {"s": m.np.sin(v).sum(), "v": v * 2}
    agree(lambda m, x: m.map(f(m), x), X)
    for size in (1, 2, 3, 5, 9):
        agree(lambda m, x, size=size: m.map(f(m), x, batch_size=size), X)
    agree(lambda m, x: m.map(lambda p: p["a"] * p["b"], {"a": x, "b": x[:, 0]}, batch_size=2), X)
    agree(lambda m, x: m.grad(lambda v: m.map(f(m), v, batch_size=2)["s"].sum())(x), X)


SCANS = {
    "sum": lambda m, x, **o: m.associative_scan(m.np.add, x, **o),
    "product": lambda m, x, **o: m.associative_scan(lambda a, b: a * b, x, **o),
    "max": lambda m, x, **o: m.associative_scan(m.np.maximum, x, **o),
    "or": lambda m, x, **o: m.associative_scan(m.np.logical_or, x > 0.3, **o),
    "affine": lambda m, x, **o: m.associative_scan(
        lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (x * 0.5, x), **o
    ),
    "matrices": lambda m, x, **o: m.associative_scan(
        lambda a, b: m.np.einsum("...ij,...jk->...ik", a, b), m.np.stack([x] * 3, -1), **o
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCANS)
def test_associative_scans(name):
    for n in (1, 2, 3, 4, 5, 8):
        x = normal(n, 3, seed=n)
        agree(lambda m, v: SCANS[name](m, v), x)
    agree(lambda m, v: SCANS[name](m, v, reverse=True), X)
    if name in ("sum", "affine", "or", "max"):
        agree(lambda m, v: SCANS[name](m, v, axis=1), X)
        agree(lambda m, v: SCANS[name](m, v, axis=1, reverse=True), X)


def test_associative_scan_transforms():
    stacks = ("jvp", "grad", "reverse over reverse", "vmap", "grad(vmap)")
    agree_under(lambda m, x: SCANS["affine"](m, x), X, stacks=stacks)


@pytest.mark.parametrize("name", SCANS)
def test_long_associative_scans_in_programs(name):
    def scanned(m, v, **options):
        return m.jit(lambda v: SCANS[name](m, v, **options))(v)

    agree(scanned, normal(33, 3))
    agree(lambda m, v: scanned(m, v, reverse=True), normal(16, 3))
    if name in ("sum", "affine", "or", "max"):
        agree(lambda m, v: scanned(m, v, axis=1), normal(2, 21))


def test_transforms_of_long_associative_scans_in_programs():
    stacks = ("jvp", "grad", "reverse over reverse", "vmap", "grad(vmap)")
    program = lambda m, x: m.jit(lambda v: SCANS["affine"](m, v))(x)
    agree_under(program, normal(18, 2), stacks=stacks)
    agree_under(
        lambda m, x: m.vmap(lambda v: SCANS["affine"](m, v))(x), normal(2, 18), stacks=["jit"]
    )


def test_a_long_associative_scan_under_amp():
    x = jnp.asarray(normal(20, 3).astype(np.float32))
    scanned = jit(lambda v: SCANS["affine"](OURS, v))
    for a, b in zip(amp(scanned, "bfloat16")(x), scanned(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_numbers_in_a_while_take_the_dtype_of_the_body():
    agree(lambda m, x: m.while_loop(lambda v: v < 5, lambda v: v + x[0], 0.0), V)
    agree(
        lambda m, x: m.while_loop(lambda v: v[0] < 5, lambda v: (v[0] + x[0], v[1] + 1), (0, 0)), V
    )


def test_disable_jit_runs_python():
    seen = []
    with config.override(disable_jit=True):
        out = while_loop(lambda v: v < 3, lambda v: seen.append(float(v)) or v + 1, jnp.zeros(()))
    assert seen == [0.0, 1.0, 2.0] and float(out) == 3.0


@pytest.mark.parametrize("call, kind, match", [
    (lambda: while_loop(lambda v: v < 3, lambda v: (v, v), 0), errors.TreeError,
     "another structure"),
    (lambda: while_loop(lambda v: v[0] < 3, lambda v: v[:2], ours(V)), TypeError,
     r"goes in as f64\[4\] and comes out of <lambda> as f64\[2\]"),
    (lambda: while_loop(lambda v: v, lambda v: v, 0), TypeError, "boolean scalar, got i32"),
    (lambda: while_loop(lambda v: v > 1, lambda v: v, ours(V)), TypeError, "boolean scalar"),
    (lambda: associative_scan(lambda a, b: a, ours(V), axis=1), ValueError, "axis 1"),
    (lambda: associative_scan(lambda a, b: a, (ours(V), ours(X))), ValueError, "lengths"),
    (lambda: associative_scan(lambda a, b: (a, b), ours(V)), errors.TreeError,
     "keep the structure"),
])  # fmt: skip
def test_refusals(call, kind, match):
    with pytest.raises(kind, match=match) as error:
        call()
    assert len(str(error.value).splitlines()) <= 6


def test_loops_jit_to_the_same():
    f = lambda x: fori_loop(0, 3, lambda i, v: jnp.sin(v) + i, x)
    np.testing.assert_array_equal(np.asarray(jit(f)(ours(V))), np.asarray(f(ours(V))))
    out = vmap(lambda v: map_(lambda s: s * 2, v))(ours(X))
    np.testing.assert_array_equal(np.asarray(out), X * 2)


def test_bounds_and_batches_that_are_no_counts():
    for bounds in ((0, 2.5), (0, jnp.float32(2.5)), (0, jnp.arange(2))):
        with pytest.raises(TypeError, match="bounds are integers"):
            fori_loop(*bounds, lambda i, x: x + i, 0)
    with pytest.raises(ValueError, match="batch_size must not be negative"):
        map_(jnp.sin, jnp.ones(3), batch_size=-1)


def test_bounds_that_eager_derivatives_know_make_a_scan() -> None:
    """The index is a value of the derivative too: d/dx x * x * (x + 1) at 1. JAX has 2, as if the
    index were a constant; forward mode and finite differences have 5."""

    def f(x):
        return fori_loop(x, x + 2.0, lambda i, c: c * i, x)

    assert float(grad(f)(1.0)) == 5.0 == float(jvp(f, (1.0,), (1.0,))[1])
    assert float(linearize(f, 1.0)[1](1.0)) == 5.0

    def power(x, n):
        return fori_loop(0, n, lambda i, c: c * x, 1.0)

    assert [float(v) for v in grad(lambda x, n: power(x, n))(2.0, 3).reshape(1)] == [12.0]
    with pytest.raises(errors.NotDifferentiableError, match="use scan"):
        jit(grad(f))(1.0)


def test_a_loop_without_steps_runs_as_python_too() -> None:
    with disable_jit():
        assert float(fori_loop(0, 0, lambda i, c: c + 1, 1.0)) == 1.0
        carry, ys = scan(lambda c, x: (c, x * 2), 0.0, jnp.zeros((0, 3)))
    assert float(carry) == 0.0 and ys.shape == (0, 3)
