"""How primitives are partitioned: rules for `partition`, by kind of primitive."""

from genesis_fn.transforms.sharding.rules import (
    collectives as collectives,
    elementwise as elementwise,
    fused as fused,
    indexing as indexing,
    products as products,
    programs as programs,
    random as random,
    reductions as reductions,
    shape as shape,
)
