"""Commands in several processes: how they join, and who says what went wrong."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Generator

import genesis_fn
from genesis_fn.core.sharding.world import world
from genesis_fn.distributed import initialize, is_initialized
from genesis_fn.distributed.agreement import FailedElsewhere
from genesis_fn.distributed.clusters import find_place, is_first
from genesis_fn.distributed.watch import WatchThread

# Seconds in which the process that speaks for others may come to where they failed: a launcher ends
# all as soon as it sees that one has ended.
_PATIENCE = 10.0


@contextlib.contextmanager
def said_once(number: str = "rank") -> Generator[None]:
    """`with said_once():` what ends this process, as it ends all that a launcher started before
    they have met, is said by the first of them alone; by the first of each machine where `number`
    is "local_rank"."""
    if is_first(os.environ, number):
        yield
        return
    try:
        with (
            open(os.devnull, "w") as nothing,
            contextlib.redirect_stdout(nothing),
            contextlib.redirect_stderr(nothing),
        ):
            yield
    except (Exception, SystemExit) as end:
        status = end.code if isinstance(end, SystemExit) else 1
        if status:
            time.sleep(_PATIENCE)
        raise SystemExit(status) from None


@contextlib.contextmanager
def joined(arguments: argparse.Namespace) -> Generator[None]:
    """`with joined(arguments):` the command computes on the device of `--device`; one that trains,
    and was started by torchrun or Slurm as one of several, together with the others."""
    with said_once():
        several = getattr(arguments, "joins", False) and find_place(os.environ).size > 1
        if several and ":" in (arguments.device or ""):
            raise ValueError(
                f"--device {arguments.device} names one GPU, and there are several processes, each "
                "of which takes its own: --device cuda"
            )
    with contextlib.ExitStack() as block:
        with said_once("local_rank"):  # machines differ
            block.enter_context(genesis_fn.default_device(arguments.device))
        if not several:
            yield
            return
        if not is_initialized():
            initialize()
    # Each process computes on the device that it took, which is not the first one of that name.
    yield


def tell_others(error: BaseException, message: str) -> str:
    """Have the other processes end too, and return what this one says of its error: nothing where
    another one says the same."""
    here = world()
    if here.size == 1:
        return message
    if isinstance(error, FailedElsewhere):
        if here.watch is not None:
            here.watch.failing(str(error))
        return ""
    with contextlib.suppress(RuntimeError):  # who keeps the store is gone
        rank, _, said = (
            here.store.compare_set("failure", "", f"{here.rank} {message}").decode().partition(" ")
        )
        if isinstance(here.watch, WatchThread):
            here.watch.ended_by(error)
        if said == message and int(rank) != here.rank:
            return ""
    return f"rank {here.rank} of {here.size}: {message}" if message else ""
