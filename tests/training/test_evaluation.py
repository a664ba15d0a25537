"""Perplexity and multiple choice, beside sums over transformers' logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import genesis_fn.random as random
from genesis_fn import data, io, models
from genesis_fn.errors import ArgumentError
from genesis_fn.models import decoder
from genesis_fn.training import evaluation
from genesis_fn.training.evaluation import Question, multiple_choice, perplexity, question_of

CONFIG = models.DecoderConfig(
    vocab_size=300, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=48,
    initializer_range=0.3,
)  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """(parameters, tokenizer, transformers' model of them)."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("m")
    params = decoder.init(random.key(5), CONFIG)
    io.save_model(folder, params, CONFIG)
    words = "what is red and blue the sky of a cat mat sat on it because yes no é"
    tokenizer = data.train_tokenizer([words * 3], 300)
    return params, tokenizer, AutoModelForCausalLM.from_pretrained(folder)


def logprobs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()


def test_perplexity_weighs_tokens_alike(opened):
    params, _, model = opened
    rng = np.random.default_rng(0)
    batches, total, count = [], 0.0, 0
    for counted in (1, 9, 4):
        tokens = rng.integers(0, 300, (2, 13)).astype(np.int32)
        labels = np.full((2, 12), -100, np.int32)
        labels[:, :counted] = tokens[:, 1 : counted + 1]
        batches.append({"tokens": tokens[:, :-1], "labels": labels})
        for row in tokens:
            found = logprobs(model, row[:-1].tolist())
            total -= sum(found[t, row[t + 1]] for t in range(counted))
            count += counted
    found = perplexity(params, CONFIG, batches)
    assert found.tokens == count == 28
    assert found.loss == pytest.approx(total / count, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-4)
    with pytest.raises(ArgumentError, match="no token to evaluate"):
        perplexity(params, CONFIG, [])


QUESTIONS = [
    Question("what is red", ("a cat", "the sky", "blue"), 2),
    Question("the sky is ", ("blue because of it", "red"), 0),
    Question("it sat on a", ("mat", "cat mat", "é", "yes"), 1),
    Question("", ("yes", "no it is"), 1),
    Question("the sky of a cat on a mat and " * 9 + "it is", ("red", "blue blue"), 0),
]  # fmt: skip


def likelihoods(model, tokenizer, question):
    """Of each choice, by one call of the model each."""
    found = []
    for choice in question.choices:
        context = question.context.rstrip()
        blanks = question.context[len(context) :] or " "
        whole = tokenizer.encode(context + blanks + choice).ids
        start = len(tokenizer.encode(context).ids)
        if not context:
            whole, start = [0, *whole], 1
        over = max(len(whole) - 49, 0)
        whole, start = whole[over:], start - over
        table = logprobs(model, whole[:-1])
        found.append(sum(table[t - 1, whole[t]] for t in range(start, len(whole))))
    return np.array(found)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_likeliest_choice_is_that_of_transformers(opened, batch):
    params, tokenizer, model = opened
    right = normed = 0
    for question in QUESTIONS:
        sums = likelihoods(model, tokenizer, question)
        sizes = np.array([len(c.encode()) for c in question.choices])
        right += int(sums.argmax()) == question.answer
        normed += int((sums / sizes).argmax()) == question.answer
        for answer in range(len(question.choices)):
            asked = Question(question.context, question.choices, answer)
            one = multiple_choice(params, CONFIG, tokenizer, [asked], batch=batch, prefix=0)
            assert one.accuracy == float(sums.argmax() == answer)
            assert one.accuracy_norm == float((sums / sizes).argmax() == answer)
    with pytest.raises(ArgumentError, match="a question is empty"):
        multiple_choice(params, CONFIG, tokenizer, QUESTIONS)
    found = multiple_choice(params, CONFIG, tokenizer, QUESTIONS, batch=batch, prefix=0)
    assert (found.accuracy, found.accuracy_norm) == (right / 5, normed / 5)
    assert (found.questions, found.cut) == (5, 2)


def test_scores_are_those_of_transformers(opened):
    params, tokenizer, model = opened
    score = evaluation._scores(CONFIG)
    for question in QUESTIONS:
        rows = [evaluation._row(tokenizer, question, c, CONFIG, 0) for c in question.choices]
        found = evaluation._padded(score, params, rows, 4)
        np.testing.assert_allclose(found, likelihoods(model, tokenizer, question), atol=1e-3)


@pytest.mark.parametrize("record, answer", [
    ({"question": "q", "choices": ["a", "b"], "answer": 1}, 1),
    ({"prompt": "q", "options": ["a", "b"], "answer": "b"}, 1),
    ({"context": "q", "choices": ["x", "y"], "answer": "B"}, 1),
    ({"ctx": "q", "endings": ["x", "y", "z"], "label": "2"}, 2),
    ({"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}, 1),
    ({"question": "q", "choices": ["1", "0"], "answer": "0"}, 1),  # a text before a number
])  # fmt: skip
def test_forms_of_questions(record, answer):
    assert question_of(record).answer == answer


@pytest.mark.parametrize("record, message", [
    ({"choices": ["a", "b"], "answer": 0}, "one of question, prompt"),
    ({"question": "q", "answer": 0}, "one of choices"), ({"question": 3, "choices": []}, "is 3"),
    ({"question": "q", "choices": ["a"], "answer": 0}, "two texts or more"),
    ({"question": "q", "choices": ["a", " "], "answer": 0}, "two texts or more"),
    ({"question": "q", "choices": ["a", "b"]}, "one of answer"),
    ({"question": "q", "choices": ["a", "b"], "answer": 2}, "the answer is 2"),
    ({"question": "q", "choices": ["a", "b"], "answer": "C"}, "the answer is 'C'"),
])  # fmt: skip
def test_malformed_questions(record, message):
    with pytest.raises(ArgumentError, match=message):
        question_of(record)
