"""How primitives and fused functions run on the CPU: as torch functions.

`lowers(prim)` registers what builds the torch function of a primitive from its operands' avals and
its parameters; `computes(prim)` registers the function itself; `computes_fused(name)` that of a
fused function.
"""

import importlib as _importlib
import typing as _typing
from typing import Any as _Any

if _typing.TYPE_CHECKING:
    from genesis_fn.backends.cpu.lower import (
        computes as computes,
        computes_fused as computes_fused,
        lowers as lowers,
    )

_HOME = {
    "computes": "genesis_fn.backends.cpu.lower",
    "computes_fused": "genesis_fn.backends.cpu.lower",
    "lowers": "genesis_fn.backends.cpu.lower",
}


if not _typing.TYPE_CHECKING:  # checkers report unknown names themselves

    def __getattr__(name: str) -> _Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
