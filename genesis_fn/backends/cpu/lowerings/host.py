"""CPU lowerings of host callbacks and assertions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from genesis_fn.backends.cpu.lower import lowers
from genesis_fn.backends.cpu.storage import host_tensor, host_view
from genesis_fn.core.aval import Aval
from genesis_fn.core.primitive import running
from genesis_fn.transforms.custom.callback import (
    HostFunction,
    debug_callback_p,
    io_callback_p,
    pure_callback_p,
)
from genesis_fn.transforms.debugging.assertions import assert_p, failure


def _host(x: Any, kind: Any) -> np.ndarray:
    """A copy, since the callback may keep it and the program may reuse the memory."""
    return np.array(host_view(x, kind.dtype)) if type(kind) is Aval else np.asarray(x)


@lowers(pure_callback_p, io_callback_p, debug_callback_p)
def _callback(
    avals: Sequence[Any], *, function: HostFunction, out_avals: Sequence[Aval] = (), **_: Any
) -> Callable:
    kinds = list(avals)

    def run(*xs: Any) -> list[torch.Tensor]:
        with running(None):
            outs = function.run([_host(x, k) for x, k in zip(xs, kinds, strict=True)], out_avals)
        return [host_tensor(np.array(y), a.dtype) for y, a in zip(outs, out_avals, strict=True)]

    return run


@lowers(assert_p)
def _assert(avals: Sequence[Any], *, function: HostFunction, line: str, lead: int) -> Callable:
    kinds = list(avals)

    def run(pred: torch.Tensor, *xs: Any) -> list[torch.Tensor]:
        if not bool(pred.all()):
            values = [_host(x, k) for x, k in zip((pred, *xs), kinds, strict=True)]
            found = failure(values, function, line, lead)
            assert found is not None
            raise found
        return []

    return run
