"""JAX's and optax's own test files, run on this library.

    python benchmarks/peer_suites.py --jax CHECKOUT --optax CHECKOUT --out benchmarks/results

The checkouts are of the peers' repositories; nothing of them is copied. Each file runs in a process
of its own with the library in JAX's place (`genesis_fn.as_jax`), under a limit of time; optax's
files twice, with optax itself and with `genesis_fn.optim` under its name. Prints, and writes to
peer-suites.json and .md, how many cases passed, failed, and are not about behaviour, with reasons.
What ran before is not run again (`--redo` forgets it), so that a run that stopped goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from results_file import parser, surroundings

from benchmarks.suites.verdicts import BY_ERROR, BY_SOURCE, Counts, count

JAX_FILES = (
    "lax_autodiff_test", "nn_test", "lax_control_flow_test", "lax_vmap_test", "lax_vmap_op_test",
    "lax_numpy_test", "lax_numpy_einsum_test", "lax_numpy_indexing_test",
    "lax_numpy_operators_test", "lax_numpy_reducers_test", "lax_numpy_setops_test",
    "lax_numpy_ufuncs_test", "lax_numpy_vectorize_test", "lax_test", "api_test", "custom_api_test",
    "batching_test", "random_lax_test", "tree_util_test", "linalg_test", "dtypes_test", "fft_test",
    "lax_scipy_test", "lax_scipy_sparse_test", "lax_scipy_special_functions_test",
    "scipy_fft_test", "scipy_interpolate_test", "scipy_ndimage_test", "scipy_optimize_test",
    "scipy_signal_test", "scipy_spatial_test", "scipy_stats_test", "image_test",
    "python_callback_test", "debug_nans_test",
)  # fmt: skip
# Parts of optax that are about its own repository, or need a device of their own.
NOT_OPTAX = ("conftest", "sharding_test")
GATES = {"JAX": 0.94, "optax on our arrays": 0.95, "genesis_fn.optim as optax": 0.90}


def run(file: Path, results: Path, options: Any, extra: list[str]) -> None:
    """Run a file until it ends by itself, or its time is over."""
    results.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.suites.run_file", str(file),
               "--out", str(results), "--limit", str(options.case_limit), *extra]  # fmt: skip
    if options.cases:
        command += ["-k", options.cases]
    log = results.with_suffix(".log")
    for _ in range(20):  # a case that ends the process is passed over by the next one
        before = results.read_text() if results.exists() else ""
        if '"outcome": "ended"' in before:
            break
        with log.open("w") as out:
            child = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, "TQDM_DISABLE": "1"}
            )
            try:
                child.wait(options.file_limit)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                break
        if (results.read_text() if results.exists() else "") == before:
            break  # it did not get as far as a case: the log says why
    print(f"ran {file.name}", flush=True)


def suites(options: Any) -> dict[str, list[tuple[Path, Path, list[str]]]]:
    """{suite: (file, its results, arguments)}."""
    work = Path(options.work)
    found: dict[str, list[tuple[Path, Path, list[str]]]] = {}
    if options.jax:
        checkout = Path(options.jax).resolve()
        names = options.files or JAX_FILES
        files = [checkout / "tests" / f"{n}.py" for n in names]
        found["JAX"] = [
            (f, work / "jax" / f"{f.stem}.jsonl", ["--jax", str(checkout)])
            for f in files
            if f.exists()
        ]
    if options.optax:
        checkout = Path(options.optax).resolve()
        files = [f for f in sorted(checkout.glob("optax/**/*_test.py")) if f.stem not in NOT_OPTAX]
        if options.files:
            files = [f for f in files if f.stem in options.files]
        for suite, flag in (
            ("optax on our arrays", []),
            ("genesis_fn.optim as optax", ["--optim"]),
        ):
            folder = work / ("optim" if flag else "optax")
            support = ["--optax", str(checkout)]
            if options.jax:
                support += ["--jax", str(Path(options.jax).resolve())]
            found[suite] = [
                (f, folder / f"{f.relative_to(checkout).with_suffix('').as_posix()}.jsonl",
                 [*support, *flag])
                for f in files
            ]  # fmt: skip
    return found


def table(counted: dict[str, dict[str, Counts]]) -> str:
    """The results for people."""
    kinds = {k: why for k, (_, why) in {**BY_ERROR, **BY_SOURCE}.items()}
    lines = []
    for suite, files in counted.items():
        total = Counts()
        rows = []
        for name, c in files.items():
            total.add(c)
            others = ", ".join(f"{n} {k}" for k, n in c.other.most_common())
            rows.append(
                f"| {name} | {c.passed} | {c.failed} | {c.share:.1%} | {others} | {c.skipped} |"
            )
        lines += [
            f"## {suite}: {total.passed} of {total.passed + total.failed} cases about behaviour, "
            f"{total.share:.1%} (gate {GATES[suite]:.0%})", "",
            "| file | passed | failed | passed of them | not about behaviour | skipped by itself |",
            "| --- | --- | --- | --- | --- | --- |", *rows, "",
        ]  # fmt: skip
        if total.explained:
            lines += ["Why cases fail:", ""]
            lines += [f"- {n}: {why}" for why, n in total.explained.most_common()]
            lines.append("")
        if total.unexplained:
            lines += [f"Not explained: {len(total.unexplained)}", ""]
    lines += ["Not about behaviour:", "", *[f"- {k}: {why}" for k, why in kinds.items()], ""]
    return "\n".join(lines)


def main() -> None:
    """Run what is not run yet, and write the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--jax", help="a checkout of JAX's repository")
    arguments.add_argument("--optax", help="a checkout of optax's repository")
    arguments.add_argument("--files", nargs="*", help="only these test files")
    arguments.add_argument("--cases", default="", help="only cases that pytest -k takes")
    arguments.add_argument("--work", default="runs/peer-suites", help="where results are kept")
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--case-limit", type=int, default=60, help="seconds for a case")
    arguments.add_argument("--file-limit", type=int, default=3600, help="seconds for a file")
    arguments.add_argument("--failures", action="store_true", help="print what is not explained")
    arguments.add_argument("--count", action="store_true", help="run nothing, count what ran")
    options = arguments.parse_args()
    if not options.jax and not options.optax:
        arguments.error("give --jax CHECKOUT, --optax CHECKOUT or both")
    todo = suites(options)
    if options.redo:
        for files in todo.values():
            for _, results, _ in files:
                results.unlink(missing_ok=True)
    if not options.count:
        with ThreadPoolExecutor(options.processes) as pool:
            for files in todo.values():
                for file, results, extra in files:
                    pool.submit(run, file, results, options, extra)
    counted = {
        suite: {f.stem: count(f, r) for f, r, _ in files if r.exists()}
        for suite, files in todo.items()
    }
    if options.failures:
        for files in counted.values():
            for c in files.values():
                for row in c.unexplained:
                    said = [x for x in row["error"].splitlines() if x.startswith("E  ")]
                    print(f"{row['file']} {row['case']}: {(said or ['?'])[0][:200]}")
    text = table(counted)
    print(text)
    rows = {
        suite: {
            name: {"passed": c.passed, "failed": c.failed, "skipped": c.skipped,
                   "not about behaviour": dict(c.other), "why": dict(c.explained)}
            for name, c in files.items()
        }
        for suite, files in counted.items()
    }  # fmt: skip
    if not options.files and not options.cases:
        out = Path(options.out)
        heads = {k: _head(v) for k, v in (("jax", options.jax), ("optax", options.optax)) if v}
        found = {**surroundings(), "checkouts": heads, "suites": rows}
        (out / "peer-suites.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / "peer-suites.md").write_text(f"# The peers' own tests on this library\n\n{text}")


def _head(checkout: str) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", checkout, "rev-parse", "HEAD"]
    run = subprocess.run(command, capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
