"""The program of a compiling process: it reads requests from standard input and writes binaries to
standard output.

It is run by its path, and does not execute the package's `__init__`: it imports only the modules
that kernels need, so that it starts in a fraction of a second and never loads torch or CUDA.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, BinaryIO


def main() -> None:
    """Serves requests until standard input closes."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a compiler prints must not reach the protocol
    setup = _receive(source)
    if setup is None:
        return
    sys.path[:] = setup["path"]
    package = types.ModuleType("genesis_fn")
    package.__path__ = [setup["package"]]
    sys.modules["genesis_fn"] = package
    folder = tempfile.mkdtemp(prefix="genesis-compile-")
    os.environ["TRITON_CACHE_DIR"] = folder  # the library keeps results itself
    _skip_installation_digest()
    try:
        while (wanted := _receive(source)) is not None:
            _send(sink, _answer(wanted))
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _skip_installation_digest() -> None:
    """Triton names entries of its cache by a digest of its whole installation, which takes each
    process 0.4 s. No entry outlives this process, so one name for the installation will do."""
    from triton.runtime import cache

    cache.triton_key = lambda: ""


def _answer(wanted: Any) -> dict[str, Any]:
    from genesis_fn.backends.cuda.binaries import triton_compile as compiler

    try:
        metadata, binary = compiler.compile_request(wanted)
    except compiler.CompileError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"metadata": metadata, "binary": binary}


def _receive(source: BinaryIO) -> Any:
    size = source.read(8)
    if len(size) < 8:
        return None
    return pickle.loads(source.read(int.from_bytes(size, "little")))


def _send(sink: BinaryIO, message: dict[str, Any]) -> None:
    content = pickle.dumps(message)
    sink.write(len(content).to_bytes(8, "little") + content)
    sink.flush()


if __name__ == "__main__":
    if str(Path(__file__).parent) in sys.path:
        sys.path.remove(str(Path(__file__).parent))  # its `compile.py` would shadow others
    main()
