"""The files of a dataset: which there are, and whether they are those of an earlier run."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import open_plain
from genesis_fn.data.corpus import TEXT_SUFFIXES, refuse_one_text

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")
_BLOCK = 1 << 16  # bytes of a file that are digested at once
_BLOCKS = 16  # so many, evenly spaced, of a file of more


def data_files(paths: Sequence[str | os.PathLike[str]], format: str = "auto") -> list[str]:
    """The files that paths name: files, the files of folders, and those that match patterns.

    Args:
        paths: paths of files or folders, or patterns with `*`, `?` and `[...]`.
        format: "auto" takes the files of a folder by their suffixes; "text", "jsonl" or "parquet"
            those of its own.

    Returns:
        The files: those of each path sorted by name, folder by folder.

    Raises:
        ArgumentError: `paths` is one text.
        FileNotFoundError: a path names no file.
    """
    refuse_one_text("data_files", "paths", paths)
    found: list[str] = []
    for path in paths:
        found += _files_of(os.path.expanduser(os.fspath(path)), _suffixes(format))
    return found


def _suffixes(format: str) -> tuple[str, ...]:
    texts = tuple(s for s in TEXT_SUFFIXES if s not in JSON_SUFFIXES)
    return {
        "text": texts,
        "jsonl": JSON_SUFFIXES,
        "parquet": PARQUET_SUFFIXES,
        "auto": texts + JSON_SUFFIXES + PARQUET_SUFFIXES,
    }[format]


def _files_of(path: str, suffixes: tuple[str, ...]) -> list[str]:
    if os.path.isdir(path):
        inside = []
        for root, folders, files in os.walk(path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            inside += [os.path.join(root, f) for f in sorted(files) if f.endswith(suffixes)]
        if not inside:
            raise FileNotFoundError(f"{path}: no data file below it ({', '.join(suffixes)})")
        return inside
    if os.path.lexists(path):
        return [path]
    matching = sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
    if not matching:
        raise FileNotFoundError(f"{path}: there is no such data file")
    return matching


def format_of(path: str) -> str:
    """ "jsonl", "parquet" or "text", by the suffix of a file."""
    if path.endswith(JSON_SUFFIXES):
        return "jsonl"
    return "parquet" if path.endswith(PARQUET_SUFFIXES) else "text"


def fingerprint(path: str) -> str:
    """Size and digest of a file: of a small one all of it, of others sixteen blocks that are spread
    over it, its beginning and its end among them.

    A change that keeps the size and touches none of the blocks is not noticed; to read terabytes
    for each checkpoint would be worse.
    """
    with open_plain(path) as f:
        size = os.fstat(f.fileno()).st_size
        digest = hashlib.sha256()
        if size <= _BLOCK * _BLOCKS:
            digest.update(f.read())
        else:
            for i in range(_BLOCKS):
                f.seek((size - _BLOCK) * i // (_BLOCKS - 1))
                digest.update(f.read(_BLOCK))
    return f"{size}:{digest.hexdigest()[:24]}"


def check_unchanged(paths: Sequence[str], now: Sequence[str], before: Sequence[str]) -> None:
    """Raise FileError where files are not those of a state.

    Args:
        paths: the files.
        now, before: their fingerprints, and those of the state.
    """
    if len(now) != len(before):
        raise FileError(
            f"{os.path.dirname(paths[0]) or '.'}: the data has {len(now)} files, and had "
            f"{len(before)} when the run was saved: restore them, or begin a new run"
        )
    for path, new, old in zip(paths, now, before):
        if new != old:
            raise FileError(
                f"{path}: the file has changed since the run was saved ({old.partition(':')[0]} "
                f"bytes then, {new.partition(':')[0]} now): restore it, or begin a new run"
            )
