"""Checkpoints: a pytree and a few plain values in a folder per step, whole or absent.

`root/step-00000100/` holds `state.safetensors` and `manifest.json`; where several processes hold
the arrays together, a file of each. A step is written to a
temporary folder, flushed to disk and renamed, so that what exists under its name is complete; a
save that is interrupted, or whose process is killed, leaves the earlier steps as they were.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from genesis_fn.core import tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief
from genesis_fn.core.sharding.world import world
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.core.types.extended import KeyType, is_key
from genesis_fn.distributed.agreement import FailedElsewhere, together
from genesis_fn.io.joint.gathering import is_shared, laid_out
from genesis_fn.io.joint.saving import OwnPart, follow, lead, new_number, parts_of
from genesis_fn.io.lock import locked
from genesis_fn.io.manifest import (
    STATE,
    check_files,
    file_sum,
    read_arrays,
    read_manifest,
    whole_leaves,
    write_manifest,
)
from genesis_fn.io.safetensors import flat_names, restore_like, save_file, sync_folder
from genesis_fn.random import Key, key_data, wrap_key_data
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct

_STEP = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,17})")
_LEFTOVER = re.compile(r"\.(saving|replaced|removed)-")


def _folder(root: str, step: int) -> str:
    return os.path.join(root, f"step-{step:08d}")


def save(
    root: str | os.PathLike[str],
    step: int,
    state: PyTree,
    values: dict[str, Any] | None = None,
    keep: int | None = None,
    spare: Collection[int] = (),
) -> str:
    """Write a checkpoint, whole or not at all.

    Saves in one folder wait for each other, also across processes. Where arrays are over a mesh of
    several processes, all of them call this alike, and each writes the parts that it holds; one
    that cannot fails the save of all.

    Args:
        root: folder of the checkpoints; made if it is missing.
        step: number of the checkpoint, 0 to 10**18 - 1; one that exists is replaced.
        state: pytree of arrays, random keys and Python numbers.
        values: plain values that JSON can hold, by name.
        keep: remove all but that many of the newest checkpoints afterwards; None keeps all.
        spare: steps that are not removed whatever `keep` says, as those of the best losses.

    Returns:
        The checkpoint's folder, `root/step-00000100`.

    Raises:
        TypeError, ValueError: `restore` could not give something back: a leaf that is no array or
            number, two leaves of one name, a value that JSON cannot hold. Nothing was written.
        OSError: writing failed; names the file.

    >>> root = tempfile.mkdtemp()
    >>> path = save(root, 100, {"w": jnp.ones(3)}, {"loss": 0.5})
    >>> steps(root)
    [100]
    """
    return write(root, snapshot(step, state, values), keep, spare)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint, in host memory: all arrays, or as save `number` of several
    processes the `parts` that this one writes."""

    step: int
    arrays: dict[str, np.ndarray]
    structure: str
    keys: dict[str, str]
    values: dict[str, Any]
    parts: dict[str, OwnPart] = dataclasses.field(default_factory=dict)
    number: int | None = None


def snapshot(
    step: int, state: PyTree, values: dict[str, Any] | None = None, copy: bool = False
) -> Snapshot:
    """The arguments of `save`, checked; with `copy` no memory is shared with them."""
    step = operator.index(step)
    if not 0 <= step < 10**18:
        raise ValueError(f"a checkpoint's step must lie in 0 to 10**18 - 1, got {step}")
    _check_values(values, "values")
    arrays = {}
    for path, leaf in tree.leaves_with_path(state):
        if not isinstance(leaf, ArrayImpl | np.ndarray | np.generic) and type(leaf) not in _NUMBERS:
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise TypeError(
                f"state{tree.keystr(path)} is a {kind}, which restore could not give back: a "
                "checkpoint holds arrays and Python numbers; convert it by jnp.asarray"
            )
    named = flat_names(tree.map(_as_numbers, state))
    about = str(tree.structure(state)), _implementations(state), dict(values or {})
    if is_shared(state):
        return Snapshot(step, {}, *about, parts_of(named, copy), new_number())
    for name, leaf in named.items():
        arrays[name] = np.array(leaf) if copy else np.asarray(leaf)
    return Snapshot(step, arrays, *about)


_NUMBERS = (bool, int, float)


def _check_values(value: object, where: str) -> None:
    """Raise TypeError for a value that JSON does not give back as it was."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if type(name) is not str:
                raise TypeError(f"{where} has the name {brief(name)}, JSON has strings for names")
            _check_values(inner, f"{where}[{brief(name)}]")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _check_values(inner, f"{where}[{i}]")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"{where} is {brief(value)}, which JSON cannot hold")


def write(
    root: str | os.PathLike[str],
    held: Snapshot,
    keep: int | None = None,
    spare: Collection[int] = (),
) -> str:
    """Write a snapshot as the checkpoint of its step, as `save` does. Returns the folder."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    root = os.path.abspath(os.fspath(root))
    if held.number is None:
        return _write(root, held, keep, spare, lambda folder: _write_state(folder, held))
    if world().rank:
        return follow(held.number, held.parts)
    return lead(held.number, held.parts, lambda fill: _write(root, held, keep, spare, fill))


Contents = tuple[dict[str, Any], dict[str, Any]]  # files and arrays, as a manifest describes them


def _write(
    root: str,
    held: Snapshot,
    keep: int | None,
    spare: Collection[int],
    fill: Callable[[str], Contents],
) -> str:
    """Make a checkpoint's folder, which `fill` puts the arrays into."""
    os.makedirs(root, exist_ok=True)
    with locked(root) as alone:
        if alone:
            _clean_up(root)
        target = _folder(root, held.step)
        temporary = tempfile.mkdtemp(prefix=".saving-", dir=root)
        try:
            files, leaves = fill(temporary)
            write_manifest(
                temporary, held.step, files, leaves, held.values, held.keys, held.structure
            )
            os.chmod(temporary, 0o755)
            _move_into_place(temporary, target, root)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if keep is not None:
            # What was just written stays, also below damaged ones that a run passed over. Nothing
            # depends on this pruning: where a kill leaves it undone, that of the next save does it.
            for old in steps(root)[:-keep]:
                if old != held.step and old not in spare:
                    _remove(_folder(root, old), root)
    return target


def _write_state(folder: str, held: Snapshot) -> Contents:
    """All arrays in one file."""
    file = os.path.join(folder, STATE)
    save_file(held.arrays, file)
    return {STATE: file_sum(file)}, whole_leaves(held.arrays)


def _move_into_place(temporary: str, target: str, root: str) -> None:
    """Rename the folder `temporary` to `target`, and replace one that exists."""
    aside = None
    if os.path.isdir(target):
        # A folder cannot replace a full one: move the old one aside first.
        aside = tempfile.mkdtemp(prefix=".replaced-", dir=root)
        os.replace(target, os.path.join(aside, os.path.basename(target)))
    os.replace(temporary, target)
    sync_folder(root)
    if aside:
        shutil.rmtree(aside, ignore_errors=True)


def _remove(folder: str, root: str) -> None:
    """Remove a checkpoint, renamed first, so that no incomplete one is seen under its name."""
    aside = tempfile.mkdtemp(prefix=".removed-", dir=root)
    os.replace(folder, os.path.join(aside, os.path.basename(folder)))
    shutil.rmtree(aside, ignore_errors=True)


def _as_numbers(x: Any) -> Any:
    """A leaf as files store it: random keys become their words."""
    if not is_key(getattr(x, "dtype", None)):
        return x
    return key_data(x) if isinstance(x, Key) else ShapeDtypeStruct(x.aval.physical.shape, "uint32")


def _as_before(x: Any, template: PyTree) -> Any:
    """Undo `_as_numbers` for a leaf that was read: words become keys where `template` is one."""
    dtype = getattr(template, "dtype", None)
    return wrap_key_data(x, impl=dtype.impl) if isinstance(dtype, KeyType) else x


def _implementations(state: PyTree) -> dict[str, str]:
    """{name: implementation} of the random keys in a pytree."""
    named = flat_names(state).items()
    return {n: x.dtype.impl for n, x in named if is_key(getattr(x, "dtype", None))}


def _check_keys(template: PyTree, found: dict[str, str], file: str) -> None:
    """Raise FileError where a file has keys and the template has none, or others."""
    wanted = _implementations(template)
    shown = lambda impl: f"random keys of {impl!r}" if impl else "no random keys"
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            raise FileError(
                f"{file}: array {name!r} holds {shown(found.get(name))}, expected "
                f"{shown(wanted.get(name))}"
            )


def _clean_up(root: str) -> None:
    """Remove what interrupted saves left, and rename a step that one had moved aside back.

    The caller holds the folder's lock, so that no save is running.
    """
    for name in os.listdir(root):
        match = _LEFTOVER.match(name)
        if not match:
            continue
        folder = os.path.join(root, name)
        if match.group(1) == "replaced":
            for old in os.listdir(folder):
                if _STEP.fullmatch(old) and not os.path.exists(os.path.join(root, old)):
                    os.replace(os.path.join(folder, old), os.path.join(root, old))
        shutil.rmtree(folder, ignore_errors=True)


def steps(root: str | os.PathLike[str]) -> list[int]:
    """The steps that have a checkpoint.

    Args:
        root: folder of the checkpoints; it need not exist.

    Returns:
        Step numbers, ascending.

    >>> steps(tempfile.mkdtemp())
    []
    """
    root = os.fspath(root)
    if not os.path.isdir(root):
        return []
    found = {int(m.group(1)) for m in map(_STEP.fullmatch, os.listdir(root)) if m}
    return sorted(n for n in found if os.path.isdir(_folder(root, n)))


def restore(
    root: str | os.PathLike[str], template: PyTree, step: int | None = None
) -> tuple[PyTree, int, dict[str, Any]]:
    """Read the newest checkpoint, or that of one step, bit for bit.

    Args:
        root: folder of the checkpoints.
        template: pytree with the structure, shapes and dtypes of the state that was saved; its
            leaves may be ShapeDtypeStructs. Those over a mesh are laid out as they are there,
            however the state was when it was saved, and a process reads its parts alone; over
            several processes all of them call this.
        step: number of the checkpoint; None means the newest.

    Returns:
        (state, step, values), as they were given to `save`.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        FileError: it is damaged, or does not fit the template.

    >>> root = tempfile.mkdtemp()
    >>> path = save(root, 100, {"w": jnp.ones(3)}, {"loss": 0.5})
    >>> restore(root, {"w": jnp.zeros(3)})
    ({'w': Array([1., 1., 1.], dtype=float32)}, 100, {'loss': 0.5})
    """
    root = os.fspath(root)
    if os.path.isdir(root) and any(map(_LEFTOVER.match, os.listdir(root))):
        with locked(root, wait=False) as held:
            if held:
                _clean_up(root)
    if step is None:
        available = steps(root)
        if not available:
            raise FileNotFoundError(f"there is no checkpoint in {root}")
        step = available[-1]
    folder = _folder(root, step)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no checkpoint of step {step} in {root}")
    if not is_shared(template):
        state, values = _read(folder, template, 0, 1)
        return state, step, values
    here = world()
    try:
        read = lambda: _read(folder, template, here.rank, here.size)
        state, values = together(read, "a checkpoint")
    except FailedElsewhere as error:
        raise FileError(str(error)) from None
    return state, step, values


def _read(folder: str, template: PyTree, rank: int, size: int) -> tuple[PyTree, dict[str, Any]]:
    """(state, values) of a checkpoint; processes share the check of its files."""
    manifest = read_manifest(folder)
    check_files(folder, dict(list(manifest.files.items())[rank::size]))
    arrays = read_arrays(folder, manifest)
    # Most checkpoints have one file, which messages name.
    where = os.path.join(folder, *manifest.files) if len(manifest.files) == 1 else folder
    numbers = tree.map(_as_numbers, template)
    _check_keys(template, manifest.keys, where)
    state = restore_like(numbers, arrays, where, laid_out=laid_out)
    return tree.map(_as_before, state, template), manifest.values
