"""Every collective within shard_map against JAX's: meshes, axis orders, tuples of axes, dtypes."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from tests.sharding.both import MESHES, NAMES, OURS, agree, numbers

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
    "pshuffle": (lambda m, x, axes, n: m.pshuffle(x, axes, list(range(n))[::-1]), False),
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


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_values(shape, dtype):
    names = NAMES[: len(shape)]
    sizes = dict(zip(names, shape))
    # All orders of axes in one dtype, one of each kind in the others.
    found = orders(shape)
    if dtype is not np.float64:
        found = [found[0], found[-1]]
    rng = np.random.default_rng([len(shape), np.dtype(dtype).num])
    for axes in found:
        size = math.prod(sizes[n] for n in (axes if isinstance(axes, tuple) else (axes,)))
        chosen = collectives_for(dtype, axes)
        # A leading dimension of whole arrays is divided among all devices: one part each.
        x = numbers(rng, (8, size, size, 3), dtype)
        left = tuple([n for n in names if n not in axes])

        def program(m, x):
            everywhere = m.P(names)

            def part(x):
                return {k: f(m, x[0], axes, size)[None] for k, (f, _) in chosen.items()}

            specs = {k: m.P(left or None) if equal else everywhere for k, (_, equal) in chosen.items()}
            return m.shard_map(part, mesh=m.mesh(*shape), in_specs=everywhere, out_specs=specs)(x)

        exact = np.dtype(dtype).kind in "iub" or np.dtype(dtype).itemsize == 2
        tolerance = 0 if exact else {4: 1e-6, 8: 1e-12, 16: 1e-12}[np.dtype(dtype).itemsize]
        if np.dtype(dtype) == np.complex64:
            tolerance = 1e-6
        mine = agree(program, x, tolerance=tolerance, what=f"{axes}")
        for name in MOVES:  # what only moves is the same bits whatever the dtype
            assert mine[name].dtype == x.dtype
