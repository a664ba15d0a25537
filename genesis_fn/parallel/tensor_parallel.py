"""Tensor parallelism: the matrices of a layer are divided among devices, which compute parts of the
same activations.

Rules say by the path of a parameter which of its dimensions an axis divides. The first matrix of a
block is divided by its outputs and the second by its inputs, so that a block needs one sum over the
devices in each direction. Source: Shoeybi et al., "Megatron-LM: training multi-billion parameter
language models using model parallelism", 2019.

Between blocks every device would have all activations, and compute all norms. `SequenceParallel`
divides these by positions. Source: Korthikanti et al., "Reducing activation recomputation in large
transformer models", 2022.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from genesis_fn import Array
from genesis_fn.core import errors, tree
from genesis_fn.core.sharding.layout import NamedSharding, PartitionSpec, check_shape, entries
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.transforms.sharding.constraint import constrained

OUTPUTS, INPUTS = PartitionSpec("model", None), PartitionSpec(None, "model")

# Weights are [outputs, inputs]; experts are stacked in front.
DECODER: Mapping[str, PartitionSpec] = {
    r"(q|k|v)_proj\.weight$": OUTPUTS,
    r"(q|k|v)_proj\.bias$": PartitionSpec("model"),
    r"o_proj\.weight$": INPUTS,
    r"mlp\.(gate|up)_proj\.weight$": OUTPUTS,
    r"mlp\.down_proj\.weight$": INPUTS,
    r"experts\.(gate|up)_proj\.weight$": PartitionSpec(None, "model", None),
    r"experts\.down_proj\.weight$": PartitionSpec(None, None, "model"),
    r"embed_tokens\.weight$": OUTPUTS,
    r"lm_head\.weight$": OUTPUTS,
}
"""The rules of Qwen, Llama and Mistral, whose parameters have Hugging Face's names."""


def tensor(
    params: Any,
    mesh: Mesh,
    rules: Mapping[str, PartitionSpec] = DECODER,
    *,
    axis: Hashable = "model",
) -> Any:
    """How parameters are laid out, by rules from paths to PartitionSpecs.

    Args:
        params: pytree of arrays or ShapeDtypeStructs.
        mesh: the devices.
        rules: {regular expression: PartitionSpec}; the first one that is found in the path of a
            parameter (`layers.0.mlp.up_proj.weight`) is its rule. "model" in the shipped rules
            stands for `axis`. Parameters without a rule are whole.
        axis: name of the axis of the mesh.

    Returns:
        A pytree of NamedShardings, for `device_put`, `jit` and `laid_out`.

    Raises:
        ShardingError: the axis does not divide a parameter as its rule says, or no rule is for any
            parameter.

    >>> mesh = gf.make_mesh((1,), ("model",))
    >>> params = {"mlp": {"up_proj": {"weight": jnp.ones((8, 4))}}}
    >>> parallel.tensor(params, mesh)["mlp"]["up_proj"]["weight"].spec
    PartitionSpec('model')
    """
    leaves, treedef = tree.flatten(params)
    paths = [".".join(map(str, path)) for path in _plain_paths(params)]
    found = [_rule(path, rules) for path in paths]
    if not any(spec is not None for spec in found):
        shown = ", ".join(paths[:3])
        raise errors.ShardingError(
            f"tensor: no rule is for any parameter; the rules are {list(rules)}, the parameters "
            f"{shown}{', ...' * (len(paths) > 3)}"
        )
    shardings = []
    for x, path, spec in zip(leaves, paths, found):
        named = _named(spec or PartitionSpec(), axis)
        check_shape(tuple(x.shape), mesh, entries(named), path)
        shardings.append(NamedSharding(mesh, named))
    return tree.unflatten(treedef, shardings)


def _plain_paths(params: Any) -> list[list[Any]]:
    return [
        [tree.keystr((key,), simple=True) for key in path]
        for path, _ in tree.leaves_with_path(params)
    ]


def _rule(path: str, rules: Mapping[str, PartitionSpec]) -> PartitionSpec | None:
    return next((spec for pattern, spec in rules.items() if re.search(pattern, path)), None)


def _named(spec: PartitionSpec, axis: Hashable) -> PartitionSpec:
    """The spec with the name of the mesh's axis in place of "model"."""
    put = lambda entry: axis if entry == "model" else entry
    return PartitionSpec(*[tuple(map(put, e)) if isinstance(e, tuple) else put(e) for e in spec])


@dataclass(frozen=True)
class SequenceParallel:
    """Activations [B, T, features] that are divided by positions between the blocks of a decoder
    under tensor parallelism: norms and residual sums are computed once, and each device keeps its
    part. The sum of a block is scattered, and what the next one reads gathered, which together is
    what the sum sends without.

    Args:
        mesh: the devices.
        axis: name of the axis of tensor parallelism; its size divides T.
        batch: name of the axis that divides the rows, several, or None.

    >>> mesh = gf.make_mesh((1,), ("model",))
    >>> config = models.DecoderConfig(64, 32, 64, 2, 4, 2, 8)
    >>> params = models.decoder.init(random.key(0), config)
    >>> tokens = jnp.zeros((2, 4), int)
    >>> sequence = parallel.SequenceParallel(mesh)
    >>> models.decoder.loss(params, tokens, tokens, config, sequence=sequence).shape
    ()
    """

    mesh: Mesh
    axis: Hashable = "model"
    batch: Hashable | tuple[Hashable, ...] | None = None

    def enter(self, x: Array) -> Array:
        """What a block reads: all positions. Its cotangent, a sum over the devices, is divided."""
        return constrained(x, self._of(None), self._of(self.axis))

    def leave(self, x: Array) -> Array:
        """What a block computed, a sum over the devices: divided. Its cotangent is gathered."""
        return constrained(x, self._of(self.axis), self._of(None))

    def _of(self, positions: Hashable) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.batch, positions, None))
