"""Every collective within shard_map against JAX's: meshes, axis orders, tuples of axes, dtypes."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import genesis_fn as gf
from tests.sharding.both import MESHES, NAMES, OURS, agree, numbers, our_mesh

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16,
          np.int8, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_, np.complex64,
          np.complex128]  # fmt: skip

# name -> (collective of (m, x, axes, size), whether its result is equal along the axes). A part has
# the shape (size, size, 3), which every one can divide.
SUMS = {
    "psum": (lambda m, x, axes, n: m.psum(x, axes), True),
    "psum_scatter": (lambda m, x, axes, n: m.psum_scatter(x, axes), False),
    "psum_scatter_1": (
        lambda m, x, axes, n: m.psum_scatter(x, axes, scatter_dimension=1), False),
    "psum_scatter_tiled": (
        lambda m, x, axes, n: m.psum_scatter(x, axes, scatter_dimension=1, tiled=True), False),
}  # fmt: skip
MEANS = {"pmean": (lambda m, x, axes, n: m.pmean(x, axes), True)}
EXTREMES = {
    "pmax": (lambda m, x, axes, n: m.pmax(x, axes), True),
    "pmin": (lambda m, x, axes, n: m.pmin(x, axes), True),
}
MOVES = {
    "all_gather": (lambda m, x, axes, n: m.all_gather(x, axes), False),
    "all_gather_last": (lambda m, x, axes, n: m.all_gather(x, axes, axis=-1), False),
    "all_gather_tiled": (lambda m, x, axes, n: m.all_gather(x, axes, axis=1, tiled=True), False),
    "invariant": (lambda m, x, axes, n: m.all_gather_invariant(x, axes), True),
    "invariant_tiled": (
        lambda m, x, axes, n: m.all_gather_invariant(x, axes, axis=2, tiled=True), True),
    "all_to_all": (lambda m, x, axes, n: m.all_to_all(x, axes, 0, 1), False),
    "all_to_all_back": (lambda m, x, axes, n: m.all_to_all(x, axes, 1, 0), False),
    "all_to_all_same": (lambda m, x, axes, n: m.all_to_all(x, axes, 1, 1), False),
    "all_to_all_tiled": (lambda m, x, axes, n: m.all_to_all(x, axes, 0, 2, tiled=True), False),
    "all_to_all_tiled_same": (lambda m, x, axes, n: m.all_to_all(x, axes, 0, 0, tiled=True), False),
}  # fmt: skip
POSITIONS = {
    "axis_index": (lambda m, x, axes, n: m.axis_index(axes) + x[0, 0].astype("int32") * 0, False),
    "axis_size": (lambda m, x, axes, n: x * m.axis_size(axes), False),
    "psum_of_one": (lambda m, x, axes, n: x * m.psum(1, axes), False),
}
# Along one axis.
ALONG = {
    "ppermute_ring": (
        lambda m, x, axes, n: m.ppermute(x, axes, [(i, (i + 1) % n) for i in range(n)]), False),
    "ppermute_part": (lambda m, x, axes, n: m.ppermute(x, axes, [(0, n - 1)]), False),
    "pshuffle": (lambda m, x, axes, n: m.pshuffle(x, axes, [*range(2, n), *range(2)][:n]), False),
    "pswapaxes": (lambda m, x, axes, n: m.pswapaxes(x, axes, 1), False),
}  # fmt: skip


def orders(shape):
    """The axes of a mesh, alone and in tuples, in every order."""
    names = NAMES[: len(shape)]
    tuples = [t for k in range(2, len(shape) + 1) for t in itertools.permutations(names, k)]
    return [*names, *tuples]


def collectives_for(dtype, axes):
    """Those that JAX takes for a dtype and these axes."""
    kind = np.dtype(dtype).kind
    found = MOVES | SUMS | POSITIONS
    if kind == "b":  # JAX scatters no sums of bools
        found = MOVES | {"psum": SUMS["psum"], "axis_index": POSITIONS["axis_index"]}
    if kind != "c":
        found |= EXTREMES
    if kind in "fcV":
        found |= MEANS
    if isinstance(axes, str):
        found |= ALONG
    return found


def compare(shape, axes, dtype, rng):
    names = NAMES[: len(shape)]
    size = math.prod(shape[names.index(n)] for n in axes)
    chosen = collectives_for(dtype, axes)
    # A leading dimension of whole arrays is divided among all devices: one part each.
    x = numbers(rng, (8, size, size, 3), dtype)
    left = tuple([n for n in names if n not in axes])

    def program(m, x):
        specs = {k: m.P(left if equal else names) for k, (_, equal) in chosen.items()}

        def part(x):
            return {k: f(m, x[0], axes, size)[None] for k, (f, _) in chosen.items()}

        return m.shard_map(part, mesh=m.mesh(*shape), in_specs=m.P(names), out_specs=specs)(x)

    single = np.dtype(dtype) in (np.float32, np.complex64)
    exact = np.dtype(dtype).kind in "iub" or np.dtype(dtype).itemsize == 2
    tolerance = 0 if exact else 1e-6 if single else 1e-12
    mine = agree(program, x, tolerance=tolerance, what=str(axes))
    for name in MOVES:
        assert mine[name].dtype == x.dtype


@pytest.mark.parametrize("shape, axes", [(s, axes) for s in MESHES for axes in orders(s)], ids=str)
def test_meshes_and_orders_of_axes(shape, axes):
    compare(shape, axes, np.float64, np.random.default_rng(len(axes)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_dtypes(dtype):
    rng = np.random.default_rng(np.dtype(dtype).num)
    for axes in (("b", "a"), "a"):
        compare((4, 2), axes, dtype, rng)


def test_keys_move_as_their_numbers_do():
    keys = gf.random.split(gf.random.key(3), (8, 4, 4))
    moves = {k: v for k, v in MOVES.items() if "invariant" not in k and "tiled" not in k}
    moves |= {k: ALONG[k] for k in ("ppermute_ring", "pshuffle", "pswapaxes")}
    spec = gf.P(NAMES[:2])

    def program(x):
        part = lambda x: {k: f(OURS, x[0], "a", 4)[None] for k, (f, _) in moves.items()}
        return gf.shard_map(part, mesh=our_mesh(4, 2), in_specs=spec, out_specs=spec)(x)

    moved, numbers_moved = program(keys), {}
    for i in range(2):
        for k, v in program(gf.random.key_data(keys)[..., i]).items():
            numbers_moved.setdefault(k, []).append(np.asarray(v))
    for k, v in moved.items():
        assert gf.dtypes.issubdtype(v.dtype, gf.dtypes.prng_key) if hasattr(gf, "dtypes") else True
        got = np.asarray(gf.random.key_data(v))
        np.testing.assert_array_equal(got, np.stack(numbers_moved[k], -1), err_msg=k)
