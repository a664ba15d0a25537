"""Training a language model: the step, the loop, the log, and resuming after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import io, optim
from genesis_fn.cli.interrupt import Interrupt, Interrupted
from genesis_fn.core import tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import open_plain, parse_json
from genesis_fn.data.tokens import TokenWindows
from genesis_fn.io.safetensors import atomic_write, name_file
from genesis_fn.models import qwen
from genesis_fn.transforms.autodiff.derivatives import value_and_grad
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train: steps, batch, learning rate and the rest. `seconds` stops it by the clock."""

    steps: int = 600
    batch: int = 8
    length: int = 128
    learning_rate: float = 2e-3
    warmup: int = 40
    weight_decay: float = 0.1
    clip: float = 1.0
    compute: str = "float32"
    seed: int = 0
    evaluate_every: int = 100
    evaluate_batches: int = 8
    seconds: float | None = None

    def optimizer(self) -> optim.GradientTransformationExtraArgs:
        """AdamW after clipping by the global norm, warm-up and cosine; no decay of vectors."""
        schedule = optim.warmup_cosine_decay_schedule(
            0.0,
            self.learning_rate,
            min(self.warmup, self.steps - 1),
            self.steps,
            0.1 * self.learning_rate,
        )
        decay = lambda params: tree.map(lambda x: x.ndim > 1, params)
        return optim.chain(
            optim.clip_by_global_norm(self.clip),
            optim.adamw(schedule, b1=0.9, b2=0.95, weight_decay=self.weight_decay, mask=decay),
        )


def init_state(config: qwen.QwenConfig, recipe: Recipe) -> dict[str, Any]:
    """Fresh parameters, optimizer state and step."""
    params = qwen.init(random.key(recipe.seed), config)
    return {
        "params": params,
        "optimizer": recipe.optimizer().init(params),
        "step": jnp.asarray(0, jnp.int32),
    }


def make_step(config: qwen.QwenConfig, recipe: Recipe) -> Callable[..., Any]:
    """The jitted function (state, tokens [B, T + 1]) -> (state, metrics); the state is donated."""
    optimizer = recipe.optimizer()

    def loss(params: Any, tokens: Any) -> Any:
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config)

    def step(state: dict[str, Any], tokens: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        value, grads = value_and_grad(amp(loss, recipe.compute))(state["params"], tokens)
        updates, opt_state = optimizer.update(grads, state["optimizer"], state["params"])
        params = optim.apply_updates(state["params"], updates)
        metrics = {"loss": value, "grad_norm": optim.global_norm(grads)}
        return {"params": params, "optimizer": opt_state, "step": state["step"] + 1}, metrics

    return jit(step, donate_argnames=("state",))


def make_evaluate(config: qwen.QwenConfig, recipe: Recipe) -> Callable[..., Any]:
    """A function (params, windows) -> mean loss in nats per token over `evaluate_batches`."""

    @jit
    def loss(params: Any, tokens: Any) -> Any:
        f = lambda p, t: qwen.loss(p, t[:, :-1], t[:, 1:], config)
        return amp(f, recipe.compute)(params, tokens)

    def evaluate(params: Any, windows: TokenWindows) -> float:
        losses = [
            float(loss(params, as_array(b))) for b in windows.in_order(recipe.evaluate_batches)
        ]
        return float(np.mean(losses))

    return evaluate


class Terminal:
    """A stream for what is shown only. A terminal that is gone, as after SIGHUP, ends no run."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Show `text`, if there is somebody to show it to."""
        with contextlib.suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        """Show what is held back."""
        with contextlib.suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def say(text: str) -> None:
    """Print a line, if there is somebody to read it."""
    try:
        print(text, flush=True)
    except OSError:
        # What it holds back would be written again, and fail again, when the process ends.
        sys.stdout = open(os.devnull, "w")


class Log:
    """One JSON object a line. Opened at a step, it forgets what was logged at or after it."""

    def __init__(self, path: str, start: int = 0) -> None:
        self.path, self.rows = path, []
        if start and os.path.exists(path):
            self.rows = [r for r in _rows(path) if r["step"] <= start]
        with atomic_write(path) as f:
            f.write("".join(json.dumps(r) + "\n" for r in self.rows).encode())
        self.file = open(path, "a", encoding="utf-8")

    def write(self, **row: Any) -> None:
        """Append a row, at once. Raises OSError naming the file."""
        self.rows.append(row)
        try:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
        except OSError as error:
            name_file(error, self.path)
            raise

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what did not fit was reported when it was written
            self.file.close()


_LONGEST_ROW = 1 << 16  # bytes
_NUMBERS = ("loss", "grad_norm", "tokens_per_s", "validation_loss")


def _rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a log; lines that are none, as where a run was killed, are passed over."""
    with open_plain(path) as f:
        while line := f.readline(_LONGEST_ROW):
            try:
                row = parse_json(line, path)
            except FileError:
                continue
            numbers = [row.get("step"), *[row[n] for n in _NUMBERS if n in row]]
            if type(numbers[0]) is int and all(map(_plottable, numbers)):
                yield row


def _plottable(x: Any) -> bool:
    return type(x) is float or type(x) is int and abs(x) < 2**53


def train(
    folder: str,
    config: qwen.QwenConfig,
    recipe: Recipe,
    train_tokens: np.ndarray,
    valid_tokens: np.ndarray,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train in `folder`, from its newest checkpoint if it has one. Returns a summary.

    Writes checkpoints (also when interrupted), `log.jsonl` and `loss.png`. A run that was stopped
    and one that was not reach the same numbers, bit for bit.
    """
    from tqdm import tqdm

    windows = TokenWindows(train_tokens, recipe.length, recipe.batch, recipe.seed)
    valid = TokenWindows(valid_tokens, recipe.length, recipe.batch)
    state = init_state(config, recipe)
    checkpoints = os.path.join(folder, "checkpoints")
    identity = {
        "config": config.to_dict(),
        "recipe": _lasting(recipe),
        "data": {"tokens": int(train_tokens.size), "crc32": zlib.crc32(train_tokens.tobytes())},
    }
    valid.check_one_batch("the validation split")
    if io.steps(checkpoints):
        state, start, values = _newest(checkpoints, state)
        if changed := _changed(values.get("identity"), identity):
            raise ValueError(
                f"{checkpoints} holds a run with other settings ({changed}); choose another folder "
                "by --out"
            )
        if not quiet:
            say(f"going on from step {start}")
    step, evaluate = make_step(config, recipe), make_evaluate(config, recipe)
    done = int(state["step"])
    log = Log(os.path.join(folder, "log.jsonl"), done)
    watched = sys.stderr is not None and sys.stderr.isatty()  # or its reader wants plain lines
    bar = tqdm(
        total=recipe.steps,
        initial=done,
        disable=quiet or not watched,
        unit="step",
        dynamic_ncols=True,
        desc="training",
        file=Terminal(sys.stderr),
    )
    began, seen, metrics, kept = time.perf_counter(), 0, {}, done
    tokens_per_step = recipe.batch * recipe.length

    def keep() -> None:
        io.save(checkpoints, done, state, {"identity": identity}, keep=2)

    whole = True
    try:
        with Interrupt() as interrupt:
            try:
                while done < recipe.steps:
                    whole = False
                    state, metrics = step(state, as_array(windows[done]))
                    done += 1
                    whole = True
                    loss = float(metrics["loss"])
                    seen += tokens_per_step
                    rate = seen / (time.perf_counter() - began)
                    bar.set_postfix(loss=f"{loss:.3f}", tok_s=f"{rate:,.0f}", refresh=False)
                    bar.update()
                    norm = float(metrics["grad_norm"])
                    log.write(step=done, loss=loss, grad_norm=norm, tokens_per_s=rate)
                    spent = time.perf_counter() - began
                    late = recipe.seconds is not None and spent > recipe.seconds
                    if done % recipe.evaluate_every == 0 or done == recipe.steps or late:
                        validation_loss = evaluate(state["params"], valid)
                        log.write(step=done, validation_loss=validation_loss)
                        if not quiet and not watched:
                            say(
                                f"step {done} of {recipe.steps}: loss {loss:.3f}, "
                                f"validation loss {validation_loss:.3f}, {rate:,.0f} tokens/s"
                            )
                        keep()
                        kept = done
                    if interrupt.asked is not None:
                        raise Interrupted(interrupt.asked)
                    if late:
                        break
            except KeyboardInterrupt:
                # A step that was cut short has donated its state: only the last checkpoint is
                # whole.
                if whole and kept != done:
                    keep()
                line = "\n" if watched else ""  # below the bar
                say(f"{line}interrupted at step {done}; run the same command to go on")
                raise
    finally:
        bar.close()
        log.close()
    plot(log.rows, os.path.join(folder, "loss.png"))
    validation = [r["validation_loss"] for r in log.rows if "validation_loss" in r]
    if not validation:  # of a finished run, of which the log is gone
        validation = [evaluate(state["params"], valid)]
    rates = [r["tokens_per_s"] for r in log.rows if "tokens_per_s" in r]
    return {
        "step": done,
        "loss": ([r["loss"] for r in log.rows if "loss" in r] or [float("nan")])[-1],
        "validation_loss": validation[-1],
        "tokens_per_s": (rates or [float("nan")])[-1],
        "params": state["params"],
    }


def _newest(root: str, template: Any) -> tuple[Any, int, dict[str, Any]]:
    """The newest checkpoint that is not damaged; those passed over are named."""
    damaged: FileError | None = None
    for step in reversed(io.steps(root)):
        try:
            return io.restore(root, template, step)
        except FileError as error:
            say(f"passed over a checkpoint: {error}")
            damaged = error
    raise FileError(f"{damaged}; no whole checkpoint is left, remove {root} to start again")


def _changed(before: Any, now: dict[str, dict[str, Any]]) -> str:
    """What differs between two runs, as `batch 8, now 12`; "" where nothing does."""
    found = []
    for part, values in now.items():
        old = before.get(part, {}) if isinstance(before, dict) else {}
        found += [
            f"{name} {old.get(name)!r}, now {value!r}"
            for name, value in values.items()
            if old.get(name) != value
        ]
    return "; ".join(found[:3])


def _lasting(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe must not change between a run and its continuation."""
    values = dataclasses.asdict(recipe)
    for name in ("seconds", "evaluate_every", "evaluate_batches"):
        del values[name]
    return values


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """The loss curves of a log as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    train = [(r["step"], r["loss"]) for r in rows if "loss" in r]
    valid = [(r["step"], r["validation_loss"]) for r in rows if "validation_loss" in r]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*train), color="#8aa9c9", linewidth=0.8, label="training, one batch")
    axes.plot(*zip(*valid), color="#b0413e", marker="o", markersize=3, label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with atomic_write(path) as f:
        figure.savefig(f, format="png", dpi=120)
    plt.close(figure)
