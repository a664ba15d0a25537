"""How primitives and fused functions run on a GPU: as plans of kernel launches.

`lowers(prim)` registers what makes the plan of a primitive from a `Call`; `fused_kernel(name)` that
of a fused function. A plan is a `genesis_fn.kernels.Plan`. Triton is imported when a name is first
used.
"""

import importlib as _importlib
import typing as _typing
from typing import Any as _Any

if _typing.TYPE_CHECKING:
    from genesis_fn.backends.cuda.lowerings.call import Call as Call, lowers as lowers
    from genesis_fn.backends.cuda.lowerings.fused import fused_kernel as fused_kernel

_HOME = {
    "Call": "genesis_fn.backends.cuda.lowerings.call",
    "lowers": "genesis_fn.backends.cuda.lowerings.call",
    "fused_kernel": "genesis_fn.backends.cuda.lowerings.fused",
}


if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves

    def __getattr__(name: str) -> _Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
