"""Text from folders of files, to train a language model on without a download."""

from __future__ import annotations

import codecs
import os
import sysconfig
from collections.abc import Iterator, Sequence

from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.core.files import open_plain

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".toml", ".cfg", ".json", ".html", ".c", ".h")


def standard_library() -> str:
    """Find the folder of the running Python's standard library: about 10 MB of real source text.

    Returns:
        The path.

    >>> import os
    >>> os.path.exists(os.path.join(gf.data.standard_library(), "dataclasses.py"))
    True
    """
    return sysconfig.get_paths()["stdlib"]


def text_files(
    folder: str | os.PathLike[str], suffixes: Sequence[str] = TEXT_SUFFIXES
) -> list[str]:
    """List the text files below a folder, without caches, `.git` and installed packages.

    Args:
        folder: path of the folder; the path of a file gives that file.
        suffixes: the ends of the names of text files; one may be given alone.

    Returns:
        The paths, sorted within each folder; a folder's own files come before those of its folders.

    Raises:
        FileNotFoundError: the folder is not there, or holds no text.

    >>> folder = gf.data.standard_library()
    >>> any(path.endswith("dataclasses.py") for path in gf.data.text_files(folder))
    True
    """
    suffixes = (suffixes,) if isinstance(suffixes, str) else tuple(suffixes)
    folder = os.fspath(folder)
    if os.path.isfile(folder):
        return [folder]
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder!r}")
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(
            f for f in folders if f not in ("site-packages", "__pycache__", ".git", "node_modules")
        )
        named = [os.path.join(root, f) for f in sorted(files) if f.endswith(suffixes)]
        found += [f for f in named if os.path.isfile(f)]  # no pipes, no links to nothing
    if not found:
        raise FileNotFoundError(f"no text files ({', '.join(suffixes)}) below {folder!r}")
    return found


def read_texts(files: Sequence[str], limit: int | None = None) -> Iterator[str]:
    """Read files, up to `limit` bytes in all; the last text is cut to fit.

    Files that cannot be read, that are not UTF-8 or hold only blanks are passed over.

    Args:
        files: paths.
        limit: number of bytes, >= 0; None: all.

    Returns:
        An iterator over the texts.

    Raises:
        ArgumentError: `files` is one path, whose characters would be taken for files.

    >>> import os
    >>> path = os.path.join(gf.data.standard_library(), "this.py")
    >>> [*gf.data.read_texts([path], limit=6)]
    ['s = ""']
    """
    refuse_one_text("read_texts", "files", files)
    return _texts(files, limit)


def refuse_one_text(name: str, argument: str, value: object) -> None:
    """Raise ArgumentError for a text in place of a sequence of texts, which its characters are."""
    if isinstance(value, str | bytes):
        raise ArgumentError(
            f"{name}: {argument} is one text, {value[:40]!r}, and not a list of texts\n"
            f"  put it in a list: [{argument}]"
        )


def _texts(files: Sequence[str], limit: int | None) -> Iterator[str]:
    total = 0
    for path in files:
        room = None if limit is None else limit - total
        if room == 0:
            return
        try:
            with open_plain(path) as f:
                raw = f.read() if room is None else f.read(room + 1)
        except (OSError, FileError):
            continue
        cut = room is not None and len(raw) > room
        try:
            # A character that the cut goes through is left out; others must be whole.
            decoder = codecs.getincrementaldecoder("utf-8")()
            text = decoder.decode(raw[:room] if cut else raw, final=not cut)
        except UnicodeDecodeError:
            continue
        raw = raw[:room] if cut else raw
        total += len(raw)
        if text.strip():
            yield text


def split_files(files: Sequence[str], every: int = 20) -> tuple[list[str], list[str]]:
    """Split files into those for training and those for validation, by a hash of their names.

    The split of a file does not depend on the other files, but for one exception: where the hash
    chooses none of several files, the last one is for validation.

    Args:
        files: paths.
        every: positive number: about one file in so many is for validation.

    Returns:
        (paths for training, paths for validation).

    Raises:
        ArgumentError: `files` is one path, whose characters would be taken for files.

    >>> train, valid = gf.data.split_files([f"{i}.txt" for i in range(1000)], every=20)
    >>> len(train), len(valid)
    (961, 39)
    """
    import zlib

    refuse_one_text("split_files", "files", files)
    train, valid = [], []
    for path in files:
        # fsencode, since a name can be any bytes.
        chosen = zlib.crc32(os.fsencode(os.path.basename(path))) % every == 0
        (valid if chosen else train).append(path)
    if not valid and len(train) > 1:
        valid.append(train.pop())
    return train, valid
