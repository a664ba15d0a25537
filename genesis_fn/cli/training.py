"""Training a language model: the step, the loop, and resuming after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import io, optim
from genesis_fn.core import tree
from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import FileError
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.data.tokens import TokenWindows
from genesis_fn.models import qwen
from genesis_fn.training.interrupt import Interrupt, Interrupted
from genesis_fn.training.log import Log, plot
from genesis_fn.training.progress import Progress, say
from genesis_fn.transforms.autodiff.derivatives import value_and_grad
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp

State = dict[str, Any]  # "params", the state of the "optimizer", "step"
Step = Callable[[State, Array], tuple[State, dict[str, Array]]]


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


def init_state(config: qwen.QwenConfig, recipe: Recipe) -> State:
    """Fresh parameters, optimizer state and step."""
    params = qwen.init(random.key(recipe.seed), config)
    return {
        "params": params,
        "optimizer": recipe.optimizer().init(params),
        "step": jnp.asarray(0, jnp.int32),
    }


def make_loss(config: qwen.QwenConfig, recipe: Recipe) -> Callable[[PyTree, Array], Array]:
    """A function (params, tokens [B, T + 1]) -> mean loss in nats per token."""

    def loss(params: PyTree, tokens: Array) -> Array:
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config)

    return amp(loss, recipe.compute)


def make_step(config: qwen.QwenConfig, recipe: Recipe) -> Step:
    """The jitted function (state, tokens [B, T + 1]) -> (state, metrics); the state is donated."""
    optimizer = recipe.optimizer()

    loss = make_loss(config, recipe)

    def step(state: State, tokens: Array) -> tuple[State, dict[str, Array]]:
        value, grads = value_and_grad(loss)(state["params"], tokens)
        updates, opt_state = optimizer.update(grads, state["optimizer"], state["params"])
        params = optim.apply_updates(state["params"], updates)
        metrics = {"loss": value, "grad_norm": optim.global_norm(grads)}
        return {"params": params, "optimizer": opt_state, "step": state["step"] + 1}, metrics

    return jit(step, donate_argnames=("state",))


def make_evaluate(
    config: qwen.QwenConfig, recipe: Recipe, windows: TokenWindows
) -> Callable[[PyTree], float]:
    """A function from params to the mean loss in nats per token over `evaluate_batches`."""
    loss = jit(make_loss(config, recipe))

    def evaluate(params: PyTree) -> float:
        batches = windows.in_order(recipe.evaluate_batches)
        return float(np.mean([float(loss(params, as_array(b))) for b in batches]))

    return evaluate


@dataclasses.dataclass(frozen=True)
class TrainingSummary:
    """What a run came to: steps, the last validation loss in nats per token, tokens per second, and
    the parameters."""

    step: int
    validation_loss: float
    tokens_per_s: float
    params: PyTree


def train(
    folder: str,
    config: qwen.QwenConfig,
    recipe: Recipe,
    train_tokens: np.ndarray,
    valid_tokens: np.ndarray,
    *,
    quiet: bool = False,
) -> TrainingSummary:
    """Train in `folder`, from its newest checkpoint if it has one.

    Writes checkpoints (also when interrupted), `log.jsonl` and `loss.png`. A run that was stopped
    and one that was not reach the same numbers, bit for bit.

    Args:
        folder: where the run is kept.
        config: the model's hyperparameters.
        recipe: how to train.
        train_tokens, valid_tokens: integers [n].
        quiet: whether nothing is shown but an interruption.

    Raises:
        ValueError: there are too few tokens, or the folder holds a run with other settings.
        Interrupted: a signal ended the run, which is saved.
    """
    windows = TokenWindows(train_tokens, recipe.length, recipe.batch, recipe.seed)
    valid = TokenWindows(valid_tokens, recipe.length, recipe.batch)
    valid.check_one_batch("the validation split")
    identity = {
        "config": config.to_dict(),
        "recipe": _lasting(recipe),
        "data": {"tokens": int(train_tokens.size), "crc32": zlib.crc32(train_tokens.tobytes())},
    }
    checkpoints = _Checkpoints(os.path.join(folder, "checkpoints"), identity)
    state = init_state(config, recipe)
    if io.steps(checkpoints.root):
        state = checkpoints.newest(state)
        if not quiet:
            say(f"going on from step {int(state['step'])}")
    done = int(state["step"])
    step, evaluate = make_step(config, recipe), make_evaluate(config, recipe, valid)
    with (
        contextlib.closing(Progress(recipe.steps, done, quiet=quiet)) as progress,
        contextlib.closing(Log(os.path.join(folder, "log.jsonl"), done)) as log,
    ):
        run = _Run(state, recipe, step, evaluate, windows, checkpoints, log, progress)
        run.to_end()
    plot(log.rows, os.path.join(folder, "loss.png"))
    losses = [r["validation_loss"] for r in log.rows if "validation_loss" in r]
    rates = [r["tokens_per_s"] for r in log.rows if "tokens_per_s" in r]
    params = run.state["params"]
    return TrainingSummary(
        run.done,
        # Of a finished run, the log may be gone.
        losses[-1] if losses else evaluate(params),
        rates[-1] if rates else math.nan,
        params,
    )


@dataclasses.dataclass
class _Run:
    """A run under way: `state` is that after `done` steps, and `whole` unless a step was cut short,
    which has donated it."""

    state: State
    recipe: Recipe
    step: Step
    evaluate: Callable[[PyTree], float]
    windows: TokenWindows
    checkpoints: _Checkpoints
    log: Log
    progress: Progress

    def __post_init__(self) -> None:
        self.start = self.done = self.kept = int(self.state["step"])
        self.whole = True
        self.began = time.perf_counter()

    def to_end(self) -> None:
        """Train to the last step, or until the recipe's time is over. What ends it before saves the
        state."""
        with Interrupt() as interrupt:
            try:
                while self.done < self.recipe.steps:
                    loss, rate = self._advance()
                    late = self.recipe.seconds is not None and self._spent() > self.recipe.seconds
                    last = late or self.done == self.recipe.steps
                    if last or self.done % self.recipe.evaluate_every == 0:
                        self._evaluate(loss, rate)
                        self._keep()
                    if interrupt.asked is not None:
                        raise Interrupted(interrupt.asked)
                    if late:
                        return
            except KeyboardInterrupt:
                if self.whole:
                    self._keep()
                self.progress.interrupted(self.done)
                raise

    def _advance(self) -> tuple[float, float]:
        """Take a step, and log it. Returns its loss, and tokens per second so far."""
        self.whole = False
        self.state, metrics = self.step(self.state, as_array(self.windows[self.done]))
        self.done += 1
        self.whole = True
        loss = float(metrics["loss"])
        tokens = (self.done - self.start) * self.recipe.batch * self.recipe.length
        rate = tokens / self._spent()
        self.progress.advanced(loss, rate)
        norm = float(metrics["grad_norm"])
        self.log.write(step=self.done, loss=loss, grad_norm=norm, tokens_per_s=rate)
        return loss, rate

    def _evaluate(self, loss: float, rate: float) -> None:
        validation_loss = self.evaluate(self.state["params"])
        self.log.write(step=self.done, validation_loss=validation_loss)
        self.progress.evaluated(self.done, loss, validation_loss, rate)

    def _keep(self) -> None:
        if self.kept != self.done:
            self.checkpoints.save(self.done, self.state)
            self.kept = self.done

    def _spent(self) -> float:
        return time.perf_counter() - self.began


# ---- checkpoints ----


@dataclasses.dataclass(frozen=True)
class _Checkpoints:
    """The checkpoints of a run in a folder. `identity` has what must not change between a run and
    its continuation."""

    root: str
    identity: dict[str, dict[str, Any]]

    def save(self, step: int, state: State) -> None:
        """Write a checkpoint."""
        io.save(self.root, step, state, {"identity": self.identity}, keep=2)

    def newest(self, template: State) -> State:
        """The state of the newest checkpoint that is not damaged; those passed over are named.

        Raises ValueError where it is of a run with other settings, FileError where none is whole.
        """
        damaged: FileError | None = None
        for step in reversed(io.steps(self.root)):
            try:
                state, _, values = io.restore(self.root, template, step)
            except FileError as error:
                say(f"passed over a checkpoint: {error}")
                damaged = error
                continue
            if changed := _changed(values.get("identity"), self.identity):
                raise ValueError(
                    f"{self.root} holds a run with other settings ({changed}); choose another "
                    "folder by --out"
                )
            return state
        raise FileError(
            f"{damaged}; no whole checkpoint is left, remove {self.root} to start again"
        )


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
