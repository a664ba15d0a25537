"""Programs of many fields on this library, JAX and torch.compile, one source each.

    python benchmarks/zoo.py --out benchmarks/results [--tiny] [--only gpt2 lstm]
        [--sides genesis,jax,torch] [--limit 240] [--budget 1500] [--again]

`benchmarks/zoo_programs` has the programs, which do not know what library runs them, and torch's
own forms of some. Programs of a side share a process, which starts with no compiled code on disk,
`--together` many of them; one that fails or takes longer than `--limit` seconds is written down as
failed, and the next ones get another process. Written per program and side: the first call with its
operands on the device, the median time of a call in streams that are waited for once, peak memory
(of JAX, what its compiler says a jitted program takes), and the values, held to JAX's. Products of
float32 are in TF32 for all, or in float32 where the program says so. Where rows are added up that
may be the same, ours runs a second time with `deterministic=False`, as peers do it.

What lies in the folder is not measured again without `--again`. Writes zoo.json, zoo.md, zoo.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.results_file import surroundings
from benchmarks.zoo_programs import PROGRAMS
from benchmarks.zoo_programs.measuring import (
    CACHES,
    ENVIRONMENT,
    SIDES,
    UNORDERED,
    paths,
    work,
    write,
)
from benchmarks.zoo_programs.report import chart, collected, table

# Seconds for a process to import its library and to start its device.
START_SECONDS = 180.0
SECONDS = 3.0  # of repeats, of a program


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    found.add_argument("--out", default=".", help="the folder for the results")
    found.add_argument("--tiny", action="store_true", help="rehearse with small sizes")
    found.add_argument("--only", nargs="+", metavar="NAME", choices=list(PROGRAMS), default=[])
    found.add_argument("--sides", default="genesis,jax,torch", help="separated by commas")
    found.add_argument("--limit", type=float, default=240.0, help="seconds for one program")
    found.add_argument("--budget", type=float, default=1e9, help="seconds to begin programs in")
    found.add_argument("--together", type=int, default=14, help="programs that share a process")
    found.add_argument("--again", action="store_true", help="measure what has a result already")
    found.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    found.add_argument("--until", type=float, default=1e12, help=argparse.SUPPRESS)
    return found


def wanted(side: str, names: list[str]) -> list[str]:
    """The programs that a side has."""
    if side == "torch":
        return [n for n in names if PROGRAMS[n].torch is not None]
    return [n for n in names if side != UNORDERED or PROGRAMS[n].scatters]


def lines_of(stream: IO[str]) -> queue.Queue[str | None]:
    """The lines of a stream as they come, then None."""
    found: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            found.put(line.strip())
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    return found


def one_process(
    side: str, names: list[str], folder: Path, asked: argparse.Namespace, until: float
) -> None:
    """Have a process measure programs until it ends; what it did not finish counts as failed."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", side, "--out"]
    command += [str(folder), "--until", str(until), *(["--tiny"] if asked.tiny else [])]
    running, failure, limit = "", "", START_SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as caches,
        (folder / f"{side}.log").open("a", encoding="utf-8") as log,
    ):
        env = {**os.environ, **ENVIRONMENT[side], **{c: f"{caches}/{c}" for c in CACHES}}
        process = subprocess.Popen(
            [*command, "--only", *names], env=env, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        said = lines_of(process.stdout)
        while True:
            try:
                line = said.get(timeout=limit)
            except queue.Empty:
                failure = f"took longer than {limit:.0f} s"
                break
            if line is None:
                code = process.wait()
                failure = f"its process ended with status {code}" if code else ""
                break
            word, _, name = line.partition(" ")
            if word == "begin":
                running, limit = name, asked.limit
            elif word == "end":
                print(f"{side}: {name}", flush=True)
                running, limit = "", START_SECONDS
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if failure:
        # One that does not start is the first program's failure, or it would be tried forever.
        name = running or next((n for n in names if not paths(folder, side, n)[0].exists()), "")
        if name and not paths(folder, side, name)[0].exists():
            write(paths(folder, side, name)[0], {"failed": failure})
        print(f"{side}: {name} FAILED, {failure}", flush=True)


def measure(names: list[str], sides: list[str], folder: Path, asked: argparse.Namespace) -> None:
    """All sides of some programs, then of the next ones."""
    until = time.time() + asked.budget
    if asked.again:
        for side in sides:
            for name in wanted(side, names):
                for path in paths(folder, side, name):
                    path.unlink(missing_ok=True)
    for first in range(0, len(names), asked.together):
        for side in sides:
            while time.time() < until:
                group = wanted(side, names[first : first + asked.together])
                left = [n for n in group if not paths(folder, side, n)[0].exists()]
                if not left:
                    break
                one_process(side, left, folder, asked, until)


def report(stem: Path, folder: Path) -> dict[str, Any]:
    """Write the table of all that was measured, for programs, for people, and as a picture."""
    rows, about = collected(folder), surroundings()
    # A machine without nvidia-smi has a CPU.
    device = about["device"] if about["device"] != "unknown" else "CPU"
    title = f"Programs of many fields, {device}"
    text = json.dumps(about | {"rows": rows}, indent=1) + "\n"
    stem.with_suffix(".json").write_text(text, encoding="utf-8")
    said = f"# {title}\n\n{table(rows)}\n"
    stem.with_suffix(".md").write_text(said, encoding="utf-8")
    stem.with_suffix(".svg").write_text(chart(rows, title), encoding="utf-8")
    print(said)
    return rows


def main() -> int:
    """Measure what is missing, write the table; 1 if something failed or was wrong."""
    asked = options().parse_args()
    if asked.worker:
        work(asked.worker, asked.only, Path(asked.out), asked.tiny, SECONDS, asked.until)
        return 0
    named = [s.strip() for s in asked.sides.split(",")]
    if unknown := [s for s in named if s not in SIDES]:
        sys.exit(f"no side {unknown[0]!r}: there are {', '.join(SIDES)}")
    # Ours without an order of sums belongs to ours.
    sides = [s for s in SIDES if s in named or (s == UNORDERED and "genesis" in named)]
    stem = Path(asked.out) / ("zoo-tiny" if asked.tiny else "zoo")
    folder = stem.with_name(f"{stem.name}-runs")
    measure(asked.only or list(PROGRAMS), sides, folder, asked)
    rows = report(stem, folder)
    found = [side for row in rows.values() for side in row["sides"].values()]
    return int(any("failed" in s or not s.get("agrees", True) for s in found))


if __name__ == "__main__":
    sys.exit(main())
