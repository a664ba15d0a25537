"""Files that are damaged, hostile or half written: they load right, or end in one error that names
the file, within a second and without much memory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random as python_random
import resource
import signal
import stat
import struct
import time

import numpy as np
import pytest
import safetensors.numpy

import genesis_fn.numpy as jnp
from genesis_fn import data, io, random
from genesis_fn.backends.cuda.binaries.cache import BinaryCache
from genesis_fn.core import tree
from genesis_fn.io.safetensors import load_metadata, load_numpy
from genesis_fn.models import qwen
from genesis_fn.training.monitoring.log import Log

CONFIG = qwen.QwenConfig(
    vocab_size=17,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    head_dim=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=16,
    tie_word_embeddings=False,
)
STATE = {"w": jnp.arange(6.0).reshape(2, 3), "n": [jnp.asarray(3), jnp.zeros(0, bool)]}
HUGE = 10**30


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB


@contextlib.contextmanager
def bounded(seconds=1.0, mebibytes=200):
    """Fails where the block takes longer, or more memory than there ever was."""

    def late(*_):
        raise TimeoutError("the block does not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)  # of a machine that does much else
    most, began = peak(), time.thread_time()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert time.thread_time() - began < seconds
    assert peak() - most < mebibytes


def attempt(load, path):
    """(what `load()` returns, None), or (None, its error), which is short and names the file."""
    try:
        with bounded():
            return load(), None
    except (io.FileError, OSError) as error:
        assert os.path.basename(path) in str(error), error
        assert len(str(error)) < 1500 and str(error).count("\n") < 6, error
        return None, error


# ---- damages ----


def wrong_values(value):
    """What may stand in the place of a JSON value."""
    deep: list = []
    for _ in range(200):
        deep = [deep]
    yield from (None, True, -1, 0, 1.5, HUGE, -HUGE, 2**31, 1e308, "", "x" * 100_000, [], {}, [[]])
    yield from ([value], {"a": value}, deep, "false", [HUGE] * 1000, float("nan"), float("inf"))


def changed_json(value):
    """Copies of a JSON value with one value, at any depth, exchanged or removed."""
    yield from wrong_values(value)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items) if isinstance(value, dict | list) else []:
        make = dict if isinstance(value, dict) else list
        others = changed_json(inner) if isinstance(inner, dict | list) else wrong_values(inner)
        for other in others:
            copy = make(value)
            copy[key] = other
            yield copy
        copy = make(value)
        del copy[key]
        yield copy


def damaged(content, rng, count=60):
    """Copies of a file's bytes: cut, with flipped bits, with bytes put in or taken out."""
    for _ in range(count):
        at = rng.randrange(len(content))
        yield content[:at]
        yield content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        yield content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
        yield content[:at] + content[at + rng.randrange(1, 99) :]
    yield from (b"", b"\0" * 100, b"\xff" * 100, content * 2, content + b"\0")
    yield from (b"[" * 100_000, b"[" * 900 + b"]" * 900, b'{"a":' * 100_000, b"9" * 100_000)
    yield from (b"[]," * 1_000_000, b"[" + b"[]," * 400_000 + b"[]]")


OTHERS = ["folder", "pipe", "socket", "zero", "null", "nothing", "itself", "missing", "secret"]


def become(path, what):
    """Put something that is no plain file in the place of a file."""
    path.unlink(missing_ok=True)
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif what in ("zero", "null"):
        path.symlink_to(f"/dev/{what}")
    elif what in ("nothing", "itself"):
        path.symlink_to(path if what == "itself" else path.parent / "nowhere")


# ---- the files of a model ----


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder of a model, and one in two shards with an index."""
    folder = tmp_path_factory.mktemp("model")
    params = qwen.init(random.key(0), CONFIG)
    io.save_qwen(folder / "whole", params, CONFIG)
    arrays = load_numpy(folder / "whole" / "model.safetensors")
    shards = folder / "shards"
    shards.mkdir()
    names = sorted(arrays)
    table = {n: f"model-{1 + (i > 5)}-of-2.safetensors" for i, n in enumerate(names)}
    for file in set(table.values()):
        io.save_file({n: arrays[n] for n in names if table[n] == file}, shards / file)
    (shards / "config.json").write_bytes((folder / "whole" / "config.json").read_bytes())
    (shards / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": table})
    )
    return folder, params


def same(a, b):
    return tree.structure(a) == tree.structure(b) and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(tree.leaves(a), tree.leaves(b))
    )


@contextlib.contextmanager
def restored(path):
    content = path.read_bytes()
    try:
        yield content
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def test_r13_every_field_of_a_config_is_checked(model):
    folder, params = model[0] / "whole", model[1]
    path, loaded = folder / "config.json", []
    with restored(path) as content:
        values = json.loads(content)
        for i, other in enumerate(changed_json(values)):
            path.write_text(json.dumps(other))
            read, _ = attempt(lambda: qwen.QwenConfig.from_file(folder), path)
            if read is not None and i % 4 == 0:  # the whole folder, for some
                found, _ = attempt(lambda: io.load_qwen(folder), folder)
                if found is not None:
                    loaded.append(other)
                    assert same(found[0], params)
        for other in damaged(content, python_random.Random(1)):
            path.write_bytes(other)
            attempt(lambda: qwen.QwenConfig.from_file(path), path)
        for what in OTHERS:
            become(path, what)
            found, error = attempt(lambda: io.load_qwen(folder), path)
            assert error is not None
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
    # What is still a model of these arrays: other names, limits and steps of numbers.
    assert 0 < len(loaded) < 60


@pytest.mark.parametrize(("field", "value"), [
    ("num_hidden_layers", 10**9), ("num_hidden_layers", 2**70), ("num_hidden_layers", 9000),
    ("head_dim", "4"), ("head_dim", -4), ("head_dim", 4.0), ("head_dim", True), ("head_dim", 3),
    ("num_attention_heads", 0), ("num_attention_heads", "2"), ("num_key_value_heads", -1),
    ("num_key_value_heads", 0), ("num_key_value_heads", 3), ("hidden_size", -8),
    ("hidden_size", 2**62), ("vocab_size", 0), ("vocab_size", None), ("intermediate_size", [8]),
    ("rope_parameters", "x"), ("rope_parameters", [1]), ("rope_parameters", {"rope_type": []}),
    ("rope_theta", float("nan")), ("rope_theta", -1), ("rope_theta", 0), ("rope_theta", "1e4"),
    ("rms_norm_eps", float("nan")), ("rms_norm_eps", -1e-6), ("rms_norm_eps", None),
    ("tie_word_embeddings", "false"), ("tie_word_embeddings", 0), ("attention_bias", "no"),
    ("hidden_act", 3), ("model_type", 3), ("model_type", ["qwen3"]), ("layer_types", "full"),
    ("initializer_range", float("inf")), ("max_position_embeddings", 0.5),
])  # fmt: skip
def test_r13_a_bad_config_names_field_and_file(model, tmp_path, field, value):
    values = json.loads((model[0] / "whole" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, field: value}))
    (tmp_path / "model.safetensors").symlink_to(model[0] / "whole" / "model.safetensors")
    _, error = attempt(lambda: io.load_qwen(tmp_path), "config.json")
    assert isinstance(error, io.FileError)
    assert field in str(error) or "head_dim" in field


def test_r14_a_shape_of_many_sizes_takes_no_time(tmp_path):
    path = tmp_path / "model.safetensors"
    for shape in ([2**60] * 200_000, [2] * 1_000_000, [1] * 65, [0] * 65, [0, 2**62, 2**62]):
        text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"0000")
        _, error = attempt(lambda: load_numpy(path), path)
        assert "'w'" in str(error) and "shape" in str(error)


def test_r14_damaged_headers(model, tmp_path):
    """What loads is what the format's own reader loads."""
    path, rng = tmp_path / "x.safetensors", python_random.Random(2)
    arrays = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int8)}
    io.save_file(arrays, path, {"made": "here"})
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    texts = [json.dumps(other).encode() for other in changed_json(header)]
    files = [struct.pack("<Q", len(text)) + text + rest for text in texts]
    files += [other + rest for other in damaged(content[: 8 + size], rng)]
    loaded = 0
    for file in files:
        path.write_bytes(file)
        found, _ = attempt(lambda: load_numpy(path), path)
        attempt(lambda: load_metadata(path), path)
        if found is not None:
            loaded += 1
            theirs = safetensors.numpy.load_file(path)
            assert found.keys() == theirs.keys()
            for name, x in found.items():
                assert x.dtype == theirs[name].dtype and x.shape == theirs[name].shape
                assert x.tobytes() == theirs[name].tobytes()
    assert loaded < len(files) / 4
    for what in OTHERS:
        become(path, what)
        for load in (load_numpy, load_metadata):
            assert attempt(lambda load=load: load(path), path)[1] is not None
        if path.is_dir() and not path.is_symlink():
            path.rmdir()


def test_r14_booleans_are_zero_or_one(tmp_path):
    path = tmp_path / "x.safetensors"
    io.save_file({"b": np.array([True, False])}, path)
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(io.FileError, match="'b'.*boolean"):
        load_numpy(path)


def test_r15_every_index_is_read_or_refused(model, tmp_path):
    folder, params = model[0] / "shards", model[1]
    path = folder / "model.safetensors.index.json"
    assert same(io.load_qwen(folder)[0], params)
    arrays = io.shards.read_folder(str(folder))
    with restored(path) as content:
        table = json.loads(content)
        cases = [json.dumps(other).encode() for other in changed_json(table)]
        files = ["", ".", "..", "/etc/passwd", "../x", "a\0b", "config.json", "a" * 5000, "\ud800"]
        name = next(iter(table["weight_map"]))
        for file in files:
            other = {**table, "weight_map": {**table["weight_map"], name: file}}
            cases.append(json.dumps(other).encode())
        for case in [*cases, *damaged(content, python_random.Random(3), 20)]:
            path.write_bytes(case)
            found, _ = attempt(lambda: io.shards.read_folder(str(folder)), folder)
            assert found is None or found == arrays
        for what in OTHERS:
            become(path, what)
            assert attempt(lambda: io.load_qwen(folder), folder)[1] is not None
            if path.is_dir() and not path.is_symlink():
                path.rmdir()


def test_r15_an_array_comes_from_the_file_that_the_index_names(model, tmp_path):
    params = model[1]
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (model[0] / "shards").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    table = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    first, second = "model-1-of-2.safetensors", "model-2-of-2.safetensors"
    for here, there in ((first, second), (second, first)):
        arrays = load_numpy(model[0] / "shards" / there)
        name = next(n for n in table if table[n] == here)
        other = np.full_like(load_numpy(folder / here)[name], 7)
        io.save_file({**{n: np.array(x) for n, x in arrays.items()}, name: other}, folder / there)
    assert same(io.load_qwen(folder)[0], params)
    arrays = {n: np.array(x) for n, x in load_numpy(folder / first).items()}
    io.save_file({**arrays, "more": np.zeros(1)}, folder / first)
    with pytest.raises(io.FileError, match="does not list 'more', which model-1-of-2"):
        io.load_qwen(folder)
    io.save_file({n: x for n, x in arrays.items() if table[n] == first}, folder / first)
    io.save_file({"other": np.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(io.FileError, match="both model.safetensors and model.safetensors.index"):
        io.load_qwen(folder)


# ---- checkpoints ----


def test_r12_names_that_collide_are_refused(tmp_path):
    x, y = jnp.zeros(2), jnp.ones(2)
    for state in ({"a.b": x, "a": {"b": y}}, {"a": [x], "a.0": y}, {"a": {"": x}, "a.": y}):
        with pytest.raises(ValueError, match=r"two leaves have the name 'a\."):
            io.save(tmp_path / "c", 1, state)
    assert not (tmp_path / "c").exists()
    with pytest.raises(io.FileError, match="'__metadata__' is no name for an array"):
        io.save(tmp_path / "c", 1, {"__metadata__": x})
    assert io.steps(tmp_path / "c") == []


def test_r12_numbers_come_back_as_they_were(tmp_path):
    state = {"step": 7, "loss": 0.1, "best": float("inf"), "on": True, "w": jnp.zeros(2), "n": None}
    io.save(tmp_path, 1, state)
    template = {"step": 0, "loss": 0.0, "best": 0.0, "on": False, "w": jnp.ones(2), "n": None}
    found, _, _ = io.restore(tmp_path, template)
    assert {k: v for k, v in found.items() if k != "w"} == {k: state[k] for k in state if k != "w"}
    assert [type(found[k]) for k in ("step", "loss", "on")] == [int, float, bool]
    with pytest.raises(io.FileError, match="'step'"):
        io.restore(tmp_path, {**template, "step": 0.0})
    arrays = {"a": np.float32(2), "b": np.arange(3), "c": np.float64(1)}  # NumPy's, as arrays
    io.save(tmp_path, 2, arrays)
    for name, x in io.restore(tmp_path, arrays)[0].items():
        assert np.asarray(x) == pytest.approx(arrays[name]) and x.dtype == arrays[name].dtype


class Strange:
    """Nothing that a file can hold."""


@pytest.mark.parametrize(("leaf", "message"), [
    ("text", r"state\['deep'\]\[0\] is a builtins.str"), (1j, "builtins.complex"),
    (Strange(), "Strange"), (b"raw", "bytes"), (np.array(["a"]), "'deep.0' of dtype <U1"),
    (np.array([None]), "'deep.0' of dtype object"), (10**30, "'deep.0' of dtype object"),
    (np.zeros(1, complex), "'deep.0' of dtype complex128"),
])  # fmt: skip
def test_r12_a_leaf_that_cannot_be_restored_is_refused(tmp_path, leaf, message):
    with pytest.raises((TypeError, ValueError), match=message):
        io.save(tmp_path, 1, {"deep": [leaf]})
    assert io.steps(tmp_path) == []
    saver = io.AsyncSaver(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        saver.save(1, {"deep": [leaf]})
        saver.wait()


@pytest.mark.parametrize(("values", "message"), [
    ({1: 2}, "values has the name 1"), ({"a": [{2.0: 1}]}, r"values\['a'\]\[0\] has the name"),
    ({"a": np.zeros(2)}, r"values\['a'\] is array"), ({"a": {1, 2}}, r"values\['a'\] is {1, 2}"),
])  # fmt: skip
def test_r12_values_that_json_changes_are_refused(tmp_path, values, message):
    with pytest.raises(TypeError, match=message):
        io.save(tmp_path, 1, STATE, values)
    for step in (-1, 10**18):
        with pytest.raises(ValueError, match="step must lie in"):
            io.save(tmp_path, step, STATE)
    with pytest.raises(ValueError, match="keep must be at least 1"):
        io.save(tmp_path, 1, STATE, keep=0)


def test_r12_damaged_checkpoints(tmp_path):
    folder = io.save(tmp_path, 3, STATE, {"loss": 1.5})
    rng = python_random.Random(4)

    def load():
        return io.restore(tmp_path, STATE)

    for name in ("state.safetensors", "manifest.json"):
        path = tmp_path / "step-00000003" / name
        with restored(path) as content:
            cases = list(damaged(content, rng, 30))
            if name == "manifest.json":
                cases += [json.dumps(o).encode() for o in changed_json(json.loads(content))]
            for case in cases:
                path.write_bytes(case)
                found, _ = attempt(load, "step-00000003")
                assert found is None or same(found[0], STATE) and found[1] == 3
                assert found is None or name == "manifest.json" or case == content
            for what in OTHERS:
                become(path, what)
                assert attempt(load, "step-00000003")[1] is not None
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
    assert same(load()[0], STATE) and os.path.isdir(folder)


def test_r10_strange_names_are_no_steps(tmp_path):
    io.save(tmp_path, 3, STATE)
    for name in ("step-9", "step-000000010", "step-" + "9" * 200, "step-٠٠٠٠٠٠٠٩", "step-0000001x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000099").write_text("a file")
    assert io.steps(tmp_path) == [3] and io.restore(tmp_path, STATE)[1] == 3


# ---- the files of a run ----


def test_r20_damaged_logs(tmp_path):
    path = tmp_path / "log.jsonl"
    good = {"step": 1, "loss": 2.5, "grad_norm": 1.0, "tokens_per_s": 9.0}
    lines = [b"[1, 2]", b"3", b"null", b'"x"', b"{", b"\xff\xfe", b"[" * 5000, b"9" * 5000, b""]
    others = [{**good, "step": x} for x in (None, "1", [], 1.0, True, {})]
    others += [{**good, "loss": x} for x in ("1", [], True, HUGE)] + [{"loss": 1.0}]
    lines += [json.dumps(other).encode() for other in others]
    lines += [json.dumps(good).encode(), b"x" * 300_000]
    path.write_bytes(b"\n".join(lines))
    with bounded():
        log = Log(str(path), 5)
    assert log.rows == [good]
    log.close()
    assert path.read_text() == json.dumps(good) + "\n"
    for what in OTHERS[:-2]:
        become(path, what)
        with contextlib.suppress(OSError, io.FileError), bounded():
            Log(str(path), 5).close()
        if path.is_dir() and not path.is_symlink():
            path.rmdir()


def test_r20_damaged_tokenizers(tmp_path):
    texts = ["def f(x):\n    return x + 1\n" * 50]
    data.save_tokenizer(data.train_tokenizer(texts, 270), tmp_path / "tokenizer.json")
    path = tmp_path / "tokenizer.json"
    with restored(path) as content:
        values = json.loads(content)
        values["model"]["vocab"] = dict(list(values["model"]["vocab"].items())[:3])
        cases = [json.dumps(other).encode() for other in changed_json(values)]
        for case in [*cases, *damaged(content, python_random.Random(5), 20)]:
            path.write_bytes(case)
            attempt(lambda: data.load_tokenizer(path), path)
        for what in OTHERS:
            become(path, what)
            assert attempt(lambda: data.load_tokenizer(path), path)[1] is not None
            if path.is_dir() and not path.is_symlink():
                path.rmdir()


def test_r20_errors_of_a_full_disk_name_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"No space left on device: .*step-00000001|state.safetensors"
    ):
        io.save(tmp_path, 1, STATE)
    with pytest.raises(OSError, match=r"No space left on device: .*tokenizer\.json"):
        data.save_tokenizer(data.train_tokenizer(["a b"], 258), tmp_path / "tokenizer.json")
    with pytest.raises(OSError, match="No space left on device: '/.*'"):
        with io.atomic_write(tmp_path / "x"):
            full()
    assert [n for n in os.listdir(tmp_path) if n != ".lock"] == []


def test_r20_messages_do_not_repeat_a_name_of_a_megabyte(tmp_path):
    path, name = tmp_path / "x.safetensors", "n" * 2**20
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    wrong = [{**entry, "dtype": name}, {**entry, "shape": name}, {**entry, "data_offsets": [name]}]
    for header in ({name: entry}, {name: 1}, *[{"w": other} for other in wrong]):
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"00")
        assert attempt(lambda: load_numpy(path), path)[1] is not None
    with pytest.raises(io.FileError) as error:
        io.safetensors.restore_like({"w": jnp.zeros(1)}, {name: np.zeros(1)}, path)
    assert len(str(error.value)) < 500


def test_r16_names_of_files_are_any_bytes(tmp_path):
    folder = os.fsencode(tmp_path)
    for name in (b"a\xff.txt", b"b\xe9\n.py", b"c.md", "ü.txt".encode()):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(b"some text of " + str(len(name)).encode())
    files = data.text_files(tmp_path)
    train, valid = data.split_files(files)
    assert sorted(train + valid) == sorted(files) and len(files) == 4
    assert len(list(data.read_texts(files))) == 4


def test_r16_what_is_no_text_is_passed_over(tmp_path):
    (tmp_path / "good.txt").write_text("words")
    for what in OTHERS[:-2]:
        become(tmp_path / f"{what}.txt", what)
    with bounded():
        assert list(data.read_texts(data.text_files(tmp_path))) == ["words"]
        assert list(data.read_texts([str(tmp_path / f"{w}.txt") for w in OTHERS])) == []
        for what in ("pipe", "zero", "nothing"):
            with pytest.raises(FileNotFoundError):
                data.text_files(tmp_path / f"{what}.txt")


# ---- compiled kernels ----


def test_r19_the_cache_is_the_users_own(tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        BinaryCache(tmp_path / "new").put("ab" * 32, {"name": "k"}, b"binary")
    finally:
        os.umask(before)
    for root, _, files in os.walk(tmp_path / "new"):
        assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
        assert all(stat.S_IMODE(os.stat(os.path.join(root, f)).st_mode) == 0o600 for f in files)
    assert BinaryCache(tmp_path / "new").get("ab" * 32) == ({"name": "k"}, b"binary")
    # A folder of an earlier version is closed to others.
    (tmp_path / "old" / "kernels").mkdir(parents=True, mode=0o755)
    BinaryCache(tmp_path / "old").put("ab" * 32, {}, b"")
    assert stat.S_IMODE((tmp_path / "old" / "kernels").stat().st_mode) == 0o700
    # The same entries, had another user written them.
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert BinaryCache(tmp_path / "new").get("ab" * 32) is None
    monkeypatch.undo()
    assert BinaryCache(tmp_path / "new").get("ab" * 32) is not None


def test_r19_damaged_entries_are_replaced(tmp_path):
    import hashlib

    key = "cd" * 32

    def store():
        BinaryCache(tmp_path).put(key, {"name": "k"}, b"binary")

    def load():
        return BinaryCache(tmp_path).get(key)

    store()
    good = load()
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    content = path.read_bytes()
    cases = list(damaged(content, python_random.Random(6), 40))
    # Headers with a right checksum, that are no headers.
    magic = content[: content.index(b"\n") + 1]
    header = {"key": key, "size": 6, "sha256": hashlib.sha256(b"binary").hexdigest()}
    texts = [b"[]", b"null", b"3", b"not JSON", b"{}", b"\xff", b"[" * 100_000, b"9" * 5000]
    headers = ({"key": key}, {**header, "sha256": 3}, {**header, "metadata": []}, header)
    for text in [*texts, *[json.dumps(other).encode() for other in headers]]:
        digest = hashlib.sha256(text).hexdigest().encode()
        cases.append(magic + digest + b"\n" + text + b"\nbinary")
    for case in cases:
        path.write_bytes(case)
        with bounded():
            found = load()
        assert found is None or found == good
        if found is None:
            assert not path.exists()
            store()
            assert load() == good
    for other in OTHERS[:-2]:
        become(path, other)
        with bounded():
            assert load() is None
            store()
        if not path.is_dir():
            assert load() == good
            path.unlink()
        elif not path.is_symlink():
            path.rmdir()
