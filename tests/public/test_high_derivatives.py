"""First to fourth derivatives of every elementwise function at smooth points, beside JAX's in
float64: nested reverse mode here, nested forward mode there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as J
import jax.scipy.special as js
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
import genesis_fn.scipy.special as gs

MODULES: dict[str, tuple[Any, Any]] = {
    "numpy": (jnp, J), "lax": (gf.lax, jax.lax), "nn": (gf.nn, jax.nn), "special": (gs, js),
}  # fmt: skip
PLAIN = (-1.7, -0.6, 0.3, 0.8, 2.3)
POSITIVE, INSIDE, ABOVE = (0.2, 0.7, 1.6, 2.8), (-0.7, -0.2, 0.4, 0.8), (1.2, 1.9, 3.4)
BETWEEN = (0.15, 0.4, 0.65, 0.9)
# Where a function is smooth, unless it is so at the plain points.
POINTS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys("log log10 log2 log1p sqrt rsqrt lgamma gammaln digamma gamma log1mexp entr "
                    "factorial".split(), POSITIVE),
    **dict.fromkeys("asin acos arcsin arccos atanh arctanh erf_inv erfinv".split(), INSIDE),
    **dict.fromkeys("exp1 expi loggamma spence".split(), POSITIVE),
    **dict.fromkeys(("acosh", "arccosh"), ABOVE), **dict.fromkeys(("logit", "ndtri"), BETWEEN),
}  # fmt: skip
NAMES: dict[str, str] = {
    "numpy": "abs absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin "
             "asinh atan atanh cbrt cos cosh deg2rad degrees exp exp2 expm1 fabs i0 log "
             "log10 log1p log2 "
             "nan_to_num negative positive rad2deg radians real reciprocal sin sinc sinh sqrt "
             "square tan tanh",
    "lax": "bessel_i0e bessel_i1e digamma erf erf_inv erfc lgamma logistic neg rsqrt",
    "nn": "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log1mexp "
          "log_sigmoid mish relu relu6 selu sigmoid silu soft_sign softplus sparse_plus "
          "sparse_sigmoid squareplus swish tanh",
    "special": "dawsn digamma entr erf erfc erfcx erfinv exp1 expi expit factorial gamma gammaln "
               "i0 i0e i1 i1e log_ndtr loggamma logit ndtr ndtri spence",
}  # fmt: skip
# JAX compiles higher ones for seconds.
ORDERS: dict[str, int] = dict.fromkeys(
    ("ndtri", "i0", "i1", "i0e", "gamma", "factorial", "log_ndtr"), 3
) | {"exp1": 1}  # JAX has no second one of exp1 under jit
# Constant, or the operand itself, wherever they have a derivative; zeta has none by its first
# operand in JAX.
FLAT = set("around ceil floor round rint trunc fix sign spacing imag isfinite stop_gradient "
           "gammasgn copy array from_dlpack asarray ascontiguousarray conj conjugate clip "
           "block squeeze transpose stage "
           "optimization_barrier empty_like ones_like zeros_like "
           "real_if_close trim_zeros zeta".split())  # fmt: skip


def elementwise(f: Any) -> bool:
    """Whether `f` maps each number of an array to a float, by itself."""
    if not callable(f) or inspect.isclass(f):
        return False
    x = jnp.array([0.3, 0.6, 0.9, 0.45])
    try:
        y, turned, square = [np.asarray(f(v)) for v in (x, x[::-1], x.reshape(2, 2))]
        single = np.asarray(f(x[1]))
    except Exception:  # it takes something else
        return False
    if y.dtype != np.float32 or y.shape != (4,) or square.shape != (2, 2) or single.shape != ():
        return False
    same = lambda a, b: np.allclose(a, b, equal_nan=True)
    return same(y[::-1], turned) and same(y, square.ravel()) and same(single, y[1])


@pytest.mark.parametrize("space", sorted(MODULES))
def test_every_elementwise_function_has_an_entry(space: str) -> None:
    ours, theirs = MODULES[space]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            n
            for n in set(dir(ours)) & set(dir(theirs))
            if not n.startswith("_") and elementwise(getattr(ours, n))
        }
    known = FLAT | set(NAMES[space].split())
    if space == "lax":  # numpy's of the same name bind the same primitives
        known |= set(NAMES["numpy"].split())
    assert found - known == set()


def nested(f: Callable, orders: int) -> Callable:
    """All derivatives up to an order, by JAX."""

    def run(v: Any) -> list[Any]:
        slopes = []
        g = f
        for _ in range(orders):
            g = (lambda g: lambda v: jax.jvp(g, (v,), (J.ones_like(v),))[1])(g)
            slopes.append(g(v))
        return slopes

    return jax.jit(jax.vmap(run))


@pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")
@pytest.mark.parametrize("name", [f"{s}.{n}" for s in NAMES for n in NAMES[s].split()])
def test_derivatives(name: str) -> None:
    space, name = name.split(".")
    ours, theirs = [getattr(m, name) for m in MODULES[space]]
    x = np.array(POINTS.get(name, PLAIN))
    with jax.enable_x64(True):
        want = nested(theirs, ORDERS.get(name, 4))(x)
    f = ours
    for order, slope in enumerate(want, 1):
        f = gf.grad(f)
        kind, bound = ("float32", 10.0 ** (order - 6)) if order < 3 else ("float64", 1e-8)
        run = gf.jit(gf.vmap(f)) if order % 2 == 0 else gf.vmap(f)
        got = run(jnp.asarray(x, kind))
        assert got.dtype == kind
        atol = bound * max(1.0, float(np.abs(slope).max()))
        np.testing.assert_allclose(got, slope, rtol=bound, atol=atol, err_msg=f"order {order}")
