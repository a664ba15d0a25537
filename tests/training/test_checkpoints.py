"""Checkpoints of runs: which are kept, and what a continuation knows of them."""

from __future__ import annotations

import math

import pytest

from genesis_fn import io
from genesis_fn.training.loop import Every, Standing
from tests.training.tiny_run import first_state, train

EVALUATED = Every(evaluate=1, checkpoint=4)


@pytest.mark.parametrize("background", [False, True])
def test_the_best_stay_beside_the_newest(tmp_path, background):
    losses = {1: 9.0, 2: 8.0, 3: 3.0, 4: 5.0, 5: 4.0, 6: 7.0, 7: 3.0, 8: 6.0, 9: 5.0, 10: 5.0,
              11: 2.0, 12: 3.0, 13: 4.0}  # fmt: skip
    options = dict(losses=losses, every=EVALUATED, background=background)
    root = tmp_path / "one" / "checkpoints"
    # One that was better than all before is saved at once, though none was due.
    train(str(tmp_path / "one"), 3, **options)
    assert io.steps(root) == [2, 3]
    standing = train(str(tmp_path / "one"), 10, **options)
    assert (standing.best, standing.best_step) == (3.0, 3) and io.steps(root) == [3, 8, 10]
    # Going on begins behind the newest, not behind the best, which it knows.
    standing = train(str(tmp_path / "one"), 13, **options)
    assert standing.best_step == 11 and io.steps(root) == [11, 12, 13]
    assert io.restore(root, first_state(), 11)[2]["standing"]["ranking"] == [[2.0, 11]]
    root = tmp_path / "two" / "checkpoints"
    train(str(tmp_path / "two"), 13, **options, best=2, keep=1)
    assert io.steps(root) == [3, 11, 13]
    root = tmp_path / "none" / "checkpoints"
    train(str(tmp_path / "none"), 13, **options, best=0)
    assert io.steps(root) == [12, 13]


def test_a_kill_before_old_ones_are_removed(tmp_path, monkeypatch):
    """What it leaves is removed by the next save, and the best is not among it."""
    losses = {1: 1.0, 2: 5.0, 3: 5.0, 4: 5.0, 5: 5.0, 6: 0.5, 7: 4.0, 8: 4.0}
    options = dict(losses=losses, every=Every(evaluate=1, checkpoint=1), keep=1)
    folder, root = str(tmp_path), tmp_path / "checkpoints"

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    train(folder, 4, **options)
    assert io.steps(root) == [1, 4]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("genesis_fn.io.checkpoint._remove", killed)
        train(folder, 5, **options)
    assert io.steps(root) == [1, 4, 5]
    train(folder, 6, **options)
    assert io.steps(root) == [6]
    assert train(folder, 8, **options).best_step == 6 and io.steps(root) == [6, 8]


def test_what_was_just_saved_stays_below_a_damaged_one(tmp_path):
    (tmp_path / "step-00000009").mkdir()
    io.save(tmp_path, 2, {"w": 1.0}, keep=1)
    assert io.steps(tmp_path) == [2, 9]


def test_a_ranking():
    standing = Standing()
    assert standing.evaluated(1, 3.0, 0.0, 2) and standing.evaluated(2, 4.0, 0.0, 2)
    assert not standing.evaluated(3, 4.0, 0.0, 2) and not standing.evaluated(4, math.nan, 0.0, 2)
    assert standing.evaluated(5, 3.5, 0.0, 2) and standing.ranking == [(3.0, 1), (3.5, 5)]
    assert not standing.evaluated(6, 1.0, 0.0, 0) and not standing.ranking
    # The same step again is no second one; less than min_delta is better here all the same.
    assert standing.evaluated(7, 0.9, 5.0, 2) and standing.evaluated(7, 0.9, 5.0, 2)
    assert standing.ranking == [(0.9, 7)] and standing.best_step == 6
