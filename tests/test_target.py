"""What the library knows of machines stands in `compiler/target.py`, and nowhere else."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator
from dataclasses import fields

import pytest

import genesis_fn
from genesis_fn.compiler.target import H200, OF_ARCHITECTURE, TARGETS, rates
from genesis_fn.core import dtypes

PACKAGE = pathlib.Path(genesis_fn.__file__).parent
FLOORS = ("compiler", "kernels", "backends/cuda")
# Everything of a target that is a size or a rate.
SIZES = {
    value
    for target in TARGETS.values()
    for value in (
        target.shared_memory, target.bandwidth, target.operations,
    )
}  # fmt: skip
ARCHITECTURES = {"architecture", "arch", "generation", "capability"}


def machine_constants(tree: ast.AST) -> Iterator[ast.AST]:
    """Numbers of a machine, and decisions by the number of an architecture or by which driver
    answers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            programs = type(node.value) is int and node.value and not node.value % H200.processors
            if node.value in SIZES or programs:
                yield node
        elif isinstance(node, (ast.Compare, ast.BinOp)):
            for part in ast.walk(node):
                name = getattr(part, "attr", getattr(part, "id", ""))
                if name in ARCHITECTURES or name == "implementation":
                    yield node


def test_no_machine_is_known_outside_of_its_target() -> None:
    found = []
    for floor in FLOORS:
        for path in sorted((PACKAGE / floor).rglob("*.py")):
            name = str(path.relative_to(PACKAGE))
            if name in ("compiler/target.py", "backends/cuda/driver/drivers.py"):
                continue
            found += [
                f"{name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
                for node in machine_constants(ast.parse(path.read_text()))
            ]
    assert not found, found


@pytest.mark.parametrize(
    "text",
    [
        "PROGRAMS = 264", "limit = 232448", "if target.architecture >= 90: pass", "4.2e12",
        "new = arch // 10 == 9", "ready = drivers.implementation() == 'cuda'",
    ],
)  # fmt: skip
def test_the_walk_finds_machines(text: str) -> None:
    assert list(machine_constants(ast.parse(text)))


def test_features_follow_from_the_architecture() -> None:
    ampere, ada, hopper, blackwell, consumer = OF_ARCHITECTURE.values()
    assert [t.descriptors for t in OF_ARCHITECTURE.values()] == [False, False, True, True, False]
    assert [t.float8 for t in OF_ARCHITECTURE.values()] == [False, True, True, True, True]
    assert hopper.warp_groups and not any(t.warp_groups for t in (ampere, ada, blackwell, consumer))
    assert ampere.lacks(dtypes.F8E4) and not ada.lacks(dtypes.F8E4) and hopper.lacks(dtypes.C64)
    assert all(getattr(H200, f.name) is not None for f in fields(H200))


def test_rates_by_name() -> None:
    known = rates("NVIDIA H200", 90)
    assert known == rates("something else", 90) == (H200.bandwidth, H200.operations)
    assert H200.seconds(4.2e12, 0) == pytest.approx(1)
    assert H200.seconds(0, 1400e12) == pytest.approx(2)
    assert rates("NVIDIA H100 80GB HBM3", 90)[0] < H200.bandwidth
    # A name that is not known has the rates of its architecture, or of the nearest below.
    ada = OF_ARCHITECTURE[89]
    assert rates("NVIDIA RTX 5000 Ada", 89) == (ada.bandwidth, ada.operations)
    assert rates("something else", 75) == rates("NVIDIA A100-SXM4-80GB", 80)
