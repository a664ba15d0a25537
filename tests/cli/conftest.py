"""A model of random weights in a folder, as the commands open it."""

from __future__ import annotations

import signal

import pytest

import genesis_fn.random as random
from genesis_fn import data, models
from genesis_fn.cli.language_model.exporting import export

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = models.QwenConfig(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=256,
    initializer_range=0.2,
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder, as a text."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = data.train_tokenizer(["def f(x):\n    return x\n" * 40], CONFIG.vocab_size)
    data.save_tokenizer(tokenizer, path / "tokenizer.json")
    params = models.qwen.init(random.key(3), CONFIG)
    end = tokenizer.token_to_id(data.END)
    export(str(path), params, CONFIG, models.GenerationConfig(eos_token_id=end), TEMPLATE)
    return str(path)


@pytest.fixture(autouse=True)
def signals_as_by_default():
    """As where nobody ignores them, also under nohup; a test leaves them as they were."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
