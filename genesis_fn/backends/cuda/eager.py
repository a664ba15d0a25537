"""Eager execution: what `bind` runs outside of `jit` on arrays of a GPU.

A function is made once for each (primitive, operand avals, parameters). It allocates its results,
binds prepared launches to their addresses, enqueues them, and returns before they have run. Kernels
of elementwise operations, copies and reductions take sizes and Python scalars at run time, so that
few kernels are compiled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from genesis_fn.backends.cpu.storage import host_tensor, host_view
from genesis_fn.backends.cuda.driver.driver import PreparedLaunch
from genesis_fn.backends.cuda.libraries import PreparedRoutine
from genesis_fn.backends.cuda.lowerings import (
    Contents,
    HostCall,
    Views,
    check_error,
    checks,
    has_lowering,
    plan_for,
)
from genesis_fn.backends.cuda.memory.pool import Buffer
from genesis_fn.backends.cuda.memory.staging import PendingRead
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.compiler.complex_parts.represent import uses_parts
from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import Aval, Signature, sig
from genesis_fn.core.backend.lowering import Elementwise, View
from genesis_fn.core.configuration import config
from genesis_fn.core.device import Device
from genesis_fn.core.diagnostics.source_info import SourceLocation, where
from genesis_fn.core.errors import at_line
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import SCALARS, Primitive
from genesis_fn.kernels.plan import Launch, LibraryCall, Memset, Plan
from genesis_fn.primitives.shape import broadcast_in_dim_p
from genesis_fn.transforms.custom.fused_functions import fused_p

_REMEMBERED = 64  # combinations of scalar values that each function keeps launches for


class PlanRunner:
    """A plan whose launches are prepared for one device."""

    def __init__(self, runtime: Runtime, plan: Plan) -> None:
        self.runtime, self.plan = runtime, plan
        launches = [s for s in plan.steps if type(s) is Launch]
        prepared = list(runtime.driver.prepare(launches) if launches else ())
        self.scratch = max([s.scratch_bytes for s in prepared], default=0)
        rest = iter(prepared)
        self.steps = [self._prepared(s, rest) for s in plan.steps]
        self.lock = threading.Lock()

    def _prepared(
        self, step: Launch | Memset | LibraryCall, launches: Iterator[PreparedLaunch]
    ) -> PreparedLaunch | Memset | tuple[PreparedRoutine, LibraryCall]:
        if isinstance(step, Launch):
            return next(launches)
        if isinstance(step, LibraryCall):
            return self.runtime.driver.routine(step.routine), step
        return step

    @property
    def is_one_launch(self) -> bool:
        """Whether the plan is a single kernel without scratch or workspaces."""
        one = len(self.steps) == 1 and type(self.plan.steps[0]) is Launch
        return one and not self.scratch and not self.plan.workspaces

    def __call__(self, addresses: list[int], sizes: Sequence[int], site: object = None) -> None:
        """Enqueue the plan on buffers at these addresses; `sizes` are in bytes."""
        runtime, driver = self.runtime, self.runtime.driver
        # Workspaces are freed on return, while the kernels are still queued: whatever gets the
        # memory next is queued behind them on the compute stream.
        held = [runtime.alloc(w.bytes, site) for w in self.plan.workspaces]
        everything = addresses + [b.address for b in held]
        spare = runtime.alloc(self.scratch, site) if self.scratch else None
        # `bind` writes addresses into the parameter block that `launch` reads: no other thread may
        # bind in between.
        with self.lock:
            for step in self.steps:
                if isinstance(step, Memset):
                    b = step.buffer
                    size = sizes[b] if b < len(sizes) else held[b - len(sizes)].bytes
                    driver.fill(everything[b], 0, size, driver.compute)
                elif isinstance(step, tuple):
                    routine, call = step
                    found = [everything[b.index] + b.offset for b in call.buffers]
                    routine.run(found, driver.compute)
                else:
                    step.bind(everything, spare.address if spare is not None else 0)
                    step.launch(driver.compute)


def eager_function(
    runtime: Runtime, device: Device, prim: Primitive, avals: Sequence[Any], params: dict[str, Any]
) -> Callable[..., Any] | None:
    """A function of arrays and Python scalars that runs `prim`; None for a fused function without a
    kernel, whose reference program must be compiled."""
    avals = tuple(avals)
    # Launches contain scalars: a function with scalar operands keeps one set of launches for each
    # combination of values.
    if not any(type(a) in SCALARS for a in avals):
        return _specialised(runtime, device, prim, avals, params)
    return _of_numbers(
        avals, lambda given: _specialised(runtime, device, prim, given, params), None
    )


def guarded_function(
    runtime: Runtime,
    device: Device,
    prim: Primitive,
    avals: Sequence[Any],
    params: dict[str, Any],
    elsewhere: Callable[..., Any],
) -> Callable[..., Any] | None:
    """A function that runs an elementwise operation by one kernel under the settings of now, and
    calls `elsewhere` under settings by which it is computed more or less exactly; None where it is
    no kernel alone."""
    avals = tuple(avals)
    arrays = [a for a in avals if type(a) is Aval]
    if not arrays or uses_parts(prim, avals, params):
        return None
    if not has_lowering(prim) or any(
        map(runtime.driver.info.target.lacks, {a.dtype for a in arrays})
    ):
        return None
    if len(arrays) == len(avals):
        return _specialised(runtime, device, prim, avals, params, elsewhere)
    return _of_numbers(
        avals, lambda given: _specialised(runtime, device, prim, given, params), elsewhere
    )


def _of_numbers(
    avals: tuple[Any, ...],
    build: Callable[[tuple[Any, ...]], Callable[..., Any] | None],
    elsewhere: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """A function of arrays and numbers, for which `build` makes one for each combination of
    numbers; `elsewhere` as in `guarded_function`."""
    made: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
    numbers = [i for i, a in enumerate(avals) if type(a) in SCALARS]
    current, numerics = config.current, config.current().numerics
    only = numbers[0] if len(numbers) == 1 and type(avals[numbers[0]]) is not complex else -1

    def run(*args: Any) -> Any:
        if elsewhere is not None and current().numerics is not numerics:
            return elsewhere(*args)
        if only >= 0:
            # A number is its own key, as its type is known, but for NaN, which equals nothing, and
            # the two zeros, which are equal.
            x = args[only]
            key = x if x and x == x else repr(x)
        else:
            key = repr([args[i] for i in numbers])
        function = made.get(key)
        if function is None:
            given = tuple([args[i] if i in numbers else a for i, a in enumerate(avals)])
            function = build(given)
            # Only a fused function may have no kernel, and its operands are arrays.
            assert function is not None
            made[key] = function
            if len(made) > _REMEMBERED:
                made.popitem(last=False)
        return function(*args)

    return run


def _specialised(
    runtime: Runtime,
    device: Device,
    prim: Primitive,
    avals: tuple[Any, ...],
    params: dict[str, Any],
    elsewhere: Callable[..., Any] | None = None,
) -> Callable[..., Any] | None:
    """A function that runs `prim` with these numbers; with `elsewhere`, as in `guarded_function`,
    only one of one kernel."""
    lowered = plan_for(prim, avals, params, runtime.driver.info.target)
    if lowered is None:
        return None
    found = prim.abstract(avals, params)
    outs = list(found) if prim.multi else [found]
    sigs = [sig(a, device) for a in outs]
    arrays = [i for i, a in enumerate(avals) if type(a) is Aval]
    if elsewhere is not None and type(lowered) is not Plan:
        return None
    if type(lowered) is HostCall:
        run = _host_function(runtime, lowered, sigs)
    elif type(lowered) is Views:
        run = _view_function(lowered, sigs, arrays)
    elif type(lowered) is Contents:
        run = _contents_function(runtime, lowered, sigs)
    else:
        assert type(lowered) is Plan
        shared = _shared_results(prim, params)
        runner = PlanRunner(runtime, lowered)
        if not prim.multi and not shared and not checks(lowered, outs) and runner.is_one_launch:
            return _one_launch(runner, outs[0].nbytes, sigs[0], arrays, len(avals), elsewhere)
        if elsewhere is not None:
            return None
        run = _plan_function(runner, sigs, arrays, prim, avals, params, shared)
    return run if prim.multi else lambda *args: run(*args)[0]


def of_one_kernel(
    runtime: Runtime, plan: Plan, result: Signature, count: int
) -> Callable[..., Any] | None:
    """A function of `count` arrays that runs a plan of one kernel; None if it is not that simple
    once it is compiled."""
    runner = PlanRunner(runtime, plan)
    if not runner.is_one_launch:
        return None
    return _one_launch(runner, result.aval.nbytes, result, range(count), count)


def _contents_function(
    runtime: Runtime, lowered: Contents, sigs: Sequence[Signature]
) -> Callable[..., list[ArrayImpl]]:
    """Copies known numbers to the device."""
    values = lowered.numbers.array

    def run() -> list[ArrayImpl]:
        block = runtime.alloc(values.nbytes)
        runtime.staging.to_device(block.address, values.ctypes.data, values.nbytes)
        return [ArrayImpl(block, sigs[0])]

    return run


def moving_function(
    runtime: Runtime, device: Device, prim: Primitive, avals: Sequence[Any], params: dict[str, Any]
) -> Callable[..., Any] | None:
    """A function that moves or shares the elements of complex arrays of one dtype as integers of
    their width; None if `prim` does more, or is a copy of complex128, which no integer is as wide
    as."""
    if type(prim.lowering) is not View or any([type(a) is not Aval for a in avals]):
        return None
    if len({a.dtype for a in avals}) > 1:
        return None
    as_words = tuple([a.update(dtype=dtypes.I64) for a in avals])
    found = prim.abstract(tuple(avals), params)
    sigs = [sig(a, device) for a in (found if prim.multi else [found])]
    lowered = plan_for(prim, as_words, params, runtime.driver.info.target)
    words = avals[0].dtype.itemsize // dtypes.I64.itemsize
    if type(lowered) is Views:
        sources = tuple([(k, first * words) for k, first in lowered.sources])
        share = _view_function(Views(sources), sigs, range(len(avals)))
        return share if prim.multi else lambda *args: share(*args)[0]
    if words > 1:
        return None
    move = eager_function(runtime, device, prim, as_words, params)
    assert move is not None
    if not prim.multi:
        return lambda *args: ArrayImpl(move(*args).data, sigs[0])
    return lambda *args: [ArrayImpl(y.data, s) for y, s in zip(move(*args), sigs, strict=True)]


def with_numbers_as_arrays(
    prim: Primitive, avals: Sequence[Any], params: dict[str, Any]
) -> Jaxpr | None:
    """The program of one elementwise operation that takes arrays of one number for its numbers, so
    that it is compiled once for all of them; None if there are none."""
    numbers = [type(a) is not Aval for a in avals]
    if type(prim.lowering) is not Elementwise or not any(numbers):
        return None
    like = next(a for a in reversed(avals) if type(a) is Aval)
    given = [Var(like.update(()) if n else a) for a, n in zip(avals, numbers, strict=True)]
    ins, eqns = list(given), []
    for k, n in enumerate(numbers):
        if n:
            ins[k] = Var(like)
            spread = {"shape": like.shape, "dims": ()}
            eqns.append(Eqn(broadcast_in_dim_p, [given[k]], spread, [ins[k]], where()))
    out = Var(prim.abstract(tuple([v.aval for v in ins]), params))
    eqns.append(Eqn(prim, ins, params, [out], where()))
    return Jaxpr(given, eqns, [out], name=prim.name)


def _shared_results(prim: Primitive, params: dict[str, Any]) -> list[tuple[str, int] | None]:
    """For each result of a fused function the operand or the earlier result that it equals, whose
    buffer it shares; None for results that are computed."""
    if prim is not fused_p:
        return []
    jaxpr = params["jaxpr"]
    found: list[tuple[str, int] | None] = []
    for i, v in enumerate(jaxpr.outs):
        if v in jaxpr.invars:
            found.append(("operand", jaxpr.invars.index(v)))
        elif jaxpr.outs.index(v) < i:
            found.append(("result", jaxpr.outs.index(v)))
        else:
            found.append(None)
    return found


_LINES = 64  # user lines that have an error word for one operation


class _CheckedLine:
    """Owns the error word of one user line that runs an operation with checks."""

    word = 0


def _plan_function(
    runner: PlanRunner,
    sigs: Sequence[Signature],
    arrays: Sequence[int],
    prim: Primitive,
    avals: tuple[Any, ...],
    params: dict[str, Any],
    shared: Sequence[tuple[str, int] | None],
) -> Callable[..., Any]:
    runtime, plan = runner.runtime, runner.plan
    target = runtime.driver.info.target
    sizes = [avals[i].nbytes for i in arrays] + [s.aval.nbytes for s in sigs]
    nbytes = [s.aval.nbytes for s in sigs]
    shared = list(shared) or [None] * len(sigs)
    checked = checks(plan, [s.aval for s in sigs])
    # A failure is seen when the host next waits, long after the call: each user line has a word of
    # its own, so that the error names the line.
    words: dict[SourceLocation, _CheckedLine] = {}
    if checked:
        sizes = [*sizes, 8]

    def word_of(line: SourceLocation) -> int:
        caller = words.get(line)
        if caller is None:
            if len(words) == _LINES:  # code that is created again and again, as in a notebook
                words.clear()
            caller = words[line] = _CheckedLine()
            caller.word = runtime.errors.register(
                caller,
                lambda site, index: at_line(
                    check_error(prim, avals, params, target, site, index), line
                ),
            )
        return caller.word

    def run(*args: Any) -> list[ArrayImpl]:
        line = where()
        operands = [args[i].data for i in arrays]
        results: list[Any] = []
        for size, same in zip(nbytes, shared):
            if same is None:
                results.append(runtime.alloc(size, line))
            else:
                results.append(operands[same[1]] if same[0] == "operand" else results[same[1]])
        addresses = [b.address for b in operands]
        addresses += [b.address for b in results]
        if checked:
            addresses.append(word_of(line))
        runner(addresses, sizes, line)
        return [ArrayImpl(b, s) for b, s in zip(results, sigs)]

    return run


def _one_launch(
    runner: PlanRunner,
    size: int,
    result: Signature,
    arrays: Sequence[int],
    count: int,
    elsewhere: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The function of the common case, one kernel with one result, without the overhead of the
    general one; `elsewhere` as in `guarded_function`."""
    (step,) = runner.steps
    assert not isinstance(step, (Memset, tuple))
    runtime, lock, stream = runner.runtime, runner.lock, runner.runtime.driver.compute
    alloc, enqueue = runtime.pool.alloc, step.enqueue
    current, numerics = config.current, config.current().numerics
    every = len(arrays) == count
    first = arrays[0] if len(arrays) == 1 else -1

    def run(*args: Any) -> ArrayImpl:
        if elsewhere is not None and current().numerics is not numerics:
            return elsewhere(*args)
        if first >= 0:
            addresses = [args[first].data.address]
        elif every:
            addresses = [x.data.address for x in args]
        else:
            addresses = [args[i].data.address for i in arrays]
        block = alloc(size, where("", 4))  # the caller of this is the library's, too
        addresses.append(block.address)
        with lock:
            enqueue(addresses, stream)
        return ArrayImpl(block, result)

    return run


def _view_function(
    views: Views, sigs: Sequence[Signature], arrays: Sequence[int]
) -> Callable[..., Any]:
    def run(*args: Any) -> list[ArrayImpl]:
        found = []
        for (source, first), s in zip(views.sources, sigs):
            data = args[arrays[source]].data
            found.append(ArrayImpl(part_of(data, first, s.aval.nbytes), s))
        return found

    return run


def part_of(data: Buffer, first: int, size: int) -> Buffer:
    """`size` bytes of a buffer from byte `first` on, as a buffer that keeps it alive."""
    if first == 0 and size == data.bytes:
        return data
    return Buffer(data.address + first, size, data)


def _host_function(
    runtime: Runtime, call: HostCall, sigs: Sequence[Signature]
) -> Callable[..., Any]:
    function = call.function()

    def run(*args: Any) -> list[ArrayImpl]:
        line = where()
        given = [
            host_tensor(read(runtime, a.data, a.sig.aval), a.sig.aval.dtype)
            if type(a) is ArrayImpl
            else a
            for a in args
        ]
        results = function(*given)
        return [
            ArrayImpl(write(runtime, host_view(y.contiguous(), s.aval.dtype), line), s)
            for y, s in zip(results, sigs, strict=True)
        ]

    return run


def read(runtime: Runtime, data: Buffer, kind: Aval) -> np.ndarray:
    """The values of a buffer on the host, after all queued work; raises the errors it reported."""
    result = np.empty(kind.shape, kind.dtype)
    if result.nbytes:
        runtime.read(result.ctypes.data, data.address, result.nbytes)
    else:
        runtime.synchronize()
    return result


def finish_read(runtime: Runtime, reading: PendingRead, kind: Aval) -> np.ndarray:
    """The values of a copy to the host that was begun; raises the errors of work before it."""
    result = np.empty(kind.shape, kind.dtype)
    reading.into(result.ctypes.data)
    runtime.errors.raise_if_set()
    return result


def write(runtime: Runtime, value: np.ndarray, line: object = None) -> Buffer:
    """A buffer with a copy of a host array's values."""
    value = np.ascontiguousarray(value)
    block = runtime.alloc(value.nbytes, line)
    if value.nbytes:
        runtime.staging.to_device(block.address, value.ctypes.data, value.nbytes)
    return block
