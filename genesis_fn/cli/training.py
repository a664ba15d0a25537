"""Training the demo's model: its recipe, on windows of one text."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis_fn.random as random
from genesis_fn import optim
from genesis_fn.core import tree
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.data.tokens import TokenWindows
from genesis_fn.models import qwen
from genesis_fn.training.checkpoints import RunCheckpoints
from genesis_fn.training.loop import Every, Run, Standing
from genesis_fn.training.model import make_loss
from genesis_fn.training.monitoring.log import Log
from genesis_fn.training.monitoring.plots import plot
from genesis_fn.training.monitoring.progress import Progress, say
from genesis_fn.training.step import Batch, StepRecipe, init_state, leaf_names, make_step
from genesis_fn.transforms.jitting import jit


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

    def schedule(self) -> optim.Schedule:
        """Warm-up and cosine."""
        return optim.warmup_cosine_decay_schedule(
            0.0,
            self.learning_rate,
            min(self.warmup, self.steps - 1),
            self.steps,
            0.1 * self.learning_rate,
        )

    def optimizer(self) -> optim.GradientTransformationExtraArgs:
        """AdamW after clipping by the global norm; no decay of vectors."""
        decay = lambda params: tree.map(lambda x: x.ndim > 1, params)
        return optim.chain(
            optim.clip_by_global_norm(self.clip),
            optim.adamw(
                self.schedule(), b1=0.9, b2=0.95, weight_decay=self.weight_decay, mask=decay
            ),
        )


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
        **config.to_dict(),
        **_lasting(recipe),
        "tokens": int(train_tokens.size),
        "crc32": zlib.crc32(train_tokens.tobytes()),
    }
    checkpoints = RunCheckpoints(os.path.join(folder, "checkpoints"), identity)
    optimizer, step_recipe = recipe.optimizer(), StepRecipe()
    params = qwen.init(random.key(recipe.seed), config)
    state = init_state(params, optimizer, step_recipe)
    standing = Standing()
    if (found := checkpoints.newest(state)) is not None:
        state, values = found
        standing = Standing(**values["standing"])
        if not quiet:
            say(f"going on from step {int(state.step)}")
    done = int(state.step)
    loss = make_loss(config, None, recipe.compute, remat=False)
    evaluate = _evaluation(jit(loss), valid, recipe)
    every = recipe.evaluate_every
    with (
        contextlib.closing(Progress(recipe.steps, done, quiet=quiet)) as progress,
        contextlib.closing(Log(os.path.join(folder, "log.jsonl"), done)) as log,
    ):
        run = Run(
            state,
            None,
            make_step(loss, optimizer, recipe.schedule(), step_recipe),
            recipe.steps,
            _Windows(windows, done),
            Every(every, every),
            leaf_names(params),
            checkpoints,
            log,
            progress,
            evaluate,
            standing=standing,
            seconds=recipe.seconds,
        )
        del state, params
        run.to_end()
    plot(log.rows, os.path.join(folder, "loss.png"))
    losses = [r["validation_loss"] for r in log.rows if r.get("validation_loss") is not None]
    rates = [r["tokens_per_s"] for r in log.rows if r.get("tokens_per_s") is not None]
    return TrainingSummary(
        run.done,
        # Of a finished run, the log may be gone.
        losses[-1] if losses else evaluate(run.state)["validation_loss"],
        rates[-1] if rates else math.nan,
        run.state.params,
    )


@dataclasses.dataclass
class _Windows:
    """The batches of a run, from a step on: that of a step depends on nothing else."""

    windows: TokenWindows
    step: int

    def __next__(self) -> Batch:
        batch = _batch(self.windows[self.step])
        self.step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """The number of the next step."""
        return {"step": self.step}


def _batch(windows: np.ndarray) -> Batch:
    return {"tokens": windows[:, :-1], "labels": windows[:, 1:]}


def _evaluation(
    loss: Callable[..., Any], windows: TokenWindows, recipe: Recipe
) -> Callable[[TrainState], dict[str, float]]:
    """The mean loss in nats per token over `evaluate_batches`."""

    def evaluate(state: TrainState) -> dict[str, float]:
        batches = [_batch(w) for w in windows.in_order(recipe.evaluate_batches)]
        total = sum(float(loss(state.params, None, batch, None)) for batch in batches)
        return {"validation_loss": total / sum(batch["labels"].size for batch in batches)}

    return evaluate


def _lasting(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe must not change between a run and its continuation."""
    values = dataclasses.asdict(recipe)
    for name in ("seconds", "evaluate_every", "evaluate_batches"):
        del values[name]
    return values
