"""Random models of every family, with all options drawn together and config.json as several
versions of transformers write it: logits, greedy tokens, and the folder that is saved again."""

from __future__ import annotations

import copy
import json
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import genesis_fn.numpy as jnp
from genesis_fn import io, models, nn
from genesis_fn.models import decoder

CLASSES = {
    "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "llama": "Llama",
    "mistral": "Mistral",
}  # fmt: skip
ROPES = ("default", "linear", "dynamic", "yarn", "llama3")
BATCH, PROMPT, NEW = 2, 11, 6


def drawn(r: random.Random, family: str) -> dict[str, Any]:
    """The arguments of a config's class."""
    flag = lambda: r.random() < 0.5
    groups, heads, layers = r.choice([1, 2, 3]), r.choice([1, 2, 3]), r.choice([1, 2, 3, 4])
    fields: dict[str, Any] = dict(
        vocab_size=r.choice([17, 61]), hidden_size=groups * heads * r.choice([4, 8]) * 4,
        intermediate_size=r.choice([8, 20, 33]), num_hidden_layers=layers,
        num_attention_heads=groups * heads, num_key_value_heads=groups,
        head_dim=r.choice([4, 6, 16]), max_position_embeddings=r.choice([8, 16, 40]),
        rms_norm_eps=r.choice([1e-6, 1e-3]), tie_word_embeddings=flag(),
        hidden_act=r.choice(["silu", "gelu", "gelu_new", "relu2", "tanh", "quick_gelu"]),
        rope_parameters=drawn_rope(r), eos_token_id=r.choice([3, [3, 5]]),
    )  # fmt: skip
    if family in ("qwen3", "qwen3_moe", "llama"):
        fields["attention_bias"] = flag()
    if family == "llama":
        fields["mlp_bias"] = flag()
    # Not 1, of which transformers' cache keeps all keys.
    window = r.choice([None, 2, 3, 50])
    if family == "mistral":
        fields["sliding_window"] = window
    elif family != "llama" and flag():
        fields |= {"use_sliding_window": r.random() < 0.8, "sliding_window": window}
        if family != "qwen3_moe":
            fields["max_window_layers"] = r.choice([0, 1, 28])
            if flag() and fields["use_sliding_window"] and window:
                kinds = ["sliding_attention", "full_attention"]
                fields["layer_types"] = r.choices(kinds, k=layers)
    if family == "qwen3_moe":
        count = r.choice([1, 3, 5])
        fields |= dict(
            num_experts=count, num_experts_per_tok=r.randint(1, count), moe_intermediate_size=12,
            norm_topk_prob=flag(), decoder_sparse_step=r.choice([1, 2, 3]),
            mlp_only_layers=r.choice([None, [0], [1, 7]]),
        )  # fmt: skip
    return fields


def drawn_rope(r: random.Random) -> dict[str, Any]:
    kind, original = r.choice(ROPES), r.choice([4, 8])
    fields: dict[str, Any] = {"rope_type": kind, "rope_theta": r.choice([1e4, 777.5, 1e6])}
    if kind != "default":
        fields["factor"] = r.choice([1.0, 1.5, 4.0])
    if kind == "yarn":
        fields |= r.choice([
            {"original_max_position_embeddings": original}, {"attention_factor": 0.8},
            {"mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
            {"beta_fast": 16.0, "beta_slow": 2.0},
        ])  # fmt: skip
    if kind == "llama3":
        fields |= dict(
            low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=original
        )
    return fields


def as_written_before(r: random.Random, values: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the keys of version 4."""
    values = copy.deepcopy(values)
    rope = values.pop("rope_parameters")
    values["rope_theta"], kind = rope.pop("rope_theta"), rope.pop("rope_type")
    names = r.choice([["type"], ["rope_type"], ["type", "rope_type"]])
    scaled = {**rope, **dict.fromkeys(names, kind)}
    values["rope_scaling"] = None if kind == "default" else scaled
    values["torch_dtype"] = values.pop("dtype")
    return {**values, "_attn_implementation_autoset": True, "use_cache": False}


def there(folder: pathlib.Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model.float().eval()


def near(ours: Any, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    assert np.abs(np.asarray(ours) - expected).max() <= tolerance * max(1, np.abs(expected).max())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", CLASSES)
def test_random_models(family: str, seed: int, tmp_path: pathlib.Path):
    r = random.Random(f"{family} {seed}")
    fields = drawn(r, family)
    torch.manual_seed(seed)
    config = getattr(transformers, f"{CLASSES[family]}Config")(**copy.deepcopy(fields))
    made = getattr(transformers, f"{CLASSES[family]}ForCausalLM")(config)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    made.generation_config.do_sample, made.generation_config.temperature = True, 0.5
    made.save_pretrained(tmp_path, max_shard_size=r.choice(["5KB", "5GB"]))
    if seed % 3:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(as_written_before(r, json.loads(path.read_text()))))
    model = there(tmp_path)
    params, found = io.load_model(tmp_path)

    tokens = np.random.default_rng(seed).integers(0, fields["vocab_size"], (BATCH, PROMPT))
    inputs, ours = torch.from_numpy(tokens), jnp.asarray(tokens.astype(np.int32))
    with torch.no_grad():
        logits = model(inputs).logits.numpy()
    near(decoder.forward(params, ours, found), logits)
    if not isinstance(found.rope_scaling, nn.DynamicScaling):  # it follows the longest row
        mask = np.ones((BATCH, PROMPT), bool)
        mask[0, :4] = False  # padding in front
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        padded = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
        with torch.no_grad():
            expected = model(inputs, **padded, position_ids=torch.from_numpy(positions)).logits
        masked = decoder.forward(
            params, ours, found, positions=positions.astype(np.int32), mask=mask[:, None, None]
        )
        near(np.asarray(masked)[mask], expected.numpy()[mask])

    out = there(tmp_path).generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NEW, do_sample=False,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    best, second = torch.stack(out.logits, 1).topk(2).values.movedim(-1, 0)
    certain = np.cumprod((best - second).numpy() > 1e-3, 1).astype(bool)
    texts = np.asarray(models.generate(params, ours, found, max_new_tokens=NEW)[0])[:, PROMPT:]
    np.testing.assert_array_equal(texts[certain], out.sequences.numpy()[:, PROMPT:][certain])

    target = tmp_path / "again"
    io.save_model(target, params, found, source=tmp_path, max_shard_size=r.choice(["5KB", "5GB"]))
    again = there(target)
    with torch.no_grad():
        near(again(inputs).logits.numpy(), logits, 1e-5)
    before, after = model.config.to_dict(), again.config.to_dict()
    assert {n: v for n, v in before.items() if after[n] != v and n != "_name_or_path"} == {}
    assert again.generation_config.to_dict() == model.generation_config.to_dict()
    assert io.load_model(target)[1] == found
