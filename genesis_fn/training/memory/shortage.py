"""A run that does not fit into memory: what it takes, and which settings would fit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from genesis_fn import io
from genesis_fn.backends.cuda.driver.errors import OutOfMemory
from genesis_fn.core.errors import OutOfMemoryError
from genesis_fn.core.sharding.world import world
from genesis_fn.training.memory.available import available
from genesis_fn.training.memory.candidates import by_cost, options, smaller_batches
from genesis_fn.training.memory.footprint import Footprint, footprint
from genesis_fn.training.monitoring.amounts import read_size, size_text
from genesis_fn.training.settings.sections import TrainingSettings

T = TypeVar("T")

# What torch says of memory of the computer, as a plain RuntimeError.
_SAID = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")


class RunOutOfMemory(OutOfMemoryError):
    """A run does not fit into memory; the message says what it takes and what would fit."""


def telling_what_fits(settings: TrainingSettings, run: Callable[[], T]) -> T:
    """The result of a function that runs settings.

    Raises RunOutOfMemory where it runs out of memory, and what else it raises.
    """
    try:
        return run()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = error
        # Its frames hold the arrays of the run, whose memory the forecast may need.
        _let_go(reason)
    raise RunOutOfMemory(_explained(settings, reason))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the computer has no memory left."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _SAID):
        return True
    return isinstance(error, MemoryError)


def _let_go(error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


def _explained(settings: TrainingSettings, reason: BaseException) -> str:
    first = str(reason).partition("\n")[0] or type(reason).__name__
    if world().size > 1:  # a step is planned by all processes together
        return (
            f"out of memory: {first}\n  --dry-run says what a step takes on each device, and "
            "--memory-budget 90% by another --out chooses what fits; parallel fsdp divides more"
        )
    try:
        given = footprint(settings)
        # What ran out of memory does not fit, whatever its forecast is.
        size = min(_room(settings, reason), given.peak - 1)
        proposals = [*_first_of_kinds(settings, size), *_first(smaller_batches(settings), size)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return f"out of memory: {first}"  # there is too little even to plan a step
    return f"{shortage_text(settings, given, _room(settings, reason), proposals)}\n  {first}"


def no_fit(settings: TrainingSettings, given: Footprint, size: float) -> RunOutOfMemory:
    """The error of settings that do not fit in any way that trains the same."""
    proposals = _first(smaller_batches(settings), size)
    return RunOutOfMemory(shortage_text(settings, given, size, list(proposals)))


def shortage_text(
    settings: TrainingSettings,
    given: Footprint,
    size: float,
    proposals: list[tuple[TrainingSettings, int]],
) -> str:
    """What a step takes, by what holds it, and what would fit.

    Args:
        settings: of the run.
        given: the memory of its step.
        size: bytes that there are.
        proposals: (settings that fit, bytes of their step).
    """
    parts = [f"{name} {size_text(n)}" for name, n in given.held.items() if n]
    parts.append(f"gradients and activations {size_text(given.temporary)}")
    holders = ", ".join(f"{path} {size_text(n)}" for path, n in given.holders)
    fits = ", or ".join(
        f"{options(settings, found)} ({size_text(peak)})" for found, peak in proposals
    )
    if fits and io.steps(os.path.join(settings.out, "checkpoints")):
        fits += f"; by another --out, as the run in {settings.out} keeps the settings it began with"
    return (
        f"out of memory: a step of {settings.batch} rows takes {size_text(given.peak)} at its peak "
        f"({', '.join(parts)}), and there are {size_text(size)}\n"
        f"  the largest: {holders}\n"
        f"  what fits: {fits or 'no smaller batch either; take a smaller model, or adapters'}"
    )


def _room(settings: TrainingSettings, reason: BaseException) -> float:
    """The bytes that the run could have had."""
    if isinstance(reason, OutOfMemory):
        room: float = min(reason.limit, reason.mapped + reason.free_on_device)
    else:
        room = available()
    if settings.memory_budget is not None:
        room = min(room, read_size(settings.memory_budget, available()))
    return room


def _first_of_kinds(
    settings: TrainingSettings, size: float
) -> Iterator[tuple[TrainingSettings, int]]:
    """Of each kind of change that trains the same, the first that fits."""
    kinds: dict[tuple[bool, bool], list[TrainingSettings]] = {}
    for found in by_cost(settings):
        kind = found.remat != settings.remat, found.accumulate != settings.accumulate
        kinds.setdefault(kind, []).append(found)
    del kinds[False, False]
    for several in kinds.values():
        yield from _first(several, size)


def _first(
    several: Iterable[TrainingSettings], size: float
) -> Iterator[tuple[TrainingSettings, int]]:
    for found in several:
        peak = footprint(found).peak
        if peak <= size:
            yield found, peak
            return
