"""Settings: one immutable value, global with thread-local overrides, read by identity in jit
keys."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Generator
from typing import Any

from genesis_fn.core.configuration import environment


@dataclasses.dataclass(frozen=True, slots=True)
class Numerics:
    """The settings that say how exactly an operation is computed. Equations keep those under which
    they were recorded: a program is compiled, differentiated and run by its own, whatever is set by
    then."""

    matmul_precision: str = "default"
    precise: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Config:
    """The settings in force. Each distinct value exists once, so they compare by identity.

    Attributes:
        matmul_precision: how float32 products are computed: "default" (TF32 on a GPU), "tf32",
            "tf32x3" (three TF32 products, close to float32), "highest" (float32).
        deterministic: add what a scatter or a sum over segments adds in one order, so that every
            run gives the same bits; without it floats are added by atomics on a GPU, which is
            faster, and cuDNN may use engines for convolutions whose results differ between runs.
        precise: round division, square roots and reciprocals of float32 correctly on a GPU, which
            else are good to 2 units in the last place (docs/numerics.md); a CPU always does.
        enable_x64: Python numbers and what is made without a dtype are 64-bit, and NumPy's 64-bit
            values stay so.
        numpy_dtype_promotion: "strict" refuses operands of different dtypes.
        numpy_rank_promotion: "warn" or "raise" where operands differ in their number of
            dimensions.
        random_impl: the generator of new keys, "philox" or "threefry2x32" (bit-equal to JAX).
        disable_jit: run `jit`, loops and branches as Python.
        debug_nans: raise NanError for a NaN result, with the line that made it.
        debug_infs: raise NanError for an infinite result.
        check_keys: raise KeyReuseError where a random key is used twice, instead of a warning.
        check_types: check every program after every transform.
        log_compiles: log each compilation.
        explain_cache_misses: warn with the reason when a jitted function is traced again.
        transfer_guard: "allow", "log", "disallow" implicit copies between host and devices, or
            "log_explicit", "disallow_explicit" all of them; the next three override it.
        transfer_guard_host_to_device: the same for copies to devices.
        transfer_guard_device_to_device: the same for copies between devices.
        transfer_guard_device_to_host: the same for copies to the host.
        default_device: where new arrays go; None is GENESIS_DEVICE, a usable GPU, or the CPU.
        programmatic_launch: start a kernel while the one before it ends (GPUs from Hopper on).
    """

    matmul_precision: str = "default"
    deterministic: bool = True
    precise: bool = False
    enable_x64: bool = False
    numpy_dtype_promotion: str = "standard"
    numpy_rank_promotion: str = "allow"
    random_impl: str = "philox"
    disable_jit: bool = False
    debug_nans: bool = False
    debug_infs: bool = False
    check_keys: bool = False
    check_types: bool = False
    log_compiles: bool = False
    explain_cache_misses: bool = True
    transfer_guard: str = "allow"
    transfer_guard_host_to_device: str = ""
    transfer_guard_device_to_device: str = ""
    transfer_guard_device_to_host: str = ""
    default_device: Any = None
    programmatic_launch: bool = False

    @functools.cached_property
    def traced(self) -> Config:
        """The same settings but for those that only say what to report: the part of them that
        decides what a function traces to."""
        same = {n: _FIELDS[n].default for n in _REPORTING}
        return _intern(dataclasses.replace(self, **same))

    @functools.cached_property
    def numerics(self) -> Numerics:
        """How exactly operations are computed under these settings."""
        return numerics_of(self.matmul_precision, self.precise)


_REPORTING = (
    "debug_nans", "debug_infs", "log_compiles", "explain_cache_misses", "transfer_guard",
    "transfer_guard_host_to_device", "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
)  # fmt: skip
_listeners: list[Callable[[Config], None]] = []
_FIELDS = {f.name: f for f in dataclasses.fields(Config)}
_interned: dict[tuple[Any, ...], Config] = {}


@functools.cache  # one object for each value: `computing` compares them by identity
def numerics_of(matmul_precision: str, precise: bool) -> Numerics:
    """The numerics of these two settings."""
    return Numerics(matmul_precision, precise)


def _intern(value: Config) -> Config:
    return _interned.setdefault(tuple([getattr(value, n) for n in _FIELDS]), value)


_FLAGS = {
    "1": True, "true": True, "yes": True, "on": True,
    "": False, "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip


def flag(variable: str, text: str) -> bool:
    """What an environment variable that switches something says. Raises ValueError for others."""
    if text.lower() not in _FLAGS:
        raise ValueError(f"{variable} is 1, true, yes or on, or else 0, false, no or off: {text!r}")
    return _FLAGS[text.lower()]


def _from_environment() -> Config:
    changes: dict[str, Any] = {}
    for name, f in _FIELDS.items():
        text = os.environ.get(f"GENESIS_{name.upper()}")
        if text is not None and isinstance(f.default, bool):
            changes[name] = flag(f"GENESIS_{name.upper()}", text)
        elif text is not None and isinstance(f.default, str):
            changes[name] = text
    if flag("GENESIS_CHECK", environment.text("GENESIS_CHECK")):
        changes["check_types"] = True
    return _intern(Config(**changes))


class _State:
    """The process-wide configuration; `override` replaces it within a block, in one thread."""

    value = _from_environment()


class _Local(threading.local):
    """A thread's configuration, if it has one of its own: the settings of the blocks that it is in
    over the process's."""

    override: Config | None = None
    blocks: dict[str, Any] = {}


_local = _Local()


def current() -> Config:
    """The configuration in force in this thread."""
    return _local.override or _State.value


def _checked(name: str, value: Any) -> Any:
    if name not in _FIELDS:
        raise AttributeError(f"there is no setting {name!r}; there are {', '.join(_FIELDS)}")
    default = _FIELDS[name].default
    if default is not None and type(value) is not type(default):
        raise TypeError(f"setting {name!r} takes a {type(default).__name__}, got {value!r}")
    return value


def listen(f: Callable[[Config], None]) -> None:
    """Call `f` with the settings now and whenever others come into force."""
    _listeners.append(f)
    f(current())


def _announce() -> None:
    for f in _listeners:
        f(current())


def names() -> list[str]:
    """The names of all settings."""
    return list(_FIELDS)


def update(name: str, value: Any) -> None:
    """Set `name` for the whole process, and in the blocks of this thread that do not set it; those
    of other threads take it when they end. Raises AttributeError for an unknown name."""
    _State.value = _intern(dataclasses.replace(_State.value, **changes(name, value)))
    _local.override = _over_the_process(_local.blocks)
    _announce()


def _over_the_process(blocks: dict[str, Any]) -> Config | None:
    return _intern(dataclasses.replace(_State.value, **blocks)) if blocks else None


def changes(name: str, value: Any) -> dict[str, Any]:
    """The fields that setting `name` sets: `transfer_guard` sets every direction's."""
    found = {name: _checked(name, value)}
    if name == "transfer_guard":
        found |= {n: "" for n in _FIELDS if n.startswith("transfer_guard_")}
    return found


@contextlib.contextmanager
def override(**settings: Any) -> Generator[Config, None, None]:
    """Within the block, and in this thread only, the settings are these."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= changes(name, value)
    before, blocks, process = _local.override, _local.blocks, _State.value
    _local.blocks = {**blocks, **found}
    _local.override = _intern(dataclasses.replace(current(), **found))
    _announce()
    try:
        yield _local.override
    finally:
        _local.blocks = blocks
        _local.override = before if process is _State.value else _over_the_process(blocks)


class computing:
    """`with computing(numerics):` operations are computed, recorded and differentiated as these
    settings say. (A class, and free where they are in force: transforms enter it for every
    equation.)"""

    __slots__ = ("numerics", "block")

    def __init__(self, numerics: Numerics) -> None:
        self.numerics = numerics

    def __enter__(self) -> None:
        self.block = None
        if self.numerics is not current().numerics:
            n = self.numerics
            self.block = override(matmul_precision=n.matmul_precision, precise=n.precise)
            self.block.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self.block is not None:
            self.block.__exit__(None, None, None)


def precisely() -> computing:
    """The block in which float32 is divided with one rounding, whatever the settings say: for
    quotients that must be exact where they can be, as that of a number by itself."""
    return computing(numerics_of(current().matmul_precision, True))
