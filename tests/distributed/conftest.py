"""Worlds of processes, forked by one process that has imported the library.

Each has a CPU device, and they talk through gloo. With `GENESIS_DEVICE=cuda` each has a GPU of its
own, and they talk through NCCL: worlds of more processes than there are GPUs are skipped.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ON_GPU

ROOT = Path(__file__).parent.parent.parent
INTERPRETED = os.environ.get("GENESIS_CUDA_DRIVER") == "interpret"
NCCL = ON_GPU and not INTERPRETED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs the folder, so that worlds are made once."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("distributed"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment() -> dict[str, str]:
    """That of a process which no launcher started."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TORCHELASTIC"))}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return kept | told | ({"GENESIS_INTERPRET_DEVICES": "4"} if ON_GPU and INTERPRETED else {})


@functools.cache
def gpus() -> int:
    """How many GPUs there are, found by a process of its own."""
    program = "import genesis_fn as gf; print(len(gf.devices('cuda')))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def most(size: int) -> int:
    """The size of the largest world up to `size`."""
    return min(size, gpus()) if ON_GPU else size


def needs(size: int) -> None:
    """Skip a test whose world is too large for this machine."""
    if most(size) < size:
        pytest.skip(f"{size} processes take a GPU each, and this machine has {gpus()}")


def of_torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    """What `torchrun` tells a process."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1"} | {k: str(v) for k, v in told.items()}


@dataclass
class World:
    """Processes that run. `pids` by rank; what rank r said is in `folder / "r.txt"`."""

    folder: Path
    pids: list[int]
    launcher: Launcher

    def wait(self) -> list[int]:
        """The exit statuses, negative for signals; LATE of one that had to be killed."""
        return self.launcher.ask("wait")

    def said(self, rank: int) -> str:
        return (self.folder / f"{rank}.txt").read_text()

    def ready(self) -> None:
        """Wait until every process is where its program says that it is ready."""
        end = time.monotonic() + (120 if ON_GPU else 30)
        names = [self.folder / f"ready {r}" for r in range(len(self.pids))]
        while not all(n.exists() for n in names):
            assert time.monotonic() < end, [self.said(r) for r in range(len(self.pids))]
            time.sleep(0.02)


class Launcher:
    """The process that forks."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.distributed.launcher"]
        self.popen = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        assert self.stdout.readline() == "[]\n"

    def ask(self, line: str) -> list[int]:
        print(line, file=self.stdin, flush=True)
        return json.loads(self.stdout.readline())

    def start(self, program: str, size: int, folder: Path, **told: str) -> World:
        needs(size)
        port = free_port()
        environments = [of_torchrun(r, size, port) | told for r in range(size)]
        task = {"program": program, "folder": str(folder), "environments": environments}
        return World(folder, self.ask(json.dumps(task)), self)

    def start_by_slurm(self, program: str, size: int, folder: Path) -> World:
        """As `srun` starts a step; torchrun's variables are not there."""
        needs(size)
        port, told = str(free_port()), {"SLURM_NTASKS": str(size), "SLURM_STEP_ID": "0"}
        told |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7", "MASTER_PORT": port}
        told |= {"MASTER_ADDR": "127.0.0.1"}
        environments = [
            told | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(size)
        ]
        task = {"program": program, "folder": str(folder), "environments": environments}
        return World(folder, self.ask(json.dumps(task)), self)


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    found = Launcher()
    yield found
    found.stdin.close()
    found.popen.wait(90)
