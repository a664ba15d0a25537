"""A table of measurements on disk, with the same for people and a chart beside it: rows are written
as they come, so that a run that was interrupted goes on where it stopped."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that tables have in common."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--out", default=".", help="the folder for the results")
    found.add_argument("--tiny", action="store_true", help="rehearse with small sizes")
    found.add_argument("--redo", action="store_true", help="forget the rows of earlier runs")
    return found


def short(device: str) -> str:
    """A device's name in the names of files: "h200" of "NVIDIA H200"."""
    return device.split()[1].lower().strip(",")


def surroundings() -> dict[str, Any]:
    """Device, versions and commit."""
    versions = {}
    for name in ("torch", "triton", "jax", "numpy", "cuda-python"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    commands = {
        "device": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "commit": ["git", "rev-parse", "HEAD"],
    }
    found: dict[str, Any] = {"versions": versions, "python": sys.version.split()[0]}
    for name, command in commands.items():
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name] = run.stdout.strip().splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            found[name] = os.environ.get(name.upper(), "unknown")
    return found


class Results:
    """The rows measured so far, beside device, versions and commit, in `STEM.json`; `redo` forgets
    those of earlier runs."""

    def __init__(self, stem: Path, redo: bool = False) -> None:
        self.stem = stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        self.path = stem.with_suffix(".json")
        known = json.loads(self.path.read_text()) if self.path.exists() and not redo else {}
        self.rows: dict[str, Any] = known.get("rows", {})
        self.about: dict[str, Any] = surroundings()

    def add(self, name: str, row: dict[str, Any]) -> None:
        """One more row, written at once."""
        self.rows[name] = row
        content = json.dumps(self.about | {"rows": self.rows}, indent=1) + "\n"
        self.path.write_text(content, encoding="utf-8")

    def measure(self, name: str, row: Callable[[], dict[str, Any]]) -> bool:
        """Add the row that `row` measures; False, its error printed, if it fails."""
        try:
            self.add(name, row())
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            return False
        return True

    def in_order(self, names: list[str]) -> dict[str, Any]:
        """The rows of these names that there are."""
        return {n: self.rows[n] for n in names if n in self.rows}

    def write_table(self, title: str, table: str) -> None:
        """The same for people, printed and as `STEM.md`."""
        self.stem.with_suffix(".md").write_text(f"# {title}\n\n{table}\n", encoding="utf-8")
        print(table)

    @contextmanager
    def chart(self, title: str, size: tuple[float, float]) -> Iterator[Any]:
        """Axes to draw on, of `size` inches, which become `STEM.png`."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot(title=title)
        yield axes
        axes.legend(fontsize=7)
        figure.savefig(self.stem.with_suffix(".png"), dpi=130)
