"""The loop of a training run: steps, evaluations, samples, checkpoints, and what ends it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from genesis_fn.core.convert import as_array
from genesis_fn.core.errors import GenesisError
from genesis_fn.core.sharding.world import world
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.training.checkpoints import RunCheckpoints
from genesis_fn.training.interrupt import Interrupt, Interrupted
from genesis_fn.training.monitoring.log import Log
from genesis_fn.training.monitoring.meter import Meter
from genesis_fn.training.monitoring.progress import Progress, say
from genesis_fn.training.monitoring.throughput import Throughput
from genesis_fn.training.parallel.processes import SharedStop
from genesis_fn.training.step import Batch, StepMetrics, metrics_of, norms_by_group, not_finite

Step = Callable[[TrainState, PyTree, Batch], tuple[TrainState, Any]]


class Batches(Protocol):
    """The batches of a run: a stream whose state is that after the last batch that was taken."""

    def __next__(self) -> Batch: ...

    def get_state(self) -> dict[str, Any]:
        """The state behind the last batch that was taken."""
        ...


class NotFinite(GenesisError, FloatingPointError):
    """A loss or a gradient that is not finite ended a run, whose state is that before the step."""


@dataclasses.dataclass(frozen=True)
class Every:
    """How often what is done, in steps; 0 is never. The last step is always evaluated and saved."""

    evaluate: int = 0
    checkpoint: int = 0
    sample: int = 0
    log: int = 1


@dataclasses.dataclass
class Standing:
    """How the evaluations of a run went, which its continuation has to know."""

    best: float = math.inf
    best_step: int = 0
    since: int = 0  # evaluations without a better loss
    tokens: int = 0  # that counted in the loss so far
    ranking: list[tuple[float, int]] = dataclasses.field(default_factory=list)  # (loss, step)

    def evaluated(self, step: int, loss: float, min_delta: float, places: int = 0) -> bool:
        """Take note of a validation loss; whether it is among the best, of so many places.

        Of equal losses the earlier is the better, so that a plateau is not saved again and again.
        """
        before = [(x, n) for x, n in self.ranking if n != step]
        entry = [] if math.isnan(loss) else [(loss, step)]
        self.ranking = sorted(before + entry)[:places]
        if loss < self.best - min_delta:
            self.best, self.best_step, self.since = loss, step, 0
        else:
            self.since += 1
        return bool(entry) and entry[0] in self.ranking


@dataclasses.dataclass(frozen=True)
class _Launched:
    """A step that the device has, its numbers, tokens, and the data's state behind its batch."""

    numbers: Any
    tokens: int
    data: dict[str, Any]


@dataclasses.dataclass
class Run:
    """A run under way.

    Args:
        state: after `done` steps where it is `whole`: with a step under way, or one that was cut
            short, it is not.
        frozen: what the step takes beside the state.
        step: the jitted step.
        steps: number of the last step.
        batches: the data.
        every: how often what is done.
        names: of the state's leaves, as metrics order them.
        checkpoints: where it is saved.
        log: its rows.
        progress: what is shown.
        evaluate: the numbers of an evaluation of a state, with `validation_loss`; None: no data.
        sample: texts that a state writes; None takes none.
        standing: of the evaluations so far.
        patience: evaluations without a better loss that end the run; 0: none do.
        min_delta: by how much a loss is better.
        seconds: stop after so many; None: none do.
        meter: of the use of the device; None: it is not told.
    """

    state: TrainState
    frozen: PyTree
    step: Step
    steps: int
    batches: Batches
    every: Every
    names: list[str]
    checkpoints: RunCheckpoints
    log: Log
    progress: Progress
    evaluate: Callable[[TrainState], dict[str, float]] | None = None
    sample: Callable[[TrainState], list[str]] | None = None
    standing: Standing = dataclasses.field(default_factory=Standing)
    patience: int = 0
    min_delta: float = 0.0
    seconds: float | None = None
    meter: Meter | None = None

    def __post_init__(self) -> None:
        self.done = self.kept = int(self.state.step)
        self.whole = True
        self.ahead: _Launched | None = None
        self.ending = False
        self.data = self.batches.get_state()
        self.began = time.perf_counter()
        self.ended_by = "the last step"
        self.throughput = Throughput()
        self.last_rate = math.nan
        self.mfu: float | None = None
        self.memory: int | None = None
        self.stop = SharedStop()

    def to_end(self) -> None:
        """Train to the last step, the end of the data, or until patience or time is over.

        Raises:
            NotFinite: the loss or a gradient was not; the state before that step is saved.
            Interrupted: a signal asked for the end; the state is saved.
        """
        with Interrupt() as interrupt:
            try:
                metrics = None
                for metrics in self._steps():
                    last = self._is_last()
                    self.stop.poll(interrupt.asked, self._handed())
                    self.ending = last or self.stop.ends_behind(self._handed())
                    if self.ahead is not None:
                        continue  # nothing was due, and the state is that behind the next step
                    evaluated = self._due(self.every.evaluate, self.done)
                    best = evaluated and self._evaluate(metrics)
                    last = last or self._is_last()  # the evaluation may have been the last straw
                    if last and not evaluated:
                        self._evaluate(metrics)
                    if self._due(self.every.sample, self.done):
                        self._sample()
                    if last or best or self._due(self.every.checkpoint, self.done):
                        self._keep(wait=last)
                    self.stop.poll(interrupt.asked, self.done)
                    if self.stop.number is not None and self.stop.ends_behind(self.done):
                        raise Interrupted(self.stop.number)
                    if last:
                        return
                self._data_ended(metrics)
            except KeyboardInterrupt as error:
                # Processes save together; one that is interrupted at once does not wait for others.
                agreed = isinstance(error, Interrupted) or world().size == 1
                if self.whole and agreed:
                    self._keep(wait=True)
                self.progress.interrupted(self.done)
                raise

    def _steps(self) -> Iterator[StepMetrics]:
        """The metrics of each step that is taken.

        The next step is on its way to the device before they are read, so that the device never
        waits for what is done with them, unless the state behind the step is wanted first.
        """
        while self.done < self.steps and (taken := self.ahead or self._launch()) is not None:
            self.ahead = None if self._stops_at(self.done + 1) else self._launch()
            yield self._finish(taken)

    def _handed(self) -> int:
        """The number of the last step that the device was handed."""
        return self.done + (self.ahead is not None)

    def _launch(self) -> _Launched | None:
        """Hand the device a step; None where the data has ended."""
        try:
            batch = next(self.batches)
        except StopIteration:
            return None
        self.whole = False
        data = self.batches.get_state()
        self.state, numbers = self.step(self.state, self.frozen, batch)
        for x in numbers:
            x.copy_to_host_async()  # now: a read would wait for the next step, which is ahead of it
        return _Launched(numbers, batch["tokens"].size, data)

    def _finish(self, taken: _Launched) -> StepMetrics:
        """Wait for a step, and log it."""
        metrics = metrics_of(taken.numbers)
        self.data = taken.data
        if metrics.halted:
            self._halted(metrics)
        self.done += 1
        if (watch := world().watch) is not None:
            watch.step = self.done
        self.whole = self.ahead is None
        self.standing.tokens += metrics.tokens
        self.last_rate = self.throughput.advanced(taken.tokens)
        if self.meter is not None:
            self.mfu, self.memory = self.meter.mfu(self.last_rate), self.meter.memory()
        self.progress.advanced(metrics.loss, self.last_rate, self.mfu, self.memory)
        self._log(metrics)
        return metrics

    def _halted(self, metrics: StepMetrics) -> None:
        """Save the state before a step that was not finite, and raise NotFinite."""
        self.ahead = None  # which changes nothing: the step before it halted the state
        self.whole = True
        # Without the mark, so that a continuation may try again.
        health = self.state.health
        halted = as_array(False)
        self.state = self.state.replace(health={**health, "halted": halted})
        self._keep(wait=True)
        self.log.write(step=self.done + 1, event="not finite", loss=metrics.loss)
        raise NotFinite(
            f"step {self.done + 1}: {not_finite(self.names, metrics)}\n"
            f"  the state before it is saved; train on with a smaller optim.lr, or with "
            "compute bfloat16 or float32 where it is float16"
        )

    def _log(self, metrics: StepMetrics) -> None:
        if metrics.spike:
            self._report_spike(metrics)
        if not metrics.applied or self._due(self.every.log, self.done) or self.done == self.steps:
            groups = norms_by_group(self.names, metrics.squares)
            row: dict[str, Any] = {
                "loss": metrics.loss,
                "lr": metrics.learning_rate,
                "grad_norm": metrics.grad_norm,
                **{f"grad_norm/{group}": norm for group, norm in groups.items()},
                "tokens": self.standing.tokens,
                "tokens_per_s": self.last_rate,
            }
            used = {"mfu": self.mfu, "memory": self.memory}
            row |= {name: value for name, value in used.items() if value is not None}
            if metrics.loss_scale != 1:
                row["loss_scale"] = metrics.loss_scale
            if not metrics.applied:
                row["skipped"] = True
            self.log.write(step=self.done, **row)

    def _report_spike(self, metrics: StepMetrics) -> None:
        self.log.write(step=self.done, event="spike", loss=metrics.loss)
        done = "taken" if metrics.applied else "skipped"
        say(f"step {self.done}: the loss {metrics.loss:.3f} is a spike, and the step was {done}")

    def _evaluate(self, metrics: StepMetrics) -> bool:
        """Evaluate; whether the state is among the best, which are kept."""
        if self.evaluate is None:
            return False
        began = time.perf_counter()
        numbers = self.evaluate(self.state)
        loss = numbers["validation_loss"]
        best = self.standing.evaluated(self.done, loss, self.min_delta, self.checkpoints.best)
        self.log.write(step=self.done, **numbers)
        self.throughput.paused(time.perf_counter() - began)
        self.progress.evaluated(self.done, metrics.loss, loss, self.last_rate)
        return best

    def _sample(self) -> None:
        if self.sample is None:
            return
        texts = self.sample(self.state)
        self.log.write(step=self.done, event="samples", texts=texts)
        for text in texts:
            say(f"step {self.done}: {text}")

    def _keep(self, wait: bool) -> None:
        if self.kept != self.done or wait:
            if self.kept != self.done:
                values = {"data": self.data, "standing": dataclasses.asdict(self.standing)}
                best = self.standing.ranking[: self.checkpoints.best]
                self.checkpoints.save(self.done, self.state, values, [n for _, n in best])
                self.kept = self.done
            if wait:
                self.checkpoints.wait()

    @staticmethod
    def _due(every: int, step: int) -> bool:
        return every > 0 and step % every == 0

    def _stops_at(self, step: int) -> bool:
        """Whether the state behind a step is wanted before the next is taken."""
        e = self.every
        due = [self._due(every, step) for every in (e.evaluate, e.checkpoint, e.sample)]
        ends = self.ending or step >= self.steps or self.stop.ends_behind(step)
        return ends or any(due)

    def _is_last(self) -> bool:
        """Whether nothing follows the step that was taken."""
        if self.done >= self.steps:
            return True
        if self.seconds is not None and time.perf_counter() - self.began > self.seconds:
            self.ended_by = "the clock"
            return True
        if self.patience and self.standing.since >= self.patience:
            self.ended_by = f"{self.patience} evaluations without a better loss"
            return True
        return False

    def _data_ended(self, metrics: StepMetrics | None) -> None:
        """Evaluate and save behind the last batch of data that ends, of which this process took
        one at least."""
        if metrics is not None:
            self.ended_by = "the end of the data"
            if self._evaluate(metrics):
                self.kept = -1  # a checkpoint that is there does not know that it is the best
            self._keep(wait=True)
