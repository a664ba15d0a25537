"""A user's program with mistakes, for `test_user_types`: a type checker reports the lines that are
marked `# wrong` and no other. It is never run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import io, models, nn, optim, random

# ---- arrays ----


def arrays(x: gf.Array) -> gf.Array:
    y = jnp.exp(x).sum(axis=-1, keepdims=True).T.astype("float32")
    y = y.reshape(2, -1).at[0, ..., None].set(1.0) @ x[1:, None] + np.float32(2)
    mask = (x > 0) & (2 * y == y)
    rows = [row.mean() for row in y]
    size = float(rows[0]) + len(x) + x.shape[0] + x.nbytes
    x.at[0].set("one")  # wrong: no number
    x.at[0].replace(1.0)  # wrong: no such update
    x.sum(dim=0)  # wrong: torch's name of `axis`
    x.reshape("flat")  # wrong: no shape
    x[0] = 1.0  # wrong: arrays are immutable
    x + [1.0, 2.0]  # wrong: lists are no operands
    x.astype(3)  # wrong: no dtype
    x.no_such_method()  # wrong
    jnp.exp(x).no_such_method()  # wrong
    jnp.zeros((2, 3)).cuda()  # wrong: torch's
    jnp.sum(x, dim=0)  # wrong: torch's name of `axis`
    jnp.concatenate(x, axis="rows")  # wrong: no axis
    jnp.no_such_function(x)  # wrong
    jnp.where(mask, y, size).no_such_method()  # wrong
    gf.no_such_function(x)  # wrong
    gf.lax.no_such_function(x)  # wrong
    return jnp.where(mask, y, size)


# ---- transforms ----


class State(NamedTuple):
    weight: gf.Array
    step: gf.Array


@gf.jit
def step(s: State, x: gf.Array) -> State:
    return s._replace(weight=s.weight - 0.1 * x, step=s.step + 1)


@gf.jit(donate_argnames="s")
def scaled(s: State, *, factor: float = 1.0) -> State:
    return s._replace(weight=s.weight * factor)


def loss(w: gf.Array, x: gf.Array, scale: float = 1.0) -> gf.Array:
    return (jnp.tanh(x @ w) ** 2).mean() * scale


def jitted(s: State, x: gf.Array) -> State:
    s = step(s, x)
    s = step(s, x=x)
    s = scaled(s, factor=2.0)
    step(s, "wrong", 3)  # wrong: one argument too many
    step(s, "wrong")  # wrong: no array
    step(s)  # wrong: an argument is missing
    step(s, y=x)  # wrong: a parameter's name
    step(s, x).no_such_field  # wrong
    scaled(s, 2.0)  # wrong: only by name
    scaled(s, factor="2")  # wrong: no number
    gf.jit(loss, static_argnums="scale")  # wrong: no number
    return s


def differentiated(w: gf.Array, x: gf.Array) -> gf.Array:
    g = gf.grad(loss)(w, x, scale=2.0)
    value, g = gf.value_and_grad(loss)(w, x)
    gf.grad(loss)(w)  # wrong: an argument is missing
    gf.grad(loss)(w, x, 1.0, 2)  # wrong: one argument too many
    gf.grad(loss)(w, x, size=2.0)  # wrong: a parameter's name
    gf.grad(loss, argnums="w")  # wrong: no number
    gf.value_and_grad(loss)(w)  # wrong: an argument is missing
    return g * value


def mapped(w: gf.Array, xs: gf.Array) -> gf.Array:
    losses = gf.vmap(loss, in_axes=(None, 0))(w, xs)
    gf.vmap(loss)(w)  # wrong: an argument is missing
    gf.vmap(loss)(w, xs, shape=3)  # wrong: a parameter's name
    gf.vmap(loss)(w, xs).no_such_method()  # wrong
    return losses.sum()


def rematerialized(w: gf.Array, x: gf.Array) -> gf.Array:
    y = gf.checkpoint(loss)(w, x)
    gf.checkpoint(loss)(w)  # wrong: an argument is missing
    gf.checkpoint(loss)(w, x, size=1.0)  # wrong: a parameter's name
    gf.checkpoint(loss)(w, x).no_such_method()  # wrong
    return y


@gf.tree.dataclass
class Params:
    weight: gf.Array
    rate: float = gf.tree.static_field(default=0.1)


def containers(x: gf.Array) -> gf.Array:
    params = Params(x, rate=0.5)
    params.weight.no_such_method()  # wrong
    params.rate = 1.0  # wrong: it is frozen
    Params()  # wrong: an argument is missing
    Params(x, "0.1")  # wrong: no number
    state = gf.TrainState(params=params, step=x)
    return state.replace(step=x + 1).step + params.weight


def switched(x: gf.Array) -> gf.Array:
    with gf.debug_nans(True), gf.default_device("cpu"), gf.default_matmul_precision("highest"):
        y = gf.device_put(x, gf.cpu())
    with gf.debug_nans("yes"):  # wrong: no bool
        pass
    gf.cuda.memory_allocated(1.5)  # wrong: no device
    half = gf.amp(loss, "bfloat16", enabled=True)(x, x)
    half = gf.amp.autocast(loss, "bfloat16")(half, x)
    gf.cuda(1).backend.device_count()
    stream: gf.cuda.Stream = gf.cuda.current_stream(gf.cuda(0))
    stream.synchronize()
    gf.cuda("1")  # wrong: no index
    gf.cuda.memory_alocated()  # wrong: no such function
    return y + half


# ---- random numbers, optimizers, layers ----


def made() -> gf.Array:
    key = random.key(0)
    first, second = random.split(key)
    x = random.normal(first, (2, 3)) + random.uniform(second, (3,), minval=-1.0)
    random.normal("key")  # wrong: no key
    random.normal(key, "shape")  # wrong: no shape
    random.normal()  # wrong: the key is missing
    random.normal(key, (2,)).no_such_method()  # wrong
    return x


def optimized(params: dict[str, gf.Array], grads: dict[str, gf.Array]) -> None:
    optimizer = optim.adam(optim.cosine_decay_schedule(0.1, 100), b1=0.8)
    state = optimizer.init(params)
    updates, state = optimizer.update(grads, state, params)
    params = optim.apply_updates(params, updates)
    optim.apply_updates(params, updates).no_such_method()  # wrong: it is a dict
    optim.nadam(0.1, nestrov=True)  # wrong: a parameter's name
    optim.adam("0.1")  # wrong: no number
    optim.adam()  # wrong: the learning rate is missing
    optim.adam(0.1, beta=0.9)  # wrong: a parameter's name
    optim.cosine_decay_schedule(0.1)  # wrong: an argument is missing
    optim.no_such_optimizer(0.1)  # wrong


def layered(x: gf.Array) -> gf.Array:
    layer = nn.Linear(3, 4, bias=False)
    y = layer(layer.init(random.key(0)), x)
    nn.Linear(3)  # wrong: an argument is missing
    nn.Linear(3, 4, True, jnp.float32, 5)  # wrong: one argument too many
    nn.Linear(3, "4")  # wrong: no number
    nn.Linear(3, 4, biased=True)  # wrong: a parameter's name
    nn.no_such_layer(3)  # wrong
    layer({}, x, tain=True)  # wrong: an option's name
    model = models.Qwen(models.QwenConfig())
    model({}, x, masks=None)  # wrong: an option's name
    tokens, lengths = models.generate({}, x, model.config, max_new_tokens=3)
    tokens.no_such_method()  # wrong
    io.load_file("a.safetensors")["w"].no_such_method()  # wrong
    return nn.relu(nn.Dropout(0.5)({}, y).sum() + tokens[0, 0] * lengths)
