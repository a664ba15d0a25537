"""One word means one thing: names of classes, functions and modules."""

from __future__ import annotations

import ast
import pathlib
import re
from collections import defaultdict

import genesis_fn as gf

PACKAGE = pathlib.Path(gf.__file__).parent
# What `as_jax/jax` defines has JAX's names.
MODULES = {
    p.relative_to(PACKAGE): ast.parse(p.read_text())
    for p in sorted(PACKAGE.rglob("*.py"))
    if not p.is_relative_to(PACKAGE / "as_jax" / "jax")
}

# Class names that stand for two things on purpose, and why.
SHARED = {"Stream": "CUDA's, `cuda.Stream`, and of random keys, `random.Stream`"}
# Words that say nothing, and words for which the field has another.
VAGUE = {
    "manager", "helper", "helpers", "util", "utils", "misc", "stuff", "handler",
    "beside", "crossed", "respell", "respelled", "late", "puller", "shells", "surroundings",
    "dearest", "lend", "lends", "keeping",
}  # fmt: skip
# JAX's and optax's own names of modules and functions.
OF_JAX = {
    "api_util", "flatten_util", "test_util", "tree_util", "tree_utils",
}  # fmt: skip


def classes() -> dict[str, list[str]]:
    """{name: modules} of the classes without a leading underscore."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    return found


def test_a_class_name_is_one_class() -> None:
    twice = {n: paths for n, paths in classes().items() if len(paths) > 1 and n not in SHARED}
    assert twice == {}


def words(name: str) -> set[str]:
    """The words of a name in any case: `FlatFunction`, `flat_function`."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_"))


def test_names_are_words_of_the_field() -> None:
    found = []
    for path, tree in MODULES.items():
        if path.stem not in OF_JAX:
            found += [f"{path}: {w}" for w in words(path.stem) & VAGUE]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found += [f"{path}: {node.name}" for _ in words(node.name) & VAGUE]
    assert found == []


# Words for which the parts of the compiler have several better ones: an offset, an index, a device.
VAGUE_VARIABLES = {"place", "places", "beside", "folds"}
COMPILER = ("kernels", "compiler", "backends")


def test_variables_of_the_compiler_say_which_place_they_mean() -> None:
    found = []
    for path, tree in MODULES.items():
        if path.parts[0] not in COMPILER:
            continue
        for node in ast.walk(tree):
            name = node.arg if isinstance(node, ast.arg) else getattr(node, "id", None)
            if name in VAGUE_VARIABLES:
                found.append(f"{path}: {name}")
    assert found == []


def test_a_module_is_not_called_like_a_function_that_users_import() -> None:
    """`from genesis_fn.transforms.staging import jit` is never a question."""
    found = []
    for path, tree in MODULES.items():
        names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        if path.parts[0] in ("transforms", "nn") and path.stem in names:
            found.append(str(path))
    assert found == []
