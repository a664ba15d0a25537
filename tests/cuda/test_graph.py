"""Programs capture_program into graphs, with conditional nodes and without."""

from __future__ import annotations

import gc
import os
import weakref

os.environ.setdefault("TRITON_INTERPRET", "1")

import interpreted_kernels as kernels
import numpy as np
import pytest

from genesis_fn.backends.cuda.driver.drivers import implementation, open_driver
from genesis_fn.backends.cuda.driver.errors import CudaError
from genesis_fn.backends.cuda.driver.interpret import InterpretDriver
from genesis_fn.backends.cuda.lowerings.call import HostCall
from genesis_fn.backends.cuda.run import graph
from genesis_fn.backends.cuda.run.graph import BufferAddress, CapturedProgram, capture_program
from genesis_fn.backends.cuda.run.runtime import Runtime
from genesis_fn.backends.cuda.run.steps import Copy, ForLoop, HostStep, SubProgram, Switch, While
from genesis_fn.core.aval import aval
from genesis_fn.core.primitive import PRIMITIVES
from genesis_fn.kernels.plan import BufferArg, Memset

MIB = 1 << 20


class Machine:
    """A device with numbered buffers of int32."""

    def __init__(self, *sizes: int) -> None:
        on_gpu = implementation() == "cuda"
        self.driver = open_driver(0) if on_gpu else InterpretDriver(0, total_memory=64 * MIB)
        self.place = Runtime(self.driver)
        self.pool = self.place.pool
        self.blocks = [self.pool.alloc(4 * size) for size in sizes]
        self.sizes = sizes

    @property
    def buffers(self) -> list[BufferAddress]:
        return [BufferAddress(b.address, b.bytes) for b in self.blocks]

    def program(self, *steps, conditional_nodes: bool = True) -> CapturedProgram:
        return capture_program(self.place, steps, self.buffers, conditional_nodes=conditional_nodes)

    def write(self, index: int, values) -> None:
        array = np.ascontiguousarray(values, np.int32)
        self.driver.copy(
            self.blocks[index].address, array.ctypes.data, array.nbytes, self.driver.compute
        )

    def read(self, index: int) -> list[int]:
        result = np.empty(self.sizes[index], np.int32)
        self.driver.copy(
            result.ctypes.data, self.blocks[index].address, result.nbytes, self.driver.compute
        )
        self.driver.synchronize()
        return result.tolist()


both = pytest.mark.parametrize("conditional_nodes", [True, False])


def test_straight_line_programs_are_one_graph():
    m = Machine(1, 4, 4)
    m.write(0, [5])
    m.write(1, [1, 2, 3, 4])
    m.write(2, [9, 9, 9, 9])
    program = m.program(
        kernels.add_one(0),
        Copy(2, 1, 8, destination_offset=8, source_offset=4),
        Memset(1),
        kernels.add_one(1, 7),
    )
    assert m.read(0) == [5] and m.read(2) == [9] * 4, "capturing runs nothing"
    assert program.segments == 1
    program.launch()
    assert (m.read(0), m.read(1), m.read(2)) == ([6], [7, 0, 0, 0], [9, 9, 2, 3])
    program.launch()
    assert m.read(0) == [7] and m.read(1) == [7, 0, 0, 0]


def test_children_have_their_own_numbering():
    m = Machine(4, 4)
    m.write(0, [0] * 4)
    m.write(1, [0] * 4)
    inner = (kernels.add_one(0), kernels.add_one(1, 10))
    nested = SubProgram(
        (SubProgram(inner, ((0, 4), (1, 0))), kernels.add_one(1, 100)), ((1, 4), (0, 0))
    )
    m.program(nested).launch()
    # inner 0 -> buffer 1 at 4 + 4 bytes; inner 1 -> buffer 0 at 0.
    assert m.read(1) == [0, 0, 1, 0]
    assert m.read(0) == [110, 0, 0, 0]


@both
def test_while(conditional_nodes):
    m = Machine(1, 1, 1)
    m.write(2, [0])
    loop = While(
        (kernels.below(0, 1, 10),), BufferArg(1, "i8"), (kernels.add_one(0, 3), kernels.add_one(2))
    )
    program = m.program(loop, kernels.add_one(2, 100), conditional_nodes=conditional_nodes)
    assert program.segments == (1 if conditional_nodes else 2)
    for start, runs in ((0, 4), (9, 1), (10, 0), (-5, 5)):
        m.write(0, [start])
        m.write(2, [0])
        program.launch()
        assert m.read(2) == [100 + runs] and m.read(0) == [start + 3 * runs]


@both
def test_switch_clamps(conditional_nodes):
    m = Machine(1, 1)
    m.write(0, [0])
    branches = tuple((kernels.add_one(0, 10**i),) for i in range(3))
    program = m.program(Switch(BufferArg(1, "i32"), branches), conditional_nodes=conditional_nodes)
    for index in (0, 1, 2, -7, 99):
        m.write(1, [index])
        program.launch()
    assert m.read(0) == [212]


@both
@pytest.mark.parametrize("count", [0, 1, 5])
def test_repeat_counts_from_zero(conditional_nodes, count):
    m = Machine(1, 6)
    m.write(1, [-1] * 6)
    program = m.program(
        ForLoop(count, BufferArg(0, "i32"), (kernels.record(0, 1),)),
        conditional_nodes=conditional_nodes,
    )
    for _ in range(2):
        program.launch()
        assert m.read(0) == [count]
        assert m.read(1) == [10 * i if i < count else -1 for i in range(6)]
    assert program.segments <= 1, "a loop of known length needs no host"


@both
def test_loops_too_long_to_unroll(conditional_nodes, monkeypatch):
    monkeypatch.setattr(graph, "_LONGEST_UNROLLED", 8)
    m = Machine(1, 1)
    m.write(1, [0])
    body = (kernels.add_one(1), kernels.add_one(1))
    program = m.program(ForLoop(9, BufferArg(0, "i32"), body), conditional_nodes=conditional_nodes)
    program.launch()
    assert m.read(1) == [18] and m.read(0) == [9]


@both
def test_the_host_computes_between_graphs_and_drives_loops_around_that(conditional_nodes):
    m = Machine(1, 1)
    m.write(1, [1])
    negated = HostStep(HostCall(PRIMITIVES["neg"], (aval((1,), "int32"),), {}), (1,), (1,))
    loop = ForLoop(3, BufferArg(0, "i32"), (negated, kernels.add_one(1, 3)))
    program = m.program(
        kernels.add_one(1), loop, kernels.add_one(1, 10), conditional_nodes=conditional_nodes
    )
    assert program.segments == 3
    for start, end in ((1, 11), (7, 5)):  # x + 1, three times 3 - x, x + 10
        m.write(1, [start])
        program.launch()
        assert m.read(0) == [3] and m.read(1) == [end]


@both
def test_nesting(conditional_nodes):
    """for i in range(3): while x < 10 * (outer): ...; a branch inside."""
    m = Machine(1, 1, 1, 1, 1, 1)
    inner = While(
        (kernels.below(1, 2, 7),),
        BufferArg(2, "i8"),
        (
            kernels.add_one(1, 2),
            Switch(BufferArg(5, "i32"), ((), (kernels.add_one(3),))),
            ForLoop(2, BufferArg(4, "i32"), (kernels.add_one(3, 100),)),
        ),
    )
    program = m.program(
        ForLoop(3, BufferArg(0, "i32"), (Memset(1), inner)), conditional_nodes=conditional_nodes
    )
    for _ in range(2):
        m.write(3, [0])
        m.write(5, [1])
        program.launch()
        assert m.read(0) == [3] and m.read(1) == [8]
        assert m.read(3) == [3 * 4 * 201]


def test_places_outside_their_buffer_are_refused():
    m = Machine(1, 1)
    with pytest.raises(ValueError, match="outside its 4 bytes"):
        m.program(Copy(0, 1, 8))
    with pytest.raises(ValueError, match="outside"):
        m.program(Switch(BufferArg(1, "i32", 4), ((Memset(0),),)))


@pytest.mark.interpreted
def test_a_failed_capture_leaves_nothing_behind():
    m = Machine(1)
    m.write(0, [1])
    before = m.pool.in_use
    address = m.driver.reserve(2 * MIB)
    with pytest.raises(CudaError, match="ILLEGAL"):
        capture_program(m.place, [kernels.add_one(0)], [BufferAddress(address, 4)])
    assert m.pool.in_use == before

    class Failing(InterpretDriver):
        def fill(self, address, byte, size, stream):
            raise CudaError("fill", "CUDA_ERROR_INVALID_VALUE")

    driver = Failing(0, total_memory=64 * MIB)
    place = Runtime(driver)
    block = place.alloc(4)
    streams = []
    new_stream = driver.new_stream
    driver.new_stream = lambda: streams.append(new_stream()) or streams[-1]
    steps = [While((), BufferArg(0, "i8"), (Memset(0),))]
    with pytest.raises(CudaError, match="fill"):
        capture_program(place, steps, [BufferAddress(block.address, 4)])
    assert streams and all(s.recording is None for s in streams)


def test_executables_keep_their_owners_and_scratch():
    m = Machine(1)
    m.write(0, [0])

    class Owner:
        pass

    owner = Owner()
    watch = weakref.ref(owner)
    program = capture_program(m.place, [kernels.add_one(0)], m.buffers, owners=[owner])
    del owner
    gc.collect()
    assert watch() is not None
    program.launch()
    program.close()
    with pytest.raises(RuntimeError, match="closed"):
        program.launch()
    del program
    gc.collect()
    assert watch() is None


@pytest.mark.interpreted
def test_executables_keep_the_code_that_their_graphs_run():
    m = Machine(1)
    held = []

    class Watched(type(m.driver)):
        def prepare(self, launches):
            prepared = super().prepare(launches)
            held.extend([weakref.ref(one) for one in prepared])
            return prepared

    m.write(0, [0])
    m.driver.__class__ = Watched
    program = m.program(
        kernels.add_one(0), ForLoop(3, BufferArg(0, "i32"), (kernels.add_one(0, 0),))
    )
    gc.collect()
    assert len(held) == 2 and all(one() is not None for one in held)
    program.launch()
    assert m.read(0) == [3]
    del program
    gc.collect()
    assert all(one() is None for one in held)


@pytest.mark.interpreted
def test_scratch_memory_is_allocated_once_for_all_launches():
    m = Machine(1, 1)
    bound = []

    class Needs(InterpretDriver):
        def prepare(self, launches):
            prepared = super().prepare(launches)
            for i, one in enumerate(prepared):
                one.scratch_bytes = (i + 1) * MIB
                bind = one.bind
                one.bind = lambda a, scratch=0, within=(), f=bind: bound.append(scratch) or f(a)
            return prepared

    m.driver.__class__ = Needs
    program = m.program(kernels.add_one(0), kernels.add_one(1))
    assert len(set(bound)) == 1 and bound[0] != 0
    assert m.pool.in_use == 2 * 512 + 2 * MIB
    del program
    gc.collect()
    m.pool.reclaim()
    assert m.pool.in_use == 2 * 512


@pytest.mark.interpreted
def test_captures_do_not_nest_and_streams_capture_one_at_a_time():
    driver = InterpretDriver(0, total_memory=64 * MIB)
    stream = driver.new_stream()
    driver.begin_capture(stream)
    with pytest.raises(CudaError, match="already capturing"):
        driver.begin_capture(stream)
    with pytest.raises(CudaError, match="CAPTURE_UNSUPPORTED"):
        driver.synchronize(stream)
    driver.abandon_capture(stream)
    with pytest.raises(CudaError, match="not capturing"):
        driver.end_capture(stream)
