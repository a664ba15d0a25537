"""The packages built on the library's public names, the examples and the documents use no others.

A package may import its own modules by path.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.public.names import PUBLIC, ROOT, exported

TOP = ROOT.parent
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def sources() -> Iterator[tuple[str, str, str]]:
    """(place, Python source, own package or "") of everything that is checked."""
    for package in ("nn", "models", "optim"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(TOP)), path.read_text(), package
    for path in sorted((TOP / "examples").glob("*.py")):
        yield str(path.relative_to(TOP)), path.read_text(), ""
    for path in (TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))):
        text = path.read_text()
        for block in PYTHON_BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            yield f"{path.relative_to(TOP)}:{line}", block[1], ""


@functools.cache
def names_of(space: str) -> set[str]:
    """The public names of a public package or module, its public modules among them."""
    inside = f"{space}." if space else ""
    modules = {m.removeprefix(inside).partition(".")[0] for m in PUBLIC if m.startswith(inside)}
    return exported(space) | modules


def private_uses(source: str, package: str) -> list[str]:
    """What `source` imports, or reads of an imported package, that is not public."""
    own = lambda module: bool(package) and f"{module}.".startswith(f"{package}.")
    tree, found, aliases = ast.parse(source), list[str](), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, _, module = alias.name.partition(".")
                if root != "genesis_fn" or own(module):
                    continue
                if module not in PUBLIC:
                    found.append(alias.name)
                else:
                    aliases[alias.asname or root] = module if alias.asname else ""
        elif isinstance(node, ast.ImportFrom):
            root, _, module = (node.module or "").partition(".")
            if root != "genesis_fn" or own(module):
                continue
            for alias in node.names:
                full = f"{module}.{alias.name}".lstrip(".")
                if own(full):
                    continue
                if module not in PUBLIC or alias.name not in names_of(module):
                    found.append(f"genesis_fn.{full}")
                elif full in PUBLIC:
                    aliases[alias.asname or alias.name] = full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            space = aliases.get(node.value.id)
            if space is not None and not own(space) and node.attr not in names_of(space):
                found.append(f"genesis_fn.{space}.{node.attr}".replace("..", "."))
    return sorted({*found})


CASES = [pytest.param(source, own, id=place) for place, source, own in sources()]


@pytest.mark.parametrize("source, package", CASES)
def test_only_public_names_are_used(source: str, package: str) -> None:
    assert private_uses(source, package) == []


def test_private_names_are_noticed() -> None:
    assert private_uses("from genesis_fn.core.aval import Aval", "") == [
        "genesis_fn.core.aval.Aval"
    ]
    assert private_uses("import genesis_fn.core.tree", "") == ["genesis_fn.core.tree"]
    assert private_uses("from genesis_fn.nn import functions", "") == ["genesis_fn.nn.functions"]
    assert private_uses("from genesis_fn.nn.functions import relu", "nn") == []
    assert private_uses("import genesis_fn as gf\ngf.compiler", "") == ["genesis_fn.compiler"]
    assert private_uses("import genesis_fn.numpy as jnp\njnp.linalg.qr, jnp.sin", "") == []
