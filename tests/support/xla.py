"""How XLA compiles JAX's programs in the tests.

They are thousands, and run once or twice: without XLA's optimisations 146 s of tests took 80.
Where NaN and the signs of zeros are compared, `as_shipped` has the code that users of JAX run.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxlib

# (in the tests, as shipped) of each flag.
FLAGS: dict[str, tuple[Any, Any]] = {
    "xla_backend_optimization_level": (0, 3),
    "xla_llvm_disable_expensive_passes": (True, False),
    "xla_cpu_use_fusion_emitters": (False, True),
    "xla_cpu_parallel_codegen_split_count": (1, 32),
}


def compile_quickly() -> None:
    """Set the flags, unless the environment sets one. JAX must not be imported yet."""
    given, library = os.environ.get("XLA_FLAGS", ""), Path(jaxlib.__file__)
    library = library.with_name("libjax_common.so")
    if any(name in given for name in FLAGS) or not library.exists():
        return
    # XLA ends the process at a flag that its version does not know. Fields of its options keep the
    # names of flags that are gone; a flag's own name is a string of C.
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        known = [name for name in FLAGS if text.find(b"\0" + name.encode() + b"\0") >= 0]
    chosen = [f"--{name}={str(FLAGS[name][0]).lower()}" for name in known]
    os.environ["XLA_FLAGS"] = " ".join([given, *chosen]).strip()


def as_shipped(f: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's `f`, compiled as for its users. Not within other transforms of JAX."""
    import jax

    given = os.environ.get("XLA_FLAGS", "")
    options = {name: shipped for name, (_, shipped) in FLAGS.items() if name in given}
    return jax.jit(f, compiler_options=options)
