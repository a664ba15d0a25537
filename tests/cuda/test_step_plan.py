"""What one layer of Qwen3-0.6B costs beside its products and attention: kernels and their bytes,
forward and backward, at B8 x S2048. Nothing is computed."""

from __future__ import annotations

import dataclasses

import programs  # noqa: F401 (it chooses the interpreting driver)

import genesis_fn as g
from genesis_fn import random
from genesis_fn.backends.cuda.lower.steps import keeps_fused
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.group import FusionGroup
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.models import qwen
from genesis_fn.transforms.precision.autocast import amp
from genesis_fn.transforms.staging.stage_trace import stage

UNIT = 16384 * 1024 * 2  # bytes of one bfloat16 activation

# By hand: forward 26 units (two norms with their residual sums 11, norms and rotations of queries
# and keys 6, gate 9), backward 47 (gate 18, norms 20, norms and rotations 9), and 5.6 for the casts
# of weights to bfloat16 and of their gradients back, in fourteen kernels.
CEILING_UNITS = 81.0
CEILING_KERNELS = 24


def gradients(layers: int) -> Jaxpr:
    config = dataclasses.replace(
        qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=layers, vocab_size=1024
    )
    params = g.eval_shape(lambda: qwen.init(random.key(0), config))
    leaves, structure = tree.flatten(params)

    def loss(params, tokens):
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config)

    def run(tokens, *leaves):
        value, grads = g.value_and_grad(amp(loss, "bfloat16"))(
            tree.unflatten(structure, leaves), tokens
        )
        return [value, *tree.leaves(grads)]

    kinds = [aval((8, 2049), dtypes.I32), *[aval(x.shape, x.dtype) for x in leaves]]
    return rematerialise_jaxpr(simplify_jaxpr(stage(run, kinds)[0], keeps_fused(H200)))


def generated(layers: int) -> list[FusionGroup]:
    return [x for x in fuse_jaxpr(gradients(layers), H200).groups if x.kernel is not None]


def test_a_layer_moves_little_more_than_it_must() -> None:
    two, one = generated(3), generated(2)
    units = (sum(x.traffic for x in two) - sum(x.traffic for x in one)) / UNIT
    assert units <= CEILING_UNITS
    assert len(two) - len(one) <= CEILING_KERNELS
    # Every norm's backward is one pass over its rows.
    assert not [x for x in two if x.domain is not None and x.domain.reduced >= 16384]
    with without("row_column_reduce"):
        apart = (sum(x.traffic for x in generated(3)) - sum(x.traffic for x in generated(2))) / UNIT
    assert apart > units + 10
