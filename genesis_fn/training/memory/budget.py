"""Settings chosen so that a run fits into a budget of memory."""

from __future__ import annotations

from collections.abc import Callable

from genesis_fn.distributed.agreement import from_first
from genesis_fn.training.memory.available import available
from genesis_fn.training.memory.candidates import by_cost
from genesis_fn.training.memory.footprint import footprint
from genesis_fn.training.memory.shortage import no_fit
from genesis_fn.training.monitoring.amounts import read_size, size_text
from genesis_fn.training.settings.sections import TrainingSettings


def within_budget(settings: TrainingSettings, tell: Callable[[str], None]) -> TrainingSettings:
    """The settings with such `remat` and `accumulate` that a step fits into `memory_budget`; as
    they are where there is none.

    Args:
        settings: of a run that has not begun.
        tell: is told what is chosen.

    Raises RunOutOfMemory where nothing fits.
    """
    if settings.memory_budget is None:
        return settings
    budget = settings.memory_budget
    # All processes choose the same, of the memory that the first one has.
    size = from_first(lambda: read_size(budget, available()), "the memory's budget")
    given = None
    for found in by_cost(settings):
        memory = footprint(found)
        given = given or memory
        if memory.peak <= size:
            tell(
                f"a step takes {size_text(memory.peak)} of a budget of {size_text(size)}, with "
                f"remat {str(found.remat).lower()} and accumulate {found.accumulate}"
            )
            return found
    assert given is not None
    raise no_fit(settings, given, size)
