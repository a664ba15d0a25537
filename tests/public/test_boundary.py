"""Public is what the public packages export, and nothing else.

`api_names.json` lists it. After a name was added or taken away on purpose:

    python -m tests.public.test_boundary   # writes the list anew
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import genesis_fn as gf
from genesis_fn.core.primitive import Primitive
from tests.public.names import PUBLIC, ROOT, exported, module_of, path_of

LIST = Path(__file__).parent.parent / "api_names.json"


def found() -> dict[str, list[str]]:
    """{namespace: its names}, of every public package and module, and of arrays."""
    names = {f"genesis_fn.{space}".rstrip("."): sorted(exported(space)) for space in PUBLIC}
    operators = {n for n in dir(gf.Array) if n[:2] == "__" and not hasattr(object, n)}
    own = operators - {"__slots__", "__module__", "__weakref__", "__genesis_array__"}
    names["genesis_fn.Array"] = sorted(own | {n for n in dir(gf.Array) if n[0] != "_"})
    return names


def test_the_list_holds_what_is_public():
    listed, now = json.loads(LIST.read_text()), found()
    changes = []
    for space in sorted({*listed, *now}):
        before, after = {*listed.get(space, [])}, {*now.get(space, [])}
        changes += [f"{space} no longer has {name}" for name in sorted(before - after)]
        changes += [f"{space} exports {name}, too" for name in sorted(after - before)]
    command = "python -m tests.public.test_boundary"
    assert not changes, "\n".join([*changes, f"if that is intended: {command}"])


@pytest.mark.parametrize("space", PUBLIC, ids=lambda s: s or "genesis_fn")
def test_every_public_name_is_there(space: str):
    module = module_of(space)
    assert [n for n in exported(space) if not hasattr(module, n)] == []
    assert set(dir(module)) >= exported(space)


@pytest.mark.parametrize("space", PUBLIC, ids=lambda s: s or "genesis_fn")
def test_a_public_name_is_no_module(space: str):
    """`from genesis_fn.transforms import grad` gives the function whatever was imported before."""
    module, path = module_of(space), path_of(space)
    modules = {m.name for m in pkgutil.iter_modules([str(path.parent)])}
    inside = modules if path.name == "__init__.py" else set[str]()
    for name in exported(space):
        public = f"{space}.{name}".lstrip(".") in PUBLIC
        assert isinstance(getattr(module, name), ModuleType) <= public, f"{name} is a module"
        assert public or name not in inside, f"{space}.{name} is shadowed by a module"


@pytest.mark.parametrize("space", PUBLIC, ids=lambda s: s or "genesis_fn")
def test_names_are_exported_in_one_place(space: str):
    """By `import x as x`, which type checkers take as an export too; there is no second list."""
    assert "__all__" not in vars(module_of(space))


def test_packages_import_alone():
    """Each in a process of its own, first of all, in any order."""
    program = "import importlib, sys; importlib.import_module(sys.argv[1])"
    for space in ("nn", "extend", "primitives", "kernels", "transforms", "optim"):
        command = [sys.executable, "-c", program, f"genesis_fn.{space}"]
        done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_package_exports_only_what_it_means_to():
    """Nothing of another library is public by accident."""
    for space in PUBLIC:
        module = module_of(space)
        for name in exported(space):
            home = getattr(getattr(module, name), "__module__", None) or "genesis_fn"
            known = "genesis_fn builtins types numpy ml_dtypes optree typing collections functools"
            assert str(home).partition(".")[0] in known.split(), f"{space}.{name} is of {home}"


def test_every_primitive_of_the_package_is_exported():
    """Those with one function are its `.prim`; what only other primitives' rules use has a name."""
    exports = [getattr(gf.primitives, n) for n in exported("primitives")]
    known = {id(getattr(x, "prim", x)) for x in exports}
    lacking = [
        prim.name
        for path in sorted((ROOT / "primitives").rglob("*.py"))
        for module in [
            importlib.import_module(
                "genesis_fn." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
            )
        ]
        for x in vars(module).values()
        for prim in [getattr(x, "prim", x)]
        if isinstance(prim, Primitive) and id(prim) not in known
    ]
    assert not lacking, f"export {sorted(set(lacking))} in primitives/__init__.py"


if __name__ == "__main__":
    LIST.write_text(json.dumps(found(), indent=1) + "\n")
