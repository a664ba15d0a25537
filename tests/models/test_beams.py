"""Beam search against transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import io, models, random
from genesis_fn.models import GenerationConfig, beam_search, generate, qwen
from genesis_fn.transforms.jitting import jit
from tests.models.test_qwen import reference

TOKENS = np.random.default_rng(3).integers(0, 61, (3, 9)).astype(np.int32)
LENGTHS = np.array([9, 4, 7], np.int32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(transformers' model, our parameters, our config); the logits are close, so that beams
    differ."""
    model = reference("qwen3")
    with torch.no_grad():
        model.model.norm.weight.mul_(0.4)
    folder = tmp_path_factory.mktemp("qwen3")
    model.save_pretrained(folder)
    return model, *io.load_qwen(folder)


def theirs(model, rows, **options):
    """(tokens without padding at the left, scores) of transformers' beam search of ragged rows."""
    width = max(map(len, rows))
    # Padded with a token of the row: some releases of transformers penalize padding as repeated.
    tokens = torch.tensor([[r[0]] * (width - len(r)) + [*r] for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    with torch.no_grad():
        out = model.generate(
            tokens, attention_mask=mask, do_sample=False, pad_token_id=60, output_scores=True,
            return_dict_in_generate=True, **options,
        )  # fmt: skip
    return out.sequences.numpy()[:, width:], out.sequences_scores.numpy()


# Tokens that beams of this model meet early.
SEARCHES = {
    "two beams": dict(num_beams=2, eos_token_id=None),
    "an end": dict(num_beams=3, eos_token_id=54),
    "ends": dict(num_beams=4, eos_token_id=[12, 54, 41], num_return_sequences=4),
    "early": dict(num_beams=3, eos_token_id=[12, 54], early_stopping=True, num_return_sequences=3),
    "never": dict(num_beams=3, eos_token_id=[12, 54], early_stopping="never", length_penalty=2.0,
                  num_return_sequences=2),
    "short": dict(num_beams=3, eos_token_id=[12, 54, 41, 26], length_penalty=-1.0,
                  early_stopping="never", num_return_sequences=3),
    "long": dict(num_beams=4, eos_token_id=[12, 54, 41, 26], length_penalty=1.5,
                 num_return_sequences=4),
    "penalties": dict(num_beams=3, eos_token_id=[12, 54, 41], min_new_tokens=3,
                      repetition_penalty=1.4, num_return_sequences=3),
}  # fmt: skip


@pytest.mark.parametrize("name", SEARCHES)
def test_beams_are_those_of_transformers(pair, name):
    model, params, config = pair
    options = dict(SEARCHES[name])
    rows = [row[:n] for row, n in zip(TOKENS, LENGTHS)]
    expected, scores = theirs(model, rows, max_new_tokens=7, **options)
    generation = GenerationConfig(max_new_tokens=7, pad_token_id=60, **options)
    out, ends, ours = beam_search(params, TOKENS, config, generation=generation, lengths=LENGTHS)
    wanted = options.get("num_return_sequences", 1)
    assert out.shape == (3, wanted, 16) and ours.shape == (3, wanted)
    np.testing.assert_allclose(np.ravel(ours), scores, atol=1e-4)
    for at, (tokens, end) in enumerate(zip(np.reshape(out, (-1, 16)), np.ravel(ends))):
        n = LENGTHS[at // wanted]
        np.testing.assert_array_equal(tokens[:n], rows[at // wanted])
        new = tokens[n:end].tolist()
        assert expected[at].tolist() == new + [60] * (expected.shape[1] - len(new))
        assert (tokens[end:] == 60).all()


def test_the_ends_are_met(pair):
    """The cases above test what they say: some continuations end early, some do not."""
    _, params, config = pair
    found = beam_search(
        params, TOKENS, config, num_beams=4, max_new_tokens=7, eos=[12, 54, 41, 26],
        num_return_sequences=4, early_stopping=True, lengths=LENGTHS,
    )  # fmt: skip
    new = np.asarray(found[1]) - LENGTHS[:, None]
    assert new.min() < 7 and len(np.unique(new)) > 2


def test_a_score_is_that_of_the_model(pair):
    """By its definition, without a cache or beams."""
    _, params, config = pair
    out, ends, scores = beam_search(
        params, TOKENS, config, num_beams=3, max_new_tokens=5, eos=54, length_penalty=0.7,
        num_return_sequences=3,
    )  # fmt: skip
    for row in range(3):
        for tokens, end, score in zip(out[row], ends[row], scores[row], strict=True):
            logits = np.asarray(qwen.forward(params, tokens[None], config), np.float64)[0]
            logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            at = np.arange(9, int(end))
            total = logp[at - 1, np.asarray(tokens)[at]].sum()
            assert abs(total / len(at) ** 0.7 - float(score)) < 1e-4


def test_generate_returns_the_beams_of_its_config(pair):
    _, params, config = pair
    generation = GenerationConfig(
        max_new_tokens=5, num_beams=3, num_return_sequences=2, eos_token_id=54, pad_token_id=7
    )
    beams, lengths, _ = beam_search(params, TOKENS, config, generation=generation)
    out, ends = generate(params, TOKENS, config, generation=generation)
    np.testing.assert_array_equal(out, np.reshape(beams, (6, 14)))
    np.testing.assert_array_equal(ends, np.ravel(lengths))
    for tokens, end in zip(np.asarray(out), np.asarray(ends)):
        assert (tokens[end:] == 7).all()
    whole = jit(
        lambda p, x: beam_search(p, x, config, num_beams=3, max_new_tokens=5, eos=54)
    )(params, jnp.asarray(TOKENS))  # fmt: skip
    np.testing.assert_array_equal(np.asarray(whole[0])[:, 0, :9], TOKENS)
    np.testing.assert_array_equal(whole[1][:, 0], lengths[:, 0])


CONFIG = models.QwenConfig(3, 8, 8, 1, 2, 1, 4)
WRONG = {
    "no beams": (dict(max_new_tokens=3), "give num_beams"),
    "none": (dict(num_beams=0, max_new_tokens=3), "num_beams is 0, expected 1"),
    "no length": (dict(num_beams=2), "give max_new_tokens"),
    "no tokens": (dict(num_beams=2, max_new_tokens=0), "max_new_tokens 0 must not be below 1"),
    "more": (
        dict(num_beams=2, max_new_tokens=3, num_return_sequences=3), "3, more than num_beams, 2",
    ),
    "stopping": (
        dict(num_beams=2, max_new_tokens=3, early_stopping="always"), "early_stopping is 'always'",
    ),
    "penalty": (
        dict(num_beams=2, max_new_tokens=3, length_penalty=float("nan")), "length_penalty is nan",
    ),
    "ends": (dict(num_beams=2, max_new_tokens=3, eos=[0, 1, 2]), "the vocabulary has 3 tokens"),
    "eos": (dict(num_beams=2, max_new_tokens=3, eos=3), "eos 3 is no token"),
    "lengths": (dict(num_beams=2, max_new_tokens=3, lengths=[0]), "lengths must lie in 1 to 2"),
    "drawn": (
        dict(generation=GenerationConfig(num_beams=2, do_sample=True, max_new_tokens=3)),
        "neither drawn",
    ),
    "strings": (
        dict(generation=GenerationConfig(num_beams=2, stop_strings="a", max_new_tokens=3)),
        "nor ended by stop_strings",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_settings_out_of_range_are_named(name):
    options, message = WRONG[name]
    params = qwen.init(random.key(0), CONFIG)
    with pytest.raises((ValueError, AssertionError), match=message):
        beam_search(params, [[1, 2]], CONFIG, **options)


def test_nan_logits_raise():
    params = qwen.init(random.key(0), CONFIG)
    bad = {**params, "norm": {"weight": params["norm"]["weight"] * jnp.nan}}
    with pytest.raises(AssertionError, match="beam_search: the logits are NaN"):
        np.asarray(beam_search(bad, [[1, 2]], CONFIG, num_beams=2, max_new_tokens=2)[0])
