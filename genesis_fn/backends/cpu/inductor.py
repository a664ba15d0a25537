"""`jit(..., compiler="inductor")`: the program as an FX graph, compiled by TorchInductor.

An FX graph cannot raise, so indices are clamped in the graph and checked after the call; checks
inside loops and branches are left out. Loops are unrolled when the graph is traced.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch

from genesis_fn.backends.cpu.compile import TensorProgram, function_of
from genesis_fn.backends.cpu.lowerings.collectives import MEETINGS
from genesis_fn.backends.cpu.lowerings.indexing import starts_for
from genesis_fn.backends.cpu.storage import TORCH_DTYPE
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval, sig
from genesis_fn.core.backend.executable import Executable
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import line_of
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, e_jaxprs
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.indexing.scatter import segment_sum, segment_sum_p
from genesis_fn.primitives.shape import slice_in_dim
from genesis_fn.transforms.batching.predicated_checks import unchecked
from genesis_fn.transforms.staging.call import jit_p
from genesis_fn.transforms.staging.cost_analysis import memory
from genesis_fn.transforms.staging.stage_trace import stage_closed


def _has_kernel(e: Eqn) -> bool:
    """Whether a call stays opaque because torch has a kernel for it. Inductor fuses the rest."""
    found = function_of(e)
    return found is not None and found.opaque


class InductorExecutable(Executable):
    """A program compiled by TorchInductor. It never overwrites inputs."""

    __slots__ = ("run", "sigs", "jaxpr")

    def __init__(self, jaxpr: Jaxpr, device: Device) -> None:
        self.jaxpr = jaxpr
        self.sigs = [sig(a, device) for a in jaxpr.out_avals]
        self.run = _compile(jaxpr)

    def __call__(self, *args: ArrayImpl) -> list[ArrayImpl]:
        outs = self.run([a.data for a in args])
        return [ArrayImpl(y, s) for y, s in zip(outs, self.sigs)]

    def explained(self, error: Exception) -> Exception:
        """`error` from `run`, with the user's line where one is known."""
        return errors.at_line(error, line_of(error))

    def as_text(self) -> str:
        """The program; TorchInductor's generated code is not kept."""
        return str(self.jaxpr)

    def memory_analysis(self) -> dict[str, int]:
        """What the program needs, by the order of its equations."""
        return memory(self.jaxpr)


def _compile(jaxpr: Jaxpr) -> Callable[..., list[torch.Tensor]]:
    name = jaxpr.name or "the program"
    if not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        raise errors.BackendError(
            'compiler="inductor" needs a C++ compiler, and none is on the PATH; install g++ or '
            "clang++, or leave compiler out"
        )
    from torch._inductor import compile as compile_graph
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    simple = _with_static_segment_sums(simplify_jaxpr(jaxpr, _has_kernel))
    if _meets(simple):
        raise errors.BackendError(
            f"TorchInductor cannot compile {name}: processes meet in it\n"
            "  leave compiler out: the CPU backend runs every program"
        )
    if simple.effect:
        raise errors.BackendError(
            f"TorchInductor cannot compile {name}: it has callbacks or assertions\n"
            "  leave compiler out: the CPU backend runs every program"
        )
    count = len(simple.outs)
    checks = [c for c in map(_check, simple.eqns) if c is not None]
    outs = [*simple.outs, *(v for v, _ in checks)]
    simple = Jaxpr(simple.invars, simple.eqns, outs, simple.labels, simple.name)
    program = TensorProgram(unchecked(simple), reuse=False, fold=True)
    examples = [torch.zeros(a.shape, dtype=TORCH_DTYPE[a.dtype]) for a in jaxpr.in_avals]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            graph = make_fx(program.run)(*[mode.from_tensor(x) for x in examples])
        compiled: Any = compile_graph(graph, examples)  # pyright: ignore[reportArgumentType]
    except Exception as error:
        line = line_of(error)
        at = f"\n  at {line.describe()}" if line is not None else ""
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise errors.BackendError(
            f"TorchInductor cannot compile {name}: {said}{at}\n"
            "  leave compiler out: the CPU backend runs every program"
        ) from error

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        # The generated code assumes the strides of the examples it was compiled with.
        found = list(compiled(*[x if x.is_contiguous() else x.contiguous() for x in tensors]))
        for indices, (_, check) in zip(found[count:], checks):
            check(indices)
        return found[:count]

    return run


def _meets(jaxpr: Jaxpr) -> bool:
    return any(e.prim in MEETINGS or any(map(_meets, e_jaxprs(e))) for e in jaxpr.eqns)


def _with_static_segment_sums(jaxpr: Jaxpr) -> Jaxpr:
    """The program with segment sums of static shape: dropped rows are added to a spare segment that
    is sliced off, instead of being selected by a mask."""
    eqns, changed = [], False
    for e in jaxpr.eqns:
        if e.prim is segment_sum_p and e.params["mode"] not in (
            "check",
            "clip",
            "promise_in_bounds",
        ):
            program = _with_spare_segment(*[i.aval for i in e.ins], **e.params)
            e = e.replace(prim=jit_p, params={"jaxpr": program})
            changed = True
        eqns.append(e)
    if not changed:
        return jaxpr
    return simplify_jaxpr(
        Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name), _has_kernel
    )


def _with_spare_segment(data: Aval, ids: Aval, *, num_segments: int, **_: Any) -> Jaxpr:
    def f(x: Any, ids: Any) -> list[Any]:
        outside = ops.bitwise_or(ops.lt(ids, 0), ops.ge(ids, num_segments))
        ids = ops.select(outside, num_segments, ids)
        sums = segment_sum(x, ids, num_segments + 1, mode="promise_in_bounds")
        return [slice_in_dim(sums, 0, num_segments)]

    return stage_closed(f, [data, ids], "segment_sum")


def _check(e: Eqn) -> tuple[Var, Callable[[torch.Tensor], Any]] | None:
    """(the indices of a checked equation, a function that raises for those out of range)."""
    if e.params.get("mode") != "check" or type(e.ins[1]) is not Var:
        return None
    find = starts_for(e.prim, [i.aval for i in e.ins], e.params)

    def check(indices: torch.Tensor) -> None:
        try:
            find(indices)
        except errors.IndexOutOfRange as error:
            raise errors.at_line(error, e.where) from None

    return e.ins[1], check
