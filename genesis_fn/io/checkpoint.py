"""Checkpoints: a pytree and a few plain values in a folder per step, whole or absent.

`root/step-00000100/` holds `state.safetensors` and `manifest.json`. A step is written to a
temporary folder, flushed to disk and renamed, so that what exists under its name is complete; a
save that is interrupted, or whose process is killed, leaves the earlier steps as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from typing import Any

import numpy as np

from genesis_fn.core import tree
from genesis_fn.core.extended import is_key
from genesis_fn.io.safetensors import (
    FileError,
    flat_names,
    load_numpy,
    restore_like,
    save_file,
    sync_folder,
)
from genesis_fn.random import Key, key_data, wrap_key_data
from genesis_fn.transforms.abstract import Abstract

_STEP = re.compile(r"step-(\d{8,})$")


def _folder(root: str, step: int) -> str:
    return os.path.join(root, f"step-{step:08d}")


def save(
    root: str | os.PathLike, step: int, state: Any, values: dict[str, Any] | None = None,
    keep: int | None = None,
) -> str:  # fmt: skip
    """Write `state` (a pytree of arrays) and `values` (JSON) as the checkpoint of `step`.

    Returns the folder. `keep` removes all but that many newest checkpoints afterwards.
    """
    root = os.path.abspath(os.fspath(root))
    os.makedirs(root, exist_ok=True)
    _tidy(root)
    target = _folder(root, step)
    temporary = tempfile.mkdtemp(prefix=f".saving-{os.getpid()}-", dir=root)
    try:
        file = os.path.join(temporary, "state.safetensors")
        save_file(
            {n: np.asarray(x) for n, x in flat_names(tree.map(_as_numbers, state)).items()}, file
        )
        manifest = {
            "format": 1, "step": step, "values": values or {},
            "bytes": os.path.getsize(file), "sha256": _digest(file),
            "structure": str(tree.structure(state)), "keys": _implementations(state),
        }  # fmt: skip
        with open(os.path.join(temporary, "manifest.json"), "w", encoding="utf-8") as f:
            json.dump(manifest, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        sync_folder(temporary)
        os.chmod(temporary, 0o755)
        if os.path.isdir(target):
            # A folder cannot replace a full one: move the old one aside first.
            aside = tempfile.mkdtemp(prefix=f".replaced-{os.getpid()}-", dir=root)
            os.replace(target, os.path.join(aside, os.path.basename(target)))
        else:
            aside = None
        os.replace(temporary, target)
        sync_folder(root)
        if aside:
            shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if keep is not None:
        for old in steps(root)[:-keep]:
            shutil.rmtree(_folder(root, old), ignore_errors=True)
    return target


def _as_numbers(x: Any) -> Any:
    """A leaf as files hold it: random keys as their words."""
    if not is_key(getattr(x, "dtype", None)):
        return x
    return key_data(x) if isinstance(x, Key) else Abstract(x.aval.physical.shape, "uint32")


def _as_before(x: Any, template: Any) -> Any:
    """A leaf that was read as what its template is."""
    kind = getattr(template, "dtype", None)
    return wrap_key_data(x, impl=kind.impl) if is_key(kind) else x


def _implementations(state: Any) -> dict[str, str]:
    """{name: implementation} of the random keys in a pytree."""
    named = flat_names(state).items()
    return {n: x.dtype.impl for n, x in named if is_key(getattr(x, "dtype", None))}


def _check_keys(template: Any, found: dict[str, str], file: str) -> None:
    """Raise FileError where a file has keys and the template has none, or others."""
    wanted = _implementations(template)
    shown = lambda impl: f"random keys of {impl!r}" if impl else "no random keys"  # noqa: E731
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            raise FileError(
                f"{file}: array {name!r} holds {shown(found.get(name))}, expected "
                f"{shown(wanted.get(name))}"
            )


def _tidy(root: str) -> None:
    """Remove what killed saves left; a step that one had moved aside goes back to its place."""
    for name in os.listdir(root):
        match = re.match(r"\.(saving|replaced)-(\d+)-", name)
        if not match or _alive(int(match.group(2))):
            continue
        folder = os.path.join(root, name)
        if match.group(1) == "replaced":
            for old in os.listdir(folder):
                if not os.path.exists(os.path.join(root, old)):
                    os.replace(os.path.join(folder, old), os.path.join(root, old))
        shutil.rmtree(folder, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _digest(path: str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def steps(root: str | os.PathLike) -> list[int]:
    """The steps that have a checkpoint, in order."""
    root = os.fspath(root)
    if not os.path.isdir(root):
        return []
    found = [m for m in map(_STEP.match, os.listdir(root)) if m]
    return sorted(int(m.group(1)) for m in found)


def restore(
    root: str | os.PathLike, template: Any, step: int | None = None
) -> tuple[Any, int, dict[str, Any]]:
    """(state, step, values) of the newest checkpoint, or of `step`.

    `template` is a pytree of the same structure, shapes and dtypes; every array is restored bit for
    bit, random keys with their implementation. Raises FileNotFoundError where there is none,
    FileError for a damaged or foreign one.
    """
    root = os.fspath(root)
    if os.path.isdir(root):
        _tidy(root)
    if step is None:
        available = steps(root)
        if not available:
            raise FileNotFoundError(f"there is no checkpoint in {root}")
        step = available[-1]
    folder = _folder(root, step)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no checkpoint of step {step} in {root}")
    manifest = read_manifest(folder)
    file = os.path.join(folder, "state.safetensors")
    if not os.path.isfile(file) or os.path.getsize(file) != manifest["bytes"]:
        raise FileError(f"{file}: missing or cut short; expected {manifest['bytes']} bytes")
    if _digest(file) != manifest["sha256"]:
        raise FileError(f"{file}: damaged, its checksum differs from the manifest's")
    numbers = tree.map(_as_numbers, template)
    _check_keys(template, manifest.get("keys", {}), file)
    state = restore_like(numbers, load_numpy(file), file)
    return tree.map(_as_before, state, template), step, manifest["values"]


def read_manifest(folder: str) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises FileError naming a bad field."""
    path = os.path.join(folder, "manifest.json")
    try:
        with open(path, encoding="utf-8") as f:
            manifest = json.load(f)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from None
    expected = {"format": int, "step": int, "values": dict, "bytes": int, "sha256": str}
    for name, kind in expected.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            found = manifest.get(name) if isinstance(manifest, dict) else manifest
            raise FileError(f"{path}: field {name!r} is {found!r}, expected {kind.__name__}")
    if manifest["format"] != 1:
        raise FileError(f"{path}: format {manifest['format']} is newer than this library reads")
    return manifest


class AsyncSaver:
    """Saves in a thread, one at a time: `save` copies the values to the host and returns."""

    def __init__(self, root: str | os.PathLike, keep: int | None = None) -> None:
        self.root, self.keep = os.fspath(root), keep
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def save(self, step: int, state: Any, values: dict[str, Any] | None = None) -> None:
        """Start saving; waits for the save before, and raises what it raised."""
        self.wait()
        # Keys stay arrays, which are immutable; what was donated is copied now.
        host = tree.map(lambda x: x.copy() if isinstance(x, Key) else np.array(x), state)

        def run() -> None:
            try:
                save(self.root, step, host, values, self.keep)
            except BaseException as error:  # noqa: BLE001  handed to the next call
                self.error = error

        self.thread = threading.Thread(target=run, name="checkpoint")
        self.thread.start()

    def wait(self) -> None:
        """Return when nothing is being saved; raise what the last save raised."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error
