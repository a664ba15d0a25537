"""One of two processes that run CUDA programs with collectives, and compare with NumPy.

`test_collectives.py` starts them on the interpreting driver. On two GPUs, from the root:

    export GENESIS_CUDA_DRIVER=cuda PYTHONPATH=.
    for r in 0 1; do python tests/cuda/pair.py store $r & done; wait
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from programs import get, put
from torch.distributed import FileStore

from genesis_fn.compiler.simplify import collectives as turning
from genesis_fn.core.aval import aval
from genesis_fn.core.device import cuda, decide_default, devices
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import make_mesh
from genesis_fn.core.sharding.world import World, enter_world
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.shape import reshape
from genesis_fn.transforms.batching import collectives as col, exchanges
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.staging.stage_trace import stage

SIZE = 2


def main(path: str, rank: int) -> None:
    """Compare every collective."""
    enter_world(World(rank, SIZE, rank, 60.0, FileStore(path, SIZE)))
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
    print("agreed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
