"""The suite under other roundings: `python -m tests.sweep` (or `make sweep`), on a CPU.

torch, MKL and OpenBLAS choose their code by processor. The settings below make them choose as they
would on others, in one thread and in two; every test must pass under each. The suite runs once as
it is, and writes how much of its tolerance each test uses; under the other settings run the tests
that use more than a tenth (`--all`: every test). Those that came near a bound are listed at last.

    python -m tests.sweep [--workers 2] [--all] [--margins FILE] [--only NAME ...] [--out FOLDER]

`--margins` names what an earlier run of the suite with GENESIS_TEST_MARGINS wrote, instead of the
first run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    "torch-default": {"ATEN_CPU_CAPABILITY": "default"},
    "torch-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "mkl-sse4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "openblas-haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "openblas-prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "two-threads": {"OMP_NUM_THREADS": "2"},
    # An older processor as a whole.
    "oldest": {
        "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Prescott", "OMP_NUM_THREADS": "2",
    },
}  # fmt: skip
INTERPRETED = {"TRITON_INTERPRET": "1", "GENESIS_CUDA_DRIVER": "interpret"}
PARTS: list[tuple[str, list[str], dict[str, str]]] = [
    ("cpu", ["tests", "--ignore=tests/kernels", "--ignore=tests/cuda"], {}),
    ("kernels", ["tests/kernels", "tests/cuda"], INTERPRETED),
]
USED, NEAR = 0.1, 0.5  # of a tolerance: what runs again, what is listed


def main() -> int:
    """Run the settings, and return 1 if a test failed under one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--all", action="store_true", help="every test under every setting")
    parser.add_argument("--margins", type=Path, help="of an earlier run, instead of the first one")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    margins = (options.out / "margins.txt").resolve()
    margins.unlink(missing_ok=True)
    passed = True
    if options.margins is None:
        for part, tests, settings in PARTS:
            passed &= run("as-it-is", part, tests, settings, options, margins)
        first = shares(margins)
    else:
        first = shares(options.margins)
    for name in options.only:
        for part, tests, settings in PARTS:
            near = [t for t, share in first.items() if share > USED and _in(t, part)]
            chosen = tests if options.all else near
            if chosen:
                passed &= run(name, part, chosen, settings | SETTINGS[name], options, margins)
    for test, share in sorted((first | shares(margins)).items(), key=lambda x: -x[1]):
        if share > NEAR:
            print(f"{share:.3f} {test}")
    return int(not passed)


def _in(test: str, part: str) -> bool:
    return test.startswith(("tests/kernels/", "tests/cuda/")) == (part == "kernels")


def run(
    name: str,
    part: str,
    tests: list[str],
    settings: dict[str, str],
    options: argparse.Namespace,
    margins: Path,
) -> bool:
    """Run `tests` under a setting, print how it went, and return whether all passed."""
    start = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", "GENESIS_TEST_MARGINS": str(margins)}
    chosen = options.out / f"{name}-{part}.txt"  # too many for a command line
    chosen.write_text("\n".join(tests), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            options.workers,
            "--dist",
            "worksteal",
            "-p",
            "no:cacheprovider",
            f"@{chosen}",
        ],
        env=os.environ | environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    (options.out / f"{name}-{part}.log").write_text(done.stdout, encoding="utf-8")
    lines = done.stdout.splitlines()
    print(f"{name} {part}: {lines[-1] if lines else ''} ({time.monotonic() - start:.0f} s)")
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"    {line[:200]}", flush=True)
    return done.returncode == 0


def shares(margins: Path) -> dict[str, float]:
    """The largest share of a tolerance that each test used, under any setting so far."""
    largest: dict[str, float] = {}
    if margins.exists():
        for line in margins.read_text(encoding="utf-8").splitlines():
            used, test = line.split(" ", 1)
            largest[test] = max(largest.get(test, 0.0), float(used))
    return largest


if __name__ == "__main__":
    sys.exit(main())
