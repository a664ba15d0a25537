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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def file_sum(path: str) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"bytes": os.path.getsize(path), "sha256": digest(path)}


def leaf_entry(dtype: Any, shape: tuple[int, ...], pieces: Iterable[Piece]) -> dict[str, Any]:
    """What a manifest says of an array."""
    parts = [
        {"file": p.file, "name": p.name, "start": list(p.start), "shape": list(p.shape)}
        for p in pieces
    ]
    return {"dtype": str(dtype), "shape": list(shape), "pieces": parts}


def whole_leaves(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The entries of arrays that STATE holds whole."""
    return {
        name: leaf_entry(x.dtype, x.shape, [Piece(STATE, name, (0,) * x.ndim, x.shape)])
        for name, x in arrays.items()
    }


def write_manifest(
    folder: str,
    step: int,
    files: dict[str, Any],
    leaves: dict[str, Any],
    values: dict[str, Any],
    keys: dict[str, str],
    structure: str,
) -> None:
    """Describe the files of a folder, by `file_sum`, and the arrays in them, by `leaf_entry`.

    Raises OSError naming the file.
    """
    manifest = {
        "format": _FORMAT,
        "step": step,
        "values": values,
        "files": files,
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


class StoredArray:
    """An array of pieces, which are views of files: what is asked of it is read, and no more."""

    def __init__(self, leaf: Leaf, parts: Sequence[np.ndarray]) -> None:
        self.shape, self.dtype = leaf.shape, parts[0].dtype
        self.pieces = list(zip(leaf.pieces, parts, strict=True))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        """The values of slices of unit step, or of all (`...`)."""
        slices = (slice(None),) * self.ndim if index is ... else index
        bounds = [s.indices(n)[:2] for s, n in zip(slices, self.shape, strict=True)]
        wanted = tuple([max(b - a, 0) for a, b in bounds])
        result: np.ndarray | None = None
        for piece, x in self.pieces:
            both = [
                (max(a, at), min(b, at + n))
                for (a, b), at, n in zip(bounds, piece.start, piece.shape)
            ]
            if any(a >= b for a, b in both):
                continue
            part = x[tuple(slice(a - at, b - at) for (a, b), at in zip(both, piece.start))]
            if part.shape == wanted:
                return part
            if result is None:
                result = np.empty(wanted, self.dtype)
            result[tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(both, bounds))] = part
        return np.empty(wanted, self.dtype) if result is None else result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype)

    def item(self) -> Any:
        """The number that it is."""
        return self[...].item()


def check_files(folder: str, files: Mapping[str, tuple[int, str]]) -> None:
    """Raise FileError naming a file that is damaged."""
    for name, (size, checksum) in files.items():
        file = os.path.join(folder, name)
        if not os.path.isfile(file) or os.path.getsize(file) != size:
            raise FileError(f"{file}: missing or cut short; expected {brief(size)} bytes")
        if digest(file) != checksum:
            raise FileError(f"{file}: damaged, its checksum differs from the manifest's")


def read_arrays(folder: str, manifest: Manifest) -> Mapping[str, np.ndarray | StoredArray]:
    """The arrays of a checkpoint by name, none of whose numbers is read yet.

    Raises FileError naming an array whose pieces do not make it.
    """
    tensors: dict[tuple[str, str], np.ndarray] = {}
    for name in manifest.files:
        found = load_numpy(os.path.join(folder, name))
        tensors |= {(name, tensor): x for tensor, x in found.items()}
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


def _assembled(
    leaf: Leaf, tensors: dict[tuple[str, str], np.ndarray], where: str
) -> np.ndarray | StoredArray:
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
    for piece in _overlapping(leaf):
        raise FileError(f"{where}: {piece} overlaps a piece before it")
    return StoredArray(leaf, parts)  # as many numbers as it has, and none twice: there is no gap


def _overlapping(leaf: Leaf) -> Iterator[Piece]:
    """The pieces that have a number which one before them has, too."""
    count = len(leaf.pieces)
    start = np.array([p.start for p in leaf.pieces], np.int64).reshape(count, len(leaf.shape))
    end = start + np.array([p.shape for p in leaf.pieces], np.int64).reshape(start.shape)
    for i in range(1, count):
        apart = np.maximum(start[:i], start[i]) >= np.minimum(end[:i], end[i])
        if not apart.any(axis=1).all():
            yield leaf.pieces[i]
