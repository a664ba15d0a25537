"""The CPU table: this library, PyTorch (eager and compiled) and JAX, in one run.

    python -m benchmarks.cpu                 # every row, three rounds
    python -m benchmarks.cpu --rounds 1 --rows call_2,eager_add

Each library runs in processes of its own, in turn, so that a change of the machine's load meets all
of them. Times are medians over all rounds, after warm-up, on random data, with two threads. Writes
results/cpu.json and results/cpu.md.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
THREADS = 2
LEAVES = 300

# Row -> (what is measured, the gate in words, gate: (rows of results) -> bool).
ROWS: dict[str, tuple[str, str]] = {
    "call_2": ("jitted call, 2 arrays of 8: x * y + 1", "10 us"),
    "call_300_in": ("jitted call, 300 leaves in, 1 out", "72 us"),
    "call_300_through": ("jitted call, 300 leaves in and out, passed through", "250 us"),
    "call_300_out": ("jitted call, 300 leaves in and out, each doubled", "250 us"),
    "eager_add": ("eager x + y, 8 elements", "8 us"),
    "eager_scale": ("eager x * 2.0, 8 elements", "8 us"),
    "qwen_step": ("training step of a small Qwen (4 layers, width 256, 4 x 256), AdamW, float32",
                  "1.0 x torch eager"),
    "trace_qwen3": ("trace and differentiate the 28-layer Qwen3-0.6B step", "2 s"),
    "import": ("import, beyond torch for this library", "0.3 s"),
}  # fmt: skip
_GATES = {
    "call_2": 10e-6, "call_300_in": 72e-6, "call_300_through": 250e-6, "call_300_out": 250e-6,
    "eager_add": 8e-6,
    "eager_scale": 8e-6, "trace_qwen3": 2.0, "import": 0.3,
}  # fmt: skip
WORKERS = (
    "genesis_fn",
    "genesis_fn inductor",
    "torch",
    "torch fused AdamW",
    "torch.compile",
    "jax",
)


# ---- timing ----


def samples(f: Callable[[], Any], *, seconds: float = 1.0, least: int = 10) -> list[float]:
    """Times of single calls; calls shorter than 100 us are timed in batches."""
    for _ in range(3):
        f()
    start = time.perf_counter()
    f()
    once = time.perf_counter() - start
    batch = max(1, int(1e-4 / max(once, 1e-7)) * 10) if once < 1e-4 else 1
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least or (time.perf_counter() < end and len(found) < 200):
        start = time.perf_counter()
        for _ in range(batch):
            f()
        found.append((time.perf_counter() - start) / batch)
    return found


def import_time(statement: str) -> float:
    """Seconds that `import genesis_fn` or another takes in a new process, after `import torch` or
    what the statement has before its last import."""
    *before, last = statement.split(";")
    code = f"import time\n{';'.join(before) or 'pass'}\nt = time.perf_counter()\n{last.strip()}\n"
    code += "print(time.perf_counter() - t)"
    return float(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )


def leaves() -> dict[str, Any]:
    """300 small random arrays by name."""
    import numpy as np

    rng = np.random.default_rng(0)
    return {f"k{i}": rng.normal(size=4).astype("float32") for i in range(LEAVES)}


def pair() -> tuple[Any, Any]:
    """Two random vectors of 8."""
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.normal(size=8).astype("float32"), rng.normal(size=8).astype("float32")


def tokens() -> tuple[Any, Any]:
    """A batch of random tokens and labels for the small Qwen."""
    import numpy as np

    from benchmarks.qwen_shape import SHAPE

    rng = np.random.default_rng(0)
    rows = rng.integers(0, SHAPE.vocabulary, (SHAPE.batch, SHAPE.length + 1)).astype("int32")
    return rows[:, :-1].copy(), rows[:, 1:].copy()


# ---- what each library runs: row -> function that makes a callable, or a list of times ----


def genesis_rows(compiler: str | None) -> dict[str, Callable[[], Any]]:
    """This library; with compiler="inductor" the training step only."""
    import torch

    torch.set_num_threads(THREADS)
    import numpy as np

    import genesis_fn.numpy as jnp
    from benchmarks.qwen_shape import SHAPE as s
    from genesis_fn import optim, random
    from genesis_fn.models import qwen
    from genesis_fn.transforms.autodiff.derivatives import value_and_grad
    from genesis_fn.transforms.jitting import jit
    from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct

    def call(f: Callable, *args: Any) -> Callable:
        compiled = jit(f)
        return lambda: compiled(*args)

    def arrays() -> dict[str, Any]:
        return {k: jnp.asarray(v) for k, v in leaves().items()}

    def step_of(config: qwen.QwenConfig) -> tuple[Callable, Any]:
        tx = optim.adamw(1e-3, weight_decay=1e-4)

        def step(params: Any, state: Any, tokens: Any, labels: Any) -> tuple:
            value, grads = value_and_grad(lambda p: qwen.loss(p, tokens, labels, config))(params)
            updates, state = tx.update(grads, state, params)
            return optim.apply_updates(params, updates), state, value

        return step, tx

    def qwen_step() -> Callable:
        config = qwen.QwenConfig(
            vocab_size=s.vocabulary,
            hidden_size=s.width,
            intermediate_size=s.inner,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            head_dim=s.head_dim,
            rms_norm_eps=s.eps,
            rope_theta=s.theta,
        )
        step, tx = step_of(config)
        # TorchInductor's program never writes over its inputs.
        donated = None if compiler else (0, 1)
        compiled = jit(step, donate_argnums=donated, compiler=compiler)
        params = qwen.init(random.key(0), config)
        held = [params, tx.init(params)]
        batch = [jnp.asarray(x) for x in tokens()]

        def run() -> None:
            held[0], held[1], _ = compiled(*held, *batch)

        return run

    def trace() -> Callable:
        config = qwen.PRESETS["qwen3-0.6b"]
        step, tx = step_of(config)
        params = jit(lambda k: qwen.init(k, config)).eval_shape(random.key(0))
        state = jit(tx.init).eval_shape(params)
        ids = ShapeDtypeStruct((8, 2048), np.int32)
        return lambda: jit(lambda *args: step(*args)).trace(params, state, ids, ids)

    x, y = [jnp.asarray(v) for v in pair()]
    if compiler:
        return {"qwen_step": qwen_step}
    return {
        "call_2": lambda: call(lambda a, b: a * b + 1.0, x, y),
        "call_300_in": lambda: call(lambda p: p["k0"] + p["k299"], arrays()),
        "call_300_through": lambda: call(lambda p: dict(p), arrays()),
        "call_300_out": lambda: call(lambda p: {k: v * 2.0 for k, v in p.items()}, arrays()),
        "eager_add": lambda: lambda: x + y,
        "eager_scale": lambda: lambda: x * 2.0,
        "qwen_step": qwen_step,
        "trace_qwen3": trace,
        "import": lambda: [import_time("import torch; import genesis_fn") for _ in range(5)],
    }


def torch_rows(compiled: bool, fused: bool) -> dict[str, Callable[[], Any]]:
    """PyTorch, eager or compiled."""
    import torch

    torch.set_num_threads(THREADS)
    from benchmarks.qwen_torch import training_step

    def call(f: Callable, *args: Any) -> Callable:
        f = torch.compile(f) if compiled else f
        return lambda: f(*args)

    def tensors() -> dict[str, Any]:
        return {k: torch.from_numpy(v) for k, v in leaves().items()}

    def qwen_step() -> Callable:
        step = training_step(compiled, fused)
        batch = [torch.from_numpy(v).long() for v in tokens()]
        return lambda: step(*batch)

    x, y = [torch.from_numpy(v) for v in pair()]
    if fused and not compiled:
        return {"qwen_step": qwen_step}
    rows = {
        "call_2": lambda: call(lambda a, b: a * b + 1.0, x, y),
        "call_300_in": lambda: call(lambda p: p["k0"] + p["k299"], tensors()),
        "call_300_through": lambda: call(lambda p: dict(p), tensors()),
        "call_300_out": lambda: call(lambda p: {k: v * 2.0 for k, v in p.items()}, tensors()),
        "qwen_step": qwen_step,
    }
    if not compiled:
        rows["eager_add"] = lambda: lambda: x + y
        rows["eager_scale"] = lambda: lambda: x * 2.0
    return rows


def jax_rows() -> dict[str, Callable[[], Any]]:
    """JAX and optax."""
    import jax
    import jax.numpy as jnp
    import optax

    from benchmarks import qwen_jax
    from benchmarks.qwen_shape import QWEN3_0_6B

    def call(f: Callable, *args: Any) -> Callable:
        compiled = jax.jit(f)
        return lambda: jax.block_until_ready(compiled(*args))

    def arrays() -> dict[str, Any]:
        return {k: jnp.asarray(v) for k, v in leaves().items()}

    def qwen_step() -> Callable:
        step, *held = qwen_jax.training_step()
        batch = [jnp.asarray(v) for v in tokens()]

        def run() -> None:
            held[0], held[1], value = step(*held, *batch)
            value.block_until_ready()

        return run

    def trace() -> Callable:
        shape = QWEN3_0_6B
        tx = optax.adamw(1e-3, weight_decay=1e-4)
        params = jax.eval_shape(lambda k: qwen_jax.init(k, shape), jax.random.key(0))
        state = jax.eval_shape(tx.init, params)
        ids = jax.ShapeDtypeStruct((8, 2048), jnp.int32)

        def step(params: Any, state: Any, tokens: Any, labels: Any) -> tuple:
            value, grads = jax.value_and_grad(qwen_jax.loss)(params, tokens, labels, shape)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        def run() -> None:
            jax.clear_caches()
            jax.jit(lambda *args: step(*args)).trace(params, state, ids, ids)

        return run

    x, y = [jnp.asarray(v) for v in pair()]
    return {
        "call_2": lambda: call(lambda a, b: a * b + 1.0, x, y),
        "call_300_in": lambda: call(lambda p: p["k0"] + p["k299"], arrays()),
        "call_300_through": lambda: call(lambda p: dict(p), arrays()),
        "call_300_out": lambda: call(lambda p: {k: v * 2.0 for k, v in p.items()}, arrays()),
        "eager_add": lambda: lambda: (x + y).block_until_ready(),
        "eager_scale": lambda: lambda: (x * 2.0).block_until_ready(),
        "qwen_step": qwen_step,
        "trace_qwen3": trace,
        "import": lambda: [import_time("import jax") for _ in range(5)],
    }


def rows_of(worker: str) -> dict[str, Callable[[], Any]]:
    """What a library runs."""
    return {
        "genesis_fn": lambda: genesis_rows(None),
        "genesis_fn inductor": lambda: genesis_rows("inductor"),
        "torch": lambda: torch_rows(False, False),
        "torch fused AdamW": lambda: torch_rows(False, True),
        "torch.compile": lambda: torch_rows(True, True),
        "jax": jax_rows,
    }[worker]()


def work(worker: str, wanted: list[str]) -> dict[str, list[float]]:
    """The samples of every row that a library has."""
    found = {}
    rows = rows_of(worker)
    for row in wanted:
        if row not in rows:
            continue
        made = rows[row]()
        slow = row in ("qwen_step", "trace_qwen3")
        found[row] = made if isinstance(made, list) else samples(made, seconds=8 if slow else 1)
    return found


# ---- the run ----


def measure(rounds: int, wanted: list[str]) -> dict[str, dict[str, list[float]]]:
    """worker -> row -> samples of all rounds, the libraries taking turns."""
    found: dict[str, dict[str, list[float]]] = {w: {} for w in WORKERS}
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": str(THREADS),
        "MKL_NUM_THREADS": str(THREADS),
        "GENESIS_DEVICE": "cpu",
        "JAX_PLATFORMS": "cpu",
        # Threads that spin while they wait double every time on a machine with other work.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    for r in range(rounds):
        for w in WORKERS:
            command = [sys.executable, "-m", "benchmarks.cpu", "--worker", w]
            command += ["--rows", ",".join(wanted)]
            done = subprocess.run(
                command,
                env=settings,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parent.parent,
            )
            if done.returncode:
                print(f"{w} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
                continue
            for row, times in json.loads(done.stdout.splitlines()[-1]).items():
                found[w].setdefault(row, []).extend(times)
            print(f"round {r + 1}/{rounds}: {w}", file=sys.stderr)
    return found


def facts() -> dict[str, Any]:
    """The machine, the versions and the commit."""

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    ).stdout.strip()
    return {
        "device": cpu,
        "cores": os.cpu_count(),
        "threads": THREADS,
        "python": platform.python_version(),
        "versions": {n: version(n) for n in ("torch", "jax", "jaxlib", "optax", "numpy")},
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "load": list(os.getloadavg()),
    }


def passes(row: str, medians: dict[str, float]) -> bool | None:
    """Whether the gate of a row holds; None where it was not measured."""
    ours = [medians[w] for w in WORKERS[:2] if w in medians]
    if not ours:
        return None
    mine = min(ours)
    if row in _GATES:
        return mine <= _GATES[row]
    if row == "qwen_step":
        eager = [medians[w] for w in ("torch", "torch fused AdamW") if w in medians]
        return mine <= min(eager) if eager else None
    others = [t for w, t in medians.items() if not w.startswith("genesis_fn")]
    return mine <= min(others) if others else None


def shown(seconds: float | None) -> str:
    """A time with a unit."""
    if seconds is None:
        return ""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def table(medians: dict[str, dict[str, float]]) -> str:
    """The results in Markdown."""
    lines = [
        "| work | " + " | ".join(WORKERS) + " | gate | holds |",
        "| --- |" + " --- |" * (len(WORKERS) + 2),
    ]
    for row, (what, gate) in ROWS.items():
        found = {w: medians[w][row] for w in WORKERS if row in medians[w]}
        if not found:
            continue
        holds = {True: "yes", False: "no", None: ""}[passes(row, found)]
        cells = " | ".join([shown(found.get(w)) for w in WORKERS])
        lines.append(f"| {what} | {cells} | {gate} | {holds} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    wanted = given.rows.split(",")
    unknown = set(wanted) - set(ROWS)
    if unknown:
        parser.error(f"no rows {sorted(unknown)}; there are {', '.join(ROWS)}")
    if given.worker:
        print(json.dumps(work(given.worker, wanted)))
        return
    found = measure(given.rounds, wanted)
    medians = {w: {r: statistics.median(t) for r, t in rows.items()} for w, rows in found.items()}
    about = facts()
    text = table(medians)
    print(text)
    given.out.mkdir(parents=True, exist_ok=True)
    results = {
        w: {
            r: {"median": statistics.median(t), "least": min(t), "samples": len(t)}
            for r, t in rows.items()
        }
        for w, rows in found.items()
    }
    (given.out / "cpu.json").write_text(json.dumps({**about, "results": results}, indent=1) + "\n")
    head = f"{about['device']}, {THREADS} threads, commit {about['commit'][:10]}, {about['date']}"
    (given.out / "cpu.md").write_text(f"{head}; medians.\n\n{text}\n")


if __name__ == "__main__":
    main()
