"""Kernels are reached through doors, `plan(spec, target)`, and nothing in them is unreached."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import genesis_fn

PACKAGE = Path(genesis_fn.__file__).parent
KERNELS = sorted((PACKAGE / "kernels").rglob("*.py"))
USERS = sorted((PACKAGE / "backends/cuda").rglob("*.py"))
BELOW = (
    "backends",
    "compiler",
    "core",
    "cuda.py",
    "primitives",
    "transforms",
)  # what knows kernels
Definition = ast.FunctionDef | ast.ClassDef


def tree_of(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # An export list is no use.
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ]
    return tree


TREES = {path: tree_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def names_in(node: ast.AST) -> Iterator[str]:
    """Every name that the code mentions, and every word of the text that it may generate."""
    documented = {
        id(inner.body[0].value)
        for inner in ast.walk(node)
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef, ast.Module))
        and inner.body
        and isinstance(inner.body[0], ast.Expr)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            if id(inner) not in documented:
                yield from re.findall(r"[A-Za-z_]\w*", inner.value)


def registered(node: Definition) -> bool:
    """Whether a decorator that is called puts the definition where it is found."""
    return any(
        isinstance(d, ast.Call) and ast.unparse(d.func) not in ("dataclass", "functools.lru_cache")
        for d in node.decorator_list
    )


def definitions(path: Path) -> list[Definition]:
    return [n for n in TREES[path].body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]


def reached_from(users: list[Path]) -> set[str]:
    """The names of what is defined in `kernels/` and used, also through others, by `users`."""
    bodies: dict[str, set[str]] = {}
    found: set[str] = set()
    for path in KERNELS:
        for node in TREES[path].body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not registered(node):
                bodies.setdefault(node.name, set()).update(set(names_in(node)) - {node.name})
            elif not isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= set(names_in(node))  # constants, and what is registered
    for path in users:
        found |= set(names_in(TREES[path]))
    ready = [name for name in bodies if name in found]
    while ready:
        new = bodies[ready.pop()] - found
        found |= new
        ready += [name for name in bodies if name in new]
    return found


def doors() -> list[tuple[str, ast.FunctionDef]]:
    """Every public function of `kernels/` that plans."""
    return [
        (f"{path.stem}.{node.name}", node)
        for path in KERNELS
        for node in definitions(path)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("plan_")
    ]


def test_every_door_takes_a_spec_and_a_target() -> None:
    found = doors()
    assert len(found) > 15
    for name, node in found:
        first = [a.arg for a in node.args.args[:2]]
        assert first in (["spec", "target"], ["specs", "target"]), name


def test_lowerings_reach_every_door() -> None:
    reached = reached_from(USERS)
    for name, node in doors():
        assert node.name in reached, f"no lowering reaches {name}"


def test_lowerings_plan_through_doors_alone() -> None:
    """They take specs and doors of a family, and the means that plans are built with."""
    allowed = {"plan_builder", "plan", "language"}
    for path in (
        *(PACKAGE / "backends/cuda/lowerings").rglob("*.py"),
        PACKAGE / "backends/cuda/lower/fused_matmul.py",
    ):
        for node in ast.walk(TREES[path]):
            if not (isinstance(node, ast.ImportFrom) and node.module):
                continue
            if (
                node.module.startswith("genesis_fn.kernels.")
                and node.module.split(".")[2] not in allowed
            ):
                for name in [alias.name for alias in node.names]:
                    assert name.startswith("plan_") or name[0].isupper(), f"{path.name}: {name}"


def test_nothing_in_kernels_is_unreached() -> None:
    reached = reached_from([path for path in TREES if path.relative_to(PACKAGE).parts[0] in BELOW])
    unreached = [
        f"{path.stem}.{node.name}"
        for path in KERNELS
        for node in definitions(path)
        if node.name not in reached and not registered(node)
    ]
    assert not unreached, f"nothing uses {unreached}"


@pytest.mark.parametrize("folder", ["kernels", "compiler", "backends/cuda"])
def test_everything_is_mentioned_somewhere(folder: str) -> None:
    """Functions, classes, methods, fields and constants of these rooms have a user."""
    counts: dict[str, int] = {}
    for tree in TREES.values():
        for name in names_in(tree):
            counts[name] = counts.get(name, 0) + 1
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg:
                counts[node.arg] = counts.get(node.arg, 0) + 1
    unused = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for name, node in _members(TREES[path]):
            own = list(names_in(node)).count(name)
            if counts.get(name, 0) <= own and not name.startswith("__"):
                unused.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert not unused, f"nothing mentions {unused}"


def _members(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            visitor = node.name.startswith("visit_")  # called by `ast.NodeVisitor`
            if not registered(node) and not visitor:
                yield node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _members(node)
        elif isinstance(node, ast.Assign) and isinstance(tree, ast.Module):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


# What stands in for the device, and texts that the process of the program writes.
NOT_COMPILED = {"genesis_fn.kernels.language.host", "genesis_fn.kernels.language.expressions"}
WORKER = """
import importlib, sys, types
package = types.ModuleType("genesis_fn")
package.__path__ = [sys.argv[1]]
sys.modules["genesis_fn"] = package
for name in sys.argv[2:]:
    importlib.import_module(name)
    heavy = {"torch", "optree", "cuda"} & set(sys.modules)
    assert not heavy, f"{name} loads {heavy}"
"""


def test_compiling_processes_load_kernels_without_torch() -> None:
    """Each of up to sixteen processes imports the module of the kernel that it compiles: what that
    loads, a program's first call waits for (torch: a third of it)."""
    paths = [p for p in (PACKAGE / "kernels").rglob("*.py") if p.name != "__init__.py"]
    inner = [".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in paths]
    names = sorted({f"genesis_fn.{n}" for n in inner} - NOT_COMPILED)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", WORKER, str(PACKAGE), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
