"""`bench`: the time of a function once it is compiled and warm, waiting for its results."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

from genesis_fn.core import device as devices, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.transforms.jitting import JitFunction, jit
from genesis_fn.transforms.staging.api_util import name_of
from genesis_fn.transforms.staging.cost_analysis import cost
from genesis_fn.transforms.staging.device_placement import block_until_ready


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Seconds per call, and what the program does in them."""

    name: str
    device: str
    compile: float
    median: float
    fastest: float
    slowest: float
    calls: int
    flops: float
    bytes: float

    @property
    def flop_rate(self) -> float:
        """Floating-point operations per second."""
        return self.flops / self.median

    @property
    def byte_rate(self) -> float:
        """Bytes per second that at least were moved: inputs and outputs once."""
        return self.bytes / self.median

    def __str__(self) -> str:
        return (
            f"{self.name} on {self.device}: {_time(self.median)} "
            f"({_time(self.fastest)} .. {_time(self.slowest)}, {self.calls} calls), "
            f"{self.flop_rate / 1e9:.3g} GFLOP/s, {self.byte_rate / 1e9:.3g} GB/s, "
            f"first call {_time(self.compile)}"
        )


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bench(
    f: Callable[..., Any], *args: Any, min_time: float = 0.2, repeats: int = 5, **kwargs: Any
) -> Benchmark:
    """How long `f(*args, **kwargs)` takes: compiled, warmed up, and waited for.

    The median of `repeats` or more rounds that together last `min_time` seconds at least; a round
    is as many calls as 1 % of that allows. `f` is jitted unless it is; donated arguments are
    refused, since they could not be used again.
    """
    traced = f if isinstance(f, JitFunction) else jit(f)
    if traced.spec.donated:
        raise ValueError(f"bench: {name_of(f)} donates its arguments; pass a version that does not")
    start = time.perf_counter()
    out = block_until_ready(traced(*args, **kwargs))
    first = time.perf_counter() - start
    start = time.perf_counter()
    block_until_ready(traced(*args, **kwargs))
    once = max(time.perf_counter() - start, 1e-7)
    inner = max(1, int(min_time / 100 / once))
    rounds: list[float] = []
    while len(rounds) < repeats or sum(rounds) * inner < min_time:
        start = time.perf_counter()
        for _ in range(inner):
            out = traced(*args, **kwargs)
        block_until_ready(out)
        rounds.append((time.perf_counter() - start) / inner)
    found = cost(traced.trace(*args, **kwargs).jaxpr)
    place = next(
        (x.device for x in tree.leaves(out) if type(x) is ArrayImpl), devices.default_device()
    )
    return Benchmark(
        name_of(f),
        str(place),
        first,
        statistics.median(rounds),
        min(rounds),
        max(rounds),
        inner * len(rounds),
        found["flops"],
        found["bytes accessed"],
    )
