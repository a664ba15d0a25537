"""Where the time goes: per equation with the user's lines, or a trace file of the whole process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from genesis_fn.core.array import Array
from genesis_fn.core.jaxpr import Var
from genesis_fn.core.primitive import bind, running
from genesis_fn.transforms.flat import name_of
from genesis_fn.transforms.jit import JitFunction, jit
from genesis_fn.transforms.stage import inlined


@dataclasses.dataclass(frozen=True)
class Line:
    """The equations of one primitive on one line of the user's."""

    primitive: str
    where: str
    source: str
    calls: int
    seconds: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """A table of lines, the slowest first; `result` is what the function returned."""

    name: str
    lines: tuple[Line, ...]
    seconds: float
    result: Any

    def __str__(self) -> str:
        rows = [f"{self.name}: {self.seconds * 1e3:.3f} ms, equation by equation"]
        rows.append(f"{'ms':>10}  {'%':>5}  {'calls':>5}  primitive             line")
        for x in self.lines[:30]:
            share = 100 * x.seconds / (self.seconds or 1)
            rows.append(
                f"{x.seconds * 1e3:10.3f}  {share:5.1f}  {x.calls:5d}  {x.primitive:<20}  "
                f"{x.where}  {x.source}"
            )
        if len(self.lines) > 30:
            rows.append(f"and {len(self.lines) - 30} more lines")
        return "\n".join(rows)


def profile(fun: Callable, *, repeats: int = 3) -> Callable[..., Profile]:
    """A function from the arguments of `fun` to a Profile: the program run equation by equation.

    Each equation's time is the least of `repeats` runs, waited for. Loops and branches are one
    equation each. Compiled programs fuse equations and are faster than the sum.
    """
    traced = fun if isinstance(fun, JitFunction) else jit(fun)

    @functools.wraps(fun)
    def profiled(*args: Any, **kwargs: Any) -> Profile:
        found = traced.trace(*args, **kwargs)
        program, leaves = found.program, traced.arrays(args, kwargs)
        jaxpr = inlined(found.jaxpr)
        env: dict[Var, Any] = dict(zip(jaxpr.invars, [*program.captured, *leaves], strict=True))
        table: dict[tuple[str, str, str], list] = {}
        for e in jaxpr.eqns:
            xs = [env[i] if type(i) is Var else i for i in e.ins]
            best, outs = float("inf"), []
            for _ in range(1 if e.prim.effect else repeats):
                with running(None):
                    start = time.perf_counter()
                    made = bind(e.prim, *xs, **e.params)
                    outs = list(made) if e.prim.multi else [made]
                    for o in outs:
                        o.block_until_ready()
                    best = min(best, time.perf_counter() - start)
            env.update(zip(e.outs, outs))
            line = (e.prim.name, str(e.where or "?"), e.where.text() if e.where else "")
            entry = table.setdefault(line, [0, 0.0, 0])
            entry[0] += 1
            entry[1] += best
            entry[2] += sum(o.nbytes for o in outs)
        lines = [Line(*key, *entry) for key, entry in table.items()]
        lines.sort(key=lambda x: -x.seconds)
        total = sum(x.seconds for x in lines)
        result = program.build([env[o] for o in jaxpr.outs])
        return Profile(name_of(fun), tuple(lines), total, result)

    return profiled


# ---- traces ----

_running: list[tuple[Any, str]] = []


def start_trace(log_dir: str | os.PathLike[str], **_: Any) -> None:
    """Record what the process does, until `stop_trace`, into `log_dir/trace.json`.

    The file opens in Perfetto or chrome://tracing. It holds torch's operators on the CPU and the
    names given by `TraceAnnotation`.
    """
    import torch

    if _running:
        raise RuntimeError("a trace is being recorded; call stop_trace first")
    recorder = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    recorder.start()
    _running.append((recorder, os.fspath(log_dir)))


def stop_trace() -> None:
    """Stop recording and write the file."""
    if not _running:
        raise RuntimeError("no trace is being recorded; call start_trace first")
    recorder, folder = _running.pop()
    recorder.stop()
    os.makedirs(folder, exist_ok=True)
    recorder.export_chrome_trace(os.path.join(folder, "trace.json"))


@contextlib.contextmanager
def trace(log_dir: str | os.PathLike[str], **options: Any) -> Iterator[None]:
    """Record what runs inside into `log_dir/trace.json`."""
    start_trace(log_dir, **options)
    try:
        yield
    finally:
        stop_trace()


class TraceAnnotation(contextlib.ContextDecorator):
    """`with TraceAnnotation("load"):` the time inside has this name in traces."""

    def __init__(self, name: str, **metadata: Any) -> None:
        self.name = name + "".join(f" {k}={v}" for k, v in metadata.items())
        self.open: list[Any] = []

    def __enter__(self) -> TraceAnnotation:
        import torch

        self.open.append(torch.profiler.record_function(self.name))
        self.open[-1].__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.open.pop().__exit__(*exc)


class StepTraceAnnotation(TraceAnnotation):
    """A TraceAnnotation of one training step: `StepTraceAnnotation("train", step_num=i)`."""


def annotate_function(func: Callable, name: str | None = None, **metadata: Any) -> Callable:
    """`func`, in a TraceAnnotation of its name."""

    @functools.wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(name or name_of(func), **metadata):
            return func(*args, **kwargs)

    return annotated


def device_memory_profile() -> dict[str, int]:
    """Bytes held by live arrays, by device."""
    from genesis_fn.transforms.placement import live_arrays

    held: dict[str, int] = {}
    for x in live_arrays():
        assert type(x) is Array
        held[str(x.device)] = held.get(str(x.device), 0) + x.nbytes
    return held


__all__ = [
    "Line", "Profile", "StepTraceAnnotation", "TraceAnnotation", "annotate_function",
    "device_memory_profile", "profile", "start_trace", "stop_trace", "trace",
]  # fmt: skip
