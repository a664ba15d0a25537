"""`genesis_fn.config` and the context managers over single settings, with JAX's names."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from genesis_fn.core import device as devices
from genesis_fn.core.configuration import config
from genesis_fn.core.configuration.transfer_guard import LEVELS
from genesis_fn.core.types.extended import IMPLEMENTATIONS, OTHER_NAMES

Value = TypeVar("Value", contravariant=True)

# JAX's names of settings where they are not ours with the prefix "jax_".
_ALIASES = {
    "default_matmul_precision": "matmul_precision",
    "default_prng_impl": "random_impl",
    "enable_checks": "check_types",
    "debug_key_reuse": "check_keys",
    "platform_name": "default_device",
    "platforms": "default_device",
}
_PRECISIONS = {
    None: "default", "default": "default", "fastest": "default", "bfloat16": "default",
    "tf32": "tf32", "tensorfloat32": "tf32", "high": "tf32x3", "tf32x3": "tf32x3",
    "bfloat16_3x": "tf32x3", "highest": "highest", "float32": "highest",
}  # fmt: skip


def device_of(device: object) -> devices.Device | None:
    """The device that a Device, "cpu", "gpu", "cuda" or "cuda:1" names."""
    if device is None or isinstance(device, devices.Device):
        return device
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        return devices.device({"gpu": "cuda"}.get(kind, kind), int(index or 0))
    raise TypeError(f"expected a device such as cpu() or cuda(0), got {device!r}")


def _ours(name: str) -> str:
    name = name.removeprefix("jax_")
    return _ALIASES.get(name, name)


def _value(name: str, value: Any) -> Any:
    if name == "matmul_precision":
        if value not in _PRECISIONS:
            known = ", ".join(repr(k) for k in _PRECISIONS if k)
            raise ValueError(f"matmul precision {value!r} is not known; there are {known}")
        return _PRECISIONS[value]
    if name.startswith("transfer_guard") and value not in LEVELS:
        raise ValueError(f"{name} is one of {', '.join(LEVELS)}, got {value!r}")
    if name == "numpy_dtype_promotion" and value not in ("standard", "strict"):
        raise ValueError(f'numpy_dtype_promotion is "standard" or "strict", got {value!r}')
    if name == "numpy_rank_promotion" and value not in ("allow", "warn", "raise"):
        raise ValueError(f'numpy_rank_promotion is "allow", "warn" or "raise", got {value!r}')
    if name == "random_impl":
        value = OTHER_NAMES.get(value, value)
        if value not in IMPLEMENTATIONS:
            known = ", ".join(map(repr, IMPLEMENTATIONS))
            raise ValueError(f"there is no random implementation {value!r}; there are {known}")
    return device_of(value) if name == "default_device" else value


class Settings:
    """The settings in force: read them as attributes, set them for the process by `update`.

    JAX's names are accepted with or without `jax_`: `config.update("jax_debug_nans", True)`.
    """

    def update(self, name: str, value: Any) -> None:
        """Set one setting. Raises AttributeError for a name that is not known."""
        name = _ours(name)
        config.update(name, _value(name, value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(config.current(), _ours(name))
        except AttributeError:
            known = ", ".join(config.names())
            raise AttributeError(f"there is no setting {name!r}; there are {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def __dir__(self) -> list[str]:
        return [*config.names(), "update"]

    def __repr__(self) -> str:
        return repr(config.current())


class SettingBlock(contextlib.AbstractContextManager[None], contextlib.ContextDecorator):
    """A block in which a setting has another value; it decorates functions too."""


class SettingContext(Protocol[Value]):
    """Makes blocks in which one setting has another value: `with debug_nans(True):`."""

    def __call__(self, new_val: Value = ...) -> SettingBlock:
        """A block in which the setting is `new_val`."""
        ...


class ValueContext(Protocol[Value]):
    """A `SettingContext` that has no default: `with transfer_guard("log"):`."""

    def __call__(self, new_val: Value) -> SettingBlock:
        """A block in which the setting is `new_val`."""
        ...


def _context(name: str, doc: str, default: Any = None) -> Any:
    setting = _ours(name)

    @contextlib.contextmanager
    def context(new_val: Any = default) -> Generator[None, None, None]:
        with config.override(**{setting: _value(setting, new_val)}):
            yield

    context.__name__ = context.__qualname__ = name
    context.__doc__ = doc
    return context


debug_nans: SettingContext[bool] = _context(
    "debug_nans",
    """Within the block, a NaN result raises NanError.

    Args:
        new_val: whether it does.

    Returns:
        A context manager, which is a decorator too.

    >>> with gf.debug.nans():
    ...     jnp.log(jnp.array(-1.0))
    Traceback (most recent call last):
        ...
    genesis_fn.core.errors.NanError: log produced nan: 1 of 1 elements of f32[]
    ...
    """,
    True,
)
debug_infs: SettingContext[bool] = _context(
    "debug_infs",
    """Within the block, an infinite result raises NanError.

    Args:
        new_val: whether it does.

    Returns:
        A context manager, which is a decorator too.

    >>> with gf.debug.infs():
    ...     jnp.log(jnp.array(0.0))
    Traceback (most recent call last):
        ...
    genesis_fn.core.errors.NanError: log produced inf: 1 of 1 elements of f32[]
    ...
    """,
    True,
)
_disable_jit: SettingContext[bool] = _context("disable_jit", "", True)


def disable_jit(disable: bool = True) -> SettingBlock:
    """Within the block, jit, scan and cond run as Python."""
    return _disable_jit(disable)


log_compiles: SettingContext[bool] = _context(
    "log_compiles", "Within the block, every compilation is logged.", True
)
explain_cache_misses: SettingContext[bool] = _context(
    "explain_cache_misses", "Within the block, retracing warns with its reason (the default).", True
)
enable_checks: SettingContext[bool] = _context(
    "enable_checks", "Within the block, every program is type-checked.", True
)
check_keys: SettingContext[bool] = _context(
    "check_keys",
    """Within the block, using a key twice raises KeyReuseError instead of a warning.

    Args:
        new_val: whether it does.

    Returns:
        A context manager, which is a decorator too.

    >>> with gf.debug.check_keys():
    ...     key = random.key(0)
    ...     random.normal(key) - random.normal(key)
    Traceback (most recent call last):
        ...
    genesis_fn.core.errors.KeyReuseError: a random key was used twice: ...
    ...
    """,
    True,
)
default_matmul_precision: SettingContext[str | None] = _context(
    "default_matmul_precision", "Within the block, float32 products have this precision."
)
deterministic: SettingContext[bool] = _context(
    "deterministic",
    """Within the block, scatters and sums over segments add in one order, or may not.

    Args:
        new_val: whether every run must give the same bits. False has a GPU add floats by atomics,
            in the order in which they arrive: faster, and different in the last bits. Convolutions
            may take another order, too.

    Returns:
        A context manager, which is a decorator too.

    >>> with gf.deterministic(False):
    ...     jnp.zeros(2).at[jnp.array([1, 1])].add(1.5).tolist()
    [0.0, 3.0]
    """,
    True,
)
precise: SettingContext[bool] = _context(
    "precise",
    """Within the block, division, square roots and reciprocals of float32 are rounded correctly.

    On a GPU they are good to 2 units in the last place without, at a tenth of the instructions
    (docs/numerics.md); a CPU always rounds correctly. What is traced within the block keeps it,
    its derivatives too; `jit(f, precise=True)` is the same for one function.

    Args:
        new_val: whether they are.

    Returns:
        A context manager, which is a decorator too.

    >>> with gf.precise():
    ...     third = jnp.float32(1) / 3
    >>> third
    Array(0.33333334, dtype=float32)
    """,
    True,
)
enable_x64: SettingContext[bool] = _context(
    "enable_x64",
    """Within the block, what has no dtype of its own is 64-bit: numbers, `zeros(3)`, samples.

    Outside of it such things are 32-bit, as are NumPy's 64-bit values. 64-bit types that are asked
    for by `dtype=` need no block.

    Args:
        new_val: whether they are.

    Returns:
        A context manager, which is a decorator too.

    >>> with gf.enable_x64():
    ...     jnp.arange(3) / 2
    Array([0. , 0.5, 1. ], dtype=float64)
    """,
    True,
)
numpy_dtype_promotion: SettingContext[str] = _context(
    "numpy_dtype_promotion", 'Within the block, "strict" refuses mixed dtypes.', "strict"
)
numpy_rank_promotion: SettingContext[str] = _context(
    "numpy_rank_promotion", 'Within the block, "raise" refuses broadcasting of ranks.', "raise"
)
default_prng_impl: ValueContext[str] = _context(
    "default_prng_impl",
    "Within the block, new keys are for this generator, 'philox' or 'threefry2x32'.",
)
default_device: SettingContext[devices.Device | str | None] = _context(
    "default_device", "Within the block, new arrays go to this device."
)
transfer_guard: ValueContext[str] = _context(
    "transfer_guard", 'Within the block, "disallow" refuses implicit copies to and from devices.'
)
transfer_guard_host_to_device: ValueContext[str] = _context(
    "transfer_guard_host_to_device", "Within the block, `transfer_guard` for copies to devices."
)
transfer_guard_device_to_device: ValueContext[str] = _context(
    "transfer_guard_device_to_device", "Within the block, `transfer_guard` between devices."
)
transfer_guard_device_to_host: ValueContext[str] = _context(
    "transfer_guard_device_to_host", "Within the block, `transfer_guard` for copies to the host."
)


settings = Settings()

# What the environment says is held to what `update` accepts.
for _name in config.names():
    _given = getattr(config.current(), _name)
    if isinstance(_given, str) and _given:
        config.update(_name, _value(_name, _given))
