"""A step of training of a haiku and of a flax.linen model, on JAX and on the library by its names.

    python benchmarks/as_jax_step.py [--tiny] [--only haiku] [--out FOLDER]

Each side is a process of its own that runs the very same program: a transformer of dm-haiku and a
residual network of flax.linen, in float32, with products at full precision and in TF32, a jitted
step with optax's adamw that donates its state. Times are medians of repeats, after steps that
compile; each is waited for by reading the loss.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# JAX's names of what products of float32 are computed in.
PRECISIONS = ("highest", "tensorfloat32")
# (steps to warm up, repeats, steps of each)
TIMING, TINY_TIMING = (5, 20, 5), (2, 3, 2)
TRANSFORMER = {"batch": 16, "length": 256, "width": 512, "layers": 6, "heads": 8, "words": 8192}
TINY_TRANSFORMER = {"batch": 2, "length": 16, "width": 32, "layers": 2, "heads": 2, "words": 64}
RESNET = {"batch": 64, "size": 32, "width": 64, "blocks": 3}
TINY_RESNET = {"batch": 4, "size": 8, "width": 8, "blocks": 1}


# ---- the program, which knows JAX alone ----


def haiku_step(tiny: bool) -> tuple[Callable[..., Any], Any]:
    """(step(state) -> (state, loss), its first state) of a transformer."""
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import optax

    s = TINY_TRANSFORMER if tiny else TRANSFORMER

    def network(tokens: Any) -> Any:
        init = hk.initializers.VarianceScaling(1.0)
        norm = lambda x: hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        places = hk.get_parameter("places", [s["length"], s["width"]], init=init)
        x = hk.Embed(s["words"], s["width"])(tokens) + places
        mask = jnp.tril(jnp.ones((1, 1, s["length"], s["length"]), bool))
        for _ in range(s["layers"]):
            y = norm(x)
            size = s["width"] // s["heads"]
            x = x + hk.MultiHeadAttention(s["heads"], size, w_init=init)(y, y, y, mask=mask)
            y = jax.nn.gelu(hk.Linear(4 * s["width"])(norm(x)))
            x = x + hk.Linear(s["width"])(y)
        return hk.Linear(s["words"])(norm(x))

    net = hk.without_apply_rng(hk.transform(network))
    tokens = jax.random.randint(jax.random.PRNGKey(0), (s["batch"], s["length"] + 1), 0, s["words"])
    x, y = tokens[:, :-1], tokens[:, 1:]
    params, tx = net.init(jax.random.PRNGKey(1), x), optax.adamw(1e-4)

    def loss(params: Any) -> Any:
        logits = net.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(state: Any) -> Any:
        params, kept = state
        value, grads = jax.value_and_grad(loss)(params)
        updates, kept = tx.update(grads, kept, params)
        return (optax.apply_updates(params, updates), kept), value

    return jax.jit(step, donate_argnums=0), (params, tx.init(params))


def flax_step(tiny: bool) -> tuple[Callable[..., Any], Any]:
    """(step(state) -> (state, loss), its first state) of a residual network."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from flax.training.train_state import TrainState

    s = TINY_RESNET if tiny else RESNET

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            norm = lambda x: nn.BatchNorm(use_running_average=False, momentum=0.9)(x)
            strides = (self.stride, self.stride)
            y = nn.relu(norm(nn.Conv(self.width, (3, 3), strides, use_bias=False)(x)))
            y = norm(nn.Conv(self.width, (3, 3), use_bias=False)(y))
            if x.shape != y.shape:
                x = norm(nn.Conv(self.width, (1, 1), strides, use_bias=False)(x))
            return nn.relu(x + y)

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.relu(nn.Conv(s["width"], (3, 3), use_bias=False)(x))
            for stage in range(3):
                for i in range(s["blocks"]):
                    x = Block(s["width"] * 2**stage, 2 if stage and not i else 1)(x)
            return nn.Dense(10)(x.mean((1, 2)))

    class State(TrainState):
        batch_stats: Any

    net = ResNet()
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    images = jax.random.normal(keys[0], (s["batch"], s["size"], s["size"], 3))
    labels = jnp.arange(s["batch"]) % 10
    variables = net.init(keys[1], images)
    state = State.create(
        apply_fn=net.apply,
        params=variables["params"],
        tx=optax.adamw(1e-3),
        batch_stats=variables["batch_stats"],
    )

    def step(state: Any) -> Any:
        def loss(params: Any) -> Any:
            both = {"params": params, "batch_stats": state.batch_stats}
            logits, new = state.apply_fn(both, images, mutable=["batch_stats"])
            value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            return value, new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=stats), value

    return jax.jit(step, donate_argnums=0), state


STEPS = {"haiku": haiku_step, "flax": flax_step}


def run(name: str, precision: str, tiny: bool) -> dict[str, Any]:
    """Time a step; what one side prints."""
    import jax

    jax.config.update("jax_default_matmul_precision", precision)
    warm, repeats, count = TINY_TIMING if tiny else TIMING
    begin = time.perf_counter()
    step, state = STEPS[name](tiny)
    losses, times = [], []
    for _ in range(warm):
        state, value = step(state)
        losses.append(float(value))
    started = time.perf_counter() - begin
    for _ in range(repeats):
        at = time.perf_counter()
        for _ in range(count):
            state, value = step(state)
        losses.append(float(value))  # waits
        times.append((time.perf_counter() - at) / count * 1e3)
    return {
        "device": str(jax.devices()[0]),
        "jax": jax.__version__,
        "first_steps_s": round(started, 2),
        "ms": statistics.median(times),
        "least_ms": min(times),
        "most_ms": max(times),
        "losses": losses,
    }


# ---- both sides ----


def side(name: str, precision: str, tiny: bool, *options: str) -> dict[str, Any]:
    """Run the program in a process of its own."""
    command = [sys.executable, *options, str(Path(__file__).resolve()), "--run", name, precision]
    # JAX would take most of the memory at once, and the sides run one after the other.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command += ["--tiny"] if tiny else []
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(name: str, precision: str, tiny: bool) -> dict[str, Any]:
    """Both sides' times, and what of them is to be said."""
    theirs = side(name, precision, tiny)
    ours = side(name, precision, tiny, "-m", "genesis_fn.as_jax")
    pairs = list(zip(ours["losses"], theirs["losses"], strict=True))
    return {
        "ours": ours,
        "jax": theirs,
        "ratio": theirs["ms"] / ours["ms"],
        # Of the first step, before rounding has had its effects.
        "first_loss_differs": abs(pairs[0][0] - pairs[0][1]) / abs(pairs[0][1]),
    }


def table(rows: dict[str, Any]) -> str:
    """The rows for people."""
    lines = ["| model | ours, ms | JAX, ms | JAX / ours | first steps, s (ours, JAX) |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, r in rows.items():
        starts = f"{r['ours']['first_steps_s']}, {r['jax']['first_steps_s']}"
        times = f"{r['ours']['ms']:.2f} | {r['jax']['ms']:.2f} | {r['ratio']:.2f}"
        lines.append(f"| {name} | {times} | {starts} |")
    return "\n".join(lines)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from benchmarks.results_file import Results, parser, short, surroundings

    options = parser(__doc__)
    options.add_argument("--only", choices=sorted(STEPS), help="one of the models")
    asked = options.parse_args()
    device = surroundings()["device"]
    where = "cpu" if device == "unknown" else short(device)
    results = Results(Path(asked.out) / f"as-jax-step-{where}", asked.redo)
    cases = {
        f"{name}, {precision}": (name, precision)
        for name in ([asked.only] if asked.only else list(STEPS))
        for precision in PRECISIONS
    }
    for row, case in cases.items():
        if row not in results.rows:
            results.measure(row, lambda: compare(*case, asked.tiny))
    rows = results.in_order([f"{n}, {p}" for n in STEPS for p in PRECISIONS])
    results.write_table(f"A step under JAX's names, {device}", table(rows))


if __name__ == "__main__":
    if "--run" in sys.argv:
        at = sys.argv.index("--run")
        print(json.dumps(run(*sys.argv[at + 1 : at + 3], "--tiny" in sys.argv)))
    else:
        main()
