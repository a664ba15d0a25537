"""Settings of a run that need less memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from genesis_fn.training.parallel.layout import divides
from genesis_fn.training.settings.sections import TrainingSettings


def by_cost(settings: TrainingSettings) -> Iterator[TrainingSettings]:
    """The settings, and others that train the same with less memory, those that cost least time
    first: recomputed activations, a batch in more parts, and both."""
    yield settings
    if not settings.remat:
        yield dataclasses.replace(settings, remat=True)
    for remat in sorted({settings.remat, True}):
        for parts in _more_parts(settings):
            found = dataclasses.replace(settings, remat=remat, accumulate=parts)
            if divides(found):
                yield found


def smaller_batches(settings: TrainingSettings) -> Iterator[TrainingSettings]:
    """The settings with ever smaller batches, then the same with recomputed activations."""
    for remat in sorted({settings.remat, True}):
        batch = settings.batch // 2
        while batch:
            parts = math.gcd(batch, settings.accumulate)
            found = dataclasses.replace(settings, remat=remat, batch=batch, accumulate=parts)
            if divides(found):
                yield found
            batch //= 2


def options(before: TrainingSettings, now: TrainingSettings) -> str:
    """How a command says in what two settings differ: "--remat true --accumulate 4"."""
    names = ("remat", "batch", "accumulate")
    pairs = ((name, getattr(before, name), getattr(now, name)) for name in names)
    return " ".join(f"--{name} {str(new).lower()}" for name, old, new in pairs if old != new)


def _more_parts(settings: TrainingSettings) -> Iterator[int]:
    """The numbers of parts, doubled ever again, that divide the batch."""
    parts = 2 * settings.accumulate
    while parts <= settings.batch:
        if settings.batch % parts == 0:
            yield parts
        parts *= 2
