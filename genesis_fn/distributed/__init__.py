"""Several processes that compute together: how they start, meet, exchange values and end.

One process drives one device. `torchrun` or Slurm's `srun` starts them, `initialize` has them meet;
without either it is a world of one, in which the same program runs. In notebooks and tests, `run`
starts processes on this machine.
"""

from genesis_fn.distributed.initialization import (
    initialize as initialize,
    is_initialized as is_initialized,
    local_rank as local_rank,
    shutdown as shutdown,
)
from genesis_fn.distributed.local_processes import run as run
from genesis_fn.distributed.synchronization import (
    assert_equal as assert_equal,
    barrier as barrier,
    broadcast_one_to_all as broadcast_one_to_all,
    process_allgather as process_allgather,
    sync_global_devices as sync_global_devices,
)
from genesis_fn.transforms.staging.device_placement import (
    process_count as process_count,
    process_index as process_index,
)
