"""The library under JAX's names: `import genesis_fn.as_jax` before anything imports `jax`.

From then on `import jax`, `jax.numpy`, `jax.lax`, ... in this process give the library, so that
programs and libraries written for JAX (optax, dm-haiku, numpyro, ...) run on it unchanged:

    import genesis_fn.as_jax
    import haiku as hk

`python -m genesis_fn.as_jax script.py` does the same for a whole program. docs/as-jax.md lists
what runs, and what differs. Settings are JAX's: keys are of threefry2x32, so that samplers draw
JAX's numbers; a key that is used twice and a function that is traced again give no warnings.
"""

from __future__ import annotations

import sys as _sys
import warnings as _warnings

from genesis_fn.as_jax.finder import Finder as _Finder, PeerModule as _PeerModule
from genesis_fn.as_jax.placement import types_have_shardings as _types_have_shardings
from genesis_fn.core.configuration import config as _config, environment as _environment
from genesis_fn.transforms.keys.key_reuse import KeyReuseWarning as _KeyReuseWarning


def _install() -> None:
    """Put the finder before all others, once."""
    if any(isinstance(f, _Finder) for f in _sys.meta_path):
        return
    real = _sys.modules.get("jax")
    if real is not None and not isinstance(real, _PeerModule):
        version = getattr(real, "__version__", "")
        raise ImportError(
            f"jax {version} is imported already in this process, so that genesis_fn.as_jax cannot "
            "take its name\n  import genesis_fn.as_jax first of all, or run the program by "
            "`python -m genesis_fn.as_jax script.py`"
        )
    _sys.meta_path.insert(0, _Finder())
    _types_have_shardings()
    _config.update("random_impl", "threefry2x32")
    _config.update("explain_cache_misses", False)
    _warnings.filterwarnings("ignore", category=_KeyReuseWarning)
    if _environment.text("JAX_ENABLE_X64"):
        wide = _config.flag("JAX_ENABLE_X64", _environment.text("JAX_ENABLE_X64"))
        _config.update("enable_x64", wide)


_install()
