"""A process that `run` starts: it meets the others, calls the function, and sends its result."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from multiprocessing import spawn
from typing import Any

from genesis_fn.core.configuration import environment
from genesis_fn.core.diagnostics.source_info import SourceLocation, is_internal
from genesis_fn.core.errors import DistributedError
from genesis_fn.distributed.initialization import initialize
from genesis_fn.transforms.staging.device_placement import device_get

starting = False  # whether this process imports the program that called `run`


def main() -> None:
    """Do what comes by standard input; what became of it goes to the file descriptor that is the
    program's argument, as `local_processes` reads it."""
    results, given = int(sys.argv[1]), os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        head, task = _part(given), _part(given)
    except EOFError:  # whoever started it is gone already
        os._exit(1)
    threading.Thread(target=_await_end, args=(given,), daemon=True).start()
    try:
        prepared, timeout = pickle.loads(head)
        data = pickle.dumps(("done", _call(prepared, timeout, task)))
    except BaseException as error:  # Ctrl-C and exits too: the others must not wait
        kind = "failed" if isinstance(error, DistributedError) else "raised"
        data = pickle.dumps((kind, _described(error)))
    with os.fdopen(results, "wb") as out:
        out.write(data)


def _part(given: int) -> bytes:
    size = int.from_bytes(_read(given, 8), "little")
    return _read(given, size)


def _read(given: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = os.read(given, size - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def _await_end(given: int) -> None:
    """End this process with the one that started it, which holds the other end."""
    os.read(given, 1)
    os._exit(1)


def _call(prepared: dict[str, Any], timeout: float, task: bytes) -> Any:
    global starting
    initialize(timeout=timeout)
    starting = True
    spawn.prepare(prepared)
    fn, args = pickle.loads(task)
    starting = False
    return device_get(fn(*args))


def _described(error: BaseException) -> str:
    """What a process raised, and the user's line."""
    if environment.text("GENESIS_TRACEBACK") == "full":
        traceback.print_exception(error)
    said = f"raised {type(error).__name__}" + (f": {error}" if str(error) else "")
    frames = [
        (f.f_code, line)
        for f, line in traceback.walk_tb(error.__traceback__)
        if not is_internal(f.f_code)
    ]
    if "\n  at " in said or not frames:
        return said
    return f"{said}\n  at {SourceLocation(*frames[-1]).describe()}"
