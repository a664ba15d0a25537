"""Collectives of a mesh in CUDA programs: the form they are given, and what runs."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from programs import get, put

import genesis_fn as gf
from genesis_fn import lax
from genesis_fn.backends.cuda.driver.drivers import implementation
from genesis_fn.backends.cuda.driver.interpret import InterpretDriver
from genesis_fn.backends.cuda.run import exchanges, graph, steps as steps_of
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify import collectives as turning
from genesis_fn.compiler.simplify.collectives import contiguous_collectives
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.device import cuda, remote_device
from genesis_fn.core.errors import BackendError
from genesis_fn.core.jaxpr import Jaxpr, check
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import Mesh, MeshAxis
from genesis_fn.core.sharding.world import World, enter_world, world
from genesis_fn.kernels.plan import Launch
from genesis_fn.lax.fused import cross_entropy
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.shape import reshape, slice_in_dim
from genesis_fn.transforms.batching import collectives as col, exchanges as ex
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.sharding import rules as rules
from genesis_fn.transforms.sharding.partitioner import partition
from genesis_fn.transforms.staging.stage_trace import stage_closed

pytestmark = pytest.mark.skipif(
    implementation() == "cuda", reason="one process cannot be two on a GPU"
)
HERE, SIZE = 1, 2


class Mirror:
    """A group of two whose other member has the same values as this one."""

    size, position = SIZE, HERE

    def __init__(self) -> None:
        self.calls: list[str] = []

    def all_gather(self, x: torch.Tensor, what: str) -> torch.Tensor:
        self.calls.append(what)
        return torch.stack([x, x])

    def all_to_all(self, x: torch.Tensor, what: str) -> torch.Tensor:
        self.calls.append(what)
        return torch.stack([x[HERE], x[HERE]])

    def send(
        self, x: torch.Tensor, to: int | None, source: int | None, what: str
    ) -> torch.Tensor | None:
        self.calls.append(what)
        return None if source is None else x.clone()


class Watched:
    """Counts collectives."""

    collectives = 0


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """The second process of two."""
    group = Mirror()
    asked: list[Any] = []
    monkeypatch.setattr(
        InterpretDriver,
        "communicator",
        lambda self, groups, messages: asked.append((groups, messages)) or group,
    )
    group.asked = asked
    enter_world(World(HERE, SIZE))
    yield group
    enter_world(World())


def mesh_axis(name: str = "i", shape: tuple[int, ...] = (SIZE,)) -> MeshAxis:
    """An axis of a mesh of two processes, with this one's device in it."""
    places = [cuda() if r == HERE else remote_device("cuda", r) for r in range(SIZE)]
    grid = np.empty(SIZE, object)
    grid[:] = places
    return Mesh(grid.reshape(shape), tuple("ij"[: len(shape)])).axes[name]


def staged(f: Callable[..., Any], *xs: np.ndarray) -> Jaxpr:
    """The program of `f`."""
    return stage_closed(f, [aval(x.shape, x.dtype) for x in xs])


def run(f: Callable[..., Any], *xs: Any) -> tuple[list[np.ndarray], CudaExecutable]:
    """(results of a second call, the executable)."""
    xs = [np.asarray(x) for x in xs]
    executable = cuda().backend.compile(staged(f, *xs), cuda())
    for _ in range(2):
        outs = executable(*[put(x) for x in xs])
    return [get(o) for o in outs], executable


def segments(executable: CudaExecutable, *xs: np.ndarray) -> int:
    """How many graphs and host decisions a call runs."""
    found = [put(x) for x in xs]
    outputs = [executable.runtime.alloc(out.bytes) for _, out in executable.io.outputs]
    addresses = [x.data.address for x in found] + [b.address for b in outputs]
    return executable.binding.capture(addresses).segments


def values(kind: dtypes.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Small random numbers, whose doubles every dtype has."""
    rng = np.random.default_rng(0)
    found = rng.integers(0, 2 if kind == dtypes.BOOL else 50, shape)
    found = found + 1j * rng.integers(0, 50, shape) if dtypes.is_complex(kind) else found
    if kind in (dtypes.F8E4, dtypes.F8E5):
        found = found % 8
    return found.astype(kind)


every_dtype = pytest.mark.parametrize("kind", dtypes.ALL, ids=str)


@every_dtype
def test_sums_of_every_dtype(mirror, kind):
    axis, x = mesh_axis(), values(kind, (4, 3))
    outs, _ = run(lambda x: [bind(col.psum_invariant_p, x, axis_name=axis)], x)
    assert outs[0].dtype == kind
    np.testing.assert_array_equal(outs[0], x + x)
    y = x[:2]
    outs, _ = run(lambda y: [bind(col.psum_scatter_p, y, axis_name=axis, axis=0, size=2)], y)
    np.testing.assert_array_equal(outs[0], y[HERE] + y[HERE])


@every_dtype
def test_bytes_of_every_dtype_move(mirror, kind):
    axis, x = mesh_axis(), values(kind, (3, 2, 4))
    outs, _ = run(
        lambda x: [
            bind(col.all_gather_p, x, axis_name=axis, axis=2, size=2),
            bind(col.all_gather_invariant_p, x, axis_name=axis, axis=0, size=2),
            bind(ex.all_to_all_p, x, axis_name=axis, split=1, concat=2, size=2),
            bind(ex.ppermute_p, x, axis_name=axis, perm=((0, 1), (1, 0))),
            bind(ex.ppermute_p, x, axis_name=axis, perm=((1, 0),)),
        ],
        x,
    )
    np.testing.assert_array_equal(outs[0], np.stack([x, x], 2))
    np.testing.assert_array_equal(outs[1], np.stack([x, x]))
    np.testing.assert_array_equal(outs[2], np.stack([x[:, HERE], x[:, HERE]], 2))
    np.testing.assert_array_equal(outs[3], x)
    np.testing.assert_array_equal(outs[4], np.zeros_like(x))


@pytest.mark.parametrize("kind", [d for d in dtypes.ALL if d not in dtypes.COMPLEX], ids=str)
def test_extremes_of_every_dtype(mirror, kind):
    axis, x = mesh_axis(), values(kind, (7,))
    if kind in dtypes.FLOATS or kind in dtypes.SIGNED:
        x = np.concatenate([x, -x])
    if kind in dtypes.FLOATS:
        x = np.concatenate([x, np.array([np.nan, -np.nan, -0.0, 0.0], np.float32).astype(kind)])
    if kind in dtypes.FLOATS and kind != dtypes.F8E4:  # which has no infinity
        x = np.concatenate([x, np.array([np.inf, -np.inf], np.float32).astype(kind)])
    both = lambda x: [
        bind(col.pmax_p, x, axis_name=axis), bind(col.pmin_p, x, axis_name=axis)
    ]  # fmt: skip
    for found in run(both, x)[0]:
        assert found.dtype == kind
        np.testing.assert_array_equal(found.astype(np.float64), x.astype(np.float64))


def test_complex_numbers_have_no_maximum(mirror):
    axis = mesh_axis()
    with pytest.raises(BackendError, match=r"pmax of c64\[2\].*no order.*test_collectives.py"):
        run(lambda x: [bind(col.pmax_p, x, axis_name=axis)], np.ones(2, np.complex64))


def names(jaxpr: Jaxpr) -> list[str]:
    """The primitives of a program, in order."""
    return [e.prim.name for e in jaxpr.eqns]


def test_narrow_floats_are_added_as_float32(mirror):
    axis = mesh_axis()
    x = np.ones(4, ml_dtypes.bfloat16)
    found = contiguous_collectives(
        staged(lambda x: [bind(col.psum_invariant_p, x, axis_name=axis)], x)
    )
    cast = "convert_element_type"
    assert names(found) == [cast, "psum_invariant", cast]
    assert found.eqns[1].ins[0].aval.dtype == dtypes.F32
    assert found.outs[0].aval.dtype == dtypes.BF16


def test_what_is_exchanged_comes_first(mirror):
    axis, x = mesh_axis(), np.ones((3, 2, 4), np.float32)
    f = lambda x: [
        bind(col.all_gather_p, x, axis_name=axis, axis=1, size=2),
        bind(col.psum_scatter_p, x, axis_name=axis, axis=1, size=2),
    ]
    before = staged(f, x)
    after = contiguous_collectives(before)
    assert names(after) == ["all_gather", "transpose", "transpose", "psum_scatter"]
    assert [e.params["axis"] for e in after.eqns if e.prim.collective] == [0, 0]
    assert [o.aval.shape for o in after.outs] == [o.aval.shape for o in before.outs]
    assert before.outs[0].aval.varying == {"i"} and not after.outs[0].aval.varying
    assert contiguous_collectives(before) is after


def test_the_columns_of_a_large_matrix_are_exchanged_turned(mirror, monkeypatch):
    axis, rng = mesh_axis(), np.random.default_rng(0)
    x, part = rng.normal(size=(6, 5)), rng.normal(size=(5, 4))
    x, part = x.astype(np.float32), part.astype(np.float32)

    def f(x, part):
        blocks = bind(col.all_gather_invariant_p, part, axis_name=axis, axis=1, size=2)
        y = dot_general(x, reshape(blocks, (5, 8)), (((1,), (0,)), ((), ())), "highest")
        gradient = dot_general(x, y, (((0,), (0,)), ((), ())), "highest")
        blocks = reshape(gradient, (5, 2, 4))
        return [y, bind(col.psum_scatter_p, blocks, axis_name=axis, axis=1, size=2)]

    small, _ = run(f, x, part)
    monkeypatch.setattr(turning, "_LARGE", 40)
    # Made anew: a program is rewritten once.
    large, executable = run(lambda *xs: f(*xs), x, part)
    y = x @ np.concatenate([part, part], 1)
    for found in (small, large):  # sums of float32 in another order than NumPy's
        np.testing.assert_allclose(found[0], y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[1], 2 * (x.T @ y)[:, 4:], rtol=1e-5, atol=1e-5)
    # The parts are turned, and nothing of the whole matrix's size.
    turned = [e.outs[0].aval.shape for e in executable.program.eqns if e.prim.name == "transpose"]
    assert turned == [(4, 5), (5, 4)]


def test_a_gather_of_parameters_keeps_no_kernels_apart(mirror):
    axis, rng = mesh_axis(), np.random.default_rng(0)
    x, part = [rng.normal(size=s).astype(np.float32) / 8 for s in ((96, 64), (32, 32))]

    def f(x, part):
        kept = ops.tanh(x)
        square = reshape(dot_general(kept, kept, (((1,), (1,)), ((), ())), "highest"), (2, 48, 96))
        total = bind(col.psum_scatter_p, square, axis_name=axis, axis=0, size=2)
        whole = reshape(bind(col.all_gather_p, part, axis_name=axis, axis=0, size=2), (64, 32))
        d = dot_general(x, whole, (((1,), (0,)), ((), ())), "highest")
        d = dot_general(d, whole, (((1,), (1,)), ((), ())), "highest")
        return [total, ops.mul(d, ops.sub(1.0, ops.mul(kept, kept)))]

    outs, executable = run(f, x, part)
    whole, kept = np.concatenate([part, part]), np.tanh(x)
    # Sums of 64 float32 in another order than NumPy's.
    np.testing.assert_allclose(outs[0], 2 * (kept @ kept.T)[48:], rtol=1e-5, atol=1e-6)
    wanted = x @ whole @ whole.T * (1 - kept * kept)
    np.testing.assert_allclose(outs[1], wanted, rtol=1e-5, atol=1e-6)
    # tanh and what reads it are one kernel, though the sum comes before the gather.
    named = [item.summary.name for item in executable.schedule.items if item.summary]
    assert [name for name in named if "tanh" in name or "sub" in name] == ["tanh+mul+sub"]


def test_a_program_without_collectives_stays(mirror):
    program = staged(lambda x: [ops.add(x, x)], np.ones(2, np.float32))
    assert contiguous_collectives(program) is program


def test_an_axis_of_one_device_exchanges_nothing(mirror):
    axis, x = mesh_axis("j", (SIZE, 1)), np.arange(6.0, dtype=np.float32).reshape(3, 1, 2)
    p = {"axis_name": axis}
    f = lambda x: [
        bind(col.psum_invariant_p, x, **p),
        bind(col.pmax_p, x, **p),
        bind(col.all_gather_p, x, axis=1, size=1, **p),
        bind(col.psum_scatter_p, x, axis=1, size=1, **p),
        bind(ex.all_to_all_p, x, split=1, concat=2, size=1, **p),
        bind(ex.ppermute_p, x, perm=((0, 0),), **p),
        bind(ex.ppermute_p, x, perm=(), **p),
        bind(col.pvary_p, x, **p),
    ]
    assert not any(e.prim.collective for e in check(contiguous_collectives(staged(f, x))).eqns)
    outs, _ = run(f, x)
    wanted = [x, x, x[:, None], x[:, 0], x.transpose(0, 2, 1), x, 0 * x, x]
    for found, value in zip(outs, wanted, strict=True):
        np.testing.assert_array_equal(found, value)
    assert mirror.calls == []


def test_positions_are_values(mirror):
    axis = mesh_axis()
    (a, b), executable = run(
        lambda: [
            bind(col.axis_index_p, axis_name=axis),
            ops.mul(bind(col.axis_index_p, axis_name=axis), 5),
        ]
    )
    assert (a, b) == (HERE, 5 * HERE)
    # Programs of different places are the same but for the number that a step sets.
    assert [s.value for s in executable.schedule.steps if isinstance(s, steps_of.SetInteger)] == [
        HERE
    ]


def test_groups_are_asked_for_on_all_processes(mirror):
    devices = np.array([remote_device("cuda", r) for r in range(6)], object)
    devices[HERE] = cuda()
    mesh = Mesh(devices.reshape(2, 3), ("a", "b"))
    f = lambda x: [bind(col.psum_invariant_p, x, axis_name=mesh.axes[n]) for n in "ab"]
    run(f, np.ones(2, np.float32))
    assert mirror.asked == [(((0, 3), (1, 4), (2, 5)), False), (((0, 1, 2), (3, 4, 5)), False)]


def test_messages_are_told_from_collectives(mirror):
    """NCCL is asked for another communicator: one that both used wrote to illegal addresses."""
    p = {"axis_name": mesh_axis()}
    for messages, f in {
        False: lambda x: [
            bind(col.psum_invariant_p, x, **p),
            bind(col.pmax_p, x, **p),
            bind(col.all_gather_p, x, axis=0, size=SIZE, **p),
            bind(col.psum_scatter_p, x, axis=0, size=SIZE, **p),
        ],
        True: lambda x: [
            bind(ex.all_to_all_p, x, split=0, concat=0, size=SIZE, **p),
            bind(ex.ppermute_p, x, perm=((0, 1), (1, 0)), **p),
        ],
    }.items():
        mirror.asked.clear()
        found, _ = run(f, np.ones((2, 3), np.float32))
        assert [m for _, m in mirror.asked] == [messages] * len(found)


def test_a_sum_takes_the_memory_of_its_operand(mirror):
    axis, x = mesh_axis(), np.ones(1 << 16, np.float32)
    (y,), executable = run(
        lambda x: [ops.add(bind(col.psum_invariant_p, ops.sin(x), axis_name=axis), 1.0)], x
    )
    np.testing.assert_allclose(y, 2 * np.sin(1.0) + 1, rtol=1e-6)
    (step,) = members(executable.schedule.steps)
    assert step.source == step.destination
    assert executable.schedule.arena <= x.nbytes


def test_one_graph_holds_kernels_and_collectives(mirror):
    axis, x = mesh_axis(), np.ones(8, np.float32)
    f = lambda x: [ops.sin(bind(col.psum_invariant_p, ops.exp(x), axis_name=axis))]
    (y,), executable = run(f, x)
    np.testing.assert_allclose(y, np.sin(2 * np.exp(x)), rtol=1e-5)
    assert segments(executable, x) == 1


def test_short_loops_around_collectives_are_unrolled(mirror):
    axis, x = mesh_axis(), np.ones(4, np.float32)

    def body(c, _):
        c = ops.mul(bind(col.psum_invariant_p, c, axis_name=axis), 0.75)
        return c, c

    f = lambda x: list(scan(body, x, None, length=3))
    (last, rows), executable = run(f, x)
    np.testing.assert_allclose(last, x * 1.5**3, rtol=1e-6)
    np.testing.assert_allclose(rows[:, 0], [1.5, 1.5**2, 1.5**3], rtol=1e-6)
    assert segments(executable, x) == 1


def test_long_loops_around_collectives_are_the_hosts(mirror, monkeypatch):
    monkeypatch.setattr(graph, "_LONGEST_UNROLLED", 2)
    axis, x = mesh_axis(), np.ones(4, np.float32)
    body = lambda c, _: (ops.mul(bind(col.psum_invariant_p, c, axis_name=axis), 0.75), None)
    (last,), executable = run(lambda x: [scan(body, x, None, length=3)[0]], x)
    np.testing.assert_allclose(last, x * 1.5**3, rtol=1e-6)
    assert any(map(steps_of.has_host, executable.schedule.steps))
    assert segments(executable, x) > 1


def test_loops_and_branches_around_collectives_are_the_hosts(mirror):
    axis, x = mesh_axis(), np.ones(4, np.float32)
    doubled = lambda c: bind(col.psum_invariant_p, c, axis_name=axis)

    def f(x, k):
        many = while_loop(
            lambda c: ops.lt(c[0], 3), lambda c: (ops.add(c[0], 1), doubled(c[1])), (k, x)
        )
        return [many[1], cond(ops.gt(k, 0), lambda x: x, doubled, x)]

    (a, b), executable = run(f, x, np.int32(0))
    np.testing.assert_array_equal(a, 8 * x)
    np.testing.assert_array_equal(b, 2 * x)
    assert any(map(steps_of.has_host, executable.schedule.steps))


def members(steps):
    """The collectives of a schedule, in order."""
    return [
        m
        for s in steps
        if isinstance(s, (steps_of.Collective, steps_of.Collectives))
        for m in getattr(s, "members", (s,))
    ]


def test_loops_without_collectives_stay_nodes_beside_them(mirror):
    axis, x = mesh_axis(), np.ones(4, np.float32)
    inner = lambda c, _: (ops.mul(c, 0.5), None)

    def outer(c, _):
        c = scan(inner, c, None, length=5)[0]
        return bind(col.psum_invariant_p, c, axis_name=axis), None

    (y,), executable = run(lambda x: [scan(outer, x, None, length=2)[0]], x)
    np.testing.assert_allclose(y, x * (2 * 0.5**5) ** 2)
    assert segments(executable, x) == 1


def test_collectives_start_early_and_are_joined_late(mirror):
    axis, x = mesh_axis(), np.ones(4, np.float32)
    p = {"axis_name": axis}

    def f(x):
        a = bind(col.psum_invariant_p, ops.sin(x), **p)
        b = bind(ex.ppermute_p, x, perm=((0, 1), (1, 0)), **p)
        c = bind(col.all_gather_p, dot_general(b, b, (((0,), (0,)), ((), ()))), axis=0, size=2, **p)
        return [c, b, a]

    names = lambda steps: [m.name.split()[0] for m in members(steps)]
    with without("overlap"):
        _, executable = run(f, x)
    assert names(executable.schedule.steps) == ["psum_invariant", "ppermute", "all_gather"]
    _, executable = run(lambda *xs: f(*xs), x)
    steps = executable.schedule.steps
    # What sends an input starts at once; each is joined once, behind its start.
    assert names(steps) == ["ppermute", "psum_invariant", "all_gather"]
    starts = {s.number: n for n, s in enumerate(steps) if isinstance(s, steps_of.Collectives)}
    joins = {s.number: n for n, s in enumerate(steps) if isinstance(s, steps_of.Join)}
    assert starts.keys() == joins.keys() and all(starts[k] < joins[k] for k in starts)


def order(steps: Any) -> list[str]:
    """A letter for each step: kernels, starts of collectives, joins."""
    letter = {steps_of.Collectives: "start", steps_of.Join: "join"}
    return [letter.get(type(s), "kernel") for s in steps]


def test_what_makes_the_operand_of_a_gather_moves_ahead_with_it(mirror):
    axis, x = mesh_axis(), np.ones((16, 16), np.float32)
    product = lambda a, b: dot_general(a, b, (((1,), (0,)), ((), ())))

    def f(x, w):
        y = product(product(x, x), x)
        part = ops.convert(ops.sin(w), np.dtype(np.float16))
        whole = bind(col.all_gather_p, part, axis=0, size=2, axis_name=axis)
        whole = ops.convert(reshape(whole, (32, 16)), np.dtype(np.float32))
        return [product(y, slice_in_dim(whole, 16, 32))]

    with without("overlap", "horizontal"):
        (want,), executable = run(f, x, 2 * x)
    before = executable.schedule.steps
    with without("horizontal"):  # a small product shares a launch with what it does not need
        (got,), executable = run(lambda *xs: f(*xs), x, 2 * x)
    np.testing.assert_array_equal(got, want)
    # The cast, the exchange beside two products, then what needs its result.
    assert order(before)[:4] == ["kernel", "kernel", "kernel", "kernel"], order(before)
    assert order(executable.schedule.steps)[:5] == ["kernel", "start", "kernel", "kernel", "join"]


def test_an_update_waits_at_the_end_for_a_sum_that_takes_longer(mirror, monkeypatch):
    from genesis_fn.backends.cuda.lower import overlap

    axis, x = mesh_axis(), np.ones((16, 16), np.float32)
    product = lambda a, b: dot_general(a, b, (((1,), (0,)), ((), ())))

    def f(x, w, v):
        total = bind(col.psum_invariant_p, product(x, x), axis_name=axis)
        return [ops.sub(w, total), product(product(v, v), v)]

    for rate, wanted in [(1e18, ["join", "kernel", "kernel", "kernel"]),
                         (1.0, ["kernel", "kernel", "join", "kernel"])]:  # fmt: skip
        monkeypatch.setattr(
            overlap, "_bytes", lambda item, table, rate=rate: table.target.link / rate
        )
        with without("horizontal"):  # small products share launches
            (w, v), executable = run(lambda *xs: f(*xs), x, 3 * x, x)
        np.testing.assert_array_equal(w, 3 * x - 2 * (x @ x))
        np.testing.assert_array_equal(v, x @ x @ x)
        steps = order(executable.schedule.steps)
        assert steps[:2] == ["kernel", "start"] and steps[2:] == wanted


def test_kernels_beside_collectives_run_in_rounds(mirror, monkeypatch):
    axis, x = mesh_axis(), np.ones((64, 64), np.float32)
    seen: list[Any] = []
    monkeypatch.setattr(Launch, "in_rounds", lambda launch: seen.append(launch) or launch)
    product = lambda a, b: dot_general(a, b, (((1,), (0,)), ((), ())))

    def f(x, w):
        y = product(w, w)
        total = bind(col.psum_invariant_p, ops.sin(y), axis_name=axis)
        return [product(product(y, x), x), total]

    run(f, x, x)
    assert 0 < len(seen) < 3  # of three products those behind the start
    seen.clear()
    run(lambda x, w: f(x, w)[:1], x, x)  # nothing is exchanged
    assert seen == []


def test_gathers_run_ahead_of_their_uses_by_a_limited_number_of_bytes(mirror, monkeypatch):
    from genesis_fn.backends.cuda.lower import overlap

    x = np.ones((16, 16), np.float32)
    monkeypatch.setattr(overlap, "_AHEAD", 7 * x.nbytes)  # a gather reads one and writes two
    monkeypatch.setattr(overlap, "_TOGETHER", 0)
    axis = mesh_axis()

    def f(y, *ws):
        for w in ws:
            whole = bind(col.all_gather_p, w, axis=0, size=2, axis_name=axis)
            y = dot_general(y, reshape(whole, (32, 16)), (((1,), (1,)), ((), ())))
            y = slice_in_dim(y, 0, 16, axis=1)
        return [y]

    _, executable = run(f, *[x + k for k in range(8)])
    ahead = most = 0
    for s in executable.schedule.steps:
        ahead += isinstance(s, steps_of.Collectives) - isinstance(s, steps_of.Join)
        most = max(most, ahead)
    assert most == 2


def test_a_collective_outside_of_programs_is_one_of_its_own(mirror):
    axis, x = mesh_axis(), np.ones(4, np.float32)
    np.testing.assert_array_equal(get(bind(col.psum_p, put(x), axis_name=axis)), 2 * x)
    gathered = get(bind(col.all_gather_p, put(x), axis_name=axis, axis=1, size=SIZE))
    np.testing.assert_array_equal(gathered, np.stack([x, x], 1))


def test_no_elements_exchange_nothing(mirror):
    axis = mesh_axis()
    (y,), _ = run(
        lambda x: [bind(col.all_gather_p, x, axis_name=axis, axis=0, size=2)],
        np.ones((0, 3), np.float32),
    )
    assert y.shape == (2, 0, 3) and mirror.calls == []


def test_programs_that_wait_for_others_are_seen(mirror, monkeypatch):
    axis, x = mesh_axis(), np.ones(4, np.float32)
    monkeypatch.setattr(exchanges, "_all", [])
    run(lambda x: [ops.sin(x)], x)
    assert exchanges._all == [] and exchanges.failed() is None
    enter_world(World(HERE, SIZE, timeout=0.0, watch=Watched()))
    ended = False
    monkeypatch.setattr(InterpretDriver, "done", lambda self, event: ended)
    for _ in range(2):
        run(lambda x: [bind(col.psum_invariant_p, x, axis_name=axis)], x)
    (found,) = exchanges._all
    assert found.waiting() > 0 and "has waited for other processes for 0 s" in exchanges.failed()
    ended = True
    assert found.waiting() == 0.0 and exchanges.failed() is None
    assert world().watch.collectives == 4


def test_launches_that_nobody_asks_for_are_forgotten(mirror, monkeypatch):
    monkeypatch.setattr(exchanges, "_all", [])
    driver = InterpretDriver(0)
    found = exchanges.Exchanges(driver)
    for _ in range(200):
        found.launched()
    assert len(found._pending) + len(found._spare) <= exchanges._KEPT


def test_steps_with_collectives_can_be_measured(mirror):
    axis, x = mesh_axis(), np.ones(8, np.float32)
    _, executable = run(lambda x: [ops.sin(bind(col.psum_invariant_p, x, axis_name=axis))], x)
    _, found = executable.measure([put(x)], 2)
    assert "psum_invariant" in [step.name for step in found.steps]
    assert "psum_invariant" in executable.report()


def test_two_processes(tmp_path):
    """Real exchanges: `pair.py` compares with NumPy, in two processes that meet through gloo."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, str(here / "pair.py"), str(tmp_path / "store")]
    processes = [
        subprocess.Popen(
            [*command, str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [p.communicate(timeout=300)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(said)


def test_a_divided_vocabulary_holds_a_chunk_of_logits_at_a_time(mirror, monkeypatch):
    """Of eight chunks; the weight is small beside the logits. The other device has the same words,
    of which this one has the second half: every label is its own."""
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", 0)
    monkeypatch.setattr(cross_entropy, "_CHUNK_ROWS", 16)
    rng, rows, words = np.random.default_rng(0), 128, 256
    x, weight = (rng.normal(size=(n, 8)).astype(np.float32) for n in (rows, words))
    labels = rng.integers(words, 2 * words, rows).astype(np.int32)
    whole = np.concatenate([weight, weight])
    loss = functools.partial(lax.linear_cross_entropy, reduction="sum")
    layouts = (((), ()), (("i",), ()), ((),))
    with gf.default_matmul_precision("highest"):
        program = gf.jit(gf.value_and_grad(loss, argnums=(0, 1))).trace(x, whole, labels).jaxpr
        part, _ = partition(program, mesh_axis().mesh, layouts, (None,) * 3)
        executable = cuda().backend.compile(part, cuda())
        value, _, of_weight = map(get, executable(*map(put, (x, weight, labels))))
    both = [torch.tensor(v, requires_grad=True) for v in (x, whole)]
    wanted = torch.nn.functional.cross_entropy(
        both[0] @ both[1].T, torch.tensor(labels).long(), reduction="sum"
    )
    # The other one's sum has the logit of the label too.
    at_label = (x * weight[labels - words]).sum()
    np.testing.assert_allclose(value, wanted.item() - at_label, rtol=1e-5)
    wanted.backward()
    assert both[1].grad is not None
    np.testing.assert_allclose(of_weight, both[1].grad[words:], atol=1e-5)
    assert executable.schedule.arena < rows * words * 4 / 2
