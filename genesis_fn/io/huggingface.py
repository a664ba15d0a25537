"""Hugging Face folders: config.json and safetensors files to parameters and config, and back."""

from __future__ import annotations

import json
import os
import re

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_json
from genesis_fn.core.types.annotations import DTypeLike, Key, PyTree
from genesis_fn.io.safetensors import atomic_write, flat_names, load_numpy, save_file
from genesis_fn.models import qwen

_LARGEST_INDEX = 1 << 25  # bytes; those of the largest models have some millions
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_WEIGHT_DTYPES = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64)


def hf_name(path: str) -> str:
    """The Hugging Face name of a dotted path: all but the output layer lie in `model`."""
    return path if path.startswith("lm_head.") else f"model.{path}"


def read_arrays(folder: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """All arrays of a folder with one safetensors file, or several and an index.

    Each array comes from the file that the index names. Raises FileError naming file and array.
    """
    folder = os.fspath(folder)
    single = os.path.join(folder, "model.safetensors")
    index = single + ".index.json"
    if not os.path.exists(index):
        return load_numpy(single)
    table = _weight_map(index)
    if os.path.exists(single) and single not in {os.path.join(folder, f) for f in table.values()}:
        raise FileError(
            f"{folder}: both model.safetensors and {os.path.basename(index)} are there, and the "
            "second does not name the first: remove the one that does not count"
        )
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(table.values())):
        for name, x in load_numpy(os.path.join(folder, file)).items():
            if name not in table:
                raise FileError(f"{index}: does not list {brief(name)}, which {file} holds")
            if table[name] == file:
                arrays[name] = x
    for name, file in table.items():
        if name not in arrays:
            raise FileError(f"{index}: lists {brief(name)}, which {file} does not hold")
    return arrays


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


def load_qwen(
    folder: str | os.PathLike[str], dtype: DTypeLike | None = None
) -> tuple[PyTree, qwen.QwenConfig]:
    """Read a Qwen2, Qwen2.5 or Qwen3 folder of Hugging Face.

    The model computes what transformers computes from the folder, or loading fails.

    Args:
        folder: with config.json and model.safetensors, or several files and their index.
        dtype: floating dtype of the parameters; None keeps that of the files.

    Returns:
        (parameters, config).

    Raises:
        FileError: names the file, and a field of config.json that is not honoured or an array that
            is missing, unexpected, of the wrong shape or quantized.

    >>> config = qwen.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> import tempfile
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> save_qwen(folder, qwen.init(random.key(0), config), config)
    >>> params, loaded = load_qwen(folder)
    >>> loaded == config
    True
    """
    folder = os.fspath(folder)
    config = qwen.QwenConfig.from_file(folder)
    arrays = read_arrays(folder)
    layers = {m.group(1) for m in map(_LAYER.match, arrays) if m}
    if len(layers) != config.num_hidden_layers:
        raise FileError(
            f"{folder}: config.json has num_hidden_layers {config.num_hidden_layers}, the arrays "
            f"are of {len(layers)} layers"
        )
    from genesis_fn.transforms.jitting import jit

    shapes = jit(lambda: qwen.init(_zero_key(), config)).eval_shape()
    if config.tie_word_embeddings and "lm_head.weight" in arrays:
        _check_tied(arrays, folder)
    wanted = {hf_name(n): x for n, x in flat_names(shapes).items()}
    problems = [f"missing {n}" for n in wanted if n not in arrays]
    problems += [f"unexpected {brief(n)[1:-1]}" for n in arrays if n not in wanted]
    if problems:
        raise FileError(f"{folder}: {'; '.join(problems[:4])}")
    wanted_dtype = None if dtype is None else dtypes.dtype(dtype)
    leaves = []
    for name, expected in wanted.items():
        x = arrays[name]
        if tuple(x.shape) != tuple(expected.shape):
            raise FileError(
                f"{folder}: {name} has shape {list(x.shape)}, the config asks for "
                f"{list(expected.shape)}"
            )
        if x.dtype not in _WEIGHT_DTYPES:
            raise FileError(
                f"{folder}: {name} is of dtype {x.dtype}, and weights of a quantized model are not "
                "read; expected float16, bfloat16, float32 or float64"
            )
        leaves.append(from_numpy(x if wanted_dtype is None else x.astype(wanted_dtype)))
    return tree.unflatten(tree.structure(shapes), leaves), config


def _check_tied(arrays: dict[str, np.ndarray], folder: str) -> None:
    """Remove the output layer's weight from `arrays`, if it is the embedding's; else raise FileError."""
    head, table = arrays.pop("lm_head.weight"), arrays.get("model.embed_tokens.weight")
    if (
        table is None
        or head.shape == table.shape
        and head.dtype == table.dtype
        and all(
            np.array_equal(_bits(head[i : i + 1024]), _bits(table[i : i + 1024]))
            for i in range(0, len(head), 1024)
        )
    ):
        return
    raise FileError(
        f"{folder}: config.json has tie_word_embeddings true, but lm_head.weight is another array "
        "than model.embed_tokens.weight: set it to false, or remove lm_head.weight"
    )


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8)


def _zero_key() -> Key:
    from genesis_fn.random import key

    return key(0)


def save_qwen(folder: str | os.PathLike[str], params: PyTree, config: qwen.QwenConfig) -> None:
    """Write parameters and config as a folder that transformers loads.

    Args:
        folder: made if it is missing; gets config.json and model.safetensors.
        params: parameters, as `models.qwen.init` makes them.
        config: the hyperparameters.

    Raises:
        ValueError: the config is neither Qwen2's nor Qwen3's.

    >>> config = qwen.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> import tempfile
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> save_qwen(folder, qwen.init(random.key(0), config), config)
    >>> sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']
    """
    folder = os.fspath(folder)
    text = json.dumps(config.to_dict(), indent=2)
    os.makedirs(folder, exist_ok=True)
    arrays = {hf_name(n): np.asarray(x) for n, x in flat_names(params).items()}
    save_file(arrays, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with atomic_write(os.path.join(folder, "config.json")) as f:
        f.write(text.encode())
