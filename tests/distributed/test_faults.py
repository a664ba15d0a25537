"""A process that dies, is late, fails, or is interrupted ends all others, with one message."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import ON_GPU
from tests.distributed import programs
from tests.distributed.conftest import INTERPRETED, NCCL, Launcher

LINE = rf"\n  at .*{Path(programs.__file__).name}:\d+"
BEGUN = "which has begun 3 collectives and this one 4,"
if ON_GPU and INTERPRETED:
    # An exchange within a program counts, too, and its error has the line in its traceback alone.
    BEGUN = "which has begun 6 collectives and this one 7,"
    LINE = rf"{Path(programs.__file__).name}(:|\", line )\d+"


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("program", ["waits", "works"])
def test_a_killed_process_ends_all(launcher: Launcher, tmp_path: Path, program: str, victim: int):
    if program == "waits" and victim == 0:
        pytest.skip("rank 0 is the one that waits")
    world = launcher.start(program, 3, tmp_path)
    world.ready()
    time.sleep(0.3)
    begun = time.monotonic()
    os.kill(world.pids[victim], signal.SIGKILL)
    statuses = world.wait()
    assert time.monotonic() - begun < 30
    assert statuses == [-9 if r == victim else 1 for r in range(3)]
    for rank in {0, 1, 2} - {victim}:
        said = world.said(rank)
        gone = rf"rank {victim} \(process {world.pids[victim]} on .*\) is gone"
        assert len(re.findall(gone, said)) == 1, said
        assert re.search(LINE, said), said
    if program == "waits" and not NCCL:  # where the host takes part in a collective
        what = "an all-reduce" if ON_GPU else "psum_invariant"
        gave_up = f"DistributedError: {what}: rank 0 of 3 gave up on the ranks 0, 1 and 2"
        assert gave_up in world.said(0)


def test_a_late_process_is_waited_for_no_longer_than_said(launcher: Launcher, tmp_path: Path):
    world = launcher.start("late", 2, tmp_path)
    assert world.wait() == [1, 1]
    said = world.said(0)
    if NCCL:
        late = (
            f"ends: rank 0 gave up: rank 1, {BEGUN} is late: a program on the GPU has waited for "
        )
        assert late in said and re.search(LINE, said), said
        return
    late = f"rank 1, {BEGUN} did not come to it within 1 s\n"
    line = LINE if ON_GPU else r"timeout=\.\.\.\)" + LINE
    assert late in said and re.search(line, said), said
    assert said.count("Error: ") == 1


def test_a_gpu_waits_no_longer_than_said(launcher: Launcher, tmp_path: Path):
    world = launcher.start("late_on_a_gpu", 2, tmp_path)
    assert world.wait() == [1, 1]
    for rank in range(2):
        said = world.said(rank)
        assert "a program on the GPU has waited for other processes for 1 s, the timeout of" in said
        assert f"rank 1, {BEGUN}" in said
        assert re.search(LINE, said), said


def test_ctrl_c_in_one_process_ends_all(launcher: Launcher, tmp_path: Path):
    world = launcher.start("waits", 2, tmp_path)
    world.ready()
    time.sleep(0.3)
    begun = time.monotonic()
    os.kill(world.pids[0], signal.SIGINT)
    statuses = world.wait()
    assert time.monotonic() - begun < 30
    assert 0 not in statuses
    # A wait for a GPU does not see it.
    assert ("ends: interrupted" if NCCL else "KeyboardInterrupt") in world.said(0)
    assert "rank 0 was interrupted" in world.said(1)


def test_an_error_in_one_process_ends_all(launcher: Launcher, tmp_path: Path):
    world = launcher.start("raises", 2, tmp_path)
    assert world.wait() == [1, 1]
    assert "rank 1 ended by ValueError: no data" in world.said(0)
    assert world.said(1).count("ValueError: no data") == 1


def test_an_error_ends_a_process_whose_gpu_waits(launcher: Launcher, tmp_path: Path):
    world = launcher.start("fails_while_a_gpu_waits", 2, tmp_path)
    assert world.wait() == [1, 1]
    assert "rank 1 ended by ValueError: no data" in world.said(0)
    assert world.said(1).count("ValueError: no data") == 1 and "ends:" not in world.said(1)


def test_no_process_ends_before_its_gpu(launcher: Launcher, tmp_path: Path):
    world = launcher.start("ends_while_a_gpu_waits", 2, tmp_path)
    assert world.wait() == [1, 1]
    for rank in range(2):
        said = world.said(rank)
        assert f"ends: rank 1 gave up: rank 0, {BEGUN} is late: a program on the GPU has" in said


def test_a_process_may_end_before_the_others(launcher: Launcher, tmp_path: Path):
    world = launcher.start("leaves", 2, tmp_path)
    assert world.wait() == [0, 0]
    assert world.said(0) == world.said(1) == ""


@pytest.mark.parametrize(
    "number, victim",
    [
        (signal.SIGSTOP, 0),
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.slow),
    ],
)
def test_a_silent_machine_ends_all(
    launcher: Launcher, tmp_path: Path, victim: int, number: signal.Signals
):
    """Processes that do not see each other's: one says nothing any more."""
    world = launcher.start("works_far_apart", 3, tmp_path)
    world.ready()
    time.sleep(1.5)
    begun = time.monotonic()
    os.kill(world.pids[victim], number)
    others = [r for r in range(3) if r != victim]
    while not all("ends: " in world.said(r) for r in others):
        assert time.monotonic() - begun < 30, [world.said(r) for r in range(3)]
        time.sleep(0.05)
    if number == signal.SIGSTOP:
        os.kill(world.pids[victim], signal.SIGKILL)
    assert world.wait() == [-9 if r == victim else 1 for r in range(3)]
    for rank in others:
        said = world.said(rank)
        silent = rf"rank {victim} (\(process \d+ on .*\) )?has said nothing for 3 s"
        # Rank 0 keeps the store: without it nobody hears of anybody.
        silent = rf"{silent}; its last step was 7" if victim else rf"{silent}|rank 0 is gone, or"
        assert re.search(silent, said), said


def test_a_process_that_ended_is_not_missed(launcher: Launcher, tmp_path: Path):
    world = launcher.start("ends_far_apart", 3, tmp_path)
    assert world.wait() == [0, 0, 0]
    assert [world.said(r) for r in range(3)] == [""] * 3


def test_ctrl_c_ends_a_process_that_cannot_see_it(launcher: Launcher, tmp_path: Path):
    world = launcher.start("stuck", 2, tmp_path)
    world.ready()
    time.sleep(0.3)
    os.kill(world.pids[0], signal.SIGINT)
    assert world.wait() == [130, 1]
    assert re.search("rank 0 of 2 ends: interrupted" + LINE, world.said(0)), world.said(0)
    assert "rank 0 was interrupted" in world.said(1)


def test_a_program_may_go_on_after_ctrl_c(launcher: Launcher, tmp_path: Path):
    world = launcher.start("interrupted_and_goes_on", 2, tmp_path)
    world.ready()
    time.sleep(0.3)
    os.kill(world.pids[0], signal.SIGINT)
    assert world.wait() == [0, 0], [world.said(r) for r in range(2)]


def test_a_gpu_that_waits_too_long_ends_all(launcher: Launcher, tmp_path: Path):
    world = launcher.start("waits_on_a_gpu", 2, tmp_path)
    assert world.wait() == [1, 1]
    for rank in range(2):
        said = world.said(rank)
        assert re.search("ends: rank 1 gave up: NCCL: remote error" + LINE, said), said
