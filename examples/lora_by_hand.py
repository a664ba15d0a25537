"""Low-rank adaptation, written out and by the library: python examples/lora_by_hand.py

A network that knows the sine is taught the cosine by thin matrices beside its frozen weights:
W x + (alpha / r) B A x. The adapters are a pytree of their own, so that the gradient, and the
optimizer's state, are of them alone; at the end they are added to the weights.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim
from genesis_fn.random import fold_in

WIDTH, R, ALPHA = 64, 4, 8.0
LAYERS = {"up": nn.Linear(1, WIDTH), "middle": nn.Linear(WIDTH, WIDTH), "down": nn.Linear(WIDTH, 1)}
Params = dict[str, Any]


def network(linear: Callable[[str, Any], Any], x: Any) -> Any:
    """The network, whose layers are `linear(name, inputs)`."""
    x = nn.gelu(linear("up", x))
    return linear("down", nn.gelu(linear("middle", x)))


def plain(params: Params, x: Any) -> Any:
    """Without adapters."""
    return network(lambda name, x: LAYERS[name](params[name], x), x)


# ---- by hand ----


def init(key: gf.Key, params: Params) -> Params:
    """{"A": [r, in], "B": [out, r]} of every layer. B is zero, so that nothing changes at first."""

    def of(name: str) -> Params:
        out, features = params[name]["weight"].shape
        bound = 1 / math.sqrt(features)
        a = gf.random.uniform(fold_in(key, name), (R, features), minval=-bound, maxval=bound)
        return {"A": a, "B": jnp.zeros((out, R))}

    return {name: of(name) for name in LAYERS}


def adapted(params: Params, adapters: Params, x: Any) -> Any:
    """With adapters: W x + (alpha / r) B A x, by way of r numbers and never of B A."""

    def linear(name: str, x: Any) -> Any:
        a, b = adapters[name]["A"], adapters[name]["B"]
        return LAYERS[name](params[name], x) + ALPHA / R * (x @ a.T) @ b.T

    return network(linear, x)


def merge(params: Params, adapters: Params) -> Params:
    """The weights with the adapters added, W + (alpha / r) B A."""
    weight = lambda name: ALPHA / R * adapters[name]["B"] @ adapters[name]["A"]
    return {n: {**p, "weight": p["weight"] + weight(n)} for n, p in params.items()}


# ---- training, of whatever is given ----


def fit(loss: Callable[[Any], Any], trained: Any, steps: int, rate: float) -> Any:
    """Minimize a loss by Adam."""
    optimizer = optim.adam(rate)

    @gf.jit
    def step(trained: Any, state: Any) -> Any:
        updates, state = optimizer.update(gf.grad(loss)(trained), state, trained)
        return optim.apply_updates(trained, updates), state

    state = optimizer.init(trained)
    for _ in range(steps):
        trained, state = step(trained, state)
    return trained


def main(steps: int = 600, seed: int = 0) -> float:
    """Train a network, adapt it twice, and return the larger of the two errors."""
    key = gf.random.key(seed)
    x = jnp.linspace(-3, 3, 128)[:, None]
    squares = lambda found, wanted: jnp.mean((found - wanted) ** 2)
    params = {name: layer.init(fold_in(key, name)) for name, layer in LAYERS.items()}
    params = fit(lambda p: squares(plain(p, x), jnp.sin(x)), params, steps, 3e-3)
    print(f"sine: error {float(squares(plain(params, x), jnp.sin(x))):.5f}")

    wanted = jnp.cos(x)
    print(f"cosine, without adapters: error {float(squares(plain(params, x), wanted)):.5f}")
    adapters = init(fold_in(key, "adapters"), params)
    loss = lambda a: squares(adapted(params, a, x), wanted)
    adapters = fit(loss, adapters, steps, 1e-2)
    by_hand = float(loss(adapters))
    count = lambda tree: sum(leaf.size for leaf in gf.tree.leaves(tree))
    share = f"{count(adapters):,} numbers beside {count(params):,}"
    print(f"cosine, by hand: error {by_hand:.5f}, {share}")
    apart = jnp.abs(plain(merge(params, adapters), x) - adapted(params, adapters, x)).max()
    print(f"merged: outputs differ by {float(apart):.1e}")
    assert float(apart) < 1e-4

    # The same by the library, whose adapted parameters any function of the network takes.
    config = nn.lora.LoraConfig(r=R, lora_alpha=ALPHA)
    loss = lambda a: squares(plain(nn.lora.apply(params, a, config), x), wanted)
    adapters = fit(loss, nn.lora.init(fold_in(key, "library"), params, config), steps, 1e-2)
    by_library = float(loss(adapters))
    print(f"cosine, by nn.lora: error {by_library:.5f}")
    merged = nn.lora.merge(params, adapters, config)
    apart = abs(float(squares(plain(merged, x), wanted)) - by_library)
    assert apart < 1e-4
    return max(by_hand, by_library)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--seed"):
        parser.add_argument(option, type=int)
    main(**vars(parser.parse_args()))
