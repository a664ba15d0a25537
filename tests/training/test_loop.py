"""The loop of a run has the next step under way while it reads the last one's numbers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import io, tree
from genesis_fn.training import loop
from genesis_fn.training.checkpoints import RunCheckpoints
from genesis_fn.training.interrupt import Interrupted
from genesis_fn.training.loop import Every, NotFinite, Run
from genesis_fn.training.monitoring.log import Log
from genesis_fn.training.monitoring.progress import Progress
from genesis_fn.training.step import leaf_names, make_step, metrics_of
from genesis_fn.training.verify import differences
from tests.training.tiny_run import (
    OPTIMIZER,
    RECIPE,
    STEP,
    Batches,
    first_state,
    loss,
    validation_loss,
)

pytestmark = pytest.mark.cpu


class Events:
    """What happens in a run, in order: "step 3" is launched, "read 3" its numbers are."""

    def __init__(self, monkeypatch, taken=STEP) -> None:
        self.taken = taken
        self.found: list[str] = []
        self.launched = self.read = 0

        def read(numbers):
            self.read += 1
            self.found.append(f"read {self.read}")
            return metrics_of(numbers)

        monkeypatch.setattr(loop, "metrics_of", read)

    def step(self, state, frozen, batch):
        self.launched += 1
        self.found.append(f"step {self.launched}")
        return self.taken(state, frozen, batch)

    def evaluate(self, state):
        self.found.append(f"evaluate {int(state.step)}")
        return {"validation_loss": validation_loss(int(state.step))}


@contextlib.contextmanager
def run_of(folder, events, steps, every, batches=None) -> Iterator[Run]:
    state = first_state()
    os.makedirs(folder, exist_ok=True)
    checkpoints = RunCheckpoints(os.path.join(folder, "checkpoints"), {}, keep=9)
    with (
        contextlib.closing(checkpoints),
        contextlib.closing(Progress(steps, 0, quiet=True)) as progress,
        contextlib.closing(Log(os.path.join(folder, "log.jsonl"))) as log,
    ):
        yield Run(
            state,
            None,
            events.step,
            steps,
            batches or Batches(),
            every,
            leaf_names(state.params),
            checkpoints,
            log,
            progress,
            events.evaluate,
        )


def states_of(steps):
    """The states behind 0, 1, ... steps, one after another without a loop."""
    found, batches = [first_state()], Batches()
    for _ in range(steps):
        found.append(STEP(_copied(found[-1]), None, next(batches))[0])
    return found


def _copied(state):
    """A state that a step may reuse."""
    return tree.map(lambda x: jnp.array(np.asarray(x)), state)


def test_the_next_step_is_launched_before_the_numbers_of_one_are_read(tmp_path, monkeypatch):
    events = Events(monkeypatch)
    with run_of(tmp_path, events, 5, Every(evaluate=3)) as run:
        run.to_end()
    assert events.found == [
        *("step 1", "step 2", "read 1", "step 3", "read 2"),
        *("read 3", "evaluate 3"),  # which wants the state behind the third: none is under way
        *("step 4", "step 5", "read 4", "read 5", "evaluate 5"),
    ]
    assert not differences(run.state, states_of(5)[5])


def test_a_checkpoint_is_of_its_step_and_of_the_data_behind_its_batch(tmp_path, monkeypatch):
    with run_of(tmp_path, Events(monkeypatch), 7, Every(checkpoint=2)) as run:
        run.to_end()
        template = first_state()
        states = states_of(7)
        for step in (2, 4, 6, 7):
            state, _, values = io.restore(run.checkpoints.root, template, step)
            assert values["data"] == {"at": step}
            assert not differences(state, states[step])


def _infinite_of_bad(trained, frozen, batch, key):
    good = jnp.astype(batch["tokens"][0, 0] >= 0, "float32")
    return loss(trained, frozen, batch, key) / good


STRICT_STEP = make_step(_infinite_of_bad, OPTIMIZER, lambda _: 0.05, RECIPE)


class BadBatches(Batches):
    """Batches of which one is such that the loss is infinite."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad = bad

    def __next__(self):
        batch = super().__next__()
        if self.at == self.bad:
            batch["tokens"][0, 0] = -1
        return batch


def test_a_step_under_way_behind_one_that_is_not_finite_changes_nothing(tmp_path, monkeypatch):
    events = Events(monkeypatch, STRICT_STEP)
    with run_of(tmp_path, events, 9, Every(), BadBatches(4)) as run:
        with pytest.raises(NotFinite, match="step 4"):
            run.to_end()
        assert events.launched == 5  # the fifth was under way
        state, step, values = io.restore(run.checkpoints.root, first_state())
    assert step == 3 and values["data"] == {"at": 4}
    with run_of(tmp_path / "other", events, 3, Every(), BadBatches(99)) as other:
        other.to_end()
    assert not differences(state, other.state)


def test_a_signal_ends_behind_the_step_under_way(tmp_path, monkeypatch):
    events = Events(monkeypatch)

    def step(state, frozen, batch):
        out = events.step(state, frozen, batch)
        if events.launched == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return out

    with run_of(tmp_path, events, 99, Every()) as run:
        run.step = step
        with pytest.raises(Interrupted):
            run.to_end()
        assert run.done == events.launched == events.read
        state, saved, values = io.restore(run.checkpoints.root, first_state())
    assert saved == run.done and values["data"] == {"at": run.done}
    assert not differences(state, states_of(run.done)[run.done])


def test_a_run_that_is_done_takes_no_step(tmp_path, monkeypatch):
    events = Events(monkeypatch)
    with run_of(tmp_path, events, 0, Every()) as run:
        run.to_end()
    assert events.found == []
