"""Checkpoints that several processes write together: each the parts that it holds, once.

The processes talk through the store in which they met, not by collectives: a thread may save while
the program computes. The first one makes the folder, hears of all files when they are on the disk,
writes the manifest and gives the folder its name; before that nothing is a checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from genesis_fn.core.device import Device
from genesis_fn.core.errors import DistributedError
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.sharding.world import await_keys, world
from genesis_fn.distributed.agreement import FailedElsewhere, line_of
from genesis_fn.io.joint.gathering import sharding_over_processes
from genesis_fn.io.manifest import Piece, file_sum, leaf_entry
from genesis_fn.io.safetensors import save_file

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class OwnPart:
    """A part of an array that this process writes, and the array that it is of."""

    values: np.ndarray
    start: tuple[int, ...]
    dtype: str
    whole: tuple[int, ...]


def file_name(rank: int, size: int) -> str:
    """The file of a process."""
    return f"state-{rank + 1:05d}-of-{size:05d}.safetensors"


def new_number() -> int:
    """The number of a save: all processes count theirs alike."""
    return next(_numbers)


def parts_of(named: Mapping[str, Any], copy: bool) -> dict[str, OwnPart]:
    """What this process writes of named arrays: of those over a mesh its part, unless another one
    that holds the same writes it; of others, which all have, those whose turn it is."""
    found: dict[str, OwnPart] = {}
    here = world()
    for turn, (name, x) in enumerate(named.items()):
        sharding = sharding_over_processes(x)
        if sharding is None:
            if turn % here.size != here.rank:
                continue
            values, start = x, (0,) * np.ndim(x)
        else:
            start = start_of(sharding, x.shape, sharding.mesh.device, turn)
            if start is None:
                continue
            values = x.addressable_shards[0].data
        held = np.array(values) if copy else np.asarray(values)
        found[name] = OwnPart(held, start, str(held.dtype), tuple(np.shape(x)))
    return found


def start_of(
    sharding: NamedSharding, shape: tuple[int, ...], device: Device, turn: int
) -> tuple[int, ...] | None:
    """Where the part of a device begins in an array; None where another device writes it. Devices
    that hold the same take turns."""
    indices = sharding.devices_indices_map(shape)
    own = indices[device]
    holders = [d for d, index in indices.items() if index == own]
    if holders[turn % len(holders)] is not device:
        return None
    return tuple(s.start or 0 for s in own)


def write_part(folder: str, file: str, parts: Mapping[str, OwnPart]) -> dict[str, Any]:
    """Write the file of a process. Returns what the manifest says of it."""
    if not parts:
        return {"file": file, "sum": None, "parts": {}}
    path = os.path.join(folder, file)
    save_file({name: p.values for name, p in parts.items()}, path)
    told = {name: [p.dtype, p.whole, p.start, p.values.shape] for name, p in parts.items()}
    return {"file": file, "sum": file_sum(path), "parts": told}


def described(reports: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(files, arrays) of a manifest, of what the processes wrote."""
    files = {r["file"]: r["sum"] for r in reports if r["sum"] is not None}
    pieces: dict[str, list[Piece]] = {}
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    for r in reports:
        for name, (dtype, whole, start, shape) in r["parts"].items():
            kinds[name] = dtype, tuple(whole)
            pieces.setdefault(name, []).append(Piece(r["file"], name, tuple(start), tuple(shape)))
    leaves = {name: leaf_entry(*kinds[name], found) for name, found in pieces.items()}
    return files, leaves


# ---- what processes tell each other of a save ----


class SaveTalk:
    """What the processes tell each other of save number `number`."""

    def __init__(self, number: int) -> None:
        here = world()
        self.here, self.at = here, f"checkpoint/{number}"
        self.before = f"checkpoint/{number - 1}"

    def tell(self, what: str, value: Any) -> None:
        """Tell something of this save."""
        self.here.store.set(f"{self.at}/{what}", json.dumps(value))

    def hear(self, what: str, otherwise: str = "") -> Any:
        """What was told; None where `otherwise` was told instead. Raises DistributedError where
        neither is told in time."""
        keys = [f"{self.at}/{what}"]
        known = lambda key: self.here.store.check([f"{self.at}/{key}"])
        missing = keys

        def instead() -> None:
            if otherwise and known(otherwise):
                raise _Otherwise

        try:
            instead() if not known(what) else None
            missing = await_keys(self.here.store, keys, self.here.timeout, instead)
        except _Otherwise:
            return None
        if missing:
            raise DistributedError(
                f"a checkpoint waited {self.here.timeout:g} s for {what}, which did not come\n  "
                "distributed.initialize(timeout=...) waits longer"
            )
        return json.loads(self.here.store.get(keys[0]))

    def forget_the_one_before(self) -> None:
        """All processes are behind that save."""
        names = ["folder", "end", *[f"rank {r}" for r in range(self.here.size)]]
        for name in names:
            self.here.store.delete_key(f"{self.before}/{name}")


class _Otherwise(Exception):
    """Something else was told."""


def lead(
    number: int,
    parts: Mapping[str, OwnPart],
    make: Callable[[Callable[[str], tuple[dict[str, Any], dict[str, Any]]]], str],
) -> str:
    """The save of the first process. `make` makes the folder, has it filled by the function that it
    is given, and gives it its name.

    Raises what fails here, and FailedElsewhere where another process failed.
    """
    talk = SaveTalk(number)

    def fill(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
        talk.tell("folder", folder)
        here = talk.here
        own = write_part(folder, file_name(0, here.size), parts)
        reports = [own, *[talk.hear(f"rank {r}") for r in range(1, here.size)]]
        talk.forget_the_one_before()
        for rank, report in enumerate(reports):
            if "error" in report:
                raise FailedElsewhere(rank, report["error"])
            path = os.path.join(folder, report["file"])
            if report["sum"] and not os.path.isfile(path):
                raise DistributedError(_not_shared(rank, path))
        return described(reports)

    try:
        target = make(fill)
    except BaseException as error:
        rank = error.rank if isinstance(error, FailedElsewhere) else 0
        why = error.why if isinstance(error, FailedElsewhere) else line_of(error)
        talk.tell("end", {"rank": rank, "error": why})
        raise
    talk.tell("end", {"folder": target})
    return target


def follow(number: int, parts: Mapping[str, OwnPart]) -> str:
    """The save of another process. Returns the checkpoint's folder."""
    talk = SaveTalk(number)
    failed: Exception | None = None
    folder = talk.hear("folder", otherwise="end")
    if folder is not None:
        rank, size = talk.here.rank, talk.here.size
        try:
            if not os.path.isdir(folder):
                raise DistributedError(_not_shared(0, folder))
            report = write_part(folder, file_name(rank, size), parts)
        except Exception as error:
            failed, report = error, {"error": line_of(error)}
        talk.tell(f"rank {rank}", report)
    end = talk.hear("end")
    if failed is not None:
        raise failed
    if "error" in end:
        raise FailedElsewhere(end["rank"], end["error"])
    return end["folder"]


def _not_shared(rank: int, path: str) -> str:
    return (
        f"rank {rank} made {path}, which rank {world().rank} on {socket.gethostname()} does not "
        "see: checkpoints of several machines are in a folder that all of them share"
    )
