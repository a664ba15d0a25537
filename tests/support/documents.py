"""Runs the Python blocks of a document, one after the other, in one namespace.

A block that begins with `python` runs here; one with `python cuda` where a CUDA device can be
used, compiled or interpreted; `python file=name.py` is a module that later blocks import. A line
`#> text` is what the block prints.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks(name: str) -> list[tuple[str, str]]:
    """(what follows `python` in the fence, the code) of each block."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(r"^```python *([^\n]*)\n(.*?)^```", text, re.M | re.S)


def run(name: str, folder: Path, patch: pytest.MonkeyPatch, cuda: bool = False) -> int:
    """How many blocks of docs/`name` ran. Raises AssertionError for one that prints otherwise."""
    patch.syspath_prepend(str(folder))
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for told, code in blocks(name):
        if told.startswith("file="):
            path = folder / told.removeprefix("file=")
            path.write_text(code)
            sys.modules.pop(path.stem, None)
            importlib.invalidate_caches()
            continue
        if told == "cuda" and not cuda:
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, name, "exec", dont_inherit=True), names)
        expected = re.findall(r"^ *#> (.*)$", code, re.M)
        assert said.getvalue().splitlines() == expected, code
        count += 1
    return count
