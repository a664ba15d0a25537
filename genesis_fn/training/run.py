"""A training run as its settings say: what `genesis-fn train` and `sft` do."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from genesis_fn import io
from genesis_fn.core import tree
from genesis_fn.core.errors import FileError
from genesis_fn.core.sharding.layout import NamedSharding
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.data import ExampleCounts, Stream
from genesis_fn.distributed.agreement import from_first
from genesis_fn.io.lock import exclusive
from genesis_fn.training import datasets
from genesis_fn.training.checkpoints import RunCheckpoints
from genesis_fn.training.loop import Every, Run, Standing, Step
from genesis_fn.training.memory.budget import within_budget
from genesis_fn.training.memory.shortage import telling_what_fits
from genesis_fn.training.model import TrainedModel, make_loss, open_model
from genesis_fn.training.monitoring.board import ScalarBoard, require_tensorboard
from genesis_fn.training.monitoring.log import KeptLog, Log
from genesis_fn.training.monitoring.meter import Meter, peak_of, training_flops
from genesis_fn.training.monitoring.plots import plot, plot_curves
from genesis_fn.training.monitoring.progress import Progress, note, say
from genesis_fn.training.monitoring.sampling import make_sampler
from genesis_fn.training.monitoring.table import MetricsTable
from genesis_fn.training.parallel.layout import RunLayout, fits_here, layout_of
from genesis_fn.training.parallel.processes import check_alike, is_first
from genesis_fn.training.parallel.rank_log import rank_log
from genesis_fn.training.program import make_program
from genesis_fn.training.settings.reading import (
    KEYS,
    changed,
    read_settings,
    value_of,
    write_settings,
)
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import IGNORED, Batch, leaf_names
from genesis_fn.transforms.jitting import jit

SETTINGS = "config.yaml"


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """What a run came to: its last step, how it ended, the last and the best validation loss in
    nats per token (NaN without data), tokens per second, and where the model is."""

    step: int
    ended_by: str
    validation_loss: float
    best_loss: float
    best_step: int
    tokens_per_s: float
    model: str


def train(settings: TrainingSettings, *, quiet: bool = False) -> RunSummary:
    """Train as settings say, in their folder, from its newest checkpoint if it has one.

    The folder gets config.yaml, checkpoints, log.jsonl, metrics.csv, loss.png, curves.png, event
    files of TensorBoard where they are asked for, and at the end `model`, or `adapter` where
    adapters are trained. A run that was stopped and one that was not reach the same
    numbers, bit for bit.

    Args:
        settings: of the run.
        quiet: whether nothing is shown but an interruption.

    Raises:
        ValueError: the settings name nothing to train on, or the folder holds a run with others.
        OSError, FileError: a file is missing, malformed, or has changed since the run was saved.
        ImportError: a package is missing that settings ask for.
        NotFinite: the loss was not.
        Interrupted: a signal ended the run, which is saved.
        BlockingIOError: another run uses the folder.
        RunOutOfMemory: the memory ran out, or no settings fit into `memory_budget`.
    """
    tell: Callable[[str], None] = note if quiet else say
    check_alike({name: value_of(settings, name) for name in KEYS})
    if settings.log.tensorboard:
        require_tensorboard()
    _make_folder(settings)
    with rank_log(settings.out), alone_in(settings.out):
        chosen = _of_folder(settings, tell)
        return telling_what_fits(chosen, lambda: _train(chosen, tell, quiet))


def alone_in(folder: str) -> contextlib.AbstractContextManager[None]:
    """`exclusive`, which the first process holds for all."""
    return exclusive(folder) if is_first() else contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What a run is made of, before its first step or after the one that a checkpoint is of."""

    settings: TrainingSettings
    model: TrainedModel
    step: Step
    state: TrainState
    stream: Stream[Batch]
    checkpoints: RunCheckpoints
    counts: ExampleCounts
    layout: RunLayout | None = None

    def placed(self, batch: Batch) -> Batch:
        """A batch as the step takes it."""
        return batch if self.layout is None else self.layout.batch(batch)


def prepare(settings: TrainingSettings, tell: Callable[[str], None]) -> Prepared:
    """Open the model and the data of settings, whose steps are counted if they are epochs.

    Args:
        settings: of the run.
        tell: is told what is found.

    Raises:
        ValueError, OSError, FileError: as `train` does.
    """
    if not settings.data.train:
        raise ValueError("data.train is empty: name files, folders or patterns to train on")
    if settings.steps is None and settings.epochs is None:
        raise ValueError("give steps or epochs: how long to train")
    layout = layout_of(settings)
    model = open_model(settings, layout)
    tell(_about(model))
    if settings.steps is None:
        settings = _counted(settings, model, tell)
    assert settings.steps is not None
    program = make_program(settings, model.config, model.lora, layout, model.trained)
    state = program.first_state(model.trained)
    model = dataclasses.replace(model, trained=None)  # which the state has, and the step reuses
    counts = ExampleCounts()
    stream = datasets.training_batches(settings, model, counts)
    checkpoints = RunCheckpoints(
        os.path.join(settings.out, "checkpoints"),
        _identity(settings),
        keep=settings.checkpoint.keep,
        best=settings.checkpoint.best,
        background=settings.checkpoint.background,
    )
    return Prepared(settings, model, program.step, state, stream, checkpoints, counts, layout)


def _train(settings: TrainingSettings, tell: Callable[[str], None], quiet: bool) -> RunSummary:
    prepared = prepare(settings, tell)
    settings, model, state = prepared.settings, prepared.model, prepared.state
    layout = prepared.layout
    standing = Standing()
    if (found := prepared.checkpoints.newest(state)) is not None:
        state, values = found
        prepared.stream.set_state(values["data"])
        standing = Standing(**values["standing"])
        tell(f"going on from step {int(state.step)}")
    done, steps = int(state.step), settings.steps or 0
    evaluate = None
    if settings.data.valid:
        batches = datasets.validation_batches(settings, model)
        evaluate = _evaluation(settings, model, batches, layout)
    sample = make_sampler(settings, model)
    batches = datasets.Begun(
        datasets.ahead(prepared.stream, settings.data.prefetch, layout), layout
    )
    if not done and batches.first is None:
        raise _nothing_to_train_on(settings)
    # What may be wrong has been opened; from here on the folder is the run's.
    if is_first():
        write_settings(os.path.join(settings.out, SETTINGS), settings)
    with (
        contextlib.closing(prepared.checkpoints),
        contextlib.closing(batches),
        contextlib.closing(Progress(steps, done, quiet=quiet or not is_first())) as progress,
        contextlib.closing(_log(settings, done)) as log,
    ):
        run = Run(
            state,
            model.frozen,
            prepared.step,
            steps,
            batches,
            _every(settings),
            leaf_names(state.params),
            prepared.checkpoints,
            log,
            progress,
            evaluate,
            sample,
            standing,
            settings.evaluate.patience,
            settings.evaluate.min_delta,
            meter=_meter(settings, model, state.params),
        )
        del state
        run.to_end()
    if settings.log.plot and is_first():
        plot(log.rows, os.path.join(settings.out, "loss.png"))
        plot_curves(log.rows, os.path.join(settings.out, "curves.png"))
    if prepared.counts.truncated or prepared.counts.empty:
        tell(str(prepared.counts))
    final = run.state.ema if settings.ema else run.state.params
    return _summary(run, log.rows, export(settings, model, final))


def _log(settings: TrainingSettings, done: int) -> Log:
    """The log of a run behind a step, with the copies of it that are asked for."""
    if not is_first():
        return KeptLog()
    log = Log(os.path.join(settings.out, "log.jsonl"), done)
    if settings.log.csv:
        log.copies.append(MetricsTable(os.path.join(settings.out, "metrics.csv"), log.rows))
    if settings.log.tensorboard:
        folder = os.path.join(settings.out, "tensorboard")
        log.copies.append(ScalarBoard(folder, done, log.rows))
    return log


def _meter(settings: TrainingSettings, model: TrainedModel, trained: PyTree) -> Meter:
    leaves = tree.leaves(trained)
    adapters = 0 if model.lora is None else sum(x.size for x in leaves)
    flops = training_flops(model.config, settings.data.length, adapters)
    place: Any = leaves[0].device
    peak = peak_of(place.home, settings.compute)
    if peak is not None and isinstance(place, NamedSharding):
        peak *= place.mesh.size
    return Meter(place.home, flops, peak)


def _about(model: TrainedModel) -> str:
    count = lambda params: sum(x.size for x in tree.leaves(params))
    trained, frozen = count(model.trained), count(model.frozen)
    if model.lora is None:
        return f"the model has {trained:,} parameters, all of which are trained"
    share = trained / (trained + frozen)
    return f"{trained:,} parameters of adapters are trained ({share:.2%}), {frozen:,} are frozen"


# ---- the folder ----


def _make_folder(settings: TrainingSettings) -> None:
    """Make the run's folder. Raises OSError, and ValueError where it is no place for the run."""
    out, begins = settings.out, settings.model.path
    try:
        os.makedirs(out, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"out is {out!r}, where a file is, expected a folder") from None
    if begins is not None and os.path.realpath(begins) == os.path.realpath(_model_path(settings)):
        raise ValueError(
            f"model.path is {begins!r}, which the run would write its own model over: choose "
            "another folder by --out"
        )


def _model_path(settings: TrainingSettings) -> str:
    return os.path.join(settings.out, "model" if settings.method == "full" else "adapter")


def _of_folder(settings: TrainingSettings, tell: Callable[[str], None]) -> TrainingSettings:
    """The settings, with the steps that an earlier process counted and what it chose to fit into
    the memory's budget, or what this one chooses.

    Raises ValueError where the folder holds a run with others.
    """
    chosen = ("steps", "remat", "accumulate")

    def find() -> list[Any] | None:
        found = _of_earlier(settings)
        return None if found is None else [getattr(found, name) for name in chosen]

    values = from_first(find, "the run's folder")
    if values is None:
        return within_budget(settings, tell)
    return dataclasses.replace(settings, **dict(zip(chosen, values, strict=True)))


def _of_earlier(settings: TrainingSettings) -> TrainingSettings | None:
    path = os.path.join(settings.out, SETTINGS)
    if not os.path.lexists(path) or not io.steps(os.path.join(settings.out, "checkpoints")):
        return None
    before = read_settings(path, {})
    if settings.steps is None and settings.epochs is not None:
        settings = dataclasses.replace(settings, steps=before.steps)
    if settings.memory_budget is not None and before.memory_budget is not None:
        settings = dataclasses.replace(settings, remat=before.remat, accumulate=before.accumulate)
    if differing := changed(before, settings):
        text = "; ".join(f"{name} {old!r}, now {new!r}" for name, old, new in differing[:3])
        raise ValueError(
            f"{settings.out} holds a run with other settings ({text}); choose another folder by "
            "--out, or take it up by genesis-fn resume"
        )
    return settings


def resume(folder: str, *, quiet: bool = False, parallel: str | None = None) -> RunSummary:
    """Go on with the run of a folder, as its config.yaml says.

    Args:
        folder: the run's folder.
        quiet: whether nothing is shown but an interruption.
        parallel: other axes over processes; None: as `settings_of` says.

    Raises FileError where there is none, and what `train` raises.
    """
    return train(settings_of(folder, parallel), quiet=quiet)


def settings_of(folder: str, parallel: str | None = None) -> TrainingSettings:
    """The settings of a run's folder. Axes over another number of processes than there are now are
    left out, unless others are given: a run goes on with as many as there are.

    Raises FileError where there is no run, ValueError for axes that are none.
    """
    path = os.path.join(folder, SETTINGS)
    if not os.path.lexists(path):
        raise FileError(f"{folder}: no run, {SETTINGS} is missing")
    settings = read_settings(path, {} if parallel is None else {"parallel": parallel})
    if parallel is None and settings.parallel is not None and not fits_here(settings.parallel):
        settings = dataclasses.replace(settings, parallel=None)
    return dataclasses.replace(settings, out=folder)


def _identity(settings: TrainingSettings) -> dict[str, Any]:
    """What must not change between a run and its continuation."""
    values = {key.name: value_of(settings, key.name) for key in KEYS.values() if key.fixed}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _counted(
    settings: TrainingSettings, model: TrainedModel, tell: Callable[[str], None]
) -> TrainingSettings:
    """The settings with the steps that the data of their epochs makes."""
    began = time.perf_counter()
    counts = ExampleCounts()
    count = lambda: sum(1 for _ in datasets.training_batches(settings, model, counts))
    steps = from_first(count, "the number of steps")
    if not steps:
        raise _nothing_to_train_on(settings)
    tell(
        f"{counts}; {steps:,} steps of {settings.batch} rows make {settings.epochs} epochs "
        f"(counted in {time.perf_counter() - began:.0f} s)"
    )
    return dataclasses.replace(settings, steps=steps)


def _nothing_to_train_on(settings: TrainingSettings) -> FileError:
    d = settings.data
    return datasets.nothing_in(d.train, "train", f"{d.length} (data.length)")


def export(settings: TrainingSettings, model: TrainedModel, trained: PyTree) -> str:
    """Write what was trained as the folder that other programs open. Returns its path."""
    path = _model_path(settings)
    if model.lora is not None:
        io.save_adapter(path, trained, model.lora, base_model=model.folder)
        return path
    trained = tree.map(lambda x: x.astype(settings.model.dtype), trained)
    io.save_model(path, trained, model.config, source=_source(model))
    return path


def _source(model: TrainedModel) -> str | None:
    """The folder whose tokenizer and templates belong to what was trained."""
    folder = model.folder or model.tokenizer_folder
    return folder if os.path.isdir(folder) else None


# ---- the parts of a run ----


def _every(settings: TrainingSettings) -> Every:
    evaluate = settings.evaluate.every if settings.data.valid else 0
    sample = settings.sample.every if settings.sample.prompts else 0
    return Every(evaluate, settings.checkpoint.every, sample, settings.log.every)


def _evaluation(
    settings: TrainingSettings, model: TrainedModel, batches: list[Batch], layout: RunLayout | None
) -> Callable[[TrainState], dict[str, float]]:
    """The validation loss in nats per token, and its perplexity, of a state."""
    whole = None if layout is None else layout.whole
    loss = make_loss(model.config, model.lora, settings.compute, remat=False)
    loss = jit(loss, out_shardings=whole)
    place = (lambda batch: batch) if layout is None else layout.batch

    def evaluate(state: TrainState) -> dict[str, float]:
        trained = state.ema if settings.ema else state.params
        total, count = 0.0, 0
        for batch in batches:
            total += float(loss(trained, model.frozen, place(batch), None))
            count += int(np.sum(np.asarray(batch["labels"]) != IGNORED))
        mean = total / max(count, 1)
        return {"validation_loss": mean, "perplexity": math.exp(min(mean, 700.0))}

    return evaluate


def _summary(run: Run, rows: list[dict[str, Any]], model: str) -> RunSummary:
    losses = [r["validation_loss"] for r in rows if "validation_loss" in r]  # None: not finite
    rates = [r["tokens_per_s"] for r in rows if r.get("tokens_per_s") is not None]
    return RunSummary(
        run.done,
        run.ended_by,
        math.nan if not losses or losses[-1] is None else losses[-1],
        run.standing.best,
        run.standing.best_step,
        rates[-1] if rates else math.nan,
        model,
    )
