"""`run`: a function in several new processes of this machine, for notebooks and tests."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from multiprocessing import spawn
from typing import Any

from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.errors import ArgumentError, DistributedError
from genesis_fn.distributed import worker
from genesis_fn.distributed.meeting import launchers_store

# Seconds in which the process that another one's failure comes from shows itself.
_CAUSE = 1.0
_FAREWELL = 10.0  # seconds that a process has to end after it sent its result
_PROGRAM = "from genesis_fn.distributed.worker import main; main()"


@dataclass
class _Process:
    """A process, and what it sent of its result so far."""

    rank: int
    popen: subprocess.Popen[bytes]
    results: int  # the file descriptor that they come through
    sent: bytearray = field(default_factory=bytearray)
    outcome: tuple[str, Any] | None = None


def run(
    fn: Callable[..., Any], *args: Any, processes: int = 8, timeout: float = 600.0
) -> list[Any]:
    """Call a function in several new processes of this machine, which compute together on the CPU.

    Each process has met the others when `fn` is called, has one CPU device, and keeps torch to one
    thread. It imports what `fn` needs anew: a script that calls `run` does so under
    `if __name__ == "__main__":`. What the processes print goes where this process's does.

    Args:
        fn: the function, of a module or of the program that runs; one that is defined in a notebook
            or within another function needs the package cloudpickle.
        args: its arguments; what pickles.
        processes: how many processes.
        timeout: seconds in which they wait for one that is late, in a collective or a barrier.

    Returns:
        The results, in the order of the processes, with ndarrays in place of arrays.

    Raises:
        DistributedError: a process failed; the message has its error and the line. The others are
            ended.
        ArgumentError: `fn` or its arguments cannot be sent to another process.

    >>> gf.distributed.run(max, 2, 3, processes=1)
    [3]
    """
    if worker.starting:
        raise RuntimeError(
            "distributed.run was called while a process that it started imports the program\n"
            f'  at {where().describe()}\n  call it under: if __name__ == "__main__":'
        )
    if processes < 1:
        raise ArgumentError(f"run: processes={processes}; give a positive number")
    task = _pickled(fn, args)
    store = launchers_store()
    with _started(processes, store.port) as them:
        for each in them:
            _send(each, task, timeout)
        _collect(them)
        return [each.outcome[1] if each.outcome else None for each in them]


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as bytes. Raises ArgumentError where they do not pickle."""
    name, main = getattr(fn, "__qualname__", repr(fn)), sys.modules["__main__"]
    # New processes import the program again, if it has a file.
    found_again = hasattr(main, "__file__") or getattr(main, "__spec__", None) is not None
    try:
        if not found_again and getattr(fn, "__module__", "") == "__main__":
            raise pickle.PicklingError("it is defined in a notebook or a console")
        return pickle.dumps((fn, args))
    except Exception as error:  # whatever a type's own way to pickle raises
        if importlib.util.find_spec("cloudpickle") is not None:
            import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

            return cloudpickle.dumps((fn, args))
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ArgumentError(
            f"run: {name} or an argument cannot be sent to another process: {said}\n"
            f"  at {where().describe()}\n  give it a function that a module defines at its top (in "
            "a notebook, write one: %%writefile work.py) and data, or pip install cloudpickle"
        ) from None


@contextlib.contextmanager
def _started(processes: int, port: int) -> Generator[list[_Process], None, None]:
    """The processes, which are gone when the block ends, however it does."""
    them: list[_Process] = []
    try:
        for rank in range(processes):
            ours, theirs = os.pipe()
            try:
                popen = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs)],
                    stdin=subprocess.PIPE,
                    pass_fds=(theirs,),
                    env=_environment(rank, processes, port),
                    process_group=0,  # Ctrl-C comes to this process alone, which ends them
                )
            except BaseException:
                os.close(ours)
                raise
            finally:
                os.close(theirs)
            them.append(_Process(rank, popen, ours))
        yield them
    finally:
        for each in them:
            if each.popen.poll() is None:
                each.popen.kill()
        for each in them:
            with contextlib.suppress(BrokenPipeError):
                each.popen.communicate()
            os.close(each.results)


def _environment(rank: int, processes: int, port: int) -> dict[str, str]:
    env = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GENESIS_DEVICE": "cpu",
        "GENESIS_CPU_DEVICES": "",
        # The package is found as here, before the program's own paths are known.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    if any(name == "lo" for _, name in socket.if_nameindex()):
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return env


def _send(each: _Process, task: bytes, timeout: float) -> None:
    """What the process is to do. Its standard input stays open: its end is this process's."""
    prepared = spawn.get_preparation_data(f"rank {each.rank}")
    prepared.pop("authkey", None)
    assert each.popen.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended; `_collect` finds how
        for part in (pickle.dumps((prepared, timeout)), task):
            each.popen.stdin.write(len(part).to_bytes(8, "little") + part)
        each.popen.stdin.flush()


def _collect(them: list[_Process]) -> None:
    """Wait for the results of all. Raises DistributedError where a process fails."""
    with selectors.DefaultSelector() as selector:
        for each in them:
            selector.register(each.results, selectors.EVENT_READ, each)
        end = float("inf")
        while selector.get_map() and time.monotonic() < end:
            for key, _ in selector.select(min(end - time.monotonic(), 3600)):
                each = key.data
                data = os.read(each.results, 1 << 20)
                each.sent += data
                if data:
                    continue
                selector.unregister(each.results)
                each.outcome = _outcome(each)
                if each.outcome[0] == "raised":
                    raise _failure(each, len(them))
                # Those that waited for one that failed fail as well: the cause comes in moments.
                if each.outcome[0] != "done":
                    end = min(end, time.monotonic() + _CAUSE)
    for kind in ("killed", "failed", "ended"):
        for each in them:
            if each.outcome and each.outcome[0] == kind:
                raise _failure(each, len(them))
    for each in them:  # what they do at their ends is theirs, too
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.popen.wait(_FAREWELL)


def _outcome(each: _Process) -> tuple[str, Any]:
    """What became of a process that sent all that it had to say: ("done", result),
    ("raised", text), ("failed", text) where it waited for another, ("killed" or "ended", text)."""
    if each.sent:
        return pickle.loads(each.sent)
    status = each.popen.wait()
    if status < 0:
        return "killed", f"was killed by {signal.Signals(-status).name}"
    return "ended", f"ended with exit status {status} before fn returned"


def _failure(each: _Process, processes: int) -> DistributedError:
    assert each.outcome is not None
    return DistributedError(f"run: rank {each.rank} of {processes} {each.outcome[1]}")
