"""Which arrays of a Hugging Face folder a parameter is made of.

A parameter is an array of the file under the same name, with two exceptions, both of mixtures of
experts, whose weights are stacked here, [experts, out, in]: files have an array for each expert
(`mlp.experts.3.up_proj.weight`), or the stack itself, in which the rows of `up_proj` follow those
of `gate_proj` (`mlp.experts.gate_up_proj`, as transformers has them in memory).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

from genesis_fn.core import dtypes
from genesis_fn.core.device import cpu, using_device
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.models import DecoderConfig
from genesis_fn.models.decoder_init import init_around, init_layer, with_layers
from genesis_fn.random import key
from genesis_fn.transforms.jitting import jit

WEIGHT_DTYPES = (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64)

_STACK = re.compile(r"(.*\.experts)\.(gate_proj|up_proj|down_proj)\.weight")
_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
# Tables that old files have and transformers computes from the config instead, as `rotary` does.
COMPUTED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class Part(NamedTuple):
    """An array of a file, of which a parameter has the rows of share `which` of `shares`.

    The rows are those of the last but one axis; the shares are equal.
    """

    name: str
    shape: tuple[int, ...]
    which: int = 0
    shares: int = 1


def parameter_shapes(config: DecoderConfig, most_layers: int | None = None) -> PyTree:
    """The parameters of a config, as shapes; of its layers the first `most_layers`."""
    # One layer of each kind stands for all: to trace all 28 of a small model took 25 ms more.
    with using_device(cpu()):  # where a key costs no transfer
        around = jit(lambda: init_around(key(0), config, dtypes.F32)).eval_shape()
        kinds = {
            has_experts: jit(
                lambda e=has_experts: init_layer(key(0), config, dtypes.F32, e)
            ).eval_shape()
            for has_experts in dict.fromkeys(config.sparse_layers)
        }
    return with_layers(around, [kinds[sparse] for sparse in config.sparse_layers[:most_layers]])


def hf_name(path: str) -> str:
    """The Hugging Face name of a dotted path: all but the output layer lie in `model`."""
    return path if path.startswith("lm_head.") else f"model.{path}"


def stack_of(name: str, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """(`model.layers.0.mlp.experts`, `up_proj`) of a stack of experts' weights, None of others."""
    match = _STACK.fullmatch(name)
    return (match.group(1), match.group(2)) if match and len(shape) == 3 else None


def expert_name(experts: str, number: int, projection: str) -> str:
    """The name of one expert's weight."""
    return f"{experts}.{number}.{projection}.weight"


def parts(name: str, shape: tuple[int, ...], available: Container[str]) -> Iterator[Part]:
    """The arrays that a parameter is made of, in its order, of those that are available."""
    stack = stack_of(name, shape)
    if stack is None:
        yield Part(name, shape)
        return
    experts, projection = stack
    fused = f"{experts}.{_FUSED[projection]}"
    count, rows, columns = shape
    if fused not in available:
        for e in range(count):
            yield Part(expert_name(experts, e, projection), (rows, columns))
    elif projection == "down_proj":
        yield Part(fused, shape)
    else:
        yield Part(fused, (count, 2 * rows, columns), which=int(projection == "up_proj"), shares=2)
