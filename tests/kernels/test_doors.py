"""Kernels are reached through doors, `plan(spec, target)`, and nothing in them is unreached."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import genesis_fn
from genesis_fn.compiler.simplify import rewriter
from genesis_fn.kernels.matmul.spec import FEW_ROWS
from tests.public.names import exported

PACKAGE = Path(genesis_fn.__file__).parent
KERNELS = sorted((PACKAGE / "kernels").rglob("*.py"))
USERS = sorted((PACKAGE / "backends/cuda").rglob("*.py"))
# What knows kernels: lowerings, and definitions by their text, the compiler's own among them.
BELOW = ("backends", "compiler", "primitives")
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


def test_every_door_is_public_and_tested() -> None:
    public = exported("kernels")
    tests = "".join([p.read_text() for p in sorted(Path(__file__).parent.glob("*.py"))])
    for name, node in doors():
        assert node.name in public, f"export {name} in kernels/__init__.py: its import and _HOME"
        assert re.search(rf"\b{node.name}\(|\b{node.name}\b,", tests), f"no test plans {name}"


def test_lowerings_plan_through_doors_alone() -> None:
    """They, and all of the backend, take specs and doors of a family, and the means that plans are
    built with."""
    allowed = {"plan_builder", "language"}
    for path in USERS:
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
        if node.name not in reached and not registered(node) and not node.name.startswith("__")
    ]
    assert not unreached, f"nothing uses {unreached}"


FLOORS = ("kernels", "compiler", "backends", "core", "primitives", "transforms")


def loaded(tree: ast.AST) -> Iterator[str]:
    """Every name whose value the code takes, and every word of the text that it may generate;
    modules that only export mention what they import."""
    stored = {
        id(n)
        for n in ast.walk(tree)
        if isinstance(n, (ast.Name, ast.Attribute)) and not isinstance(n.ctx, ast.Load)
    }
    listed = {
        id(inner)
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__slots__"
        for inner in ast.walk(n)
    }
    for node in ast.walk(tree):
        if id(node) in stored:
            node.id = node.attr = ""  # type: ignore[attr-defined]
        elif id(node) in listed and isinstance(node, ast.Constant):
            node.value = None
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
    yield from names_in(tree)


def exports(path: Path) -> bool:
    """Whether a module is there for users: packages, and the modules at the top."""
    return path.name == "__init__.py" or path.parent == PACKAGE


LOADED = Counter(
    name
    for path in TREES
    for name in loaded(ast.parse(path.read_text()) if exports(path) else tree_of(path))
)


@pytest.mark.parametrize("folder", FLOORS)
def test_everything_is_mentioned_somewhere(folder: str) -> None:
    """Functions, classes, methods and constants of these floors have a user."""
    unused = []
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for name, node in _members(TREES[path]):
            own = list(names_in(node)).count(name) if isinstance(node, Definition) else 0
            if LOADED[name] <= own and not name.startswith("__") and name not in OF_OTHERS:
                unused.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert not unused, f"nothing mentions {unused}"


OF_OTHERS = {
    # Of the standard library's classes, and what only keeps memory or modules alive.
    "_of_parent", "_scratch", "use_rawinput", "emptyline", "do_p", "do_locals", "do_l",
    # Asked for by operand, as f"{operand}_transposed".
    "lhs_transposed", "rhs_transposed",
    # For users: methods that JAX has, and torch.
    "on_device_size_in_bytes", "copy_to_host_async", "defjvps", "def_fwd", "def_bwd", "as_text",
    "args_info", "cost_analysis", "memory_analysis", "traces", "clear_cache", "everything_saveable",
    "nothing_saveable", "save_only_these_names", "save_any_names_but_these",
    "save_anything_except_these_names", "save_from_both_policies",
    "committed", "is_fully_addressable", "addressable_data", "replica_id", "vma", "axis_sizes",
}  # fmt: skip


def fields_of(node: ast.ClassDef) -> Iterator[str]:
    """The fields of a class: annotated, listed as slots, or set on `self`. Those of a NamedTuple
    are unpacked."""
    if "NamedTuple" in map(ast.unparse, node.bases):
        return
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id
        elif isinstance(inner, ast.Assign) and getattr(inner.targets[0], "id", "") == "__slots__":
            yield from (n.value for n in ast.walk(inner.value) if isinstance(n, ast.Constant))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            if getattr(inner.value, "id", "") == "self":
                yield inner.attr


@pytest.mark.parametrize("folder", FLOORS)
def test_every_field_is_read(folder: str) -> None:
    """To be given, set or listed as a slot is no use."""
    unread = [
        f"{path.relative_to(PACKAGE)}: {node.name}.{name}"
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.ClassDef)
        for name in dict.fromkeys(fields_of(node))
        if not LOADED[name] and not name.startswith("__") and name not in OF_OTHERS
    ]
    assert not unread, f"nothing reads {unread}"


def _members(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            visitor = node.name.startswith("visit_")  # called by `ast.NodeVisitor`
            if not registered(node) and not visitor:
                yield node.name, node
            if isinstance(node, ast.ClassDef) and "NamedTuple" not in map(ast.unparse, node.bases):
                yield from _members(node)
        elif isinstance(node, ast.Assign) and isinstance(tree, ast.Module):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


# What stands in for the device, and texts that the process of the program writes.
NOT_COMPILED = {f"genesis_fn.kernels.language.{name}" for name in ("host", "expressions", "dtypes")}
WORKER = """
import importlib, sys, types
package = types.ModuleType("genesis_fn")
package.__path__ = [sys.argv[1]]
sys.modules["genesis_fn"] = package
for name in sys.argv[2:]:
    importlib.import_module(name)
    heavy = {"torch", "numpy", "optree", "cuda"} & set(sys.modules)
    if name.endswith("triton_compile"):
        heavy |= {"triton"} & set(sys.modules)
    assert not heavy, f"{name} loads {heavy}"
"""


def test_compiling_processes_load_neither_torch_nor_numpy() -> None:
    """Each of up to sixteen processes imports what calls Triton, and the module of the kernel that
    it compiles: what these load, a program's first call waits for (torch: a third of it; NumPy:
    0.1 s of each core, 0.3 s where all start at once)."""
    paths = [p for p in (PACKAGE / "kernels").rglob("*.py") if p.name != "__init__.py"]
    inner = [".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in paths]
    names = sorted({f"genesis_fn.{n}" for n in inner} - NOT_COMPILED)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    names = ["genesis_fn.backends.cuda.binaries.triton_compile", *names]
    command = [sys.executable, "-c", WORKER, str(PACKAGE), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_few_rows_are_as_many_for_the_compiler_as_for_the_kernels() -> None:
    """The simplifier leaves products alone that the kernels of few rows serve; it stands below."""
    assert rewriter.FEW_ROWS == FEW_ROWS
