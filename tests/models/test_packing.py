"""Rows in which several texts follow each other, against the texts one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, io, models, nn, random
from genesis_fn.models import decoder

SMALL = models.DecoderConfig(
    vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
    initializer_range=0.3,
)  # fmt: skip
replaced = lambda **fields: dataclasses.replace(SMALL, **fields)
CONFIGS = {
    "qwen3": SMALL,
    "qwen2": replaced(qk_norm=False, attention_bias=True, tie_word_embeddings=False),
    "windows": replaced(
        sliding_window=3, layer_types=("sliding_attention", "full_attention"),
    ),
    "experts": replaced(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24),
    "llama": replaced(
        qk_norm=False, rope_theta=1e4, rope_scaling=nn.Llama3Scaling(8.0, 1.0, 4.0, 16)
    ),
}  # fmt: skip
LENGTHS = [[7, 1, 5, 3], [4, 12], [2, 2, 9]]
WIDTH = 17


def packed(rng):
    """(tokens, labels, segment_ids) of rows of texts, and the texts of each row."""
    tokens = rng.integers(0, 61, (len(LENGTHS), WIDTH)).astype(np.int32)
    labels = np.full(tokens.shape, -100, np.int32)
    ids = np.zeros(tokens.shape, np.int32)
    texts = []
    for row, lengths in enumerate(LENGTHS):
        at = 0
        for number, n in enumerate(lengths, 1):
            ids[row, at : at + n] = number
            labels[row, at : at + n] = rng.integers(0, 61, n)
            texts.append((row, slice(at, at + n)))
            at += n
    return tokens, labels, ids, texts


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_of_a_row_are_what_they_are_alone(name):
    config = CONFIGS[name]
    params = decoder.init(random.key(1), config, "float64")
    tokens, labels, ids, texts = packed(np.random.default_rng(2))
    logits = decoder.forward(params, tokens, config, segment_ids=ids)
    one = decoder.forward(params, tokens[0], config, segment_ids=ids[0])
    np.testing.assert_allclose(one, logits[0], atol=1e-5)

    def total(params, remat=False):
        return decoder.loss_sum(params, tokens, labels, config, segment_ids=ids, remat=remat)[0]

    def alone(params):
        parts = [
            decoder.loss_sum(params, tokens[r : r + 1, at], labels[r : r + 1, at], config)[0]
            for r, at in texts
        ]
        return sum(parts)

    for row, at in texts:
        wanted = decoder.forward(params, tokens[row, at], config)
        np.testing.assert_allclose(logits[row, at], wanted, atol=1e-5)
    (value, grads), (wanted, theirs) = (gf.value_and_grad(f)(params) for f in (total, alone))
    np.testing.assert_allclose(value, wanted, rtol=1e-7)
    for a, b in zip(gf.tree.leaves(grads), gf.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(np.abs(np.asarray(b)).max(), 1e-3))
    again = gf.grad(lambda p: total(p, remat=True))(params)
    for a, b in zip(gf.tree.leaves(grads), gf.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10 * max(np.abs(np.asarray(b)).max(), 1))


def test_a_packed_row_is_that_of_transformers(tmp_path):
    from transformers import AutoModelForCausalLM

    params = decoder.init(random.key(1), SMALL)
    io.save_model(tmp_path / "m", params, SMALL)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m", attn_implementation="sdpa")
    tokens, _, ids, texts = packed(np.random.default_rng(3))
    at = np.arange(WIDTH)
    seen = (ids[:, :, None] == ids[:, None, :]) & (at[:, None] >= at[None, :])
    positions = np.zeros_like(tokens)
    for row, span in texts:
        positions[row, span] = np.arange(span.stop - span.start)
    with torch.no_grad():
        wanted = model(
            torch.tensor(tokens), attention_mask=torch.tensor(seen)[:, None],
            position_ids=torch.tensor(positions),
        ).logits.numpy()  # fmt: skip
    found = np.asarray(decoder.forward(params, tokens, SMALL, segment_ids=ids))
    np.testing.assert_allclose(found[ids > 0], wanted[ids > 0], atol=1e-4)


def test_sums_of_parts_are_the_sum_of_the_batch():
    config = replaced(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24)
    params = decoder.init(random.key(1), config, "float64")
    tokens, labels, ids, _ = packed(np.random.default_rng(4))
    of = lambda rows: decoder.loss_sum(
        params, tokens[rows], labels[rows], config, segment_ids=ids[rows]
    )
    total, count = of(slice(None))
    parts = [of(slice(i, i + 1)) for i in range(3)]
    np.testing.assert_allclose(sum(t for t, _ in parts), total, rtol=1e-9)
    assert float(count) == sum(float(c) for _, c in parts) == (labels != -100).sum()
    mean = decoder.loss(params, tokens, labels, config, ignore_index=-100, segment_ids=ids)
    np.testing.assert_allclose(mean, total / count, rtol=1e-7)
    balanced = dataclasses.replace(config, output_router_logits=True, router_aux_loss_coef=0.5)
    more, _ = decoder.loss_sum(params, tokens, labels, balanced, segment_ids=ids)
    mean_of = decoder.loss(params, tokens, labels, balanced, ignore_index=-100, segment_ids=ids)
    np.testing.assert_allclose(more / count, mean_of, rtol=1e-7)
    assert float(more) > float(total) + 0.4 * float(count)


def test_segment_ids_are_one_integer_for_each_token():
    params = decoder.init(random.key(1), SMALL)
    tokens = jnp.zeros((2, 5), "int32")
    for ids in (jnp.zeros((2, 4), "int32"), jnp.zeros(5, "int32"), jnp.zeros((2, 5))):
        with pytest.raises(errors.ShapeError, match="segment_ids"):
            decoder.forward(params, tokens, SMALL, segment_ids=ids)
