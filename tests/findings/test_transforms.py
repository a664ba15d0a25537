"""Transforms where their users' trees, numbers and branches are unlike the usual: NumPy and Python
tangents, None in trees, complex inputs, branches not taken, rules that call their own function.

Every case runs in this library and in JAX, through the names that both have.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import genesis_fn as gf

jax.config.update("jax_platforms", "cpu")
OURS, THEIRS = (gf, gf.numpy), (jax, jax.numpy)


def same(program: Callable[[Any, Any], Any], rtol: float = 2e-5, atol: float = 2e-6) -> Any:
    """Runs `program(library, its numpy)` in both and compares the leaves; returns ours."""
    ours, theirs = program(*OURS), program(*THEIRS)
    mine, others = gf.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(mine) == len(others), (ours, theirs)
    for x, y in zip(mine, others):
        if getattr(y, "dtype", None) == jax.dtypes.float0:
            assert not np.any(np.asarray(x))
            continue
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol, atol)
    return ours


def ones(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


def vector(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape or (3,)).astype("float32")


# ---- B20: NumPy arrays and numbers as tangents and cotangents ----

GIVEN = {
    "ndarray": lambda n: vector(1),
    "ndarray of 64 bits": lambda n: vector(1).astype("float64"),
    "array": lambda n: n.asarray(vector(1)),
    "view of an ndarray": lambda n: vector(1, 6)[::2],
}


@pytest.mark.parametrize("given", GIVEN)
def test_b20_numpy_cotangents(given):
    t = GIVEN[given]
    if given == "ndarray of 64 bits" and jax.config.jax_enable_x64:
        assert np.allclose(gf.vjp(gf.numpy.sin, vector(0))[1](t(None))[0], np.cos(vector(0)) * t(0))
        return
    x = vector(0)
    same(lambda L, n: L.vjp(n.sin, n.asarray(x))[1](t(n)))
    same(lambda L, n: L.vjp(lambda a, b: (a * b, a), x, x)[1]((t(n), t(n))))
    same(lambda L, n: L.jvp(n.sin, (n.asarray(x),), (t(n),)))
    same(lambda L, n: L.jvp(n.sin, [x], [t(n)]))
    same(lambda L, n: L.linearize(n.sin, n.asarray(x))[1](t(n)))
    same(lambda L, n: L.linear_transpose(lambda v: 2 * v, x)(t(n)))
    same(lambda L, n: L.jit(lambda v: L.jvp(n.sin, (v,), (t(n),)))(x))
    same(lambda L, n: L.vmap(lambda v: L.vjp(n.sin, v)[1](np.float32(2)))(x))


@pytest.mark.parametrize("number", [1.0, np.float32(2), np.array(3.0, "float32")])
def test_b20_numbers_as_tangents(number):
    same(lambda L, n: L.vjp(n.sin, n.asarray(np.float32(0.5)))[1](number)) if not (
        type(number) is float and jax.config.jax_enable_x64
    ) else None
    for out in (
        gf.vjp(gf.numpy.sin, 0.5)[1](number)[0],
        gf.jvp(gf.numpy.sin, (0.5,), (number,))[1],
        gf.linearize(gf.numpy.sin, 0.5)[1](number),
    ):
        assert abs(float(out) - np.cos(0.5) * float(number)) < 1e-6


def test_b20_tangents_keep_64_bits():
    x = gf.numpy.asarray(np.array([0.1, 0.2]), dtype="float64")
    t = np.array([1 / 3, 1e-9])
    assert np.array_equal(np.asarray(gf.jvp(lambda v: v * 1.0, (x,), (t,))[1]), t)
    assert np.array_equal(np.asarray(gf.vjp(lambda v: v * 1.0, x)[1](t)[0]), t)


@pytest.mark.parametrize(
    "tangent", [1, np.ones(3, "int32"), np.ones(3, bool), np.ones(3, "complex64"), np.ones(2)]
)
def test_b20_tangents_that_do_not_fit_are_refused(tangent):
    for L, n in (OURS, THEIRS):
        x = n.asarray(vector(0) if np.ndim(tangent) else np.float32(1))
        with pytest.raises((TypeError, ValueError)):
            L.jvp(n.sin, (x,), (tangent,))
        with pytest.raises((TypeError, ValueError)):
            L.vjp(n.sin, x)[1](tangent)


def test_b20_float0_tangents_of_integers():
    zero = np.zeros(3, jax.dtypes.float0)
    assert gf.float0 == jax.dtypes.float0
    i = np.arange(3, dtype="int32")
    same(lambda L, n: L.jvp(lambda x, k: x * k, (ones(3), i), (ones(3), zero)))
    same(lambda L, n: L.vjp(lambda x: (x * 2, n.asarray(i)), ones(3))[1]((ones(3), zero)))
    same(lambda L, n: L.linearize(lambda x, k: x * k, ones(3), i)[1](ones(3), zero))
    with pytest.raises(gf.errors.ShapeError):
        gf.jvp(lambda x, k: x * k, (ones(3), i), (ones(3), np.zeros(2, gf.float0)))
    with pytest.raises(gf.errors.DTypeError, match="float0"):
        gf.jvp(lambda x: x * 2, (ones(3),), (zero,))


# ---- B21: None in trees ----


def test_b21_none_in_trees_of_derivatives():
    d = lambda n: {"a": n.asarray(vector(0)), "b": None, "c": (None, n.asarray(vector(1)))}
    f = lambda d: ({"y": d["a"] * d["c"][1]}, None, [d["b"]])
    ct = lambda n: ({"y": vector(2)}, None, [None])
    same(lambda L, n: L.vjp(f, d(n))[1](ct(n)))
    same(lambda L, n: L.jvp(f, (d(n),), (d(n),)))
    same(lambda L, n: L.linearize(f, d(n))[1](d(n)))
    same(lambda L, n: L.linear_transpose(lambda d: (d["a"] * 2, None), d(n))((vector(2), None)))
    same(lambda L, n: L.grad(lambda d: f(d)[0]["y"].sum())(d(n)))
    same(lambda L, n: L.value_and_grad(lambda d: (f(d)[0]["y"].sum(), None), has_aux=True)(d(n)))
    same(lambda L, n: L.jacrev(lambda d: f(d)[0])(d(n)))
    same(lambda L, n: L.jacfwd(lambda d: f(d)[0])(d(n)))
    same(lambda L, n: L.hessian(lambda d: f(d)[0]["y"].sum())(d(n)))
    same(lambda L, n: L.vmap(f)(d(n)))
    same(lambda L, n: L.jit(L.vmap(L.grad(lambda d: f(d)[0]["y"].sum())))(d(n)))
    same(lambda L, n: L.checkpoint(f)(d(n)))


def test_b21_none_in_place_of_a_cotangent_is_zero():
    x = gf.numpy.asarray(vector(0))
    pull = gf.vjp(lambda v: (v * 2, {"a": v * 3, "b": v}), x)[1]
    assert np.allclose(pull((ones(3), None))[0], 2)
    assert np.allclose(pull((None, {"a": ones(3), "b": None}))[0], 3)
    out = gf.jvp(lambda p, q: p * q["a"], (x, {"a": x}), (x, None))[1]
    assert np.allclose(out, vector(0) ** 2)
    with pytest.raises(gf.errors.TreeError):
        pull((ones(3),))
    with pytest.raises(gf.errors.TreeError):
        pull((ones(3), ones(3)))


RULES = {
    "for a tuple": (lambda z: (z, (None, None)), (ones(3), ones(2))),
    "for a tree": (lambda z: (z, {"a": z, "b": None}), {"a": ones(3), "b": (ones(1), ones(2))}),
    "the empty subtree": (lambda z: (z, (z, None)), (ones(3), None)),
    "for an argument": (lambda z: (z, None), (ones(3), [ones(2)])),
    "of Nones": (lambda z: (z, (None, None)), (None, None)),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_b21_none_from_a_backward_rule(rule, jitted):
    back, given = RULES[rule]

    def program(L: Any, n: Any) -> Any:
        f = L.custom_vjp(lambda x, p: x * 2)
        f.defvjp(lambda x, p: (x * 2, None), lambda _, z: back(z))
        g = L.grad(lambda x, p: f(x, p).sum(), argnums=(0, 1))
        return (L.jit(g) if jitted else g)(n.asarray(ones(3)), given)

    same(program)


# ---- B23: real functions of complex inputs ----

Z = (vector(3) - 0.7 + 1j * (vector(4) - 1.2)).astype("complex64")
M = (vector(5, 3, 3) + 2 * np.eye(3) + 1j * vector(6, 3, 3)).astype("complex64")
COMPLEX: dict[str, Callable[[Any, Any], Any]] = {
    "abs squared": lambda n, z: (n.abs(z) ** 2).sum(),
    "abs": lambda n, z: n.abs(z).sum(),
    "real": lambda n, z: (n.real(z) * n.imag(z * z)).sum(),
    "angle": lambda n, z: n.angle(z).sum(),
    "conj": lambda n, z: n.real(n.conj(z) * z * z).sum(),
    "vdot": lambda n, z: n.real(n.vdot(z, z * z)),
    "norm": lambda n, z: n.linalg.norm(z),
    "std": lambda n, z: n.std(z) + n.var(z),
    "where": lambda n, z: n.where(z.real > 0, z, z * 2).imag.sum(),
    "powers": lambda n, z: ((z**3).real + (z ** (1.5 + 0.5j)).imag + ((1.5 + 1j) ** z).real).sum(),
    "quotient": lambda n, z: (1 / z + z / (2 + z)).imag.sum(),
    "fft": lambda n, z: (n.abs(n.fft.fft(z)) ** 3).sum() + (n.fft.irfft(z) ** 3).sum(),
    "cumulative": lambda n, z: (n.cumprod(z).real + n.cumsum(z * z).imag).sum(),
    "written at": lambda n, z: n.abs(z.at[1].set(2j * z[0])).sum(),
    "cast": lambda n, z: (n.real(z).astype("complex64") * z).imag.sum(),
    "einsum": lambda n, z: n.abs(n.einsum("i,j->ij", z, n.conj(z) + 1)).sum(),
    "circular": lambda n, z: (n.sin(z) * n.cos(z) + n.tanh(z)).real.sum(),
    "exponential": lambda n, z: (n.exp(z) + n.log(z) + n.sqrt(z) + n.log1p(z)).imag.sum(),
    "inverse circular": lambda n, z: (n.arcsin(z) + n.arctan(z) + n.arccos(z)).real.sum(),
    "inverse": lambda n, z: n.abs(n.linalg.inv(n.asarray(M) + n.outer(z, z))).sum(),
    "determinant": lambda n, z: n.abs(n.linalg.det(n.asarray(M) * z)),
    "solve": lambda n, z: n.abs(n.linalg.solve(n.asarray(M), z)).sum(),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_b23_gradients_by_complex_inputs(name):
    f = COMPLEX[name]
    z = lambda n: n.asarray(Z)
    close = {"rtol": 2e-4, "atol": 2e-4}
    weighted = lambda n, v: n.stack([f(n, v), v.real.sum()])
    # One compilation in JAX: of the Jacobian, whose first row is the gradient.
    rows = same(lambda L, n: L.jit(L.jacrev(lambda v: weighted(n, v)))(z(n)), **close)
    for other in (
        gf.grad(lambda v: f(gf.numpy, v))(Z),
        gf.jit(gf.value_and_grad(lambda v: f(gf.numpy, v)))(Z)[1],
        gf.vjp(lambda v: f(gf.numpy, v), Z)[1](1.0)[0],
    ):
        assert np.allclose(other, rows[0], rtol=1e-5, atol=1e-5)


def test_b23_conventions_and_refusals():
    g = same(lambda L, n: L.grad(lambda z: n.abs(z) ** 2)(1.0 + 2j))
    assert complex(g) == 2 - 4j
    same(
        lambda L, n: L.grad(lambda p: (n.abs(p["z"]) ** 2 * p["x"]).sum())(
            {"z": n.asarray(Z), "x": n.asarray(vector(0))}
        )
    )
    same(lambda L, n: L.vmap(L.grad(lambda z: n.abs(z)))(n.asarray(Z)))
    same(lambda L, n: L.jacrev(lambda x: n.abs(x + 1j * x * x))(n.asarray(vector(0))))
    same(lambda L, n: L.hessian(lambda x: n.abs(n.sum(n.exp(1j * x))))(n.asarray(vector(0))))
    same(lambda L, n: L.grad(lambda z: z**3, holomorphic=True)(1.0 + 2j))
    same(lambda L, n: L.hessian(lambda z: n.sum(z**3), holomorphic=True)(n.asarray(Z)))
    for L, n in (OURS, THEIRS):
        for call in (
            lambda: L.grad(lambda z: z * z)(1.0 + 2j),
            lambda: L.grad(lambda x: x * 1j)(1.0),
            lambda: L.grad(lambda x: x * 1j, holomorphic=True)(1.0),
            lambda: L.grad(lambda z: n.abs(z), holomorphic=True)(1j),
            lambda: L.jacrev(lambda z: z * z)(n.asarray(Z)),
            lambda: L.jacrev(lambda z: n.abs(z), holomorphic=True)(n.asarray(Z)),
            lambda: L.jacfwd(lambda z: n.abs(z))(n.asarray(Z)),
            lambda: L.jacfwd(lambda z: n.abs(z), holomorphic=True)(n.asarray(Z)),
            lambda: L.hessian(lambda z: n.abs(z).sum())(n.asarray(Z)),
        ):
            with pytest.raises(TypeError):
                call()
    with pytest.raises(TypeError, match="its .real or abs"):
        gf.grad(lambda z: z * z)(1.0 + 2j)


# ---- A2: branches that were not taken ----

POINTS = np.array([0.0, 4.0, -1.0, 1.0, 0.25], "float32")
UNSAFE: dict[str, Callable[[Any, Any], Any]] = {
    "sqrt": lambda n, u: n.sqrt(u),
    "log": lambda n, u: n.log(u),
    "reciprocal": lambda n, u: 1 / u,
    "power": lambda n, u: u**-1.5,
    "pow": lambda n, u: n.power(u, u),
    "norm": lambda n, u: n.linalg.norm(n.stack([u, u])),
    "arccos": lambda n, u: n.arccos(1 - u / 8),
    "quotient": lambda n, u: n.sin(u) / u,
    "overflow": lambda n, u: n.exp(300 * (0.2 - u)),
    "std": lambda n, u: n.std(n.stack([u, u * 2])),
}


def branch(kind: str, L: Any, n: Any, f: Callable) -> Callable:
    safe, risky = lambda u: u * 0 + 1.0, lambda u: f(n, u)
    choose = lambda u: L.lax.cond(u > 0, risky, safe, u)
    return {
        "cond": choose,
        "switch": lambda u: L.lax.switch((u > 0).astype("int32"), [safe, risky, n.sin], u),
        "closure": lambda u: L.lax.cond(u > 0, lambda: risky(u), lambda: safe(u)),
        "nested": lambda u: L.lax.cond(u > -0.5, choose, safe, u),
        "jit": L.jit(choose),
        "scan": lambda u: L.lax.scan(
            lambda c, _: (c + choose(u), c * choose(u)), u, None, length=2
        )[0],
        "fori_loop": lambda u: L.lax.fori_loop(0, 2, lambda i, c: c + choose(u), u),
        "checkpoint": L.checkpoint(choose),
    }[kind]


def derivatives(L: Any, n: Any, g: Callable) -> dict[str, Callable]:
    total = lambda v: L.vmap(g)(v).sum()
    forward = lambda f: lambda v: L.jvp(f, (v,), (n.ones_like(v),))[1]
    return {
        "reverse": L.grad(total),
        "forward": forward(L.vmap(g)),
        "reverse of each": L.vmap(L.grad(g)),
        "under jit": L.jit(L.grad(total)),
        "forward over reverse": forward(L.grad(total)),
        "reverse over reverse": L.grad(lambda v: L.grad(total)(v).sum()),
        "reverse over each": L.grad(lambda v: L.vmap(L.grad(g))(v).sum()),
    }


def test_a02_branches_not_taken_have_no_derivative():
    def program(L: Any, n: Any) -> Any:
        branches = [branch("cond", L, n, f) for f in UNSAFE.values()]
        g = lambda u: sum(b(u) for b in branches)
        return {
            way: (f if L is gf else jax.jit(f))(n.asarray(POINTS))
            for way, f in derivatives(L, n, g).items()
        }

    for way, got in same(program, rtol=2e-4).items():
        assert not np.any(np.asarray(got)[[0, 2]]), way


def test_a02_branches_inside_others():
    def program(L: Any, n: Any) -> Any:
        result = {}
        for kind in ("switch", "closure", "nested", "jit", "scan", "fori_loop", "checkpoint"):
            g = branch(kind, L, n, lambda n, u: n.sqrt(u) + n.sin(u) / u)
            for way in ("reverse", "forward", "under jit"):
                f = derivatives(L, n, g)[way]
                result[kind + way] = (f if L is gf else jax.jit(f))(n.asarray(POINTS))
        return result

    for kind, got in same(program, rtol=2e-4).items():
        assert np.isfinite(np.asarray(got)).all(), kind


def test_a02_operands_that_examples_share():
    def program(L: Any, n: Any) -> Any:
        def total(w: Any, v: Any) -> Any:
            f = lambda u: L.lax.cond(u > 0, lambda: w * n.sqrt(u * w), lambda: u * 0)
            return L.vmap(f)(v).sum()

        given = n.asarray(np.float32(2)), n.asarray(POINTS)
        return L.grad(total, (0, 1))(*given), L.jit(L.grad(total, (0, 1)))(*given)

    same(program)

    def zero(L: Any, n: Any) -> Any:
        f = lambda w: L.vmap(lambda u: L.lax.cond(u > 0, lambda: n.sqrt(w) * u, lambda: w * u))(
            -n.asarray(np.abs(POINTS))
        ).sum()
        return L.grad(f)(n.asarray(np.float32(0)))

    assert np.isfinite(float(same(zero)))


def test_a02_rules_of_branches_not_taken():
    def program(L: Any, n: Any) -> Any:
        @L.custom_vjp
        def root(x: Any) -> Any:
            return n.sqrt(x)

        root.defvjp(lambda x: (n.sqrt(x), x), lambda x, ct: (ct / (2 * n.sqrt(x)),))

        @L.custom_jvp
        def log(x: Any) -> Any:
            return n.log(x)

        log.defjvp(lambda p, t: (n.log(p[0]), t[0] / p[0]))
        f = lambda u: L.lax.cond(u > 0, lambda v: root(v) + log(v), lambda v: v, u)
        total = lambda v: L.vmap(f)(v).sum()
        v = n.asarray(POINTS)
        return L.grad(total)(v), L.jit(L.grad(total))(v), L.vmap(L.grad(f))(v)

    same(program)


# ---- A4: derivatives of powers ----

BASES = np.array([0.0, -0.0, 1.0, 2.5, -1.5, np.inf, -np.inf, np.nan], "float32")
EXPONENTS = np.array([0.0, 1.0, 2.0, 0.5, -1.0, -0.5, 3.0], "float32")


def powers(order: tuple[int, ...], x: np.ndarray, y: np.ndarray, **options: Any) -> None:
    """Compares derivatives of x**y, except that JAX has NaN (0 * inf) at the places where x or a
    power of it is 0 and the derivative is 0 or infinite."""

    def derive(L: Any, n: Any) -> np.ndarray:
        f = L.lax.pow
        for i in order:
            f = L.grad(f, i, **options)
        return np.asarray(L.vmap(f)(n.asarray(x), n.asarray(y)))

    ours, theirs = derive(*OURS), derive(*THEIRS)
    for a, b, u, v in zip(x, y, ours, theirs):
        if np.isnan(v) and a == 0 and b in (0, 1):
            assert u == (0 if sorted(order) != [0, 1] or b else u) and not np.isnan(u)
            continue
        assert np.allclose(u, v, rtol=1e-4, equal_nan=True), (order, a, b, u, v)


@pytest.mark.parametrize("order", [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)])
def test_a04_powers(order):
    powers(order, *(v.ravel() for v in np.meshgrid(BASES, EXPONENTS, indexing="ij")))
    z = np.array([1 + 2j, -0.5 + 0.1j, 2, -2, 1j], "complex64")
    w = np.array([0, 1, 2, 0.5j, -1 + 0.5j], "complex64")
    powers(order, *(v.ravel() for v in np.meshgrid(z, w, indexing="ij")), holomorphic=True)


def test_a04_mixed_derivative_at_exponent_zero():
    same(lambda L, n: L.grad(L.grad(L.lax.pow, 0), 1)(4.0, 0.0))
    same(lambda L, n: L.grad(L.grad(lambda x, y: x**y, 1), 0)(4.0, 0.0))
    # At 0**0 both mixed derivatives are those of 1/x there.
    assert float(gf.grad(gf.grad(gf.lax.pow, 0), 1)(0.0, 0.0)) == np.inf
    assert float(gf.grad(gf.grad(gf.lax.pow, 1), 0)(0.0, 0.0)) == np.inf
    assert float(gf.grad(gf.lax.pow, 0)(0.0, 0.0)) == 0.0


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 2.0, 0.5, -0.5, 1.5 + 0.5j])
def test_a04_python_exponents(exponent):
    x = np.array([1.0, 2.5, 0.3], "complex64" if type(exponent) is complex else "float32")
    holomorphic = type(exponent) is complex

    def program(L: Any, n: Any) -> Any:
        first = L.grad(lambda v: v**exponent, holomorphic=holomorphic)
        second = L.grad(first, holomorphic=holomorphic)
        return L.vmap(first)(n.asarray(x)), L.vmap(second)(n.asarray(x))

    same(program, rtol=1e-4)


def test_a04_integer_exponent_arrays():
    x = np.repeat(np.array([0.0, 1.0, -1.5, 2.5], "float32"), 4)
    k = np.tile(np.array([0, 1, 2, 3], "int32"), 4)
    same(lambda L, n: L.vmap(L.grad(L.lax.pow))(n.asarray(x), n.asarray(k)))
    same(lambda L, n: L.vmap(L.grad(lambda a, b: a**b))(n.asarray(x), n.asarray(k)))


# ---- B25: rules that call their own function ----


def negative(L: Any) -> Any:
    f = L.custom_jvp(lambda x: -x)
    f.defjvp(lambda p, t: (f(p[0]), f(t[0])))
    return f


LINEAR: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda L, n: L.grad(negative(L))(3.0),
    "grad of jit": lambda L, n: L.grad(L.jit(negative(L)))(3.0),
    "jit of grad": lambda L, n: L.jit(L.grad(negative(L)))(3.0),
    "scan": lambda L, n: L.grad(
        lambda x: L.lax.scan(lambda c, _: (negative(L)(c) * 2, c), x, None, length=3)[0]
    )(3.0),
    "checkpoint": lambda L, n: L.grad(L.checkpoint(L.jit(negative(L))))(3.0),
    "vmap": lambda L, n: L.vmap(L.grad(L.jit(negative(L))))(n.arange(3.0)),
    "of vmap": lambda L, n: L.grad(lambda x: L.jit(L.vmap(negative(L)))(x).sum())(n.arange(3.0)),
    "second": lambda L, n: L.grad(L.grad(lambda x: L.jit(negative(L))(x * x)))(3.0),
    "cond": lambda L, n: L.grad(lambda x: L.lax.cond(x > 0, negative(L), n.sin, x))(3.0),
}


@pytest.mark.parametrize("name", LINEAR)
def test_b25_linear_functions_call_themselves_in_their_rule(name):
    same(LINEAR[name])


def test_b25_bilinear_functions_too():
    a = vector(0, 2, 3)

    def program(L: Any, n: Any) -> Any:
        f = L.custom_jvp(lambda a, x: a @ x)
        f.defjvp(lambda p, t: (f(*p), f(p[0], t[1]) + f(t[0], p[1])))
        loss = lambda a, x: L.lax.scan(lambda c, _: (f(a @ a.T, c), c.sum()), x, None, length=3)[
            1
        ].sum()
        return L.jit(L.grad(L.jit(loss), (0, 1)))(n.asarray(a), n.asarray(vector(1, 2)))

    same(program, rtol=1e-4)


# ---- B30: loops ----


def doubled(L: Any, x: Any, times: int = 3) -> Any:
    step = lambda c: (c[0] + 1, c[1] * x)
    return L.lax.while_loop(lambda c: c[0] < times, step, (0, x))[1]


def test_b30_linearize_a_while_loop():
    same(lambda L, n: L.linearize(lambda x: doubled(L, x), 2.0)[1](1.0))
    same(lambda L, n: L.jit(lambda x: L.linearize(lambda v: doubled(L, v), x)[1](x))(2.0))
    same(lambda L, n: L.vmap(L.linearize(lambda x: doubled(L, x), 2.0)[1])(n.arange(3.0)))
    same(
        lambda L, n: L.linearize(
            lambda x: L.lax.scan(lambda c, _: (doubled(L, c, 2), c), x, None, length=2), 1.1
        )[1](1.0)
    )
    same(lambda L, n: L.linearize(lambda x: (doubled(L, x), n.sin(x)), 2.0)[1](0.5))
    same(lambda L, n: L.linearize(L.jit(lambda x: doubled(L, x)), 2.0)[1](1.0))
    same(
        lambda L, n: L.linearize(
            L.vmap(lambda x: L.lax.while_loop(lambda c: c < 9, lambda c: c * x, x)),
            n.asarray(np.array([2.0, 3.0, 1.5], "float32")),
        )[1](ones(3))
    )


def test_b30_a_while_loop_is_not_transposed():
    for f in (lambda x: doubled(gf, x), gf.jit(lambda x: doubled(gf, x))):
        with pytest.raises(gf.errors.NotDifferentiableError, match="reverse-mode"):
            gf.grad(f)(2.0)
    # One that no cotangent reaches is no matter.
    same(lambda L, n: L.grad(lambda x: (x * x, doubled(L, x)), has_aux=True)(3.0))


AXES: dict[str, Callable[[Any, Any], Any]] = {
    "scan": lambda L, x: L.lax.scan(lambda c, y: ((c[0] + y, c[1]), None), (x, 1.0), ones(3))[0],
    "while": lambda L, x: L.lax.while_loop(
        lambda c: c[1] < 3, lambda c: (c[0] + 1, c[1] + 1), (x, 1.0)
    ),
    "while of each": lambda L, x: L.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + c[1], c[1]), (x, 1.0)
    ),
    "cond": lambda L, x: L.lax.cond(True, lambda a, b: (a, b), lambda a, b: (a + 1, b), x, 2.0),
    "cond of each": lambda L, x: L.lax.cond(
        x > 1, lambda a, b: (a, b), lambda a, b: (a + 1, b), x, 2.0
    ),
    "switch of each": lambda L, x: L.lax.switch(
        (x > 1).astype("int32"), [lambda a, b: (a, b)] * 3, x, 2.0
    ),
    "nested": lambda L, x: L.lax.scan(
        lambda c, _: (L.lax.cond(c[0] > 1, lambda a, b: (a, b), lambda a, b: (a + 1, b), *c), None),
        (x, 3.0), None, length=2,
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("name", AXES)
def test_b30_out_axes_none_of_what_a_loop_hands_through(name):
    x = np.array([0.5, 1.5, 2.5], "float32")
    f = AXES[name]
    same(lambda L, n: L.vmap(lambda v: f(L, v), out_axes=(0, None))(n.asarray(x)))
    same(lambda L, n: L.jit(L.vmap(lambda v: f(L, v), out_axes=(0, None)))(n.asarray(x)))
    with pytest.raises(ValueError, match="out_axes is None"):
        gf.vmap(lambda v: f(gf, v), out_axes=None)(x)


# ---- B32: what is like a transform there ----


@pytest.mark.parametrize("split, concat, tiled", [(0, 2, False), (2, 0, True), (1, 1, True)])
def test_b32_all_to_all_over_two_axes(split, concat, tiled):
    shape = [3, 5, 2]
    shape[split] = 6 * (2 if tiled else 1)
    x = vector(split, 2, 3, *shape)
    for names in (("i", "j"), ("j", "i")):

        def program(L: Any, n: Any, names: Any = names) -> Any:
            inner = lambda v: L.lax.all_to_all(v, names, split, concat, tiled=tiled)
            return L.jit(L.vmap(L.vmap(inner, axis_name="j"), axis_name="i"))(x)

        y = vector(9, *same(program).shape)
        f = gf.vmap(
            gf.vmap(
                lambda v: gf.lax.all_to_all(v, names, split, concat, tiled=tiled), axis_name="j"
            ),
            axis_name="i",
        )
        back = gf.linear_transpose(f, x)(y)[0]
        assert np.allclose(np.sum(np.asarray(f(x)) * y), np.sum(x * np.asarray(back)), rtol=1e-5)


def test_b32_collectives_over_two_axes():
    def over(call: Callable) -> Callable:
        return lambda L, n: L.vmap(L.vmap(lambda v: call(L, v), axis_name="j"), axis_name="i")(
            n.asarray(vector(0, 2, 3, 6))
        )

    both = ("i", "j")
    for name in ("psum", "pmean", "pmax", "pmin"):
        same(over(lambda L, v, name=name: getattr(L.lax, name)(v, both)))
    same(over(lambda L, v: v + L.lax.axis_index(both)))
    same(over(lambda L, v: v * L.lax.axis_size(both)))
    x = vector(0, 2, 3, 6)
    gathered = over(lambda L, v: L.lax.all_gather(v, both))(*OURS)
    assert np.array_equal(gathered, np.broadcast_to(x.reshape(6, 6), (2, 3, 6, 6)))
    scattered = over(lambda L, v: L.lax.psum_scatter(v, both))(*OURS)
    assert np.allclose(scattered, x.sum((0, 1)).reshape(2, 3))
    tiled = over(lambda L, v: L.lax.psum_scatter(v, both, tiled=True))(*OURS)
    assert np.allclose(tiled, x.sum((0, 1)).reshape(2, 3, 1))
    with pytest.raises(ValueError, match="one axis name"):
        over(lambda L, v: L.lax.ppermute(v, both, [(0, 1)]))(*OURS)


def test_b32_float_bounds_of_loops():
    body = lambda i, x: x * 2 + i
    for low, high in ((0.0, 3.0), (1, 4.0), (np.float32(0), 2), (5.0, 2.0)):
        same(lambda L, n: L.lax.fori_loop(int(low), int(high), body, 1.0))
        ours = gf.lax.fori_loop(low, high, body, 1.0)
        assert float(ours) == float(jax.lax.fori_loop(int(low), int(high), body, 1.0))
    same(lambda L, n: L.lax.fori_loop(0.0, 3.0, body, 1.0))
    same(lambda L, n: L.jit(lambda a: L.lax.fori_loop(0.0, a, body, 1.0))(3.0))
    same(lambda L, n: L.grad(lambda x: L.lax.fori_loop(0.0, 3.0, body, x))(1.0))
    same(lambda L, n: L.grad(lambda x: L.lax.fori_loop(0, n.asarray(3), body, x))(1.0))
    for bad in (2.5, "3", None, 1j, np.ones(2)):
        with pytest.raises(TypeError, match="bounds are integers"):
            gf.lax.fori_loop(0, bad, body, 1.0)


def test_b32_linear_transpose_of_numbers():
    same(lambda L, n: L.linear_transpose(lambda x: 2 * x, 1.0)(1.0))
    same(lambda L, n: L.linear_transpose(lambda x, y: 2 * x + y, 1.0, np.float32(2))(3.0))
    same(lambda L, n: L.linear_transpose(lambda d: d["a"] * 3, {"a": 1.0, "b": None})(1.0))
    same(
        lambda L, n: L.linear_transpose(
            lambda x: x[::2], L.ShapeDtypeStruct((5,), np.dtype("float32"))
        )(ones(3))
    )


# ---- messages ----


def forgets(*args: Any) -> None:
    """As a function that lacks its return."""


MISSING: dict[str, Callable[[], Any]] = {
    "grad": lambda: gf.grad(forgets)(1.0),
    "jit of grad": lambda: gf.jit(gf.grad(forgets))(1.0),
    "value_and_grad": lambda: gf.value_and_grad(forgets)(1.0),
    "has_aux": lambda: gf.value_and_grad(forgets, has_aux=True)(1.0),
    "vjp": lambda: gf.vjp(forgets, 1.0, has_aux=True),
    "scan": lambda: gf.lax.scan(forgets, 1.0, ones(3)),
    "while condition": lambda: gf.lax.while_loop(forgets, lambda x: x, 1.0),
    "while body": lambda: gf.lax.while_loop(lambda x: x < 3, forgets, 1.0),
    "fori": lambda: gf.lax.fori_loop(0, 3, forgets, 1.0),
    "traced fori": lambda: gf.jit(lambda k: gf.lax.fori_loop(0, k, forgets, 1.0))(3),
    "cond": lambda: gf.lax.cond(True, lambda x: x, forgets, 1.0),
    "cond, the other": lambda: gf.lax.cond(True, forgets, lambda x: x, 1.0),
    "switch": lambda: gf.lax.switch(0, [lambda x: x, forgets], 1.0),
    "associative_scan": lambda: gf.lax.associative_scan(forgets, ones(3)),
}


@pytest.mark.parametrize("name", MISSING)
def test_m01_a_missing_return(name):
    with pytest.raises((TypeError, gf.errors.TreeError)) as caught:
        MISSING[name]()
    text = str(caught.value)
    assert "returned None: is a return missing?" in text
    assert "forgets" in text and "test_transforms.py" in text
    assert len(text.splitlines()) <= 6


def test_m01_of_rules():
    f = gf.custom_vjp(lambda x: x * 2)
    f.defvjp(forgets, lambda r, z: (z,))
    g = gf.custom_vjp(lambda x: x * 2)
    g.defvjp(lambda x: (x * 2, None), forgets)
    h = gf.custom_jvp(lambda x: x * 2)
    h.defjvp(forgets)
    for call in (f, g, h):
        with pytest.raises(gf.errors.TreeError, match="returned None: is a return missing"):
            gf.grad(call)(1.0)


def test_m09_vmap_over_a_scalar():
    def shifted(x: Any, offset: Any, *, scale: Any = 1.0) -> Any:
        return x * scale + offset

    x = ones(3)
    with pytest.raises(ValueError, match=r"argument offset of shifted, f32\[\]") as caught:
        gf.vmap(shifted)(x, 1.0)
    assert "pass in_axes=(0, None) to share it" in str(caught.value)
    assert np.allclose(gf.vmap(shifted, in_axes=(0, None))(x, 1.0), 2)
    with pytest.raises(ValueError, match=r"argument x\['b'\] of shifted") as caught:
        gf.vmap(shifted)({"a": x, "b": 2.0}, x)
    assert "in_axes=({'a': 0, 'b': None}, 0)" in str(caught.value)
    with pytest.raises(ValueError, match="argument scale of shifted"):
        gf.vmap(shifted)(x, x, scale=2.0)
    with pytest.raises(ValueError, match=r"axis 1 does not exist in argument x of shifted") as c:
        gf.vmap(shifted, in_axes=(1, 0))(x, x)
    assert "to share it" not in str(c.value)


def test_m11_numpy_cotangents_of_another_kind_are_named():
    with pytest.raises(gf.errors.DTypeError, match=r"i32\[3\] must have the dtype of f32\[3\]"):
        gf.vjp(gf.numpy.sin, ones(3))[1](np.ones(3, "int32"))
    with pytest.raises(gf.errors.ShapeError, match=r"f32\[2\] does not fit f32\[3\]"):
        gf.jvp(gf.numpy.sin, (ones(3),), (ones(2),))


# ---- A17: custom_vmap under derivatives ----


def batched_apart(L: Any, n: Any) -> Any:
    """A function whose batching rule is told from the function by a factor of 100."""
    f = L.custom_batching.custom_vmap(lambda x, y: (n.sin(x) * y, x))
    f.def_vmap(lambda size, b, x, y: ((n.sin(x) * y * 100.0, x), (b[0] or b[1], b[0])))
    return f


APART: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "vmap of jvp": lambda L, n, f, x: L.vmap(
        L.jit(lambda a, b, s, t: L.jvp(L.jit(f), (a, b), (s, t)))
    )(x, x, x, x),
    "of one argument": lambda L, n, f, x: L.vmap(
        lambda a, s: L.jvp(lambda v: f(v, 2.0), (a,), (s,))
    )(x, x),
    "of shared primals": lambda L, n, f, x: L.vmap(
        lambda s: L.jvp(f, (0.5, 0.25), (s, s))
    )(x),
    "of shared tangents": lambda L, n, f, x: L.vmap(
        lambda a, b: L.jvp(f, (a, b), (1.0, 2.0))
    )(x, x),
    "jvp of vmap": lambda L, n, f, x: L.jvp(L.vmap(f), (x, x), (x, x)),
    "grad of vmap": lambda L, n, f, x: L.jit(L.grad(lambda v: L.vmap(f)(v, v)[0].sum()))(x),
    "twice": lambda L, n, f, x: L.vmap(
        lambda a, b: L.jvp(lambda c, d: L.jvp(f, (c, d), (d, c))[1][0], (a, b), (a, b))
    )(x, x),
    "grad of vmap of jvp": lambda L, n, f, x: L.grad(
        lambda v: L.vmap(lambda a, b: L.jvp(f, (a, b), (b, a))[1][0])(v, v).sum()
    )(x),
    "hessian of vmap": lambda L, n, f, x: L.hessian(lambda v: L.vmap(f)(v, v)[0].sum())(x),
    "vmap of vmap of jvp": lambda L, n, f, x: L.vmap(
        L.vmap(lambda a, s: L.jvp(lambda v: f(v, v), (a,), (s,)))
    )(n.stack([x, x]), n.stack([x, 2 * x])),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_a17_a_batching_rule_under_derivatives(name):
    same(lambda L, n: APART[name](L, n, batched_apart(L, n), n.asarray(vector(0, 2))), rtol=1e-4)


# ---- B28: traced positions ----


def test_b28_traced_positions():
    a, m = vector(0, 5), vector(1, 3, 4)
    same(lambda L, n: L.jit(lambda a, i: n.insert(a, i, 9.0))(a, 1))
    same(lambda L, n: L.jit(lambda m, i: n.insert(m, i, 9.0, axis=1))(m, np.array([1, -1])))
    for k in (-2, 0, 1, 9):
        same(lambda L, n, k=k: L.jit(lambda k: n.eye(3, k=k))(k))
        same(lambda L, n, k=k: L.jit(lambda k: n.tri(3, 4, k=k))(k))
        assert np.array_equal(gf.jit(lambda k: gf.numpy.tril(m, k))(k), np.tril(m, k))
        assert np.array_equal(gf.jit(lambda k: gf.numpy.triu(m, k))(k), np.triu(m, k))
    same(lambda L, n: L.vmap(lambda k: n.eye(3, 2, k=k, dtype="int32"))(n.arange(-3, 4)))
    same(
        lambda L, n: L.jit(lambda a, i: n.delete(a, i, assume_unique_indices=True))(
            a, np.array([3, -5])
        )
    )
    same(lambda L, n: L.jit(lambda i, s: n.unravel_index(i, s))(np.array([3, -1, 99]), (2, 4)))
    same(
        lambda L, n: L.jit(lambda i, s: n.unravel_index(i, s))(
            np.array([[3], [5]]), np.array([2, 1, 4])
        )
    )


def test_b28_traced_positions_as_numpy_has_them():
    rng = np.random.default_rng(0)
    for axis, count in itertools.product((None, 0, 1), (1, 2, 4)):
        m = rng.normal(size=(3, 4)).astype("float32")
        n = m.size if axis is None else m.shape[axis]
        at = rng.integers(-n, n + 1, count)
        values = rng.normal(size=count).astype("float32")
        given = values if axis != 0 else values[:, None]
        got = gf.vmap(lambda i: gf.numpy.insert(m, i, given, axis))(at[None])[0]
        assert np.array_equal(got, np.insert(m, at, given, axis)), (axis, at)
        one = gf.vmap(lambda i: gf.numpy.insert(m, i, values[0], axis))
        got = one(at[:1])[0]
        assert np.array_equal(got, np.insert(m, int(at[0]), values[0], axis)), (axis, at[0])
        gone = rng.choice(n, min(count, n), replace=False)
        remove = lambda i: gf.numpy.delete(m, i, axis, assume_unique_indices=True)
        got = gf.vmap(remove)(gone[None])[0]
        assert np.array_equal(got, np.delete(m, gone, axis)), (axis, gone)
    grads = gf.grad(lambda v: gf.jit(lambda i: (gf.numpy.insert(v, i, 0.0) ** 2).sum())(2))
    assert np.allclose(grads(vector(0, 5)), 2 * vector(0, 5))
    with pytest.raises(TypeError, match="integer"):
        gf.jit(lambda k: gf.numpy.eye(3, k=k))(1.5)


# ---- B26: symbolic zeros ----


def with_symbolic_vjp(L: Any, n: Any, seen: list) -> Any:
    zero = L.custom_derivatives.SymbolicZero
    f = L.custom_vjp(lambda x, d, k: (x * d["a"], n.sin(d["b"]) * k))

    def fwd(x: Any, d: Any, k: Any) -> Any:
        seen.append((x.perturbed, d["a"].perturbed, d["b"].perturbed, k.perturbed))
        values = x.value, d["a"].value, d["b"].value, k.value
        return (values[0] * values[1], n.sin(values[2]) * values[3]), values

    def bwd(values: Any, cts: Any) -> Any:
        x, a, b, k = values
        seen.append(tuple(type(c) is zero for c in cts))
        assert [c.shape for c in cts] == [x.shape, b.shape]
        first, second = (n.zeros(c.shape, c.dtype) if type(c) is zero else c for c in cts)
        return first * a, {"a": first * x, "b": second * n.cos(b) * k}, None

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f


SYMBOLIC_VJP: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "all": lambda L, n, f, x: L.grad(lambda v: f(v, {"a": v, "b": v}, 3)[0].sum())(x),
    "one leaf": lambda L, n, f, x: L.grad(lambda v: f(x, {"a": x, "b": v}, 3)[1].sum())(x),
    "jit": lambda L, n, f, x: L.jit(
        L.grad(lambda v: f(x, {"a": x, "b": v}, 3)[1].sum())
    )(x),
    "vmap": lambda L, n, f, x: L.vmap(
        L.grad(lambda v: f(v, {"a": x[0], "b": x[0]}, 3)[0])
    )(x),
}  # fmt: skip


@pytest.mark.parametrize("name", SYMBOLIC_VJP)
def test_b26_symbolic_zeros_of_custom_vjp(name):
    found = []

    def program(L: Any, n: Any) -> Any:
        found.append([])
        return SYMBOLIC_VJP[name](L, n, with_symbolic_vjp(L, n, found[-1]), n.asarray(vector(0)))

    same(program)
    assert found[0] == found[1]


def test_b26_in_recorded_programs():
    """There the rules are traced for what is perturbed, and for the cotangents that there are."""
    x = gf.numpy.asarray(vector(0))
    for around in (
        gf.jit,
        gf.vmap,
        lambda f: gf.jit(gf.vmap(f)),
        lambda f: gf.checkpoint(gf.jit(f)),
    ):
        seen: list = []
        f = with_symbolic_vjp(gf, gf.numpy, seen)
        g = around(lambda b: f(x[0], {"a": x[0], "b": b}, 3)[1])
        got = gf.grad(lambda v: g(v).sum())(x)
        assert np.allclose(got, 3 * np.cos(vector(0)), rtol=1e-5)
        assert {(False, False, True, False), (True, False)} <= set(seen)


def with_symbolic_jvp(L: Any, n: Any, seen: list) -> Any:
    zero = L.custom_derivatives.SymbolicZero
    f = L.custom_jvp(lambda x, y: (x * y, x))

    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (s, t) = primals, tangents
        seen.append((type(s) is zero, type(t) is zero))
        total = 0.0 if type(s) is zero else s * y
        total = total if type(t) is zero else total + x * t
        return (x * y, x), (total, s)

    f.defjvp(rule, symbolic_zeros=True)
    return f


SYMBOLIC_JVP: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "jvp": lambda L, n, f, x: L.jvp(lambda v: f(v, 2.0)[0], (3.0,), (1.0,)),
    "grad": lambda L, n, f, x: L.grad(lambda v: f(3.0, v)[0])(2.0),
    "both": lambda L, n, f, x: L.grad(lambda v: sum(f(v, v)))(2.0),
    "jit of grad": lambda L, n, f, x: L.jit(L.grad(lambda v: f(3.0, v)[0]))(2.0),
    "grad of jit": lambda L, n, f, x: L.grad(L.jit(lambda v: f(3.0, v)[0]))(2.0),
    "vmap": lambda L, n, f, x: L.vmap(L.grad(lambda v: f(3.0, v)[0]))(x),
    "of vmap": lambda L, n, f, x: L.grad(
        lambda v: L.jit(L.vmap(lambda y: f(3.0, y)[0]))(v).sum()
    )(x),
    "scan": lambda L, n, f, x: L.grad(
        lambda v: L.lax.scan(lambda c, _: (f(c, 2.0)[0], None), v, None, length=2)[0]
    )(2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SYMBOLIC_JVP)
def test_b26_symbolic_zeros_of_custom_jvp(name):
    found = []

    def program(L: Any, n: Any) -> Any:
        found.append([])
        return SYMBOLIC_JVP[name](L, n, with_symbolic_jvp(L, n, found[-1]), n.asarray(vector(0)))

    same(program)
    # A recorded program is traced for all tangents too, to know what the rule captures.
    assert set(found[1]) <= set(found[0]) <= {*found[1], (False, False)}


def test_b26_rules_return_symbolic_zeros():
    def program(L: Any, n: Any) -> Any:
        names = L.custom_derivatives
        f = L.custom_vjp(lambda x, y: x * y)
        f.defvjp(
            lambda x, y: (x.value * y.value, y.value),
            lambda y, ct: (ct * y, names.zero_from_primal(y, symbolic_zeros=True)),
            symbolic_zeros=True,
        )
        dense = names.zero_from_primal(n.asarray(vector(1)))
        return L.grad(lambda x, y: f(x, y).sum(), (0, 1))(
            n.asarray(vector(0)), n.asarray(vector(1))
        ), dense

    same(program)


def test_b26_copies_keep_symbolic_zeros():
    seen: list = []
    f = copy.deepcopy(with_symbolic_jvp(gf, gf.numpy, seen))
    assert float(gf.grad(lambda v: f(3.0, v)[0])(2.0)) == 3.0
