"""numpy functions under grad, jit and vmap: derivatives against JAX, the rest against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import jit
from tests.numpy.reference import values

X = values((3, 4), "float32", 7)
S = values((3, 3), "float32", 8)
P = np.abs(X) + 0.5

FUNCTIONS: list[tuple[str, Callable[[Any, Any], Any], np.ndarray]] = [
    ("logaddexp", lambda n, x: n.logaddexp(x, 0.3), X), ("hypot", lambda n, x: n.hypot(x, 1.5), X),
    ("sinc", lambda n, x: n.sinc(x), X), ("log2", lambda n, x: n.log2(x), P),
    ("log10", lambda n, x: n.log10(x), P), ("power", lambda n, x: x**2.5, P),
    ("integer power", lambda n, x: x**3, X), ("power by array", lambda n, x: n.power(1.7, x), X),
    ("remainder", lambda n, x: n.remainder(x, 0.7), X),
    ("where", lambda n, x: n.where(x > 0, x, 2 * x), X),
    ("clip", lambda n, x: n.clip(x, -1, 1), X), ("maximum", lambda n, x: n.maximum(x, 0.0), X),
    ("var", lambda n, x: n.var(x, 0), X), ("std", lambda n, x: n.std(x, 1, ddof=1), X),
    ("mean where", lambda n, x: n.mean(x, 1, where=n.asarray(X > 0)), X),
    ("max", lambda n, x: n.max(x, 1), X), ("min", lambda n, x: n.min(x), X),
    ("prod", lambda n, x: n.prod(x, 1), X),
    ("cumsum", lambda n, x: n.cumsum(x, 1), X), ("cumprod", lambda n, x: n.cumprod(x, 0), X),
    ("sort", lambda n, x: n.sort(x, 1), X), ("median", lambda n, x: n.median(x, 1), X),
    ("quantile", lambda n, x: n.quantile(x, 0.3, axis=0), X),
    ("norm", lambda n, x: n.linalg.norm(x, axis=1), X),
    ("nuclear norm", lambda n, x: n.linalg.norm(x, "nuc"), X),
    ("det", lambda n, x: n.linalg.det(x), S),
    ("inv", lambda n, x: n.linalg.inv(x), S), ("slogdet", lambda n, x: n.linalg.slogdet(x)[1], S),
    ("solve", lambda n, x: n.linalg.solve(x, n.asarray(S[0])), S),
    ("pinv", lambda n, x: n.linalg.pinv(x), X),
    ("einsum", lambda n, x: n.einsum("ij,kj->ik", x, x), X), ("matmul", lambda n, x: x @ x.T, X),
    ("tensordot", lambda n, x: n.tensordot(x, x, ((0,), (0,))), X),
    ("kron", lambda n, x: n.kron(x, x), X),
    ("trace", lambda n, x: n.trace(x), S), ("diag", lambda n, x: n.diag(n.diag(x)), S),
    ("tril", lambda n, x: n.tril(x), S), ("roll", lambda n, x: n.roll(x, 1, 1), X),
    ("pad edge", lambda n, x: n.pad(x, 2, "edge"), X),
    ("pad reflect", lambda n, x: n.pad(x, 2, "reflect"), X),
    ("repeat", lambda n, x: n.repeat(x, 2, 1), X), ("tile", lambda n, x: n.tile(x, (2, 2)), X),
    ("take", lambda n, x: n.take(x, n.asarray([0, 2, 2]), 0), X),
    ("index", lambda n, x: x[1:, ::-1][:, [0, 1]], X),
    ("take_along_axis", lambda n, x: n.take_along_axis(x, n.argsort(x, 1)[:, :2], 1), X),
    ("interp", lambda n, x: n.interp(x, n.linspace(-3, 3, 7), n.arange(7.0) ** 2), X),
    ("fft", lambda n, x: n.abs(n.fft.fft(x)), X),
    ("rfft", lambda n, x: n.real(n.fft.irfft(n.fft.rfft(x) ** 2)), X),
    ("convolve", lambda n, x: n.convolve(x[0], x[1]), X),
    ("gradient", lambda n, x: n.gradient(x, axis=1), X),
    ("cov", lambda n, x: n.cov(x), X), ("trapezoid", lambda n, x: n.trapezoid(x, axis=0), X),
    ("nanmean", lambda n, x: n.nanmean(x, 0), X), ("cross", lambda n, x: n.cross(x, x[::-1]), S),
    ("concatenate", lambda n, x: n.concatenate([x, 2 * x], 1), X),
    ("arctan2", lambda n, x: n.arctan2(x, 0.5), X),
    ("average", lambda n, x: n.average(x, 1, n.asarray(P[0])), X),
    ("unwrap", lambda n, x: n.unwrap(x * 3), X),
]  # fmt: skip
IDS = [f[0] for f in FUNCTIONS]


def weights(shape: tuple[int, ...]) -> np.ndarray:
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)


@pytest.mark.parametrize("name, f, x", FUNCTIONS, ids=IDS)
def test_derivative(name: str, f: Callable, x: np.ndarray) -> None:
    def mine(v: Any) -> Any:
        y = f(jnp, v)
        return (y * weights(y.shape)).sum()

    def reference(v: Any) -> Any:
        y = f(jax_numpy, v if not (name == "index") else v)
        return (y * weights(y.shape)).sum()

    if name == "index":
        reference = lambda v: (v[1:, ::-1][:, np.array([0, 1])] * weights((2, 2))).sum()
    expected = jax.grad(reference)(jax_numpy.asarray(x))
    got = grad(mine)(jnp.asarray(x))
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), atol=2e-4 * scale)
    staged = jit(grad(mine))(jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(staged), np.asarray(got), atol=1e-5 * scale)


@pytest.mark.parametrize("name, f, x", FUNCTIONS, ids=IDS)
def test_batched(name: str, f: Callable, x: np.ndarray) -> None:
    batch = np.stack([x, x[::-1] * 0.9])
    got = vmap(lambda v: f(jnp, v))(jnp.asarray(batch))
    expected = [np.asarray(f(jnp, jnp.asarray(v))) for v in batch]
    np.testing.assert_allclose(np.asarray(got), np.stack(expected), rtol=1e-4, atol=1e-4)


def test_derivatives_where_operands_meet():
    """At equal operands, at zero and at whole numbers the functions are smooth."""
    for name in ("logaddexp", "logaddexp2"):
        f, theirs = getattr(jnp, name), getattr(jax_numpy, name)
        for x, y in ((0.3, 0.3), (-2.0, -2.0), (0.0, -0.0), (1.0, 2.0)):
            for i in (0, 1):
                ours = grad(lambda a, b, i=i, f=f: grad(f, i)(a, b), i)(x, y)
                want = jax.grad(lambda a, b, i=i, f=theirs: jax.grad(f, i)(a, b), i)(x, y)
                np.testing.assert_allclose(float(ours), float(want), rtol=1e-4)
        assert float(f(np.inf, np.inf)) == np.inf and float(f(-np.inf, -np.inf)) == -np.inf
        assert [float(g) for g in grad(f, (0, 1))(-np.inf, -np.inf)] == [0.5, 0.5]
    assert [float(grad(jnp.cbrt)(x)) for x in (0.0, np.inf)] == [np.inf, 0.0]
    for x in (-3.0, -0.5, 0.0, 2.0):
        assert float(grad(lambda v: jnp.modf(v)[0])(x)) == 1.0
        parts = [float(p) for p in jnp.modf(x)]
        assert str(parts) == str([float(p) for p in np.modf(np.float32(x))])
        assert float(grad(lambda v: jnp.copysign(v, 1.0))(x)) == (-1.0 if x < 0 else 1.0)
