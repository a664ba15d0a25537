"""A new primitive with its rules: python examples/custom_primitive.py

sinc(x) = sin(x) / x, 1 at 0. One definition says its shape, its derivative, how it is batched and
what computes it; then grad, vmap and jit work on it in any composition.
"""

from __future__ import annotations

import numpy as np
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.extend import Elementwise, Primitive, bind


def linearize(nonzero, x):
    """(sinc(x), tangent -> tangent): the derivative is computed once, here."""
    slope = jnp.where(x == 0, 0.0, (jnp.cos(x) - sinc(x)) / jnp.where(x == 0, 1.0, x))
    return sinc(x), lambda t: slope * t


def batch(size, xs, dims):
    """The batched operation and where its batch dimension lies: elementwise, so nowhere new."""
    return sinc(xs[0]), dims[0]


sinc_p = Primitive(
    "sinc",
    lambda x: x,  # the output has the operand's shape and dtype
    linearize=linearize,
    batch=batch,
    lowering=Elementwise(torch=lambda x: torch.special.sinc(x / torch.pi)),
)


def sinc(x):
    """sin(x) / x, elementwise."""
    return bind(sinc_p, jnp.asarray(x))


def main(steps: int = 1) -> float:
    """Returns the largest error of values and derivatives."""
    x = np.float32([-7.0, -1.0, 0.0, 0.5, 3.0, 20.0])
    errors = [np.abs(sinc(x) - np.sinc(x / np.pi)).max()]

    exact = np.where(x == 0, 0, (np.cos(x) - np.sinc(x / np.pi)) / np.where(x == 0, 1, x))
    slopes = gf.jit(gf.vmap(gf.grad(sinc)))(x)
    errors.append(np.abs(slopes - exact).max())

    forward = gf.vmap(lambda x: gf.jvp(sinc, (x,), (1.0,))[1])(jnp.asarray(x))
    errors.append(np.abs(forward - exact).max())

    # sinc'' = -sinc - 2 sinc' / x
    away = x[x != 0]
    second = gf.vmap(gf.grad(gf.grad(sinc)))(away)
    errors.append(np.abs(second - (-np.sinc(away / np.pi) - 2 * exact[x != 0] / away)).max())
    print(gf.make_jaxpr(gf.grad(sinc))(1.0))
    worst = float(max(map(float, errors)))
    print(f"largest error {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
