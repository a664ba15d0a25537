"""Compiles the plans of every `cases_*.py` beside this file for sm_90 and prints what they use.

    python -m tests.kernels.compile_cases matmul             # JSON on standard output
    python -m tests.kernels.compile_cases matmul --record    # raise the recorded ceilings

Each `cases_*.py` has `cases()`, which returns plans by name. Runs without a GPU, in a process of
its own because Triton is either interpreting or compiling. Recording keeps the larger of the old
and the new number, so that one file holds for several Triton releases: delete an entry to lower it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from genesis_fn.compiler.target import H200
from tests.kernels.compile_only import compile_plan

FOLDER = Path(__file__).parent
CEILINGS = FOLDER / "ceilings.json"


def measure(family: str) -> dict[str, dict[str, int]]:
    """Registers, spilled bytes and shared memory of each launch of each case of one family."""
    spec = importlib.util.spec_from_file_location(f"cases_{family}", FOLDER / f"cases_{family}.py")
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    used = {}
    for name, plan in module.cases().items():
        for i, record in enumerate(compile_plan(plan, H200)):
            kept = {key: record[key] for key in ("registers", "spills", "shared")}
            used[f"{family}: {name}" + (f" [{i}]" if i else "")] = kept
    return used


def record(family: str, used: dict[str, dict[str, int]]) -> None:
    """Raises the family's ceilings to what was used, and forgets cases that are gone."""
    held = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    kept = {name: v for name, v in held.items() if not name.startswith(f"{family}: ")}
    for name, now in used.items():
        old = held.get(name, {})
        kept[name] = {key: max(value, old.get(key, 0)) for key, value in now.items()}
    CEILINGS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


if __name__ == "__main__":
    used = measure(sys.argv[1])
    if "--record" in sys.argv:
        record(sys.argv[1], used)
    print(json.dumps(used))
