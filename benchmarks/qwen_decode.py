"""Greedy decoding with Qwen3-0.6B on one GPU, batch 1, bfloat16: milliseconds a token.

    python benchmarks/qwen_decode.py --out benchmarks/results/qwen-decode-h200.json

Rows: ours with the whole loop in one graph (the difference of two lengths) and as a Python loop of
jitted steps, the same with programmatic launches, PyTorch eager, PyTorch compiled with
"reduce-overhead", JAX with the loop inside jit. Every row is a process of its own, written as soon
as it is measured; rows that the file holds already are not measured again. `check` generates with
float32 weights and compares ours with PyTorch's tokens. `--rows` chooses (`--rows ours-graph,check`
leaves the peers out), `--context` is how much of the cache is filled before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from results_file import surroundings

ROWS = {
    "ours-graph": {},
    "ours-graph-programmatic": {"GENESIS_PROGRAMMATIC_LAUNCH": "1"},
    "ours-steps": {},
    "check": {},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "torch-eager": {},
    "torch-compiled": {},
}
SHORT, LONG, REPEATS, CHECKED = 16, 112, 10, 24
POOL, SCALE = (1 << 24) - 3, 0.02


def sizes(layers: int) -> dict[str, Any]:
    """The model: Qwen3-0.6B with this many layers."""
    return dict(
        vocab=151936,
        width=1024,
        inner=3072,
        layers=layers,
        heads=16,
        kv_heads=8,
        dim=128,
        theta=1e6,
        eps=1e-6,
    )


def weights(s: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, float32 array) of every parameter: the same numbers in every process.

    Matrices are pieces of one pool of normal numbers, each from another place on.
    """
    pool = np.random.default_rng(0).standard_normal(POOL, np.float32) * np.float32(SCALE)
    at = 0

    def piece(*shape: int) -> np.ndarray:
        nonlocal at
        count, at = math.prod(shape), (at + 7919 * 1009) % POOL
        return np.resize(np.concatenate([pool[at:], pool[:at]]), count).reshape(shape)

    w, q, kv = s["width"], s["heads"] * s["dim"], s["kv_heads"] * s["dim"]
    shapes = {
        "self_attn.q_proj": (q, w),
        "self_attn.k_proj": (kv, w),
        "self_attn.v_proj": (kv, w),
        "self_attn.o_proj": (w, q),
        "mlp.gate_proj": (s["inner"], w),
        "mlp.up_proj": (s["inner"], w),
        "mlp.down_proj": (w, s["inner"]),
    }
    norms = {
        "input_layernorm": w,
        "post_attention_layernorm": w,
        "self_attn.q_norm": s["dim"],
        "self_attn.k_norm": s["dim"],
    }
    yield "embed_tokens", piece(s["vocab"], w)
    for i in range(s["layers"]):
        for name, shape in shapes.items():
            yield f"layers.{i}.{name}", piece(*shape)
        for name, n in norms.items():
            yield f"layers.{i}.{name}", 1 + piece(n)
    yield "norm", 1 + piece(w)


def nested(flat: Iterator[tuple[str, Any]], layers: int) -> dict[str, Any]:
    """The parameters as the library's model has them."""
    params: dict[str, Any] = {"layers": [{} for _ in range(layers)]}
    for name, value in flat:
        here: Any = params
        *parts, last = name.split(".")
        for part in parts:
            here = here[int(part)] if part.isdigit() else here.setdefault(part, {})
        here[last] = {"weight": value}
    return params


# ---- ours ----


class Ours:
    """The library's model: `loop` generates in one graph, `step` one token."""

    def __init__(self, s: dict[str, Any], capacity: int, dtype: str) -> None:
        import genesis_fn as gf
        import genesis_fn.numpy as jnp
        from genesis_fn.models import qwen
        from genesis_fn.transforms.control_flow.loops import while_loop

        self.jnp, self.qwen, self.capacity = jnp, qwen, capacity
        self.dtype = jnp.dtype(dtype)
        self.config = config = qwen.QwenConfig(
            vocab_size=s["vocab"],
            hidden_size=s["width"],
            intermediate_size=s["inner"],
            num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"],
            num_key_value_heads=s["kv_heads"],
            head_dim=s["dim"],
            rope_theta=s["theta"],
        )
        flat = ((n, jnp.asarray(x).astype(self.dtype)) for n, x in weights(s))
        self.params = nested(flat, s["layers"])

        def one(params: Any, token: Any, cache: Any) -> tuple[Any, Any]:
            logits, cache = qwen.decode_step(params, token, cache, config)
            return jnp.argmax(logits, -1).astype(jnp.int32), cache

        def many(params: Any, token: Any, cache: Any, count: Any) -> Any:
            def advance(state: Any) -> Any:
                n, token, cache, out = state
                token, cache = one(params, token, cache)
                out = jnp.where(jnp.arange(LONG) == n, token, out)
                return n + 1, token, cache, out

            start = jnp.asarray(0), token, cache, jnp.zeros((LONG,), jnp.int32)
            _, token, cache, out = while_loop(lambda s: s[0] < count, advance, start)
            return token, cache, out

        self.step = gf.jit(one, donate_argnames=("cache",))
        self.loop = gf.jit(many, donate_argnames=("cache",))

    def cache(self, context: int) -> Any:
        """A cache of zeros with `context` positions taken."""
        made = self.qwen.init_cache(self.config, 1, self.capacity, self.dtype)
        return made | {"lengths": self.jnp.full((1,), context, self.jnp.int32)}

    def start(self) -> Any:
        """The first token."""
        return self.jnp.asarray(np.array([1], np.int32))


def ours_graph(s: dict[str, Any], capacity: int, context: int) -> dict[str, Any]:
    """Milliseconds a token of the loop in one graph."""
    ours = Ours(s, capacity, "bfloat16")
    cache, token, jnp = ours.cache(context), ours.start(), ours.jnp
    counts = {n: jnp.asarray(np.array(n, np.int32)) for n in (SHORT, LONG)}

    def run(n: int) -> float:
        nonlocal cache
        cache = cache | {"lengths": jnp.full((1,), context, jnp.int32)}
        cache["lengths"].block_until_ready()
        began = time.perf_counter()
        out, cache, _ = ours.loop(ours.params, token, cache, counts[n])
        np.asarray(out)
        return time.perf_counter() - began

    return lengths_time(run)


def lengths_time(run: Callable[[int], float]) -> dict[str, Any]:
    """Milliseconds a token of a loop that `run` gives a length and that takes so many seconds: the
    difference of two lengths, so that what a call costs is not in it."""
    first = run(LONG)
    times: dict[int, list[float]] = {SHORT: [], LONG: []}
    for _ in range(REPEATS + 2):
        for n, found in times.items():
            found.append(run(n))
    spent = {n: statistics.median(found[2:]) for n, found in times.items()}
    return {
        "ms": 1e3 * (spent[LONG] - spent[SHORT]) / (LONG - SHORT),
        "first_call_s": first,
        "call_ms": {n: 1e3 * t for n, t in spent.items()},
    }


def ours_steps(s: dict[str, Any], capacity: int, context: int) -> dict[str, Any]:
    """Milliseconds a token of a Python loop of jitted steps."""
    ours = Ours(s, capacity, "bfloat16")
    state = [ours.start(), ours.cache(context)]

    def step() -> None:
        state[:] = ours.step(ours.params, *state)

    return loop_time(step, lambda: np.asarray(state[0]))


def loop_time(step: Callable[[], None], wait: Callable[[], Any]) -> dict[str, Any]:
    """The median milliseconds of a step in REPEATS blocks of steps, and the first call's time."""
    began = time.perf_counter()
    step()
    wait()
    first = time.perf_counter() - began
    for _ in range(4):
        step()
    wait()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(8):
            step()
        wait()
        times.append((time.perf_counter() - began) / 8)
    return {"ms": 1e3 * statistics.median(times), "first_call_s": first}


# ---- PyTorch ----


class Torch:
    """The model in PyTorch with a cache that is written in place."""

    def __init__(self, s: dict[str, Any], capacity: int, dtype: str, device: str) -> None:
        import torch

        self.torch, self.s = torch, s
        kind = getattr(torch, dtype)
        flat = ((n, torch.from_numpy(x).to(device, kind)) for n, x in weights(s))
        self.params = nested(flat, s["layers"])
        shape = (s["layers"], 2, 1, s["kv_heads"], capacity, s["dim"])
        self.cache = torch.zeros(shape, dtype=kind, device=device)
        self.places = torch.arange(capacity, device=device)

    def norm(self, x: Any, p: Any) -> Any:
        """RMSNorm over the last axis, in float32 inside."""
        wide = x.float()
        wide = wide * self.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.s["eps"])
        return (wide * p["weight"].float()).to(x.dtype)

    def step(self, token: Any, position: Any) -> Any:
        """The token after `token` [1] at `position` [1]."""
        torch, s = self.torch, self.s
        functional = torch.nn.functional
        half = s["dim"] // 2
        rates = torch.exp(torch.arange(half, device=token.device) * (-math.log(s["theta"]) / half))
        angle = position.float()[:, None] * rates
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos(), angle.sin()
        seen = (self.places <= position)[None, None, None]

        def rotate(x: Any) -> Any:
            turned = torch.cat([-x[..., half:], x[..., :half]], -1)
            return (x * cos + turned * sin).to(x.dtype)

        x = self.params["embed_tokens"]["weight"][token]
        for i, p in enumerate(self.params["layers"]):
            a = p["self_attn"]
            h = self.norm(x, p["input_layernorm"])
            q, k, v = [
                functional.linear(h, a[f"{n}_proj"]["weight"]).view(1, -1, s["dim"]) for n in "qkv"
            ]
            q, k = rotate(self.norm(q, a["q_norm"])), rotate(self.norm(k, a["k_norm"]))
            keys, values = self.cache[i, 0], self.cache[i, 1]
            keys.index_copy_(2, position, k[:, :, None])
            values.index_copy_(2, position, v[:, :, None])
            o = functional.scaled_dot_product_attention(
                q[:, :, None], keys, values, attn_mask=seen, enable_gqa=True
            )
            x = x + functional.linear(o.reshape(1, -1), a["o_proj"]["weight"])
            h = self.norm(x, p["post_attention_layernorm"])
            m = {n: w["weight"] for n, w in p["mlp"].items()}
            gate = functional.silu(functional.linear(h, m["gate_proj"]))
            x = x + functional.linear(gate * functional.linear(h, m["up_proj"]), m["down_proj"])
        x = self.norm(x, self.params["norm"])
        return functional.linear(x, self.params["embed_tokens"]["weight"]).argmax(-1)


def torch_time(s: dict[str, Any], capacity: int, context: int, compiled: bool) -> dict[str, Any]:
    """Milliseconds a token of PyTorch's steps."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Torch(s, capacity, "bfloat16", device)
    step = torch.compile(model.step, mode="reduce-overhead") if compiled else model.step
    position = torch.tensor([context], device=device)
    token = torch.tensor([1], device=device)

    def one() -> None:
        nonlocal token
        token = step(token, position).clone()
        position.add_(1)

    with torch.inference_mode():
        return loop_time(one, lambda: token.item())


# ---- JAX ----


def jax_time(s: dict[str, Any], capacity: int, context: int) -> dict[str, Any]:
    """Milliseconds a token of JAX, the loop inside jit."""
    import jax
    import jax.numpy as jnp

    flat = ((n, jnp.asarray(x).astype(jnp.bfloat16)) for n, x in weights(s))
    params = nested(flat, s["layers"])
    half = s["dim"] // 2

    def norm(x: Any, p: Any) -> Any:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + s["eps"])
        return (wide * p["weight"].astype(jnp.float32)).astype(x.dtype)

    def step(params: Any, token: Any, cache: Any, position: Any) -> Any:
        rates = jnp.exp(jnp.arange(half) * (-math.log(s["theta"]) / half))
        angle = position.astype(jnp.float32) * rates
        angle = jnp.concatenate([angle, angle])
        cos, sin = jnp.cos(angle), jnp.sin(angle)

        def rotate(x: Any) -> Any:
            turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
            return (x * cos + turned * sin).astype(x.dtype)

        x = params["embed_tokens"]["weight"][token]
        kept = []
        for p, (keys, values) in zip(params["layers"], cache):
            a = p["self_attn"]
            h = norm(x, p["input_layernorm"])
            q, k, v = [(h @ a[f"{n}_proj"]["weight"].T).reshape(1, 1, -1, s["dim"]) for n in "qkv"]
            q, k = rotate(norm(q, a["q_norm"])), rotate(norm(k, a["k_norm"]))
            keys = jax.lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
            values = jax.lax.dynamic_update_slice(values, v, (0, position, 0, 0))
            kept.append((keys, values))
            o = jax.nn.dot_product_attention(
                q, keys, values, key_value_seq_lengths=(position + 1)[None]
            )
            x = x + o.reshape(1, -1) @ a["o_proj"]["weight"].T
            h = norm(x, p["post_attention_layernorm"])
            m = {n: w["weight"].T for n, w in p["mlp"].items()}
            gate = jax.nn.silu(h @ m["gate_proj"])
            x = x + (gate * (h @ m["up_proj"])) @ m["down_proj"]
        logits = norm(x, params["norm"]) @ params["embed_tokens"]["weight"].T
        return jnp.argmax(logits, -1).astype(jnp.int32), kept

    def many(params: Any, token: Any, cache: Any, count: Any) -> Any:
        def advance(n: Any, state: Any) -> Any:
            token, cache = state
            return step(params, token, cache, context + n)

        return jax.lax.fori_loop(0, count, advance, (token, cache))

    loop = jax.jit(many, donate_argnums=2)
    shape = (1, capacity, s["kv_heads"], s["dim"])
    cache: Any = [
        tuple(jnp.zeros(shape, jnp.bfloat16) for _ in range(2)) for _ in range(s["layers"])
    ]
    token = jnp.ones((1,), jnp.int32)

    def run(n: int) -> float:
        nonlocal cache
        began = time.perf_counter()
        out, cache = loop(params, token, cache, n)
        out.block_until_ready()
        return time.perf_counter() - began

    return lengths_time(run)


# ---- the same tokens ----


def check(s: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens of ours and of PyTorch, both in float32 throughout."""
    import torch

    import genesis_fn as gf

    with gf.default_matmul_precision("float32"):
        ours = Ours(s, 256, "float32")
        count = ours.jnp.asarray(np.array(CHECKED, np.int32))
        out = ours.loop(ours.params, ours.start(), ours.cache(0), count)[2]
        got = np.asarray(out)[:CHECKED].tolist()
    del ours
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Torch(s, 256, "float32", device)
    token, want = torch.tensor([1], device=device), []
    with torch.inference_mode():
        for n in range(CHECKED):
            token = model.step(token, torch.tensor([n], device=device))
            want.append(int(token))
    return {"tokens_equal": got == want, "ours": got, "torch": want}


# ---- rows ----


def measure(row: str, args: argparse.Namespace) -> dict[str, Any]:
    """One row, in this process."""
    s = sizes(args.layers)
    if row == "check":
        return check(s)
    if row == "jax":
        return jax_time(s, args.capacity, args.context)
    if row.startswith("torch"):
        return torch_time(s, args.capacity, args.context, row == "torch-compiled")
    run = ours_steps if row == "ours-steps" else ours_graph
    return run(s, args.capacity, args.context)


def table(result: dict[str, Any]) -> str:
    """The rows as markdown."""
    about = result["surroundings"]
    shape = result["shape"]
    lines = [
        f"Qwen3-0.6B greedy decode, batch 1, bfloat16, {shape['layers']} layers, cache of "
        f"{shape['capacity']}, {shape['context']} positions filled, on {about['device']}, commit "
        f"{about['commit'][:10]}.",
        "",
        "| row | ms a token | first call, s |",
        "| --- | --- | --- |",
    ]
    for name, row in result["rows"].items():
        if "ms" in row:
            lines.append(f"| {name} | {row['ms']:.3f} | {row['first_call_s']:.1f} |")
        elif "tokens_equal" in row:
            equal = "equal" if row["tokens_equal"] else "DIFFERENT"
            lines.append(f"| {CHECKED} float32 tokens, ours and PyTorch | {equal} | |")
        else:
            lines.append(f"| {name} | {row['error'].splitlines()[-1][:80]} | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the rows that are missing, one process each; write JSON and markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--context", type=int, default=1900)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one row")
    parser.add_argument("--out")
    parser.add_argument("--row", help="measure this one here and print it")
    args = parser.parse_args()
    if args.context + LONG > args.capacity:
        parser.error(f"--context {args.context} leaves no room for {LONG} tokens")
    if args.row:
        print(json.dumps(measure(args.row, args)))
        return
    result: dict[str, Any] = {"rows": {}}
    if args.out and os.path.exists(args.out):
        with open(args.out, encoding="utf-8") as f:
            result = json.load(f)
    result["surroundings"] = surroundings()
    result["shape"] = {k: getattr(args, k) for k in ("layers", "capacity", "context")}
    for row in args.rows.split(","):
        if "error" not in result["rows"].get(row, {"error": None}):
            continue
        command = [sys.executable, __file__, "--row", row]
        command += [x for k, v in result["shape"].items() for x in (f"--{k}", str(v))]
        try:
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=os.environ | ROWS[row],
                check=False,
                timeout=args.limit,
            )
            found = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else {}
            result["rows"][row] = found or {"error": run.stderr[-2000:] or "no output"}
        except subprocess.TimeoutExpired:
            result["rows"][row] = {"error": f"took longer than {args.limit} s"}
        if args.out:
            os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
            with open(args.out, "w", encoding="utf-8") as f:
                json.dump(result, f, indent=1)
            Path(args.out).with_suffix(".md").write_text(table(result), encoding="utf-8")
        print(row, result["rows"][row], flush=True)
    print(table(result))


if __name__ == "__main__":
    main()
