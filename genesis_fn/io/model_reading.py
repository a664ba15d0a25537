"""A model's folder to parameters and config: `load_model`."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.configuration import transfer_guard
from genesis_fn.core.configuration.settings import device_of
from genesis_fn.core.device import Device, default_device
from genesis_fn.core.errors import ArgumentError, FileError
from genesis_fn.core.files import brief
from genesis_fn.core.types.annotations import Array, DTypeLike, PyTree
from genesis_fn.io.huggingface import (
    COMPUTED,
    WEIGHT_DTYPES,
    Part,
    hf_name,
    parameter_shapes,
    parts,
)
from genesis_fn.io.mismatches import Mismatches
from genesis_fn.io.read_ahead import ArraySource, read_ahead, read_onto, same_bytes
from genesis_fn.io.safetensors import Entry, FileSpan, flat_names
from genesis_fn.io.shards import read_folder
from genesis_fn.models import DecoderConfig
from genesis_fn.transforms.staging.device_placement import device_put

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
# Layers that are looked for beyond those of the files: the names of all take a time for each.
_MISSING_LAYERS = 100


def load_model(
    folder: str | os.PathLike[str],
    dtype: DTypeLike | None = None,
    device: Device | str | PyTree | None = None,
) -> tuple[PyTree, DecoderConfig]:
    """Read the folder of a Hugging Face model.

    The model computes what transformers computes from the folder, or loading fails. Weights are
    read array by array, straight into the memory of the parameters: the host holds none of them
    twice.

    Args:
        folder: with config.json and model.safetensors, or several files and their index.
        dtype: floating dtype of the parameters; None keeps that of the files.
        device: where the parameters go; None means the default device. A pytree of NamedShardings,
            one for each parameter, lays them out over a mesh: a process keeps its parts.

    Returns:
        (parameters, config).

    Raises:
        ArgumentError: `dtype` is not float16, bfloat16, float32 or float64.
        FileError: names the file, and a field of config.json that is not honoured, or all arrays
            that are missing, unexpected, of the wrong shape or quantized.

    >>> import tempfile
    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> gf.io.save_model(folder, gf.models.decoder.init(random.key(0), config), config)
    >>> params, loaded = load_model(folder, dtype="bfloat16")
    >>> loaded == config, params["norm"]["weight"].dtype
    (True, dtype(bfloat16))
    """
    folder = os.fspath(folder)
    wanted = None if dtype is None else dtypes.dtype(dtype)
    if wanted is not None and wanted not in WEIGHT_DTYPES:
        raise ArgumentError(
            f"load_model: dtype is {wanted}, expected float16, bfloat16, float32 or float64"
        )
    laid_out = device is not None and not isinstance(device, Device | str)
    place = default_device() if laid_out else device_of(device) or default_device()
    config = DecoderConfig.from_file(folder)
    entries, wrong = read_folder(folder), Mismatches()
    layers = len({m.group(1) for m in map(_LAYER.match, entries) if m})
    if layers != config.num_hidden_layers:
        some = config.num_hidden_layers - layers > _MISSING_LAYERS
        wrong.lines.append(
            f"config.json has num_hidden_layers {config.num_hidden_layers}, the arrays are of "
            f"{layers} layers{f'; the next {_MISSING_LAYERS} were looked for' if some else ''}"
        )
    if config.tie_word_embeddings and "lm_head.weight" in entries:
        wrong.lines += _untied(entries)
    shapes = parameter_shapes(config, layers + _MISSING_LAYERS)
    named = {hf_name(n): tuple(x.shape) for n, x in flat_names(shapes).items()}
    sources = _sources(named, entries, wrong)
    if wrong:
        raise FileError(f"{folder}: the weights do not fit config.json\n  {wrong.report()}")
    with transfer_guard.asked_for():
        if laid_out:
            leaves = _divided(sources, wanted, tree.broadcast_prefix(device, shapes))
        elif place.kind == "cpu":
            leaves = [_placed(x, wanted, place) for x in read_ahead(sources)]
        else:
            leaves = _read(sources, wanted, place)
    return tree.unflatten(tree.structure(shapes), leaves), config


def load_qwen(
    folder: str | os.PathLike[str], dtype: DTypeLike | None = None
) -> tuple[PyTree, DecoderConfig]:
    """`load_model` by an earlier name.

    Args:
        folder: as there.
        dtype: as there.

    Returns:
        (parameters, config).

    Raises:
        ArgumentError, FileError: as there.

    >>> import tempfile
    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> gf.io.save_model(folder, gf.models.decoder.init(random.key(0), config), config)
    >>> params, loaded = load_qwen(folder)
    >>> loaded == config
    True
    """
    return load_model(folder, dtype)


def _read(sources: list[ArraySource], dtype: dtypes.DType | None, device: Device) -> list[Array]:
    """The arrays on a device, in their own dtypes or cast there."""
    if dtype is None or all(s.dtype == dtype for s in sources):
        return list(read_onto(sources, device))
    # One at a time, so that the device never holds all of them in two dtypes.
    return [x.astype(dtype) for s in sources for x in read_onto([s], device)]


def _divided(
    sources: list[ArraySource], dtype: dtypes.DType | None, shardings: list[Any]
) -> list[Array]:
    """The arrays over a mesh; the host holds few of them whole at a time."""
    cast = lambda x: x if dtype is None or x.dtype == dtype else x.astype(dtype)
    return [device_put(cast(x), s) for x, s in zip(read_ahead(sources), shardings, strict=True)]


def _placed(x: np.ndarray, dtype: dtypes.DType | None, device: Device) -> Array:
    """An Array over the memory of `x`, or of its values cast to `dtype`."""
    if dtype is not None and x.dtype != dtype:
        # Five times as fast as torch's cast of large arrays, whose memory has small pages.
        x = x.astype(dtype)
    return from_numpy(x, device, copy=False)


# ---- what the folder holds ----


def _untied(entries: dict[str, Entry]) -> list[str]:
    """Remove the output layer's weight from `entries`; a line if it is one of its own."""
    head, table = entries.pop("lm_head.weight"), entries.get("model.embed_tokens.weight")
    if table is None or (
        (head.shape, head.dtype) == (table.shape, table.dtype) and same_bytes(head.span, table.span)
    ):
        return []
    return [
        "config.json has tie_word_embeddings true, but lm_head.weight is another array than "
        "model.embed_tokens.weight: set it to false, or remove lm_head.weight"
    ]


def _sources(
    named: dict[str, tuple[int, ...]], entries: dict[str, Entry], wrong: Mismatches
) -> list[ArraySource]:
    """Where each parameter lies. What does not fit becomes part of `wrong`."""
    used: set[str] = set()
    sources = []
    for name, shape in named.items():
        spans: list[FileSpan] = []
        found: set[dtypes.DType] = set()
        for part in parts(name, shape, entries):
            if wrong.full:
                break
            entry = entries.get(part.name)
            if entry is None:
                wrong.missing.append(part.name)
                continue
            used.add(part.name)
            found.add(entry.dtype)
            if entry.dtype not in WEIGHT_DTYPES:
                wrong.dtypes[part.name] = f"is of dtype {entry.dtype}"
            if entry.shape != part.shape:
                asked, has = list(part.shape), brief(list(entry.shape))
                wrong.shapes[part.name] = f"has shape {has}, the config asks for {asked}"
            elif not wrong:
                spans += _spans(part, entry)
        if len(found) > 1:
            kinds = " and ".join(sorted(map(str, found)))
            wrong.dtypes.setdefault(name, f"has experts of dtypes {kinds}")
        if not wrong:
            sources.append(ArraySource(found.pop(), shape, spans))
    wrong.unexpected = [n for n in entries if n not in used and not COMPUTED.fullmatch(n)]
    return sources


def _spans(part: Part, entry: Entry) -> list[FileSpan]:
    """The bytes of a part, in its order."""
    if part.shares == 1:
        return [entry.span]
    file, start, size = entry.span
    blocks = math.prod(part.shape[:-2]) * part.shares
    step = size // blocks
    return [FileSpan(file, start + i * step, step) for i in range(part.which, blocks, part.shares)]
