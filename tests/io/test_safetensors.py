"""Files: the safetensors format both ways, damaged files, checkpoints that survive a kill."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import genesis_fn.numpy as jnp
from genesis_fn import io, random
from genesis_fn.core import tree
from genesis_fn.io import FileError
from genesis_fn.io.lock import locked
from genesis_fn.io.safetensors import flat_names, load_metadata, load_numpy, restore_like

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "float32", "float64",
]  # fmt: skip


def examples():
    rng = np.random.default_rng(0)
    arrays = {f"a.{d}": (rng.normal(size=(3, 5)) * 9).astype(d) for d in DTYPES}
    arrays |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 4), np.int16)}
    return arrays


# ---- the format ----


def test_written_here_read_by_safetensors(tmp_path):
    arrays, path = examples(), tmp_path / "x.safetensors"
    io.save_file(arrays, path, {"made": "here"})
    read = safetensors.numpy.load_file(path)
    assert set(read) == set(arrays)
    for name, x in arrays.items():
        assert read[name].dtype == x.dtype and read[name].shape == x.shape
        np.testing.assert_array_equal(read[name], x)
    with safetensors.safe_open(path, "np") as f:
        assert f.metadata() == {"made": "here"}
    assert load_metadata(path) == {"made": "here"}
    assert (struct.unpack("<Q", path.read_bytes()[:8])[0] + 8) % 8 == 0


def test_written_by_safetensors_read_here(tmp_path):
    arrays, path = examples(), tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path, {"made": "there"})
    read = io.load_file(path)
    assert set(read) == set(arrays) and load_metadata(path) == {"made": "there"}
    for name, x in arrays.items():
        assert read[name].dtype == x.dtype and read[name].shape == x.shape
        np.testing.assert_array_equal(read[name], x)


def test_narrow_floats_both_ways(tmp_path):
    path = tmp_path / "x.safetensors"
    kinds = {
        "bf16": (ml_dtypes.bfloat16, torch.bfloat16),
        "e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
        "e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2),
        "c64": (np.complex64, torch.complex64),
    }
    values = np.random.default_rng(0).normal(size=(4, 3))
    io.save_file({n: jnp.asarray(values.astype(d)) for n, (d, _) in kinds.items()}, path)
    read = safetensors.torch.load_file(path)
    for name, (ours, theirs) in kinds.items():
        assert read[name].dtype == theirs
        back = read[name].to(torch.complex64 if name == "c64" else torch.float32).numpy()
        np.testing.assert_array_equal(back, values.astype(ours).astype(back.dtype))
    safetensors.torch.save_file(read, path)
    for name, x in io.load_file(path).items():
        assert x.dtype == kinds[name][0]


def test_arrays_that_are_views(tmp_path):
    path = tmp_path / "x.safetensors"
    x = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    io.save_file({"t": x.T, "s": x[::2, ::3], "j": jnp.asarray(x).T}, path)
    read = io.load_file(path)
    np.testing.assert_array_equal(read["t"], x.T)
    np.testing.assert_array_equal(read["s"], x[::2, ::3])
    np.testing.assert_array_equal(read["j"], x.T)


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(FileError, match="'x'.*complex128"):
        io.save_file({"x": np.zeros(2, np.complex128)}, tmp_path / "x")
    assert os.listdir(tmp_path) == []


# ---- damaged files ----


def build(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "empty": (b"", "too short"),
    "seven-bytes": (b"1234567", "too short"),
    "huge-header": (build({}, size=2**60), "header claims"),
    "header-past-the-end": (build({}, size=3), "header claims 3"),
    "not-json": (build(b"{not json}"), "not JSON"),
    "not-utf8": (build(b"\xff\xfe{}"), "not JSON"),
    "a-list": (build([1]), "not a JSON object"),
    "too-deep": (build(b"[" * 100_000 + b"]" * 100_000), "not JSON"),
    "entry-is-a-number": (build({"w": 3}), "'w'.*expected an object"),
    "dtype": (build({"w": {**F32, "dtype": "F31"}}, b"0" * 8), "'w'.*unknown dtype 'F31'"),
    "dtype-is-a-list": (build({"w": {**F32, "dtype": ["F32"]}}, b"0" * 8), "'w'.*unknown dtype"),
    "no-shape": (build({"w": {"dtype": "F32", "data_offsets": [0, 8]}}, b"0" * 8), "'w'.*shape"),
    "negative": (build({"w": {**F32, "shape": [-2]}}, b"0" * 8), "'w'.*shape"),
    "a-float": (build({"w": {**F32, "shape": [2.0]}}, b"0" * 8), "'w'.*shape"),
    "a-bool": (build({"w": {**F32, "shape": [True, 2]}}, b"0" * 8), "'w'.*shape"),
    "offsets": (build({"w": {**F32, "data_offsets": [0]}}, b"0" * 8), "'w'.*data_offsets"),
    "negative-offsets": (build({"w": {**F32, "data_offsets": [-8, 0]}}, b"0" * 8), "data_offsets"),
    "backwards": (build({"w": {**F32, "data_offsets": [8, 0]}}, b"0" * 8), "'w'.*needs 8"),
    "wrong-size": (build({"w": {**F32, "shape": [3]}}, b"0" * 8), "'w'.*needs 12"),
    "overflow": (build({"w": {**F32, "shape": [2**40, 2**40]}}, b"0" * 8), "'w'.*needs"),
    "cut-short": (build({"w": F32}, b"0" * 7), "'w'.*cut short"),
    "overlap": (build({"v": F32, "w": {**F32, "data_offsets": [4, 12]}}, b"0" * 12), "overlap"),
    "a-hole": (build({"v": F32, "w": {**F32, "data_offsets": [12, 20]}}, b"0" * 20), "no array"),
    "left-over": (build({"w": F32}, b"0" * 9), "no array"),
    "twice": (build(b'{"w": %b, "w": %b}' % ((json.dumps(F32).encode(),) * 2), b"0" * 8), "twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file(name, tmp_path):
    content, message = BROKEN[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as error:
        load_numpy(path)
    assert "bad.safetensors" in str(error.value)
    if name != "twice":  # the reference refuses the rest too
        with pytest.raises(Exception):  # noqa: B017
            safetensors.numpy.load_file(path)


def test_every_cut_of_a_file_is_refused(tmp_path):
    whole = tmp_path / "whole"
    io.save_file({"w": np.arange(6.0), "b": np.arange(3)}, whole)
    content = whole.read_bytes()
    for n in range(0, len(content), 3):
        (tmp_path / "cut").write_bytes(content[:n])
        with pytest.raises(FileError):
            load_numpy(tmp_path / "cut")


def test_a_template_that_does_not_fit():
    arrays = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    template = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}
    assert tree.structure(restore_like(template, arrays)) == tree.structure(template)
    with pytest.raises(FileError, match="missing c"):
        restore_like({**template, "c": jnp.zeros(1)}, arrays)
    with pytest.raises(FileError, match="unexpected b"):
        restore_like({"w": template["w"]}, arrays)
    with pytest.raises(FileError, match="'w' is float32.*expected float32"):
        restore_like({**template, "w": jnp.zeros((3, 2))}, arrays)
    with pytest.raises(FileError, match="'b'"):
        restore_like({**template, "b": jnp.zeros(3, jnp.bfloat16)}, arrays)


def test_names_are_paths():
    value = {"layers": [{"w": 1, "b": 2}], "head": (3,)}
    assert flat_names(value) == {"layers.0.w": 1, "layers.0.b": 2, "head.0": 3}


def test_writing_is_atomic(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), io.atomic_write(path) as f:
        f.write(b"half of it")
        raise RuntimeError
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["x"]
    with io.atomic_write(path) as f:
        f.write(b"after")
    assert path.read_bytes() == b"after" and os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["nowhere/x", "folder"])
def test_a_failed_write_names_the_file_that_was_asked_for(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as raised, io.atomic_write(tmp_path / name) as f:
        f.write(b"x")
    assert raised.value.filename == str(tmp_path / name) and raised.value.filename2 is None
    assert os.listdir(tmp_path) == ["folder"]


# ---- checkpoints ----


def state_of(step, size=1000):
    return {
        "params": {"w": random.normal(random.key(step), (size,)), "b": jnp.zeros(3, jnp.bfloat16)},
        "step": jnp.asarray(step, jnp.int32),
        "key": random.key(step),
    }


def words(x):
    return np.asarray(random.key_data(x) if isinstance(x, random.Key) else x)


def same(a, b):
    return tree.structure(a) == tree.structure(b) and all(
        x.dtype == y.dtype and words(x).tobytes() == words(y).tobytes()
        for x, y in zip(tree.leaves(a), tree.leaves(b))
    )


def test_save_and_restore(tmp_path):
    assert io.steps(tmp_path / "nothing") == []
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        io.restore(tmp_path, state_of(0))
    for step in (1, 5, 30):
        io.save(tmp_path, step, state_of(step), {"loss": 0.1 * step}, keep=2)
    assert io.steps(tmp_path) == [5, 30]
    state, step, values = io.restore(tmp_path, state_of(0))
    assert step == 30 and values == {"loss": 3.0} and same(state, state_of(30))
    state, step, _ = io.restore(tmp_path, state_of(0), step=5)
    assert step == 5 and same(state, state_of(5))
    io.save(tmp_path, 30, state_of(31))  # again, under the same name
    assert same(io.restore(tmp_path, state_of(0))[0], state_of(31))
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000005", "step-00000030"]
    with pytest.raises(FileNotFoundError, match="step 6"):
        io.restore(tmp_path, state_of(0), step=6)


def test_damaged_checkpoints(tmp_path):
    folder = io.save(tmp_path, 1, state_of(1))
    file, manifest = (
        os.path.join(folder, "state.safetensors"),
        os.path.join(folder, "manifest.json"),
    )
    with open(file, "r+b") as f:
        f.seek(-3, os.SEEK_END)
        f.write(b"!")
    with pytest.raises(FileError, match="damaged"):
        io.restore(tmp_path, state_of(0))
    os.truncate(file, 100)
    with pytest.raises(FileError, match="cut short"):
        io.restore(tmp_path, state_of(0))
    good = json.loads(open(manifest).read())
    for change, message in (
        ({"format": 3}, "newer"),
        ({"files": {"state.safetensors": {"bytes": "x"}}}, "'bytes'"),
        ({"files": {"state.safetensors": {"bytes": 3}}}, "'sha256'"),
        ({"files": {"../state.safetensors": {}}}, "expected the name of a safetensors file"),
        ({"leaves": []}, "'leaves'"),
        ({"values": []}, "'values'"),
    ):
        open(manifest, "w").write(json.dumps({**good, **change}))
        with pytest.raises(FileError, match=message):
            io.restore(tmp_path, state_of(0))
    for text in ("", "[]", "{"):
        open(manifest, "w").write(text)
        with pytest.raises(FileError, match="manifest.json"):
            io.restore(tmp_path, state_of(0))
    with pytest.raises(FileError, match="missing"):
        io.save(tmp_path, 2, state_of(2))
        io.restore(tmp_path, {**state_of(0), "more": jnp.zeros(1)})


def test_async_saver(tmp_path):
    saver = io.AsyncSaver(tmp_path, keep=2)
    for step in range(4):
        saver.save(step, state_of(step))
    saver.wait()
    assert io.steps(tmp_path) == [2, 3]
    assert same(io.restore(tmp_path, state_of(0))[0], state_of(3))
    blocked = tmp_path / "file"
    blocked.write_text("")
    saver = io.AsyncSaver(blocked)
    saver.save(0, state_of(0))
    with pytest.raises(OSError):
        saver.wait()
    saver.wait()  # reported once


def test_a_kill_between_the_two_renames(tmp_path):
    folder = io.save(tmp_path, 4, state_of(4))
    aside = tmp_path / ".replaced-abc"
    aside.mkdir()
    os.rename(folder, aside / "step-00000004")
    (tmp_path / ".saving-xyz").mkdir()
    with locked(str(tmp_path)), pytest.raises(FileNotFoundError):
        io.restore(tmp_path, state_of(0))  # another is in the middle of a save
    assert io.restore(tmp_path, state_of(0))[1] == 4
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000004"]


WRITER = """
import sys, numpy as np
from genesis_fn import io
step = 0
while True:
    step += 1
    io.save(sys.argv[1], step, {"w": np.full(400_000, step, np.float32)}, {"step": step}, keep=3)
    print(step, flush=True)
"""


def test_a_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    template = {"w": jnp.zeros(400_000)}
    for i in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(3):
            said = int(process.stdout.readline())
        time.sleep(0.003 * i)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        state, step, values = io.restore(tmp_path, template)
        assert step >= said and values == {"step": step}
        assert (np.asarray(state["w"]) == step).all()
    # What the killed writers left behind is cleared away by the next save.
    io.save(tmp_path, 10**6, template, keep=1)
    assert io.steps(tmp_path) == [10**6]
    assert not [n for n in os.listdir(tmp_path) if n.startswith(".saving")]
