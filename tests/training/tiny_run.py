"""The smallest run of the training loop: some numbers that are fitted to others, in milliseconds
a step, with its log, evaluations and checkpoints."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import optim
from genesis_fn.training.checkpoints import RunCheckpoints
from genesis_fn.training.loop import Every, Run, Standing
from genesis_fn.training.monitoring.log import Log
from genesis_fn.training.monitoring.progress import Progress
from genesis_fn.training.step import StepRecipe, init_state, leaf_names, make_step

RECIPE = StepRecipe()
OPTIMIZER = optim.adam(0.05)
EVERY = Every(evaluate=3, checkpoint=2)


def loss(trained, frozen, batch, key):
    """The squared distance of what is trained from a batch."""
    return ((trained["w"] - batch["tokens"].astype("float32")) ** 2).sum()


STEP = make_step(loss, OPTIMIZER, lambda _: 0.05, RECIPE)


class Batches:
    """Random numbers that a step's number decides."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def __next__(self) -> dict[str, Any]:
        self.at += 1
        tokens = np.random.default_rng(self.at).integers(0, 9, (2, 8)).astype(np.int32)
        return {"tokens": tokens, "labels": tokens}

    def get_state(self) -> dict[str, Any]:
        """How many were taken."""
        return {"at": self.at}


def first_state():
    """The state before the first step."""
    return init_state({"w": jnp.zeros(8)}, OPTIMIZER, RECIPE)


def validation_loss(step: int) -> float:
    """A loss that a step's number decides, and that falls and rises."""
    return float(np.random.default_rng((7, step)).random()) - step / 1000


def train(
    folder: str,
    steps: int,
    *,
    losses: dict[int, float] | None = None,
    every: Every = EVERY,
    keep: int = 2,
    best: int = 1,
    background: bool = False,
) -> Standing:
    """Train to a step, from the newest checkpoint of a folder, and return the standing."""
    os.makedirs(folder, exist_ok=True)
    root = os.path.join(folder, "checkpoints")
    checkpoints = RunCheckpoints(root, {}, keep=keep, best=best, background=background)
    state, standing, batches = first_state(), Standing(), Batches()
    if (found := checkpoints.newest(state)) is not None:
        state, values = found
        batches, standing = Batches(**values["data"]), Standing(**values["standing"])
    done = int(state.step)

    def evaluate(state):
        step = int(state.step)
        return {"validation_loss": losses[step] if losses else validation_loss(step)}

    with (
        contextlib.closing(checkpoints),
        contextlib.closing(Progress(steps, done, quiet=True)) as progress,
        contextlib.closing(Log(os.path.join(folder, "log.jsonl"), done)) as log,
    ):
        run = Run(
            state,
            None,
            STEP,
            steps,
            batches,
            every,
            leaf_names(state.params),
            checkpoints,
            log,
            progress,
            evaluate,
            standing=standing,
        )
        del state
        run.to_end()
    return run.standing
