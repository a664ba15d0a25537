"""A folder with a tiny chat model, and data that it can be trained and asked on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

import genesis_fn.random
from genesis_fn import data, models
from genesis_fn.cli.language_model.exporting import export
from genesis_fn.models import decoder

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = models.QwenConfig(
    vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
    initializer_range=0.1,
)  # fmt: skip


def write_model(folder: Path, config: models.DecoderConfig = CONFIG) -> None:
    """A model of random weights, its tokenizer and its chat template."""
    tokenizer = data.train_tokenizer(["what is red blue green? it is end user assistant " * 9], 300)
    names = ("<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    data.save_tokenizer(tokenizer, folder / "tokenizer.json")
    end = tokenizer.token_to_id(data.END)
    params = decoder.init(genesis_fn.random.key(3), config)
    export(str(folder), params, config, models.GenerationConfig(eos_token_id=end), TEMPLATE)


def write_data(folder: Path) -> None:
    """chats.jsonl, texts.jsonl and questions.jsonl."""
    chance = random.Random(0)
    words = [chance.choice(["red", "blue", "green"]) for _ in range(60)]
    turn = lambda w: [said("user", f"what is {w}?"), said("assistant", f"it is {w}")]
    write(
        folder / "chats.jsonl", [{"messages": turn(w) * (1 + i % 3)} for i, w in enumerate(words)]
    )
    write(folder / "texts.jsonl", [{"text": f"it is {w} and " * 5} for w in words])
    write(folder / "questions.jsonl", [
        {"question": f"what is {w}?", "choices": ["it is red", "it is blue"], "answer": i % 2}
        for i, w in enumerate(words[:5])
    ])  # fmt: skip


def said(role: str, content: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": content}


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records as JSON lines."""
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
