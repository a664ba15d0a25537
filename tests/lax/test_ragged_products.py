"""Ragged products against JAX and loops over the groups: derivatives, batches, dtypes, programs."""

from __future__ import annotations

import itertools
import shutil

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, lax
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.primitives import ragged_contraction_p, ragged_dot_p, transpose_p
from genesis_fn.primitives.ragged_dot import ragged_contraction
from genesis_fn.test_util import check_grads
from genesis_fn.transforms.staging.stage_trace import stage

SIZES = np.array([2, 0, 4], np.int32)  # of seven rows: one belongs to no group
INNER = [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0)]


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def close(got, want, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


def by_loop(x: np.ndarray, w: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Rows times their group's matrix, in float64."""
    out, at = np.zeros((len(x), w.shape[2])), 0
    for matrix, size in zip(w.astype(np.float64), np.maximum(sizes, 0)):
        out[at : at + size] = x[at : at + size].astype(np.float64) @ matrix
        at += size
    return out


def contracted_by_loop(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The rows of each group with one another, in float64."""
    ends = np.minimum(np.cumsum(np.maximum(sizes, 0)), len(x))
    x, y = x.astype(np.float64), y.astype(np.float64)
    return np.stack([x[a:b].T @ y[a:b] for a, b in zip([0, *ends], ends)])


@pytest.mark.parametrize("wrap", [lambda f: f, gf.jit], ids=["eager", "jit"])
def test_gradients_are_those_of_jax(wrap):
    x, w = normal(7, 4), normal(3, 4, 5)
    f = lambda m, sizes: lambda x, w: (m.ragged_dot(x, w, sizes) ** 2).sum()
    got = wrap(gf.grad(f(lax, jnp.array(SIZES)), (0, 1)))(x, w)
    for ours, theirs in zip(got, jax.grad(f(jax.lax, SIZES), (0, 1))(x, w)):
        close(ours, theirs, 1e-4)
    assert not np.asarray(got[0])[6].any() and not np.asarray(got[1])[1].any()


def test_any_order_of_derivative():
    sizes = jnp.array(SIZES)
    x, w, y = [jnp.array(normal(*s), "float64") for s in ((7, 4), (3, 4, 5), (7, 2))]
    check_grads(lambda x, w: lax.ragged_dot(x, w, sizes), (x, w), order=3)
    check_grads(lambda x, y: ragged_contraction(x, y, sizes), (x, y), order=3)


def test_derivatives_are_ragged_products():
    """Nothing is copied or masked: gradients are one product of the same kind for each operand."""
    single = dtypes.dtype("float32")
    f = lambda x, w, s: lax.ragged_dot(x, jnp.swapaxes(w, 1, 2), s).sum()
    program, _ = stage(
        lambda *xs: list(gf.grad(f, (0, 1))(*xs)),
        [aval((7, 4), single), aval((3, 5, 4), single), aval((3,), dtypes.dtype("int32"))],
    )
    found = [e.prim for e in simplify_jaxpr(program).eqns]
    assert found.count(ragged_dot_p) == found.count(ragged_contraction_p) == 1
    assert transpose_p not in found, "products read weights [out, in] as they lie"


@pytest.mark.parametrize("axes", [a for a in itertools.product((0, None), repeat=3) if any(
    x is not None for x in a)], ids=str)  # fmt: skip
def test_vmap(axes):
    """Of every operand, also twice, values and gradients of both products."""
    shapes = {"x": (7, 4), "w": (3, 4, 5), "sizes": (3,)}
    rng = np.random.default_rng(1)
    many = [normal(2, 2, *shapes["x"]), normal(2, 2, *shapes["w"]), rng.integers(0, 4, (2, 2, 3))]
    given = [v if a == 0 else v[0, 0] for v, a in zip(many, axes)]
    at = lambda v, a, i, j: v[i, j] if a == 0 else v

    def both(x, w, sizes):
        value, pull = gf.vjp(lambda x, w: lax.ragged_dot(x, w, sizes), x, w)
        return value, *pull(jnp.sin(value))

    got = gf.vmap(gf.vmap(both, axes), axes)(*map(jnp.array, given))
    for i, j in itertools.product(range(2), range(2)):
        one = [at(v, a, i, j) for v, a in zip(given, axes)]
        want = by_loop(*one)
        close(got[0][i, j], want)
        close(got[1][i, j], by_loop(np.sin(want), one[1].transpose(0, 2, 1), one[2]))
        close(got[2][i, j], contracted_by_loop(one[0], np.sin(want), one[2]))


@pytest.mark.parametrize(
    "inner", [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0)], ids=str
)
@pytest.mark.parametrize("outer", [(None, 0, None), (None, None, 0), (0, None, None)], ids=str)
def test_vmap_of_different_operands(inner, outer):
    """A batch inside has its own weights or shares them, whatever the batch around does."""
    given, kinds = [], (("x", (7, 4)), ("w", (3, 4, 5)), ("sizes", (3,)))
    for (name, shape), a, b in zip(kinds, outer, inner):
        full = (*(2,) * (a is not None), *(3,) * (b is not None), *shape)
        sizes = np.random.default_rng(2).integers(0, 4, full)
        given.append(sizes if name == "sizes" else normal(*full))
    got = gf.vmap(gf.vmap(lax.ragged_dot, inner), outer)(*map(jnp.array, given))
    turned = lambda x, y, s: ragged_contraction(x, x[:, :2], s).sum() + y.sum() * 0
    depth = gf.vmap(gf.vmap(turned, inner), outer)(*map(jnp.array, given))
    for i, j in itertools.product(range(2), range(3)):
        one = [v if a is None else v[i] for v, a in zip(given, outer)]
        one = [v if b is None else v[j] for v, b in zip(one, inner)]
        close(got[i, j], by_loop(*one))
        close(depth[i, j], contracted_by_loop(one[0], one[0][:, :2], one[2]).sum(), 1e-4)


@pytest.mark.parametrize(
    "inner", [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0)], ids=str
)
def test_vmap_of_contractions(inner):
    given = []
    for shape, a in zip(((7, 4), (7, 2), (3,)), inner):
        full = (*(3,) * (a is not None), *shape)
        given.append(np.tile(SIZES, (3, 1)) if full == (3, 3) else normal(*full, seed=5))
    if inner[2] is None:
        given[2] = SIZES
    got = gf.vmap(ragged_contraction, inner)(*map(jnp.array, given))
    for i in range(3):
        one = [v if a is None else v[i] for v, a in zip(given, inner)]
        close(got[i], contracted_by_loop(*one))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_dtypes(dtype):
    x, w = jnp.array(normal(7, 4)).astype(dtype), jnp.array(normal(3, 4, 5)).astype(dtype)
    got = lax.ragged_dot(x, w, jnp.array(SIZES))
    assert got.dtype == dtype
    wide = [
        np.asarray(v.astype("complex128" if dtype == "complex64" else "float64")) for v in (x, w)
    ]
    want = by_loop(np.real(wide[0]), np.real(wide[1]), SIZES)  # imaginary parts are zero
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12, "complex64": 1e-5}[dtype]
    close(np.asarray(got.astype("complex128")), want, tolerance)


def test_integers():
    rng = np.random.default_rng(0)
    x, w = rng.integers(-90, 90, (7, 4)), rng.integers(-90, 90, (3, 4, 5))
    for kind in ("int8", "uint16", "int32", "int64"):
        got = lax.ragged_dot(jnp.array(x).astype(kind), jnp.array(w).astype(kind), jnp.array(SIZES))
        narrow = by_loop(x.astype(kind).astype(float), w.astype(kind).astype(float), SIZES)
        assert got.dtype == kind
        np.testing.assert_array_equal(np.asarray(got), narrow.astype("int64").astype(kind))


def test_preferred_element_type_and_mixed_operands():
    x, w = jnp.array(normal(7, 4)).astype("bfloat16"), jnp.array(normal(3, 4, 5))
    sizes = jnp.array(SIZES)
    wide = lambda x, w: lax.ragged_dot(x, w, sizes, preferred_element_type="float32")
    got = wide(x, w.astype("bfloat16"))
    exact = [np.asarray(v.astype("float64")) for v in (x, w.astype("bfloat16"))]
    assert got.dtype == "float32"
    close(got, by_loop(*exact, SIZES))
    assert lax.ragged_dot(x, w, sizes).dtype == "float32"
    back = gf.grad(lambda x, w: wide(x, w).sum(), (0, 1))(x, w)
    assert [g.dtype.name for g in back] == ["bfloat16", "float32"]
    with pytest.raises(errors.DTypeError, match="ragged_dot of"):
        lax.ragged_dot(x, w, sizes, preferred_element_type="int32")


def test_amp_computes_in_sixteen_bits():
    x, w, sizes = jnp.array(normal(7, 4)), jnp.array(normal(3, 4, 5)), jnp.array(SIZES)
    f = gf.amp(lambda x, w: lax.ragged_dot(x, w, sizes), "bfloat16")
    narrow = lax.ragged_dot(x.astype("bfloat16"), w.astype("bfloat16"), sizes)
    np.testing.assert_array_equal(np.asarray(f(x, w)), np.asarray(narrow.astype("float32")))
    dx, dw = gf.grad(lambda x, w: f(x, w).sum(), (0, 1))(x, w)
    assert dx.dtype == dw.dtype == "float32"
    ones = np.ones((7, 5))
    close(dx, by_loop(ones, np.asarray(w).transpose(0, 2, 1), SIZES), 5e-2)
    close(dw, contracted_by_loop(np.asarray(x), ones, SIZES), 5e-2)


@pytest.mark.parametrize("sizes", [
    [0, 0, 0], [7, 0, 0], [0, 0, 7], [3, 9, 2], [-4, 5, -1], [2**31 - 1, 2**31 - 1, 4],
], ids=str)  # fmt: skip
def test_sizes_are_data(sizes):
    """One program for all sizes, of which none makes it read or write what is not there."""
    x, w, y = normal(7, 4), normal(3, 4, 5), normal(7, 2)
    ends = np.minimum(np.cumsum(np.maximum(sizes, 0)), 7)
    real = np.diff(ends, prepend=0)
    close(PRODUCT(x, w, np.array(sizes, np.int32)), by_loop(x, w, real))
    got = ragged_contraction(*map(jnp.array, (x, y, np.array(sizes, np.int32))))
    close(got, contracted_by_loop(x, y, real))


PRODUCT = gf.jit(lax.ragged_dot)


def test_rows_of_other_groups_do_not_matter():
    """NaN in one group stays there, in values and in gradients."""
    x, w = normal(7, 4), normal(3, 4, 5)
    x[1], w[1] = np.nan, np.nan
    f = lambda x, w: lax.ragged_dot(x, w, jnp.array(SIZES))
    value, pull = gf.vjp(f, jnp.array(x), jnp.array(w))
    dx, dw = pull(jnp.ones((7, 5)))
    assert np.isnan(np.asarray(value)).any(1).tolist() == [False, True] + [False] * 5
    assert np.isfinite(np.asarray(dx)).all()
    assert np.isnan(np.asarray(dw)).any((1, 2)).tolist() == [True, False, False]


GENERAL = {
    "several free and contracting": ((2, 7, 3, 4), (3, 5, 4, 2), (0, 3), (3, 2), (), (), 1, (0,)),
    "cut last": ((4, 3, 7), (4, 5, 3), (0,), (0,), (), (), 2, (2,)),
    "in a batch": ((7, 2, 4), (5, 3, 4, 2), (2,), (2,), (1,), (3,), 0, (1,)),
    "two contracting, one cut": ((3, 7, 4), (7, 5, 3), (0, 1), (2, 0), (), (), 1, ()),
    "cut in a batch of two": ((2, 7, 3, 4), (3, 7, 2), (1,), (1,), (0, 2), (2, 0), 1, ()),
}


@pytest.mark.parametrize("name", GENERAL)
def test_general_dimensions(name):
    """Every place of the dimension that is cut, against a masked product for each group."""
    lhs, rhs, xc, yc, xb, yb, cut, group = GENERAL[name]
    x, y = normal(*lhs), normal(*rhs, seed=1)
    numbers = lax.RaggedDotDimensionNumbers(((xc, yc), (xb, yb)), (cut,), group)
    got = gf.jit(lambda x, y, s: lax.ragged_dot_general(x, y, s, numbers))(x, y, SIZES)
    want, at = [], 0
    for i, size in enumerate(SIZES):
        inside = (np.arange(7) >= at) & (np.arange(7) < at + size)
        shape = [1] * len(lhs)
        shape[cut] = 7
        other, contract, batch = y, yc, yb
        if group:
            other = np.take(y, i, group[0])
            below = lambda axes: tuple(a - (a > group[0]) for a in axes)
            contract, batch = below(yc), below(yb)
        mine = np.where(inside.reshape(shape), x, 0)
        want.append(jax.lax.dot_general(mine, other, ((xc, contract), (xb, batch))))
        at += size
    close(got, sum(want) if group else np.stack(want))


def test_sizes_for_each_of_a_batch():
    x, y = normal(2, 7, 4), normal(2, 3, 4, 5)
    sizes = np.array([[1, 2, 3], [0, 7, 0]], np.int32)
    numbers = lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (0,))), (1,), (1,))
    got = lax.ragged_dot_general(jnp.array(x), jnp.array(y), jnp.array(sizes), numbers)
    close(got, np.stack([by_loop(*one) for one in zip(x, y, sizes)]))


def test_checkpoint_policies_know_the_products():
    policies = gf.checkpoint_policies
    assert policies.dots_saveable(ragged_dot_p) and policies.dots_saveable(ragged_contraction_p)
    assert policies.dots_with_no_batch_dims_saveable(ragged_dot_p)


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
@pytest.mark.cpu
def test_inductor():
    x, w = normal(7, 4), normal(3, 4, 5)
    both = lambda x, w, s: gf.vjp(lambda x, w: lax.ragged_dot(x, w, s), x, w)[1](jnp.ones((7, 5)))
    dx, dw = gf.jit(both, compiler="inductor")(x, w, SIZES)
    ones = np.where(np.arange(7) < 6, 1.0, 0.0)[:, None] * np.ones((7, 5))
    close(dx, by_loop(ones, w.transpose(0, 2, 1), SIZES))
    close(dw, contracted_by_loop(x, ones, SIZES))


@pytest.mark.parametrize(("shapes", "kind", "message"), [
    (((7, 4), (3, 4, 5), (4,)), "int32", "3 matrices for 4 groups"),
    (((7, 4), (3, 6, 5), (3,)), "int32", "rows of length 4 meet columns of 6"),
    (((7,), (3, 4, 5), (3,)), "int32", r"lhs is \[rows, k\]"),
    (((7, 4), (3, 4, 5), ()), "int32", "is no vector"),
    (((7, 4), (3, 4, 5), (3,)), "float32", "group_sizes are integers"),
])  # fmt: skip
def test_refusals(shapes, kind, message):
    x, w = normal(*shapes[0]), normal(*shapes[1])
    with pytest.raises((errors.ShapeError, errors.DTypeError), match=message):
        lax.ragged_dot(x, w, jnp.ones(shapes[2], kind))
