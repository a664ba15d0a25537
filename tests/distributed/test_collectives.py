"""Collectives between processes against NumPy: every dtype, the same bits on every rank."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.core.sharding.world import world
from genesis_fn.transforms.batching.collectives import axis_index_p, psum_invariant_p
from tests.distributed import programs
from tests.distributed.conftest import NCCL, Launcher

SIZES = [2, 3, 4]
Found = list[dict[str, np.ndarray]]
Worlds = Callable[[int], Found]


@pytest.fixture(scope="session")
def worlds(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """What each process of a world of so many found."""

    @functools.cache
    def of(size: int) -> Found:
        world = launcher.start("everything", size, tmp_path_factory.mktemp(f"world {size}"))
        statuses = world.wait()
        assert statuses == [0] * size, "\n".join(world.said(r) for r in range(size))
        assert [world.said(r) for r in range(size)] == [""] * size
        return [programs.read(world.folder, r) for r in range(size)]

    return of


def total(xs: list[np.ndarray]) -> np.ndarray:
    """The sum, the first rank first: narrow floats in float32, rounded once."""
    kind = xs[0].dtype
    narrow = kind.itemsize < 4 and kind.kind not in "iu"
    result = xs[0].astype(np.float32 if narrow else kind)
    for x in xs[1:]:
        with np.errstate(over="ignore"):
            result = result + x.astype(result.dtype)
    return result.astype(kind)


def expected(case: str, xs: list[np.ndarray], rank: int) -> Any:
    """What a rank gets of the values of all."""
    n = len(xs)
    if case in programs.EXTREMES:
        wide = xs[0].dtype.kind in "iub" or xs[0].dtype.itemsize >= 4
        pick = np.maximum if case == "pmax" else np.minimum
        return pick.reduce([x if wide else x.astype(np.float32) for x in xs]).astype(xs[0].dtype)
    if case == "psum_scatter":
        return total(xs)[:, rank]
    if case in programs.SUMS:
        return total(xs)
    if case == "all_gather":
        return np.stack(xs, 1)
    if case in ("all_gather_invariant", "of_nothing"):
        return np.stack(xs, 0)
    if case == "all_to_all":
        return np.stack([x[rank] for x in xs], 1)
    if case == "ppermute":
        return xs[rank - 1] if rank else np.zeros_like(xs[0])
    assert case == "rotation"
    return xs[(rank - 1) % n]


def same_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    assert got.tobytes() == np.ascontiguousarray(wanted).tobytes(), (got, wanted)


def same_as_numpys(got: np.ndarray, case: str, xs: list[np.ndarray], rank: int) -> None:
    """Bit for bit. NCCL adds along a ring that begins elsewhere for each part of an array: each
    number is a sum in one of all orders."""
    wanted = expected(case, xs, rank)
    if not NCCL or case not in programs.SUMS:
        same_bits(got, wanted)
        return
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    size = got.dtype.itemsize // (2 if got.dtype.kind == "c" else 1)
    bits = lambda x: np.frombuffer(np.ascontiguousarray(x).tobytes(), f"V{size}")
    sums = [bits(expected(case, [*order], rank)) for order in itertools.permutations(xs)]
    assert np.any([bits(got) == s for s in sums], 0).all(), (got, wanted)


@pytest.mark.parametrize("kind", programs.DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_collectives_are_numpys(worlds: Worlds, size: int, kind: str):
    for case, of in programs.CASES.items():
        if not programs.applies(case, kind):
            continue
        xs = [programs.values(r, kind, of(size)[2]) for r in range(size)]
        for rank in range(size):
            for how in ("", "compiled "):
                got = worlds(size)[rank].get(f"{how}{case} {kind}")
                assert how or got is not None
                if got is None:
                    continue
                same_as_numpys(got, case, xs, rank)
                if case in programs.SUMS and case != "psum_scatter":
                    same_bits(got, worlds(size)[0][f"{how}{case} {kind}"])


@pytest.mark.parametrize(
    "axis, groups", [("rows", [[0, 2], [1, 3]]), ("columns", [[0, 1], [2, 3]])]
)
def test_collectives_along_one_axis_of_two(worlds: Worlds, axis: str, groups: list[list[int]]):
    for ranks in groups:
        for case, of in programs.CASES.items():
            xs = [programs.values(r, "float32", of(2)[2]) for r in ranks]
            for position, rank in enumerate(ranks):
                got = worlds(4)[rank]
                same_as_numpys(got[f"{axis} {case} float32"], case, xs, position)
                assert got[f"{axis} axis_index"] == position


@pytest.mark.parametrize("size", SIZES)
def test_processes_know_their_places(worlds: Worlds, size: int):
    for rank, got in enumerate(worlds(size)):
        wanted = [rank, size, rank, size, size, 1, rank, size - 1]
        assert got["world"].tolist() == wanted
        assert got["axis_index"] == rank


@pytest.mark.parametrize("size", SIZES)
def test_trees_are_exchanged(worlds: Worlds, size: int):
    last = size - 1
    for got in worlds(size):
        a = [programs.values(r, "bfloat16", (2, 3)) for r in range(size)]
        same_bits(got["broadcast a"], a[last])
        same_bits(got["broadcast b"], programs.values(last, "float8_e5m2", (2,)))
        same_bits(got["allgather a"], np.stack(a))
        assert got["allgather a"].dtype == ml_dtypes.bfloat16
        assert got["allgather b"].tolist() == list(range(size))
        assert got["tiled"].tolist() == [[r, r] for r in range(size) for _ in range(2)]
        assert got["keys"].shape == (size, 3, 2) and len(np.unique(got["keys"][:, 0, 0])) == size
        assert got["key"].tolist() == got["keys"][0, 0].tolist()


ERRORS = {
    "unequal": "AssertionError: seeds\n  ['x'][1] of rank 1 differs from rank 0's\n  at ",
    "shapes": "TreeError: process_allgather: rank 0 has ['x']: float64[2], rank 1 has ['x']: "
    "float64[3]\n  at ",
    "structures": "TreeError: broadcast_one_to_all: rank 0 has no leaf there, rank 1 has [1]: "
    "float64[2]\n  at ",
    "sources": "DistributedError: broadcast_one_to_all: one process is the source, here ranks [0,",
    "barriers": "DistributedError: barrier: rank ",
    "scalars": "TreeError: process_allgather: the value is a scalar, which tiled=True cannot",
    "again": "RuntimeError: distributed.initialize was called before; this is process ",
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("size", SIZES)
def test_what_does_not_fit_is_an_error_on_every_process(worlds: Worlds, size: int, name: str):
    for each in worlds(size):
        said = str(each[f"error {name}"])
        assert ERRORS[name] in said, said
        assert name == "scalars" or f"{Path(programs.__file__).name}:" in said


@pytest.mark.cpu
def test_inductor_compiles_no_meeting():
    axis = Mesh(np.array(gf.devices("cpu")[:1], object), ("i",)).axes["i"]
    f = lambda x: bind(psum_invariant_p, x, axis_name=axis) + 1.0
    with pytest.raises(gf.errors.BackendError, match="processes meet in it"):
        gf.jit(f, compiler="inductor")(gf.numpy.ones(3))
    assert gf.jit(f)(gf.numpy.ones(3)).tolist() == [2.0] * 3


@pytest.mark.cpu
def test_a_group_of_one_exchanges_nothing():
    """And gives memory of its own."""
    axis = Mesh(np.array(gf.devices("cpu")[:1], object), ("i",)).axes["i"]
    for case, of in programs.CASES.items():
        prim, params, shape = of(1)
        x = gf.numpy.asarray(programs.values(0, "float32", shape))
        y = bind(prim, x, axis_name=axis, **params)
        same_bits(np.asarray(y), expected(case, [np.asarray(x)], 0))
        assert not x.size or y.data.data_ptr() != x.data.data_ptr()
    assert bind(axis_index_p, axis_name=axis) == 0 and world().store is None
