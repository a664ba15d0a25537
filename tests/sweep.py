"""The suite under other roundings: `python -m tests.sweep` (or `make sweep`), on a CPU.

torch, MKL and OpenBLAS choose their code by processor. The settings below make them choose as they
would on others, in one thread and in two; every test must pass under each. The last line of each
run is pytest's; tests that used more than half of a tolerance are listed at the end.

    python -m tests.sweep [--workers 2] [--only NAME ...] [--out FOLDER] [-- pytest arguments]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    "as-it-is": {},
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
NEAR = 0.5  # of a tolerance


def main() -> int:
    """Run the settings, and return 1 if a test failed under one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="after --: more for pytest")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    more = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    margins = (options.out / "margins.txt").resolve()
    margins.unlink(missing_ok=True)
    failed = False
    for name in options.only:
        for part, tests, settings in PARTS:
            start = time.monotonic()
            environment = {"OMP_NUM_THREADS": "1", "GENESIS_TEST_MARGINS": str(margins)}
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-n", options.workers, "--dist", "loadgroup",
                 "-p", "no:cacheprovider", *tests, *more],
                env=os.environ | environment | settings | SETTINGS[name],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            (options.out / f"{name}-{part}.log").write_text(run.stdout, encoding="utf-8")
            lines = run.stdout.splitlines()
            bad = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
            last = lines[-1] if lines else ""
            print(f"{name} {part}: {last} ({time.monotonic() - start:.0f} s)", flush=True)
            print(*[f"    {line[:200]}" for line in bad], sep="\n", end="\n" if bad else "")
            failed |= run.returncode != 0
    for line in near(margins):
        print(line)
    return int(failed)


def near(margins: Path) -> list[str]:
    """`share test` of the tests that came nearest to a bound under any setting, nearest first."""
    largest: dict[str, float] = {}
    if margins.exists():
        for line in margins.read_text(encoding="utf-8").splitlines():
            used, test = line.split(" ", 1)
            largest[test] = max(largest.get(test, 0.0), float(used))
    ranked = sorted(((used, test) for test, used in largest.items() if used > NEAR), reverse=True)
    return [f"{used:.3f} {test}" for used, test in ranked]


if __name__ == "__main__":
    sys.exit(main())
