"""Profiles: the time of each kernel or equation, by the user's lines; traces of the process."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import linecache
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.configuration import config
from genesis_fn.core.device import default_device
from genesis_fn.core.jaxpr import Var
from genesis_fn.core.primitive import bind, running
from genesis_fn.transforms.jitting import JitFunction, jit
from genesis_fn.transforms.staging.api_util import name_of
from genesis_fn.transforms.staging.stage_trace import inlined


@dataclasses.dataclass(frozen=True)
class Line:
    """The equations of one primitive on one line of the user's, or one step of a compiled program
    with the lines that it computes. `roofline` is the least time for its bytes and operations on
    the device, 0 where that is not known."""

    primitive: str
    where: str
    source: str
    calls: int
    seconds: float
    bytes: int
    flops: int = 0
    roofline: float = 0.0


@dataclasses.dataclass(frozen=True)
class Span:
    """One kernel or equation on the time line, in seconds from the start of the program."""

    name: str
    start: float
    seconds: float
    line: Line


@dataclasses.dataclass(frozen=True)
class Profile:
    """A table of lines, the slowest first, and the time line; `result` is what the function
    returned. `seconds` is the sum of the lines, `program_seconds` the time of the whole program run
    at once, where that was measured."""

    name: str
    lines: tuple[Line, ...]
    spans: tuple[Span, ...]
    seconds: float
    result: Any
    program_seconds: float | None = None

    def __str__(self) -> str:
        whole = self.program_seconds
        each = "equation by equation"
        if whole is not None:
            each = f"kernel by kernel; {whole * 1e3:.3f} ms as one program"
        rows = [f"{self.name}: {self.seconds * 1e3:.3f} ms, {each}"]
        rows.append(
            f"{'ms':>10}  {'%':>5}  {'calls':>5}  {'MB':>9}  {'GFLOP':>9}  {'roof %':>6}  "
            f"{'step':<28}  line"
        )
        for x in self.lines[:30]:
            share = 100 * x.seconds / (self.seconds or 1)
            roof = f"{100 * x.roofline / x.seconds:6.1f}" if x.roofline and x.seconds else " " * 6
            rows.append(
                f"{x.seconds * 1e3:10.4f}  {share:5.1f}  {x.calls:5d}  {x.bytes / 1e6:9.2f}  "
                f"{x.flops / 1e9:9.3f}  {roof}  {x.primitive[:28]:<28}  {x.where}  {x.source}"
            )
        if len(self.lines) > 30:
            rows.append(f"and {len(self.lines) - 30} more lines")
        return "\n".join(rows)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the time line as a trace file, which opens in Perfetto or chrome://tracing."""
        events = [
            {
                "name": s.name,
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": s.start * 1e6,
                "dur": s.seconds * 1e6,
                "args": {
                    "step": s.line.primitive,
                    "line": s.line.where,
                    "source": s.line.source,
                    "bytes": s.line.bytes,
                    "flops": s.line.flops,
                    "roofline_us": s.line.roofline * 1e6,
                },
            }
            for s in self.spans
        ]
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, f)

    def save_png(self, path: str | os.PathLike[str], most: int = 24) -> None:
        """Draw the slowest lines as bars, each with the least time that the device needs for it.
        Needs matplotlib."""
        from matplotlib.figure import Figure

        shown = self.lines[:most][::-1]
        figure = Figure(figsize=(11, 1.2 + 0.32 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        positions = range(len(shown))
        axes.barh(positions, [x.seconds * 1e6 for x in shown], color="#4878a8", label="measured")
        if any(x.roofline for x in shown):
            least = [x.roofline * 1e6 for x in shown]
            axes.barh(positions, least, height=0.35, color="#e8a33d", label="roofline")
            axes.legend()
        axes.set_yticks(positions, [f"{x.primitive[:28]}  {x.where[-36:]}" for x in shown])
        axes.tick_params(axis="y", labelsize=7)
        axes.set_xlabel("microseconds")
        axes.set_title(f"{self.name}: {self.seconds * 1e3:.3f} ms")
        figure.savefig(path, dpi=120)


def profile(fun: Callable[..., Any], *, repeats: int = 3) -> Callable[..., Profile]:
    """Time a function's kernels or equations.

    On a GPU the compiled program runs kernel by kernel, with events between the kernels; a row is
    one step (a fused group, a matrix product ...) with its bytes, operations and share of the
    roofline. On a CPU the program runs equation by equation, and compiled programs, which fuse
    equations, are faster than the sum. Loops and branches are one row each.

    Args:
        fun: function of pytrees of arrays, compiled or not.
        repeats: positive number of runs; a time is the least of them.

    Returns:
        A function from the arguments of `fun` to a `Profile`.

    >>> profile = gf.profiler.profile(lambda x: jnp.sin(x).sum())(jnp.ones(1000))
    >>> sorted(line.primitive for line in profile.lines)
    ['reduce_sum', 'sin']
    >>> profile.result.shape, profile.seconds > 0
    ((), True)
    """
    traced = fun if isinstance(fun, JitFunction) else jit(fun)

    @functools.wraps(fun)
    def profiled(*args: Any, **kwargs: Any) -> Profile:
        found = traced.trace(*args, **kwargs)
        arrays = [*found.program.captured, *traced.spec.bind(args, kwargs).arrays()]
        device = arrays[0].device if arrays else default_device()
        executable = found.executable(device)
        measured = executable.measure(arrays, repeats)
        if measured is not None:
            return _measured(name_of(fun), found.program, *measured)
        return _by_equation(name_of(fun), found, arrays, repeats)

    return profiled


def _measured(name: str, program: Any, outs: list[ArrayImpl], times: Any) -> Profile:
    """A profile of a program whose device times its own kernels."""
    lines: dict[tuple[str, str], Line] = {}
    spans = []
    for step in times.steps:
        least = times.target.seconds(step.traffic, step.operations)
        where = "; ".join(step.lines[:2])
        line = Line(
            step.name,
            where,
            _source(step.lines),
            len(step.kernels),
            step.seconds,
            step.traffic,
            step.operations,
            least,
        )
        spans += [Span(k.name, k.start, k.seconds, line) for k in step.kernels]
        key = (step.name, where)
        lines[key] = _sum(lines[key], line) if key in lines else line
    rows = sorted(lines.values(), key=lambda x: -x.seconds)
    total = sum(x.seconds for x in rows)
    return Profile(name, tuple(rows), tuple(spans), total, program.output(outs), times.seconds)


def _sum(a: Line, b: Line) -> Line:
    return Line(
        a.primitive,
        a.where,
        a.source,
        a.calls + b.calls,
        a.seconds + b.seconds,
        a.bytes + b.bytes,
        a.flops + b.flops,
        a.roofline + b.roofline,
    )


def _source(lines: Sequence[str]) -> str:
    """The text of the first of several lines given as "file:number"."""
    file, _, number = (lines[0] if lines else "").rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def _by_equation(name: str, found: Any, arrays: list[ArrayImpl], repeats: int) -> Profile:
    """A profile of a program that runs one equation at a time."""
    jaxpr = inlined(found.jaxpr)
    env: dict[Var, Any] = dict(zip(jaxpr.invars, arrays, strict=True))
    lines: dict[tuple[str, str], Line] = {}
    spans, now = [], 0.0
    for e in jaxpr.eqns:
        xs = [env[i] if type(i) is Var else i for i in e.ins]
        best, outs = float("inf"), []
        for _ in range(1 if e.prim.effect else repeats):
            with running(None):
                start = time.perf_counter()
                with config.computing(e.numerics):
                    made = bind(e.prim, *xs, **e.params)
                outs = list(made) if e.prim.multi else [made]
                for o in outs:
                    o.block_until_ready()
                best = min(best, time.perf_counter() - start)
        env.update(zip(e.outs, outs))
        line = Line(
            e.prim.name,
            str(e.where or "?"),
            e.where.text() if e.where else "",
            1,
            best,
            sum(o.nbytes for o in outs),
        )
        spans.append(Span(e.prim.name, now, best, line))
        now += best
        key = (line.primitive, line.where)
        lines[key] = _sum(lines[key], line) if key in lines else line
    rows = sorted(lines.values(), key=lambda x: -x.seconds)
    total = sum(x.seconds for x in rows)
    result = found.program.output([env[o] for o in jaxpr.outs])
    return Profile(name, tuple(rows), tuple(spans), total, result)


# ---- traces ----

_running: list[tuple[Any, str]] = []


def start_trace(log_dir: str | os.PathLike[str], **_: object) -> None:
    """Record what the process does, until `stop_trace`, into `log_dir/trace.json`.

    The file opens in Perfetto or chrome://tracing. It holds torch's operators on the CPU and the
    names given by `TraceAnnotation`.

    Args:
        log_dir: folder, which `stop_trace` makes where it is not there.
        **_: ignored, as JAX's arguments.

    Raises:
        RuntimeError: a trace is being recorded.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gf.profiler.start_trace(folder)
    ...     _ = jnp.sin(jnp.ones(3))
    ...     gf.profiler.stop_trace()
    ...     os.listdir(folder)
    ['trace.json']
    """
    import torch

    if _running:
        raise RuntimeError("a trace is being recorded; call stop_trace first")
    recorder = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    recorder.start()
    _running.append((recorder, os.fspath(log_dir)))


def stop_trace() -> None:
    """Stop recording and write the file of `start_trace`.

    Raises:
        RuntimeError: no trace is being recorded.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gf.profiler.start_trace(folder)
    ...     gf.profiler.stop_trace()
    ...     os.listdir(folder)
    ['trace.json']
    """
    if not _running:
        raise RuntimeError("no trace is being recorded; call start_trace first")
    recorder, folder = _running.pop()
    recorder.stop()
    os.makedirs(folder, exist_ok=True)
    recorder.export_chrome_trace(os.path.join(folder, "trace.json"))


@contextlib.contextmanager
def trace(log_dir: str | os.PathLike[str], **options: object) -> Generator[None, None, None]:
    """Record what runs inside into `log_dir/trace.json`.

    Args:
        log_dir: folder, which is made where it is not there.
        **options: as of `start_trace`.

    Returns:
        A context manager.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with gf.profiler.trace(folder):
    ...         _ = jnp.sin(jnp.ones(3))
    ...     os.listdir(folder)
    ['trace.json']
    """
    start_trace(log_dir, **options)
    try:
        yield
    finally:
        stop_trace()


class TraceAnnotation(contextlib.ContextDecorator):
    """Names the time inside of a block or a decorated function, in traces.

    Args:
        name: the name.
        **metadata: what is written after it, as "name=value".

    >>> with gf.profiler.TraceAnnotation("load", file=3):
    ...     x = jnp.ones(3)
    >>> @gf.profiler.TraceAnnotation("double")
    ... def double(x):
    ...     return 2 * x
    >>> double(2)
    4
    """

    def __init__(self, name: str, **metadata: object) -> None:
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
    """Names one training step in traces: a `TraceAnnotation`.

    Args:
        name: the name.
        **metadata: what is written after it, as `step_num=i`.

    >>> for i in range(2):
    ...     with gf.profiler.StepTraceAnnotation("train", step_num=i):
    ...         x = jnp.ones(3)
    """


def annotate_function(
    func: Callable[..., Any], name: str | None = None, **metadata: object
) -> Callable[..., Any]:
    """Give a function's runs a name in traces, by a `TraceAnnotation`.

    Args:
        func: function.
        name: the name; None: that of the function.
        **metadata: what is written after it, as "name=value".

    Returns:
        A function of the arguments of `func` that returns its result.

    >>> gf.profiler.annotate_function(lambda x: x + 1, "increment")(1)
    2
    """

    @functools.wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(name or name_of(func), **metadata):
            return func(*args, **kwargs)

    return annotated


def device_memory_profile() -> dict[str, int]:
    """Count the bytes that live arrays hold.

    Returns:
        {device: bytes}, of the devices that hold some.

    >>> x = jnp.ones(1000, device=gf.cpu())
    >>> gf.profiler.device_memory_profile()["cpu()"] >= x.nbytes
    True
    """
    from genesis_fn.transforms.staging.device_placement import live_arrays

    held: dict[str, int] = {}
    for x in live_arrays():
        assert type(x) is ArrayImpl
        held[str(x.device)] = held.get(str(x.device), 0) + x.nbytes
    return held


def save_device_memory_profile(
    filename: str | os.PathLike[str], backend: str | None = None
) -> None:
    """Write what live arrays hold to a JSON file: {device: [{shape, dtype, count, bytes}]}.

    Arrays of one shape and dtype are one entry, the largest first.

    Args:
        filename: path of the file.
        backend: "cpu", "gpu" or "cuda" for arrays on such devices alone; None for all.

    >>> import json, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "memory.json")
    >>> x = jnp.ones((3, 5, 7), device=gf.cpu())
    >>> gf.profiler.save_device_memory_profile(path)
    >>> found = json.load(open(path))["cpu()"]
    >>> [e["shape"] for e in found if e["shape"] == [3, 5, 7]]
    [[3, 5, 7]]
    """
    from genesis_fn.transforms.staging.device_placement import live_arrays

    counts = collections.Counter((str(x.device), x.aval) for x in live_arrays(backend))
    held: dict[str, list[dict[str, Any]]] = {}
    for (device, kind), count in counts.items():
        name, size = kind.dtype.name, count * kind.nbytes
        entry = {"shape": kind.shape, "dtype": name, "count": count, "bytes": size}
        held.setdefault(device, []).append(entry)
    for entries in held.values():
        entries.sort(key=lambda e: -e["bytes"])
    Path(filename).write_text(json.dumps(held, indent=1))
