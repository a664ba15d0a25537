"""The arrays of a model's folder: one safetensors file, or several and their index."""

from __future__ import annotations

import os
import re

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_json
from genesis_fn.io.mismatches import grouped
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

    Of an array in several files, the one in the file that the index names counts. Raises FileError
    naming file and array.
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
    paths = {file: os.path.join(folder, file) for file in sorted(set(table.values()))}
    missing = [path for path in paths.values() if not os.path.exists(path)]
    if missing:
        others = f", as it does {grouped(missing[1:])}" if len(missing) > 1 else ""
        raise FileError(f"{missing[0]}: missing, and {INDEX} names it{others}")
    found: dict[str, Entry] = {}
    unlisted: list[str] = []
    for file, path in paths.items():
        for name, entry in read_entries(path).items():
            if name not in table:
                unlisted.append(f"{brief(name)}, which {file} holds")
            elif table[name] == file:
                found[name] = entry
    absent = [f"{brief(n)}, which {f} does not hold" for n, f in table.items() if n not in found]
    wrong = [
        f"{verb} {said[0]}" + (f"; and {len(said) - 1:,} more" if said[1:] else "")
        for verb, said in (("does not list", unlisted), ("lists", absent))
        if said
    ]
    if wrong:
        raise FileError(f"{index}: " + "\n  ".join(wrong))
    return found


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
        if not named or file in ("", ".", "..") or not file.isprintable():
            raise FileError(
                f"{index}: weight_map has {brief(file)} for {brief(name)}, which is not a plain "
                "file name"
            )
    return table
