"""Derivatives of derivatives: python examples/higher_order.py

Hessian-vector products without the Hessian, Jacobians both ways, a Newton step, and a derivative
through the solution of an equation by the implicit function theorem.
"""

from __future__ import annotations

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax


def rosenbrock(x):
    """Rosenbrock's valley; its least value is 0, at ones."""
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def hvp(f, x, v):
    """Hessian of f at x, times v: the derivative of the gradient along v."""
    return gf.jvp(gf.grad(f), (x,), (v,))[1]


@gf.jit
def newton(x):
    """Damped Newton steps down Rosenbrock's valley."""

    def step(x, _):
        hessian = gf.hessian(rosenbrock)(x) + 1e-3 * jnp.eye(x.size)
        move = jnp.linalg.solve(hessian, gf.grad(rosenbrock)(x))
        # The longest of these steps that goes down.
        sizes = 0.5 ** jnp.arange(12)
        values = gf.vmap(lambda s: rosenbrock(x - s * move))(sizes)
        return x - sizes[jnp.argmin(values)] * move, values.min()

    return lax.scan(step, x, None, length=40)


@gf.custom_jvp
def fixed_point(a):
    """The x with x = cos(a x), found by iteration, which nobody differentiates."""
    return lax.while_loop(
        lambda s: jnp.abs(s[0] - s[1]) > 1e-6, lambda s: (jnp.cos(a * s[0]), s[0]), (0.7, 2.0)
    )[0]


@fixed_point.defjvp
def _(primals, tangents):
    # Differentiating x = g(a, x): dx = (dg/da da) / (1 - dg/dx).
    (a,), (da,) = primals, tangents
    x = fixed_point(a)
    slope_a, slope_x = gf.grad(lambda a, x: jnp.cos(a * x), (0, 1))(a, x)
    return x, slope_a * da / (1 - slope_x)


def main(steps: int = 1) -> float:
    """Returns the largest error of all that is computed, against what it should be."""
    x = jnp.array([1.2, 0.3, 2.0, 1.5])
    v = jnp.array([1.0, -1.0, 2.0, 0.5])
    full = gf.hessian(rosenbrock)(x)
    errors = [jnp.abs(hvp(rosenbrock, x, v) - full @ v).max() / jnp.abs(full).max()]

    f = lambda x: jnp.stack([jnp.sin(x[0]) * x[1], jnp.exp(-x[2] * x[3])])
    errors.append(jnp.abs(gf.jacfwd(f)(x) - gf.jacrev(f)(x)).max())

    start = jnp.array([-1.2, 1.0])
    found, values = newton(start)
    print(f"Newton: {float(rosenbrock(start)):.1f} to {float(values[-1]):.1e} at {found.tolist()}")
    errors.append(jnp.abs(found - 1).max())

    a, h = 0.8, 1e-3
    implicit = gf.grad(fixed_point)(a)
    difference = (fixed_point(a + h) - fixed_point(a - h)) / (2 * h)
    second = gf.grad(gf.grad(fixed_point))(a)
    difference2 = (gf.grad(fixed_point)(a + h) - gf.grad(fixed_point)(a - h)) / (2 * h)
    print(f"d/da of x = cos(a x): {float(implicit):.5f}, second {float(second):.5f}")
    errors += [jnp.abs(implicit - difference), jnp.abs(second - difference2)]
    worst = max(map(float, errors))
    print(f"largest error {worst:.1e}")
    return worst


if __name__ == "__main__":
    main()
