"""Pytrees of arrays in safetensors files: named, typed, without pickle.

The format (huggingface/safetensors): eight bytes of header length, a JSON header of
{name: {dtype, shape, data_offsets}}, then the arrays' bytes. Files are read by memory map and
written to a temporary file beside the target, flushed to disk, and renamed.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import Array, from_numpy
from genesis_fn.core.device import Device

_CODES = {
    "BOOL": dtypes.BOOL, "U8": dtypes.U8, "I8": dtypes.I8, "U16": dtypes.U16, "I16": dtypes.I16,
    "U32": dtypes.U32, "I32": dtypes.I32, "U64": dtypes.U64, "I64": dtypes.I64,
    "F8_E4M3": dtypes.F8E4, "F8_E5M2": dtypes.F8E5, "BF16": dtypes.BF16, "F16": dtypes.F16,
    "F32": dtypes.F32, "F64": dtypes.F64, "C64": dtypes.C64,
}  # fmt: skip
_NAMES = {d: code for code, d in _CODES.items()}
_MAX_HEADER = 100_000_000


class FileError(ValueError):
    """A file that is not what it should be; says which file, field and value."""


def flat_names(value: Any, separator: str = ".") -> dict[str, Any]:
    """{dotted path: leaf} of a pytree, as checkpoint files name arrays."""
    return {
        tree.keystr(path, simple=True, separator=separator): x
        for path, x in tree.leaves_with_path(value)
    }


def save_file(arrays: Mapping[str, Any], path: str | os.PathLike, metadata: Any = None) -> None:
    """Write named arrays; the file appears whole or not at all."""
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = {str(k): str(v) for k, v in metadata.items()}
    values, offset = [], 0
    for name in sorted(arrays, key=lambda n: (-np.asarray(arrays[n]).dtype.itemsize, n)):
        # Not ascontiguousarray, which makes 0-d arrays 1-d.
        x = np.asarray(arrays[name], order="C")
        if x.dtype not in _NAMES:
            raise FileError(f"{path}: array {name!r} of dtype {x.dtype} has no safetensors code")
        end = offset + x.nbytes
        header[name] = {
            "dtype": _NAMES[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [offset, end],
        }
        values.append(x)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of eight bytes
    with atomic_write(path) as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for x in values:
            f.write(x.reshape(-1).view(np.uint8).data)


class atomic_write:
    """`with atomic_write(path) as f:` the file at `path` is replaced by what was written, at the
    end and at once; after an exception it is as before."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.path.abspath(os.fspath(path))

    def __enter__(self) -> Any:
        folder, name = os.path.split(self.path)
        handle, self.temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        self.file = os.fdopen(handle, "wb")
        return self.file

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.file.close()
            os.unlink(self.temporary)
            return
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.chmod(self.temporary, 0o644)
        os.replace(self.temporary, self.path)
        sync_folder(os.path.dirname(self.path))


def sync_folder(path: str) -> None:
    """Make renames in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Repeated(Exception):
    """A JSON object with one name twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _Repeated(next(n for n, _ in pairs if n in seen or seen.add(n)))
    return found


def _header(data: mmap.mmap | bytes, path: str) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise FileError(f"{path}: {len(data)} bytes are too few for a safetensors file")
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(_MAX_HEADER, len(data) - 8):
        rest = len(data) - 8
        raise FileError(f"{path}: the header claims {size} bytes, the file has {rest} more")
    try:
        header = json.loads(bytes(data[8 : 8 + size]), object_pairs_hook=_object)
    except _Repeated as error:
        raise FileError(f"{path}: the header has {error.args[0]!r} twice") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FileError(f"{path}: the header is not a JSON object")
    return header, 8 + size


def _checked(name: str, entry: Any, available: int, path: str) -> tuple[Any, tuple, int, int]:
    where = f"{path}: array {name!r}"
    if not isinstance(entry, dict):
        raise FileError(f"{where}: its entry is {entry!r}, expected an object")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in _CODES:
        raise FileError(f"{where}: unknown dtype {kind!r}")
    natural = lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0  # noqa: E731
    if not isinstance(shape, list) or not all(map(natural, shape)):
        raise FileError(f"{where}: shape is {shape!r}, expected a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(natural, offsets)):
        raise FileError(f"{where}: data_offsets is {offsets!r}, expected [start, end]")
    start, end = offsets
    wanted = math.prod(shape) * _CODES[kind].itemsize
    if end - start != wanted:
        raise FileError(f"{where}: {end - start} bytes for shape {shape} of {kind}, needs {wanted}")
    if end > available:
        raise FileError(f"{where}: ends at byte {end} of {available}; the file is cut short")
    return _CODES[kind], tuple(shape), start, end


def load_numpy(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays of a file by name, as read-only views of its memory map.

    Raises FileError for a malformed file, before anything is returned.
    """
    path = os.fspath(path)
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_size < 8:
            raise FileError(f"{path}: too short for a safetensors file")
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    header, base = _header(data, path)
    header.pop("__metadata__", None)
    result, spans = {}, []
    for name, entry in header.items():
        kind, shape, start, end = _checked(name, entry, len(data) - base, path)
        spans.append((start, end, name))
        raw = np.frombuffer(data, np.uint8, end - start, base + start)
        result[name] = raw.view(kind).reshape(shape)
    _covered(sorted(spans), len(data) - base, path)
    return result


def _covered(spans: list[tuple[int, int, str]], size: int, path: str) -> None:
    """Raises FileError where arrays overlap or bytes belong to none."""
    at, before = 0, ""
    for start, end, name in spans:
        if start < at:
            raise FileError(f"{path}: arrays {before!r} and {name!r} overlap")
        if start > at:
            raise FileError(f"{path}: bytes {at} to {start} of the data belong to no array")
        at, before = end, name
    if at != size:
        raise FileError(f"{path}: bytes {at} to {size} of the data belong to no array")


def load_metadata(path: str | os.PathLike) -> dict[str, str]:
    """The metadata of a file."""
    path = os.fspath(path)
    with open(path, "rb") as f:
        head = f.read(8)
        if len(head) < 8:
            raise FileError(f"{path}: too short for a safetensors file")
        (size,) = struct.unpack("<Q", head)
        if size > _MAX_HEADER:
            raise FileError(f"{path}: the header claims {size} bytes")
        header, _ = _header(head + f.read(size), path)
    return header.get("__metadata__", {})


def load_file(path: str | os.PathLike, device: Device | None = None) -> dict[str, Array]:
    """The arrays of a file by name, on `device`."""
    return {name: from_numpy(x, device) for name, x in load_numpy(path).items()}


def restore_like(
    template: Any, arrays: Mapping[str, np.ndarray], path: Any = "", prefix: str = ""
) -> Any:
    """The pytree of `template` with the named arrays in place of its leaves.

    Raises FileError naming arrays that are missing, left over, or of another shape or dtype.
    """
    names = [prefix + n for n in flat_names(template)]
    leaves, treedef = tree.flatten(template)
    missing = [n for n in names if n not in arrays]
    extra = [n for n in arrays if n.startswith(prefix) and n not in set(names)]
    if missing or extra:
        both = [("missing", missing), ("unexpected", extra)]
        parts = [f"{word} {', '.join(found[:3])}" + (" ..." if len(found) > 3 else "")
                 for word, found in both if found]  # fmt: skip
        raise FileError(f"{path}: {'; '.join(parts)}")
    restored = []
    for name, leaf in zip(names, leaves):
        x = arrays[name]
        if tuple(x.shape) != tuple(leaf.shape) or x.dtype != leaf.dtype:
            raise FileError(
                f"{path}: array {name!r} is {x.dtype}{list(x.shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}"
            )
        restored.append(from_numpy(x, getattr(leaf, "device", None)))
    return tree.unflatten(treedef, restored)
