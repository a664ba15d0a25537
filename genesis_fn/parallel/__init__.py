"""Training on several devices: how parameters and batches are laid out over a mesh, and functions
that compute over one of its axes.

    mesh = gf.make_mesh((4,), ("data",))
    shardings = parallel.fsdp(params, mesh)
    params = gf.device_put(params, shardings)
    loss = parallel.laid_out(loss, shardings)

Programs on whole arrays are partitioned over the mesh (`data`, `fsdp`, `tensor`); what follows a
schedule of its own is a function under `shard_map` (`ring_attention`, `pipeline`, `experts`). Each
is a module that reads as its paper. They combine on one mesh, by an axis for each.
"""

from genesis_fn.parallel.context import (
    context_attention as context_attention,
    from_zigzag as from_zigzag,
    ring_attention as ring_attention,
    to_zigzag as to_zigzag,
)
from genesis_fn.parallel.data_parallel import batch_sharding as batch_sharding, data as data
from genesis_fn.parallel.decoder_stages import (
    layers_of_stages as layers_of_stages,
    pipelined_decoder as pipelined_decoder,
    stages_of as stages_of,
)
from genesis_fn.parallel.experts import dispatched_mlp as dispatched_mlp, expert_mlp as expert_mlp
from genesis_fn.parallel.fully_sharded import fsdp as fsdp
from genesis_fn.parallel.layouts import (
    laid_out as laid_out,
    replicated as replicated,
    state_shardings as state_shardings,
)
from genesis_fn.parallel.pipeline_schedule import pipeline as pipeline
from genesis_fn.parallel.tensor_parallel import (
    DECODER as DECODER,
    SequenceParallel as SequenceParallel,
    tensor as tensor,
)
