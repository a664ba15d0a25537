"""Triton kernels made from generated source text."""

from __future__ import annotations

import functools
import hashlib
import linecache
import re
from typing import Any

import triton
import triton.language as tl

from genesis_fn.kernels.language import device_functions, language

_NAMESPACE = (
    {"tl": tl}
    | {name: getattr(language, name) for name in language.__all__}
    | {name: getattr(device_functions, name) for name in device_functions.__all__}
)

_DEFINED = re.compile(r"^def (\w+)", re.MULTILINE)


@functools.cache
def kernel_from_source(source: str) -> Any:
    """The `triton.jit` function that `source` defines: its last `def`, which may call those before.

    The text may use `tl` and the functions of `language` and `device_functions`, and import others
    of the library. Equal texts give one function, so it is compiled once.
    """
    names = _DEFINED.findall(source)
    name = names[-1]
    file = f"<kernel {name} {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    # Triton reads a kernel's text through inspect, which looks in this cache.
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace: dict[str, Any] = dict(_NAMESPACE, __name__=__name__)
    exec(compile(source, file, "exec"), namespace)
    for defined in names:
        namespace[defined] = triton.jit(namespace[defined])
    return namespace[name]
