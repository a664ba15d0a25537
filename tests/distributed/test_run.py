"""`distributed.run`: a function in processes of this machine, which compute on the CPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import genesis_fn as gf
from tests.distributed import programs
from tests.distributed.conftest import ROOT, environment

pytestmark = pytest.mark.cpu


def children() -> set[int]:
    """The processes that this one started, and that are there still."""
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_results_come_by_rank():
    before = children()
    results = gf.distributed.run(programs.doubled, gf.numpy.arange(3.0), processes=2)
    assert [r["rank"] for r in results] == [0, 1]
    assert all(type(r["total"]) is np.ndarray and r["total"] == 6 for r in results)
    assert results[0]["threads"] == "1"
    assert children() <= before and gf.process_count() == 1


FAILURES = {
    "raises": r"^run: rank 1 of 2 raised ValueError: no data\n  at .*programs.py:\d+  raise Value",
    "killed": r"^run: rank 1 of 2 was killed by SIGKILL$",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_names_the_rank_and_ends_the_others(how: str):
    before = children()
    with pytest.raises(gf.errors.DistributedError) as caught:
        gf.distributed.run(programs.fails, how, processes=2)
    assert re.search(FAILURES[how], str(caught.value)), str(caught.value)
    assert children() <= before


def test_what_cannot_be_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sent = "<lambda> or an argument cannot be sent to another process: "
    with pytest.raises(gf.errors.ArgumentError, match=f"{sent}.*\n  at .*\n.* cloudpickle"):
        gf.distributed.run(lambda: 0, processes=2)
    monkeypatch.setattr("sys.modules", sys.modules | {"__main__": ModuleType("__main__")})
    monkeypatch.setattr(programs.doubled, "__module__", "__main__")
    with pytest.raises(gf.errors.ArgumentError, match="it is defined in a notebook or a console"):
        gf.distributed.run(programs.doubled, processes=2)
    with pytest.raises(gf.errors.ArgumentError, match="processes=0"):
        gf.distributed.run(max, processes=0)


SCRIPT = """
import sys, time
import genesis_fn as gf

def f():
    gf.distributed.barrier()
    # One write for the line: `print` may write its end apart, behind the other process's line.
    sys.stdout.write(f"ready {gf.process_index()}\\n")
    sys.stdout.flush()
    time.sleep(60)

if GUARD:
    gf.distributed.run(f, processes=PROCESSES)
"""


def test_ctrl_c_ends_all(tmp_path: Path):
    """A function of the program itself; Ctrl-C goes to whoever started the processes."""
    script = tmp_path / "script.py"
    guarded = SCRIPT.replace("GUARD", '__name__ == "__main__"')
    script.write_text(guarded.replace("PROCESSES", "2"))
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"ready 0\n", "ready 1\n"}
    started = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(started) == 2
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - begun < 10
    assert process.returncode not in (0, None) and said.count("KeyboardInterrupt") == 1, said
    assert not [pid for pid in started if os.path.exists(f"/proc/{pid}")]


def test_a_program_that_runs_itself_is_told(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("GUARD", "True").replace("PROCESSES", "1"))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert 'call it under: if __name__ == "__main__":' in done.stderr
