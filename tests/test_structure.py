"""How the library is built: what a reader relies on who looks for where something is decided.

A primitive is one record. Nothing but its definition knows it by name: the rest asks what the
record says, or names the object.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.core.backend import index as ix, lowering
from genesis_fn.core.primitive import PRIMITIVES, Primitive, bind
from genesis_fn.primitives import shape

PACKAGE = pathlib.Path(g.__file__).parent
# Where names of primitives are words for something else as well, and for what.
WORDS = {
    "numpy/": "public functions", "lax/": "public functions", "random/": "public functions",
    "core/diagnostics/torch_habits.py": "torch's functions", "core/dtypes.py": "fields of finfo",
    "kernels/language/expressions.py": "functions of the device",
    "kernels/rows/scan.py": "operations of a kernel",
    "kernels/indexing/scatter.py": "operations of a kernel",
    "backends/cpu/lowerings/indexing.py": "kinds of scatter",
    "backends/cuda/lowerings/indexing.py": "operations of a kernel",
    "backends/cuda/lowerings/window.py": "operations of a kernel",
}  # fmt: skip


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package but the definitions of primitives, by its path."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith("primitives/"):
            yield name, ast.parse(path.read_text())


def is_name_of_primitive(node: ast.AST, known: frozenset[str] = frozenset()) -> bool:
    """Whether an expression is `prim.name`, `e.prim.name` or a variable that holds one."""
    if isinstance(node, ast.Name):
        return node.id in known
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    of = node.value
    return (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")) in (
        "prim", "_prim", "primitive",
    )  # fmt: skip


def variables_of_names(function: ast.AST) -> frozenset[str]:
    """The variables of a function that are assigned the name of a primitive."""
    found = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            found.update(
                t.id for t, v in pairs if isinstance(t, ast.Name) and is_name_of_primitive(v)
            )
    return frozenset(found)


def decisions_by_name(tree: ast.AST) -> set[int]:
    """The lines that compare the name of a primitive, or look something up by it."""
    lines: set[int] = set()
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    for scope in (*functions, tree):
        known = variables_of_names(scope) if scope is not tree else frozenset()
        for node in ast.walk(scope):
            asked: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                asked = [node.left, *node.comparators]
            elif isinstance(node, ast.Subscript):
                asked = [node.slice]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = node.func
                asked = [*node.args] if of.attr in ("get", "pop", "setdefault") else []
                if of.attr in ("startswith", "endswith", "removeprefix", "removesuffix"):
                    asked = [of.value]
            if any(is_name_of_primitive(a, known) for a in asked):
                lines.add(node.lineno)
    return lines


def tables_of_names(tree: ast.AST) -> set[int]:
    """The lines with a literal collection of two or more names of primitives."""
    lines = set()
    exported = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "") in ("__all__", "__slots__")
        for inner in ast.walk(node)
    }  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in exported:
            continue
        elements: list[ast.expr | None] = []
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            elements = [*node.elts]
        elif isinstance(node, ast.Dict):
            elements = [*node.keys]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
            elements = [ast.Constant(k.arg) for k in node.keywords]
        names = [e.value for e in elements if isinstance(e, ast.Constant)]
        if len([n for n in names if isinstance(n, str) and n in DEFINED]) > 1:
            lines.add(node.lineno)
    return lines


DEFINED = frozenset(PRIMITIVES)


def test_nothing_is_decided_by_the_name_of_a_primitive():
    found = {name: sorted(decisions_by_name(tree)) for name, tree in modules()}
    assert {n: lines for n, lines in found.items() if lines} == {}


def test_no_table_lists_primitives_by_name():
    found = {name: sorted(tables_of_names(tree)) for name, tree in modules()}
    assert {n: at for n, at in found.items() if at and not n.startswith(tuple(WORDS))} == {}


def test_primitives_know_no_device():
    """torch stands in the definitions of elementwise primitives only, where it is an expression."""
    importing = {
        path.name
        for path in (PACKAGE / "primitives").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(a.name == "torch" for a in node.names)
    }
    assert importing == {"elementwise.py"}


def test_both_devices_keep_a_family_in_a_module_of_one_name():
    cpu, cuda = [
        {path.stem for path in (PACKAGE / "backends" / name / "lowerings").glob("*.py")}
        for name in ("cpu", "cuda")
    ]
    # What a GPU leaves to the host has no module there.
    assert cpu - cuda == {"fft", "foreign", "linalg"}


def read_slots() -> set[str]:
    """The attributes that anything but definitions reads of a primitive or of its lowering."""
    found = set()
    for name, tree in modules():
        if name in ("core/primitive.py", "core/backend/lowering.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                of = node.value
                owner = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
                if owner in ("prim", "primitive", "op", "lowering", "view", "how"):
                    found.add(node.attr)
    return found


@pytest.mark.parametrize(
    "record", [Primitive, lowering.Elementwise, lowering.View, lowering.Source, lowering.Reduce]
)
def test_every_slot_of_a_record_is_read(record):
    # `core/primitive.py` itself asks for shape and weakness; its caches are no part of the record.
    at_home = {"shape", "weak", "abstract_cache", "eager_cache"}
    assert set(record.__slots__) - read_slots() - at_home == set()


def indices(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("prim", "operands", "params"),
    [
        (shape.broadcast_in_dim_p, [(3, 1)], {"shape": (2, 3, 4), "dims": (1, 2)}),
        (shape.reshape_p, [(4, 6)], {"shape": (3, 2, 4)}),
        (shape.transpose_p, [(2, 3, 4)], {"permutation": (2, 0, 1)}),
        (shape.slice_p, [(6, 7)], {"start": (1, 2), "limit": (6, 7), "strides": (2, 3)}),
        (shape.rev_p, [(3, 4)], {"dimensions": (1,)}),
        (shape.split_p, [(3, 5)], {"sizes": (2, 0, 3), "axis": 1}),
        (shape.concatenate_p, [(2, 1), (2, 0), (2, 3)], {"dimension": 1}),
        (shape.pad_p, [(2, 3), ()], {"config": ((1, 0, 2), (-1, 2, 0))}),
        (shape.barrier_p, [(2,), (3, 1)], {}),
        (shape.copy_p, [(2, 3)], {}),
    ],
    ids=lambda p: p.name if isinstance(p, Primitive) else None,
)
def test_index_maps_are_what_torch_computes(prim, operands, params):
    view = prim.lowering
    xs = [indices(s) + 100 * i for i, s in enumerate(operands)]
    avals = [gnp.asarray(x).aval for x in xs]
    results = bind(prim, *map(gnp.asarray, xs), **params)
    for k, want in enumerate(results if prim.multi else [results]):
        for place in np.ndindex(want.shape):
            at = tuple([ix.const(i) for i in place])
            pieces = view.pieces(k, at, *avals, **params)
            operand, index, _ = (
                next(p for p in (*pieces[:-1], None) if p is None or ix.holding(p[2]) is not None)
                or pieces[-1]
            )
            value = xs[operand][tuple([e.const for e in index])]
            assert value == np.asarray(want)[place], (k, place)


def test_a_module_is_read_at_a_sitting():
    lengths = {p: len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    assert [f"{p.relative_to(PACKAGE)}: {n} lines" for p, n in lengths.items() if n > 800] == []


# Beside `__init__`, which only exports. The top of the package has the modules of JAX's import
# paths; lowerings are one module for each family of primitives, named alike for both devices.
MOST_MODULES = {"": 16, "backends/cpu/lowerings": 15, "backends/cuda/lowerings": 14}
FOLDERS = sorted({str(p.parent.relative_to(PACKAGE)).strip(".") for p in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f or "top")
def test_a_folder_is_a_room_of_a_dozen_modules(folder: str):
    modules = [p.name for p in (PACKAGE / folder).glob("*.py") if p.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES.get(folder, 12), sorted(modules)
