"""What tests, benchmarks, examples and documents import of the library exists, in strings too.

Files that run only in another process, or only on a GPU, would otherwise keep the name of what was
renamed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
FROM = re.compile(r"^\s*from (genesis_fn[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
WHOLE = re.compile(r"^\s*import (genesis_fn[\w.]*)", re.MULTILINE)


def texts() -> Iterator[tuple[str, str]]:
    """(place, text) of every file that may import the library."""
    for folder in ("tests", "benchmarks", "examples", "docs"):
        for path in sorted((TOP / folder).rglob("*")):
            if path.suffix in (".py", ".md") and path != Path(__file__):
                yield str(path.relative_to(TOP)), path.read_text()
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run", "Makefile"):
        yield name, (TOP / name).read_text()


def source_of(module: str) -> Path | None:
    """The file of a module, or None."""
    path = TOP.joinpath(*module.split("."))
    found = [p for p in (path / "__init__.py", path.with_suffix(".py")) if p.exists()]
    return found[0] if found else None


@functools.cache
def bound(module: str) -> frozenset[str]:
    """The names that a module binds outside of its functions and classes."""
    path = source_of(module)
    assert path is not None
    names, todo = set[str](), list[ast.AST](ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        todo += ast.iter_child_nodes(node)
    return frozenset(names)


def missing(text: str) -> list[str]:
    """The modules and names that `text` imports of the library and that are not there."""
    found = [m for m in WHOLE.findall(text) if source_of(m) is None]
    for module, several, one in FROM.findall(text):
        listed = re.sub(r"#.*", "", several or one).replace("\\n", ",")
        names = [n.split(" as ")[0].strip("\"' ;`\n") for n in listed.split(",")]
        if source_of(module) is None:
            found.append(module)
            continue
        for name in filter(str.isidentifier, names):
            if name not in bound(module) and source_of(f"{module}.{name}") is None:
                found.append(f"{module}.{name}")
    return found


@pytest.mark.parametrize("text", [pytest.param(t, id=place) for place, t in texts()])
def test_what_is_imported_exists(text: str) -> None:
    assert missing(text) == []


def test_a_missing_name_is_found() -> None:
    assert missing("PROGRAM = '''\nfrom genesis_fn.io.lock import gone, locked\n'''") == [
        "genesis_fn.io.lock.gone"
    ]
    assert missing("from genesis_fn.nowhere import x") == ["genesis_fn.nowhere"]
    assert missing("import genesis_fn.nowhere as n") == ["genesis_fn.nowhere"]
    assert missing("from genesis_fn import (\n    grad,  # of a\n    jit,\n    gone,\n)") == [
        "genesis_fn.gone"
    ]
