"""Hugging Face folders: weights into the library's pytrees and back, by one table of names."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.io.safetensors import FileError, flat_names, load_numpy, save_file
from genesis_fn.models import qwen


def hf_name(path: str) -> str:
    """The Hugging Face name of a dotted path: all but the output layer lie in `model`."""
    return path if path.startswith("lm_head.") else f"model.{path}"


def read_arrays(folder: str | os.PathLike) -> dict[str, np.ndarray]:
    """All arrays of a folder with one safetensors file, or several and an index."""
    folder = os.fspath(folder)
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.isfile(index):
        return load_numpy(os.path.join(folder, "model.safetensors"))
    with open(index, encoding="utf-8") as f:
        try:
            table = json.load(f)["weight_map"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise FileError(f"{index}: no usable weight_map: {error!r}") from None
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(table.values())):
        if os.path.basename(file) != file:
            raise FileError(f"{index}: {file!r} is not a plain file name")
        arrays.update(load_numpy(os.path.join(folder, file)))
    missing = [n for n in table if n not in arrays]
    if missing:
        raise FileError(f"{index}: lists {missing[0]!r}, which no file holds")
    return arrays


def load_qwen(
    folder: str | os.PathLike, dtype: Any = None
) -> tuple[dict[str, Any], qwen.QwenConfig]:
    """(parameters, config) of a Qwen2, Qwen2.5 or Qwen3 folder; in `dtype`, or as stored.

    Raises FileError naming an array that is missing, unexpected or of the wrong shape.
    """
    config = qwen.QwenConfig.from_file(folder)
    arrays = read_arrays(folder)
    from genesis_fn.transforms.jit import jit

    shapes = jit(lambda: qwen.init(_zero_key(), config)).eval_shape()
    if config.tie_word_embeddings:
        arrays.pop("lm_head.weight", None)
    wanted = {hf_name(n): x for n, x in flat_names(shapes).items()}
    problems = [f"missing {n}" for n in wanted if n not in arrays]
    problems += [f"unexpected {n}" for n in arrays if n not in wanted]
    if problems:
        raise FileError(f"{folder}: {'; '.join(problems[:4])}")
    kind = None if dtype is None else dtypes.dtype(dtype)
    leaves = []
    for name, expected in wanted.items():
        x = arrays[name]
        if tuple(x.shape) != tuple(expected.shape):
            raise FileError(
                f"{folder}: {name} has shape {list(x.shape)}, the config asks for "
                f"{list(expected.shape)}"
            )
        leaves.append(from_numpy(x if kind is None else x.astype(kind)))
    return tree.unflatten(tree.structure(shapes), leaves), config


def _zero_key() -> Any:
    from genesis_fn.random import key

    return key(0)


def save_qwen(folder: str | os.PathLike, params: Any, config: qwen.QwenConfig) -> None:
    """Write parameters and config as a folder that transformers loads."""
    folder = os.fspath(folder)
    os.makedirs(folder, exist_ok=True)
    arrays = {hf_name(n): np.asarray(x) for n, x in flat_names(params).items()}
    save_file(arrays, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    kind = "qwen3" if config.qk_norm else "qwen2"
    values = {
        "model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads, "head_dim": config.head_dim,
        "rope_theta": config.rope_theta, "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "max_position_embeddings": config.max_position_embeddings, "hidden_act": "silu",
        "attention_bias": config.attention_bias,
    }  # fmt: skip
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(values, f, indent=2)
