"""Proximal policy optimization balances a pole: python examples/ppo_cartpole.py

The environment is a pure function, so `vmap` makes many of it and `scan` plays them. A whole
iteration, from the games to the update, is one jitted function without a loop in Python.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, and "High-Dimensional
Continuous Control Using Generalized Advantage Estimation", 2015; the environment is Barto, Sutton
and Anderson, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control Problems",
1983, with the constants of Gymnasium's CartPole-v1.
"""

from __future__ import annotations

import argparse

import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim, tree

GAMES, HORIZON = 32, 128  # environments, and steps of each in an iteration
EPOCHS, BATCHES = 4, 4
DISCOUNT, TRACE, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
LIMIT = 500  # steps after which a game is cut off
GRAVITY, CART, POLE, LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

POLICY = nn.Sequential(nn.Linear(4, 64), nn.tanh, nn.Linear(64, 64), nn.tanh, nn.Linear(64, 2))
VALUE = nn.Sequential(nn.Linear(4, 64), nn.tanh, nn.Linear(64, 64), nn.tanh, nn.Linear(64, 1))


def reset(key):
    """The state of a new game: (x, speed, angle, angular speed) and the steps that were played."""
    return {"body": gf.random.uniform(key, (4,), minval=-0.05, maxval=0.05), "steps": jnp.int32(0)}


def dynamics(body, action):
    """The body 20 ms later, pushed to the left (action 0) or to the right (1): one Euler step."""
    x, speed, angle, spin = body
    push = jnp.where(action == 1, FORCE, -FORCE)
    sin, cos, mass = jnp.sin(angle), jnp.cos(angle), CART + POLE
    free = (push + POLE * LENGTH * spin**2 * sin) / mass
    torque = (GRAVITY * sin - cos * free) / (LENGTH * (4 / 3 - POLE * cos**2 / mass))
    slope = jnp.stack([speed, free - POLE * LENGTH * torque * cos / mass, spin, torque])
    return body + SECONDS * slope


def play(params, state, key):
    """One step of one game, by the policy: (the next state, what happened)."""
    logits = POLICY(params["policy"], state["body"])
    action = gf.random.categorical(key["action"], logits)
    body, steps = dynamics(state["body"], action), state["steps"] + 1
    fell = (jnp.abs(body[0]) > 2.4) | (jnp.abs(body[2]) > np.deg2rad(12))
    over = fell | (steps >= LIMIT)
    seen = {
        "body": state["body"],
        "next": body,
        "action": action,
        "log_prob": nn.log_softmax(logits)[action],
        "fell": fell,
        "over": over,
        "steps": steps,  # every step gives a reward of 1, so this is the return up to here
    }
    fresh = reset(key["reset"])
    following = {"body": body, "steps": steps}
    return tree.map(lambda new, old: jnp.where(over, new, old), fresh, following), seen


def advantages(rewards, values, following, fell, over):
    """Generalized advantage estimates [T] of one run of games, by a scan backwards.

    `following` is the value of the state that each step led to, which counts unless the pole fell:
    a game that was cut off would have gone on.
    """
    errors = rewards + DISCOUNT * jnp.where(fell, 0.0, following) - values

    def step(after, now):
        error, over = now
        advantage = error + DISCOUNT * TRACE * jnp.where(over, 0.0, after)
        return advantage, advantage

    return lax.scan(step, 0.0, (errors, over), reverse=True)[1]


def value_of(params, bodies):
    """Expected returns [...] of bodies [..., 4]."""
    return VALUE(params["value"], bodies)[..., 0]


def loss(params, seen):
    """The clipped surrogate objective, the value's squared error and the policy's entropy."""
    log_probs = nn.log_softmax(POLICY(params["policy"], seen["body"]))
    taken = jnp.take_along_axis(log_probs, seen["action"][:, None], -1)[:, 0]
    ratio = jnp.exp(taken - seen["log_prob"])
    gain = nn.standardize(seen["advantage"])
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    surrogate = jnp.mean(jnp.minimum(ratio * gain, clipped * gain))
    error = jnp.mean((value_of(params, seen["body"]) - seen["return"]) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, -1))
    return -surrogate + 0.5 * error - ENTROPY * entropy


def main(steps: int = 60, seed: int = 0) -> tuple[float, float]:
    """Train, and return the mean return of the games that ended in the first and in the last
    iterations."""
    optimizer = optim.chain(
        optim.clip_by_global_norm(0.5),
        optim.adam(optim.linear_schedule(2.5e-3, 0.0, steps * EPOCHS * BATCHES)),
    )

    def update(carry, seen):
        params, state = carry
        grads = gf.grad(loss)(params, seen)
        updates, state = optimizer.update(grads, state, params)
        return (optim.apply_updates(params, updates), state), None

    def iteration(params, state, games, key):
        keys = gf.random.split(key["play"], (HORIZON, GAMES))
        games, seen = lax.scan(lambda g, k: gf.vmap(play, (None, 0, 0))(params, g, k), games, keys)
        values, following = value_of(params, seen["body"]), value_of(params, seen["next"])
        estimate = gf.vmap(advantages, in_axes=1, out_axes=1)
        seen["advantage"] = estimate(
            jnp.ones((HORIZON, GAMES)), values, following, seen["fell"], seen["over"]
        )
        seen["return"] = seen["advantage"] + values
        ended = jnp.sum(jnp.where(seen["over"], seen["steps"], 0)), jnp.sum(seen["over"])

        shuffle = lambda key: gf.random.permutation(key, HORIZON * GAMES)
        order = gf.vmap(shuffle)(gf.random.split(key["order"], EPOCHS)).reshape(-1, BATCHES)
        rows = order.reshape(EPOCHS * BATCHES, -1)
        flat = tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen)
        batch = lambda carry, rows: update(carry, tree.map(lambda x: x[rows], flat))
        (params, state), _ = lax.scan(batch, (params, state), rows)
        return params, state, games, ended

    iteration = gf.jit(iteration, donate_argnums=(0, 1, 2))
    key = gf.random.key(seed)
    params = {"policy": POLICY.init(key["policy"]), "value": VALUE.init(key["value"])}
    state = optimizer.init(params)
    games = gf.vmap(reset)(gf.random.split(key["games"], GAMES))
    returns = []
    for i in range(steps):
        params, state, games, (total, count) = iteration(params, state, games, key["step", i])
        returns.append(float(total) / max(int(count), 1))
        if i == 0 or (i + 1) % 10 == 0:
            print(f"iteration {i + 1}: mean return {returns[-1]:.1f} of {int(count)} games")
    return returns[0], float(np.mean(returns[-5:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--seed"):
        parser.add_argument(option, type=int)
    main(**vars(parser.parse_args()))
