"""`genesis_fn.optim` under the name `optax`, for optax's own test files.

Optax's files name the modules that define things (`optax._src.alias`, `optax.losses._ranking`):
each is found here, with the names of the library's public module that `PUBLIC` gives for it. What
only serves tests, and the test files themselves, come from the checkout (`optax._src.test_utils`).
A name that optax gives its users and that is not there is an AttributeError; any other one is of
optax's internals, and raises MissingError when it is used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.suites.internals import Missing

# The library's modules that have the names of optax's, the nearest first. The longest key counts.
PUBLIC = {
    "optax": ("genesis_fn.optim",),
    "optax._src": (
        "genesis_fn.optim", "genesis_fn.optim.transforms", "genesis_fn.optim.tree_utils",
        "genesis_fn.optim.second_order", "genesis_fn.optim.schedules",
    ),
    **{f"optax.{part}": (f"genesis_fn.optim.{part}", "genesis_fn.optim") for part in (
        "assignment", "contrib", "losses", "microbatching", "perturbations", "projections",
        "schedules", "second_order", "transforms", "tree", "tree_utils",
    )},
}  # fmt: skip
FROM_CHECKOUT = ("test_utils", "_test")
# What pytest asks packages for.
OF_PYTEST = ("__", "pytest", "setUp", "setup", "tearDown", "teardown")


class OptaxModule(types.ModuleType):
    """A module of optax's name with the library's functions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        keys = [k for k in PUBLIC if name == k or name.startswith(f"{k}.")]
        self.__dict__["__ours__"] = PUBLIC[max(keys, key=len)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith(OF_PYTEST):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        module = full in PUBLIC or _path(full) and (name[0] == "_" or self.__name__ == "optax._src")
        if full in NAMES:
            return NAMES[full]()
        for ours in () if module else self.__dict__["__ours__"]:
            value = getattr(importlib.import_module(ours), name, None)
            if value is not None and not isinstance(value, types.ModuleType):
                return value
        if _path(full):
            return importlib.import_module(full)
        if name in _public():
            raise AttributeError(f"genesis_fn.optim has nothing for {full}")
        return Missing(full)


def _enable_x64() -> Any:
    import jax

    return jax.enable_x64


def _diagonal_normal() -> Any:
    from genesis_fn.optim.transforms.distributions import MultiNormalDiagFromLogScale

    return MultiNormalDiagFromLogScale


# What optax's tests use of its insides, and where that is here.
NAMES: dict[str, Callable[[], Any]] = {
    "optax._src.utils.MultiNormalDiagFromLogScale": _diagonal_normal,
    "optax._src.utils.x64_precision": _enable_x64,
}
CHECKOUT = Path()


@functools.cache
def _public() -> frozenset[str]:
    """The names that optax gives its users: those that an `__init__` of the checkout names."""
    files = CHECKOUT.glob("optax/**/__init__.py")
    return frozenset(re.findall(r"\w+", "\n".join(f.read_text() for f in files)))


def _path(name: str) -> Path | None:
    """The folder or the file of a module in the checkout."""
    folder = CHECKOUT.joinpath(*name.split("."))
    return next((p for p in (folder, folder.with_suffix(".py")) if p.exists()), None)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of optax."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that the checkout has."""
        if fullname.partition(".")[0] != "optax":
            return None
        file = _path(fullname)
        if file is None:
            return None
        if fullname.endswith(FROM_CHECKOUT):
            return importlib.util.spec_from_file_location(fullname, file)
        # pytest imports the packages around a test file, and asks whose file a module is.
        return importlib.machinery.ModuleSpec(
            fullname,
            self,
            origin=str(file / "__init__.py" if file.is_dir() else file),
            is_package=True,
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An `OptaxModule`."""
        return OptaxModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: names are looked up when they are asked for."""


def install(checkout: Path) -> None:
    """Let `optax` be found here, before the installed one."""
    global CHECKOUT
    CHECKOUT = checkout
    sys.meta_path.insert(0, Finder())
