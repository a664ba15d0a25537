"""Steps of a run taken again, and compared with what it came to: bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from genesis_fn import io
from genesis_fn.core import tree
from genesis_fn.core.errors import FileError
from genesis_fn.core.sharding.world import world
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.distributed.synchronization import exchanged
from genesis_fn.io.joint.gathering import sharding_over_processes
from genesis_fn.random import Key, key_data
from genesis_fn.training.memory.shortage import telling_what_fits
from genesis_fn.training.monitoring.log import Log, as_logged
from genesis_fn.training.parallel.processes import check_alike
from genesis_fn.training.run import alone_in, prepare, settings_of
from genesis_fn.training.settings.reading import KEYS, value_of
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import leaf_names, metrics_of, norms_by_group


@dataclasses.dataclass(frozen=True)
class Verification:
    """Steps that were taken again.

    Args:
        start: the step of the checkpoint that they began with; 0: that of no checkpoint.
        steps: their number.
        compared: rows of the log that they were compared with.
        state: the step of the checkpoint whose whole state was compared with theirs; None: none was
            in reach.
        differences: what differs, first things first; empty where nothing does.
    """

    start: int
    steps: int
    compared: int
    state: int | None
    differences: tuple[str, ...]


def verify(folder: str, steps: int, parallel: str | None = None) -> Verification:
    """Take steps of a run again, from one of its checkpoints or from its beginning, and compare
    bits.

    The losses and gradient norms of the steps are compared with the log's, and the state with that
    of a later checkpoint where the steps reach one. Nothing of the folder changes.

    Args:
        folder: the run's folder.
        steps: how many steps; fewer where the run has no more.
        parallel: other axes over processes than the run's, whose bits are others then.

    Raises:
        FileError: there is no run, or nothing of the steps to compare with.
        BlockingIOError: a run uses the folder.
        RunOutOfMemory: the memory ran out.
    """
    settings = settings_of(folder, parallel)
    check_alike({name: value_of(settings, name) for name in KEYS})
    return telling_what_fits(settings, lambda: _verify(settings, folder, steps))


def _verify(settings: TrainingSettings, folder: str, steps: int) -> Verification:
    root = os.path.join(folder, "checkpoints")
    with alone_in(folder):
        prepared = prepare(settings, lambda _: None)
        log = Log.read(os.path.join(folder, "log.jsonl"))
        rows = {r["step"]: r for r in log if "grad_norm" in r}
        if not rows:
            raise FileError(f"{folder}: log.jsonl has no step: there is nothing to compare with")
        saved, last = io.steps(root), max(rows)
        # The newest one behind which so many steps follow, else the beginning of the run.
        start = max([s for s in saved if s + steps <= last], default=0)
        state, template = prepared.state, tree.map(_shape, prepared.state)
        if start:
            state, _, values = io.restore(root, state, start)
            prepared.stream.set_state(values["data"])
        found: list[str] = []
        names, compared, reached = leaf_names(state.params), 0, None
        end = min(start + steps, last)
        for number in range(start + 1, end + 1):
            state, numbers = prepared.step(
                state, prepared.model.frozen, prepared.placed(next(prepared.stream))
            )
            metrics = metrics_of(numbers)
            if number in rows:
                compared += 1
                ours = {"loss": metrics.loss, "grad_norm": metrics.grad_norm}
                groups = norms_by_group(names, metrics.squares)
                ours |= {f"grad_norm/{group}": norm for group, norm in groups.items()}
                found += [
                    f"step {number}: {name} is {value!r}, and was {rows[number].get(name)!r}"
                    for name, value in ours.items()
                    if rows[number].get(name) != as_logged(value)
                ]
            if number in saved:
                reached = number
                before, _, _ = io.restore(root, template, number)
                found += [f"step {number}: {name} differs" for name in differences(state, before)]
    if not compared and reached is None:
        raise FileError(
            f"{folder}: steps {start + 1} to {end} are not in log.jsonl (log.every is "
            f"{settings.log.every}), and no checkpoint is of one: take more steps"
        )
    told = exchanged(json.dumps(found).encode(), "differences") if world().size > 1 else []
    everyone = [line for text in told for line in json.loads(text)] or found
    return Verification(start, end - start, compared, reached, tuple(dict.fromkeys(everyone)))


def differences(a: PyTree, b: PyTree) -> list[str]:
    """The paths of the leaves of two trees of one structure whose bits differ; of those that
    several processes hold, in the parts of this one."""
    pairs = zip(tree.leaves_with_path(a), tree.leaves(b), strict=True)
    return [
        tree.keystr(path, simple=True, separator=".")
        for (path, x), y in pairs
        if _bits(x) != _bits(y)
    ]


def _bits(x: Any) -> bytes:
    if sharding_over_processes(x) is not None:
        x = x.addressable_shards[0].data
    return np.asarray(key_data(x) if isinstance(x, Key) else x).tobytes()


@dataclasses.dataclass(frozen=True)
class _Like:
    """What stands for an array, and says where it is."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any


def _shape(x: Any) -> _Like:
    return _Like(x.shape, x.dtype, x.device)
