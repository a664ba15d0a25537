"""Environment variables: what each means, and the one place that reads them.

`docs/settings.md` is written from this table and from the settings of `config.Config`, which
`GENESIS_<NAME>` gives their first value.
"""

from __future__ import annotations

import os

VARIABLES = {
    "GENESIS_DEVICE": (
        "Default device: `cpu`, `cuda`, `cuda:1`. Unset: a usable GPU, else the CPU."
    ),
    "GENESIS_CPU_DEVICES": (
        "How many devices the CPU shows in one process, 1 by default: for programs over meshes"
        " without GPUs."
    ),
    "GENESIS_CACHE_DIR": (
        "Folder of compiled kernels. Unset: `genesis_fn` in `XDG_CACHE_HOME`, else in `~/.cache`."
    ),
    "GENESIS_CACHE_BYTES": (
        "Size that compiled kernels may reach together, 4294967296 by default; those not used for"
        " longest are removed."
    ),
    "GENESIS_COMPILE_WORKERS": (
        "Processes that compile kernels: by default one for each core, up to 16. With 0 the process"
        " compiles by itself, for where many such processes share the cores."
    ),
    "GENESIS_COMPILER_WITHOUT": (
        "Compiler passes that are switched off, separated by commas: `in_place,epilogues`. The"
        " passes are those of `compiler/options.py`."
    ),
    "GENESIS_TRACEBACK": (
        "`full` keeps the library's own frames in tracebacks, and has the commands show those of"
        " their defects. Unset: they end in the user's line; a command's error is one line."
    ),
    "GENESIS_CHECK": "`1` checks every program after every transform, as `check_types` does.",
    "JAX_ENABLE_X64": (
        "`1` has programs under `genesis_fn.as_jax` start with the setting `enable_x64`, as JAX's."
    ),
    "GENESIS_CUDA_DRIVER": (
        "`interpret` runs the CUDA backend on host memory through Triton's interpreter (with"
        " `TRITON_INTERPRET=1`). Unset, or `cuda`: the GPU."
    ),
    "GENESIS_INTERPRET_DEVICES": "How many devices the interpreting driver shows, 1 by default.",
}


def text(name: str) -> str:
    """Return the text of a variable of the table, empty where it is not set."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is no environment variable of the library: add it to VARIABLES")
    return os.environ.get(name, "")
