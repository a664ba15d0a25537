"""Finds the modules of `jax`: the library's own under JAX's names.

A module `jax.x.y` is a `PeerModule`. Its names are those that a file of the folder `jax/` beside
this one defines, if there is one (`jax/x/y.py`: what is JAX's alone), else those of the library's
module that `MODULES` lists.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from genesis_fn.as_jax.options import with_options
from genesis_fn.as_jax.placement import TAKES, laid_out

FOLDER = Path(__file__).parent / "jax"

# JAX's modules, and those of the library that have their names.
MODULES = {
    "jax": "genesis_fn",
    **{f"jax.{name}": f"genesis_fn.{name}" for name in (
        "ad_checkpoint", "custom_batching", "custom_derivatives", "debug", "distributed", "dlpack",
        "dtypes", "errors", "experimental.checkify", "experimental.ode", "flatten_util", "image",
        "lax", "lax.linalg", "nn", "nn.initializers", "numpy", "numpy.fft", "numpy.linalg", "ops",
        "profiler", "random", "scipy", "scipy.cluster", "scipy.cluster.vq", "scipy.fft",
        "scipy.integrate", "scipy.interpolate", "scipy.linalg", "scipy.ndimage", "scipy.optimize",
        "scipy.signal", "scipy.sparse", "scipy.sparse.linalg", "scipy.spatial",
        "scipy.spatial.transform", "scipy.special", "scipy.stats", "sharding", "stages",
        "test_util", "tree", "tree_util", "typing",
    )},
}  # fmt: skip
# Modules below these are theirs, too: `jax.scipy.stats.norm`.
_WHOLE = ("jax.scipy.stats.",)
# What to use instead of modules that have no counterpart.
_INSTEAD = {
    "jax.experimental.pallas": "Triton kernels by genesis_fn.triton_call",
    "jax.experimental.jax2tf": "nothing: programs run on the library alone",
    "jax.experimental.sparse": "dense arrays, jax.ops.segment_sum, or x.at[index].add",
    "jax.ffi": "genesis_fn.triton_call, genesis_fn.torch_call or jax.pure_callback",
    "jax.pmap": "jax.shard_map",
    "jax.experimental.pjit": "jax.jit",
    "jax.interpreters": "genesis_fn.extend, whose Primitive holds the rules",
    "jax._src": "the public name",
}

_NONE = object()


class PeerModule(ModuleType):
    """A module of JAX's name: names of its own first, then those of a module of the library."""

    def __init__(self, name: str, ours: str | None) -> None:
        super().__init__(name)
        self.__dict__["__ours__"] = ours
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        full = f"{self.__name__}.{name}"
        if _found(full):
            return importlib.import_module(full)
        ours = self.__dict__["__ours__"]
        value: Any = getattr(importlib.import_module(ours), name, _NONE) if ours else _NONE
        if value is _NONE or isinstance(value, ModuleType):
            raise AttributeError(absent(self, name))
        argument = TAKES.get(self.__name__, {}).get(name)
        if argument is not None:
            value = laid_out(value, argument)
        value = with_options(full, value)
        self.__dict__[name] = value  # found at once from now on
        return value

    def __dir__(self) -> list[str]:
        ours = self.__dict__["__ours__"]
        module = importlib.import_module(ours) if ours else None
        theirs = [n for n in dir(module) if not isinstance(getattr(module, n), ModuleType)]
        below = [n.rpartition(".")[2] for n in MODULES if n.rpartition(".")[0] == self.__name__]
        names = {*theirs, *below, *self.__dict__} if ours else {*self.__dict__}
        return sorted(n for n in names if not n.startswith("_"))


def absent(module: ModuleType, name: str) -> str:
    """What to tell someone who asks a module for a name that it lacks."""
    full = f"{module.__name__}.{name}"
    instead = next((_INSTEAD[k] for k in (full, module.__name__) if k in _INSTEAD), None)
    if instead is None:
        near = difflib.get_close_matches(name, dir(module), n=3)
        instead = ", ".join(f"{module.__name__}.{n}" for n in near)
    said = f"genesis_fn.as_jax has no {full}"
    return f"{said}; use {instead}" if instead else f"{said}: docs/as-jax.md lists what there is"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and makes the modules of `jax`. It stands before all other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of `jax`; raises ModuleNotFoundError for one that is not there."""
        if fullname.partition(".")[0] != "jax":
            return None
        if not _found(fullname):
            parents = [fullname.rsplit(".", i)[0] for i in range(fullname.count(".") + 1)]
            instead = next((_INSTEAD[p] for p in parents if p in _INSTEAD), None)
            said = f"genesis_fn.as_jax has no module {fullname}"
            raise ModuleNotFoundError(f"{said}; use {instead}" if instead else said, name=fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A `PeerModule` over the library's module of the name."""
        return PeerModule(spec.name, _ours(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Define what the module has for itself."""
        path = _file(module.__name__)
        if path is not None:
            loader = importlib.machinery.SourceFileLoader(module.__name__, str(path))
            module.__file__ = str(path)
            loader.exec_module(module)
        for name, argument in TAKES.get(module.__name__, {}).items():
            if name in module.__dict__:
                module.__dict__[name] = laid_out(module.__dict__[name], argument)


def _file(name: str) -> Path | None:
    """The file that defines what is JAX's alone in a module."""
    path = FOLDER.joinpath(*name.split(".")[1:])
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.is_file() else None


def _ours(name: str) -> str | None:
    if name.startswith(_WHOLE):
        ours = name.replace("jax", "genesis_fn", 1)
        try:
            return ours if importlib.util.find_spec(ours) is not None else None
        except ModuleNotFoundError:
            return None
    return MODULES.get(name)


def _found(name: str) -> bool:
    return name in sys.modules or _file(name) is not None or _ours(name) is not None
