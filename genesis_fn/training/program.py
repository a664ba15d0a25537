"""The step that settings ask for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from genesis_fn.models import DecoderConfig
from genesis_fn.nn.lora import LoraConfig
from genesis_fn.training.loop import Step
from genesis_fn.training.model import make_loss
from genesis_fn.training.optimizers import make_optimizer, make_schedule
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import StepGuard, StepRecipe, make_step


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """A step, with the optimizer and the recipe that its state is made by."""

    step: Step
    optimizer: Any
    recipe: StepRecipe


def make_program(
    settings: TrainingSettings, config: DecoderConfig, adapters: LoraConfig | None
) -> StepProgram:
    """The step of settings.

    Args:
        settings: of the run; steps that are not counted yet are one.
        config: the hyperparameters.
        adapters: what adapters are like; None where parameters are trained.
    """
    recipe = _recipe(settings)
    schedule = make_schedule(settings.optim, settings.steps or 1)
    optimizer = make_optimizer(settings.optim, schedule)
    loss = make_loss(config, adapters, settings.compute, settings.remat)
    return StepProgram(make_step(loss, optimizer, schedule, recipe), optimizer, recipe)


def _recipe(settings: TrainingSettings) -> StepRecipe:
    s = settings.spike
    deviations = math.inf if s.action == "off" else s.deviations
    return StepRecipe(
        parts=settings.accumulate,
        loss_scaling=settings.compute == "float16",
        ema=settings.ema,
        seed=settings.seed if settings.method != "full" and settings.lora.dropout else None,
        guard=StepGuard(s.action == "skip", deviations, s.window),
    )
