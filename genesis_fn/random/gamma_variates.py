"""Gamma variates in log space, with the derivative by their shape parameter.

Samples: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, for all
elements at once, repeated until every element has accepted a proposal; or approximately by one
formula, without a loop. With a key of threefry2x32, whose samplers draw JAX's numbers, each element
has a key of its own, as in JAX. Derivatives of exact samples: implicit reparameterisation
(Figurnov, Mohamed and Mnih, 2018), d log z / da = -(dF(z; a)/da) / (z p(z; a)), integrated
numerically.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core.dtypes import DType
from genesis_fn.core.types.annotations import Array, ArrayLike, Key
from genesis_fn.primitives import elementwise as ops
from genesis_fn.random.keys import key_impl, split
from genesis_fn.random.samplers import exponential, normal, uniform
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.custom.derivative_rules import custom_jvp
from genesis_fn.transforms.keys.key_reuse import unmarked

# An integrand is negligible this many nats below its value at the start.
_DEPTH = 32.0
_NODES = 64


def log_standard_gamma(key: Key, a: Array) -> Array:
    """log z for z ~ Gamma(a, 1) elementwise, in the dtype of `a`; -inf where a is 0, inf where
    a is inf, NaN where a is negative."""
    return _sample(key, a)


@custom_jvp
def _sample(key: Key, a: Array) -> Array:
    if key_impl(key) == "threefry2x32":
        keys = split(unmarked(key), a.size)
        valid = (a > 0) & (a < np.inf)
        one = vmap(_sample_one)(keys, jnp.where(valid, a, 1).reshape(-1)).reshape(a.shape)
        return jnp.where(valid, one, _at_limits(a))
    return _sample_at_once(key, a)


def _at_limits(a: Array) -> Array:
    """log z where `a` is no positive number."""
    return jnp.where(a == 0, -np.inf, jnp.where(a == np.inf, np.inf, np.nan)).astype(a.dtype)


def _sample_one(key: Key, a: Array) -> Array:
    """log z for one element, from a key of its own: the order of draws is JAX's."""
    dtype = a.dtype
    draw = lambda k: uniform(k, (), dtype)
    large = a >= 1
    d = jnp.where(large, a, a + 1) - 1 / 3
    c = (1 / 3) / jnp.sqrt(d)

    def propose(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, sub = split(state[0])
        x = normal(sub, (), dtype)
        return k, x, 1 + x * c

    def refused(state: tuple[Any, ...]) -> Array:
        _, square, v, u = state
        squeezed = u >= 1 - 0.0331 * (square * square)
        return squeezed & (jnp.log(u) >= square * 0.5 + d * ((1 - v) + jnp.log(v)))

    def attempt(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, for_x, for_u = split(state[0], 3)
        start = (for_x, jnp.zeros((), dtype), jnp.full((), -1, dtype))
        _, x, v = while_loop(lambda s: s[2] <= 0, propose, start)
        return k, x * x, (v * v) * v, draw(for_u)

    key, boost = split(key)
    first = (key, jnp.zeros((), dtype), jnp.ones((), dtype), jnp.full((), 2, dtype))
    v = while_loop(refused, attempt, first)[2]
    # Gamma(a) = Gamma(a + 1) * uniform**(1 / a), which underflows outside log space.
    e = -exponential(boost, (), dtype)
    return jnp.log(d) + jnp.log(v) + jnp.where(large | (e == 0), 0, e / a)


def _sample_at_once(key: Key, a: Array) -> Array:
    shape, dtype = a.shape, a.dtype
    rounds, boost = split(unmarked(key))
    small = a < 1
    d = jnp.where(small, a + 1, a) - 1 / 3
    c = 1 / (3 * jnp.sqrt(d))

    def unfinished(state: tuple[Any, ...]) -> Array:
        return jnp.any(~state[2])

    def attempt(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, log_v, done = state
        k, first, second = split(k, 3)
        x = normal(first, shape, dtype)
        u = uniform(second, shape, dtype)
        root = 1 + c * x
        inside = root > 0
        fresh = 3 * jnp.log(jnp.where(inside, root, 1))
        v = jnp.exp(fresh)
        # log(0) is -inf: such a u is accepted, as it should be.
        accepted = inside & (jnp.log(u) < 0.5 * x * x + d * (1 - v + fresh))
        return k, jnp.where(~done & accepted, fresh, log_v), done | accepted

    # A negative, infinite or NaN parameter would never be accepted.
    invalid = ~((d > 0) & (d < np.inf))
    state = (rounds, jnp.full(shape, np.nan, dtype), invalid)
    log_z = jnp.log(d) + while_loop(unfinished, attempt, state)[1]
    # Gamma(a) = Gamma(a + 1) * uniform**(1 / a), which underflows outside log space.
    e = exponential(boost, shape, dtype)
    log_z = jnp.where(small, log_z - e / jnp.where(small, a, 1), log_z)
    log_z = jnp.where(a == 0, -np.inf, jnp.where(a == np.inf, np.inf, log_z))
    return jnp.where(a < 0, np.nan, log_z)


@_sample.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    key, a = primals
    log_z = _sample(unmarked(key), a)
    return log_z, log_gamma_grad(a, log_z) * tangents[1]


# The cube root of (the quantile of Gamma(a, 1) at the probability of a normal x) / a is 1 + sum_j
# P_j(x) a**(-j / 2): Cornish and Fisher's expansion, after Wilson and Hilferty's transformation.
# The P_j, by ascending powers of x, solve q'(x) = phi(x) / density(q) order by order.
_CUBE_ROOT = (
    (1.0,),
    (0.0, 1 / 3),
    (-1 / 9,),
    (0.0, 1 / 108, 0.0, -1 / 324),
    (-7 / 1215, 0.0, 4 / 1215, 0.0, 1 / 1215),
    (0.0, -5 / 2592, 0.0, -5 / 2916, 0.0, -1 / 7776),
    (121 / 76545, 0.0, 134 / 76545, 0.0, 2 / 5103, 0.0, 1 / 229635),
)
# As many steps up from `a`: from 4 on the expansion is right to 3e-5 of probability.
_STEPS = 4


def log_approximate_gamma(key: Key, a: Array) -> Array:
    """log z for z ~ Gamma(a, 1) up to 3e-5 of probability, as a smooth function of a normal, of
    uniforms and of `a`, by which it is differentiated.

    Gamma(a) = Gamma(a + 4) * prod_k uniform_k**(1 / (a + k)): Stuart, "Gamma-distributed products
    of independent random variables", 1962.
    """
    first, second = split(key)
    high = a + _STEPS
    h = 1 / jnp.sqrt(high)
    x = normal(first, a.shape, a.dtype)
    root = sum_of_powers(h, [sum_of_powers(x, c) for c in _CUBE_ROOT])
    # The root is positive for every x that `normal` draws in float32.
    log_z = jnp.log(high) + 3 * jnp.log(jnp.maximum(root, float(jnp.finfo(a.dtype).tiny)))
    e = exponential(second, (_STEPS, *a.shape), a.dtype)
    for k in range(_STEPS):
        log_z = log_z - e[k] / (a + k)
    return jnp.where(a == np.inf, np.inf, jnp.where(a < 0, np.nan, log_z))


def sum_of_powers(x: Array, coefficients: Sequence[ArrayLike]) -> Any:
    """sum_k coefficients[k] x**k, by Horner's rule."""
    total: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


def log_gamma_grad(a: Array, log_z: Array) -> Array:
    """d log z / da at a fixed quantile of Gamma(a, 1).

    With t = z exp(-r) below z and t = z exp(r) above it, the two forms of the integral are
    -int exp(-a r + z (1 - exp(-r))) (log z - r - digamma(a)) dr over the lower tail and
    +int exp(+a r - z (exp(r) - 1)) (log z + r - digamma(a)) dr over the upper one; the form whose
    tail is the smaller is taken, so that nothing cancels.
    """
    z = jnp.exp(log_z)
    upper = z > a
    side = jnp.where(upper, 1.0, -1.0).astype(a.dtype)
    # exponent(r) = -slope r - z (exp(side r) - 1 - side r), both terms negative
    slope = jnp.abs(z - a)
    # Where the exponent passes -_DEPTH: by its quadratic part near 0, by its true growth far out.
    near = 2 * _DEPTH / (slope + jnp.sqrt(slope * slope + 2 * _DEPTH * z))
    above = jnp.minimum(near, 1 + 1.5 * jnp.log1p(_DEPTH / jnp.where(upper, z, 1)))
    below = jnp.minimum(jnp.where(near < 2, 1.5 * near, np.inf), 1 + _DEPTH / a)
    reach = jnp.where(upper, above, below)
    offset = _log_ratio(log_z, z, a) + _log_minus_digamma(a)
    reach, slope, side, z, offset = [x[..., None] for x in (reach, slope, side, z, offset)]
    # Gauss and Legendre's nodes on [0, 1], squared to crowd where the integrand is largest.
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    u = 0.5 * (nodes + 1)
    r = reach * jnp.asarray(u * u, a.dtype)
    measure = reach * jnp.asarray(weights * u, a.dtype)
    y = side * r
    density = jnp.exp(-slope * r - z * _exp_minus_line(y))
    return jnp.sum(side * measure * density * (offset + y), -1)


def _log_ratio(log_z: Array, z: Array, a: Array) -> Array:
    """log(z / a), without cancellation where z is close to a."""
    near = jnp.abs(z - a) < 0.5 * a
    return jnp.where(near, jnp.log1p(jnp.where(near, (z - a) / a, 0)), log_z - jnp.log(a))


def _log_minus_digamma(a: Array) -> Array:
    """log(a) - digamma(a), by its asymptotic series where the difference would cancel."""
    big = jnp.where(a > 12, a, 12)
    s = 1 / (big * big)
    series = 0.5 / big + s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s / 240)))
    return jnp.where(a > 12, series, jnp.log(a) - ops.digamma(a))


def _exp_minus_line(y: Array) -> Array:
    """exp(y) - 1 - y."""
    small = jnp.abs(y) < 0.5
    t = jnp.where(small, y, 0)
    total = jnp.zeros_like(t)
    for n in range(12, 1, -1):
        total = (total * t) + 1 / math.factorial(n)
    return jnp.where(small, total * t * t, jnp.expm1(y) - y)


def as_dtype(x: ArrayLike, dtype: DType) -> Array:
    """A parameter as an array of dtype `dtype`."""
    return ops.convert(jnp.asarray(x), dtype)
