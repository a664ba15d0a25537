"""Meshes of devices, and how arrays are laid out over them.

    mesh = gf.make_mesh((2, 4), ("data", "model"))
    x = gf.device_put(x, gf.NamedSharding(mesh, gf.P("data", "model")))

`shard_map` runs a function on every device's parts, `jit` computes with whole arrays.
"""

from genesis_fn.core.array import Shard as Shard
from genesis_fn.core.sharding.arrays import (
    make_array_from_callback as make_array_from_callback,
    make_array_from_process_local_data as make_array_from_process_local_data,
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from genesis_fn.core.sharding.layout import (
    NamedSharding as NamedSharding,
    PartitionSpec as PartitionSpec,
    Sharding as Sharding,
    SingleDeviceSharding as SingleDeviceSharding,
)
from genesis_fn.core.sharding.mesh import Mesh as Mesh, make_mesh as make_mesh, set_mesh as set_mesh
from genesis_fn.transforms.sharding.constraint import (
    reshard as reshard,
    with_sharding_constraint as with_sharding_constraint,
)
from genesis_fn.transforms.sharding.shard_mapping import shard_map as shard_map
