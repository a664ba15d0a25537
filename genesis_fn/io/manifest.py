"""The manifest of a checkpoint: which files it has, and which slice of which array each holds.

An array is made of pieces. A piece is a tensor in a file, that begins at an offset in every axis;
together the pieces cover the array, and none of its numbers twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, open_plain, read_json
from genesis_fn.io.safetensors import atomic_write, load_numpy

NAME = "manifest.json"
STATE = "state.safetensors"
_FORMAT = 2  # 1 had one file, and every array whole in it
_LARGEST = 100_000_000  # bytes
_MAX_AXES = 64


@dataclasses.dataclass(frozen=True)
class Piece:
    """A tensor of a file, and where it begins in the array that it is a part of."""

    file: str
    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor {brief(self.name)} of {self.file} at {brief(list(self.start))}"

    @property
    def place(self) -> tuple[slice, ...]:
        """The part of the array that it is."""
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True))


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array as a whole, and its pieces."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a manifest says.

    Args:
        step: of the checkpoint.
        values: plain values by name.
        keys: implementations of the random keys, by the names of their arrays.
        files: {file: (bytes, sha256)}.
        leaves: the arrays by name; None in format 1, where every tensor is an array.
    """

    step: int
    values: dict[str, Any]
    keys: dict[str, str]
    files: dict[str, tuple[int, str]]
    leaves: dict[str, Leaf] | None


def write_manifest(
    folder: str,
    step: int,
    arrays: Mapping[str, np.ndarray],
    values: dict[str, Any],
    keys: dict[str, str],
    structure: str,
) -> None:
    """Describe a folder whose STATE holds every array whole. Raises OSError naming the file."""
    file = os.path.join(folder, STATE)
    leaves = {
        name: {
            "dtype": str(x.dtype),
            "shape": list(x.shape),
            "pieces": [
                {"file": STATE, "name": name, "start": [0] * x.ndim, "shape": list(x.shape)}
            ],
        }
        for name, x in arrays.items()
    }
    manifest = {
        "format": _FORMAT,
        "step": step,
        "values": values,
        "files": {STATE: {"bytes": os.path.getsize(file), "sha256": digest(file)}},
        "structure": structure,
        "keys": keys,
        "leaves": leaves,
    }
    with atomic_write(os.path.join(folder, NAME)) as f:
        f.write(json.dumps(manifest, indent=1).encode())


def digest(path: str) -> str:
    """The SHA-256 of a file."""
    with open_plain(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# ---- reading ----


def read_manifest(folder: str) -> Manifest:
    """The manifest of a checkpoint. Raises FileError naming a bad field."""
    path = os.path.join(folder, NAME)
    try:
        found = read_json(path, _LARGEST)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    version = _field(found, "format", int, path)
    if version not in (1, _FORMAT):
        raise FileError(f"{path}: format {brief(version)} is newer than this library reads")
    step = _field(found, "step", int, path)
    values = _field(found, "values", dict, path)
    keys = _field({"keys": {}, **found}, "keys", dict, path)
    if version == 1:
        files, leaves = {STATE: _sum(found, path)}, None
    else:
        files = {
            _file_name(name, f"{path}: field 'files'"): _sum(entry, f"{path}: file {brief(name)}")
            for name, entry in _field(found, "files", dict, path).items()
        }
        leaves = {
            name: _leaf(entry, files, f"{path}: array {brief(name)}")
            for name, entry in _field(found, "leaves", dict, path).items()
        }
    return Manifest(step, values, keys, files, leaves)


def _field(entry: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(entry, dict):
        raise FileError(f"{where}: {brief(entry)}, expected an object")
    value = entry.get(name)
    if type(value) is not kind:
        raise FileError(f"{where}: field {name!r} is {brief(value)}, expected {kind.__name__}")
    return value


def _sum(entry: Any, where: str) -> tuple[int, str]:
    return _field(entry, "bytes", int, where), _field(entry, "sha256", str, where)


def _file_name(name: str, where: str) -> str:
    plain = os.path.basename(name) == name and name.isprintable() and len(name) < 256
    if not plain or not name.endswith(".safetensors"):
        raise FileError(f"{where} has {brief(name)}, expected the name of a safetensors file")
    return name


def _leaf(entry: Any, files: Mapping[str, Any], where: str) -> Leaf:
    dtype = _field(entry, "dtype", str, where)
    shape = _sizes(entry, "shape", where)
    pieces = []
    for found in _field(entry, "pieces", list, where):
        file, name = _field(found, "file", str, where), _field(found, "name", str, where)
        if file not in files:
            raise FileError(f"{where}: a piece is in {brief(file)}, which field 'files' lacks")
        piece = Piece(file, name, _sizes(found, "start", where), _sizes(found, "shape", where))
        if not len(piece.start) == len(piece.shape) == len(shape) or any(
            a + n > size for a, n, size in zip(piece.start, piece.shape, shape)
        ):
            raise FileError(
                f"{where}: {piece} with shape {brief(list(piece.shape))} does not lie in shape "
                f"{brief(list(shape))}"
            )
        pieces.append(piece)
    return Leaf(dtype, shape, tuple(pieces))


def _sizes(entry: Any, name: str, where: str) -> tuple[int, ...]:
    value = _field(entry, name, list, where)
    if len(value) > _MAX_AXES or not all(type(n) is int and 0 <= n < 2**62 for n in value):
        raise FileError(f"{where}: field {name!r} is {brief(value)}, expected a list of sizes")
    return tuple(value)


def read_arrays(folder: str, manifest: Manifest) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by name; those of one piece are views of its file.

    Raises FileError naming a file that is damaged, or an array whose pieces do not make it.
    """
    tensors: dict[tuple[str, str], np.ndarray] = {}
    for name, (size, checksum) in manifest.files.items():
        file = os.path.join(folder, name)
        if not os.path.isfile(file) or os.path.getsize(file) != size:
            raise FileError(f"{file}: missing or cut short; expected {brief(size)} bytes")
        if digest(file) != checksum:
            raise FileError(f"{file}: damaged, its checksum differs from the manifest's")
        tensors |= {(name, tensor): x for tensor, x in load_numpy(file).items()}
    if manifest.leaves is None:
        return {name: x for (_, name), x in tensors.items()}
    path = os.path.join(folder, NAME)
    # Each tensor is taken once, so that arrays are together no larger than the files.
    arrays = {
        name: _assembled(leaf, tensors, f"{path}: array {brief(name)}")
        for name, leaf in manifest.leaves.items()
    }
    for file, name in tensors:
        raise FileError(f"{path}: tensor {brief(name)} of {file} belongs to no array")
    return arrays


def _assembled(leaf: Leaf, tensors: dict[tuple[str, str], np.ndarray], where: str) -> np.ndarray:
    """An array of its pieces, whose tensors are taken out of `tensors`."""
    parts: list[np.ndarray] = []
    for piece in leaf.pieces:
        x = tensors.pop((piece.file, piece.name), None)
        if x is None:
            raise FileError(f"{where}: {piece} is missing, or a piece of two arrays")
        if str(x.dtype) != leaf.dtype or x.shape != piece.shape:
            raise FileError(
                f"{where}: {piece} is {x.dtype}{brief(list(x.shape))}, expected "
                f"{brief(leaf.dtype)} {brief(list(piece.shape))}"
            )
        parts.append(x)
    if len(parts) == 1 and leaf.pieces[0].shape == leaf.shape:
        return parts[0]
    total, held = math.prod(leaf.shape), sum(x.size for x in parts)
    if not parts or held < total:
        raise FileError(f"{where}: its pieces hold {held:,} of {brief(total)} numbers: a gap")
    covered = np.zeros(leaf.shape, bool)
    whole = np.empty(leaf.shape, parts[0].dtype)
    for piece, x in zip(leaf.pieces, parts, strict=True):
        if covered[piece.place].any():
            raise FileError(f"{where}: {piece} overlaps a piece before it")
        covered[piece.place] = True
        whole[piece.place] = x
    return whole  # as many numbers as it has, and none twice: there is no gap
