"""The batches that settings ask for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import read_json
from genesis_fn.data import (
    BatchedRows,
    ExampleCounts,
    Examples,
    Mapped,
    Mixture,
    Packed,
    Prefetch,
    RecordFiles,
    Shuffled,
    Stream,
)
from genesis_fn.data.chat_files import read_special_tokens
from genesis_fn.data.streams.stream import BadRecords
from genesis_fn.training.model import TrainedModel
from genesis_fn.training.monitoring.progress import say
from genesis_fn.training.parallel.layout import RunLayout
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import Batch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LARGEST_JSON = 1 << 26  # bytes
_SAID = 5  # bad lines that are reported one by one


class BadLines:
    """Says which lines are skipped: the first by name, then every power of ten."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: str) -> None:
        self.count += 1
        if self.count <= _SAID:
            say(f"skipped: {message}")
        elif str(self.count).strip("0") == "1":
            say(f"skipped {self.count:,} lines so far; the last: {message}")


def end_token(folder: str, tokenizer: Tokenizer) -> int:
    """The token that ends a text: the tokenizer's `eos_token`, or that of generation_config.json.

    Raises FileError where neither is there.
    """
    name = read_special_tokens(folder).get("eos_token")
    if name is not None and (token := tokenizer.token_to_id(name)) is not None:
        return token
    for file in ("generation_config.json", "config.json"):
        found = _field(os.path.join(folder, file), "eos_token_id")
        if isinstance(found, list) and found:
            found = found[0]
        if type(found) is int:
            return found
    raise FileError(
        f"{folder}: no token ends a text: neither eos_token in tokenizer_config.json nor "
        "eos_token_id in generation_config.json"
    )


def _field(path: str, name: str) -> Any:
    return read_json(path, _LARGEST_JSON).get(name) if os.path.lexists(path) else None


def training_batches(
    settings: TrainingSettings, model: TrainedModel, counts: ExampleCounts | None = None
) -> Stream[Batch]:
    """The batches of `data.train`: shuffled, mixed, packed; they end with `epochs`.

    Args:
        settings: all settings.
        model: whose tokenizer and template make the examples.
        counts: is told of each record's examples.

    Raises:
        FileError, OSError: a file is missing or malformed.
    """
    d = settings.data
    sources = [_records(settings, path, seed) for seed, path in enumerate(d.train, settings.seed)]
    stream: Stream[Any] = sources[0]
    if len(sources) > 1:
        stopping: Any = "all_exhausted_without_replacement"
        stream = Mixture(sources, d.weights or None, settings.seed, stopping)
    return _batches(settings, model, stream, d.packing, counts)


def _records(settings: TrainingSettings, path: str, seed: int) -> Stream[Any]:
    d = settings.data
    records = RecordFiles(
        [path],
        format=d.format,
        text_field=d.text_field,
        epochs=settings.epochs,
        seed=seed if d.shuffle else None,
        on_bad_line=d.on_bad_line,
        report=BadLines(),
    )
    return Shuffled(records, d.shuffle, seed) if d.shuffle else records


def are_chats(settings: TrainingSettings) -> bool:
    """Whether the first record of the training data is a conversation.

    Raises FileError and OSError as `training_batches` does.
    """
    d = settings.data
    records = RecordFiles(
        d.train[:1], format=d.format, text_field=d.text_field, on_bad_line="skip",
        report=lambda _: None,
    )  # fmt: skip
    first = next(records, {})
    return any(isinstance(first.get(k), list) for k in ("messages", "conversations", "prompt"))


def validation_batches(settings: TrainingSettings, model: TrainedModel) -> list[Batch]:
    """The first `evaluate.batches` of `evaluation_stream`. Raises FileError where there is none."""
    limit = settings.evaluate.batches or None
    found = list(itertools.islice(evaluation_stream(settings, model), limit))
    if not found:
        raise nothing_in(settings.data.valid, "evaluate", f"{settings.data.length} (data.length)")
    return found


def nothing_in(paths: Sequence[str], purpose: str, length: str) -> FileError:
    """The error of data that make no batch."""
    return FileError(
        f"{paths[0]}: there is nothing to {purpose} on: in rows of {length} no token is learned"
    )


def evaluation_stream(settings: TrainingSettings, model: TrainedModel) -> Stream[Batch]:
    """The batches of `data.valid`, in the order of the files."""
    d = settings.data
    records = RecordFiles(
        d.valid,
        format=d.format,
        text_field=d.text_field,
        on_bad_line=d.on_bad_line,
        report=BadLines(),
    )
    return _batches(settings, model, records, d.packing, None)


def _batches(
    settings: TrainingSettings,
    model: TrainedModel,
    records: Stream[Any],
    packing: Any,
    counts: ExampleCounts | None,
) -> Stream[Batch]:
    d = settings.data
    end = end_token(model.tokenizer_folder, model.tokenizer)
    examples = Examples(
        model.tokenizer,
        end,
        model.chat_template,
        text_field=d.text_field,
        train_on=d.train_on,
        length=None if packing == "cut" else d.length + 1,
    )
    bad = BadRecords(d.on_bad_line, BadLines())
    mapped = Mapped(records, examples, bad, counts)
    rows = Packed(mapped, d.length, packing=packing, separate=d.separate, pad=end)
    return BatchedRows(rows, settings.batch)


class Begun:
    """Batches, the first of which is made at once: what is wrong with the data is said before the
    run's folder is written. `first` is None where there is none, or when it was taken. Under a
    layout they are over its mesh."""

    def __init__(self, stream: Stream[Batch], layout: RunLayout | None = None) -> None:
        self.stream, self._state, self.layout = stream, stream.get_state(), layout
        self.first = next(stream, None)

    def __next__(self) -> Batch:
        batch, self.first = self.first or next(self.stream), None
        return batch if self.layout is None else self.layout.batch(batch)

    def get_state(self) -> dict[str, Any]:
        """The state behind the last batch that was taken."""
        return self.stream.get_state() if self.first is None else self._state

    def close(self) -> None:
        """End the thread that makes batches ahead, where there is one."""
        if isinstance(self.stream, Prefetch):
            self.stream.close()


def ahead(stream: Stream[Batch], depth: int, layout: RunLayout | None = None) -> Stream[Batch]:
    """The batches, made ahead and moved to the device by a thread where `depth` is not 0; over a
    mesh every process reads all, and keeps its rows."""
    moved = _moved if layout is None else layout.batch
    return Prefetch(stream, depth, moved) if depth else stream


def _moved(batch: Batch) -> Batch:
    return {name: as_array(x) for name, x in batch.items()}
