"""Reinforcement learning and recommendation."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import (
    Function,
    Program,
    integers,
    key,
    layers,
    leaves,
    network,
    normal,
    seed,
    uniform,
)

# ---- a policy in simulated worlds ----


def rollout_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    angles = normal(rng, s.worlds, 2, scale=0.5)
    return layers(rng, 3, s.hidden, s.hidden, 1), angles, seed()


def swing(xp: Any, s: Any) -> Function:
    """The mean return of a network that swings damped pendulums, with noise in what it does."""

    def value(params: Any, state: Any, seed: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            angle, speed, now = carry
            now, use = xp.random.split(now)
            seen = xp.np.stack([xp.np.cos(angle), xp.np.sin(angle), speed], axis=-1)
            force = xp.np.tanh(network(xp.np.tanh, params, seen))[:, 0]
            force = 2 * force + 0.1 * xp.random.normal(use, force.shape)
            speed = speed + 0.05 * (3 * force - 9.8 * xp.np.sin(angle) - 0.5 * speed)
            angle = angle + 0.05 * speed
            up = 1 + xp.np.cos(angle)
            reward = -(up * up + 0.1 * speed * speed + 0.001 * force * force)
            return (angle, speed, now), xp.np.mean(reward)

        first = (state[:, 0], state[:, 1], key(xp, seed))
        return xp.np.mean(xp.lax.scan(step, first, None, length=s.steps)[1])

    return value


def swing_gradient(xp: Any, s: Any) -> Function:
    """How the return changes with the network."""
    return xp.value_and_grad(swing(xp, s))


# ---- learning from steps that were taken ----


def ppo_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = {
        "policy": layers(rng, s.seen, s.hidden, s.hidden, s.actions),
        "value": layers(rng, s.seen, s.hidden, s.hidden, 1),
    }
    shape = (s.steps, s.worlds)
    ends = (rng.random(shape) < 0.02).astype(np.float32)
    old = normal(rng, *shape, scale=0.1) - np.float32(np.log(s.actions))
    seen = normal(rng, s.steps + 1, s.worlds, s.seen)
    return params, seen, integers(rng, s.actions, *shape), normal(rng, *shape), ends, old


def ppo(xp: Any, s: Any) -> Function:
    """Advantages by a scan from the end, the clipped loss and its gradient."""

    def loss(p: Any, seen: Any, actions: Any, rewards: Any, ends: Any, old: Any) -> Any:
        values = network(xp.np.tanh, p["value"], seen)[..., 0]
        fixed = xp.lax.stop_gradient(values)

        def step(after: Any, now: Any) -> Any:
            reward, value, following, end = now
            delta = reward + 0.99 * following * (1 - end) - value
            after = delta + 0.99 * 0.95 * (1 - end) * after
            return after, after

        zero = xp.np.zeros(s.worlds, xp.np.float32)
        steps = (rewards, fixed[:-1], fixed[1:], ends)
        _, gains = xp.lax.scan(step, zero, steps, reverse=True)
        returns = gains + fixed[:-1]
        gains = (gains - xp.np.mean(gains)) / (xp.np.std(gains) + 1e-6)
        logs = xp.nn.log_softmax(network(xp.np.tanh, p["policy"], seen[:-1]), axis=-1)
        taken = xp.np.take_along_axis(logs, actions[..., None], axis=-1)[..., 0]
        ratio = xp.np.exp(taken - old)
        clipped = xp.np.clip(ratio, 0.8, 1.2)
        policy = -xp.np.mean(xp.np.minimum(ratio * gains, clipped * gains))
        error = xp.np.mean(xp.np.square(values[:-1] - returns))
        entropy = -xp.np.mean(xp.np.sum(xp.np.exp(logs) * logs, -1))
        return policy + 0.5 * error - 0.01 * entropy

    return xp.value_and_grad(loss)


def values_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    odds = rng.random((s.actions, s.states, s.states), np.float32) ** 8
    return odds / odds.sum(-1, keepdims=True), uniform(rng, s.actions, s.states)


def values(xp: Any, s: Any) -> Function:
    """What states are worth, by repeated best choices."""

    def run(odds: Any, rewards: Any) -> Any:
        better = lambda _, v: xp.np.max(rewards + 0.95 * (odds @ v), axis=0)
        return xp.lax.fori_loop(0, s.steps, better, xp.np.zeros(s.states, xp.np.float32))

    return run


def bandit_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    return uniform(rng, s.agents, s.arms, low=0.1, high=0.9), seed()


def bandit(xp: Any, s: Any) -> Function:
    """Agents that learn which arm pays most: the rewards of all, step by step."""

    def run(odds: Any, seed: Any) -> Any:
        def step(carry: Any, now: Any) -> Any:
            wins, tries = carry
            a, b, c = xp.random.split(now, 3)
            best = xp.np.argmax((wins + 1) / (tries + 2), axis=1)
            other = xp.random.randint(a, (s.agents,), 0, s.arms)
            explores = xp.random.uniform(b, (s.agents,)) < 0.1
            arm = xp.nn.one_hot(xp.np.where(explores, other, best), s.arms)
            won = xp.random.uniform(c, (s.agents,)) < xp.np.sum(arm * odds, 1)
            reward = won.astype(xp.np.float32)
            return (wins + arm * reward[:, None], tries + arm), xp.np.mean(reward)

        zero = xp.np.zeros((s.agents, s.arms), xp.np.float32)
        steps = xp.random.split(key(xp, seed), s.steps)
        return xp.lax.scan(step, (zero, zero), steps)[1]

    return run


# ---- recommendation ----


def dlrm_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    pairs = (s.tables + 1) * s.tables // 2
    params = {
        "bottom": layers(rng, s.numbers, s.hidden, s.width),
        "tables": normal(rng, s.tables, s.rows, s.width, scale=0.1),
        "top": layers(rng, pairs + s.width, s.hidden, 1),
    }
    ids = integers(rng, s.rows, s.batch, s.tables, s.bag)
    return params, normal(rng, s.batch, s.numbers), ids, integers(rng, 2, s.batch)


def dlrm(xp: Any, s: Any) -> Function:
    """A step of training: bags of embeddings, their products in pairs, and two networks."""
    first, second = np.tril_indices(s.tables + 1, -1)

    def loss(p: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
        x = network(xp.nn.relu, p["bottom"], numbers)
        table = xp.np.arange(s.tables)[None, :, None]
        bags = xp.np.sum(p["tables"][table, ids], axis=2)
        both = xp.np.concatenate([x[:, None], bags], axis=1)
        products = xp.np.einsum("bid,bjd->bij", both, both)[:, first, second]
        features = xp.np.concatenate([x, products], axis=1)
        logits = network(xp.nn.relu, p["top"], features)[:, 0]
        return xp.np.mean(xp.nn.softplus(logits) - clicked * logits)

    def step(params: Any, *batch: Any) -> Any:
        value, grads = xp.value_and_grad(loss)(params, *batch)
        return value, xp.tree.map(lambda w, g: w - 0.1 * g, params, grads)

    return step


def torch_dlrm(t: Any, s: Any) -> Function:
    first, second = np.tril_indices(s.tables + 1, -1)

    def loss(p: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
        x = network(t.F.relu, p["bottom"], numbers)
        table = t.torch.arange(s.tables, device=ids.device)[None, :, None]
        bags = p["tables"][table, ids.long()].sum(2)
        both = t.torch.cat([x[:, None], bags], 1)
        products = (both @ both.transpose(1, 2))[:, first, second]
        logits = network(t.F.relu, p["top"], t.torch.cat([x, products], 1))[:, 0]
        return t.F.binary_cross_entropy_with_logits(logits, clicked.float())

    gradient = t.value_and_grad(loss)

    def step(params: Any, *batch: Any) -> Any:
        value, grads = gradient(params, *batch)
        return value, [w - 0.1 * g for w, g in zip(leaves(params), grads)]

    return step


def factors_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = {
        "items": normal(rng, s.items, s.width, scale=0.1),
        "users": normal(rng, s.users, s.width, scale=0.1),
    }
    return (
        params,
        integers(rng, s.users, s.batch),
        integers(rng, s.items, s.batch),
        uniform(rng, s.batch, low=1.0, high=5.0),
    )


def factors(xp: Any, s: Any) -> Function:
    """A step of the factorisation of ratings, which changes the rows that occur."""

    def loss(u: Any, v: Any, ratings: Any) -> Any:
        error = xp.np.sum(u * v, -1) + 3 - ratings
        return xp.np.sum(error * error + 0.02 * xp.np.sum(u * u + v * v, -1))

    def step(params: Any, users: Any, items: Any, ratings: Any) -> Any:
        u, v = params["users"][users], params["items"][items]
        value, (gu, gv) = xp.value_and_grad(loss, argnums=(0, 1))(u, v, ratings)
        new_users = params["users"].at[users].add(-0.01 * gu)
        new_items = params["items"].at[items].add(-0.01 * gv)
        return value, {"items": new_items, "users": new_users}

    return step


PROGRAMS = (
    Program(
        "rollout", "reinforcement learning", "4096 pendulums for 200 steps with a small network",
        swing, rollout_inputs, {"worlds": 4096, "steps": 200, "hidden": 64},
        {"worlds": 6, "steps": 7, "hidden": 8}, 1e-2,
    ),
    Program(
        "rollout-gradient", "reinforcement learning", "the same, and the network's gradient",
        swing_gradient, rollout_inputs, {"worlds": 4096, "steps": 200, "hidden": 64},
        {"worlds": 6, "steps": 7, "hidden": 8}, 5e-2,
    ),
    Program(
        "ppo", "reinforcement learning", "advantages by a reverse scan, the loss and its gradient",
        ppo, ppo_inputs,
        {"steps": 128, "worlds": 256, "seen": 32, "hidden": 64, "actions": 6},
        {"steps": 6, "worlds": 3, "seen": 4, "hidden": 8, "actions": 3}, 1e-2,
    ),
    Program(
        "value-iteration", "reinforcement learning", "200 sweeps over 1024 states and 8 actions",
        values, values_inputs, {"actions": 8, "states": 1024, "steps": 200},
        {"actions": 2, "states": 6, "steps": 9}, 5e-3, precision="highest",
    ),
    Program(
        "bandits", "reinforcement learning", "4096 agents with 10 arms each for 500 steps",
        bandit, bandit_inputs, {"agents": 4096, "arms": 10, "steps": 500},
        {"agents": 5, "arms": 3, "steps": 8}, 5e-2,
    ),
    Program(
        "dlrm", "recommendation", "16 bags of embeddings, their products, a step of training",
        dlrm, dlrm_inputs,
        {"batch": 4096, "numbers": 13, "tables": 16, "rows": 50000, "width": 64, "bag": 4,
         "hidden": 512},
        {"batch": 4, "numbers": 3, "tables": 3, "rows": 7, "width": 4, "bag": 2, "hidden": 8},
        1e-2, scatters=True, torch=torch_dlrm,
    ),
    Program(
        "factorisation", "recommendation", "a step over 65536 ratings of 200000 users",
        factors, factors_inputs, {"users": 200000, "items": 20000, "width": 64, "batch": 65536},
        {"users": 5, "items": 4, "width": 3, "batch": 9}, scatters=True,
    ),
)  # fmt: skip
