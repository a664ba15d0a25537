"""`genesis_fn.optim` under the name `optax`, for optax's own test files.

Optax's files name the modules that define things (`optax._src.alias`, `optax.losses._ranking`):
each is found here, with the names of the library's public module that `PUBLIC` gives for it. What
only serves tests, and the test files themselves, come from the checkout (`optax._src.test_utils`).
A name with an underscore, or of a class of state that is not public, is one of optax's internals:
it raises MissingError when it is used. Any other name that is not there is an AttributeError.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

from benchmarks.suites.internals import Missing

# The library's modules that have the names of optax's, the nearest first. The longest key counts.
PUBLIC = {
    "optax": ("genesis_fn.optim",),
    "optax._src": (
        "genesis_fn.optim", "genesis_fn.optim.transforms", "genesis_fn.optim.tree_utils",
        "genesis_fn.optim.second_order",
    ),
    **{f"optax.{part}": (f"genesis_fn.optim.{part}", "genesis_fn.optim") for part in (
        "assignment", "contrib", "losses", "microbatching", "perturbations", "projections",
        "schedules", "second_order", "transforms", "tree", "tree_utils",
    )},
}  # fmt: skip
FROM_CHECKOUT = ("test_utils", "_test")


class OptaxModule(types.ModuleType):
    """A module of optax's name with the library's functions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        keys = [k for k in PUBLIC if name == k or name.startswith(f"{k}.")]
        self.__dict__["__ours__"] = PUBLIC[max(keys, key=len)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        if full in PUBLIC or name.startswith("_") and (CHECKOUT / _path(full)).exists():
            return importlib.import_module(full)
        for ours in self.__dict__["__ours__"]:
            value = getattr(importlib.import_module(ours), name, None)
            if value is not None and not isinstance(value, types.ModuleType):
                return value
        if (CHECKOUT / _path(full)).exists():
            return importlib.import_module(full)
        if name.startswith("_") or name in INTERNAL:
            return Missing(full)
        raise AttributeError(f"genesis_fn.optim has nothing for {full}")


# What the defining modules of optax have and optax itself does not give its users.
INTERNAL = {
    "FLAG_CURVATURE_COND_NOT_SATISFIED", "FLAG_INTERVAL_NOT_FOUND", "FLAG_INTERVAL_TOO_SMALL",
    "FLAG_NOT_A_DESCENT_DIRECTION", "FLAG_NO_STEPSIZE_FOUND", "init_empty_state", "parse_version",
}  # fmt: skip
CHECKOUT = Path()


def _path(name: str) -> Path:
    """Where a module of this name is in a checkout; the path of a file."""
    folder = Path(*name.split("."))
    package = folder / "__init__.py"
    return package if (CHECKOUT / package).exists() else folder.with_suffix(".py")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of optax."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that the checkout has."""
        if fullname.partition(".")[0] != "optax":
            return None
        file = CHECKOUT / _path(fullname)
        if not file.exists():
            return None
        if fullname.endswith(FROM_CHECKOUT):
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

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
