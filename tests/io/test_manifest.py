"""Checkpoints whose manifests say what is where: split by hand, in pieces that do not fit, old."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import io, random
from genesis_fn.errors import FileError

STATE = {
    "w": jnp.arange(24.0).reshape(4, 6),
    "b": jnp.arange(5).astype("bfloat16"),
    "n": jnp.asarray(7),
    "e": jnp.zeros((0, 3)),
    "key": random.key(3),
}
# The pieces of w: (file, first row, rows, first column, columns).
QUARTERS = [("a", 0, 3, 0, 2), ("b", 0, 3, 2, 4), ("a", 3, 1, 0, 5), ("c", 3, 1, 5, 1)]


def split(root, quarters=QUARTERS):
    """A checkpoint whose w lies in several files; its folder and its manifest."""
    folder = root / "step-00000001"
    io.save(root, 1, STATE, {"loss": 1.5})
    manifest = json.loads((folder / "manifest.json").read_text())
    arrays = {n: np.asarray(x) for n, x in io.load_file(folder / "state.safetensors").items()}
    w = arrays.pop("w")
    files = {"a": {}, "b": {}, "c": {}, "state": arrays}
    pieces = manifest["leaves"]["w"]["pieces"] = []
    for i, (file, row, rows, column, columns) in enumerate(quarters):
        name = f"w.{i}"
        files[file][name] = w[row : row + rows, column : column + columns]
        pieces.append({"file": f"{file}.safetensors", "name": name, "start": [row, column],
                       "shape": [rows, columns]})  # fmt: skip
    for name, content in files.items():
        path = folder / f"{name}.safetensors"
        io.save_file(content, path)
        manifest["files"][path.name] = {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder, manifest


def check(root):
    found, step, values = io.restore(root, STATE)
    assert step == 1 and values == {"loss": 1.5}
    for name, x in STATE.items():
        before, now = [random.key_data(v) if name == "key" else v for v in (x, found[name])]
        assert before.dtype == now.dtype and before.shape == now.shape
        assert np.asarray(before).tobytes() == np.asarray(now).tobytes(), name


def test_a_manifest_names_the_place_of_every_array(tmp_path):
    io.save(tmp_path, 1, STATE)
    leaves = json.loads((tmp_path / "step-00000001" / "manifest.json").read_text())["leaves"]
    assert set(leaves) == set(STATE)
    piece = {"file": "state.safetensors", "name": "w", "start": [0, 0], "shape": [4, 6]}
    assert leaves["w"] == {"dtype": "float32", "shape": [4, 6], "pieces": [piece]}
    assert leaves["b"]["dtype"] == "bfloat16" and leaves["n"]["pieces"][0]["start"] == []


def test_pieces_of_several_files_are_put_together(tmp_path):
    split(tmp_path)
    check(tmp_path)


@pytest.mark.parametrize("quarters, message", [
    (QUARTERS[:3], "array 'w': its pieces hold 23 of 24 numbers: a gap"),
    ([*QUARTERS[:3], ("c", 3, 1, 4, 1)], r"array 'w': tensor 'w\.3' of c\.\w+ at \[3, 4\] overlap"),
    ([*QUARTERS, ("c", 0, 1, 0, 1)], r"array 'w': tensor 'w\.4' of c\.\w+ at \[0, 0\] overlap"),
    ([], "array 'w': its pieces hold 0 of 24 numbers"),
], ids=["gap", "gap and overlap", "overlap", "none"])  # fmt: skip
def test_pieces_that_do_not_make_an_array(tmp_path, quarters, message):
    split(tmp_path, quarters)
    with pytest.raises(FileError, match=message):
        io.restore(tmp_path, STATE)


@pytest.mark.parametrize("change, message", [
    (dict(name="x"), "tensor 'x' of a.safetensors at .* is missing"),
    (dict(file="d.safetensors"), "'d.safetensors', which field 'files' lacks"),
    (dict(file="../a.safetensors"), "which field 'files' lacks"),
    (dict(start=[2, 0]), r"with shape \[3, 2\] does not lie in shape \[4, 6\]"),
    (dict(start=[0]), "does not lie in shape"), (dict(start=[-1, 0]), "expected a list of sizes"),
    (dict(shape=[2, 3]), r"is float32\[3, 2\], expected 'float32' \[2, 3\]"),
    (dict(name="w.2", start=[3, 0], shape=[1, 5]), "array 'w'"),
])  # fmt: skip
def test_a_piece_that_is_not_as_the_manifest_says(tmp_path, change, message):
    folder, manifest = split(tmp_path)
    manifest["leaves"]["w"]["pieces"][0].update(change)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match=message):
        io.restore(tmp_path, STATE)


def test_arrays_that_do_not_use_up_the_files(tmp_path):
    folder, manifest = split(tmp_path)
    leaves = manifest["leaves"]
    # A size that no memory holds is refused before there is an array of it.
    leaves["e"]["shape"] = leaves["w"]["shape"] = [2**61, 2**61]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match="a gap"):
        io.restore(tmp_path, STATE)
    del leaves["w"], leaves["e"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match="belongs to no array"):
        io.restore(tmp_path, STATE)


def test_a_damaged_piece_is_named(tmp_path):
    folder, _ = split(tmp_path)
    content = bytearray((folder / "b.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "b.safetensors").write_bytes(content)
    with pytest.raises(FileError, match=r"b\.safetensors: damaged"):
        io.restore(tmp_path, STATE)
    (folder / "b.safetensors").unlink()
    with pytest.raises(FileError, match=r"b\.safetensors: missing"):
        io.restore(tmp_path, STATE)


def test_manifests_of_the_first_format_are_read(tmp_path):
    io.save(tmp_path, 1, STATE, {"loss": 1.5})
    path = tmp_path / "step-00000001" / "manifest.json"
    manifest = json.loads(path.read_text())
    (sums,) = manifest.pop("files").values()
    del manifest["leaves"]
    path.write_text(json.dumps({**manifest, **sums, "format": 1}))
    check(tmp_path)
