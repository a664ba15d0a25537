"""`train`, `sft` and `resume` in two processes: the numbers of one, and what ends them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import io
from genesis_fn.cli.main import main
from tests.distributed.conftest import ROOT, Launcher, World, environment, most
from tests.support.chat_folder import write_data, write_model

STEPS = 12


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_model(folder)
    write_data(folder)
    return folder


def sft(base: Path, out: Path, *more: str) -> list[str]:
    return [
        "sft", "--model.path", str(base), "--data.train", str(base / "chats.jsonl"), "--data.valid",
        str(base / "chats.jsonl"), "--data.length", "48", "--batch", "8", "--steps", str(STEPS),
        "--optim.lr", "3e-3", "--evaluate.every", "4", "--evaluate.batches", "2",
        "--checkpoint.every", "4", "--out", str(out), "--data.shuffle", "20", "--log.plot", "false",
        "--quiet", *more,
    ]  # fmt: skip


EVERYTHING = ("--ema", "0.9", "--accumulate", "2", "--optim.clip", "0.5")


def rows(out: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    lines = (out / "log.jsonl").read_text().splitlines()
    clock = ("tokens_per_s", "mfu", "memory")
    return [{k: v for k, v in json.loads(x).items() if k not in clock} for x in lines]


def agree(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [sorted(row) for row in ours] == [sorted(row) for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for name, value in a.items():
            if isinstance(value, float):
                assert value == pytest.approx(b[name], rel=1e-5, abs=1e-6), (name, a["step"])
            else:
                assert value == b[name]


def close(ours: Any, theirs: Any) -> None:
    """Weights after 12 steps. Adam's first steps are about `lr` (3e-3) long, whichever way a
    gradient points that is a rounding; a wrong gradient differs by many such steps."""
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def launched(launcher: Launcher, folder: Path, *commands: Any, size: int = 2) -> World:
    folder.mkdir(exist_ok=True)
    listed = [c if isinstance(c, dict) else {"argv": c} for c in commands]
    (folder / "commands.json").write_text(json.dumps(listed))
    return launcher.start("training_programs:commands", size, folder)


def without_the_last(out: Path, copy: Path) -> Path:
    """A run as it was before its last steps."""
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "checkpoints" / f"step-{STEPS:08d}")
    return copy


@pytest.fixture(scope="module")
def runs(base: Path, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process and of two, to the end; what one began and the other ended."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(sft(base, folder / "one", *EVERYTHING)) == 0
    lora = ("--method", "lora", "--lora.dropout", "0.1")
    assert main(sft(base, folder / "lora", *lora)) == 0
    taken = without_the_last(folder / "one", folder / "one then two")
    out = str(folder / "fsdp")
    world = launched(
        launcher,
        folder / "world",
        sft(base, folder / "data", *EVERYTHING),
        sft(base, folder / "fsdp", *EVERYTHING, "--parallel", "fsdp=2"),
        sft(base, folder / "model", *EVERYTHING, "--parallel", "model=2"),
        sft(base, folder / "lora of two", *lora, "--parallel", "fsdp=2"),
        ["resume", "--out", str(taken), "--parallel", "fsdp=2", "--quiet"],
        ["resume", "--out", out, "--verify", "4"],
    )
    assert world.wait() == [0, 0], world.said(0) + world.said(1)
    assert "and the state of step 12\nevery bit is the same\n" in world.said(0)
    assert world.said(1) == ""
    return folder


@pytest.mark.parametrize("layout", ["data", "fsdp", "model", "one then two"])
def test_the_numbers_are_those_of_one_process(runs: Path, layout: str):
    agree(rows(runs / layout), rows(runs / "one"))
    ours, config = io.load_model(runs / layout / "model")
    theirs, same = io.load_model(runs / "one" / "model")
    assert config == same
    for a, b in zip(gf.tree.leaves(ours), gf.tree.leaves(theirs), strict=True):
        close(a, b)


def test_adapters_are_those_of_one_process(runs: Path):
    agree(rows(runs / "lora of two"), rows(runs / "lora"))
    ours = io.load_file(runs / "lora of two" / "adapter" / "adapter_model.safetensors")
    theirs = io.load_file(runs / "lora" / "adapter" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        close(x, theirs[name])


def test_files_of_a_run_and_of_its_processes(runs: Path):
    out = runs / "fsdp"
    logs = [(out / "logs" / f"rank-000{r}.log").read_text() for r in range(2)]
    assert "rank 0 of 2" in logs[0] and "rank 1 of 2" in logs[1]
    assert not (runs / "one" / "logs").exists()
    step = out / "checkpoints" / "step-00000012"
    files = ["manifest.json", "state-00001-of-00002.safetensors"]
    assert sorted(p.name for p in step.iterdir()) == [*files, "state-00002-of-00002.safetensors"]
    first, second = [p.stat().st_size for p in sorted(step.glob("*.safetensors"))]
    whole = sum(p.stat().st_size for p in (runs / "one" / "checkpoints" / step.name).iterdir())
    assert max(first, second) < 0.6 * whole  # what both have is written by one of them


def test_records_and_warnings_go_to_the_logs_of_processes(launcher: Launcher, tmp_path: Path):
    """And to the terminal as in a run of one process, of the first one alone."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, size in ((one, 1), (two, 2)):
        folder.mkdir()
        world = launcher.start("training_programs:talking", size, folder)
        assert world.wait() == [0] * size, world.said(0)
    assert not (one / "run").exists()
    shown = (one / "0.txt").read_text()
    assert (two / "0.txt").read_text() == shown
    for warning in ("a user's warning", "a captured warning", "captured before"):
        assert shown.count(f"UserWarning: {warning}\n") == 1
    behind = "behind the run 1"
    assert (two / "1.txt").read_text() == f"{behind}\nroot: {behind}\n"
    for rank in range(2):
        log = (two / "run" / "logs" / f"rank-000{rank}.log").read_text()
        for line in (
            "WARNING genesis_fn: of the library", "INFO own: of the user's dataset",
            "ERROR dataset.lines: passed over", "OSError: a bad line", "WARNING own: of a thread",
            "ERROR wrong: '%d items' % ('x',)", "warning: a user's warning",
            "INFO later: by the root's handler", "UserWarning: a captured warning",
        ):  # fmt: skip
            assert log.count(f"{line}\n") == 1, (line, log)
        assert "below its level" not in log and "behind the run" not in log
        said = (two / f"own-{rank}.log").read_text()
        assert said == f"of the user's dataset\nof a thread\nbehind the run {rank}\n"
        log = (two / "again" / "logs" / f"rank-000{rank}.log").read_text()
        assert log.count("UserWarning: captured before\n") == 1


def test_two_then_one(runs: Path, tmp_path: Path):
    taken = without_the_last(runs / "fsdp", tmp_path / "run")
    assert main(["resume", "--out", str(taken), "--quiet"]) == 0
    agree(rows(taken), rows(runs / "one"))


def same_as(runs: Path, out: Path) -> None:
    """Bit for bit the run of two processes that nothing stopped."""
    assert rows(out) == rows(runs / "fsdp")
    for path in (runs / "fsdp" / "checkpoints" / f"step-{STEPS:08d}").glob("*.safetensors"):
        there = out / "checkpoints" / path.parent.name / path.name
        assert path.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("victim, fault, statuses", [
    (1, "killed", [1, -9]), pytest.param(1, "terminated", [143, 143], marks=pytest.mark.slow),
])  # fmt: skip
def test_what_was_stopped_goes_on_bit_for_bit(
    base: Path, runs: Path, launcher: Launcher, tmp_path: Path, victim: int, fault: str,
    statuses: list[int],
):  # fmt: skip
    out = tmp_path / "run"
    # Saved before the next step: fast steps may have come to the fault ahead of a thread.
    saved = ("--checkpoint.background", "false")
    command = sft(base, out, *EVERYTHING, "--parallel", "fsdp=2", *saved)
    faulty = {"argv": command, "fault": fault, "victim": victim, "at": 6}
    world = launched(launcher, tmp_path / "first", faulty)
    begun = time.monotonic()
    assert world.wait() == statuses, world.said(0) + world.said(1)
    assert time.monotonic() - begun < 60
    if fault == "killed":
        assert re.search(r"rank 1 \(process \d+ on .*\) is gone", world.said(0)), world.said(0)
        assert io.steps(out / "checkpoints") == [4]
    else:
        (stopped,) = re.findall(r"interrupted at step (\d+); run", world.said(0))
        assert world.said(1) == "" and 6 < int(stopped) < 10
        assert io.steps(out / "checkpoints")[-1] == int(stopped)
    # As torchrun starts all processes again.
    world = launched(launcher, tmp_path / "second", command)
    assert world.wait() == [0, 0], world.said(0) + world.said(1)
    same_as(runs, out)


def parts(out: Path, step: int) -> dict[str, bytes]:
    """The files of a checkpoint. The structure that it notes has the address of an object."""
    found = {p.name: p.read_bytes() for p in (out / "checkpoints" / f"step-{step:08d}").iterdir()}
    return {name: re.sub(rb" at 0x[0-9a-f]+", b"", data) for name, data in found.items()}


@pytest.mark.slow
def test_any_process_may_be_killed_at_any_step(base: Path, launcher: Launcher, tmp_path: Path):
    """Twenty times; all processes start anew each time, as torchrun starts them."""
    size, steps, rng = most(3), 24, np.random.default_rng(20)
    more = ("--batch", "6", "--parallel", f"fsdp={size}", "--steps", str(steps),
            "--checkpoint.every", "2", "--checkpoint.keep", str(steps))  # fmt: skip
    whole, out = tmp_path / "whole", tmp_path / "run"
    world = launched(launcher, tmp_path / "first", sft(base, whole, *more), size=size)
    assert world.wait() == [0] * size, "".join(map(world.said, range(size)))
    command = sft(base, out, *more)
    for kill in range(20):
        saved = max(io.steps(out / "checkpoints"), default=0) if out.exists() else 0
        victim, at = int(rng.integers(size)), 1 + int(rng.integers(min(6, steps - saved)))
        late = bool(rng.integers(2))
        print(f"{kill}: from {saved}, rank {victim} at its step {at}{', late' * late}")
        faulty = {"argv": command, "fault": "killed late" if late else "killed", "victim": victim}
        world = launched(launcher, tmp_path / str(kill), faulty | {"at": at}, size=size)
        statuses = world.wait()
        killed = float((world.folder / "killed").read_text())
        others = [r for r in range(size) if r != victim]
        assert time.time() - killed < 30
        assert statuses == [-9 if r == victim else 1 for r in range(size)]
        said = "".join(map(world.said, others))
        print(said)
        gone = rf"rank {victim} \(process {world.pids[victim]} on .*\) is gone"
        named = [
            re.findall(rf"{gone}(?:; its last step was (\d+))?", world.said(r)) for r in others
        ]
        # One says it at least, each of them once at most.
        assert any(named) and all(len(found) <= 1 for found in named)
        for last in [last for found in named for last in found]:
            # What it had said of itself: nothing before its first step.
            if late:
                assert last == (str(saved + at - 1) if at > 1 else "")
            else:
                assert not last or saved < int(last) < saved + at
        for step in io.steps(out / "checkpoints"):
            assert parts(out, step) == parts(whole, step)
    world = launched(launcher, tmp_path / "last", command, size=size)
    assert world.wait() == [0] * size, "".join(map(world.said, range(size)))
    assert rows(out) == rows(whole)
    assert io.steps(out / "checkpoints") == io.steps(whole / "checkpoints")
    assert parts(out, steps) == parts(whole, steps)
    assert not list((out / "checkpoints").glob(".saving*"))


def test_a_full_disk_of_one_process_fails_the_save_of_all(
    base: Path, launcher: Launcher, tmp_path: Path
):
    out = tmp_path / "run"
    faulty = {"argv": sft(base, out), "fault": "full disk", "victim": 1, "at": 2}
    world = launched(launcher, tmp_path / "world", faulty)
    assert world.wait() == [1, 1]
    message = "genesis-fn: rank 1 of 2: state-00002-of-00002.safetensors: No space left on device\n"
    assert world.said(1) == message and world.said(0) == ""
    assert io.steps(out / "checkpoints") == [4]
    assert not list((out / "checkpoints").glob(".saving*"))
    assert "No space left on device" in (out / "logs" / "rank-0000.log").read_text()


def test_an_error_of_one_process_names_it(base: Path, launcher: Launcher, tmp_path: Path):
    faulty = {"argv": sft(base, tmp_path / "run"), "fault": "broken", "victim": 1, "at": 3}
    world = launched(launcher, tmp_path / "world", faulty)
    assert world.wait() == [1, 1]
    assert world.said(1) == "genesis-fn: rank 1 of 2: this rank alone is wrong\n"
    assert "rank 1 ended by ValueError: this rank alone is wrong at step 2" in world.said(0)


def refused(launcher: Launcher, folder: Path, command: Any) -> str:
    """The one line that is said of a command that does not begin."""
    world = launched(launcher, folder, command)
    assert world.wait() == [1, 1]
    said = world.said(0) + world.said(1)
    assert said.startswith("genesis-fn: ") and said.count("\n") == 1, said
    return said


def test_processes_with_different_settings(base: Path, launcher: Launcher, tmp_path: Path):
    command = sft(base, tmp_path / "run")
    only = {"1": ["--optim.lr", "0.5", "--seed", "3"]}
    said = refused(launcher, tmp_path / "world", {"argv": command, "only": only})
    assert "different settings: seed is 0 on rank 0; 3 on rank 1; start all of them" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more, message", [
    (("--parallel", "fsdp=4"), "is for 4 processes, and there are 2: start 4 (torchrun"),
    (("--batch", "7"), "batch is 7, and parallel data=2 divides the rows among 2 devices"),
    (("--config", "missing.toml"), "missing.toml: No such file or directory"),
    (("--config", "unknown.toml"), "stepz"),
    (("--optim.lr", "fast"), "optim.lr"), (("--data.train", "missing.jsonl"), "missing.jsonl"),
])  # fmt: skip
def test_what_does_not_begin(
    base: Path, launcher: Launcher, tmp_path: Path, more: tuple[str, ...], message: str
):
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "unknown.toml").write_text("stepz = 3\n")
    assert message in refused(launcher, tmp_path / "world", sft(base, tmp_path / "run", *more))


@pytest.mark.parametrize(
    "option, status",
    [("--no-such-option", 2), pytest.param("--version", 0, marks=pytest.mark.slow)],
)
def test_torchrun_and_wrong_usage(option: str, status: int):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [*torchrun, "-m", "genesis_fn", "train", option],
        cwd=ROOT, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode != 0) == (status != 0)
    assert done.stderr.count("error: unrecognized arguments: --no-such-option") == (status != 0)
    assert done.stdout.count("genesis-fn 0") == (status == 0)


def test_slurm_starts_a_run_too(base: Path, launcher: Launcher, tmp_path: Path):
    """By its own variables alone."""
    folder = tmp_path / "world"
    folder.mkdir()
    out = tmp_path / "run"
    (folder / "commands.json").write_text(json.dumps([{"argv": sft(base, out, "--steps", "2")}]))
    world = launcher.start_by_slurm("training_programs:commands", 2, folder)
    assert world.wait() == [0, 0], world.said(0) + world.said(1)
    assert io.steps(out / "checkpoints") == [2]
