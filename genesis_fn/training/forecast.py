"""What a run will take, before it is begun: shapes, memory, steps and time."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator

from genesis_fn.core import tree
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.training.monitoring.amounts import duration_text, size_text
from genesis_fn.training.run import Prepared
from genesis_fn.training.step import metrics_of

# Steps that are taken for the time of one: the first compile and record the program.
_TAKEN, _TIMED = 8, 4
_HOLDERS = 5  # largest arrays that are named


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Args:
        shapes: {name: dtype and shape} of a batch.
        held: bytes that are held from step to step, by what holds them.
        temporary: bytes that a step needs beside them at its peak: gradients and activations.
        holders: (path, bytes) of the largest arrays that are held.
        steps: steps of the run.
        tokens: tokens of a batch, with padding.
        seconds: of a step; None: none was taken.
    """

    shapes: dict[str, str]
    held: dict[str, int]
    temporary: int
    holders: tuple[tuple[str, int], ...]
    steps: int
    tokens: int
    seconds: float | None

    @property
    def peak(self) -> int:
        """Bytes at the peak of a step."""
        return sum(self.held.values()) + self.temporary

    def __str__(self) -> str:
        rows = [("batch", ", ".join(f"{n} {s}" for n, s in self.shapes.items()))]
        rows += [(name, size_text(size)) for name, size in self.held.items() if size]
        rows += [("gradients, activations", size_text(self.temporary))]
        rows += [("memory at the peak", size_text(self.peak))]
        rows += [(f"  {path}", size_text(size)) for path, size in self.holders]
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
    held = {"parameters": 0, **{name: _bytes(part) for name, part in _parts(prepared)}}
    holders = sorted(_holders(prepared), key=lambda x: -x[1])[:_HOLDERS]
    # Compiled for this device: its plan is what will run.
    program = prepared.step.lower(state, frozen, first).compile()  # pyright: ignore
    found = program.memory_analysis()
    batches = itertools.cycle([first, *itertools.islice(prepared.stream, _TAKEN - 1)])
    times = []
    for batch in itertools.islice(batches, _TAKEN):
        began = time.perf_counter()
        state, numbers = prepared.step(state, frozen, batch)
        metrics_of(numbers)
        times.append(time.perf_counter() - began)
    steps, tokens = prepared.settings.steps or 0, first["tokens"].size
    seconds = statistics.median(times[-_TIMED:])
    temporary = found["temp_size_in_bytes"]
    return Forecast(shapes, held, temporary, tuple(holders), steps, tokens, seconds)


def _parts(prepared: Prepared) -> Iterator[tuple[str, PyTree]]:
    state, frozen = prepared.state, prepared.model.frozen
    yield "parameters" if frozen is None else "adapters", state.params
    if frozen is not None:
        yield "parameters", frozen
    yield "optimizer", state.opt_state
    if prepared.settings.ema:
        yield "average of the parameters", state.ema


def _holders(prepared: Prepared) -> Iterator[tuple[str, int]]:
    for name, part in _parts(prepared):
        for path, x in tree.leaves_with_path(part):
            inner = tree.keystr(path, simple=True, separator=".")
            yield f"{name}: {inner}", x.size * x.dtype.itemsize


def _bytes(part: PyTree) -> int:
    return sum(x.size * x.dtype.itemsize for x in tree.leaves(part))
