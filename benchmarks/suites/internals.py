"""Stands in for `jax._src`, of which JAX's test files import parts.

Modules that only serve tests come from the checkout (`CHECKOUT`). Any other module of `jax._src`
exists: its names are those of `NAMES` below, of `genesis_fn.as_jax`'s own module of the name, and
of the public modules that `PUBLIC` lists for it. What none of them has is a stub, which raises
MissingError when it is used: such a case is about JAX's internals.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from genesis_fn.as_jax.finder import FOLDER
from genesis_fn.as_jax.stubs import MissingError
from genesis_fn.core.array import ArrayImpl

CHECKOUT = (
    "jax._src.test_util", "jax._src.public_test_util", "jax._src.test_warning_util",
    "jax._src.test_loader", "jax._src.internal_test_util", "jax._src.lax_reference",
    "jax._src.internal_test_util.lax_test_util",
)  # fmt: skip
# Where the public names of an internal module are.
PUBLIC: dict[str, tuple[str, ...]] = {
    "jax._src": (),
    "jax._src.ad_checkpoint": ("jax.ad_checkpoint", "jax"),
    "jax._src.api": ("jax",),
    "jax._src.array": ("jax.extend.core",),
    "jax._src.core": ("jax.core", "jax.extend.core", "jax.errors", "jax"),
    "jax._src.custom_batching": ("jax.custom_batching",),
    "jax._src.custom_derivatives": ("jax.custom_derivatives", "jax"),
    "jax._src.debugging": ("jax.debug",),
    "jax._src.dtypes": ("jax.dtypes", "jax.numpy"),
    "jax._src.errors": ("jax.errors",),
    "jax._src.flatten_util": ("jax.flatten_util",),
    "jax._src.indexing": ("jax",),
    "jax._src.interpreters.ad": ("jax.interpreters.ad",),
    "jax._src.interpreters.batching": ("jax.interpreters.batching",),
    "jax._src.interpreters.mlir": ("jax.interpreters.mlir",),
    "jax._src.interpreters.partial_eval": ("jax.interpreters.partial_eval",),
    "jax._src.lax": ("jax.lax",),
    "jax._src.lax.lax": ("jax.lax",),
    "jax._src.lax.linalg": ("jax.lax.linalg",),
    "jax._src.lax.parallel": ("jax.lax",),
    "jax._src.lax.control_flow": ("jax.lax",),
    "jax._src.lax.windowed_reductions": ("jax.lax",),
    "jax._src.mesh": ("jax.sharding",),
    "jax._src.numpy.lax_numpy": ("jax.numpy",),
    "jax._src.random.core": ("jax.random",),
    "jax._src.scipy.special": ("jax.scipy.special",),
    "jax._src.shard_map": ("jax",),
    "jax._src.sharding_impls": ("jax.sharding", "jax"),
    "jax._src.tree_util": ("jax.tree_util",),
    "jax._src.typing": ("jax.typing", "jax"),
    "jax._src.xla_bridge": ("jax",),
}


class Missing:
    """A name that nothing stands for: it may be named, decorate and be looked into while a test
    file is imported, and raises MissingError when a test uses it."""

    importing = True  # until the first test runs

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__qualname__ = name
        self.__members__ = {"MEMBER": self}  # of an enum that parametrizes tests

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if Missing.importing:
            return self
        return self._refuse()

    def _refuse(self, *args: Any) -> Any:
        raise MissingError(f"genesis_fn.as_jax has no {self.__name__}")

    def __iter__(self) -> Iterator[Missing]:
        return iter([self] if Missing.importing else self._refuse())  # a case's only argument

    __bool__ = __len__ = __getitem__ = __setitem__ = __enter__ = __exit__ = _refuse

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise MissingError(f"genesis_fn.as_jax has no {self.__name__}")

        return (type("Missing", (), {"__new__": refuse}),)

    def __instancecheck__(self, value: Any) -> bool:
        return False


stub = Missing


class Flag:
    """A setting of JAX's: `.value`, and a block in which it is another."""

    def __init__(self, name: str, default: Any = None) -> None:
        self.name, self.default = name, default

    @property
    def value(self) -> Any:
        """What the setting is now."""
        if self.default is not None:
            return self.default
        from jax import config

        try:
            return getattr(config, self.name)
        except AttributeError:
            return False  # a setting of JAX's insides

    @contextlib.contextmanager
    def __call__(self, new: Any) -> Iterator[None]:
        from jax import config

        try:
            before = getattr(config, self.name)
        except AttributeError:
            yield  # a setting of JAX's insides
            return
        config.update(self.name, new)
        try:
            yield
        finally:
            config.update(self.name, before)

    def __bool__(self) -> bool:
        return bool(self.value)


def _flag(name: str, default: Any, *args: Any, **kwargs: Any) -> Flag:
    return Flag(name, default)


def _env(kind: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    return lambda name, default: kind(os.environ[name]) if name in os.environ else default


class _States(dict[str, Flag]):
    def __missing__(self, name: str) -> Flag:
        return Flag(name)


class Config:
    """`jax._src.config`: the module, and what `jax.config` does."""

    string_flag = int_flag = bool_flag = float_flag = enum_flag = staticmethod(_flag)
    bool_env = staticmethod(_env(lambda s: s.lower() in ("1", "true", "yes")))
    int_env = staticmethod(_env(int))
    string_env = staticmethod(_env(str))

    @property
    def config_states(self) -> Any:
        """Settings by their names."""
        return _States()

    def __getattr__(self, name: str) -> Any:
        from jax import config

        if name == "_read":
            return lambda setting: getattr(config, setting, False)
        if name in ("update", "parse_flags_with_absl", "config_with_absl", "config", "read"):
            return config if name == "config" else getattr(config, name)
        if name.startswith("jax_"):
            return getattr(config, name, False)
        if name[:1].isupper():
            return stub(f"jax._src.config.{name}")
        return Flag(name)


def _safe_zip(*args: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*args, strict=True))


def _safe_map(f: Callable[..., Any], *args: Sequence[Any]) -> list[Any]:
    return [f(*xs) for xs in _safe_zip(*args)]


def _unzip2(pairs: Sequence[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    firsts, seconds = [], []
    for a, b in pairs:
        firsts.append(a)
        seconds.append(b)
    return tuple(firsts), tuple(seconds)


def _unzip3(triples: Sequence[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], ...]:
    found = list(triples)
    return tuple([tuple([t[i] for t in found]) for i in range(3)])


def _split_list(xs: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    parts, rest = [], list(xs)
    for n in sizes:
        parts, rest = [*parts, rest[:n]], rest[n:]
    return [*parts, rest]


_PYTHON_DTYPES = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}


def _default_dtype(kind: str) -> Callable[[], np.dtype]:
    names = {"b": "bool", "i": "int32", "u": "uint32", "f": "float32", "c": "complex64"}
    return lambda: np.dtype(names[kind])


def _stands_there(dtype: Any) -> bool:
    """Whether a dtype is one of JAX's that only stand there, as `jax.numpy.uint4` does."""
    import jax.numpy as jnp

    return isinstance(dtype, type(jnp.uint4))


def _itemsize_bits(dtype: Any) -> int:
    import jax

    if _stands_there(dtype):
        return int(re.findall(r"\d+", dtype.__name__)[0])
    return jax.dtypes.itemsize_bits(dtype)


def _dtype_of(x: Any) -> Any:
    """The dtype that a value or a Python type has, or that is named."""
    import jax.numpy as jnp

    if type(x) in (bool, int, float, complex):
        x = type(x)
    if isinstance(x, type) and x in _PYTHON_DTYPES:
        return np.dtype(_PYTHON_DTYPES[x])
    return jnp.dtype(getattr(x, "dtype", x))


def _to_inexact_dtype(dtype: Any) -> Any:
    import jax.numpy as jnp

    found = jnp.dtype(dtype)
    return found if jnp.issubdtype(found, jnp.inexact) else np.dtype("float32")


def _to_numeric_dtype(dtype: Any) -> Any:
    import jax.numpy as jnp

    found = jnp.dtype(dtype)
    return np.dtype("int32") if found.kind == "b" else found


def _canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """The dtype that JAX gives arrays by default for one of NumPy's: 32 bits for 64."""
    import jax

    if dtype == jax.dtypes.float0:
        return dtype  # what has no derivative
    if _stands_there(dtype):  # no dtype that arrays have
        return None
    found = jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype)
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    return np.dtype(narrow[found.name]) if found.name in narrow else found


def _promote(*values: Any, least: Any = None) -> list[Any]:
    """Arrays of the dtype that an operation on these values has."""
    import jax.numpy as jnp

    dtype = jnp.result_type(*values, *([] if least is None else [least]))
    return [jnp.asarray(v).astype(dtype) for v in values]


def _promote_inexact(*values: Any) -> list[Any]:
    import jax.numpy as jnp

    dtype = jnp.result_type(*values)
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    return _promote(*values) if inexact else [jnp.asarray(v).astype("float32") for v in values]


def _promote_complex(*values: Any) -> list[Any]:
    import jax.numpy as jnp

    return _promote(*_promote_inexact(*values), least=jnp.complex64)


def _scalar(name: str) -> Any:
    return getattr(ml_dtypes, name)


def _to_floating_dtype(dtype: Any) -> Any:
    import jax.numpy as jnp

    return jnp.finfo(_to_inexact_dtype(dtype)).dtype


def _to_complex_dtype(dtype: Any) -> Any:
    wide = _to_inexact_dtype(dtype).name in ("float64", "complex128")
    return np.dtype("complex128" if wide else "complex64")


_NARROW = (
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "float6_e2m3fn",
    "float6_e3m2fn", "int2", "int4", "uint2", "uint4", "bfloat16",
)  # fmt: skip


class _Backend:
    platform = "cpu"
    platform_version = "genesis_fn"
    device_count = staticmethod(lambda: 1)

    def __hash__(self) -> int:
        return 0


def _cached(f: Callable[..., Any]) -> Callable[..., Any]:
    f.cache_clear = lambda: None  # type: ignore[attr-defined]
    return f


class _Counted:
    """A cache whose misses are not counted."""

    cache_clear = staticmethod(lambda: None)
    cache_info = staticmethod(lambda: types.SimpleNamespace(misses=0))


def _typed(kind: type) -> type:
    """JAX's Python number with a dtype; nothing here makes one."""
    return type(f"Typed{kind.__name__.title()}", (kind,), {})


# Names of internal modules that have a meaning here.
NAMES: dict[str, dict[str, Any]] = {
    "jax._src.util": {
        "install_failure_signal_handler": lambda: None, "safe_zip": _safe_zip,
        "safe_map": _safe_map, "unzip2": _unzip2, "unzip3": _unzip3, "split_list": _split_list,
        "test_event_listener": None, "curry": lambda f: lambda *a: lambda *b: f(*a, *b),
        "tuple_update": lambda t, i, x: (*t[:i], x, *t[i + 1 :]),
    },
    "jax._src.dtypes": {
        **{name: _scalar(name) for name in _NARROW if hasattr(ml_dtypes, name)},
        "canonicalize_dtype": _canonicalize_dtype,
        "default_types": {k: _default_dtype(k) for k in "biufc"},
        "default_int_dtype": _default_dtype("i"), "default_float_dtype": _default_dtype("f"),
        "default_uint_dtype": _default_dtype("u"), "default_complex_dtype": _default_dtype("c"),
        "python_scalar_types_to_dtypes": {k: np.dtype(v) for k, v in _PYTHON_DTYPES.items()},
        "itemsize_bits": _itemsize_bits, "dtype": _dtype_of,
        "to_inexact_dtype": _to_inexact_dtype, "to_numeric_dtype": _to_numeric_dtype,
        "to_floating_dtype": _to_floating_dtype, "to_complex_dtype": _to_complex_dtype,
        "_jax_types": [np.dtype("bool")], "_weak_types": [int, float, complex],
        "int1": None, "uint1": None, "_intn_dtypes": [], "_float8_dtypes": [],
        "_custom_float_scalar_types": [], "custom_floats": [],
        "supports_inf": lambda dtype: bool(np.isinf(np.array(np.inf).astype(dtype))),
    },
    "jax._src.array": {"ArrayImpl": ArrayImpl},
    "jax._src.core": {"reset_trace_state": lambda: True},
    "jax._src.xla_bridge": {
        "get_backend": _cached(lambda platform=None: _Backend()),
        "backend_xla_version": lambda: None,
        "num_cpu_devices": Flag("num_cpu_devices", 1),
    },
    "jax._src.lib": {
        "version": (99, 0, 0), "version_str": "99.0.0", "__version__": "99.0.0",
        "jaxlib_extension_version": 9999, "ifrt_version": 9999,
    },
    "jax._src.cloud_tpu_init": {"running_in_cloud_tpu_vm": False},
    "jax._src.numpy.util": {
        "promote_dtypes": _promote, "promote_dtypes_inexact": _promote_inexact,
        "promote_dtypes_complex": _promote_complex,
    },
    "jax._src.lax.control_flow": {
        "common": types.SimpleNamespace(
            _dedup_consts=_Counted(), _pad_constvars=_Counted(),
            _initial_style_open_jaxpr=_Counted(), _initial_style_jaxpr=_Counted()),
    },
    "jax._src.dispatch": {
        "xla_primitive_callable": _Counted(),
        "runtime_tokens": types.SimpleNamespace(
            clear=lambda: None, block_until_ready=lambda: None),
    },
    "jax._src.deprecations": {"is_accelerated": lambda name: False},
    "jax._src.literals": {
        "TypedInt": _typed(int), "TypedFloat": _typed(float), "TypedComplex": _typed(complex),
        "TypedNdArray": type("TypedNdArray", (), {}),
    },
    "jax._src.compilation_cache": {
        "_cache": None, "reset_cache": lambda: None, "is_persistent_cache_enabled": lambda: False,
    },
}  # fmt: skip


class Internal(types.ModuleType):
    """A module of `jax._src`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__dict__.update(NAMES.get(name, {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "jax._src.config":
            return getattr(_CONFIG, name)
        full = f"{self.__name__}.{name}"
        if full in PUBLIC and self.__name__ != "jax._src":  # before a public module of the name
            return importlib.import_module(full)
        for module in PUBLIC.get(self.__name__, ()):
            with contextlib.suppress(AttributeError, ImportError):
                return getattr(importlib.import_module(module), name)
        if full in PUBLIC or full in NAMES or name.islower() and self.__name__ == "jax._src":
            return importlib.import_module(full)
        return stub(full)


_CONFIG = Config()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `jax._src`, tests' own ones in the checkout."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of `jax._src`, and of jaxlib."""
        if fullname in CHECKOUT:
            found = self.checkout.joinpath(*fullname.split("."))
            file = found / "__init__.py" if found.is_dir() else found.with_suffix(".py")
            if not file.exists():
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
            places = [str(found)] if found.is_dir() else None
            return importlib.util.spec_from_file_location(
                fullname, file, submodule_search_locations=places
            )
        if fullname.split(".")[0] == "jaxlib" or fullname.split(".")[:2] == ["jax", "_src"]:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An `Internal`."""
        return Internal(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Add what genesis_fn.as_jax has under the name."""
        parts = module.__name__.split(".")[1:]
        path = FOLDER.joinpath(*parts).with_suffix(".py")
        if path.is_file():
            before = dict(module.__dict__)
            loader = importlib.machinery.SourceFileLoader(module.__name__, str(path))
            exec(loader.get_code(module.__name__), module.__dict__)
            module.__dict__.update({k: v for k, v in before.items() if k[:2] != "__"})


def install(checkout: Path) -> None:
    """Let `jax._src` be found, before `genesis_fn.as_jax` says that it is not there."""
    sys.meta_path.insert(0, Finder(checkout))
