"""Parameters and config to a model's folder: `save_model`.

A folder is written so that whatever ends the process, it loads as the model that it was, as the new
one, or not at all: all files are written beside the old ones and flushed to disk; then config.json
is removed, without which nothing loads a folder, the files are renamed, and config.json comes last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.core.files import brief, open_plain, read_json
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.io.huggingface import (
    WEIGHT_DTYPES,
    expert_name,
    hf_name,
    parameter_shapes,
    stack_of,
)
from genesis_fn.io.joint.gathering import whole, writes
from genesis_fn.io.lock import folder_locked
from genesis_fn.io.mismatches import Mismatches
from genesis_fn.io.safetensors import atomic_write, flat_names, sync_folder, write_arrays
from genesis_fn.io.shards import INDEX, SHARD, SINGLE, shard_name
from genesis_fn.models import DecoderConfig

_CONFIG = "config.json"
_LARGEST_CONFIG = 1 << 20  # bytes
_LARGEST_KEPT = 1 << 30  # bytes; of tokenizers, texts and templates
_UNFINISHED = ".saving-"
_TEMPLATES = "additional_chat_templates"
# The files beside weights and config that `source` may have.
_KEPT = re.compile(
    r"tokenizer\.json|tokenizer_config\.json|tokenizer\.model(\.v\d+)?|tekken\.json|vocab\.json|"
    r"vocab\.txt|merges\.txt|added_tokens\.json|special_tokens_map\.json|generation_config\.json|"
    r"chat_template\.jinja|chat_template\.json|(README|LICENSE|LICENCE|NOTICE|USE_POLICY)(\.\w+)?"
)
_OF_THE_FILES = ("architectures", "dtype", "torch_dtype")  # which say what the arrays are
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B", re.I)


def save_model(
    folder: str | os.PathLike[str],
    params: PyTree,
    config: DecoderConfig,
    *,
    max_shard_size: int | str = "5GB",
    source: str | os.PathLike[str] | None = None,
) -> None:
    """Write parameters and config as a folder that transformers loads.

    A save that fails or is killed leaves the model that the folder held, or one that does not load:
    never a mixture of two. Saves in one folder wait for each other. Other files of the folder stay.

    Args:
        folder: made if it is missing; gets config.json and model.safetensors, or several files
            and their index.
        params: parameters, as `models.decoder.init` makes them; those on a GPU are copied to the
            host one by one. Where several processes hold them, each calls this, and the first one
            writes: they are gathered one by one.
        config: the hyperparameters.
        max_shard_size: most bytes of the arrays in a file, as a number or as "5GB", "500MB",
            "2GiB"; an array that is larger has a file of its own.
        source: a folder whose tokenizer, chat templates, generation_config.json, README and LICENSE
            are copied. Its config.json is kept where it describes the same model, and else those
            of its other fields (`eos_token_id`, ...) that do not change the model. None copies
            nothing.

    Raises:
        ArgumentError: `folder` is "", `max_shard_size` is no size, or the parameters are not those
            of the config.
        FileError: `source` is no folder, or has a config.json or a file that cannot be kept.
        OSError: writing failed; names the file.
        ValueError: no config.json describes the config.

    >>> import tempfile
    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> params = gf.models.decoder.init(random.key(0), config)
    >>> save_model(folder, params, config, max_shard_size="50KB")
    >>> for name in sorted(os.listdir(folder)):
    ...     print(name)
    config.json
    model-00001-of-00002.safetensors
    model-00002-of-00002.safetensors
    model.safetensors.index.json
    """
    if not os.fspath(folder):  # which would be the working folder
        raise ArgumentError('save_model: folder is "", expected the name of one')
    folder = os.path.abspath(os.fspath(folder))
    limit = _bytes(max_shard_size)
    fields = config.to_dict()
    shards = _shards(_arrays(params, config), limit)
    kinds = {array.dtype for shard in shards for array in shard}
    if len(kinds) == 1:
        fields["torch_dtype"] = str(*kinds)
    if not writes(params):
        for shard in shards:  # takes part in gathering what the first process writes
            for _ in _values(shard):
                pass
        return
    kept: list[str] = []
    if source is not None:
        source = os.path.abspath(os.fspath(source))
        kept = _kept_files(source)
        fields = _with_fields_of(source, fields, type(config))
    with _made(folder), folder_locked(folder):
        for name in os.listdir(folder):
            if name.startswith(_UNFINISHED):  # of a save that was killed
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        temporary = tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder)
        try:
            _write_weights(temporary, shards)
            if source is not None and not os.path.samefile(source, folder):
                _copy_files(source, temporary, kept)
            _write_json(os.path.join(temporary, _CONFIG), fields)
            _move_into_place(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def save_qwen(folder: str | os.PathLike[str], params: PyTree, config: DecoderConfig) -> None:
    """`save_model` by an earlier name.

    Args:
        folder: as there.
        params: as there.
        config: as there.

    Raises:
        ArgumentError, OSError, ValueError: as there.

    >>> import tempfile
    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> save_qwen(folder, gf.models.decoder.init(random.key(0), config), config)
    >>> sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']
    """
    save_model(folder, params, config)


def _bytes(size: int | str) -> int:
    """The bytes of `max_shard_size`."""
    match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    if match:
        base = 1024 if match.group(3) else 1000
        count = int(float(match.group(1)) * base ** " KMGT".index(match.group(2).upper() or " "))
    else:
        count = size
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(
            f'save_model: max_shard_size is {brief(size)}, expected bytes as a number, "5GB" or '
            '"500MB"'
        )
    return count


# ---- the arrays ----


class _Array(NamedTuple):
    """An array of a file: a parameter, or one expert's part of a stack."""

    name: str
    dtype: dtypes.DType
    shape: tuple[int, ...]
    leaf: Any
    expert: int | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def _arrays(params: PyTree, config: DecoderConfig) -> list[_Array]:
    """The arrays of the files. Raises ArgumentError for parameters that are not the config's."""
    expected = flat_names(parameter_shapes(config))
    leaves = flat_names(params)
    wrong = Mismatches(
        missing=[n for n in expected if n not in leaves],
        unexpected=[n for n in leaves if n not in expected],
    )
    arrays: list[_Array] = []
    for path in expected:
        if path not in leaves:
            continue
        leaf: Any = leaves[path]
        shape, dtype = tuple(np.shape(leaf)), getattr(leaf, "dtype", None)
        wanted = tuple(expected[path].shape)
        if shape != wanted:
            wrong.shapes[path] = f"has shape {list(shape)}, the config asks for {list(wanted)}"
        elif dtype is None or dtype not in WEIGHT_DTYPES:
            wrong.dtypes[path] = f"is of dtype {dtype}"
        else:
            arrays += _stored(hf_name(path), dtype, shape, leaf)
    if wrong:
        raise ArgumentError(
            f"save_model: the parameters are not those of the config\n  {wrong.report()}"
        )
    arrays.sort(key=lambda array: -array.dtype.itemsize)  # which aligns all of them in a file
    return arrays


def _stored(name: str, dtype: dtypes.DType, shape: tuple[int, ...], leaf: Any) -> list[_Array]:
    stack = stack_of(name, shape)
    if stack is None:
        return [_Array(name, dtype, shape, leaf)]
    experts, projection = stack
    return [
        _Array(expert_name(experts, e, projection), dtype, shape[1:], leaf, e)
        for e in range(shape[0])
    ]


def _shards(arrays: list[_Array], limit: int) -> list[list[_Array]]:
    """The arrays in order, cut where a file would have more than `limit` bytes."""
    shards: list[list[_Array]] = []
    held = 0
    for array in arrays:
        if not shards or held + array.nbytes > limit:
            shards.append([])
            held = 0
        shards[-1].append(array)
        held += array.nbytes
    return shards


def _write_weights(folder: str, shards: list[list[_Array]]) -> None:
    """The files of weights, and the index of several."""
    count = len(shards)
    files = [SINGLE] if count == 1 else [shard_name(i + 1, count) for i in range(count)]
    for file, shard in zip(files, shards):
        table = [(array.name, array.dtype, array.shape) for array in shard]
        write_arrays(os.path.join(folder, file), table, _values(shard), {"format": "pt"})
    if count > 1:
        total = sum(array.nbytes for shard in shards for array in shard)
        table = {array.name: file for file, shard in zip(files, shards) for array in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(table.items()))}
        _write_json(os.path.join(folder, INDEX), index)


def _values(shard: list[_Array]) -> Iterator[np.ndarray]:
    """The values of arrays on the host; those of one stack come of one copy."""
    before, values = None, np.empty(0)
    for array in shard:
        if array.leaf is not before:
            before, values = array.leaf, whole(array.leaf)
        yield values if array.expert is None else values[array.expert]


def _write_json(path: str, values: dict[str, Any]) -> None:
    with atomic_write(path) as f:
        f.write(json.dumps(values, indent=2).encode() + b"\n")


# ---- what is kept of another folder ----


def _kept_files(source: str) -> list[str]:
    if not os.path.isdir(source):
        raise FileError(f"{source}: source is no folder")
    names = [n for n in sorted(os.listdir(source)) if _KEPT.fullmatch(n)]
    inner = os.path.join(source, _TEMPLATES)
    if os.path.isdir(inner):
        names += [
            os.path.join(_TEMPLATES, n) for n in sorted(os.listdir(inner)) if n.endswith(".jinja")
        ]
    return names


def _copy_files(source: str, folder: str, names: list[str]) -> None:
    for name in names:
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        path = os.path.join(source, name)
        with open_plain(path) as f, atomic_write(target) as copy:
            if os.fstat(f.fileno()).st_size > _LARGEST_KEPT:
                raise FileError(f"{path}: more than {_LARGEST_KEPT:,} bytes, which is not copied")
            shutil.copyfileobj(f, copy)


def _with_fields_of(
    source: str, fields: dict[str, Any], kind: type[DecoderConfig]
) -> dict[str, Any]:
    """`fields` with those of the source's config.json that do not change the model. A file that
    describes the same model is kept as it is: there are several ways to say one thing."""
    path = os.path.join(source, _CONFIG)
    if not os.path.lexists(path):
        return fields
    config = kind.from_dict(fields)
    theirs = read_json(path, _LARGEST_CONFIG)
    theirs = {name: value for name, value in theirs.items() if name not in _OF_THE_FILES}
    if _describes(theirs, config):
        return {**theirs, **{name: fields[name] for name in _OF_THE_FILES if name in fields}}
    kept: dict[str, Any] = {}
    for name, value in theirs.items():
        if name not in fields and _describes({**kept, name: value, **fields}, config):
            kept[name] = value
    return {**kept, **fields}


def _describes(fields: dict[str, Any], config: DecoderConfig) -> bool:
    """Whether the fields of a config.json are read as `config`."""
    try:
        return type(config).from_dict(fields) == config
    except ValueError:
        return False


# ---- the exchange ----


@contextlib.contextmanager
def _made(folder: str) -> Generator[None]:
    """`with _made(folder):` the folder is there; after an exception those that were made for it,
    and are empty, are gone."""
    missing: list[str] = []
    at = folder
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    try:
        os.makedirs(folder, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # another process has put something there
            for made in missing:
                os.rmdir(made)
        raise


def _move_into_place(temporary: str, folder: str) -> None:
    """Exchange the model of `folder` for that of the folder inside of it."""
    there = lambda name: os.path.join(folder, name)
    new = [
        os.path.relpath(os.path.join(where, name), temporary)
        for where, _, names in os.walk(temporary)
        for name in names
        if name != _CONFIG
    ]
    old = [n for n in os.listdir(folder) if n in (SINGLE, INDEX) or SHARD.fullmatch(n)]
    steps = [lambda: _remove(there(_CONFIG)), lambda: sync_folder(folder)]
    steps += [lambda n=n: _remove(there(n)) for n in old]
    steps += [lambda n=n: _rename(os.path.join(temporary, n), there(n)) for n in new]
    steps += [
        lambda: sync_folder(folder),
        lambda: _rename(os.path.join(temporary, _CONFIG), there(_CONFIG)),
        lambda: sync_folder(folder),
    ]
    try:
        _run(steps)
    except KeyboardInterrupt:  # both models would be lost
        _run(steps)
        raise


def _run(steps: list[Callable[[], None]]) -> None:
    """Take steps, each of which may be taken twice."""
    while steps:
        steps[0]()
        del steps[0]


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _rename(path: str, target: str) -> None:
    if os.path.lexists(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(path, target)
