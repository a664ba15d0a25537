"""`python -m genesis_fn.as_jax script.py [argument ...]`, or `-m module`: a program for JAX, run on
the library."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

USAGE = "usage: python -m genesis_fn.as_jax (script.py | -m module) [argument ...]"


def main(arguments: list[str]) -> None:
    """Run a script or a module as `__main__`, with `jax` being the library."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit(USAGE if not arguments else print(USAGE))
    importlib.import_module("genesis_fn.as_jax")  # before the program imports jax
    if arguments[0] == "-m":
        if len(arguments) == 1:
            sys.exit(USAGE)
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.exists():
        sys.exit(f"there is no file {script}\n{USAGE}")
    sys.argv = arguments
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
