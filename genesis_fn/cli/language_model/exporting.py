"""A trained model as the folder that `genesis-fn chat` and transformers open."""

from __future__ import annotations

import json
import os
from typing import Any

from genesis_fn import data, io
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.io.safetensors import atomic_write
from genesis_fn.models import GenerationConfig

# For a model of plain text, which knows no roles: each message is text that it goes on from.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"


def export(
    folder: str, params: PyTree, config: Any, generation: GenerationConfig, template: str
) -> None:
    """Write config.json, model.safetensors, generation_config.json, tokenizer_config.json and
    chat_template.jinja beside the tokenizer.json of `folder`. Each file is whole or as before.

    Args:
        folder: has the tokenizer.json, in which `<|endoftext|>` ends a text.
        params: parameters.
        config: the hyperparameters.
        generation: settings of generation, which name that token.
        template: chat template, of Jinja.
    """
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": data.END,
        "pad_token": data.END,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder, "generation_config.json", json.dumps(generation.to_dict(), indent=2))
    _write(folder, "tokenizer_config.json", json.dumps(tokenizer, indent=2))
    _write(folder, "chat_template.jinja", template)
    # Last, as it is what a folder with a model is known by.
    io.save_model(folder, params, config)


def _write(folder: str, name: str, text: str) -> None:
    with atomic_write(os.path.join(folder, name)) as f:
        f.write(text.encode() + b"\n")
