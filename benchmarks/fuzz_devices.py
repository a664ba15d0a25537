"""Random programs on the GPU against the CPU, in float64 and float32, for as long as asked.

    python benchmarks/fuzz_devices.py --seconds 120 --processes 14

Makers: `tests/support/fuzz.py` (stacks of transforms, float64), with Fourier transforms and linear
algebra among the steps (`fuzz_matrices.py`, both types), `fuzz_loops.py` (loops of rows, recurrent
cells, walks through tables, and their gradients), and `tests/cpu/programs.py` (views, loops,
branches and narrow casts, float32).

A result may differ by `ULPS` units in the last place of its largest element, and by four times as
much as the CPU's own result moves when every input moves by one unit. Programs whose results are
not finite, or move by more than `LOOSE` of their size, are counted as skipped. Exits with 1 if a
program differs; its seed reproduces it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("GENESIS_CUDA_DRIVER", "cuda")
os.environ["TRITON_INTERPRET"] = "01"[os.environ["GENESIS_CUDA_DRIVER"] == "interpret"]
os.environ.setdefault("GENESIS_MATMUL_PRECISION", "highest")
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

ULPS = {"float64": 256, "float32": 256}
LOOSE = {"float64": 1e-9, "float32": 1e-3}
MOVES = (1.0, -1.0, 2.0)


def float64_case(seed: int) -> tuple[Any, list[np.ndarray]]:
    """(a function of this library, inputs) of the transform fuzzer."""
    from tests.support.fuzz import Case
    from tests.transforms.both import OURS

    case = Case(seed)
    f = case.function(OURS)
    return lambda *xs: [f(*xs)], case.inputs


def float32_case(seed: int) -> tuple[Any, list[np.ndarray]]:
    """(a function, inputs) of the program maker."""
    from genesis_fn.transforms.staging.stage_trace import evaluate
    from tests.cpu.programs import random_inputs, random_program

    jaxpr = random_program(seed)
    return lambda *xs: evaluate(jaxpr, *xs), [np.ascontiguousarray(x) for x in random_inputs(seed)]


def matrices_case(seed: int, kind: str) -> tuple[Any, list[np.ndarray]]:
    """(a function of this library, inputs) of a program with transforms and linear algebra."""
    from tests.support.fuzz import Case
    from tests.support.fuzz_matrices import MATRICES
    from tests.transforms.both import OURS

    case = Case(seed, more=MATRICES)
    f = case.function(OURS)
    return lambda *xs: [f(*xs)], [x.astype(kind) for x in case.inputs]


def loops_case(seed: int, **kinds: bool) -> tuple[Any, list[np.ndarray]]:
    """(a function, inputs) of a random loop, most of which are one kernel."""
    from tests.support.fuzz_loops import LoopCase

    return _in_our_names(LoopCase(seed, **kinds))


def cells_case(seed: int) -> tuple[Any, list[np.ndarray]]:
    """(a function, inputs) of a random recurrent cell over time: one kernel, of a team of programs
    with GENESIS_COMPILER_WITHOUT=row_loops."""
    from tests.support.fuzz_loops import CellCase

    return _in_our_names(CellCase(seed))


def walks_case(seed: int) -> tuple[Any, list[np.ndarray]]:
    """(a function, inputs) of a random loop that looks up numbers, and writes by its counter."""
    from tests.support.fuzz_loops import WalkCase

    return _in_our_names(WalkCase(seed))


def _in_our_names(case: Any) -> tuple[Any, list[np.ndarray]]:
    from types import SimpleNamespace

    import genesis_fn as g

    names = "lax", "vmap", "grad", "tree", "nn"
    xp = SimpleNamespace(np=g.numpy, **{name: getattr(g, name) for name in names})
    return case.function(xp), case.inputs


MAKERS: dict[str, tuple[str, Callable[[int], tuple[Any, list[np.ndarray]]]]] = {
    "programs": ("float32", float32_case),
    "loops": ("float32", loops_case),
    "stacks": ("float32", lambda seed: loops_case(seed, stacks=True)),
    "pairs": ("float32", lambda seed: loops_case(seed, pairs=True)),
    "cells": ("float32", cells_case),
    "walks": ("float32", walks_case),
    "transforms": ("float64", float64_case),
    "matrices": ("float64", lambda seed: matrices_case(seed, "float64")),
    "float32 matrices": ("float32", lambda seed: matrices_case(seed, "float32")),
}
"""The dtype that results are judged by, and the maker."""


def values(place: Any, f: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The results of the jitted function on a device, wide."""
    import genesis_fn as gf
    from genesis_fn.core.array import from_numpy

    with gf.default_device(place):
        outs = gf.jit(f)(*[from_numpy(x, place) for x in inputs])
        return [np.asarray(o).astype(np.float64) for o in outs]


def _moved(x: np.ndarray, by: float) -> np.ndarray:
    """Numbers moved by a part of themselves; integers, which are places, stay."""
    return x if x.dtype.kind in "iub" else (x * (1 + by)).astype(x.dtype)


def compare(maker: str, seed: int) -> str | None:
    """ "skipped", what differs, or None."""
    import genesis_fn as gf

    kind, make = MAKERS[maker]
    f, inputs = make(seed)
    with np.errstate(all="ignore"):
        expected = values(gf.cpu(), f, inputs)
        if not all(np.isfinite(e).all() for e in expected):
            return "skipped"
        step = np.finfo(kind).eps
        moved = [values(gf.cpu(), f, [_moved(x, k * step) for x in inputs]) for k in MOVES]
    noise = [
        max([np.abs(m[i] - e).max(initial=0.0) for m in moved]) for i, e in enumerate(expected)
    ]
    sizes = [max(np.abs(e).max(initial=0.0), 1.0) for e in expected]
    if not all(n <= LOOSE[kind] * s for n, s in zip(noise, sizes)):
        return "skipped"
    found = values(gf.cuda(0), f, inputs)
    for i, (g, e, n, s) in enumerate(zip(found, expected, noise, sizes)):
        gap = np.abs(g - e).max(initial=0.0)
        if g.shape != e.shape or not gap <= ULPS[kind] * step * s + 4 * n:
            return (
                f"output {i}: differs by {gap:.3e} ({gap / (step * s):.0f} units of {s:.3g}; "
                f"the CPU moves by {n:.1e})"
            )
    return None


def work(first: int, stride: int, seconds: float, most: int, makers: list[str]) -> int:
    """One process: seeds first, first + stride, ...; prints a line for each difference."""
    import genesis_fn as gf

    warnings.simplefilter("ignore")
    # Where it is, for whoever waits longer for it than for others.
    faulthandler.dump_traceback_later(seconds + 160)
    end, counts = time.monotonic() + seconds, dict.fromkeys(("agree", "skipped", "differ"), 0)
    for seed in range(first, most, stride):
        if time.monotonic() > end:
            break
        maker = makers[seed // stride % len(makers)]
        print(f"AT {maker} seed {seed}", flush=True)
        try:
            found = compare(maker, seed)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            found = f"{type(error).__name__}: {str(error)[:300]} ({place.name}:{place.lineno})"
        outcome = "agree" if found is None else found if found == "skipped" else "differ"
        counts[outcome] += 1
        if outcome == "differ":
            print(f"DIFFERS {maker} seed {seed}: {found}", flush=True)
        gf.clear_caches()
    print("COUNTS", *counts.values(), flush=True)
    return 0


def main() -> int:
    """Start the processes, add up what they say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--programs", type=int, default=1_000_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--makers", default=",".join(MAKERS), help="makers, by commas")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    # Imports and the last programs take some of the time.
    limit = max(args.seconds - 25, 5)
    if args.worker is not None:
        most = args.start + args.programs
        return work(args.start + args.worker, args.processes, limit, most, args.makers.split(","))
    command = [sys.executable, __file__, *sys.argv[1:]]
    environment = os.environ | {"GENESIS_COMPILE_WORKERS": "0", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, "--worker", str(i)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(args.processes)
    ]
    totals, broken = np.zeros(3, int), 0
    # Programs of hundreds of kernels take minutes to compile.
    end = time.monotonic() + args.seconds + 150
    for process in running:
        try:
            out, errors = process.communicate(timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
            errors = f"it had not ended in time; {errors}"
        last = "before its first program"
        for line in out.splitlines():
            if line.startswith("COUNTS"):
                totals += np.array(line.split()[1:], int)
            elif line.startswith("AT "):
                last = line
            else:
                print(line)
        if process.returncode or "COUNTS" not in out:
            broken += 1
            print(f"a process ended {last} with code {process.returncode}: {errors[-2000:]}")
    agree, skipped, differ = map(int, totals)
    print(
        f"{agree} programs agree within {ULPS} units in the last place, {skipped} skipped, "
        f"{differ} differ, {broken} processes broke"
    )
    return int(bool(differ or broken))


if __name__ == "__main__":
    sys.exit(main())
