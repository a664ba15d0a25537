"""Commands that train, in the processes of a world, and what goes wrong with them."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import genesis_fn as gf
from genesis_fn.cli.main import main
from genesis_fn.io.joint import saving as joint
from genesis_fn.training import loop
from genesis_fn.training.parallel.rank_log import rank_log


def commands(rank: int) -> None:
    """Those of commands.json, one after the other, until one fails. `fault` is what happens in the
    process `victim`, at the step `at`; `only` are options of one process."""
    sys.stdin = open(os.devnull)  # that of who started it was read from
    status = 0
    for each in json.loads(Path("commands.json").read_text()):
        if each.get("victim") == rank:
            FAULTS[each["fault"]](each["at"])
        argv = [*each["argv"], *(each.get("only", {}).get(str(rank), []))]
        status = main(argv)
        if status:
            break
    sys.exit(status)


def _at_step(step: int, act: Any) -> None:
    real, seen = loop.metrics_of, []

    def metrics_of(numbers: Any) -> Any:
        seen.append(1)
        if len(seen) == step:
            act()
        return real(numbers)

    loop.metrics_of = metrics_of


def _killed(step: int) -> None:
    _at_step(step, _kill)


def _kill() -> None:
    Path("killed").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_late(step: int) -> None:
    """When the others have heard how far this process is."""

    def act() -> None:
        time.sleep(2.5)
        _kill()

    _at_step(step, act)


def _terminated(step: int) -> None:
    _at_step(step, lambda: os.kill(os.getpid(), signal.SIGTERM))


def _broken(step: int) -> None:
    def act() -> None:
        raise ValueError("this rank alone is wrong")

    _at_step(step, act)


def _full_disk(number: int) -> None:
    """At that save, counted from 1."""
    real, seen = joint.write_part, []

    def write_part(*args: Any) -> Any:
        seen.append(1)
        if len(seen) == number:
            time.sleep(0.1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[1])
        return real(*args)

    joint.write_part = write_part


FAULTS = {
    "killed": _killed, "killed late": _killed_late, "terminated": _terminated, "broken": _broken,
    "full disk": _full_disk,
}  # fmt: skip


def talking(rank: int) -> None:
    """What libraries and a user's code say by `logging` and `warnings`, in a run and behind it."""
    gf.distributed.initialize()
    own = logging.getLogger("own")
    own.setLevel("INFO")
    own.propagate = False
    own.addHandler(logging.StreamHandler(sys.stdout))
    own.addHandler(logging.FileHandler(f"own-{rank}.log"))
    with rank_log("run"):
        _talk(own)
    own.info("behind the run %d", rank)
    logging.getLogger("late").warning("behind the run %d", rank)
    logging.captureWarnings(False)
    logging.captureWarnings(True)
    with rank_log("again"):
        warnings.warn("captured before", stacklevel=1)


def _talk(own: logging.Logger) -> None:
    logging.getLogger("genesis_fn").warning("of the library")
    logging.getLogger("silent").info("below its level")
    own.info("of the user's %s", "dataset")
    own.debug("below its level")
    try:
        raise OSError("a bad line")
    except OSError:
        logging.getLogger("dataset.lines").exception("passed over")
    thread = threading.Thread(target=lambda: own.warning("of a thread"))
    thread.start()
    thread.join()
    logging.raiseExceptions = False
    logging.getLogger("wrong").error("%d items", "x")
    warnings.warn("a user's warning", stacklevel=1)
    logging.basicConfig(format="root: %(message)s", level="INFO")
    logging.getLogger("later").info("by the root's handler")
    logging.captureWarnings(True)
    warnings.warn("a captured warning", stacklevel=1)
