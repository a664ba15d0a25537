"""What a run will take, before it is begun: shapes, memory, steps and time."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time

from genesis_fn.training.memory.footprint import Footprint, footprint, footprint_of
from genesis_fn.training.monitoring.amounts import duration_text, size_text
from genesis_fn.training.run import Prepared
from genesis_fn.training.step import metrics_of

# Steps that are taken for the time of one: the first compile and record the program.
_TAKEN, _TIMED = 8, 4


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Args:
        shapes: {name: dtype and shape} of a batch.
        memory: that a step takes.
        steps: steps of the run.
        tokens: tokens of a batch, with padding.
        seconds: of a step; None: none was taken.
    """

    shapes: dict[str, str]
    memory: Footprint
    steps: int
    tokens: int
    seconds: float | None

    def __str__(self) -> str:
        rows = [("batch", ", ".join(f"{n} {s}" for n, s in self.shapes.items()))]
        rows += [(name, size_text(size)) for name, size in self.memory.held.items() if size]
        rows += [("gradients, activations", size_text(self.memory.temporary))]
        rows += [("memory at the peak", size_text(self.memory.peak))]
        rows += [(f"  {path}", size_text(size)) for path, size in self.memory.holders]
        rows += [("steps", f"{self.steps:,} of {self.tokens:,} tokens")]
        if self.seconds is not None:
            rate = self.tokens / self.seconds
            rows += [("a step", f"{self.seconds * 1e3:,.1f} ms, {rate:,.0f} tokens/s")]
            rows += [("all steps", duration_text(self.seconds * self.steps))]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def forecast(prepared: Prepared) -> Forecast:
    """The forecast of a run, some steps of which are taken: nothing of them is kept.

    Args:
        prepared: the run, which is used up.
    """
    first = next(prepared.stream)
    state, frozen = prepared.state, prepared.model.frozen
    shapes = {name: f"{x.dtype}{list(x.shape)}" for name, x in first.items()}
    if prepared.layout is not None:
        memory = footprint(prepared.settings)
    else:
        # Compiled for this device: its plan is what will run.
        program = prepared.step.lower(state, frozen, first).compile()  # pyright: ignore
        memory = footprint_of(prepared.settings, state, frozen, program.memory_analysis())
    several = [first, *itertools.islice(prepared.stream, _TAKEN - 1)]
    batches = itertools.cycle(map(prepared.placed, several))
    times = []
    for batch in itertools.islice(batches, _TAKEN):
        began = time.perf_counter()
        state, numbers = prepared.step(state, frozen, batch)
        metrics_of(numbers)
        times.append(time.perf_counter() - began)
    steps, tokens = prepared.settings.steps or 0, first["tokens"].size
    seconds = statistics.median(times[-_TIMED:])
    return Forecast(shapes, memory, steps, tokens, seconds)
