"""Compiles the programs of `targets.py` for one architecture; prints a JSON record of each kernel.

    PYTHONPATH=. python tests/cuda/compile_targets.py 120

Needs no GPU, and a process in which Triton does not interpret.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

os.environ.pop("TRITON_INTERPRET", None)
os.environ["GENESIS_DEVICE"] = "cpu"

from genesis_fn.backends.cuda.binaries.compile import launch_key
from genesis_fn.compiler.target import OF_ARCHITECTURE
from tests.cuda.targets import PROGRAMS, launches
from tests.kernels.compile_only import compile_launch


def main(architecture: int) -> None:
    """Compile every distinct kernel of every program."""
    target, seen, records = OF_ARCHITECTURE[architecture], set(), []
    for name in PROGRAMS:
        for launch in launches(name, target):
            launch = replace(launch, kernel=getattr(launch.kernel, "function", launch.kernel))
            key = launch_key(launch, target)
            if key not in seen and 0 not in launch.grid:
                seen.add(key)
                records.append({"case": name, **compile_launch(launch, target)})
    print(json.dumps(records))


if __name__ == "__main__":
    main(int(sys.argv[1]))
