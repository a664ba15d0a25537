"""The setting `parallel`: "data=2,model=2", the axes of a mesh and their sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from genesis_fn.core.files import brief

# In the order in which a mesh has them: devices that are neighbours along the last one exchange
# most, and are nearest to each other.
AXES = ("data", "fsdp", "model")
BATCH_AXES = ("data", "fsdp")  # which divide the rows of a batch
# What a program of one's own can have, and the commands have not.
_BY_HAND = {
    **dict.fromkeys(("context", "sequence", "seq", "cp"), "parallel.context_attention"),
    **dict.fromkeys(("stage", "stages", "pipeline", "pp"), "parallel.pipelined_decoder"),
    **dict.fromkeys(("expert", "experts", "ep"), "parallel.expert_mlp"),
}
_MEANT = {
    "dp": "data", "ddp": "data", "zero": "fsdp", "shard": "fsdp", "sharded": "fsdp",
    "tp": "model", "tensor": "model",
}  # fmt: skip
_MOST = 1 << 20


def parse(text: str) -> dict[str, int]:
    """{axis: size} of a text as "data=2,model=2", in the order of `AXES`.

    Raises ValueError, which says what is expected.

    >>> from genesis_fn.training.parallel import axes
    >>> axes.parse("model=2, data=4")
    {'data': 4, 'model': 2}
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (x.strip() for x in part.partition("="))
        if not equals or not re.fullmatch(r"\d{1,7}", size) or not 1 <= int(size) <= _MOST:
            raise ValueError(
                f"{brief(part.strip())} is no axis and its size; write data=4, fsdp=4, or several "
                "with commas between: data=2,model=2"
            )
        if name in found:
            raise ValueError(f"{name} is there twice")
        if name not in AXES:
            raise ValueError(_unknown(name))
        found[name] = int(size)
    return {name: found[name] for name in AXES if name in found}


def _unknown(name: str) -> str:
    if name in _BY_HAND:
        return (
            f"{name} needs more than a layout, and the commands divide by {', '.join(AXES)} only: "
            f'write a loop with {_BY_HAND[name]}, as docs/distributed.md shows under "A loop of '
            'your own"'
        )
    meant = f"; did you mean {_MEANT[name]}?" if name in _MEANT else ""
    return f"there is no axis {brief(name)}, the axes are {', '.join(AXES)}{meant}"


def as_text(value: Mapping[Any, Any]) -> str:
    """The text of a table {axis: size}, as a file of settings may have it."""
    return ",".join(f"{name}={size}" for name, size in value.items())


def axes_for(text: str | None, processes: int, cpu_devices: int) -> dict[str, int]:
    """The axes of a run: those that are asked for, and without any its processes divide the batch.

    Args:
        text: the setting; None: it is not given.
        processes: how many compute together.
        cpu_devices: how many devices the CPU shows in one process, 1 on a GPU.

    Returns:
        {axis: size}; empty where one device computes as ever.

    Raises:
        ValueError: the sizes do not make as many devices as there are.
    """
    if text is None:
        return {"data": processes} if processes > 1 else {}
    axes = parse(text)
    size = math.prod(axes.values())
    if processes > 1:
        if size != processes:
            raise ValueError(
                f"parallel is {text}, which is for {size} {_processes(size)}, and there "
                f"{_are(processes)}: start {size} (torchrun --nproc-per-node, or srun --ntasks), or"
                f" write sizes whose product is {processes}, as --parallel fsdp={processes}"
            )
        return axes
    if size > cpu_devices:
        raise ValueError(
            f"parallel is {text}, which is for {size} {_processes(size)}, and there is 1: start "
            f"{size} (torchrun --nproc-per-node {size} -m genesis_fn ...), or rehearse in one by "
            f"GENESIS_CPU_DEVICES={size} and --device cpu"
        )
    return axes if size > 1 else {}


def _processes(n: int) -> str:
    return "process" if n == 1 else "processes"


def _are(n: int) -> str:
    return "is 1" if n == 1 else f"are {n}"


def check_batch(axes: Mapping[str, int], batch: int, accumulate: int) -> None:
    """Raise ValueError where a mesh does not divide a part of the batch."""
    ways = math.prod([axes.get(name, 1) for name in BATCH_AXES])
    rows = batch // accumulate
    if rows % ways:
        named = " x ".join(f"{n}={axes[n]}" for n in BATCH_AXES if n in axes)
        of = f"batch is {batch}" + (
            f" and accumulate {accumulate}, which makes parts of {rows} rows"
            if accumulate > 1
            else ""
        )
        raise ValueError(
            f"{of}, and parallel {named} divides the rows among {ways} devices: choose a batch "
            f"that is a multiple of {ways * accumulate}, or other sizes"
        )
