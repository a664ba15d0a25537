"""The arrays of a model's folder: one safetensors file, or several and their index."""

from __future__ import annotations

import os
import re

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_json
from genesis_fn.io.safetensors import Entry, read_entries

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{1,9}-of-\d{1,9}\.safetensors")
_LARGEST_INDEX = 1 << 25  # bytes; those of the largest models have some millions


def shard_name(number: int, count: int) -> str:
    """The name of a file of several, counted from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def read_folder(folder: str) -> dict[str, Entry]:
    """{name: dtype, shape and place} of all arrays of a folder, from the files' headers alone.

    Each array is in the file that the index names. Raises FileError naming file and array.
    """
    single, index = os.path.join(folder, SINGLE), os.path.join(folder, INDEX)
    if not os.path.lexists(index):
        if not os.path.lexists(single):
            raise FileError(_nothing(folder))
        return read_entries(single)
    table = _weight_map(index)
    if os.path.exists(single) and SINGLE not in table.values():
        raise FileError(
            f"{folder}: both {SINGLE} and {INDEX} are there, and the second does not name the "
            "first: remove the one that does not count"
        )
    found: dict[str, Entry] = {}
    for file in sorted(set(table.values())):
        for name, entry in _shard(folder, file).items():
            if name not in table:
                raise FileError(f"{index}: does not list {brief(name)}, which {file} holds")
            if table[name] == file:
                found[name] = entry
    for name, file in table.items():
        if name not in found:
            raise FileError(f"{index}: lists {brief(name)}, which {file} does not hold")
    return found


def _shard(folder: str, file: str) -> dict[str, Entry]:
    path = os.path.join(folder, file)
    try:
        return read_entries(path)
    except FileNotFoundError:
        raise FileError(f"{path}: missing, and {INDEX} names it") from None


def _nothing(folder: str) -> str:
    """What a folder without weights has instead, and what to do about it."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    shards = [n for n in names if SHARD.fullmatch(n)]
    pickles = [n for n in names if n.endswith((".bin", ".pt", ".pth"))]
    if shards:
        return f"{folder}: {INDEX} is missing, which says what {shards[0]} and others hold"
    if pickles:
        return (
            f"{folder}: no {SINGLE}, and {brief(pickles[0])} is not read: pickles run code; save "
            "the model by transformers as safetensors"
        )
    return f"{folder}: there is no {SINGLE} and no {INDEX}"


def _weight_map(index: str) -> dict[str, str]:
    """{array: file} of an index."""
    table = read_json(index, _LARGEST_INDEX).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise FileError(f"{index}: weight_map is {brief(table)}, expected names of files by array")
    for name, file in table.items():
        named = isinstance(file, str) and os.path.basename(file) == file and len(file) < 256
        if not named or file in ("", ".", ".."):
            raise FileError(
                f"{index}: weight_map has {brief(file)} for {brief(name)}, which is not a plain "
                "file name"
            )
    return table
