"""Random keys and bits: divided as the keys are. The bits of one key are made whole."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.core.types.extended import is_key
from genesis_fn.primitives.random_bits import key_hash_p, random_bits_p, unwrap_p, wrap_p
from genesis_fn.transforms.sharding.partitioner import Placed, partitions
from genesis_fn.transforms.sharding.rules.letters import by_letters


@partitions(random_bits_p, key_hash_p, wrap_p, unwrap_p)
def _by_key(mesh: Mesh, e: Eqn, operands: list[Any]) -> list[Placed]:
    key = operands[0].aval
    count = key.ndim if is_key(key.dtype) else key.ndim - 1
    letters = [_of_keys(x.aval, count) for x in operands]
    return by_letters(mesh, e, operands, letters, [_of_keys(e.outs[0].aval, count)])


def _of_keys(x: Aval, count: int) -> list[Hashable]:
    """The letters of an array whose first dimensions are those of the keys."""
    return [i if i < count else None for i in range(x.ndim)]
