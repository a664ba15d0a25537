"""What a process of one library does: programs one after the other, a file of each result."""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo_programs import PROGRAMS
from benchmarks.zoo_programs.program import Function, Program, leaves, mapped, names, torch_names

# Sides of the table; `UNORDERED` is this library with `deterministic=False`.
UNORDERED = "genesis-unordered"
SIDES = ("genesis", UNORDERED, "jax", "torch")
# What a side's process starts with; folders of compiled code are its own and empty.
ENVIRONMENT = {
    "genesis": {},
    UNORDERED: {"GENESIS_DETERMINISTIC": "0"},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_ENABLE_COMPILATION_CACHE": "false"},
    "torch": {},
}
CACHES = ("GENESIS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
STREAM_SECONDS, STREAM_CALLS, REPEATS = 0.05, 100, (3, 15)
# Of a larger result that many numbers are kept, evenly spaced.
KEPT = 1 << 16


@dataclass(frozen=True)
class Library:
    """How a side puts arrays on its device, compiles, waits, and says what memory it took."""

    put: Callable[[np.ndarray], Any]
    function: Callable[[Program, bool], Function]
    wait: Callable[[Any], Any]
    host: Callable[[Any], np.ndarray]
    memory: Callable[[Function, tuple[Any, ...], bool], int | None]
    precision: Callable[[str], Any]
    forget: Callable[[], Any]
    device: str
    version: str


def by_names(library: str, jitted: bool, program: Program, tiny: bool) -> Function:
    """A program as its caller has it, in one of the libraries of these names."""
    xp = names(library)
    made = program.make(xp, program.size(tiny))
    return xp.jit(made) if jitted else made


def genesis() -> Library:
    g = importlib.import_module("genesis_fn")
    on_gpu = g.default_backend() != "cpu"

    def memory(f: Function, operands: tuple[Any, ...], jitted: bool) -> int | None:
        if not on_gpu:
            return None
        g.cuda.reset_peak()
        g.block_until_ready(f(*operands))
        return g.cuda.max_memory_allocated()

    return Library(
        put=g.device_put,
        function=lambda program, tiny: by_names("genesis", program.jitted, program, tiny),
        wait=g.block_until_ready,
        host=np.asarray,
        memory=memory,
        precision=lambda p: g.config.update(
            "matmul_precision", {"tensorfloat32": "default"}.get(p, p)
        ),
        forget=g.clear_caches,
        device=str(g.devices()[0]),
        version=g.__version__,
    )


def jax() -> Library:
    j = importlib.import_module("jax")
    device = j.devices()[0]

    def memory(f: Any, operands: tuple[Any, ...], jitted: bool) -> int | None:
        # JAX cannot forget an earlier peak: its compiler says what a program takes.
        if device.platform == "cpu" or not jitted:
            return None
        m = f.lower(*operands).compile().memory_analysis()
        given = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes
        return given + m.temp_size_in_bytes

    return Library(
        put=j.device_put,
        function=lambda program, tiny: by_names("jax", program.jitted, program, tiny),
        wait=j.block_until_ready,
        host=np.asarray,
        memory=memory,
        precision=lambda p: j.config.update("jax_default_matmul_precision", p),
        forget=j.clear_caches,
        device=device.device_kind,
        version=j.__version__,
    )


def torch() -> Library:
    t = importlib.import_module("torch")
    on_gpu = t.cuda.is_available()
    # Results are counted by the host, and several programs share a process.
    t._dynamo.config.recompile_limit = 64

    def memory(f: Function, operands: tuple[Any, ...], jitted: bool) -> int | None:
        if not on_gpu:
            return None
        t.cuda.reset_peak_memory_stats()
        f(*operands)
        t.cuda.synchronize()
        return t.cuda.max_memory_allocated()

    def forget() -> None:
        t._dynamo.reset()
        if on_gpu:
            t.cuda.empty_cache()

    def function(program: Program, tiny: bool) -> Function:
        assert program.torch is not None
        return program.torch(torch_names(program.jitted), program.size(tiny))

    return Library(
        put=lambda x: t.from_numpy(x.copy()).to("cuda" if on_gpu else "cpu"),
        function=function,
        wait=lambda _: t.cuda.synchronize() if on_gpu else None,
        host=lambda x: (x.float() if x.dtype == t.bfloat16 else x).cpu().numpy(),
        memory=memory,
        precision=lambda p: t.set_float32_matmul_precision("highest" if p == "highest" else "high"),
        forget=forget,
        device=t.cuda.get_device_name() if on_gpu else "cpu",
        version=t.__version__,
    )


def library_of(side: str) -> Library:
    """The library of a side, which has run something: starting it is no program's time."""
    found = {"genesis": genesis, UNORDERED: genesis, "jax": jax, "torch": torch}[side]()
    x = found.put(np.ones((64, 64), np.float32))
    found.wait(x @ x + x)
    return found


# ---- one program ----


def sampled(x: np.ndarray) -> np.ndarray:
    """The numbers of a result that are kept, as NumPy's own dtypes."""
    if x.dtype.kind not in "bifuc":  # bfloat16
        x = x.astype(np.float32)
    flat = x.reshape(-1)
    return flat[:: max(1, -(-flat.size // KEPT))]


def timed(call: Callable[[], Any], wait: Callable[[Any], Any], seconds: float) -> dict[str, Any]:
    """Milliseconds of one call in streams of calls that are waited for once."""
    wait(call())
    began = time.perf_counter()
    wait(call())
    once = time.perf_counter() - began
    count = int(min(max(STREAM_SECONDS / once, 1), STREAM_CALLS))
    repeats = int(min(max(seconds / (once * count), REPEATS[0]), REPEATS[1]))
    found: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        out = None
        for _ in range(count):
            out = call()
        wait(out)
        found.append((time.perf_counter() - began) / count * 1e3)
    return {
        "ms": statistics.median(found),
        "least_ms": min(found),
        "most_ms": max(found),
        "calls": count,
        "repeats": repeats,
    }


def measure(
    library: Library, program: Program, tiny: bool, seconds: float
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """(what is written of a program, the numbers that it gave)."""
    library.precision(program.precision)
    operands = mapped(library.put, program.operands(tiny))
    library.wait(operands)
    f = library.function(program, tiny)
    began = time.perf_counter()
    out = f(*operands)
    library.wait(out)
    row: dict[str, Any] = {"first_s": time.perf_counter() - began}
    values = [sampled(library.host(x)) for x in leaves(out)]
    del out
    row |= timed(lambda: f(*operands), library.wait, 0.1 if tiny else seconds)
    row["peak_bytes"] = library.memory(f, operands, program.jitted)
    return row | {"device": library.device, "version": library.version}, values


# ---- files ----


def paths(folder: Path, side: str, name: str) -> tuple[Path, Path]:
    """Where what is said of a program lies, and its numbers."""
    return folder / side / f"{name}.json", folder / side / f"{name}.npz"


def write(path: Path, row: dict[str, Any]) -> None:
    """The whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def run(
    side: str, programs: list[str], folder: Path, tiny: bool, seconds: float
) -> Iterator[tuple[str, str]]:
    """Measure programs and write what was found: ("begin" or "end", name) of each. A failure is
    written as well, and ends the process: its device may be in any state."""
    library = library_of(side)
    for name in programs:
        yield "begin", name
        row_path, values_path = paths(folder, side, name)
        try:
            row, values = measure(library, PROGRAMS[name], tiny, seconds)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            write(row_path, {"failed": text[:2000], "device": library.device})
            raise
        values_path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(values_path, *values)
        write(row_path, row)
        yield "end", name
        library.forget()
        gc.collect()


def work(
    side: str, programs: list[str], folder: Path, tiny: bool, seconds: float, until: float
) -> None:
    """Run programs and say on standard output where it is; none is begun after `until`."""
    print("ready", flush=True)
    for word, name in run(side, programs, folder, tiny, seconds):
        print(word, name, flush=True)
        if word == "end" and time.time() > until:
            sys.exit(0)
