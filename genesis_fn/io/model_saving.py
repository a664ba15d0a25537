"""Parameters and config to a model's folder: `save_model`."""

from __future__ import annotations

import json
import os

import numpy as np

from genesis_fn.core.types.annotations import PyTree
from genesis_fn.io.huggingface import expert_name, hf_name, stack_of
from genesis_fn.io.safetensors import atomic_write, flat_names, save_file
from genesis_fn.models import QwenConfig


def save_model(
    folder: str | os.PathLike[str],
    params: PyTree,
    config: QwenConfig,
    *,
    max_shard_size: int | str = "5GB",
    source: str | os.PathLike[str] | None = None,
) -> None:
    """Write parameters and config as a folder that transformers loads.

    >>> import tempfile
    >>> config = models.QwenConfig(64, 32, 64, 2, 4, 2, 8)
    >>> folder = os.path.join(tempfile.mkdtemp(), "tiny")
    >>> save_model(folder, models.qwen.init(random.key(0), config), config)
    >>> sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']
    """
    folder = os.fspath(folder)
    text = json.dumps(config.to_dict(), indent=2)
    os.makedirs(folder, exist_ok=True)
    arrays = {}
    for path, x in flat_names(params).items():
        name = hf_name(path)
        stack = stack_of(name, tuple(x.shape))
        if stack:
            arrays |= {expert_name(stack[0], e, stack[1]): v for e, v in enumerate(np.asarray(x))}
        else:
            arrays[name] = np.asarray(x)
    save_file(arrays, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with atomic_write(os.path.join(folder, "config.json")) as f:
        f.write(text.encode())


def save_qwen(folder: str | os.PathLike[str], params: PyTree, config: QwenConfig) -> None:
    """`save_model` by an earlier name."""
    save_model(folder, params, config)
