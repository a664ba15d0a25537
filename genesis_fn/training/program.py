"""The step that settings ask for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from genesis_fn import parallel
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.models import DecoderConfig
from genesis_fn.nn.lora import LoraConfig
from genesis_fn.training.loop import Step
from genesis_fn.training.model import make_loss
from genesis_fn.training.optimizers import make_optimizer, make_schedule
from genesis_fn.training.parallel.layout import RunLayout
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import StepGuard, StepLayout, StepRecipe, init_state, make_step
from genesis_fn.transforms.jitting import jit


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """A step, with the optimizer and the recipe that its state is made by, and how that is laid
    out; None: on one device."""

    step: Step
    optimizer: Any
    recipe: StepRecipe
    layout: StepLayout | None = None

    def first_state(self, trained: PyTree) -> TrainState:
        """The state before the first step, laid out as the step takes it."""
        make = lambda x: init_state(x, self.optimizer, self.recipe)
        if self.layout is None:
            return make(trained)
        laid_out = jit(
            make, out_shardings=self.layout.state, donate_argnums=0, on_unusable_donation="ignore"
        )
        return laid_out(trained)


def make_program(
    settings: TrainingSettings,
    config: DecoderConfig,
    adapters: LoraConfig | None,
    layout: RunLayout | None = None,
    trained: PyTree = None,
) -> StepProgram:
    """The step of settings.

    Args:
        settings: of the run; steps that are not counted yet are one.
        config: the hyperparameters.
        adapters: what adapters are like; None where parameters are trained.
        layout: of the run over a mesh; None: on one device.
        trained: what is trained, arrays or their shapes; a layout needs them.
    """
    recipe = _recipe(settings)
    schedule = make_schedule(settings.optim, settings.steps or 1)
    optimizer = make_optimizer(settings.optim, schedule)
    loss = make_loss(config, adapters, settings.compute, settings.remat)
    placed = None if layout is None else _step_layout(layout, trained, adapters, optimizer, recipe)
    step = make_step(loss, optimizer, schedule, recipe, placed)
    return StepProgram(step, optimizer, recipe, placed)


def _step_layout(
    layout: RunLayout,
    trained: PyTree,
    adapters: LoraConfig | None,
    optimizer: Any,
    recipe: StepRecipe,
) -> StepLayout:
    own = layout.parameters(trained) if adapters is None else layout.adapters(trained)
    make = lambda x: init_state(x, optimizer, recipe)
    state = parallel.state_shardings(make, trained, own)
    return StepLayout(state, own, layout.parts_of_batch, layout.whole)


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
