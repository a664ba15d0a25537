"""Proximal policy optimization balances a pole: python examples/ppo_cartpole.py

The environment is a pure function, so that `vmap` makes many of it and `scan` runs them. An
iteration, from the first action to the last update, is one jitted function.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, and "High-Dimensional
Continuous Control Using Generalized Advantage Estimation", 2015; the environment is Gymnasium's
CartPole-v1, after Barto, Sutton and Anderson, "Neuronlike Adaptive Elements That Can Solve
Difficult Learning Control Problems", 1983.
"""

from __future__ import annotations

import argparse

import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim, tree

ENVIRONMENTS, HORIZON, EPOCHS, BATCHES = 32, 128, 4, 4  # of an iteration
DISCOUNT, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST, LONGEST = 2.4, np.deg2rad(12), 500  # where an episode ends

POLICY = nn.Sequential(nn.Linear(4, 64), nn.tanh, nn.Linear(64, 64), nn.tanh, nn.Linear(64, 2))
VALUE = nn.Sequential(nn.Linear(4, 64), nn.tanh, nn.Linear(64, 64), nn.tanh, nn.Linear(64, 1))


def dynamics(x, action):
    """(position, speed, angle, angular speed) one step later, pushed left (0) or right (1)."""
    _, speed, angle, spin = x
    push = jnp.where(action == 1, FORCE, -FORCE)
    sin, cos, mass = jnp.sin(angle), jnp.cos(angle), CART + POLE
    free = (push + POLE * HALF_LENGTH * spin**2 * sin) / mass
    turn = (GRAVITY * sin - cos * free) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / mass))
    return x + SECONDS * jnp.stack(
        [speed, free - POLE * HALF_LENGTH * turn * cos / mass, spin, turn]
    )


def reset(key):
    """The state of an environment in which an episode begins: what is observed, and its steps."""
    return {"x": gf.random.uniform(key, (4,), minval=-0.05, maxval=0.05), "steps": jnp.int32(0)}


def step(params, state, key):
    """One step of one environment, as the policy acts: (next state, transition)."""
    logits = POLICY(params["policy"], state["x"])
    action = gf.random.categorical(key["action"], logits)
    x, steps = dynamics(state["x"], action), state["steps"] + 1
    terminated = (jnp.abs(x[0]) > FARTHEST) | (jnp.abs(x[2]) > STEEPEST)
    done = terminated | (steps >= LONGEST)
    transition = {
        "x": state["x"],
        "next_x": x,
        "action": action,
        "log_prob": nn.log_softmax(logits)[action],
        "terminated": terminated,
        "done": done,
        "steps": steps,  # the return up to here, for each step is rewarded by 1
    }
    ahead = {"x": x, "steps": steps}
    return tree.map(lambda a, b: jnp.where(done, a, b), reset(key["reset"]), ahead), transition


def advantages(rewards, values, next_values, terminated, done):
    """Generalized advantage estimates [T] of transitions [T] of one environment.

    An episode that took too long is done but not terminated: the value of where it came counts.
    """
    errors = rewards + DISCOUNT * jnp.where(terminated, 0.0, next_values) - values

    def back(advantage, now):
        error, done = now
        advantage = error + DISCOUNT * LAMBDA * jnp.where(done, 0.0, advantage)
        return advantage, advantage

    return lax.scan(back, 0.0, (errors, done), reverse=True)[1]


def value_of(params, x):
    """Expected returns [...] from x [..., 4] on."""
    return VALUE(params["value"], x)[..., 0]


def rollout(params, states, key):
    """(states, transitions [HORIZON, ENVIRONMENTS, ...] with advantages and returns)."""
    many = lambda states, keys: gf.vmap(step, (None, 0, 0))(params, states, keys)
    keys = gf.random.split(key, (HORIZON, ENVIRONMENTS))
    states, seen = lax.scan(many, states, keys)
    values, next_values = value_of(params, seen["x"]), value_of(params, seen["next_x"])
    estimate = gf.vmap(advantages, in_axes=1, out_axes=1)
    advantage = estimate(
        jnp.ones_like(values), values, next_values, seen["terminated"], seen["done"]
    )
    return states, seen | {"advantage": advantage, "return": advantage + values}


def loss(params, seen):
    """The clipped surrogate objective, the squared error of values, and the policy's entropy."""
    log_probs = nn.log_softmax(POLICY(params["policy"], seen["x"]))
    log_prob = jnp.take_along_axis(log_probs, seen["action"][:, None], -1)[:, 0]
    ratio, advantage = jnp.exp(log_prob - seen["log_prob"]), nn.standardize(seen["advantage"])
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    surrogate = jnp.minimum(ratio * advantage, clipped * advantage)
    error = (value_of(params, seen["x"]) - seen["return"]) ** 2
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1)
    return jnp.mean(-surrogate + 0.5 * error - ENTROPY * entropy)


def main(steps: int = 100, seed: int = 0) -> tuple[float, float]:
    """Train, and return the mean return of the episodes that ended in the first iteration, and of
    those that ended in the last ten."""
    optimizer = optim.chain(
        optim.clip_by_global_norm(0.5),
        optim.adam(optim.linear_schedule(2.5e-3, 0.0, steps * EPOCHS * BATCHES)),
    )

    def iteration(params, opt_state, states, key):
        states, seen = rollout(params, states, key["rollout"])
        flat = tree.map(lambda a: a.reshape(-1, *a.shape[2:]), seen)

        def update(carry, rows):
            params, opt_state = carry
            grads = gf.grad(loss)(params, tree.map(lambda a: a[rows], flat))
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optim.apply_updates(params, updates), opt_state), None

        shuffled = lambda key: gf.random.permutation(key, HORIZON * ENVIRONMENTS)
        order = gf.vmap(shuffled)(gf.random.split(key["order"], EPOCHS))
        batches = order.reshape(EPOCHS * BATCHES, -1)
        (params, opt_state), _ = lax.scan(update, (params, opt_state), batches)
        returns = jnp.sum(jnp.where(seen["done"], seen["steps"], 0))
        return params, opt_state, states, jnp.stack([returns, jnp.sum(seen["done"])])

    iteration = gf.jit(iteration, donate_argnums=(0, 1, 2))
    key = gf.random.key(seed)
    params = {"policy": POLICY.init(key["policy"]), "value": VALUE.init(key["value"])}
    opt_state = optimizer.init(params)
    states = gf.vmap(reset)(gf.random.split(key["reset"], ENVIRONMENTS))
    ended = []  # the sum of returns and the number of episodes, of each iteration
    for i in range(steps):
        params, opt_state, states, sums = iteration(params, opt_state, states, key["step", i])
        ended.append(np.asarray(sums))
        if i == 0 or (i + 1) % 10 == 0:
            total, count = np.sum(ended[-10:], 0)
            print(f"iteration {i + 1}: mean return {total / count:.1f} of {count} episodes")
    first, last = ended[0], np.sum(ended[-10:], 0)
    return float(first[0] / first[1]), float(last[0] / last[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--seed"):
        parser.add_argument(option, type=int)
    main(**vars(parser.parse_args()))
