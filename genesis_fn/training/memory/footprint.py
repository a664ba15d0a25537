"""What a step of a run holds and needs, of its shapes alone: nothing is allocated or run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from genesis_fn.core import tree
from genesis_fn.core.sharding.placement import Placement
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.training.model import abstract_model
from genesis_fn.training.parallel.layout import layout_of
from genesis_fn.training.program import make_program
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import init_state
from genesis_fn.transforms import eval_shape
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct

_HOLDERS = 5  # largest arrays that are named


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The memory of a step.

    Args:
        held: bytes that are held from step to step, by what holds them.
        temporary: bytes that a step needs beside them at its peak: gradients and activations.
        holders: (path, bytes) of the largest arrays that are held.
    """

    held: dict[str, int]
    temporary: int
    holders: tuple[tuple[str, int], ...]

    @property
    def peak(self) -> int:
        """Bytes at the peak of a step."""
        return sum(self.held.values()) + self.temporary


def footprint(settings: TrainingSettings) -> Footprint:
    """The memory of a step, as it is compiled for the default device, or for this process's part of
    a mesh.

    Raises what `open_model` raises, of the model's config.json, and ValueError for axes that do not
    fit the processes or the batch.
    """
    model, layout = abstract_model(settings), layout_of(settings)
    program = make_program(settings, model.config, model.lora, layout, model.trained)
    state = eval_shape(lambda x: init_state(x, program.optimizer, program.recipe), model.trained)
    names = ["tokens", "labels"]
    if settings.data.separate and settings.data.packing != "off":
        names.append("segment_ids")
    rows = ShapeDtypeStruct((settings.batch, settings.data.length), "int32")
    batch = dict.fromkeys(names, rows)
    lowered = program.step.lower(state, model.frozen, batch)  # pyright: ignore
    if layout is None or program.layout is None:
        analysis = lowered.compile().memory_analysis()
        return footprint_of(settings, state, model.frozen, analysis)
    frozen = None if model.frozen is None else layout.parameters(model.frozen)
    rows = dict.fromkeys(names, layout.rows)
    captured = [None] * len(lowered.program.captured)  # pyright: ignore
    inputs = [*captured, *tree.leaves((program.layout.state, frozen, rows))]
    compiled = lowered.executable(Placement(layout.mesh, inputs))  # pyright: ignore
    held = lambda x, s: ShapeDtypeStruct(s.shard_shape(x.shape), x.dtype)
    if layout.mesh.batched:  # the memory is that of all devices
        held = lambda x, s: x
    state = tree.map(held, state, program.layout.state)
    below = None if frozen is None else tree.map(held, model.frozen, frozen)
    return footprint_of(settings, state, below, compiled.memory_analysis())


def footprint_of(
    settings: TrainingSettings, state: TrainState, frozen: PyTree, analysis: dict[str, int]
) -> Footprint:
    """The memory of a step whose state is known.

    Args:
        settings: of the run.
        state: arrays, or their shapes.
        frozen: the parameters below adapters, or None.
        analysis: of the compiled step.
    """
    parts = list(_parts(settings, state, frozen))
    held = {"parameters": 0, **{name: _bytes(part) for name, part in parts}}
    holders = sorted(_holders(parts), key=lambda x: -x[1])[:_HOLDERS]
    return Footprint(held, analysis["temp_size_in_bytes"], tuple(holders))


def _parts(
    settings: TrainingSettings, state: TrainState, frozen: PyTree
) -> Iterator[tuple[str, PyTree]]:
    yield "parameters" if frozen is None else "adapters", state.params
    if frozen is not None:
        yield "parameters", frozen
    yield "optimizer", state.opt_state
    if settings.ema:
        yield "average of the parameters", state.ema


def _holders(parts: list[tuple[str, PyTree]]) -> Iterator[tuple[str, int]]:
    for name, part in parts:
        for path, x in tree.leaves_with_path(part):
            inner = tree.keystr(path, simple=True, separator=".")
            yield f"{name}: {inner}", x.size * x.dtype.itemsize


def _bytes(part: PyTree) -> int:
    return sum(x.size * x.dtype.itemsize for x in tree.leaves(part))
