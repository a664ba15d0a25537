"""How the library is built: what a reader relies on who looks for where something is decided.

A primitive is one record. Nothing but its definition knows it by name: the rest asks what the
record says, or names the object.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.core.backend import index as ix, lowering
from genesis_fn.core.primitive import PRIMITIVES, Primitive, bind
from genesis_fn.primitives import shape
from tests.public.names import PUBLIC, path_of

PACKAGE = pathlib.Path(g.__file__).parent
# Where names of primitives are words for something else as well, and for what.
WORDS = {
    "as_jax/placement.py": "public functions",
    "numpy/": "public functions", "random/": "public functions",
    "scipy/linalg/decompositions.py": "forms of a decomposition",
    "core/diagnostics/torch_habits.py": "torch's functions", "core/dtypes.py": "fields of finfo",
    "core/primitive.py": "the registry itself", "models/": "options of sampling",
    "scipy/": "options of SciPy's functions",
    "cli/language_model/": "options of sampling",
    "parallel/context.py": "a method of attention",
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


PRIMITIVE = {"prim", "_prim", "primitive", "op"}  # what variables and fields with one are called
TEXT = {"name", "__name__"}
LOOKUPS = {"get", "pop", "setdefault", "__getitem__", "__contains__", "index", "count"}
JOINING = {"join", "format", "append", "add", "extend"}  # what a text is made with


def named_after(scope: ast.AST) -> Callable[[ast.AST], bool]:
    """Whether an expression in `scope` is a primitive's name or holds it: `e.prim.name`, its text
    (`str(prim)`, `f"{prim}"`), and variables that are assigned one or a primitive."""
    primitives, names = set(PRIMITIVE), set[str]()

    def is_primitive(node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):  # params["op"]
            return isinstance(node.slice, ast.Constant) and node.slice.value in PRIMITIVE
        return getattr(node, "attr", getattr(node, "id", "")) in primitives

    def is_name(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Attribute):
            return node.attr in TEXT and is_primitive(node.value)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("str", "repr"):
            return any(map(is_primitive, node.args))
        return isinstance(node, ast.FormattedValue) and is_primitive(node.value)

    def holds(node: ast.AST) -> bool:
        """A call's result holds a name only where it puts texts together."""
        if is_name(node):
            return True
        inner = ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            made = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if made not in JOINING | TEXTS:
                inner = iter((node.func,))
        elif isinstance(node, ast.Subscript):  # what is found by a name is none
            inner = iter((node.value,))
        return any(map(holds, inner))

    before = -1
    while before != len(primitives) + len(names):
        before = len(primitives) + len(names)
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                targets = [node.target]
            else:
                continue
            for target in targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts))
                for t, v in pairs:
                    if isinstance(t, ast.Name) and v is not None:
                        primitives |= {t.id} if is_primitive(v) else set()
                        names |= {t.id} if holds(v) else set()
    return holds


# Methods of texts: those that take one apart ask for a part.
TEXTS = {"str", "repr", "replace", "strip", "lstrip", "rstrip", "lower", "upper", "title"}
ASKING = {
    "startswith", "endswith", "find", "match", "fullmatch", "search", "partition", "rpartition",
    "split", "removeprefix", "removesuffix",
}  # fmt: skip


def decisions_by_name(tree: ast.AST) -> set[int]:
    """The lines that compare the name of a primitive, look something up by it, or take it apart."""
    lines: set[int] = set()
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    for scope in (*functions, tree):
        holds = named_after(scope if scope is not tree else ast.Module([], []))
        for node in ast.walk(scope):
            asked: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                asked = [node.left, *node.comparators]
            elif isinstance(node, ast.Subscript):
                part = isinstance(node.value, ast.Attribute)  # of a name, not of a list of them
                asked = [node.slice, *([node.value] if part else [])]
            elif isinstance(node, ast.Match):
                asked = [node.subject]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                asked = [*node.args] if node.func.attr in LOOKUPS | ASKING else []
                asked += [node.func.value] if node.func.attr in ASKING else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                asked = [*node.args[1:]] if node.func.id in ("getattr", "hasattr") else []
            if any(map(holds, asked)):
                lines.add(node.lineno)
    return lines


def tables_of_names(tree: ast.AST) -> set[int]:
    """The lines with a literal collection of two or more names of primitives, and those that ask
    for one that is no word of another meaning (`dot_general`, not `add`)."""
    lines = set()
    exported = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "") in ("__all__", "__slots__")
        for inner in ast.walk(node)
    }
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
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()  # "add mul".split()
            elements = [ast.Constant(w) for w in words] if {*words} <= DEFINED else []
        names = [
            e.value
            for e in elements
            if isinstance(e, ast.Constant) and isinstance(e.value, str) and e.value in DEFINED
        ]
        if isinstance(node, ast.Compare):
            elements = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            elements = [node.slice]
        elif isinstance(node, ast.MatchValue):
            elements = [node.value]
        one = [
            e.value
            for e in elements
            if not isinstance(node, ast.Constant)
            and isinstance(e, ast.Constant)
            and e.value in DEFINED
            and "_" in e.value
        ]
        if len(names) > 1 or one:
            lines.add(node.lineno)
        # The registry is for pickles and tests; who means a primitive names the object.
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.value, ast.Name):
            looked_up = isinstance(node, ast.Subscript) or node.attr in LOOKUPS
            if node.value.id == "PRIMITIVES" and looked_up:
                lines.add(node.lineno)
    return lines


DEFINED = frozenset(PRIMITIVES)
# Fused functions stand above the backends, which know them by name; users name what `amp` treats
# otherwise.
BY_NAME = {
    "backends/cpu/lower.py": "FUSED", "backends/cuda/lowerings/fused.py": "KERNELS",
    "backends/cuda/lowerings/__init__.py": "KERNELS",
    "transforms/precision/autocast.py": "overrides",
}  # fmt: skip


def test_nothing_is_decided_by_the_name_of_a_primitive():
    found = []
    for name, tree in modules():
        lines = (PACKAGE / name).read_text().splitlines()
        asking = [lines[at - 1] for at in sorted(decisions_by_name(tree))]
        allowed = BY_NAME.get(name)
        found += [f"{name}: {text}" for text in asking if allowed is None or allowed not in text]
    assert found == []


def test_no_table_lists_primitives_by_name():
    found = {name: sorted(tables_of_names(tree)) for name, tree in modules()}
    assert {n: at for n, at in found.items() if at and not n.startswith(tuple(WORDS))} == {}


@pytest.mark.parametrize(
    "text",
    [
        'e.prim.name == "add"', 'p = e.prim; p.name in known', 'str(e.prim) == "add"',
        'f"{e.prim}" == "add"', 'table[e.prim.name]', 'table[f"_{e.prim.name}"]',
        'table.get(prim.name)', 'getattr(self, "_" + e.prim.name)',
        'getattr(self, f"_{prim.name}")',
        'name: str = e.prim.name; name == "add"', '(n := e.prim.name) == "add"',
        'e.prim.name.partition("_")[0]', 'e.prim.name[:6]',
        'e.params["op"].name.startswith("soft")',
        'op = e.params["op"]; op.name == "softmax"', 'known.__contains__(e.prim.name)',
        'names = [e.prim.name for e in eqns]; "add" in names', 'match = pattern.match(prim.name)',
        'a, b = e.prim, e.outs; a.name == "add"',
    ],
)  # fmt: skip
def test_the_walk_finds_decisions(text: str):
    function = ast.parse("def f():\n    pass")
    assert isinstance(function.body[0], ast.FunctionDef)
    function.body[0].body = ast.parse(text).body
    assert decisions_by_name(function)
    match = ast.parse("def f():\n    match e.prim.name:\n        case 'add': pass")
    assert decisions_by_name(match)


@pytest.mark.parametrize(
    "text",
    [
        '{"dot_general", "gather"}', 'dict(add=1, mul=2)', '"add mul".split()', 'PRIMITIVES["add"]',
        'PRIMITIVES.get("add")', '{"sort": 1, "top_k": 2}', '{"dot_general": 1}',
        'name == "dot_general"', 'dict.fromkeys(["reduce_sum"])', 'table["reduce_sum"]',
    ],
)  # fmt: skip
def test_the_walk_finds_tables(text: str):
    assert tables_of_names(ast.parse(text))


def test_backends_and_kernels_alone_know_a_device():
    """torch and Triton stand elsewhere in the definitions of elementwise primitives, where they are
    an expression, and in what is about torch itself: users' torch functions, its version, its
    profiler, its store in which processes meet."""
    importing = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in [str(path.relative_to(PACKAGE))]
        if not name.startswith(("backends/", "kernels/"))
        for node in ast.walk(ast.parse(path.read_text()))
        for module in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if module.partition(".")[0] in ("torch", "triton")
    }
    assert importing == {
        "primitives/elementwise.py",
        "transforms/custom/ffi.py",
        "cli/info.py",
        "distributed/meeting.py",
        "profiler.py",
    }


def test_both_devices_keep_a_family_in_a_module_of_one_name():
    cpu, cuda = [
        {path.stem for path in (PACKAGE / "backends" / name / "lowerings").glob("*.py")}
        for name in ("cpu", "cuda")
    ]
    # Assertions the host raises itself.
    assert cpu - cuda == set()
    assert cuda - cpu == {"assertions"}


@functools.cache
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
    # `core/primitive.py` itself asks for shape, weakness and what varies; its caches are no part of
    # the record.
    at_home = {"shape", "weak", "reduces", "abstract_cache", "eager_cache"}
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


def test_names_are_imported_from_where_they_are_defined():
    """Public packages and modules export for users; nothing else hands names on, but the words of
    annotations and the dtypes, with the extended ones among them, and JAX's modules."""
    handing_on = {path_of(space) for space in PUBLIC}
    handing_on |= {PACKAGE / "core/dtypes.py", PACKAGE / "core/types/annotations.py"}
    handed_on = [
        f"{path.relative_to(PACKAGE)}: {alias.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in handing_on and path.name != "__init__.py"
        if not path.is_relative_to(PACKAGE / "as_jax" / "jax")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert handed_on == []


def test_only_upper_floors_import_from_the_root():
    """`from genesis_fn import Array` names what lies in `core`, but the floors' contract cannot see
    which names are meant: what lies below `random` imports from where things are defined."""
    upper = {
        "as_jax", "cli", "data", "io", "models", "image", "scipy", "amp", "nn", "optim", "parallel",
    }  # fmt: skip
    importing = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "genesis_fn"
        for alias in node.names  # a package or a module is seen by the contract as what it is
        if not (PACKAGE / alias.name).is_dir() and not (PACKAGE / f"{alias.name}.py").exists()
    }
    assert importing <= upper


# Beside `__init__`, which only exports. The top of the package has the modules of JAX's import
# paths; lowerings are one module for each family of primitives, named alike for both devices.
MOST_MODULES = {
    "": 20, "backends/cpu/lowerings": 17, "backends/cuda/lowerings": 18, "scipy/special": 14,
    "scipy/stats": 32,  # a module for each distribution
}  # fmt: skip
FOLDERS = sorted({str(p.parent.relative_to(PACKAGE)).strip(".") for p in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f or "top")
def test_a_folder_is_a_room_of_a_dozen_modules(folder: str):
    found = [p.name for p in (PACKAGE / folder).glob("*.py")]
    modules = [name for name in found if name not in ("__init__.py", "__main__.py")]
    assert len(modules) <= MOST_MODULES.get(folder, 12), sorted(modules)
