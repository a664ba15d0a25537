"""Options of sampling and penalties against transformers' processors of logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats as stats
import torch
from transformers.generation import logits_process as theirs

import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.models import sample
from genesis_fn.models.generation.penalties import Penalties, first_uses, more_uses, penalized
from genesis_fn.models.generation.sampling import nucleus, typical

LOGITS = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32) * 1.5

# Each option alone, and all of them: the order decides what is kept.
OPTIONS = {
    "temperature": dict(temperature=0.6),
    "min_p": dict(min_p=0.2),
    "typical": dict(typical_p=0.6),
    "typical after top_k": dict(top_k=6, typical_p=0.5),
    "top_p, then min_p": dict(temperature=1.3, top_p=0.8, min_p=0.15),
    "all": dict(temperature=1.6, top_k=9, top_p=0.9, min_p=0.1, typical_p=0.8),
}


def processed(logits, temperature=1.0, top_k=None, top_p=None, min_p=None, typical_p=None):
    """transformers' processors in the order in which its `generate` has them."""
    scores = torch.from_numpy(logits)
    steps = [theirs.TemperatureLogitsWarper(temperature)]
    steps += [theirs.TopKLogitsWarper(top_k)] if top_k else []
    steps += [theirs.TopPLogitsWarper(top_p)] if top_p else []
    steps += [theirs.MinPLogitsWarper(min_p)] if min_p else []
    steps += [theirs.TypicalLogitsWarper(typical_p)] if typical_p else []
    for step in steps:
        scores = step(None, scores)
    return torch.softmax(scores.double(), -1).numpy()


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_drawn_is_what_transformers_keeps(name):
    expected = processed(LOGITS, **OPTIONS[name])
    assert name == "temperature" or (expected == 0).any()
    many = jnp.broadcast_to(jnp.asarray(LOGITS)[:, None], (3, 8000, 12))
    drawn = np.asarray(sample(random.key(5), many, **OPTIONS[name]))
    for row, p in zip(drawn, expected, strict=True):
        counts = np.bincount(row, minlength=12)
        assert not counts[p == 0].any()
        kept = p > 0
        if kept.sum() > 1:
            assert stats.chisquare(counts[kept], p[kept] / p[kept].sum() * 8000).pvalue > 1e-4


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.37, 0.9, 0.999])
def test_as_many_equal_logits_are_kept_as_transformers_keeps(top_p):
    """Which of them is up to its sort."""
    x = np.random.default_rng(2).normal(size=(6, 199)).astype(np.float32)
    x = np.round(x * np.array([[0.1], [0.3], [1], [2], [5], [20]], np.float32))
    x[3] = -x[3]
    expected = theirs.TopPLogitsWarper(top_p)(None, torch.from_numpy(x)).numpy()
    got = np.where(nucleus(jnp.asarray(x), top_p), x, -np.inf)
    np.testing.assert_array_equal(np.sort(got), np.sort(expected))
    one = sample(random.key(0), np.zeros((50, 7)), top_p=0.1)
    np.testing.assert_array_equal(one, 0)


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.95])
def test_typical_without_sorting(mass):
    x = np.random.default_rng(1).normal(size=(4, 400)).astype(np.float32) * 3
    x[0, :300] = -np.inf
    expected = theirs.TypicalLogitsWarper(mass)(None, torch.from_numpy(x)).numpy() > -np.inf
    got = np.asarray(typical(jnp.asarray(x), mass)) & (x > -np.inf)
    # A token at the edge may be on either side.
    assert (got != (expected & (x > -np.inf))).sum(-1).max() <= 1


def test_options_that_keep_all_change_nothing():
    plain = sample(random.key(1), LOGITS)
    same = sample(random.key(1), LOGITS, top_p=1.0, min_p=0.0, typical_p=1.0)
    np.testing.assert_array_equal(plain, same)
    one = sample(random.key(1), LOGITS, min_p=1.0)
    np.testing.assert_array_equal(one, LOGITS.argmax(-1))


WRONG = {
    "min_p": (dict(min_p=-0.1), r"min_p must lie in \[0, 1\], got -0.1"),
    "min_p above": (dict(min_p=1.5), "min_p must lie in"),
    "min_p nan": (dict(min_p=math.nan), "min_p must lie in"),
    "typical_p": (dict(typical_p=0.0), r"typical_p must lie in \(0, 1\], got 0.0"),
    "typical_p nan": (dict(typical_p=math.nan), "typical_p must lie in"),
    "without a temperature": (dict(temperature=0.0, typical_p=2.0), "typical_p must lie in"),
}


@pytest.mark.parametrize("name", WRONG)
def test_options_out_of_range_are_named(name):
    options, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        sample(random.key(0), LOGITS, **options)


@pytest.mark.parametrize("options", [{}, dict(temperature=0.0), dict(top_k=1)], ids=str)
def test_logits_may_be_a_list(options):
    assert int(sample(random.key(0), [-100.0, 100.0], **options)) == 1
    assert sample(random.key(0), [[-100.0, 100.0]], **options).tolist() == [1]


@pytest.mark.parametrize("options", [dict(min_p=0.5), dict(typical_p=0.5)], ids=str)
def test_logits_without_a_number_raise(options):
    for bad in (np.where(LOGITS > 1, np.nan, LOGITS), np.full_like(LOGITS, -np.inf)):
        with pytest.raises(AssertionError, match="sample: the logits are NaN"):
            np.asarray(sample(random.key(0), jnp.asarray(bad), **options))


# ---- penalties ----

PROMPTS = np.array([[3, 3, 7, 0], [5, 1, 0, 0], [2, 9, 2, 9]], np.int32)
LENGTHS = np.array([3, 2, 4], np.int32)
NEW = np.array([[7, 0, 0], [4, 4, 4], [1, 2, 3]], np.int32)


def used(penalties):
    uses = first_uses(jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), 12, penalties)
    for column in NEW.T:
        uses = more_uses(uses, jnp.asarray(column))
    return uses


@pytest.mark.parametrize("penalty", [0.5, 1.7])
def test_repetition_penalty_is_that_of_transformers(penalty):
    penalties = Penalties(repetition_penalty=penalty)
    got = penalized(jnp.asarray(LOGITS), used(penalties), jnp.asarray(3), jnp.asarray(0), penalties)
    for row, n in enumerate(LENGTHS):
        seen = torch.tensor([[*PROMPTS[row, :n], *NEW[row]]]).long()
        step = theirs.RepetitionPenaltyLogitsProcessor(penalty)
        expected = step(seen, torch.from_numpy(LOGITS[row : row + 1].copy()))
        np.testing.assert_allclose(got[row], expected[0].numpy(), rtol=1e-6)


def test_presence_and_frequency_count_the_continuation_alone():
    penalties = Penalties(presence_penalty=0.7, frequency_penalty=-0.4)
    got = penalized(jnp.asarray(LOGITS), used(penalties), jnp.asarray(3), jnp.asarray(0), penalties)
    expected = LOGITS.copy()
    for row, tokens in enumerate(NEW):
        for token, count in zip(*np.unique(tokens, return_counts=True), strict=True):
            expected[row, token] -= 0.7 - 0.4 * count
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("step", [1, 2])
def test_no_end_before_the_least_number_of_tokens(step):
    penalties = Penalties(delays_end=True, eos=(2, 5))
    got = penalized(jnp.asarray(LOGITS), {}, jnp.asarray(step), jnp.asarray(2), penalties)
    tokens = torch.zeros((3, 4 + step), dtype=torch.long)
    expected = theirs.MinNewTokensLengthLogitsProcessor(4, 2, [2, 5])(
        tokens, torch.from_numpy(LOGITS)
    )
    np.testing.assert_array_equal(got, expected.numpy())
