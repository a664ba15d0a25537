"""Starts processes of a world quickly: it has imported the library, and forks.

A line of JSON on standard input says what to start: {"program": a function of `programs`, or of
another module of the folder as "training_programs:commands", "folder":
where results, messages and exit statuses go, "environments": what each process is told}. The answer
is the list of process ids. A line "wait" answers with the list of exit statuses.
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

PATIENCE = 60.0


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
    """The exit statuses, negative for signals; what is not over in time is killed."""
    statuses: dict[int, int] = {}
    end = time.monotonic() + PATIENCE
    while len(statuses) < len(pids):
        for pid in set(pids) - statuses.keys():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                statuses[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(pid, 9)
        time.sleep(0.02)
    return [statuses[p] for p in pids]


def main() -> None:
    torch.set_num_threads(1)
    assert genesis_fn.distributed.process_count() == 1
    pids: list[int] = []
    print("[]", flush=True)
    for line in sys.stdin:
        if line.strip() == "wait":
            print(json.dumps(ended(pids)), flush=True)
            continue
        task: dict[str, Any] = json.loads(line)
        environments = task["environments"]
        module, _, name = task["program"].rpartition(":")
        found = importlib.import_module(f"tests.distributed.{module or 'programs'}")
        program = getattr(found, name)
        pids = [
            start(program, task["folder"], rank, environment)
            for rank, environment in enumerate(environments)
        ]
        print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    main()
