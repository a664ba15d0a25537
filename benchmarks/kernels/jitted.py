"""Public functions of the library under jit beside torch's functions, timed in the same way.

A time is that of one CUDA graph: calls on several sets of inputs, together larger than the L2
cache, one after another. torch's graph is captured; the library's is the one of its jitted program,
in which a barrier keeps each call behind the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch_launch import graph_time, rehearsing, replay_time

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.options import without

L2_BYTES = 64 << 20
Tensors = Sequence[torch.Tensor]


def ours(tensors: Any) -> Any:
    """torch tensors, nested in lists, as the library's arrays on the same memory."""
    if isinstance(tensors, torch.Tensor):
        if tensors.dtype == torch.float8_e4m3fn:  # which DLPack may not carry
            raw = gnp.from_dlpack(tensors.view(torch.uint8))
            return lax.bitcast_convert_type(raw, "float8_e4m3fn")
        return gnp.from_dlpack(tensors)
    return [ours(t) for t in tensors]


def theirs(arrays: Any) -> list[torch.Tensor]:
    """The library's arrays, in the order of their tree, as torch tensors."""
    return [torch.from_dlpack(x) for x in gf.tree.leaves(arrays)]


def results(function: Callable, inputs: Tensors) -> list[torch.Tensor]:
    """What the jitted function returns, once."""
    found = theirs(gf.jit(function)(*ours(inputs)))
    gf.cuda.synchronize()
    return found


def in_turn(function: Callable) -> Callable:
    """The function on each of several sets of inputs, one set after the other. Its results take the
    memory of `held`: small ones would else be copied, which torch's graphs leave to the caller.
    """

    def program(sets: Sequence[Sequence[Any]], held: Any) -> list[Any]:
        outs: list[Any] = []
        for xs in sets:
            if outs:
                xs, outs[-1] = lax.optimization_barrier((xs, outs[-1]))
            outs.append(function(*xs))
        return outs

    return program


def our_time(function: Callable, sets: Sequence[Tensors]) -> float:
    """Seconds of one call of the jitted function."""
    return array_time(function, ours(sets))


def array_time(function: Callable, arrays: Sequence[Sequence[Any]]) -> float:
    """`our_time` on sets of the library's own arrays, in trees."""
    program = gf.jit(in_turn(function), donate_argnums=1)
    kinds = gf.eval_shape(in_turn(function), arrays, None)
    held = gf.tree.map(lambda kind: gnp.zeros(kind.shape, kind.dtype), kinds)

    def run() -> None:
        nonlocal held
        held = program(arrays, held)

    with without("horizontal"):  # which would do alike sets in one launch
        run()
    gf.cuda.synchronize()
    if rehearsing():
        return 1.0
    stream = torch.cuda.ExternalStream(gf.cuda.current_stream().handle)
    return replay_time(run, stream) / len(arrays)


def their_time(function: Callable, sets: Sequence[Tensors]) -> float:
    """Seconds of one call of a torch function."""
    return graph_time([lambda xs=xs: function(*xs) for xs in sets])


def sets_of(inputs: Callable[[], Tensors], most: int = 40) -> list[Tensors]:
    """As many sets of inputs as the L2 cache cannot hold, one in a rehearsal."""
    sets = [inputs()]
    size = sum(t.nbytes for t in _flat(sets[0]))
    while not rehearsing() and len(sets) < most and len(sets) * size < 2 * L2_BYTES:
        sets.append(inputs())
    return sets


def _flat(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [x for t in tensors for x in _flat(t)]


def difference(got: Tensors, want: Tensors) -> float:
    """The largest |got - want| / max |want| over the outputs; NaN counts as infinite."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} differ")
        top, most = 0.0, 1e-30
        for x, y in zip(a.reshape(-1).split(1 << 28), b.reshape(-1).split(1 << 28), strict=True):
            x, y = x.double(), y.double()
            top = max(top, (x - y).abs().max().item())
            most = max(most, y.abs().max().item())
        worst = max(worst, float("inf") if top != top else top / most)
    return worst


def free() -> None:
    """Give cached memory back, so that big cases do not meet."""
    torch.cuda.empty_cache()
    gf.cuda.empty_cache()


__all__ = [
    "Tensors", "array_time", "difference", "free", "our_time", "ours", "results", "sets_of",
    "their_time",
]  # fmt: skip
