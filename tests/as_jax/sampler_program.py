"""Draws from every sampler of `jax.random` with fixed keys, and writes them to a .npz file.

A program of its own: `test_samplers.py` runs it on JAX and on the library.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

K, S = random.PRNGKey(42), (101,)
SPREAD = jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.5]])
WEIGHTS = jnp.array([0.1, 0.2, 0.3, 0.3, 0.1])
TABLE = jnp.arange(40.0).reshape(8, 5)

# By dtype as well: the name is followed by it.
OF_DTYPE = {
    "bits": (("uint8", "uint16", "uint32"), lambda d: random.bits(K, S, d)),
    "randint": (
        ("int8", "int16", "int32", "uint8", "uint16", "uint32"),
        lambda d: random.randint(K, S, 3, 101, d),
    ),
    "uniform": (("float32", "bfloat16", "float16"), lambda d: random.uniform(K, S, d)),
    "normal": (("float32", "bfloat16", "float16", "complex64"), lambda d: random.normal(K, S, d)),
    "exponential": (("float32", "bfloat16", "float16"), lambda d: random.exponential(K, S, d)),
    "laplace": (("float32", "bfloat16", "float16"), lambda d: random.laplace(K, S, d)),
    "gumbel": (("float32", "bfloat16"), lambda d: random.gumbel(K, S, d)),
}

DRAWS = {
    "randint, wide range": lambda: random.randint(K, S, -(2**31), 2**31 - 1),
    "randint, arrays": lambda: random.randint(K, S, jnp.arange(101) % 7, 50),
    "uniform, range": lambda: random.uniform(K, S, minval=-2.0, maxval=3.0),
    "truncated_normal": lambda: random.truncated_normal(K, -1.0, 2.0, S),
    "bernoulli": lambda: random.bernoulli(K, 0.3, S),
    "rademacher": lambda: random.rademacher(K, S),
    "categorical": lambda: random.categorical(K, jnp.arange(5.0), shape=S),
    "categorical, no replacement": lambda: random.categorical(
        K, jnp.arange(5.0), shape=(3,), replace=False
    ),
    "geometric": lambda: random.geometric(K, 0.25, S),
    "poisson": lambda: random.poisson(K, jnp.linspace(0.1, 30.0, 301)),
    "binomial": lambda: random.binomial(K, 20.0, 0.3, S),
    "multinomial": lambda: random.multinomial(K, 20.0, WEIGHTS[None] / WEIGHTS.sum()),
    "logistic": lambda: random.logistic(K, S),
    "cauchy": lambda: random.cauchy(K, S),
    "rayleigh": lambda: random.rayleigh(K, 1.5, S),
    "maxwell": lambda: random.maxwell(K, S),
    "double_sided_maxwell": lambda: random.double_sided_maxwell(K, 0.5, 2.0, S),
    "weibull_min": lambda: random.weibull_min(K, 2.0, 1.5, S),
    "pareto": lambda: random.pareto(K, 2.5, S),
    "lognormal": lambda: random.lognormal(K, 0.7, S),
    "triangular": lambda: random.triangular(K, 0.0, 1.0, 3.0, S),
    "wald": lambda: random.wald(K, 2.0, S),
    "gamma": lambda: random.gamma(K, jnp.linspace(0.1, 30.0, 101)),
    "loggamma": lambda: random.loggamma(K, jnp.linspace(0.1, 30.0, 101)),
    "beta": lambda: random.beta(K, 2.0, 0.7, S),
    "dirichlet": lambda: random.dirichlet(K, jnp.array([1.0, 2.0, 0.5]), (30,)),
    "chisquare": lambda: random.chisquare(K, 3.0, S),
    "f": lambda: random.f(K, 3.0, 5.0, S),
    "t": lambda: random.t(K, 4.0, S),
    "generalized_normal": lambda: random.generalized_normal(K, 1.5, S),
    "ball": lambda: random.ball(K, 3, shape=(30,)),
    "multivariate_normal": lambda: random.multivariate_normal(K, jnp.zeros(3), SPREAD, (30,)),
    "orthogonal": lambda: random.orthogonal(K, 4, (3,)),
    "permutation": lambda: random.permutation(K, 301),
    "permutation, axis": lambda: random.permutation(K, TABLE, axis=1),
    "permutation, independent": lambda: random.permutation(K, TABLE, axis=1, independent=True),
    "choice": lambda: random.choice(K, 50, (30,)),
    "choice, no replacement": lambda: random.choice(K, 50, (30,), replace=False),
    "choice, weights": lambda: random.choice(K, 5, S, p=WEIGHTS),
    "choice, weights, no replacement": lambda: random.choice(K, 5, (3,), False, WEIGHTS),
    "choice, axis": lambda: random.choice(K, TABLE, (4,), axis=1),
    "split": lambda: random.split(K, (2, 3)),
    "fold_in": lambda: random.fold_in(K, 2**32 - 1),
    "key_data": lambda: random.key_data(random.key(-7)),
    "clone": lambda: random.key_data(random.clone(random.key(9))),
    "wrap_key_data": lambda: random.bits(random.wrap_key_data(K), S),
    "key, above 32 bits": lambda: random.key_data(random.key(2**40 + 3)),
    "vmap of bits": lambda: jax.vmap(lambda k: random.bits(k, (3,)))(random.split(K, 5)),
    "vmap of gamma": lambda: jax.vmap(lambda k: random.gamma(k, 2.0, (3,)))(random.split(K, 5)),
}


def drawn() -> dict[str, np.ndarray]:
    """{name: what was drawn}, 16-bit floats as float32, which holds them all."""
    found = {n: f() for n, f in DRAWS.items()}
    for name, (kinds, f) in OF_DTYPE.items():
        found |= {f"{name}, {kind}": f(kind) for kind in kinds}
    narrow = lambda x: x.astype("float32") if x.dtype in ("bfloat16", "float16") else x
    return {n: np.asarray(narrow(x)) for n, x in found.items()}


if __name__ == "__main__":
    np.savez(sys.argv[1], **drawn())
