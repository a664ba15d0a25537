"""Streams: records of every kind of file, and the state of every stage and of whole pipelines."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import threading
import weakref

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn.data import (
    BatchedRows,
    Example,
    Mapped,
    Mixture,
    Packed,
    Prefetch,
    RecordFiles,
    Shuffled,
)
from genesis_fn.data.streams import readers
from genesis_fn.errors import ArgumentError, FileError

EOS = 0


def write_lines(path, count, start=0):
    path.write_text("".join(json.dumps({"text": f"{start + i}"}) + "\n" for i in range(count)))
    return str(path)


def example(record):
    """Tokens that say which record they are of: its number, some times, and the end."""
    number = int(record["text"])
    tokens = np.array([number + 1] * (number % 7 + 1) + [EOS], np.int32)
    counted = np.ones(tokens.size, bool)
    counted[: number % 3] = False
    return Example(tokens, counted)


def plain(x):
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, tuple):
        return [plain(value) for value in x]
    return x.tolist() if isinstance(x, np.ndarray) else x


# ---- files ----


def test_records_are_the_lines_of_files_folders_and_patterns(tmp_path):
    (tmp_path / "inner").mkdir()
    write_lines(tmp_path / "b.jsonl", 2)
    write_lines(tmp_path / "inner" / "a.jsonl", 2, 2)
    (tmp_path / "notes.md").write_text("a text\nof two lines")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    texts = lambda *paths, **o: [r["text"] for r in RecordFiles(paths, **o)]
    assert texts(tmp_path) == ["0", "1", "a text\nof two lines", "2", "3"]
    assert texts(tmp_path, format="jsonl") == ["0", "1", "2", "3"]
    assert texts(str(tmp_path / "*.jsonl")) == ["0", "1"]
    assert texts(str(tmp_path / "**" / "*.jsonl")) == ["0", "1", "2", "3"]
    assert texts(tmp_path / "inner", tmp_path / "b.jsonl") == ["2", "3", "0", "1"]
    for missing in ("nothing.jsonl", "*.parquet", "none"):
        with pytest.raises(FileNotFoundError, match="there is no such data file"):
            RecordFiles([tmp_path / missing])
    with pytest.raises(ArgumentError, match="one text"):
        RecordFiles(str(tmp_path))


def test_parquet_rows_are_records(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(readers, "_ROWS", 7)
    table = pa.table({"text": [f"{i}" for i in range(50)], "other": list(range(50))})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=16)
    assert list(RecordFiles([path])) == table.to_pylist()
    records = RecordFiles([path], columns=["text"])
    assert [next(records) for _ in range(20)] == table.select(["text"]).to_pylist()[:20]
    again = RecordFiles([path], columns=["text"])
    again.set_state(json.loads(json.dumps(records.get_state())))
    assert [r["text"] for r in again] == [f"{i}" for i in range(20, 50)]
    assert again.at([0, [33]]) == {"text": "33"} and again.where([0, [33]]) == f"{path}: row 33"
    with pytest.raises(FileError, match=r"no column 'texts', only text, other"):
        list(RecordFiles([path], columns=["texts"]))
    whole = path.read_bytes()
    for damaged in (whole[:-5], whole[: len(whole) // 2], b"", b"PAR1" + os.urandom(100) + b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(FileError, match="a.parquet: no Parquet file"):
            list(RecordFiles([path]))
    path.write_bytes(whole[:4] + bytes(200) + whole[204:])
    with pytest.raises(FileError, match=r"a.parquet: (row group 0 cannot be read|no Parquet file)"):
        list(RecordFiles([path]))


def test_a_large_text_is_cut_behind_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE", 64)
    text = "".join(f"line {i} ü€\n" for i in range(40)) + "é" * 200
    (tmp_path / "a.txt").write_text(text)
    found = list(RecordFiles([tmp_path / "a.txt"]))
    assert "".join(r["text"] for r in found) == text and len(found) > 10
    assert [r["ends"] for r in found] == [False] * (len(found) - 1) + [True]
    assert all(r["text"].endswith("\n") for r in found[:5])
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfmarked")
    assert list(RecordFiles([tmp_path / "b.txt"])) == [{"text": "marked", "ends": True}]
    (tmp_path / "c.txt").write_bytes(b"good\n\xff\xfe")
    with pytest.raises(FileError, match="c.txt: byte 5: not UTF-8"):
        list(RecordFiles([tmp_path / "c.txt"]))


BAD = [
    (b'{"text": "1"', "not JSON"), (b"[1]", "not a JSON object"), (b"null", "not a JSON object"),
    (b'{"text": "\xff"}', "not JSON"), (b'{"a": 1, "a": 2}', "'a' twice"), (b"text", "not JSON"),
]  # fmt: skip


@pytest.mark.parametrize("line, message", BAD)
def test_a_bad_line_is_named_and_stops_or_is_skipped(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "0"}\n\n' + line + b'\n{"text": "1"}')
    records = RecordFiles([path])
    assert next(records) == {"text": "0"}
    with pytest.raises(FileError, match=rf"a.jsonl: line 3.*{message}"):
        next(records)
    said = []
    records = RecordFiles([path], on_bad_line="skip", report=said.append)
    assert [r["text"] for r in records] == ["0", "1"] and records.bad.skipped == 1
    assert len(said) == 1 and f"{path}: line 3" in said[0]
    path.write_bytes(line)
    with pytest.raises(FileError, match="no record that can be used"):
        list(RecordFiles([path], on_bad_line="skip", epochs=None))


def test_records_that_a_stage_refuses_are_named_too(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", 5)

    def number(record):
        if record["text"] == "3":
            raise ValueError("three is no number")
        return {"0": None, "1": [10, 11]}.get(record["text"], int(record["text"]))

    assert_ = Mapped(RecordFiles([path]), number)
    with pytest.raises(FileError, match=r"a.jsonl: line 4: three is no number"):
        list(assert_)
    from genesis_fn.data.streams.stream import BadRecords

    said = []
    mapped = Mapped(RecordFiles([path]), number, BadRecords("skip", said.append))
    assert list(mapped) == [10, 11, 2, 4] and mapped.bad.skipped == 1 and len(said) == 1
    nothing = Mapped(RecordFiles([path], epochs=None), lambda r: None)
    with pytest.raises(FileError, match="no record of the data can be used"):
        next(nothing)
    with pytest.raises(FileError, match="line 1: no 'answer'"):
        next(Mapped(RecordFiles([path]), lambda r: r["answer"]))


def test_shards_are_a_partition_and_epochs_repeat(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.jsonl", 5 + i, 10 * i) for i in range(3)]
    texts = lambda **o: [r["text"] for r in RecordFiles(paths, **o)]
    whole = texts()
    shards = [texts(shard=(i, 4)) for i in range(4)]
    assert shards == [whole[i::4] for i in range(4)]
    assert texts(epochs=3) == whole * 3
    one, two = texts(epochs=2, seed=5)[: len(whole)], texts(epochs=2, seed=5)[len(whole) :]
    assert sorted(one) == sorted(two) == sorted(whole)
    orders = {tuple(texts(seed=s)) for s in range(20)}
    assert len(orders) == 6  # of three files
    with pytest.raises(FileError, match="too few for 40 shards"):
        list(RecordFiles(paths, shard=(30, 40)))


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    paths = [write_lines(tmp_path / f"{i}.jsonl", 40) for i in range(2)]
    records = RecordFiles(paths)
    for _ in range(50):
        next(records)
    state = json.loads(json.dumps(records.get_state()))
    RecordFiles(paths).set_state(state)
    with pytest.raises(FileError, match="has 1 files, and had 2"):
        RecordFiles(paths[:1]).set_state(state)
    before = (tmp_path / "1.jsonl").read_bytes()
    for changed in (before + b'{"text": "x"}\n', before.replace(b'"7"', b'"8"')):
        (tmp_path / "1.jsonl").write_bytes(changed)
        with pytest.raises(FileError, match=r"1.jsonl: the file has changed since"):
            RecordFiles(paths).set_state(state)
    (tmp_path / "1.jsonl").write_bytes(before)
    os.utime(tmp_path / "1.jsonl", (1, 1))  # copied, say
    RecordFiles(paths).set_state(state)
    # Of a large file, blocks that are spread over it.
    from genesis_fn.data.streams import files

    monkeypatch.setattr(files, "_BLOCK", 8)
    for at in (0, len(before) // 2, len(before) - 3):
        print_of = files.fingerprint(paths[0])
        (tmp_path / "0.jsonl").write_bytes(before[:at] + bytes(20) + before[at + 20 :])
        assert files.fingerprint(paths[0]) != print_of
        (tmp_path / "0.jsonl").write_bytes(before)


# ---- order ----


@pytest.mark.parametrize("size", [1, 3, 7, 8, 50, 10**12])
def test_each_epoch_has_every_value_once_however_large_the_buffer_is(tmp_path, size):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{i}"}}\n' for i in range(7)))
    endless = Shuffled(RecordFiles([path], epochs=None), size, seed=3)
    found = [next(endless)["text"] for _ in range(28)]
    epochs = [found[i : i + 7] for i in range(0, 28, 7)]
    assert all(sorted(epoch) == list("0123456") for epoch in epochs)
    assert (len(set(map(tuple, epochs))) > 1) == (size > 1)
    assert len(endless.get_state()["buffer"]) <= 7
    # From any place, also between two epochs.
    whole = [r["text"] for r in Shuffled(RecordFiles([path], epochs=3), size, seed=3)]
    assert whole == found[:21]
    for taken in range(21):
        first, second = [Shuffled(RecordFiles([path], epochs=3), size, seed=3) for _ in range(2)]
        begun = [next(first)["text"] for _ in range(taken)]
        second.set_state(json.loads(json.dumps(first.get_state())))
        assert begun + [r["text"] for r in second] == whole


def test_a_buffer_shuffles_and_loses_nothing(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", 200)
    texts = lambda size, seed: [r["text"] for r in Shuffled(RecordFiles([path]), size, seed)]
    ordered = [f"{i}" for i in range(200)]
    assert texts(1, 0) == ordered
    assert texts(50, 3) == texts(50, 3) != texts(50, 4)
    for size in (2, 7, 50, 199, 200, 1000):
        found = texts(size, 1)
        assert sorted(found) == sorted(ordered) and found != ordered
        assert all(int(x) < i + size for i, x in enumerate(found))
    # Of a buffer that holds everything, each value is first about as often as any other.
    small = write_lines(tmp_path / "b.jsonl", 5)
    firsts = [next(Shuffled(RecordFiles([small]), 5, s))["text"] for s in range(2000)]
    assert all(330 < firsts.count(f"{i}") < 470 for i in range(5))


def test_a_mixture_has_its_shares(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.jsonl", 30, 100 * i) for i in range(3)]
    source = lambda x: int(x["text"]) // 100
    endless = [RecordFiles([p], epochs=None) for p in paths]
    mixture = Mixture(endless, [1, 2, 5], seed=2)
    counts = np.bincount([source(next(mixture)) for _ in range(8000)])
    assert np.all(np.abs(counts - [1000, 2000, 5000]) < 200)
    streams = lambda: [RecordFiles([p]) for p in paths]
    first = [source(x) for x in Mixture(streams(), [1, 2, 5], seed=2)]
    assert first.count(2) == 30 and first.count(0) < 30
    every = list(Mixture(streams(), seed=2, stopping_strategy="all_exhausted_without_replacement"))
    assert sorted(int(x["text"]) for x in every) == sorted(
        100 * i + j for i in range(3) for j in range(30)
    )
    for weights in ([1], [1, 2, 0], [1, 2, float("nan")]):
        with pytest.raises(ArgumentError):
            Mixture(streams(), weights)


# ---- rows ----


def packed(path, length, packing, separate, epochs=1):
    return Packed(
        Mapped(RecordFiles([path], epochs=epochs), example), length,
        packing=packing, separate=separate,
    )  # fmt: skip


@pytest.mark.parametrize("length", [1, 3, 8, 20, 500])
def test_joined_documents_are_one_text(tmp_path, length):
    path = write_lines(tmp_path / "a.jsonl", 60)
    examples = [example({"text": f"{i}"}) for i in range(60)]
    joined = np.concatenate([e.tokens for e in examples])
    counted = np.concatenate([e.counted for e in examples])
    rows = list(packed(path, length, "cut", separate=False))
    tokens = np.concatenate([r["tokens"] for r in rows])
    labels = np.concatenate([r["labels"] for r in rows])
    count = joined.size - 1
    assert len(rows) == -(-count // length)
    np.testing.assert_array_equal(tokens[:count], joined[:count])
    np.testing.assert_array_equal(labels[:count], np.where(counted[1:], joined[1:], -100))
    assert set(labels[count:]) <= {-100} and all("segment_ids" not in r for r in rows)


@pytest.mark.parametrize("packing", ["cut", "fit", "off"])
@pytest.mark.parametrize("length", [9, 16, 50])
def test_separate_examples_are_whole_and_counted_once(tmp_path, packing, length):
    path = write_lines(tmp_path / "a.jsonl", 80)
    found: dict[int, list[tuple[int, int]]] = {}
    rows = list(packed(path, length, packing, separate=True))
    for row in rows:
        ids = row.get("segment_ids")
        if ids is None:
            ids = np.ones(length, int)
        real = ids > 0
        assert not np.any(real[1:] & ~real[:-1]) and np.all(np.diff(ids[real]) >= 0)
        assert np.all(row["labels"][~real] == -100)
        for number in sorted(set(ids[real].tolist())):
            tokens = row["tokens"][ids == number]
            which = int(tokens[0]) - 1
            pairs = list(zip(tokens.tolist(), row["labels"][ids == number].tolist()))
            found.setdefault(which, []).extend(pairs)
    for i in range(80):
        e = example({"text": f"{i}"})
        labels = np.where(e.counted[1:], e.tokens[1:], -100)
        wanted = list(zip(e.tokens[:-1].tolist(), labels.tolist()))
        if packing == "off":  # padding belongs to the row
            assert found[i][: len(wanted)] == wanted
            assert all(label == -100 for _, label in found[i][len(wanted) :])
        else:
            assert found[i] == wanted
    slots = sum(example({"text": f"{i}"}).tokens.size - 1 for i in range(80))
    if packing == "fit" and length == 50:
        assert len(rows) <= slots / length * 1.1 + 1
    if packing == "cut":
        assert len(rows) == -(-slots // length)


def test_a_long_example_is_cut_where_it_is_to_be_whole(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", 1)
    long = lambda record: Example(np.arange(1, 31, dtype=np.int32), np.ones(30, bool))
    (row,) = Packed(Mapped(RecordFiles([path]), long), 8, packing="fit")
    assert row["tokens"].tolist() == [*range(1, 9)] and row["labels"].tolist() == [*range(2, 10)]
    rows = list(Packed(Mapped(RecordFiles([path]), long), 8, packing="cut"))
    assert [r["tokens"][0] for r in rows] == [1, 9, 17, 25]


def test_the_last_batch_is_filled_or_left_out(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", 10)
    rows = len(list(packed(path, 8, "off", True)))
    batches = list(BatchedRows(packed(path, 8, "off", True), 4))
    assert [b["tokens"].shape for b in batches] == [(4, 8)] * -(-rows // 4)
    last = batches[-1]["labels"][rows % 4 :]
    assert last.size and np.all(last == -100)
    assert len(list(BatchedRows(packed(path, 8, "off", True), 4, drop_last=True))) == rows // 4


# ---- the state of all of it ----


def pipeline(paths, seed, packing="fit", prefetch=True):
    sources = [
        Shuffled(RecordFiles([p], epochs=3, seed=seed), size, seed)
        for p, size in zip(paths, (5, 40), strict=True)
    ]
    mixed = Mixture(sources, [1, 3], seed, "all_exhausted_without_replacement")
    several = lambda record: [example(record)] * (int(record["text"]) % 3)  # none, one, two
    batches = BatchedRows(Packed(Mapped(mixed, several), 11, packing=packing), 3)
    return Prefetch(batches, 2) if prefetch else batches


@pytest.mark.parametrize("packing", ["cut", "fit", "off"])
def test_a_pipeline_goes_on_exactly_wherever_it_was_stopped(tmp_path, packing):
    paths = [write_lines(tmp_path / f"{i}.jsonl", 23 + 20 * i, 100 * i) for i in range(2)]
    whole = [plain(b) for b in pipeline(paths, 7, packing, prefetch=False)]
    assert len(whole) > 20
    for stop in range(0, len(whole) + 1, 2):
        with pipeline(paths, 7, packing) as before:
            head = [plain(b) for b in itertools.islice(before, stop)]
            state = json.loads(json.dumps(before.get_state()))
        with pipeline(paths, 7, packing) as after:
            after.set_state(state)
            assert after.get_state() == state
            assert head + [plain(b) for b in after] == whole


def test_a_pipeline_is_stopped_many_times(tmp_path):
    chance = random.Random(3)
    paths = [write_lines(tmp_path / f"{i}.jsonl", 31, 100 * i) for i in range(2)]
    whole = [plain(b) for b in pipeline(paths, 1, prefetch=False)]
    found, state = [], None
    while len(found) < len(whole):
        stream = pipeline(paths, 1, prefetch=False)
        if state is not None:
            stream.set_state(state)
        found += [plain(b) for b in itertools.islice(stream, chance.randint(0, 4))]
        state = json.loads(json.dumps(stream.get_state()))
    assert found == whole


def test_every_value_is_made_again_from_its_origin(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.jsonl", 31, 100 * i) for i in range(2)]
    stream, other = pipeline(paths, 4, prefetch=False), pipeline(paths, 4, prefetch=False)
    while True:
        try:
            item = stream.next_item()
        except StopIteration:
            break
        assert plain(other.at(json.loads(json.dumps(item.origin)))) == plain(item.value)
        assert ".jsonl: line " in stream.where(item.origin)


# ---- the thread ----


def threads():
    return [t for t in threading.enumerate() if t.name == "prefetch"]


def test_errors_of_the_thread_come_where_they_arose(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "0"}\n{"text": "1"}\nbroken\n')
    stream = Prefetch(RecordFiles([path]), 4, transfer=lambda r: r["text"])
    assert [next(stream), next(stream)] == ["0", "1"]
    state = stream.get_state()
    for _ in range(2):
        with pytest.raises(FileError, match="line 3"):
            next(stream)
    assert stream.get_state() == state and not threads()


def test_no_thread_stays(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", 50)
    stream = Prefetch(RecordFiles([path], epochs=None), 3)
    assert not threads()  # before anything is taken
    next(stream)
    assert len(threads()) == 1
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None and not threads()
    with Prefetch(RecordFiles([path], epochs=None), 3) as stream:
        for _ in range(7):
            next(stream)
    assert not threads()
    with pytest.raises(ArgumentError, match="closed"):
        next(stream)
    stream.set_state(stream.get_state())
    assert next(stream)["text"] == "7"
    stream.close()
    assert not threads() and list(Prefetch(RecordFiles([path]), 1)) and not threads()


def test_values_are_moved_to_the_device_by_the_thread(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", 20)
    moved = lambda batch: gf.device_put(batch)
    with Prefetch(BatchedRows(packed(path, 8, "fit", True), 2), 2, moved) as stream:
        batch = next(stream)
    assert isinstance(batch["tokens"], gf.Array) and batch["tokens"].dtype == np.int32
    assert plain(np.asarray(batch["tokens"])) == plain(
        next(BatchedRows(packed(path, 8, "fit", True), 2))["tokens"]
    )
