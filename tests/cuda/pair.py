"""One of two processes that run CUDA programs with collectives, and compare with NumPy.

`test_collectives.py` starts them on the interpreting driver. On two GPUs, from the root:

    export GENESIS_CUDA_DRIVER=cuda PYTHONPATH=.
    for r in 0 1; do python tests/cuda/pair.py store $r & done; wait
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from programs import get, put
from torch.distributed import FileStore

from genesis_fn.backends.cuda.memory.dlpack import from_dlpack
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.compiler.simplify import collectives as turning
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import aval, sig
from genesis_fn.core.device import Device, cuda, decide_default, devices
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import make_mesh
from genesis_fn.core.sharding.world import World, enter_world
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.shape import reshape, slice_in_dim
from genesis_fn.transforms.batching import collectives as col, exchanges
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.staging.stage_trace import stage

SIZE = 2


def main(path: str, rank: int) -> None:
    """Compare every collective."""
    enter_world(World(rank, SIZE, rank, 60.0, FileStore(path, SIZE), direct=True))
    here = cuda(rank)
    decide_default(here)
    axis = make_mesh((SIZE,), ("i",), devices=devices("cuda")).axes["i"]

    def agree(
        f: Callable[..., Any], wanted: Callable[..., Any], made: Callable[..., np.ndarray]
    ) -> None:
        """`f` on this process's values gives `wanted` of all processes' values."""
        everyone = [made(np.random.default_rng(r)) for r in range(SIZE)]
        x = everyone[rank]
        program, captured = stage(lambda x: [f(x)], [aval(x.shape, x.dtype, frozenset("i"))])
        run = here.backend.compile(program, here)
        for _ in range(2):
            (found,) = run(*[put(np.asarray(c), here) for c in captured], put(x, here))
        np.testing.assert_array_equal(get(found), wanted(everyone))

    real = lambda *shape: lambda rng: rng.normal(size=shape).astype(np.float32)
    p: dict[str, Any] = {"axis_name": axis}
    total = lambda x: bind(col.psum_invariant_p, x, **p)
    agree(total, sum, real(5, 3))
    agree(total, sum, lambda rng: rng.integers(-128, 127, 9).astype(np.int8))
    agree(total, sum, lambda rng: rng.integers(0, 2**63, 9).astype(np.uint64))
    agree(total, sum, lambda rng: (rng.normal(size=4) + 1j * rng.normal(size=4)).astype("c8"))
    half = lambda rng: rng.normal(size=64).astype(ml_dtypes.bfloat16)
    rounded = lambda xs: sum([x.astype(np.float32) for x in xs]).astype(ml_dtypes.bfloat16)
    agree(total, rounded, half)

    def special(rng: np.random.Generator) -> np.ndarray:
        choice = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 3e38, 1e-40]
        return rng.choice(choice, 200).astype(np.float32)

    agree(lambda x: bind(col.pmax_p, x, **p), lambda xs: np.maximum(*xs), special)
    agree(lambda x: bind(col.pmin_p, x, **p), lambda xs: np.minimum(*xs), special)
    agree(lambda x: bind(col.pmax_p, x, **p), lambda xs: np.maximum(*xs), half)
    bits = lambda rng: rng.integers(0, 2, 9).astype(bool)
    agree(lambda x: bind(col.pmin_p, x, **p), lambda xs: xs[0] & xs[1], bits)

    for at in (0, 1, 2):
        gathered = lambda xs: np.stack(xs, at)
        gather = lambda x: bind(col.all_gather_p, x, axis=at, size=SIZE, **p)
        agree(gather, gathered, real(3, 4))
    for at in (0, 1):
        scatter = lambda x: bind(col.psum_scatter_p, x, axis=at, size=SIZE, **p)
        agree(scatter, lambda xs: np.take(xs[0] + xs[1], rank, at), real(2, 2, 3))
        for to in (0, 1, 2):
            params = {"split": at, "concat": to, "size": SIZE, **p}
            exchanged = lambda xs: np.stack([np.take(x, rank, at) for x in xs], to)
            agree(lambda x: bind(exchanges.all_to_all_p, x, **params), exchanged, real(2, 2, 3))

    # Columns of a matrix, as of a large one: it is turned.
    turning._LARGE = 1
    columns = lambda x: reshape(bind(col.all_gather_p, x, axis=1, size=SIZE, **p), (3, 8))
    agree(columns, lambda xs: np.concatenate(xs, 1), real(3, 4))

    def summed(x: Any) -> Any:
        blocks = reshape(ops.mul(x, 2.0), (3, SIZE, 4))
        return bind(col.psum_scatter_p, blocks, axis=1, size=SIZE, **p)

    agree(summed, lambda xs: np.split(2 * (xs[0] + xs[1]), SIZE, 1)[rank], real(3, 8))

    for perm in [((0, 1), (1, 0)), ((0, 1),), ((1, 0),), ((0, 0), (1, 1)), ((1, 1),)]:
        source = {d: s for s, d in perm}
        moved = lambda xs: xs[source[rank]] if rank in source else 0 * xs[0]
        agree(lambda x: bind(exchanges.ppermute_p, x, perm=perm, **p), moved, real(3, 4))

    # Here and there in a loop, unrolled into the graph or driven by the host.
    ring = ((0, 1), (1, 0))

    def step(c: Any, _: Any) -> Any:
        seen, x = c
        x = bind(exchanges.ppermute_p, x, perm=ring, **p)
        return (ops.add(seen, x), x), None

    around = lambda x: scan(step, (x, x), None, length=SIZE - 1)[0][0]
    agree(around, sum, real(6))
    more = lambda c: (ops.add(c[0], 1), bind(col.pvary_p, total(c[1]), **p))
    grown = lambda x: while_loop(lambda c: ops.lt(c[0], 2), more, (0, x))[1]
    agree(grown, lambda xs: 2 * sum(xs), lambda rng: rng.integers(0, 99, 5).astype(np.int32))
    placed = lambda x: ops.add(x, ops.convert(bind(col.axis_index_p, **p), x.dtype))
    agree(placed, lambda xs: xs[rank] + np.float32(rank), lambda rng: real()(rng))
    memory(rank, here, p)
    print("agreed")


def memory(rank: int, here: Device, p: dict[str, Any]) -> None:
    """Collectives whose memory is here on one process, and there on the other."""
    runtime = device_runtime(rank)
    interpreted = runtime.driver.info.target.interpreted
    part, count = (1 << 18) + 64 if interpreted else (1 << 22) + 64, 5  # of 16 MiB and a bit
    rng = np.random.default_rng(7)
    everyone = rng.normal(size=(SIZE, count * part)).astype(np.float32)

    def exchanged(x: Any) -> Any:
        return bind(exchanges.all_to_all_p, x, split=0, concat=0, size=SIZE, **p)

    def several(exchange: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
        def apply(x: Any) -> list[Any]:
            parts = [slice_in_dim(x, i * part, (i + 1) * part) for i in range(count)]
            return [exchange(reshape(x, (SIZE, part // SIZE))) for x in parts]

        return apply

    def compiled(f: Callable[[Any], list[Any]], shape: tuple[int, ...]) -> Any:
        program, _ = stage(f, [aval(shape, np.dtype("float32"), frozenset("i"))])
        return here.backend.compile(program, here)

    def rotated(x: Any) -> Any:
        return bind(exchanges.ppermute_p, x, perm=((0, 1), (1, 0)), **p)

    ways: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
        "all-to-all": (exchanged, lambda xs: np.stack([x.reshape(SIZE, -1)[rank] for x in xs])),
        "permute": (rotated, lambda xs: xs[1 - rank].reshape(SIZE, -1)),
        "gather": (
            lambda x: bind(col.all_gather_p, x, axis=0, size=SIZE, **p),
            lambda xs: xs.reshape(SIZE, SIZE, -1),
        ),
        "sum": (
            lambda x: bind(col.psum_invariant_p, x, **p),
            lambda xs: xs.sum(0).reshape(SIZE, -1),
        ),
    }
    x, programs = put(everyone[rank], here), []
    for name, (exchange, wanted) in ways.items():
        run = compiled(several(exchange), (count * part,))
        programs.append(run)  # the memory of temporaries stays where the first run puts it
        run(x)
        runtime.pool.empty_cache()
        # Results have not enough room in the memory that is there, which ends elsewhere on each
        # process.
        rest, held = part * (2 + rank), []
        while (more := runtime.pool.large_space.largest_free - rest) > 2 << 20:
            held.append(runtime.alloc(more * 7 // 8))
        for turn in range(3):
            found = run(x)
            for i, y in enumerate(found):
                xs = everyone[:, i * part : (i + 1) * part]
                np.testing.assert_array_equal(get(y), wanted(xs), err_msg=f"{name}, {turn}")
            del found, y
            if turn == 0:
                # The memory of these results must stay, which the other process writes to; it is in
                # its next exchange already.
                time.sleep(0.3 * rank)
                runtime.pool.empty_cache()

    # Memory of another library, on one process.
    own = torch.from_numpy(everyone[rank][: 2 * part])
    for name, (exchange, wanted) in ways.items():
        run = compiled(lambda x, e=exchange: [e(reshape(x, (SIZE, part)))], (2 * part,))
        moved = own.to(f"cuda:{rank}") if not interpreted else own.clone()
        for _ in range(2):
            given = put(own.numpy(), here)
            if rank == 0:
                imported = from_dlpack(moved, runtime.driver).buffer
                given = ArrayImpl(imported, sig(aval(own.shape, np.dtype("float32")), here))
            found = run(given)
            xs = everyone[:, : 2 * part]
            np.testing.assert_array_equal(get(found[0]), wanted(xs), err_msg=f"{name}, imported")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
