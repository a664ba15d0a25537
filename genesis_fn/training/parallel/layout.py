"""How a run is laid out over a mesh: its parameters, its state, and its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from genesis_fn import parallel
from genesis_fn.core import tree
from genesis_fn.core.device import default_device, local_devices
from genesis_fn.core.errors import ShardingError
from genesis_fn.core.sharding.layout import NamedSharding, PartitionSpec
from genesis_fn.core.sharding.mesh import Mesh, make_mesh
from genesis_fn.core.sharding.world import world
from genesis_fn.core.types.annotations import Array, PyTree
from genesis_fn.training.parallel.axes import BATCH_AXES, axes_for, check_batch
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.transforms.staging.device_placement import device_put


@dataclasses.dataclass(frozen=True)
class RunLayout:
    """The mesh of a run, and what is where on it."""

    mesh: Mesh

    @property
    def _batch_axes(self) -> tuple[str, ...]:
        return tuple(name for name in BATCH_AXES if name in self.mesh.shape)

    @property
    def whole(self) -> NamedSharding:
        """The sharding of what every device has."""
        return parallel.replicated(self.mesh)

    @property
    def parts_of_batch(self) -> NamedSharding:
        """The sharding of [parts, rows, ...], the parts of a batch that follow each other."""
        return NamedSharding(self.mesh, PartitionSpec(None, self._batch_axes or None))

    @property
    def rows(self) -> NamedSharding:
        """The sharding of a batch [rows, ...]."""
        axes = self._batch_axes
        return parallel.batch_sharding(self.mesh, axes) if axes else self.whole

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Array]:
        """A batch, of which each device takes its rows; every process gives the whole batch."""
        return {name: device_put(x, self.rows) for name, x in batch.items()}

    def parameters(self, params: PyTree) -> PyTree:
        """The shardings of a decoder's parameters, arrays or their shapes.

        Raises ShardingError where they cannot be divided so.
        """
        found = tree.map(lambda _: self.whole, params)
        if "model" in self.mesh.shape:
            try:
                found = parallel.tensor(params, self.mesh)
            except ShardingError as error:
                text = str(error).partition("\n")[0]
                raise ShardingError(
                    f"parallel is model={self.mesh.shape['model']}, which does not fit this model:"
                    f" {text}"
                ) from None
        return self._divided(params, found)

    def adapters(self, adapters: PyTree) -> PyTree:
        """The shardings of adapters, which are thin: fsdp alone divides them, where it fits."""
        return self._divided(adapters, tree.map(lambda _: self.whole, adapters))

    def _divided(self, params: PyTree, base: PyTree) -> PyTree:
        if "fsdp" not in self.mesh.shape:
            return base
        return parallel.fsdp(params, self.mesh, "fsdp", base=base)


def layout_of(settings: TrainingSettings) -> RunLayout | None:
    """The layout that settings ask for; None where one device computes as ever.

    Raises ValueError where the sizes do not fit the processes, or the batch.
    """
    axes = axes_for(settings.parallel, world().size, _shown_devices())
    if not axes:
        return None
    check_batch(axes, settings.batch, settings.accumulate)
    return RunLayout(make_mesh(tuple(axes.values()), tuple(axes)))


def divides(settings: TrainingSettings) -> bool:
    """Whether the mesh of settings divides the parts of their batch."""
    try:
        layout_of(settings)
    except ValueError:
        return False
    return True


def fits_here(text: str) -> bool:
    """Whether axes are for as many processes as there are."""
    try:
        axes_for(text, world().size, _shown_devices())
    except ValueError:
        return False
    return True


def _shown_devices() -> int:
    """How many devices the CPU shows in a world of one."""
    cpu = world().size == 1 and default_device().kind == "cpu"
    return len(local_devices("cpu")) if cpu else 1
