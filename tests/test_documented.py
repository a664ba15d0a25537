"""Every module, class and public function of the library is documented and typed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import genesis_fn

ROOT = Path(genesis_fn.__file__).parent
MODULES = {
    path.relative_to(ROOT.parent): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")
}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Classes and functions of a module or a class, those under conditions included."""
    for node in body:
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from definitions(node.body)
            yield from definitions(getattr(node, "orelse", []))


def is_overload(node: Definition) -> bool:
    return any(ast.unparse(d).strip("_") == "overload" for d in node.decorator_list)


def functions(
    body: list[ast.stmt], owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef]]:
    """Public functions and methods, with the class that a method belongs to."""
    for node in definitions(body):
        if node.name.startswith("_") or is_overload(node):
            continue
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, node)
        else:
            yield owner, node


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


CLASSES = [
    node for tree in MODULES.values() for node in ast.walk(tree) if type(node) is ast.ClassDef
]
PROTOCOLS = [node for node in CLASSES if "Protocol" in bases(node)]


def declared(owner: ast.ClassDef, method: str) -> bool:
    """Whether a base class of `owner`, or a protocol, documents this method: where it stands, or in
    the class's own docstring, if it only says that there is one."""
    above = [node for node in CLASSES if node.name in bases(owner)]
    said = [holder for holder in above if f"`{method}" in (ast.get_docstring(holder) or "")]
    named = [ast.unparse(n.target) for h in said for n in h.body if type(n) is ast.AnnAssign]
    return (
        method in named
        or any(
            isinstance(node, ast.FunctionDef) and node.name == method and ast.get_docstring(node)
            for holder in (*above, *PROTOCOLS)
            for node in holder.body
        )
        or any(declared(node, method) for node in above)
    )


def place(path: Path, owner: ast.ClassDef | None, node: ast.FunctionDef) -> str:
    return f"{path}:{node.lineno} {f'{owner.name}.' if owner else ''}{node.name}"


def is_kernel(node: ast.FunctionDef) -> bool:
    """Device code, whose operands Triton types at every launch."""
    return any(ast.unparse(d) in ("triton.jit", "gluon.jit") for d in node.decorator_list)


def test_modules_are_documented():
    assert len(MODULES) > 250
    assert [str(path) for path, tree in MODULES.items() if not ast.get_docstring(tree)] == []


def test_classes_are_documented():
    found = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in MODULES.items()
        for node in definitions(tree.body)
        if isinstance(node, ast.ClassDef) and not ast.get_docstring(node)
    ]
    assert not found, f"without a docstring: {found}"


def test_public_functions_are_documented():
    found = [
        place(path, owner, node)
        for path, tree in MODULES.items()
        for owner, node in functions(tree.body)
        if not ast.get_docstring(node) and not (owner and declared(owner, node.name))
    ]
    assert not found, f"without a docstring: {found}"


def test_public_functions_are_typed():
    found = []
    for path, tree in MODULES.items():
        for owner, node in functions(tree.body):
            if is_kernel(node):
                continue
            a = node.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
            bare = [x.arg for x in given if x is not None and x.annotation is None]
            bare = [name for name in bare if name not in ("self", "cls")]
            if bare or node.returns is None:
                found.append(f"{place(path, owner, node)} {bare}")
    assert not found, f"without types: {found}"
