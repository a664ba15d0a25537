"""How well a run uses its device: the share of its peak, and memory."""

from __future__ import annotations

import dataclasses
import resource

from genesis_fn import cuda
from genesis_fn.compiler.target import TARGETS
from genesis_fn.core.device import Device
from genesis_fn.models import DecoderConfig

_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True)
class Meter:
    """Of a run on a device.

    Args:
        device: where the run computes, or this process's part of it.
        token_flops: floating-point operations that training on a token takes.
        peak: those that all devices of the run reach in a second; None where that is not known.
    """

    device: Device
    token_flops: float
    peak: float | None

    def mfu(self, rate: float) -> float | None:
        """The share of the device's peak that so many tokens per second use; None: not known."""
        return None if self.peak is None else rate * self.token_flops / self.peak

    def memory(self) -> int:
        """The most bytes that were in use at one time: of the GPU's pool, else of the process."""
        if self.device.platform == "cuda":
            return cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # which counts in KiB


def peak_of(device: Device, compute: str) -> float | None:
    """The operations per second that a device reaches at best in matrix products of a dtype.

    It is what kernels were measured to reach, or in proportion to that, which is less than data
    sheets say. None for a CPU and for a GPU that no table lists. Products of float32 are TF32's.
    """
    if device.platform != "cuda":
        return None
    name = cuda.get_device_name(device)
    known = [target for part, target in TARGETS.items() if part in name]
    return known[0].matrix_rate(_ITEMSIZE[compute]) if known else None


def training_flops(config: DecoderConfig, length: int, adapters: int = 0) -> float:
    """The floating-point operations that training on a token takes, counted from the config.

    A weight of a matrix product takes 2 in the forward pass and 4 in the backward pass, or 2 there
    where it is frozen; a table that is only looked up takes none, experts count as far as a token
    visits them. A key that a query attends to takes 12 for each entry of its head: 4 forward and 8
    backward. Queries attend to the keys up to their own, in rows of one text. What is computed
    again by `remat` is not counted.

    Args:
        config: the hyperparameters.
        length: tokens of a row.
        adapters: number of the adapters' parameters; 0 where all parameters are trained.
    """
    weights = 4 * _product_weights(config) + 6 * adapters
    if not adapters:
        weights = 6 * _product_weights(config)
    keys = sum(_mean_keys(length, window) for window in config.windows)
    return weights + 12 * config.num_attention_heads * config.head_dim * keys


def _product_weights(config: DecoderConfig) -> int:
    """The weights that a token is multiplied by."""
    h, heads = config.hidden_size, config.num_attention_heads
    attention = h * config.head_dim * 2 * (heads + config.num_key_value_heads)
    dense = 3 * h * config.intermediate_size
    sparse = 3 * h * config.moe_intermediate_size * config.num_experts_per_tok
    sparse += h * config.num_experts  # which chooses the experts
    layers = sum(attention + (sparse if s else dense) for s in config.sparse_layers)
    return layers + h * config.vocab_size


def _mean_keys(length: int, window: int | None) -> float:
    """How many keys a query of a row attends to, on average."""
    w = length if window is None else min(window, length)
    return (w * (w + 1) / 2 + (length - w) * w) / length
