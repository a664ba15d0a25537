"""Runs that are killed at any moment, and whose disk is full at any write: they go on to the bits
of a run that nothing happened to."""

from __future__ import annotations

import builtins
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import genesis_fn
from genesis_fn import io
from genesis_fn.core.device import cpu, using_device
from genesis_fn.training.monitoring import log
from tests.training.tiny_run import train

ROOT = Path(genesis_fn.__file__).parent.parent


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Files are what is tested, and a process with a GPU is killed before it writes any."""
    monkeypatch.setenv("GENESIS_DEVICE", "cpu")
    with using_device(cpu()):
        yield


def outcome(folder):
    """The steps that are kept, the bits of all of them, and the log without the clock's numbers."""
    root = Path(folder) / "checkpoints"
    files = {n: (root / f"step-{n:08d}" / "state.safetensors").read_bytes() for n in io.steps(root)}
    rows = [json.loads(x) for x in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return files, [{k: v for k, v in row.items() if k != "tokens_per_s"} for row in rows]


# A child for every kill, of a process that has imported all there is: an import takes seconds.
KILLED = """
import os, random, signal, sys, time
from tests.training.tiny_run import train
folder, chance = sys.argv[1], random.Random(int(sys.argv[2]))
for i in range(int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        try:
            train(folder, 10**6, background=i % 2 == 1)
        finally:
            os._exit(1)
    time.sleep(chance.uniform(0.0, 0.5))
    os.kill(child, signal.SIGKILL)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.slow  # tests/cli/test_train.py kills the command
def test_runs_that_are_killed_25_times_go_on_to_the_same_bits(tmp_path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "parts"), "1", "25"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # None of them ended by itself, as by an error of the kill before.
    assert killed.stdout.split() == [str(int(signal.SIGKILL))] * 25, killed.stderr
    newest = max(io.steps(tmp_path / "parts" / "checkpoints"))
    assert newest > 25
    train(str(tmp_path / "parts"), newest + 5)
    train(str(tmp_path / "whole"), newest + 5)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


class FullDisk:
    """Every write, flush to the disk, rename and new file of a run, of which one fails."""

    def __init__(self, patch, fails: int) -> None:
        self.count, self.fails = itertools.count(), fails
        self.failed = False
        mkdir, replace, mkstemp, fsync = os.mkdir, os.replace, tempfile.mkstemp, os.fsync
        patch.setattr(os, "fsync", lambda handle: self.step() or fsync(handle))
        patch.setattr(os, "replace", lambda a, b: self.step(a, b) or replace(a, b))
        patch.setattr(
            os,
            "mkdir",  # that of a folder that is there fails otherwise, and needs no room
            lambda path, *mode: os.path.isdir(path) or self.step(path) or mkdir(path, *mode),
        )
        patch.setattr(
            tempfile,
            "mkstemp",
            lambda prefix, dir: self.step(f"{dir}/{prefix}") or mkstemp(prefix=prefix, dir=dir),
        )
        fdopen = os.fdopen
        patch.setattr(os, "fdopen", lambda *a, **k: self._watched(fdopen(*a, **k)))
        opened = lambda *a, **k: self._watched(builtins.open(*a, **k))
        patch.setattr(log, "open", opened, raising=False)

    def step(self, path: str | None = None, other: str | None = None) -> None:
        """Fail, if it is the turn of what is about to be done, with the paths that the system
        gives."""
        if next(self.count) == self.fails:
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path, None, other)

    def _watched(self, file):
        return _Watched(file, self) if file.writable() else file


class _Watched:
    """A file whose writes are counted."""

    def __init__(self, file, disk: FullDisk) -> None:
        self.file, self.disk = file, disk

    def write(self, data):
        """Write, unless the disk is full."""
        self.disk.step()
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("background, stride", [(False, 1), (True, 5)])
def test_a_disk_that_is_full_at_any_write(tmp_path, monkeypatch, background, stride):
    options = dict(keep=1)  # so that old ones are removed soon
    train(str(tmp_path / "whole"), 4, **options)
    files, rows = outcome(tmp_path / "whole")
    for fails in range(0, 1000, stride):
        folder = tmp_path / str(fails)
        folder.mkdir()
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, fails)
            try:
                train(str(folder), 4, **options, background=background)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                assert str(error.filename).startswith(str(folder)), (fails, error)
                assert str(error).count("\n") == 0 and not getattr(error, "__notes__", None)
            else:
                assert not disk.failed, fails
        train(str(folder), 4, **options)
        found, logged = outcome(folder)
        # Old ones that could not be removed are removed by the next save, if there is one.
        assert logged == rows and files.items() <= found.items(), fails
        assert not [p for p in (folder / "checkpoints").iterdir() if p.name.startswith(".s")]
        if not disk.failed:
            break
    assert fails > 50
