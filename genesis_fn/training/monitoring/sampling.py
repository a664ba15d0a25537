"""Texts that a model writes while it is trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import genesis_fn.random as random
from genesis_fn.core.train_state import TrainState
from genesis_fn.models import GenerationConfig, generate
from genesis_fn.training import datasets
from genesis_fn.training.model import TrainedModel, parameters_of
from genesis_fn.training.settings.sections import TrainingSettings

Sampler = Callable[[TrainState], list[str]]


def make_sampler(settings: TrainingSettings, model: TrainedModel) -> Sampler | None:
    """What writes on from `sample.prompts`; None where no samples are asked for.

    Where the training data are chats, a prompt is what a user says, in the model's chat template.

    Args:
        settings: all settings.
        model: whose tokenizer, template and frozen weights are taken.

    Raises:
        FileError, OSError, ArgumentError: the data or the template are missing or malformed.
    """
    s = settings.sample
    if not s.every or not s.prompts:
        return None
    end = datasets.end_token(model.tokenizer_folder, model.tokenizer)
    prompts = _encoded(settings, model, end)
    generation = GenerationConfig(
        do_sample=s.temperature > 0,
        temperature=s.temperature or 1.0,
        max_new_tokens=s.max_new_tokens,
        eos_token_id=end,
        pad_token_id=end,
    )

    def sample(state: TrainState) -> list[str]:
        params = parameters_of(state.params, model.frozen, model.lora)
        texts = []
        for tokens in prompts:
            key = random.fold_in(random.key(settings.seed), int(state.step))
            found, lengths = generate(params, tokens, model.config, key=key, generation=generation)
            texts.append(model.tokenizer.decode(found[0, : int(lengths[0])].tolist()))
        return texts

    return sample


def _encoded(settings: TrainingSettings, model: TrainedModel, end: int) -> list[np.ndarray]:
    """The tokens [1, n] of each prompt."""
    if datasets.are_chats(settings):
        template = model.chat_template()
        asked = [[{"role": "user", "content": prompt}] for prompt in settings.sample.prompts]
        ids = [template.encode(model.tokenizer, messages) for messages in asked]
    else:
        ids = [model.tokenizer.encode(prompt).ids for prompt in settings.sample.prompts]
    return [np.asarray([x or [end]], np.int32) for x in ids]
