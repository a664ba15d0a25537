"""Every kernel has a family of `benchmarks/kernels/sanitize.py`, and a verdict in its table."""

from __future__ import annotations

import ast
import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest

import genesis_fn as gf
from benchmarks.kernels.sanitize import FAMILIES, TOOLS, kernels_of, plan_of
from genesis_fn.backends.cuda.lowerings.call import LIBRARY_RULES, RULES
from genesis_fn.compiler.fusion.matmul_grouping import group_matmuls
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.transforms.custom.fused_functions import fused_p
from tests.cuda.programs import traced
from tests.kernels.test_doors import KERNELS, TREES

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
DEFINED = sorted(
    node.name
    for path in KERNELS
    for node in TREES[path].body
    if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel") and node.decorator_list
)


@functools.cache
def kernels_of_families() -> set[str]:
    """The kernels that the families' programs launch on an H200."""
    found: set[str] = set()

    # The kernels around libraries' routines are the same on every target, of which only devices and
    # their stand-ins know what scratch memory a routine wants.
    interpreted = replace(H200, interpreted=True, libraries=True)

    def plan(jaxpr: Jaxpr) -> None:
        for e in jaxpr.eqns:
            by_library = RULES.get(e.prim) in LIBRARY_RULES
            made = plan_of(e, interpreted if by_library else H200, generated=True)
            if made is not None:
                found.update(kernels_of(made))
            elif e.prim is fused_p:
                plan(e.params["jaxpr"])

    def check(f, *args):
        plan(group_matmuls(simplify_jaxpr(traced(f, *args)[0]), H200))

    with gf.default_matmul_precision("default"):  # as for users, also where tests are exact
        for family in FAMILIES.values():
            family(check)
    return found


def test_there_are_kernels():
    assert len(DEFINED) > 40


@pytest.mark.parametrize("kernel", DEFINED)
def test_a_family_runs_the_kernel(kernel):
    assert kernel in kernels_of_families(), f"no family of sanitize.py launches {kernel}"


# Whose warps meet at barriers that racecheck does not follow, by their names in race_delays.py.
DELAYED = {
    "attention_specialized_kernel": "forward",
    "attention_specialized_dkdv_kernel": "dkdv",
    "attention_specialized_dq_kernel": "dq",
}


@pytest.mark.parametrize("kernel", DEFINED)
def test_the_kernel_has_a_verdict(kernel):
    """Every tool finds it clean, or delays at all of its barriers changed no bit."""
    verdicts = json.loads((RESULTS / "sanitizer-h200.json").read_text())["kernels"]
    assert kernel in verdicts, f"{kernel} is new: run benchmarks/kernels/sanitize.sh on a GPU"
    found = {tool for tool in TOOLS if verdicts[kernel][tool] != "clean"}
    if kernel in DELAYED:
        delays = json.loads((RESULTS / "race-delays-h200.json").read_text())
        jobs = [j for j in delays["jobs"] if j["kernel"] == DELAYED[kernel]]
        assert (
            not delays["wrong"]
            and delays["launches"] >= 10_000
            and any(j["mutant"] for j in jobs)
            and not all(j["mutant"] for j in jobs)
        )
        found -= {"racecheck"}
    assert not found, verdicts[kernel]
