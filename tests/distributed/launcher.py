"""Starts processes of a world quickly: it has imported the library, and forks.

A line of JSON on standard input says what to start: {"program": a function of `programs`, or of
another module of the folder as "training_programs:commands", "folder":
where results, messages and exit statuses go, "environments": what each process is told}. The answer
is the list of process ids. A line "wait" answers with the list of exit statuses. Processes that
still run when another world starts, or at the end, are killed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import genesis_fn.distributed
import genesis_fn.numpy

ON_CPU = os.environ.get("GENESIS_DEVICE", "cpu") == "cpu"
PATIENCE = 60.0 if ON_CPU else 300.0  # seconds; on a GPU, kernels are compiled first
RELEASE = 60.0  # seconds in which a killed process gives back its device
LATE = 1000  # the status of a process that was not over in time


def start(
    program: Callable[[int], None], folder: str, rank: int, environment: dict[str, str]
) -> int:
    pid = os.fork()
    if pid:
        return pid
    with (Path(folder) / f"{rank}.txt").open("w") as said, open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.environ.update(environment)
    os.chdir(folder)
    program(rank)
    raise SystemExit  # the ordinary end of a program, with what it does there


def ended(pids: list[int]) -> list[int]:
    """The exit statuses, negative for signals; what is not over in time is killed, and LATE."""
    statuses: dict[int, int] = {}
    begun = time.monotonic()
    while len(statuses) < len(pids):
        waited = time.monotonic() - begun
        for pid in set(pids) - statuses.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                statuses[pid] = code if waited < PATIENCE else LATE
            elif waited > PATIENCE + RELEASE:  # even a signal does not end it
                statuses[pid] = LATE
            elif waited > PATIENCE:
                os.kill(pid, 9)
        time.sleep(0.02)
    return [statuses[p] for p in pids]


def kill(pids: list[int]) -> None:
    """End processes that nobody waited for, as their test failed before."""
    for pid in pids:
        os.kill(pid, 9)
    end = time.monotonic() + RELEASE
    for pid in pids:
        while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < end:
            time.sleep(0.02)


def main() -> None:
    torch.set_num_threads(1)
    assert genesis_fn.distributed.process_count() == 1
    pids: list[int] = []
    print("[]", flush=True)
    for line in sys.stdin:
        if line.strip() == "wait":
            statuses, pids = ended(pids), []
            print(json.dumps(statuses), flush=True)
            continue
        kill(pids)
        task: dict[str, Any] = json.loads(line)
        environments = task["environments"]
        module, _, name = task["program"].rpartition(":")
        found = importlib.import_module(f"tests.distributed.{module or 'programs'}")
        program = getattr(found, name)
        # CUDA does not survive a fork.
        assert "genesis_fn.backends.cuda.driver.drivers" not in sys.modules
        pids = [
            start(program, task["folder"], rank, environment)
            for rank, environment in enumerate(environments)
        ]
        print(json.dumps(pids), flush=True)
    kill(pids)


if __name__ == "__main__":
    main()
