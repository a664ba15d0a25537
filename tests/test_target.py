"""What the library knows of machines stands in `compiler/target.py`, and nowhere else."""

from __future__ import annotations

import ast
import operator
import pathlib
import re
from collections.abc import Iterator
from dataclasses import fields

import pytest

import genesis_fn
from genesis_fn.compiler.target import H200, OF_ARCHITECTURE, TARGETS, rates
from genesis_fn.core import dtypes

PACKAGE = pathlib.Path(genesis_fn.__file__).parent
FLOORS = ("compiler", "kernels", "backends/cuda")
# Whose numbers may be anything, but not those of a GPU.
OTHERS = ("core", "primitives", "transforms", "backends/cpu")
# Where a device is described, and texts in PTX that every GPU of the library runs.
OWN = (
    "compiler/target.py", "backends/cuda/driver/drivers.py",
    "backends/cuda/driver/condition_kernels.py", "backends/cuda/driver/copy_kernel.py",
)  # fmt: skip
KNOWN = TARGETS.values()
# Everything of a target that is a size or a rate; 1 KiB of a processor's memory is the system's.
SIZES = {
    value
    for t in KNOWN
    for value in (t.shared_memory, t.shared_memory + 1024, t.l2, t.bandwidth, t.operations)
}
# Numbers of multiprocessors; 128 is a length like another.
PROCESSORS = {t.processors for t in KNOWN if t.processors & (t.processors - 1)}
ARCHITECTURES = {"architecture", "arch", "generation", "capability"}
NAMED = re.compile(r"\b(sm_\d+|[ABH]\d00|Ampere|Hopper|Blackwell)\b", re.IGNORECASE)
_OPERATORS = {
    ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub,
    ast.LShift: operator.lshift, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def number(node: ast.AST) -> int | float | None:
    """The number that an expression of literals is."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = number(node.left), number(node.right)
        small = type(node.op) is not ast.LShift or (sides[1] or 0) < 64
        if None not in sides and small and not (isinstance(node.op, ast.FloorDiv) and not sides[1]):
            return _OPERATORS[type(node.op)](*sides)
    return None


def is_rate(value: int | float) -> bool:
    """Bytes or operations per second, and no unit (1e12)."""
    return type(value) is float and 1e11 <= value < 1e17 and value != 1e12


def is_capability(node: ast.AST) -> bool:
    """A literal (9, 0)."""
    if not isinstance(node, ast.Tuple) or len(node.elts) != 2:
        return False
    major, minor = map(number, node.elts)
    return major in (7, 8, 9, 10, 12) and minor is not None


def documented(tree: ast.AST) -> set[int]:
    """The docstrings, which may speak of machines."""
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
    return {
        id(n.body[0].value)
        for n in ast.walk(tree)
        if isinstance(n, kinds) and n.body and isinstance(n.body[0], ast.Expr)
    }


def machine_constants(tree: ast.AST, multiples: bool = True) -> Iterator[ast.AST]:
    """Numbers and names of a machine, and decisions by the number of an architecture or by which
    driver answers."""
    prose = documented(tree) if isinstance(tree, ast.Module) else set()
    for node in ast.walk(tree):
        value = number(node)
        if value is not None:
            programs = multiples and type(value) is int and value and not value % H200.processors
            if value in SIZES | PROCESSORS or programs or is_rate(value):
                yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in prose and NAMED.search(node.value):
                yield node
        elif isinstance(node, (ast.Compare, ast.BinOp)):
            named = {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)}
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            if named & {*ARCHITECTURES, "implementation"} or any(map(is_capability, sides)):
                yield node


def test_no_machine_is_known_outside_of_its_target() -> None:
    found = []
    for floor in (*FLOORS, *OTHERS):
        for path in sorted((PACKAGE / floor).rglob("*.py")):
            name = str(path.relative_to(PACKAGE))
            if name.startswith(OWN):
                continue
            found += [
                f"{name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
                for node in machine_constants(ast.parse(path.read_text()), floor in FLOORS)
            ]
    assert not found, found


@pytest.mark.parametrize(
    "text",
    [
        "PROGRAMS = 264", "limit = 232448", "if target.architecture >= 90: pass", "4.2e12",
        "new = arch // 10 == 9", "ready = drivers.implementation() == 'cuda'", "227 * 1024",
        "(227 << 10) + 1024", "50 << 20", "2 * 132", "wide = found >= (9, 0)", "3.35e12", "148",
        "if 'H100' in name: pass", "kind = 'sm_90'",
    ],
)  # fmt: skip
def test_the_walk_finds_machines(text: str) -> None:
    assert list(machine_constants(ast.parse(text)))


def test_features_follow_from_the_architecture() -> None:
    ampere, ada, hopper, blackwell, consumer = OF_ARCHITECTURE.values()
    assert [t.descriptors for t in OF_ARCHITECTURE.values()] == [False, False, True, True, False]
    assert [t.float8 for t in OF_ARCHITECTURE.values()] == [False, True, True, True, True]
    assert hopper.warp_groups and not any(t.warp_groups for t in (ampere, ada, blackwell, consumer))
    assert ampere.lacks(dtypes.F8E4) and not ada.lacks(dtypes.F8E4)
    assert all(getattr(H200, f.name) is not None for f in fields(H200))


def test_rates_by_name() -> None:
    known = rates("NVIDIA H200", 90)
    assert known == rates("something else", 90) == (H200.bandwidth, H200.operations, H200.link)
    assert H200.seconds(4.2e12, 0) == pytest.approx(1)
    assert H200.seconds(0, 1400e12) == pytest.approx(2)
    assert rates("NVIDIA H100 80GB HBM3", 90)[0] < H200.bandwidth
    # A name that is not known has the rates of its architecture, or of the nearest below.
    ada = OF_ARCHITECTURE[89]
    assert rates("NVIDIA RTX 5000 Ada", 89) == (ada.bandwidth, ada.operations, ada.link)
    assert rates("something else", 75) == rates("NVIDIA A100-SXM4-80GB", 80)


def test_every_gpu_shares_launches():
    """The H200's 16 MiB are measured; the others' follow their bandwidth and are not nothing."""
    assert H200.launch_bytes == 16 << 20
    assert all(t.launch_bytes >= 1 << 20 for t in KNOWN)
