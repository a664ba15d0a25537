"""The torch functions of primitives, one module for each family, as in `backends/cuda/lowerings`.

Elementwise primitives whose function is an expression have it in their definition. Importing this
package registers all others (see `backends/cpu/lower.py`).
"""

from genesis_fn.backends.cpu.lowerings import (
    call as call,
    collectives as collectives,
    contraction as contraction,
    conv as conv,
    elementwise as elementwise,
    fft as fft,
    fused as fused,
    host as host,
    indexing as indexing,
    linalg as linalg,
    ragged as ragged,
    random as random,
    reductions as reductions,
    scans as scans,
    shape as shape,
    sorting as sorting,
    window as window,
)
