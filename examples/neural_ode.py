"""A neural differential equation learns a pendulum: python examples/neural_ode.py --plot paths.png

The solver takes as many steps as the tolerance asks for, in a `while_loop`, which has no gradient.
Its derivative is a differential equation too, which the same solver solves backwards in time: the
adjoint method, by `custom_vjp`. It is compared with the gradient through equal steps, a `scan`.

Sources: Chen et al., "Neural Ordinary Differential Equations", 2018; Dormand and Prince, "A family
of embedded Runge-Kutta formulae", 1980.
"""

from __future__ import annotations

import argparse

import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim, tree
from genesis_fn.flatten_util import ravel_pytree

# Dormand and Prince's method: where in a step its slopes are taken, how much each point takes of
# the slopes before it, and the last point (of fifth order) less the one of fourth order.
NODES = 0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1
WEIGHTS = (
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
)
ERROR = 71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40

FIELD = nn.Sequential(nn.Linear(2, 64), nn.tanh, nn.Linear(64, 64), nn.tanh, nn.Linear(64, 2))


def learned(params, t, y):
    """The slope of (angle, speed) [..., 2] that the network says."""
    return FIELD(params, y)


def pendulum(params, t, y):
    """The slope of (angle, speed) [..., 2] of a pendulum with friction."""
    angle, speed = y[..., 0], y[..., 1]
    return jnp.stack([speed, -jnp.sin(angle) - 0.1 * speed], -1)


def step(slope, t, y, h):
    """(y at t + h, an estimate of its error) of dy/dt = slope(t, y)."""
    slopes, point = [], y
    for node, weights in zip(NODES, WEIGHTS):
        point = y + h * sum(w * k for w, k in zip(weights, slopes))
        slopes.append(slope(t + node * h, point))
    return point, h * sum(w * k for w, k in zip(ERROR, slopes))


def integrate(slope, y, start, end, tolerance):
    """The pytree y at `end` from y at `start`, which may be the later time."""
    vector, restore = ravel_pytree(y)
    flat_slope = lambda t, v: ravel_pytree(slope(t, restore(v)))[0]

    def advance(state):
        t, v, h = state
        h = jnp.where(jnp.abs(h) < jnp.abs(end - t), h, end - t)
        new, error = step(flat_slope, t, v, h)
        size = jnp.max(jnp.abs(error) / (1 + jnp.maximum(jnp.abs(v), jnp.abs(new)))) / tolerance
        again = size > 1  # not so for NaN, which no smaller step would mend
        factor = jnp.clip(0.9 * size**-0.2, 0.2, 5.0)
        return jnp.where(again, t, t + h), jnp.where(again, v, new), h * factor

    last = lax.while_loop(lambda state: state[0] != end, advance, (start, vector, end - start))
    return restore(last[1])


def path(advance, y, times):
    """y at each of `times`, [times, ...]: `advance(y, start, end)` goes from one to the next."""

    def move(y, span):
        y = advance(y, *span)
        return y, y

    return jnp.concatenate([y[None], lax.scan(move, y, (times[:-1], times[1:]))[1]])


def adaptive(f, times, tolerance=1e-5):
    """solve(params, y): y at each of `times` of dy/dt = f(params, t, y), from y at the first.

    Its gradient keeps no steps: y is solved for again, backwards, and beside it the cotangents of
    y and of the parameters.
    """
    times = jnp.asarray(times)

    @gf.custom_vjp
    def solve(params, y):
        slope = lambda t, y: f(params, t, y)
        return path(lambda y, a, b: integrate(slope, y, a, b, tolerance), y, times)

    def forward(params, y):
        ys = solve(params, y)
        return ys, (params, ys)

    def backward(saved, cotangents):
        params, ys = saved

        def slope(t, state):
            y, cotangent, _ = state
            dy, pull = gf.vjp(lambda params, y: f(params, t, y), params, y)
            of_params, of_y = pull(-cotangent)
            return dy, of_y, of_params

        def retreat(carry, now):
            (cotangent, of_params), (y, more, start, end) = carry, now
            state = y, cotangent + more, of_params
            return integrate(slope, state, end, start, tolerance)[1:], None

        zeros = jnp.zeros_like(ys[0]), tree.map(jnp.zeros_like, params)
        spans = ys[1:], cotangents[1:], times[:-1], times[1:]
        (cotangent, of_params), _ = lax.scan(retreat, zeros, spans, reverse=True)
        return of_params, cotangent + cotangents[0]

    solve.defvjp(forward, backward)
    return solve


def fixed(f, times, count=20):
    """As `adaptive`, by `count` equal steps from time to time; its gradient goes through them."""

    def solve(params, y):
        def advance(y, start, end):
            h, slope = (end - start) / count, lambda t, y: f(params, t, y)
            return lax.fori_loop(0, count, lambda i, y: step(slope, start + i * h, y, h)[0], y)

        return path(advance, y, jnp.asarray(times))

    return solve


@gf.default_matmul_precision("highest")  # the rounding of TF32 would be above the tolerance
def main(steps: int = 1000, batch: int = 64, seed: int = 0, plot: str | None = None) -> float:
    """Train on paths of 2 s, and return the mean error of angles and speeds on paths of 10 s."""
    short, long = np.linspace(0, 2, 5, dtype=np.float32), np.linspace(0, 10, 101, dtype=np.float32)
    optimizer = optim.adam(optim.cosine_decay_schedule(1e-2, steps))

    def starts(key, count):  # too slow to go over the top
        return gf.random.uniform(key, (count, 2), minval=-1.0) * jnp.array([2.0, 1.0])

    def loss(params, y, solver=adaptive):
        return nn.mse_loss(solver(learned, short)(params, y), adaptive(pendulum, short)(None, y))

    @gf.jit
    def train(params, state, key):
        value, grads = gf.value_and_grad(loss)(params, starts(key, batch))
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    key = gf.random.key(seed)
    params = FIELD.init(key["init"])
    state, y = optimizer.init(params), starts(key["compare"], batch)
    gradient = lambda solver: ravel_pytree(gf.grad(lambda p: loss(p, y, solver))(params))[0]
    adjoint, through = gradient(adaptive), gradient(fixed)
    apart = float(jnp.linalg.norm(adjoint - through) / jnp.linalg.norm(through))
    print(f"gradients of the adjoint method and through equal steps are {apart:.1e} apart")
    for i in range(steps):
        params, state, value = train(params, state, key["start", i])
        if (i + 1) % 200 == 0:
            print(f"step {i + 1}: squared error {float(value):.2e}")

    y = starts(key["test"], 20)
    exact, found = adaptive(pendulum, long)(None, y), adaptive(learned, long)(params, y)
    result, size = float(jnp.mean(jnp.abs(found - exact))), float(jnp.mean(jnp.abs(exact)))
    print(f"on paths of 10 s: mean error {result:.4f} of values of mean size {size:.2f}")
    if plot:
        draw(np.asarray(exact), np.asarray(found), plot)
    return result


def draw(exact, found, file: str) -> None:
    """Write a picture of paths in the plane of angles and speeds."""
    import matplotlib.pyplot as plt

    axes = plt.figure(layout="constrained").add_subplot(xlabel="angle", ylabel="speed")
    for i in range(6):
        axes.plot(*exact[:, i].T, color="0.8", linewidth=5, label="" if i else "pendulum")
        axes.plot(*found[:, i].T, color="C0", linewidth=1, label="" if i else "learned")
    axes.legend()
    plt.savefig(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--batch", "--seed"):
        parser.add_argument(option, type=int)
    parser.add_argument("--plot", metavar="FILE", help="write a picture of paths to a PNG file")
    main(**vars(parser.parse_args()))
