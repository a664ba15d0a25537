"""What a case of a peer's test file is about, and whether it holds here."""

from __future__ import annotations

import ast
import functools
import json
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REASONS = Path(__file__).parent / "reasons"  # a table for each family of test files
# Cases that are not about what functions compute: by the text of the test.
BY_SOURCE = {
    "text of programs": (
        r"as_text\(|compiler_ir|\.eqns\b|\.jaxpr\b|str\((\w*jaxpr|jax\.make_jaxpr|api\.make_jaxpr)"
        r"|pretty_print|\bhlo\b|lower\([^)]*\)\.|\.in_avals|\.out_avals|\.literals|\.invars"
        r"|\.outvars|\.effects\b|pp_jaxpr|input_output_aliases|jaxpr_text|loc\(",
        "the test reads the text or the equations of a jaxpr, or of XLA's programs",
    ),
    "counters": (
        r"jtu\.count_|assertCacheMisses|assertNumCompiles|_cache_size|cache_info|check_cache_misses"
        r"|\bcompile_count|count_jit|assertCountEqual\(trace",
        "the test counts JAX's traces, compilations or copies",
    ),
    "shardings": (
        r"[sS]harding\b|\bMesh\(|shard_map|\bpmap\b|with_mesh|create_mesh|PartitionSpec|\bP\(",
        "the test is about placement over meshes, which tests/sharding holds to other references",
    ),
    "internals": (
        r"\bcore\.(?!ShapedArray\b|Tracer\b)|\b(pe|mlir|ad|batching|lu|prng_internal|pxla|dispatch|xla_bridge|api_util)\.[A-Za-z_]"
        r"|_p\.bind|core_call|jax\._src|lax_internal\.|lax_control_flow\.|ad_internal\.|remat_internal"
        r"|config\.(use_direct|remat3|custom_vjp3|jax_|vjp3|use_simplified|explicit_x64)"
        r"|ExplicitX64Mode|hijax|HiPrim|VJPHi|mutable_array|new_ref|jax\.Ref\b|earray|export\.export",
        "the test uses JAX's internals",
    ),
}
# ... and by what it failed with.
BY_ERROR = {
    "internals": (
        r"MissingError: genesis_fn\.as_jax has no "
        r"(jaxlib|optax|jax\.(_src|interpreters|extend|core|lib)\b)"
        r"|genesis_fn\.as_jax has no jax\.lax\.\w+_p\b",
        "the test uses JAX's or optax's internals",
    ),
    "text of errors": (
        r"AssertionError: (\"|')(?s:.*)(\"|') does not match |assert str\(e\)\.startswith\(msg\)"
        r"|AssertionError: Regex didn't match",
        "an error of the same type is raised, in words of the library's own",
    ),
    "logs": (r"AssertionError: no logs of level ", "the test reads what JAX logs"),
}  # fmt: skip


@dataclass
class Counts:
    """The cases of a file, or of a suite."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0  # by the test itself
    other: Counter[str] = field(default_factory=Counter)  # not about behaviour, by class
    unexplained: list[dict[str, Any]] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)

    def add(self, more: Counts) -> None:
        """Count another's cases too."""
        self.passed += more.passed
        self.failed += more.failed
        self.skipped += more.skipped
        self.other += more.other
        self.explained += more.explained
        self.unexplained += more.unexplained

    @property
    def share(self) -> float:
        """The part of the cases about behaviour that passed."""
        return self.passed / max(self.passed + self.failed, 1)


@functools.cache
def sources(file: Path) -> dict[str, str]:
    """The text of each test method of a file, by `Class.method`."""
    text = file.read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    body = ast.get_source_segment(text, inner) or ""
                    marks = [ast.get_source_segment(text, d) or "" for d in inner.decorator_list]
                    found[f"{node.name}.{inner.name}"] = "\n".join([*marks, body])
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = ast.get_source_segment(text, node) or ""
    return found


def source_of(file: Path, case: str) -> str:
    """The text of the method that a case runs: its name has parameters behind the method's."""
    known = sources(file)
    name = re.sub(r"\[.*", "", case)
    matching = [k for k in known if name.startswith(k)]
    if not matching and "." in name:  # a method of a base class
        method = name.split(".")[-1]
        matching = [k for k in known if method.startswith(k.split(".")[-1])]
    return known[max(matching, key=len)] if matching else ""


@functools.cache
def reasons() -> list[tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], str]]:
    """(file, case, error, why) of each known difference."""
    tables = [tomllib.loads(f.read_text()) for f in sorted(REASONS.glob("*.toml"))]
    compiled = functools.partial(re.compile, flags=re.DOTALL)
    return [
        (compiled(r.get("file", "")), compiled(r.get("case", "")), compiled(r.get("error", "")),
         r["why"])
        for table in tables
        for r in table["reason"]
    ]  # fmt: skip


def outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """The last word on each case of a file of results; one that ended the process failed."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["outcome"] == "started":
            ended = {**row, "outcome": "failed", "error": "the process ended, or was out of time"}
            found.setdefault(row["case"], ended)
        elif row["outcome"] != "ended":
            found[row["case"]] = row
    return found


def count(file: Path, results: Path) -> Counts:
    """What the cases of a test file gave."""
    counts = Counts()
    for case, row in outcomes(results).items():
        text, error = source_of(file, case), row.get("error", "")
        if row["outcome"] == "skipped":
            counts.skipped += 1
            continue
        kind = next((k for k, (p, _) in BY_SOURCE.items() if re.search(p, text)), "")
        if not kind and row["outcome"] == "failed":
            kind = next((k for k, (p, _) in BY_ERROR.items() if re.search(p, error)), "")
        if kind:
            counts.other[kind] += 1
        elif row["outcome"] == "passed":
            counts.passed += 1
        else:
            counts.failed += 1
            why = next(
                (w for f, c, e, w in reasons()
                 if f.search(file.stem) and c.search(case) and e.search(error)), "",
            )  # fmt: skip
            if why:
                counts.explained[why] += 1
            else:
                counts.unexplained.append({"file": file.stem, **row})
    return counts
