"""Runs one test file of a peer on this library, in this process, and writes a line a case.

    python -m benchmarks.suites.run_file FILE --jax CHECKOUT [--optax CHECKOUT] --out cases.jsonl
        [--limit 60] [-k ...]

A line is {"case", "outcome", "error", "seconds"}; a case that takes longer than the limit fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Recorder:
    """A plugin of pytest's that writes what each case gave, and limits its time."""

    def __init__(self, out: Path, limit: int, done: set[str]) -> None:
        self.out, self.limit, self.done = out.open("a"), limit, done
        self.started = 0.0

    def write(self, **row: Any) -> None:
        """Add a line to the results."""
        print(json.dumps(row), file=self.out, flush=True)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out what an earlier run has done."""
        items[:] = [i for i in items if _name(i.nodeid) not in self.done]

    def pytest_runtestloop(self) -> None:
        """The file is imported: from now on names that are not there refuse."""
        from benchmarks.suites.internals import Missing

        Missing.importing = False

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported is one failed case."""
        if report.failed:
            self.write(case="import", outcome="failed", error=str(report.longrepr)[-2000:])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say what runs, for the case that ends the process."""
        self.started = time.monotonic()
        self.write(case=_name(nodeid), outcome="started")
        signal.signal(signal.SIGALRM, self._late)
        signal.alarm(self.limit)

    def _late(self, *_: Any) -> None:
        signal.alarm(5)  # a test that catches this is told again
        raise TimeoutError(f"longer than {self.limit} s")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write a case's outcome when it is known."""
        if report.when == "call" or report.outcome != "passed":
            signal.alarm(0)
            error = str(report.longrepr) if report.failed else ""
            if report.skipped:
                error = str(report.longrepr[-1])
            seconds = round(time.monotonic() - self.started, 2)
            row = {"case": _name(report.nodeid), "outcome": report.outcome, "seconds": seconds}
            self.write(**row, error=error[-3000:])


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2].replace("::", ".")


def main() -> None:
    """Run the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jax", type=Path, help="a checkout of JAX, for its test support")
    parser.add_argument("--optax", type=Path, help="a checkout of optax, which is imported")
    parser.add_argument("--optim", action="store_true", help="... but genesis_fn.optim is optax")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=60, help="seconds for a case")
    parser.add_argument("-k", default="", help="cases by pytest's expression")
    options = parser.parse_args()

    import genesis_fn.as_jax  # noqa: F401
    from benchmarks.suites import internals

    if options.jax:
        internals.install(options.jax)
    if options.optax:
        sys.path.insert(0, str(options.optax))
    if options.optim:
        from benchmarks.suites import as_optax

        as_optax.install(options.optax)
    import pytest

    done = set()
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        done = {r["case"] for r in rows}
    folder = options.file.resolve().parent
    arguments = [str(options.file), "-q", "-p", "no:cacheprovider", "--tb=short", "-p",
                 "no:hypothesispytest", f"--rootdir={folder}", "-c", os.devnull,
                 "--import-mode=importlib"]  # fmt: skip
    arguments += ["-k", options.k] if options.k else []
    recorder = Recorder(options.out, options.limit, done)
    code = pytest.main(arguments, plugins=[recorder])
    recorder.write(case="", outcome="ended", error=int(code))


if __name__ == "__main__":
    main()
