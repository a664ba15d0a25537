"""Compiles launches to binaries: cache keys, the cache, and the processes that compile.

`triton.compile` is called with a signature and an explicit target, so it needs no GPU, driver or
torch, and Triton's launcher is never built. Kernels compile in parallel in worker processes
(`compile_worker.py`), which never touch CUDA. With a warm cache neither Triton nor torch is
imported for kernels given as text.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import importlib.util
import linecache
import os
import pickle
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genesis_fn.backends.cuda.binaries.cache import BinaryCache
from genesis_fn.backends.cuda.binaries.triton_compile import (
    GENERATOR,
    CompileError,
    CompileRequest,
    FunctionReference,
    compile_request,
    function_from_text,
    is_gluon,
    triton_version,
)
from genesis_fn.compiler.target import Target
from genesis_fn.core.configuration import environment
from genesis_fn.kernels.language.dtypes import DTYPES, TYPES
from genesis_fn.kernels.plan import Argument, BufferArg, Descriptor, Launch, Scalar

_POW = re.compile(r"\bpow\(")
_FORMAT = 6  # of cache entries and what they hold: part of the key
_MOST_REMEMBERED = 2048
_MOST_WORKERS = 16


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """The binary of one kernel for one architecture, and what a launch needs to know of it.

    * `parameters`: the types of the run-time parameters in order, as in `CompileRequest.types`.
    * `layout`: the sizes in bytes of the binary's parameters, scratch pointers included.
    * `descriptors`: for each host TMA descriptor what its encoding needs; empty where the compiler
      replaced descriptors by pointers.
    * `shared`: bytes of shared memory; `scratch`: bytes of global scratch memory, per program.
    """

    key: str
    name: str
    binary: bytes
    parameters: tuple[str, ...]
    layout: tuple[int, ...]
    descriptors: tuple[dict[str, Any], ...]
    shared: int
    num_warps: int
    num_ctas: int
    scratch: int
    cooperative: bool
    triton: str


class SourceKernel:
    """A kernel given as text: one `@triton.jit` function named `name`.

    `modules` are the modules whose contents the result depends on; their sources are part of the
    cache key. Calling it with a grid, as Triton's functions are, is not supported: give it to a
    `Launch`.
    """

    def __init__(
        self,
        name: str,
        text: str,
        modules: tuple[str, ...] = ("genesis_fn.kernels.language.language",),
    ) -> None:
        self.name = name
        self.text = text
        self.modules = modules

    def __repr__(self) -> str:
        return f"SourceKernel({self.name!r})"

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the text and of the modules that it uses."""
        digest = hashlib.sha256(self.text.encode())
        for module in self.modules:
            digest.update(_module_digest(module).encode())
        return digest.hexdigest()

    @functools.cached_property
    def function(self) -> Any:
        """The Triton function (interpreted where `TRITON_INTERPRET` was set at its import)."""
        return function_from_text(self.name, self.text)


def compile_launches(
    launches: Sequence[Launch], target: Target, cache: BinaryCache | None = None
) -> list[CompiledKernel]:
    """The compiled kernel of each launch, from the cache or compiled in parallel.

    Launches that differ only in grid, addresses and scalar values share one. Raises `CompileError`.
    """
    cache = cache or BinaryCache()
    keys = [launch_key(launch, target) for launch in launches]
    ready: dict[str, CompiledKernel] = {}
    missing: dict[str, Launch] = {}
    for key, launch in zip(keys, launches, strict=True):
        if key in ready or key in missing:
            continue
        held = _memory.get(key) or _from_entry(key, cache.get(key))
        if held is None:
            missing[key] = launch
        else:
            ready[key] = held
    # Longest first: kernels with most parameters, such as grouped products, take up to 5 s, most
    # others 1.3 s or less (docs/cuda.md, "The first call").
    first = sorted(missing, key=lambda key: -_parameters(missing[key]))
    requests = {key: request(missing[key], target) for key in first}
    for key, (metadata, binary) in _compile_all(requests) if requests else ():
        cache.put(key, metadata, binary)
        compiled = _from_entry(key, (metadata, binary))
        assert compiled is not None
        ready[key] = compiled
    _memory.update(ready)
    # The oldest first; another thread may remove the same one.
    while len(_memory) > _MOST_REMEMBERED:
        _memory.pop(next(iter(_memory)), None)
    return [ready[key] for key in keys]


_memory: dict[str, CompiledKernel] = {}


def _parameters(launch: Launch) -> int:
    return len(launch.arguments) + len(launch.constants)


def launch_key(launch: Launch, target: Target) -> str:
    """The cache key of a launch: a digest of everything that determines its binary."""
    types, divisible = signature(launch)
    parts = (
        _FORMAT,
        kernel_digest(launch.kernel),
        tuple(types.items()),
        divisible,
        tuple((name, _canonical(value)) for name, value in sorted(launch.constants.items())),
        tuple(_options(launch, target).items()),
        target.architecture,
        triton_version(),
        os.environ.get("TRITON_PTXAS_PATH", ""),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _options(launch: Launch, target: Target) -> dict[str, Any]:
    """The compiler's options for a launch, without programmatic launch where the GPU has none."""
    options = launch.options
    # Triton writes a check of each sum and product of integers, in 64 bits, and drops it where it
    # does not debug: a third of the time in which it reads a long kernel.
    options["sanitize_overflow"] = False
    text = _text(launch.kernel)
    if text is not None:
        # Triton has CUDA's library flush subnormal numbers to zero. Kernels given as text, which
        # are the elementwise operations, keep them as a CPU does: that costs up to 3 instructions
        # each. Kernels of modules flush what they exponentiate.
        options["enable_reflect_ftz"] = False
        # CUDA's pow multiplies and adds in pairs of floats, the second of which is what rounding
        # lost of the first. Contracted to one rounding its error is 66 units in the last place
        # instead of 1 (`tests/cuda/compile_numerics.py`).
        if _POW.search(text):
            options["enable_fp_fusion"] = False
    if not target.programmatic_launch:
        options.pop("launch_pdl", None)
    return options


def _text(kernel: Any) -> str | None:
    """The text of a kernel that was made from one; None of a function in a module."""
    if isinstance(kernel, SourceKernel):
        return kernel.text
    where = _where(kernel)
    return where[1] if where[0] == "generated" else None


def signature(launch: Launch) -> tuple[dict[str, str], tuple[str, ...]]:
    """({parameter: type}, parameters known to be divisible by 16)."""
    gluon = is_gluon(launch.kernel)
    types = {name: argument_type(a, gluon) for name, a in launch.arguments.items()}
    divisible = tuple(name for name, a in launch.arguments.items() if _divisible(a))
    return types, divisible


def argument_type(argument: Argument, gluon: bool = False) -> str:
    """Triton's spelling of an argument's type: "*bf16", "tensordesc<bf16[64, 32]>" or "i32".

    The type of a descriptor in Gluon ends with the layout of its tile in shared memory.
    """
    if isinstance(argument, BufferArg):
        return "*" + argument.dtype
    if isinstance(argument, Descriptor):
        block = ", ".join(map(str, argument.block))
        layout = f",{tile_layout(argument)!r}" if gluon else ""
        return f"tensordesc<{argument.buffer.dtype}[{block}]{layout}>"
    return argument.dtype


def tile_layout(argument: Descriptor) -> Any:
    """The shared-memory layout of a descriptor's tile in a Gluon kernel: its default one."""
    import triton.language as tl
    from triton.experimental.gluon.language import NVMMASharedLayout

    element = getattr(tl, TYPES[DTYPES[argument.buffer.dtype]])
    layout: Any = NVMMASharedLayout.get_default_for
    return layout(list(argument.block), element)


def _divisible(argument: Argument) -> bool:
    # Buffers are aligned to 16 bytes by contract (`Plan`), so only the offset decides.
    if isinstance(argument, BufferArg):
        return argument.offset % 16 == 0
    return (
        isinstance(argument, Scalar) and argument.dtype != "fp32" and int(argument.value) % 16 == 0
    )


def kernel_digest(kernel: object) -> str:
    """The digest of a kernel's source and of every function that it calls."""
    if isinstance(kernel, SourceKernel):
        return kernel.digest
    key = getattr(kernel, "cache_key", None)
    if key is None:
        raise TypeError(
            f"{kernel!r} is no compilable Triton function; if TRITON_INTERPRET is set, unset it "
            'before Triton is imported, or choose GENESIS_CUDA_DRIVER="interpret"'
        )
    return key


def request(launch: Launch, target: Target) -> CompileRequest:
    """What a worker needs to compile the launch."""
    types, divisible = signature(launch)
    kernel = launch.kernel
    if isinstance(kernel, SourceKernel):
        where: tuple[Any, ...] = ("text", kernel.name, kernel.text)
    else:
        where = _where(kernel)
    constants = tuple((name, _portable(value)) for name, value in launch.constants.items())
    if any(not _travels(value) for _, value in constants):
        where = ("object", kernel.function if isinstance(kernel, SourceKernel) else kernel)
        constants = tuple(launch.constants.items())
    return CompileRequest(
        where,
        tuple(types.items()),
        divisible,
        constants,
        tuple(_options(launch, target).items()),
        target.architecture,
    )


def _where(kernel: Any) -> tuple[Any, ...]:
    function = getattr(kernel, "fn", None)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if function is not None and module == GENERATOR:
        return "generated", "".join(linecache.getlines(function.__code__.co_filename))
    # A worker imports only the library's own modules: importing a user's module again could do
    # anything. Users' kernels are compiled in this process.
    found: Any = sys.modules.get(module) if module and module.startswith("genesis_fn.") else None
    named = getattr(found, name, None) is kernel
    return ("module", module, name) if named else ("object", kernel)


def _portable(value: Any) -> Any:
    if hasattr(value, "cache_key"):
        reference = _where(value)
        return FunctionReference(reference[1], reference[2]) if reference[0] == "module" else value
    return value


def _travels(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_travels, value))
    plain = isinstance(value, (int, float, str, FunctionReference)) or value is None
    return plain or type(value).__module__ == "triton.language.core"


def _canonical(value: Any) -> str:
    # The type is part of the text: 1, 1.0 and True are equal, and compile to different code.
    if hasattr(value, "cache_key"):
        return f"function {value.cache_key}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_canonical, value)) + ")"
    inner = getattr(value, "value", value)
    if isinstance(inner, (bool, int, float, str)) or inner is None:
        return f"{type(inner).__name__} {inner!r}"
    if type(value).__module__ == "triton.language.core":
        return f"type {value}"
    raise TypeError(f"a constexpr argument must be a number, string, type or function: {value!r}")


@functools.lru_cache
def _module_digest(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"a kernel depends on module {name}, which cannot be found")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _from_entry(key: str, entry: tuple[Mapping[str, Any], bytes] | None) -> CompiledKernel | None:
    if entry is None:
        return None
    metadata, binary = entry
    fields = dict(metadata)
    fields["parameters"] = tuple(fields["parameters"])
    fields["layout"] = tuple(fields["layout"])
    fields["descriptors"] = tuple(fields["descriptors"])
    return CompiledKernel(key=key, binary=binary, **fields)


# Compiling in worker processes.


def _compile_all(
    requests: Mapping[str, CompileRequest],
) -> Iterable[tuple[str, tuple[dict[str, Any], bytes]]]:
    # A single kernel goes to a worker too: importing Triton, and the digest that it makes of its
    # installation, would take longer in this process than a worker takes to start.
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    remote = {key: r for key, r in requests.items() if r.where[0] != "object"}
    if not interpreted and not worker_count():
        remote = {}
    local = {key: r for key, r in requests.items() if key not in remote}
    futures = {key: _pool().submit(_ask, r) for key, r in remote.items()}
    for key, wanted in local.items():
        yield key, compile_request(wanted)
    for key, future in futures.items():
        yield key, future.result()


class _Worker:
    """One compiling process; requests and answers are pickles on its standard input and output."""

    def __init__(self) -> None:
        # A script run by its path, not a multiprocessing child: the user's main module must not
        # run again, and importing the package would cost each worker seconds.
        script = Path(__file__).with_name("compile_worker.py")
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._send({"path": list(sys.path), "package": sys.modules["genesis_fn"].__path__[0]})

    def compile(self, wanted: CompileRequest) -> tuple[dict[str, Any], bytes]:
        self._send(wanted)
        answer = self._receive()
        if "error" in answer:
            raise CompileError(answer["error"])
        return answer["metadata"], answer["binary"]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _send(self, message: Any) -> None:
        content = pickle.dumps(message)
        assert self._process.stdin is not None
        self._process.stdin.write(len(content).to_bytes(8, "little") + content)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        size = self._process.stdout.read(8)
        if len(size) < 8:
            raise CompileError(
                f"a compiling process ended with code {self._process.wait()}; its messages are on "
                "standard error"
            )
        return pickle.loads(self._process.stdout.read(int.from_bytes(size, "little")))


_workers: ThreadPoolExecutor | None = None
_idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
_started: list[_Worker] = []
_lock = threading.Lock()


def _worker() -> _Worker:
    made = _Worker()
    with _lock:
        _started.append(made)
    return made


def worker_count() -> int:
    """How many processes compile: `GENESIS_COMPILE_WORKERS`, else one for each core, at most 16.

    With 0 this process compiles by itself, which is better where many such processes share cores.
    """
    named = environment.text("GENESIS_COMPILE_WORKERS")
    return int(named) if named else min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


def _pool() -> ThreadPoolExecutor:
    global _workers
    with _lock:
        if _workers is None:
            count = max(1, worker_count())
            _workers = ThreadPoolExecutor(count, thread_name_prefix="genesis-compile")
            atexit.register(stop_workers)
        return _workers


def _ask(wanted: CompileRequest) -> tuple[dict[str, Any], bytes]:
    try:
        worker = _idle.get_nowait()
    except queue.Empty:
        worker = _worker()
    try:
        return worker.compile(wanted)
    except OSError as error:
        raise CompileError(f"a compiling process died: {error}") from error
    finally:
        # A worker that died (killed for its memory use, say) gets no further request.
        if worker.alive:
            _idle.put(worker)


def stop_workers() -> None:
    """Ends the compiling processes; the next compilation starts new ones."""
    global _workers, _idle
    with _lock:
        pool, _workers = _workers, None
        workers = _started[:]
        _started.clear()
    if pool is not None:
        pool.shutdown(wait=True, cancel_futures=True)
    _idle = queue.SimpleQueue()
    for worker in workers:
        worker.close()


def _after_fork() -> None:
    # The child shares the pipes of the parent's workers, and must not use them: requests of both
    # would mix. The lock may have been held by another thread.
    global _workers, _idle, _lock
    _workers, _idle, _lock = None, queue.SimpleQueue(), threading.Lock()
    _started.clear()


os.register_at_fork(after_in_child=_after_fork)
