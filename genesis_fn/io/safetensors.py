"""Pytrees of arrays in safetensors files: named, typed, without pickle.

The format (huggingface/safetensors): eight bytes of header length, a JSON header of
{name: {dtype, shape, data_offsets}}, then the arrays' bytes. Files are read by memory map and
written to a temporary file in the target's folder, flushed to disk, and renamed.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.device import Device
from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.core.files import brief, open_plain, parse_json
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.types.annotations import Array, ArrayLike, PyTree

_CODES = {
    "BOOL": dtypes.BOOL, "U8": dtypes.U8, "I8": dtypes.I8, "U16": dtypes.U16, "I16": dtypes.I16,
    "U32": dtypes.U32, "I32": dtypes.I32, "U64": dtypes.U64, "I64": dtypes.I64,
    "F8_E4M3": dtypes.F8E4, "F8_E5M2": dtypes.F8E5, "BF16": dtypes.BF16, "F16": dtypes.F16,
    "F32": dtypes.F32, "F64": dtypes.F64, "C64": dtypes.C64,
}  # fmt: skip
_NAMES = {d: code for code, d in _CODES.items()}
_MAX_HEADER = 100_000_000
_MAX_AXES = 64  # NumPy's


def flat_names(value: PyTree, separator: str = ".") -> dict[str, Any]:
    """{dotted path: leaf} of a pytree, as checkpoint files name arrays.

    Raises ValueError where two leaves have one name, as of `{"a.b": x, "a": {"b": y}}`.
    """
    named: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, x in tree.leaves_with_path(value):
        name = tree.keystr(path, simple=True, separator=separator)
        if name in named:
            raise ValueError(
                f"two leaves have the name {brief(name)} in a file: {tree.keystr(paths[name])} and "
                f"{tree.keystr(path)}; rename a dictionary key"
            )
        named[name], paths[name] = x, path
    return named


def save_file(
    arrays: Mapping[str, ArrayLike],
    path: str | os.PathLike[str],
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write named arrays as a safetensors file, whole or not at all.

    Args:
        arrays: arrays by name.
        path: the file; one that exists is replaced.
        metadata: texts by name, stored with the arrays; None stores none.

    Raises:
        ArgumentError: `arrays` is no mapping, or one of them is a dict itself.
        FileError: the format has no code for an array's dtype, or reserves its name.
        OSError: writing failed; names the file.

    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> save_file({"w": jnp.arange(3)}, path)
    >>> load_file(path)
    {'w': Array([0, 1, 2], dtype=int32)}
    """
    if not isinstance(arrays, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"save_file(arrays, path) takes a dict of arrays first, got a {type(arrays).__name__}"
        )
    if "__metadata__" in arrays:
        raise FileError(f"{path}: '__metadata__' is no name for an array, the format reserves it")
    for name, x in arrays.items():
        if isinstance(x, Mapping):
            raise ArgumentError(
                f"{path}: {brief(name)} is a dict, and a file has arrays by name only\n"
                "  io.save stores trees; or give one name to each array"
            )
    values = {n: np.asarray(x, order="C") for n, x in arrays.items()}  # 0-d arrays stay so
    order = sorted(values, key=lambda n: (-values[n].dtype.itemsize, n))
    write_arrays(
        path,
        [(n, values[n].dtype, values[n].shape) for n in order],
        (values[n] for n in order),
        metadata,
    )


def write_arrays(
    path: str | os.PathLike[str],
    table: Iterable[tuple[str, dtypes.DType, tuple[int, ...]]],
    values: Iterable[np.ndarray],
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write a safetensors file of arrays that are made one by one, whole or not at all.

    Args:
        path: the file; one that exists is replaced.
        table: (name, dtype, shape) of each array; those of larger dtypes come first, which aligns
            them all.
        values: the arrays in the same order, C-contiguous; the next is asked for when the one
            before is written.
        metadata: texts by name; None stores none.

    Raises FileError for a dtype without a code.
    """
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = {str(k): str(v) for k, v in metadata.items()}
    offset = 0
    for name, dtype, shape in table:
        if dtype not in _NAMES:
            raise FileError(f"{path}: array {brief(name)} of dtype {dtype} has no safetensors code")
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))

    def __enter__(self) -> BinaryIO:
        folder, name = os.path.split(self.path)
        try:
            handle, self.temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        except OSError as failed:
            failed.filename = self.path  # nobody asked for a temporary file
            raise
        self.file = os.fdopen(handle, "wb")
        return self.file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
                self.file.close()
                os.chmod(self.temporary, 0o644)
                os.replace(self.temporary, self.path)
                sync_folder(os.path.dirname(self.path))
                return
        except OSError as failed:
            self._discard()
            failed.filename, failed.filename2 = self.path, None
            raise
        self._discard()
        if isinstance(error, OSError):
            name_file(error, self.path)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # what it still held does not fit on the disk
            self.file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)


def name_file(error: OSError, path: str) -> None:
    """Set the file name of an error that has none, such as that of a full disk."""
    if error.filename is None and error.errno is not None:
        error.filename = path


def sync_folder(path: str) -> None:
    """Make renames in a folder durable. Raises OSError naming it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        name_file(error, path)
        raise
    finally:
        os.close(handle)


class DataFile(NamedTuple):
    """A file as it was when its header was read."""

    path: str
    version: tuple[int, ...]

    def open(self) -> io.BufferedReader:
        """The file, open for reading. Raises FileError if it is another since."""
        f = open_plain(self.path)
        if file_version(f) != self.version:
            f.close()
            raise FileError(f"{self.path}: changed while it was read")
        return f


class FileSpan(NamedTuple):
    """Bytes of a file."""

    file: DataFile
    start: int
    size: int


class Entry(NamedTuple):
    """What a header says of an array."""

    dtype: dtypes.DType
    shape: tuple[int, ...]
    span: FileSpan


def file_version(f: io.BufferedReader) -> tuple[int, ...]:
    """What is another number when a file is changed or replaced."""
    s = os.fstat(f.fileno())
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


def _read_header(f: io.BufferedReader, path: str) -> tuple[dict[str, Any], int]:
    """(header, byte at which the data starts)."""
    total = os.fstat(f.fileno()).st_size
    head = f.read(8)
    if len(head) < 8:
        raise FileError(f"{path}: {len(head)} bytes, too short for a safetensors file")
    (size,) = struct.unpack("<Q", head)
    if size > min(_MAX_HEADER, total - 8):
        raise FileError(f"{path}: the header claims {size} bytes, the file has {total - 8} more")
    return parse_json(f.read(size), f"{path}: the header"), 8 + size


def _entries(f: io.BufferedReader, path: str) -> dict[str, Entry]:
    version = file_version(f)
    header, base = _read_header(f, path)
    _metadata(header, path)
    available = version[2] - base
    file, found, spans = DataFile(path, version), {}, []
    for name, entry in header.items():
        dtype, shape, start, end = _parse_entry(name, entry, available, path)
        spans.append((start, end, name))
        found[name] = Entry(dtype, shape, FileSpan(file, base + start, end - start))
    _check_coverage(sorted(spans), available, path)
    return found


def read_entries(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """{name: dtype, shape and place} of a file's arrays, from its header alone.

    Raises FileError for a malformed file.
    """
    path = os.fspath(path)
    with open_plain(path) as f:
        return _entries(f, path)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _bytes_of(shape: list[int], itemsize: int, limit: int) -> int:
    """The bytes of an array, or a number above `limit`: the product of thousands of sizes, which a
    malicious file may have, would have millions of digits."""
    if 0 in shape:
        return 0
    total = itemsize
    for n in shape:
        total *= n
        if total > limit:
            break
    return total


def _parse_entry(
    name: str, entry: Any, available: int, path: str
) -> tuple[Any, tuple[Any, ...], int, int]:
    where = f"{path}: array {brief(name)}"
    if not isinstance(entry, dict):
        raise FileError(f"{where}: its entry is {brief(entry)}, expected an object")
    code, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(code, str) or code not in _CODES:
        raise FileError(f"{where}: unknown dtype {brief(code)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise FileError(f"{where}: shape is {brief(shape)}, expected a list of sizes")
    if len(shape) > _MAX_AXES or max(shape, default=0) >= 2**62:
        raise FileError(f"{where}: shape {brief(shape)} is larger than any array's")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise FileError(f"{where}: data_offsets is {brief(offsets)}, expected [start, end]")
    start, end = offsets
    wanted = _bytes_of(shape, _CODES[code].itemsize, max(end - start, 1 << 62))
    if end - start != wanted:
        raise FileError(
            f"{where}: {brief(end - start)} bytes for shape {brief(shape)} of {code}, needs "
            f"{brief(wanted)}"
        )
    if end > available:
        raise FileError(f"{where}: ends at byte {brief(end)} of {available}; the file is cut short")
    return _CODES[code], tuple(shape), start, end


def load_numpy(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of a file by name, as read-only views of its memory map.

    Raises FileError for a malformed file, before anything is returned.
    """
    path = os.fspath(path)
    with open_plain(path) as f:
        entries = _entries(f, path)
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    result = {}
    for name, (dtype, shape, span) in entries.items():
        raw = np.frombuffer(data, np.uint8, span.size, span.start)
        if dtype == dtypes.BOOL and raw.max(initial=0) > 1:
            raise FileError(f"{path}: array {brief(name)}: a byte of a boolean is neither 0 nor 1")
        result[name] = raw.view(dtype).reshape(shape)
    return result


def _check_coverage(spans: list[tuple[int, int, str]], size: int, path: str) -> None:
    """Raises FileError where arrays overlap or bytes belong to none."""
    at, before = 0, ""
    for start, end, name in spans:
        if start < at:
            raise FileError(f"{path}: arrays {brief(before)} and {brief(name)} overlap")
        if start > at:
            raise FileError(f"{path}: bytes {at} to {start} of the data belong to no array")
        at, before = end, name
    if at != size:
        raise FileError(f"{path}: bytes {at} to {size} of the data belong to no array")


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a safetensors file, from its header alone.

    Args:
        path: the file.

    Returns:
        {name: text}, as `save_file` was given them; empty where there are none.

    Raises:
        FileError: the file is malformed.

    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> save_file({"w": jnp.arange(3)}, path, {"step": 7})
    >>> load_metadata(path)
    {'step': '7'}
    """
    path = os.fspath(path)
    with open_plain(path) as f:
        header, _ = _read_header(f, path)
    return _metadata(header, path)


def _metadata(header: dict[str, Any], path: str) -> dict[str, str]:
    """The header's metadata, taken out of it."""
    found = header.pop("__metadata__", {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise FileError(f"{path}: __metadata__ is {brief(found)}, expected names and strings")
    return found


def load_file(path: str | os.PathLike[str], device: Device | None = None) -> dict[str, Array]:
    """The arrays of a safetensors file.

    Args:
        path: the file.
        device: where the arrays go; None means the default device.

    Returns:
        {name: array}.

    Raises:
        FileError: the file is malformed.

    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> save_file({"w": jnp.arange(3)}, path)
    >>> load_file(path)["w"]
    Array([0, 1, 2], dtype=int32)
    """
    return {name: from_numpy(x, device) for name, x in load_numpy(path).items()}


def restore_like(
    template: PyTree,
    arrays: Mapping[str, Any],
    path: str | os.PathLike[str] = "",
    prefix: str = "",
    laid_out: Callable[[Any, NamedSharding], Any] | None = None,
) -> PyTree:
    """The pytree of `template` with the named arrays in place of its leaves.

    A Python number in the template is restored as one; what is over a mesh there becomes what
    `laid_out` makes of the values. Raises FileError naming arrays that are
    missing, left over, or of another shape or dtype.
    """
    names = [prefix + n for n in flat_names(template)]
    leaves, treedef = tree.flatten(template)
    missing = [n for n in names if n not in arrays]
    wanted = set(names)
    extra = [n for n in arrays if n.startswith(prefix) and n not in wanted]
    if missing or extra:
        both = [("missing", missing), ("unexpected", extra)]
        parts = [
            f"{word} {', '.join(_short(n) for n in found[:3])}" + (" ..." if len(found) > 3 else "")
            for word, found in both
            if found
        ]
        raise FileError(f"{path}: {'; '.join(parts)}")
    restored = []
    for name, leaf in zip(names, leaves):
        x = arrays[name]
        number = type(leaf) in (bool, int, float)  # NumPy's scalars are arrays
        like = np.asarray(leaf) if number else leaf
        if tuple(x.shape) != tuple(like.shape) or x.dtype != like.dtype:
            raise FileError(
                f"{path}: array {brief(name)} is {x.dtype}{brief(list(x.shape))}, expected "
                f"{like.dtype}{list(like.shape)}"
            )
        device = getattr(leaf, "device", None)  # of an ndarray it is a string
        if laid_out is not None and type(device) is NamedSharding:
            restored.append(laid_out(x, device))
            continue
        device = device if isinstance(device, Device) else None
        restored.append(x.item() if number else from_numpy(np.asarray(x), device))
    return tree.unflatten(treedef, restored)


def _short(name: str) -> str:
    return name if len(name) <= 200 else brief(name)
