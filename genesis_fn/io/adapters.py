"""Adapters in PEFT's files: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import tempfile
from typing import Any

import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import from_numpy
from genesis_fn.core.errors import ArgumentError, FileError, said
from genesis_fn.core.files import brief, read_json
from genesis_fn.core.types.annotations import Array, DTypeLike, PyTree
from genesis_fn.io.huggingface import WEIGHT_DTYPES, hf_name
from genesis_fn.io.joint.gathering import whole, writes
from genesis_fn.io.lock import folder_locked
from genesis_fn.io.mismatches import Mismatches
from genesis_fn.io.safetensors import atomic_write, load_numpy, save_file, sync_folder
from genesis_fn.nn import lora

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LARGEST_CONFIG = 1 << 24  # bytes
_PREFIX = "base_model.model."
_UNFINISHED = ".saving-"
# Fields of PEFT's file that say nothing of what the adapters compute.
_ABOUT = {
    "auto_mapping", "base_model_name_or_path", "inference_mode", "megatron_core", "peft_type",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
    "layers_pattern",
}  # fmt: skip
_KNOWN = {field.name for field in dataclasses.fields(lora.LoraConfig)}
_LISTS = ("target_modules", "exclude_modules", "layers_to_transform")


def save_adapter(
    folder: str | os.PathLike[str],
    adapters: PyTree,
    config: lora.LoraConfig,
    *,
    base_model: str | None = None,
) -> None:
    """Write adapters of a decoder as a folder that PEFT loads, whole or as it was.

    Args:
        folder: made if it is missing; gets adapter_config.json and adapter_model.safetensors.
        adapters: from `nn.lora.init` over the parameters of a decoder.
        config: what they are like; "all-linear" is written as the names of the layers.
        base_model: the folder or name of the model that they are of, which PEFT's file keeps.

    Raises:
        ArgumentError: there are no adapters.
        OSError: writing failed; names the file.

    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.decoder.init(random.key(0), config)
    >>> settings = nn.lora.LoraConfig(r=2, target_modules=("q_proj", "v_proj"))
    >>> folder = os.path.join(tempfile.mkdtemp(), "adapter")
    >>> save_adapter(folder, nn.lora.init(random.key(1), params, settings), settings)
    >>> sorted(os.listdir(folder))
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    arrays = {
        _PREFIX + hf_name(f"{path}.x").removesuffix("x") + _file_name(name): x
        for path, own in lora.layers(adapters)
        for name, x in own.items()
    }
    if not arrays:
        raise ArgumentError("save_adapter: there are no adapters")
    arrays = {name: whole(x) for name, x in arrays.items()}
    if not writes(adapters):
        return
    resolved = config
    if (
        config.target_modules == lora.ALL_LINEAR
    ):  # which PEFT takes the experts of a mixture for too
        names = {path.rpartition(".")[2] for path, _ in lora.layers(adapters)}
        resolved = dataclasses.replace(config, target_modules=tuple(sorted(names)))
    folder = os.path.abspath(os.fspath(folder))
    os.makedirs(folder, exist_ok=True)
    with folder_locked(folder):
        for name in os.listdir(folder):
            if name.startswith(_UNFINISHED):  # of a save that was killed
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        temporary = tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder)
        try:
            save_file(arrays, os.path.join(temporary, WEIGHTS), {"format": "pt"})
            with atomic_write(os.path.join(temporary, CONFIG)) as f:
                fields = config_fields(resolved) | {"base_model_name_or_path": base_model}
                f.write(json.dumps(fields, indent=2).encode() + b"\n")
            # Nothing loads a folder without its config, which is removed first and comes last.
            if os.path.lexists(os.path.join(folder, CONFIG)):
                os.unlink(os.path.join(folder, CONFIG))
                sync_folder(folder)
            for name in (WEIGHTS, CONFIG):
                os.replace(os.path.join(temporary, name), os.path.join(folder, name))
                sync_folder(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def load_adapter(
    folder: str | os.PathLike[str], params: PyTree, *, dtype: DTypeLike | None = None
) -> tuple[PyTree, lora.LoraConfig]:
    """Read adapters that PEFT or `save_adapter` wrote.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        params: the parameters of the decoder that they are of.
        dtype: floating dtype of the adapters; None keeps that of the file.

    Returns:
        (adapters, config), for `nn.lora.apply` and `nn.lora.merge`.

    Raises:
        FileError: a file is missing or malformed, a field of the config is not honoured, or the
            arrays are not those of the parameters: names them.

    >>> config = gf.models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = gf.models.decoder.init(random.key(0), config)
    >>> settings = nn.lora.LoraConfig(r=2, target_modules=("q_proj", "v_proj"))
    >>> folder = os.path.join(tempfile.mkdtemp(), "adapter")
    >>> save_adapter(folder, nn.lora.init(random.key(1), params, settings), settings)
    >>> adapters, loaded = load_adapter(folder, params)
    >>> loaded == settings
    True
    """
    folder = os.fspath(folder)
    if not os.path.isdir(folder):
        raise FileError(f"{folder}: no folder with an adapter")
    wanted = None if dtype is None else dtypes.dtype(dtype)
    path = os.path.join(folder, CONFIG)
    if not os.path.lexists(path):
        raise FileError(f"{folder}: no adapter, {CONFIG} is missing")
    config = config_of(read_json(path, _LARGEST_CONFIG), path)
    file = os.path.join(folder, WEIGHTS)
    if not os.path.lexists(file):
        pickled = os.path.lexists(os.path.join(folder, "adapter_model.bin"))
        hint = "; adapter_model.bin is not read: pickles run code" if pickled else ""
        raise FileError(f"{folder}: {WEIGHTS} is missing{hint}")
    found, wrong = _layers_of(load_numpy(file), params, config)
    if wrong:
        raise FileError(f"{file}: the adapters do not fit the model\n  {wrong.report()}")
    arrays = {
        path: {name: _array(x, wanted) for name, x in own.items()} for path, own in found.items()
    }
    return lora.from_layers(params, arrays), config


def _array(x: np.ndarray, dtype: dtypes.DType | None) -> Array:
    return from_numpy(x if dtype is None else x.astype(dtype))


def _layers_of(
    arrays: dict[str, np.ndarray], params: PyTree, config: lora.LoraConfig
) -> tuple[dict[str, dict[str, np.ndarray]], Mismatches]:
    """{path: {"lora_A": ...}} of a file, and what of it does not fit the parameters."""
    wrong = Mismatches()
    template = lora.shapes(params, config)
    named = {
        _PREFIX + hf_name(f"{path}.x").removesuffix("x") + _file_name(name): (path, name, shape)
        for path, own in template.items()
        for name, shape in own.items()
    }
    wrong.missing = [name for name in named if name not in arrays]
    wrong.unexpected = [
        name for name, x in arrays.items() if name not in named and not _is_head(name, x, params)
    ]
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, (path, own, shape) in named.items():
        x = arrays.get(name)
        if x is None:
            continue
        if x.dtype not in WEIGHT_DTYPES:
            wrong.dtypes[name] = f"is of dtype {x.dtype}"
        if tuple(x.shape) != shape:
            wrong.shapes[name] = f"has shape {list(x.shape)}, the model asks for {list(shape)}"
        found.setdefault(path, {})[own] = x
    return found, wrong


def _is_head(name: str, x: np.ndarray, params: PyTree) -> bool:
    """Whether an array is the weight of the output layer, which PEFT saves with its adapter."""
    if name != f"{_PREFIX}lm_head.base_layer.weight" or "lm_head" not in params:
        return False
    weight = np.asarray(params["lm_head"]["weight"])
    return weight.shape == x.shape and np.array_equal(weight, x.astype(weight.dtype))


def _file_name(name: str) -> str:
    return name if name == "lora_magnitude_vector" else f"{name}.weight"


# ---- adapter_config.json ----


def config_fields(config: lora.LoraConfig) -> dict[str, Any]:
    """The contents of an adapter_config.json."""
    fields: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "init_lora_weights": config.init_lora_weights,
        "rank_pattern": dict(config.rank_pattern),
        "alpha_pattern": dict(config.alpha_pattern),
    }
    for name in _LISTS:
        value = getattr(config, name)
        fields[name] = list(value) if isinstance(value, tuple) else value
    return fields


def config_of(fields: dict[str, Any], path: str) -> lora.LoraConfig:
    """The config of an adapter_config.json.

    Raises FileError for a kind of adapter, or a field, that is not honoured and says something.
    """
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise FileError(f"{path}: peft_type is {brief(kind)}, only LORA is read")
    # What a file may leave out is PEFT's default, not ours.
    given: dict[str, Any] = {"r": 8, "lora_alpha": 8, "target_modules": None}
    for name, value in fields.items():
        if name in _KNOWN:
            given[name] = value
        elif name not in _ABOUT and value not in (None, False, "none", {}, []):
            raise FileError(
                f"{path}: {name} is {brief(value)}, which is not computed here; adapters without "
                "it are"
            )
    if given["target_modules"] is None:
        raise FileError(f"{path}: target_modules is missing: which layers are adapted")
    # An adapter that is saved has weights: how they were drawn says nothing but that some ways
    # change the weights below them too.
    drawn = given.pop("init_lora_weights", True)
    if drawn not in (True, False, None, "gaussian"):
        raise FileError(
            f"{path}: init_lora_weights is {brief(drawn)}, which changes the weights below the "
            "adapters; convert the adapter by PEFT's path_initial_model_for_weight_conversion"
        )
    number = lambda x: type(x) in (int, float)
    checks = {"r": number, "lora_alpha": number, "lora_dropout": number}
    for name, check in checks.items():
        if name in given and not check(given[name]):
            raise FileError(f"{path}: {name} is {brief(given[name])}, expected a number")
    if isinstance(given.get("layers_to_transform"), int):
        given["layers_to_transform"] = [given["layers_to_transform"]]
    try:
        return lora.LoraConfig(**{k: v for k, v in given.items() if v is not None})
    except (ArgumentError, TypeError, re.error) as error:
        raise FileError(f"{path}: {said(error)}") from None
