"""A type checker finds a user's mistakes, and reports nothing that is right: basedpyright in strict
mode, over a program that uses the library as an installed package (`py.typed`)."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import subprocess
import sys

import pytest

import genesis_fn

pytest.importorskip("basedpyright")

PROGRAM = pathlib.Path(__file__).with_name("user_program.py")
ROOT = pathlib.Path(genesis_fn.__file__).parents[1]
# A mistake written as a statement of its own is one of these as well.
STATEMENT = {"reportUnusedExpression", "reportUnusedCallResult"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What is reported of each line of the program."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "program.py").write_text(PROGRAM.read_text())
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "pythonVersion": "3.11"})
    )
    # On the interpreter's path, as site-packages are: the package's own settings do not count.
    command = ["-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = collections.defaultdict(list)
    for report in json.loads(done.stdout)["generalDiagnostics"]:
        if report["severity"] == "error" and report.get("rule") not in STATEMENT:
            line = report["range"]["start"]["line"] + 1
            found[line].append(f"{report['message']} ({report.get('rule')})")
    return dict(found)


LINES = list(enumerate(PROGRAM.read_text().splitlines(), 1))
WRONG = {number: line.strip() for number, line in LINES if "  # wrong" in line}


@pytest.mark.parametrize("number", WRONG, ids=lambda n: WRONG[n].split("  #")[0])
def test_a_mistake_is_reported(reports: dict[int, list[str]], number: int) -> None:
    assert number in reports, f"line {number} is not reported: {WRONG[number]}"


def test_nothing_else_is_reported(reports: dict[int, list[str]]) -> None:
    assert {n: r for n, r in reports.items() if n not in WRONG} == {}
