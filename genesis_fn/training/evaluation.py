"""Evaluation of language models: perplexity, and questions of multiple choice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.core.errors import ArgumentError
from genesis_fn.core.files import brief
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.models import DecoderConfig, decoder
from genesis_fn.training.step import IGNORED, Batch
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHORTEST = 32  # tokens of a padded row; longer ones have 2**k or 3 * 2**k, as prompts have
_CONTEXTS = ("question", "prompt", "context", "ctx", "query")
_CHOICES = ("choices", "endings", "options")
_ANSWERS = ("answer", "answerKey", "gold", "label")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """The mean loss over the tokens that count, in nats, its exponential, and their number."""

    loss: float
    perplexity: float
    tokens: int


def perplexity(
    params: PyTree, config: DecoderConfig, batches: Iterable[Batch], *, compute: str = "float32"
) -> Perplexity:
    """The perplexity of a model on batches: each token that counts weighs the same.

    Args:
        params: parameters of a decoder, with adapters or without.
        config: the hyperparameters.
        batches: of tokens, labels and perhaps segment_ids, int32 [B, T].
        compute: dtype of products.

    Returns:
        The loss and its exponential.

    Raises:
        ArgumentError: no token counts.

    >>> from genesis_fn.training.evaluation import perplexity
    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.decoder.init(random.key(0), config)
    >>> batch = {"tokens": np.array([[1, 2]], np.int32), "labels": np.array([[2, -100]], np.int32)}
    >>> perplexity(params, config, [batch]).tokens
    1
    """

    def sums(params: PyTree, batch: Batch) -> tuple[Array, Array]:
        ids = batch.get("segment_ids")
        tokens, labels = batch["tokens"], batch["labels"]
        return decoder.loss_sum(params, tokens, labels, config, segment_ids=ids)

    found = jit(amp(sums, compute))
    total, count = 0.0, 0
    for batch in batches:
        loss, tokens = found(params, batch)
        total, count = total + float(loss), count + int(tokens)
    if not count:
        raise ArgumentError("perplexity: there is no token to evaluate on")
    mean = total / count
    return Perplexity(mean, math.exp(min(mean, 700.0)), count)


# ---- multiple choice ----


@dataclasses.dataclass(frozen=True)
class Question:
    """A context, its continuations, and which of them is right."""

    context: str
    choices: tuple[str, ...]
    answer: int


def question_of(record: Mapping[str, Any]) -> Question:
    """The question of a record.

    Args:
        record: "question" (or prompt, context, ctx, query), "choices" (endings, options): a list of
            texts, or ARC's {"text": [...], "label": [...]}; "answer" (answerKey, gold, label): the
            number of a choice from 0, its text, its label, or its letter.

    Raises:
        ArgumentError: something of it is missing or malformed.

    >>> from genesis_fn.training.evaluation import question_of
    >>> question_of({"question": "1 + 1 =", "choices": ["2", "3"], "answer": "A"}).answer
    0
    """
    context = _one(record, _CONTEXTS)
    given = _one(record, _CHOICES)
    labels: Sequence[Any] = _LETTERS
    if isinstance(given, Mapping):
        labels, given = given.get("label", _LETTERS), given.get("text")
    if not isinstance(context, str):
        raise ArgumentError(f"the question is {brief(context)}, expected a text")
    if not isinstance(given, list) or len(given) < 2 or not all(_is_words(c) for c in given):
        raise ArgumentError(f"the choices are {brief(given)}, expected two texts or more")
    choices = tuple(given)
    return Question(context, choices, _answer(_one(record, _ANSWERS), choices, labels))


def _is_words(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _one(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    found = [name for name in names if record.get(name) is not None]
    if not found:
        raise ArgumentError(f"a question has one of {', '.join(names)}, and this one has none")
    return record[found[0]]


def _answer(given: Any, choices: tuple[str, ...], labels: Sequence[Any]) -> int:
    """The number of the right choice."""
    if isinstance(given, str):
        if given in choices:
            return choices.index(given)
        if given in labels and (found := list(labels).index(given)) < len(choices):
            return found
        if given.strip().isdecimal():
            given = int(given)
    if type(given) is int and 0 <= given < len(choices):
        return given
    raise ArgumentError(
        f"the answer is {brief(given)}, expected the number of one of {len(choices)} choices, its "
        "text or its letter"
    )


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How many questions are answered rightly.

    Args:
        accuracy: share of questions whose likeliest choice is the right one.
        accuracy_norm: the same, of log-likelihoods divided by the bytes of the choices.
        questions: their number.
        cut: choices whose question had to be cut at its beginning.
    """

    accuracy: float
    accuracy_norm: float
    questions: int
    cut: int


def multiple_choice(
    params: PyTree,
    config: DecoderConfig,
    tokenizer: Tokenizer,
    questions: Iterable[Question],
    *,
    batch: int = 8,
    compute: str = "float32",
    prefix: int | None = None,
) -> Accuracy:
    """Answers by the likelihood of each choice behind the question.

    A choice follows its question with a blank between. Both are encoded together, and the tokens
    behind those of the question alone count, as in lm-evaluation-harness. Of equal choices the
    first one is taken.

    Source: Gao et al., "A framework for few-shot language model evaluation", 2021.

    Args:
        params: parameters of a decoder.
        config: the hyperparameters.
        tokenizer: its tokenizer.
        questions: questions.
        batch: choices that are computed at once.
        compute: dtype of products.
        prefix: token in front of a choice whose question is empty, as the one that ends texts.

    Returns:
        The accuracies.

    Raises:
        ArgumentError: there is no question, or an empty one without a `prefix`.
    """
    score = jit(amp(_scores(config), compute))
    right = normed = count = cut = 0
    for question in questions:
        rows = [_row(tokenizer, question, c, config, prefix) for c in question.choices]
        cut += sum(row.cut for row in rows)
        sums: list[float] = []
        for i in range(0, len(rows), batch):
            sums += _padded(score, params, rows[i : i + batch], batch)
        sizes = [len(choice.encode()) for choice in question.choices]
        right += int(np.argmax(sums)) == question.answer
        normed += int(np.argmax(np.divide(sums, sizes))) == question.answer
        count += 1
    if not count:
        raise ArgumentError("multiple_choice: there is no question")
    return Accuracy(right / count, normed / count, count, cut)


@dataclasses.dataclass(frozen=True)
class _Row:
    """The tokens of a question and a choice, and from which on they are the choice's."""

    tokens: list[int]
    start: int
    cut: bool


def _row(
    tokenizer: Tokenizer, question: Question, choice: str, config: DecoderConfig, prefix: int | None
) -> _Row:
    context = question.context.rstrip()
    # Blanks that end the question belong to the choice, whose first token begins with them.
    blanks = question.context[len(context) :] or " "
    whole = tokenizer.encode(context + blanks + choice).ids
    start = len(tokenizer.encode(context).ids) if context else 0
    if not start:
        if prefix is None:
            raise ArgumentError("multiple_choice: a question is empty: its choices follow nothing")
        whole, start = [prefix, *whole], 1
    start = min(start, len(whole) - 1)  # where the choice is one token with the question's last
    over = max(len(whole) - config.max_position_embeddings - 1, 0)
    return _Row(whole[over:], max(start - over, 1), over > 0)


def _scores(config: DecoderConfig) -> Callable[[PyTree, Array, Array], Array]:
    def score(params: PyTree, tokens: Array, labels: Array) -> Array:
        """The log-likelihood of the labels of each row, [B]."""
        x = decoder.hidden(params, tokens, config)
        weight = nn.plain_weight(decoder.head_weight(params))
        losses = nn.linear_cross_entropy(x, weight, labels, ignore_index=IGNORED, reduction="none")
        return -jnp.sum(losses, axis=1)

    return score


def _padded(score: Any, params: PyTree, rows: Sequence[_Row], batch: int) -> list[float]:
    """The log-likelihoods of rows, computed in a shape that many calls share."""
    length = next(n for n in _lengths() if n >= max(len(r.tokens) for r in rows) - 1)
    tokens = np.zeros((batch, length), np.int32)
    labels = np.full((batch, length), IGNORED, np.int32)
    for i, row in enumerate(rows):
        n = len(row.tokens) - 1
        tokens[i, :n] = row.tokens[:-1]
        labels[i, row.start - 1 : n] = row.tokens[row.start :]
    return np.asarray(score(params, tokens, labels), np.float64)[: len(rows)].tolist()


def _lengths() -> Iterator[int]:
    n = _SHORTEST
    while True:
        yield n
        yield n * 3 // 2
        n *= 2
