"""The process that renders chat templates, as the program that asks sees it."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import threading
from typing import Any

from genesis_fn.data import chat_worker

_SAFE = (3, 1, 6)  # of jinja2: the first version without known ways out of the sandbox


class ChatProcess:
    """A process that is started by the first request, and anew after one that ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The reply of `chat_worker.reply`; an error where the process was ended."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                chat_worker.send(process.stdin, {"template": template, "variables": variables})
                found = chat_worker.receive(process.stdout)
            except BrokenPipeError:
                found = None
            except BaseException:  # an answer is under way that nobody will read
                self._end()
                raise
            if found is None:
                self._end()
                seconds, size = chat_worker.SECONDS, chat_worker.MEMORY >> 20
                return {"error": f"takes more than {seconds:.0f} seconds or {size} MiB"}
            return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = _start()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of what was not sent
                    pipe.close()

    def forget(self) -> None:
        """Leave the process to the program that this one is a fork of."""
        self.__init__()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()


def _start() -> subprocess.Popen[bytes]:
    folders = [_folder("jinja2"), _folder("markupsafe")]
    command = [sys.executable, "-I", "-S", "-B", "-W", "ignore", chat_worker.__file__, *folders]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    ready = chat_worker.receive(process.stdout)
    if ready is None:
        said = process.communicate()[1].decode(errors="replace").strip()
        raise ImportError(f"chat templates are rendered by jinja2, which fails: {said[-300:]}")
    version = tuple(int(part) for part in re.findall(r"\d+", ready["jinja2"])[:3])
    if version < _SAFE:
        process.kill()
        process.communicate()
        raise ImportError(
            f"jinja2 {ready['jinja2']} is installed, whose sandbox has known holes: chat templates "
            "need 3.1.6 at least: pip install -U jinja2"
        )
    return process


def _folder(package: str) -> str:
    """The folder that a package is imported from."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(
            f"chat templates are rendered by jinja2, and {package} is not installed: "
            "pip install jinja2, or genesis-fn[demo]"
        )
    return str(pathlib.Path(spec.origin).parent.parent)


process = ChatProcess()
atexit.register(process.close)
os.register_at_fork(after_in_child=process.forget)
