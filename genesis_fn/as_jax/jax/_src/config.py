"""`jax.config`: JAX's settings over the library's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from genesis_fn.core.configuration.settings import settings

# Settings of what the library does not have (XLA, its caches, its clusters): kept, without effect.
WITHOUT_EFFECT: dict[str, Any] = {
    "jax_array_garbage_collection_guard": "allow", "jax_check_tracer_leaks": False,
    "jax_compilation_cache_dir": None, "jax_compilation_cache_max_size": -1,
    "jax_cpu_collectives_implementation": "gloo", "jax_default_dtype_bits": "32",
    "jax_dump_ir_to": None, "jax_dynamic_shapes": False, "jax_enable_compilation_cache": True,
    "jax_enable_custom_prng": False, "jax_enable_key_reuse_checks": False,
    "jax_enable_memories": False, "jax_exec_time_optimization_effort": 0.0,
    "jax_include_full_tracebacks_in_locations": True, "jax_legacy_prng_key": "allow",
    "jax_num_cpu_devices": -1, "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_persistent_cache_min_entry_size_bytes": 0, "jax_pprint_use_color": True,
    "jax_softmax_custom_jvp": True, "jax_traceback_filtering": "auto",
    "jax_traceback_in_locations_limit": 10, "jax_use_shardy_partitioner": True,
    "jax_cpu_enable_async_dispatch": True, "jax_debug_log_modules": "",
    "jax_allow_f16_reductions": False, "jax_no_execution": False, "jax_thread_guard": False,
    "jax_random_seed_offset": 0, "jax_remat_opt_barrier": True, "jax_vjp3": True,
}  # fmt: skip
# Settings that have one value here.
FIXED = {
    "jax_threefry_partitionable": (True, "threefry2x32 is partitionable here, as in JAX by default")
}


class Config:
    """The settings in force, by JAX's names: `config.update("jax_debug_nans", True)`."""

    def update(self, name: str, value: Any) -> None:
        """Set one setting. Raises AttributeError for a name that is not known, ValueError for a
        value that the setting cannot have here."""
        full = name if name.startswith("jax_") else f"jax_{name}"
        if full in FIXED:
            has, why = FIXED[full]
            if bool(value) != has:
                raise ValueError(f"{full} is {has} under genesis_fn.as_jax: {why}")
        elif full in WITHOUT_EFFECT:
            WITHOUT_EFFECT[full] = value
        else:
            settings.update(name, bool(value) if full == "jax_enable_x64" else value)

    @property
    def x64_enabled(self) -> bool:
        """JAX's other name of `jax_enable_x64`."""
        return self.jax_enable_x64

    def read(self, name: str) -> Any:
        """The value of a setting."""
        return getattr(self, name)

    @property
    def values(self) -> dict[str, Any]:
        """Every setting, by its name."""
        own = {f"jax_{n}": getattr(settings, n) for n in dir(settings) if n != "update"}
        return {**own, **WITHOUT_EFFECT, **{n: has for n, (has, _) in FIXED.items()}}

    def parse_flags_with_absl(self) -> None:
        """Nothing: there are no flags of a command line."""

    def config_with_absl(self) -> None:
        """Nothing: there are no flags of a command line."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = name if name.startswith("jax_") else f"jax_{name}"
        if full in FIXED:
            return FIXED[full][0]
        if full in WITHOUT_EFFECT:
            return WITHOUT_EFFECT[full]
        return getattr(settings, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def __dir__(self) -> Sequence[str]:
        return [*dir(settings), *FIXED, *WITHOUT_EFFECT]


config = Config()


def context(name: str) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """Makes blocks in which a setting of JAX's alone has another value."""

    @contextlib.contextmanager
    def block(new_val: Any = True) -> Iterator[None]:
        before = getattr(config, name)
        config.update(name, new_val)
        try:
            yield
        finally:
            config.update(name, before)

    block.__name__ = block.__qualname__ = name.removeprefix("jax_")
    return block
